package events

import (
	"database/sql"
	"errors"
	"fmt"

	"agentrelay/internal/store"
)

// messageEvent is what peer.message is of one peer.
func messageEvent(owner, peerID string) (event, error) {
	t, err := findType(PeerMessage)
	return event{owner: owner, eventType: t, arguments: map[string]string{"peerId": peerID}, peerID: peerID}, err
}

// Sent records what wakes the recipient of a message, in the transaction that
// stores it: its live subscriptions, else its wake-up target, else nothing.
func (s *Service) Sent(tx *store.Tx, m Mail) (Delivery, error) {
	e, err := messageEvent(m.To.Owner, m.To.PeerID)
	if err != nil {
		return Delivery{}, err
	}
	body := wakeBody{eventID(m.To.Owner, PeerMessage, m.MessageID), m.MessageID, m.To.PeerID, m.To.Generation}
	e.subject, e.data = m.MessageID, body
	p, err := s.publish(tx, e)
	if err != nil {
		return Delivery{}, err
	}
	if p.Receivers > 0 {
		return Delivery{Path: PathEvents, State: Queued}, nil
	}
	t, watermark, why, err := s.targetOf(tx, m.To)
	if err != nil {
		return Delivery{}, err
	}
	if t.PeerID == "" && why == "" {
		why, err = s.lapsed(tx, e, tx.Now().UnixMilli())
		return Delivery{Path: PathNone, Reason: why}, err
	}
	if why != "" || m.Seq <= watermark {
		return Delivery{Path: PathNone, Reason: why}, nil
	}
	receiver, err := receiverOf(tx, t.address())
	if err != nil {
		return Delivery{}, err
	}
	raw, err := encode(body)
	if err != nil {
		return Delivery{}, fmt.Errorf("writing a wake-up: %w", err)
	}
	return Delivery{Path: PathWebhook, State: Queued}, s.enqueue(tx, p.EventID, e, raw, []destination{{receiver: receiver}})
}

// Ended cancels what waits for a generation of a peer that ends, and disables
// its wake-up target. Subscriptions stay: they follow the id.
func (s *Service) Ended(tx *store.Tx, p Peer) error {
	if err := s.disableTarget(tx, p); err != nil {
		return err
	}
	if err := cancelTarget(tx, p.key(), peerStopped); err != nil {
		return err
	}
	e, err := messageEvent(p.Owner, p.PeerID)
	if err != nil {
		return err
	}
	var ids []string
	err = tx.Query(func(row store.Scanner) error {
		var id string
		err := row.Scan(&id)
		ids = append(ids, id)
		return err
	}, `SELECT id FROM event_subscriptions WHERE owner = ? AND name = ? AND arguments = ?`, p.Owner, PeerMessage, canonicalJSON(e.arguments))
	if err != nil {
		return fmt.Errorf("looking for subscriptions: %w", err)
	}
	for _, id := range ids {
		if err := cancelSubscription(tx, id, peerStopped); err != nil {
			return err
		}
		tx.AfterCommit(func() { s.sender.abort(id) })
	}
	return nil
}

// Notification says what would wake this peer now.
func (s *Service) Notification(q store.Querier, p Peer) (Notification, error) {
	e, err := messageEvent(p.Owner, p.PeerID)
	if err != nil {
		return Notification{}, err
	}
	now := s.now()
	subs, err := s.matching(q, p.Owner, e.eventType, e.arguments, now.UnixMilli())
	if err != nil {
		return Notification{}, err
	}
	t, _, why, err := s.targetOf(q, p)
	switch {
	case err != nil:
		return Notification{}, err
	case len(subs) > 0:
		n, err := subscribed(q, subs)
		if n.Reason == "" && t.PeerID != "" && why == "" {
			n.Reason = "Its wake-up target is paused while a subscription is active."
		}
		return n, err
	case t.PeerID == "" || why != "":
		if why == "" {
			why, err = s.lapsed(q, e, now.UnixMilli())
		}
		return Notification{Path: PathNone, Reason: why}, err
	}
	receiver, found, err := findReceiver(q, t.address())
	if err != nil || !found || receiver.failures == 0 {
		return Notification{Path: PathWebhook}, err
	}
	return Notification{Path: PathWebhook, Reason: fmt.Sprintf("Its last wake-up failed: %s.", phrase(receiver.lastError))}, nil
}

// subscribed is the notification of a peer with live subscriptions.
func subscribed(q store.Querier, subs []match) (Notification, error) {
	n := Notification{Path: PathEvents}
	var failing receiver
	for _, sub := range subs {
		if until := at(sub.expiresAt); until.After(n.ExpiresAt.Time) {
			n.ExpiresAt = until
		}
		r, err := readReceiver(q, sub.receiver)
		if err != nil {
			return n, err
		}
		if r.failures == 0 {
			return n, nil // one that works is enough
		}
		failing = r
	}
	n.Reason = fmt.Sprintf("Its receiver has failed since %s: %s. Deliveries wait and are tried again.", at(failing.failedSince), phrase(failing.lastError))
	return n, nil
}

// lapsed explains why a peer that had a subscription has none.
func (s *Service) lapsed(q store.Querier, e event, now int64) (string, error) {
	var clientID, reason string
	var expiresAt, endedAt int64
	err := q.QueryRow(`SELECT client_id, expires_at, coalesce(ended_at, 0), ended_reason FROM event_subscriptions
		WHERE owner = ? AND name = ? AND arguments = ? ORDER BY refreshed_at DESC LIMIT 1`, e.owner, e.eventType.Name, canonicalJSON(e.arguments)).
		Scan(&clientID, &expiresAt, &endedAt, &reason)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("looking for a former subscription: %w", err)
	case endedAt == 0 && expiresAt > now:
		return fmt.Sprintf("Its client subscribed, but the owner no longer allows it %s.", e.eventType.permission), nil
	case endedAt == 0 || reason == expired:
		return fmt.Sprintf("Its subscription expired at %s; its client must subscribe again.", at(expiresAt)), nil
	case reason == unsubscribed:
		return "", nil
	}
	return fmt.Sprintf("Its subscription ended at %s: %s.", at(endedAt), phrase(reason)), nil
}

func findReceiver(q store.Querier, address string) (receiver, bool, error) {
	var id int64
	err := q.QueryRow(`SELECT id FROM event_receivers WHERE address = ?`, address).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return receiver{}, false, nil
	}
	if err != nil {
		return receiver{}, false, fmt.Errorf("looking for a receiver: %w", err)
	}
	r, err := readReceiver(q, id)
	return r, true, err
}

// ranks order the states of several deliveries of one message: the furthest, and
// of those that go no further the one that leaves the most open.
var ranks = map[State]int{Cancelled: 1, Failed: 2, Unknown: 3, Queued: 4, Submitting: 5, accepted: 6}

const deliveriesOfMessage = `SELECT d.state, d.reason, d.attempts, coalesce(d.last_attempt_at, 0), d.next_at, d.subscription IS NULL, d.receiver, e.event_id
	FROM events e JOIN event_deliveries d ON d.event = e.id WHERE e.owner = ? AND e.name = ? AND e.subject = ?`

// Delivery is the present state of a message's wake-up: of several receivers the
// furthest, with the attempts of all. The zero Delivery means that nothing is
// recorded, or no longer.
func (s *Service) Delivery(q store.Querier, owner, messageID string) (Delivery, error) {
	var out Delivery
	type row struct {
		state    State
		reason   string
		nextAt   int64
		receiver int64
		eventID  string
	}
	var best row
	err := q.Query(func(sc store.Scanner) error {
		var r row
		var attempts int
		var lastAttemptAt int64
		var wake bool
		if err := sc.Scan(&r.state, &r.reason, &attempts, &lastAttemptAt, &r.nextAt, &wake, &r.receiver, &r.eventID); err != nil {
			return err
		}
		out.Path = PathEvents
		if wake {
			out.Path = PathWebhook
		}
		out.Attempts += attempts
		if last := at(lastAttemptAt); last.After(out.LastAttemptAt.Time) {
			out.LastAttemptAt = last
		}
		if ranks[r.state] > ranks[best.state] {
			best = r
		}
		return nil
	}, deliveriesOfMessage, owner, PeerMessage, messageID)
	if err != nil || best.state == "" {
		return Delivery{}, wrap(err, "reading the deliveries of a message")
	}
	out.State = shown(best.state, out.Path)
	waiting := receiver{}
	if best.state == Queued {
		if waiting, err = readReceiver(q, best.receiver); err != nil {
			return Delivery{}, err
		}
	}
	out.Reason = explain(best.state, best.reason, max(best.nextAt, waiting.freeAt()), s.now().UnixMilli())
	return out, nil
}

func wrap(err error, doing string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// shown is a stored state as callers know it.
func shown(state State, p Path) State {
	switch {
	case state != accepted:
		return state
	case p == PathWebhook:
		return WebhookAccepted
	}
	return CallbackAccepted
}

// explain is the reason of a delivery in a sentence.
func explain(state State, reason string, nextAt, now int64) string {
	text := ""
	if reason != "" {
		text = "The last attempt failed: " + phrase(reason) + "."
	}
	switch state {
	case Queued:
		if nextAt > now {
			text += " The next attempt is at " + at(nextAt).String() + "."
		}
	case Cancelled:
		text = "It was cancelled: " + phrase(reason) + "."
	case Failed:
		text += " It is not tried again by itself; the owner can send it again."
	case Unknown:
		text = "Whether it arrived is not known: " + phrase(reason) + "."
	}
	if len(text) > 0 && text[0] == ' ' {
		text = text[1:]
	}
	return text
}
