package mailbox

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"strings"

	"agentrelay/internal/audit"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// newMessage is the checked arguments of send_peer_message.
type newMessage struct {
	messageID, from, to string
	text                string
	textLength          int
	inReplyTo           string // '' for the first message of a thread
	agent               *Agent
}

func checkSend(in SendPeerMessageIn) (newMessage, error) {
	m := newMessage{from: in.FromPeerID, to: in.ToPeerID, text: in.Text, agent: in.Agent}
	var err error
	if m.messageID, err = lowerUUID("messageId", in.MessageID); err != nil {
		return m, err
	}
	if err := firstError(checkID("fromPeerId", in.FromPeerID), checkID("toPeerId", in.ToPeerID)); err != nil {
		return m, err
	}
	if m.textLength, err = characters("text", in.Text, MaxTextLength); err != nil {
		return m, err
	}
	if in.InReplyTo != nil {
		if m.inReplyTo, err = lowerUUID("inReplyTo", *in.InReplyTo); err != nil {
			return m, err
		}
	}
	if m.from == m.to {
		return m, SelfMessage.New("fromPeerId and toPeerId are the same peer.")
	}
	return m, nil
}

// SendPeerMessage stores a message and, in the same transaction, what will wake
// its recipient. The messageId is the caller key: a repeat with the same
// arguments answers the stored message in its present state, for ever and
// whatever became of its peers and budgets since; with other arguments it is a
// key_conflict.
//
// Refusals: invalid_arguments, self_message, key_conflict, message_purged,
// unknown_peer, peer_stopped, unknown_message, reply_mismatch, already_replied,
// hop_limit, rate_limited.
func (s *Service) SendPeerMessage(ctx context.Context, who principal.Principal, in SendPeerMessageIn) (SendPeerMessageOut, error) {
	m, err := checkSend(in)
	if err != nil {
		return SendPeerMessageOut{}, err
	}
	return store.Write(ctx, s.store, func(tx *store.Tx) (SendPeerMessageOut, error) {
		if m.agent != nil {
			if _, err := ownPeer(tx, m.agent, who.Owner, m.from, "fromPeerId"); err != nil {
				return SendPeerMessageOut{}, err
			}
		}
		var used bool
		if err := tx.QueryRow(`SELECT EXISTS (SELECT 1 FROM mailbox_messages WHERE owner = ? AND message_id = ?)`, who.Owner, m.messageID).Scan(&used); err != nil {
			return SendPeerMessageOut{}, fmt.Errorf("looking for a messageId: %w", err)
		}
		if used {
			return s.repeat(tx, who.Owner, m)
		}
		return s.send(tx, who, m)
	})
}

// repeat answers a call whose messageId is stored.
func (s *Service) repeat(tx *store.Tx, owner string, m newMessage) (SendPeerMessageOut, error) {
	stored, _, err := findMessage(tx, owner, m.messageID)
	if err != nil {
		return SendPeerMessageOut{}, err
	}
	if err := m.checkRepeats(stored); err != nil {
		return SendPeerMessageOut{}, err
	}
	d, err := s.delivery(tx, stored)
	return SendPeerMessageOut{Message: stored.Message, Delivery: d, Duplicate: true}, err
}

// checkRepeats refuses m unless it is the call that stored the message.
func (m newMessage) checkRepeats(stored messageRow) error {
	if bytes.Equal(m.fingerprint(), stored.fingerprint) {
		return stored.notPurged()
	}
	var other []string
	for _, a := range []struct {
		name  string
		equal bool
	}{
		{"fromPeerId", m.from == stored.FromPeerID},
		{"toPeerId", m.to == stored.ToPeerID},
		{"inReplyTo", m.inReplyTo == stored.InReplyTo},
		{"text", m.text == stored.Text && stored.purgedAt == 0},
	} {
		if !a.equal {
			other = append(other, a.name)
		}
	}
	return fault.KeyConflict.Newf("messageId was used at %s with another %s.", stored.CreatedAt, strings.Join(other, ", ")).
		WithHint("get_peer_message shows what this messageId was used for. If your message is another one, send it with a new UUID.")
}

// send stores a message whose id is new.
func (s *Service) send(tx *store.Tx, who principal.Principal, m newMessage) (SendPeerMessageOut, error) {
	none := SendPeerMessageOut{}
	from, err := activePeer(tx, who.Owner, m.from, "fromPeerId")
	if err != nil {
		return none, err
	}
	to, err := activePeer(tx, who.Owner, m.to, "toPeerId")
	if err != nil {
		return none, err
	}
	p := place{hop: 1, threadID: m.messageID}
	if m.inReplyTo != "" {
		if p, err = placeOfReply(tx, who.Owner, m, from, to); err != nil {
			return none, err
		}
	}
	if err := s.spend(tx, who.Owner, m); err != nil {
		return none, err
	}
	seq, err := insertMessage(tx, who.Owner, m, from, to, p)
	if err != nil {
		return none, err
	}
	d, err := s.wakeReader(tx, seq, m, to)
	if err != nil {
		return none, err
	}
	if err := seen(tx, from); err != nil {
		return none, err
	}
	if err := audit.Record(tx, who, "message.send", m.messageID, audit.OK, "from", m.from, "to", m.to); err != nil {
		return none, err
	}
	tx.AfterCommit(func() { s.waiters.notify(from.id, to.id) })
	return SendPeerMessageOut{Delivery: d, Message: Message{
		MessageID: m.messageID, FromPeerID: m.from, ToPeerID: m.to, Text: m.text, InReplyTo: m.inReplyTo, ThreadID: p.threadID, Hop: p.hop,
		CreatedAt: Time{tx.Now()}, State: Unprocessed, RecipientGeneration: to.generation,
	}}, nil
}

// place is where a message stands in its conversation.
type place struct {
	hop      int
	threadID string
	thread   int64 // the row of the first message; 0 on hop 1, for it is the message itself
	original int64 // the row of the message it answers; 0 on hop 1
}

// placeOfReply reads the message that m answers and refuses an answer that it
// can't have.
func placeOfReply(tx *store.Tx, owner string, m newMessage, from, to peerRow) (place, error) {
	o, found, err := findMessage(tx, owner, m.inReplyTo)
	switch {
	case err != nil:
		return place{}, err
	case !found || (m.agent != nil && o.outside(from)):
		return place{}, UnknownMessage.New("inReplyTo names no message that this peer can answer.")
	case o.from != to.id || o.to != from.id:
		return place{}, ReplyMismatch.Newf("inReplyTo is a message from %s to %s.", o.FromPeerID, o.ToPeerID)
	case o.replyMessageID != "":
		return place{}, AlreadyReplied.Newf("inReplyTo was answered by message %s already; a message has one reply.", o.replyMessageID)
	case o.Hop >= MaxHops:
		return place{}, HopLimit.Newf("inReplyTo is hop %d of its thread, the last one.", o.Hop)
	}
	return place{hop: o.Hop + 1, threadID: o.ThreadID, thread: o.thread, original: o.id}, nil
}

// insertMessage stores the row and counts it for its recipient. It returns the
// row's id.
func insertMessage(tx *store.Tx, owner string, m newMessage, from, to peerRow, p place) (int64, error) {
	var seq int64
	if err := tx.QueryRow(`SELECT coalesce(max(id), 0) + 1 FROM mailbox_messages`).Scan(&seq); err != nil {
		return 0, fmt.Errorf("numbering a message: %w", err)
	}
	_, err := tx.Exec(`INSERT INTO mailbox_messages (id, owner, message_id, fingerprint, from_peer, to_peer, recipient_generation, thread, hop, in_reply_to,
			created_at, delivery_path, delivery_reason, text_length)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, nullif(?, 0), ?, ?, '', ?)`,
		seq, owner, m.messageID, m.fingerprint(), from.id, to.id, to.generation, cmp.Or(p.thread, seq), p.hop, p.original,
		tx.Now().UnixMilli(), None, m.textLength)
	if err != nil {
		return 0, fmt.Errorf("storing a message: %w", err)
	}
	summary := firstCharacters(m.text, SummaryLength)
	_, err = tx.Exec(`INSERT INTO mailbox_texts (id, summary, rest) VALUES (?, ?, ?)`, seq, []byte(summary), []byte(m.text[len(summary):]))
	if err != nil {
		return 0, fmt.Errorf("storing a text: %w", err)
	}
	_, err = tx.Exec(`UPDATE mailbox_peers SET unprocessed = unprocessed + 1, unprocessed_now = unprocessed_now + 1 WHERE id = ?`, to.id)
	if err != nil {
		return 0, fmt.Errorf("counting a message: %w", err)
	}
	return seq, nil
}

// wakeReader records what will wake the recipient.
func (s *Service) wakeReader(tx *store.Tx, seq int64, m newMessage, to peerRow) (Delivery, error) {
	d, err := s.wake.Sent(tx, Mail{
		Seq: seq, MessageID: m.messageID, FromPeerID: m.from, To: to.ref(), CreatedAt: Time{tx.Now()},
	})
	if err != nil {
		return Delivery{}, fmt.Errorf("recording a wake-up: %w", err)
	}
	reason := "" // a path's own record says how it went
	if d.Path == "" || d.Path == None {
		reason, d = d.Reason, notWoken(d.Reason)
	}
	if d.Path == None && reason == "" {
		return d, nil // as it was inserted
	}
	if _, err := tx.Exec(`UPDATE mailbox_messages SET delivery_path = ?, delivery_reason = ? WHERE id = ?`, d.Path, reason, seq); err != nil {
		return Delivery{}, fmt.Errorf("storing the delivery path: %w", err)
	}
	return d, nil
}

// firstCharacters returns the longest prefix of s with at most n code points.
func firstCharacters(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}
