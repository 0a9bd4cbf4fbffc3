package mailbox

import (
	"context"
	"fmt"

	"agentrelay/internal/audit"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// GetPeerMessage answers a message with its text. When peerId is the recipient
// it is marked read, once; nothing else changes.
//
// Refusals: invalid_arguments, unknown_message, message_purged, unknown_peer,
// not_recipient (peerId is neither recipient nor sender).
func (s *Service) GetPeerMessage(ctx context.Context, who principal.Principal, in GetPeerMessageIn) (GetPeerMessageOut, error) {
	id, err := lowerUUID("messageId", in.MessageID)
	if err != nil {
		return GetPeerMessageOut{}, err
	}
	if in.PeerID != nil {
		if err := checkID("peerId", *in.PeerID); err != nil {
			return GetPeerMessageOut{}, err
		}
	}
	var out GetPeerMessageOut
	var reader peerRow
	err = store.Read(ctx, s.store, func(r *store.Reader) (err error) {
		out, reader, err = s.get(r, who.Owner, id, in)
		return err
	})
	if err != nil || reader.id == 0 {
		return out, err
	}
	if !out.Message.ReadAt.IsZero() || out.Message.ToPeerID != reader.peerID {
		s.sawReader(ctx, reader)
		return out, nil
	}
	return store.Write(ctx, s.store, func(tx *store.Tx) (GetPeerMessageOut, error) {
		_, err := tx.Exec(`UPDATE mailbox_messages SET read_at = ? WHERE owner = ? AND message_id = ? AND read_at IS NULL`, tx.Now().UnixMilli(), who.Owner, id)
		if err != nil {
			return GetPeerMessageOut{}, fmt.Errorf("marking a message read: %w", err)
		}
		if err := seen(tx, reader); err != nil {
			return GetPeerMessageOut{}, err
		}
		out, _, err := s.get(tx, who.Owner, id, in)
		return out, err
	})
}

// get reads a message for GetPeerMessage; reader is the peer of peerId, if any.
func (s *Service) get(q store.Querier, owner, id string, in GetPeerMessageIn) (out GetPeerMessageOut, reader peerRow, err error) {
	if in.PeerID != nil {
		if reader, err = ownPeer(q, in.Agent, owner, *in.PeerID, "peerId"); err != nil {
			return out, reader, err
		}
	}
	m, err := knownMessage(q, owner, id)
	if err != nil {
		return out, reader, err
	}
	if in.PeerID != nil {
		if in.Agent != nil && m.outside(reader) {
			return out, reader, UnknownMessage.New("messageId names no message of this peer's present generation.")
		}
		if m.to != reader.id && m.from != reader.id {
			return out, reader, NotRecipient.Newf("peerId is neither the recipient of this message, %s, nor its sender.", m.ToPeerID)
		}
	}
	d, err := s.delivery(q, m)
	return GetPeerMessageOut{Message: m.Message, Delivery: d, ReplyMessageID: m.replyMessageID}, reader, err
}

// outside reports whether m came before the present generation of p.
func (m messageRow) outside(p peerRow) bool { return m.id <= p.generationFrom }

// AckPeerMessage marks a message processed, for its recipient alone. It sends
// nothing and wakes nobody; a second time changes nothing.
//
// Refusals: invalid_arguments, unknown_peer, unknown_message, message_purged,
// not_recipient.
func (s *Service) AckPeerMessage(ctx context.Context, who principal.Principal, in AckPeerMessageIn) (AckPeerMessageOut, error) {
	id, err := lowerUUID("messageId", in.MessageID)
	if err != nil {
		return AckPeerMessageOut{}, err
	}
	if err := checkID("peerId", in.PeerID); err != nil {
		return AckPeerMessageOut{}, err
	}
	return store.Write(ctx, s.store, func(tx *store.Tx) (AckPeerMessageOut, error) {
		p, err := ownPeer(tx, in.Agent, who.Owner, in.PeerID, "peerId")
		if err != nil {
			return AckPeerMessageOut{}, err
		}
		m, err := knownMessage(tx, who.Owner, id)
		if err != nil {
			return AckPeerMessageOut{}, err
		}
		if in.Agent != nil && m.outside(p) {
			return AckPeerMessageOut{}, UnknownMessage.New("messageId names no message of this peer's present generation.")
		}
		if m.to != p.id {
			return AckPeerMessageOut{}, NotRecipient.Newf("peerId is not the recipient of this message, which is %s.", m.ToPeerID)
		}
		if err := seen(tx, p); err != nil {
			return AckPeerMessageOut{}, err
		}
		if m.State == Processed {
			return AckPeerMessageOut{Message: m.Message, AlreadyProcessed: true}, nil
		}
		if err := process(tx, who, m); err != nil {
			return AckPeerMessageOut{}, err
		}
		m.State, m.ProcessedAt = Processed, Time{tx.Now()}
		return AckPeerMessageOut{Message: m.Message}, nil
	})
}

// process marks an unprocessed message processed.
func process(tx *store.Tx, who principal.Principal, m messageRow) error {
	if _, err := tx.Exec(`UPDATE mailbox_messages SET processed_at = ? WHERE id = ?`, tx.Now().UnixMilli(), m.id); err != nil {
		return fmt.Errorf("marking a message processed: %w", err)
	}
	if err := uncount(tx, m.to, m.id); err != nil {
		return err
	}
	return audit.Record(tx, who, "message.ack", m.MessageID, audit.OK, "peer", m.ToPeerID)
}

// uncount takes a message that is unprocessed no longer from its recipient's
// counters.
func uncount(tx *store.Tx, peer, message int64) error {
	_, err := tx.Exec(`UPDATE mailbox_peers SET unprocessed = unprocessed - 1, unprocessed_now = unprocessed_now - (generation_from < ?) WHERE id = ?`, message, peer)
	if err != nil {
		return fmt.Errorf("counting an inbox: %w", err)
	}
	return nil
}
