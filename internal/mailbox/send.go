package mailbox

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"agentrelay/internal/audit"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// newMessage is the checked arguments of send_peer_message.
type newMessage struct {
	messageID, from, to string
	text                string
	textLength          int
	inReplyTo           string // '' for the first message of a thread
}

func checkSend(in SendPeerMessageIn) (newMessage, error) {
	m := newMessage{from: in.FromPeerID, to: in.ToPeerID, text: in.Text}
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
		stored, found, err := findMessage(tx, who.Owner, m.messageID)
		switch {
		case err != nil:
			return SendPeerMessageOut{}, err
		case found:
			err = m.repeats(stored)
		default:
			stored, err = s.send(tx, who, m)
		}
		if err != nil {
			return SendPeerMessageOut{}, err
		}
		d, err := s.delivery(tx, stored)
		return SendPeerMessageOut{Message: stored.Message, Delivery: d, Duplicate: found}, err
	})
}

// repeats refuses m unless it is the call that stored the message.
func (m newMessage) repeats(stored messageRow) error {
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
	return KeyConflict.Newf("messageId was used at %s with another %s.", stored.CreatedAt, strings.Join(other, ", "))
}

// send stores a message whose id is new.
func (s *Service) send(tx *store.Tx, who principal.Principal, m newMessage) (messageRow, error) {
	from, err := activePeer(tx, who.Owner, m.from, "fromPeerId")
	if err != nil {
		return messageRow{}, err
	}
	to, err := activePeer(tx, who.Owner, m.to, "toPeerId")
	if err != nil {
		return messageRow{}, err
	}
	var original *messageRow
	if m.inReplyTo != "" {
		if original, err = findOriginal(tx, who.Owner, m, from, to); err != nil {
			return messageRow{}, err
		}
	}
	if err := s.spend(tx, who.Owner, m); err != nil {
		return messageRow{}, err
	}
	seq, err := insertMessage(tx, who.Owner, m, from, to, original)
	if err != nil {
		return messageRow{}, err
	}
	if err := s.wakeReader(tx, seq, m, to); err != nil {
		return messageRow{}, err
	}
	if err := seen(tx, from.id); err != nil {
		return messageRow{}, err
	}
	if err := audit.Record(tx, who, "message.send", m.messageID, audit.OK, "from", m.from, "to", m.to); err != nil {
		return messageRow{}, err
	}
	tx.AfterCommit(func() { s.waiters.notify(from.id, to.id) })
	stored, _, err := findMessage(tx, who.Owner, m.messageID)
	return stored, err
}

// findOriginal reads the message that m answers and refuses an answer that it
// can't have.
func findOriginal(tx *store.Tx, owner string, m newMessage, from, to peerRow) (*messageRow, error) {
	o, found, err := findMessage(tx, owner, m.inReplyTo)
	switch {
	case err != nil:
		return nil, err
	case !found:
		return nil, UnknownMessage.New("inReplyTo names no message of this owner.")
	case o.from != to.id || o.to != from.id:
		return nil, ReplyMismatch.Newf("inReplyTo is a message from %s to %s.", o.FromPeerID, o.ToPeerID)
	case o.replyMessageID != "":
		return nil, AlreadyReplied.Newf("inReplyTo was answered by message %s already; a message has one reply.", o.replyMessageID)
	case o.Hop >= MaxHops:
		return nil, HopLimit.Newf("inReplyTo is hop %d of its thread, the last one.", o.Hop)
	}
	return &o, nil
}

// insertMessage stores the row and counts it for its recipient. It returns the
// row's id.
func insertMessage(tx *store.Tx, owner string, m newMessage, from, to peerRow, original *messageRow) (int64, error) {
	var seq int64
	if err := tx.QueryRow(`SELECT coalesce(max(id), 0) + 1 FROM mailbox_messages`).Scan(&seq); err != nil {
		return 0, fmt.Errorf("numbering a message: %w", err)
	}
	thread, hop, inReplyTo := seq, 1, any(nil)
	if original != nil {
		thread, hop, inReplyTo = original.thread, original.Hop+1, original.id
	}
	summary := firstCharacters(m.text, SummaryLength)
	_, err := tx.Exec(`INSERT INTO mailbox_messages (id, owner, message_id, fingerprint, from_peer, to_peer, recipient_generation, thread, hop, in_reply_to,
			created_at, delivery_path, delivery_reason, text_length, summary, rest)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '', ?, ?, ?)`,
		seq, owner, m.messageID, m.fingerprint(), from.id, to.id, to.generation, thread, hop, inReplyTo,
		tx.Now().UnixMilli(), None, m.textLength, []byte(summary), []byte(m.text[len(summary):]))
	if err != nil {
		return 0, fmt.Errorf("storing a message: %w", err)
	}
	_, err = tx.Exec(`UPDATE mailbox_peers SET unprocessed = unprocessed + 1, unprocessed_now = unprocessed_now + 1 WHERE id = ?`, to.id)
	if err != nil {
		return 0, fmt.Errorf("counting a message: %w", err)
	}
	return seq, nil
}

// wakeReader records what will wake the recipient.
func (s *Service) wakeReader(tx *store.Tx, seq int64, m newMessage, to peerRow) error {
	d, err := s.wake.Sent(tx, Mail{
		Seq: seq, MessageID: m.messageID, FromPeerID: m.from, To: to.ref(), CreatedAt: Time{tx.Now()},
	})
	if err != nil {
		return fmt.Errorf("recording a wake-up: %w", err)
	}
	if d.Path == "" {
		d.Path = None
	}
	if d.Path == None && d.Reason == "" {
		return nil // as it was inserted
	}
	if d.Path != None {
		d.Reason = "" // the path's own record says how it went
	}
	if _, err := tx.Exec(`UPDATE mailbox_messages SET delivery_path = ?, delivery_reason = ? WHERE id = ?`, d.Path, d.Reason, seq); err != nil {
		return fmt.Errorf("storing the delivery path: %w", err)
	}
	return nil
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
