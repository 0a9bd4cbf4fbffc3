package events

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"agentrelay/internal/store"
)

// job is an attempt that was claimed: it is on disk, and must be made now.
type job struct {
	row       deliveryRow
	claimedAt time.Time
	// ctx ends when the attempt must be broken off; done is closed by the sender
	// when it is over.
	ctx  context.Context
	done func()
}

// deliveryRow is a delivery with what an attempt needs.
type deliveryRow struct {
	id           int64
	receiver     int64
	attempts     int
	tries        int
	nextAt       int64
	subscription string // "" for a wake-up target
	eventID      string
	body         []byte
	owner        string
	name         string
	peerID       string
	address      string
	// Of the subscription.
	secret, oldSecret []byte
	oldUntil          int64
	expiresAt         int64
	clientID          string
}

const nextDelivery = `SELECT d.id, d.receiver, d.attempts, d.tries, d.next_at, coalesce(d.subscription, ''), e.event_id, e.body, e.owner, e.name, e.peer_id, r.address,
		s.secret, s.old_secret, coalesce(s.old_secret_until, 0), coalesce(s.expires_at, 0), coalesce(s.client_id, '')
	FROM event_deliveries d CROSS JOIN events e ON e.id = d.event CROSS JOIN event_receivers r ON r.id = d.receiver
	LEFT JOIN event_subscriptions s ON s.id = d.subscription
	WHERE d.receiver = ? AND d.state = 'queued' ORDER BY d.next_at, d.id LIMIT 1`

func scanDelivery(row store.Scanner) (d deliveryRow, err error) {
	err = row.Scan(&d.id, &d.receiver, &d.attempts, &d.tries, &d.nextAt, &d.subscription, &d.eventID, &d.body, &d.owner, &d.name, &d.peerID, &d.address,
		&d.secret, &d.oldSecret, &d.oldUntil, &d.expiresAt, &d.clientID)
	return d, err
}

// claim begins the next attempt at a receiver, or says when there is one: at the
// zero time when nothing waits.
func (s *Service) claim(tx *store.Tx, id int64) (*job, time.Time, error) {
	now := tx.Now()
	for {
		d, err := scanDelivery(tx.QueryRow(nextDelivery, id))
		if errors.Is(err, sql.ErrNoRows) {
			return nil, time.Time{}, nil
		}
		if err != nil {
			return nil, time.Time{}, fmt.Errorf("looking for a delivery: %w", err)
		}
		dropped, err := s.drop(tx, d)
		if err != nil {
			return nil, time.Time{}, err
		}
		if dropped { // the rest of what waits is another's
			continue
		}
		r, err := readReceiver(tx, id)
		if err != nil {
			return nil, time.Time{}, err
		}
		if due := max(d.nextAt, r.freeAt()); due > now.UnixMilli() {
			return nil, time.UnixMilli(due), nil
		}
		if r.open() {
			r.probeAt = now.Add(probeEvery).UnixMilli()
			if err := r.save(tx); err != nil {
				return nil, time.Time{}, err
			}
		}
		d.attempts++
		d.tries++
		return &job{row: d, claimedAt: now}, time.Time{}, begin(tx, d)
	}
}

// drop cancels what waits for a subscription that may not have it any more.
func (s *Service) drop(tx *store.Tx, d deliveryRow) (bool, error) {
	if d.subscription == "" {
		return false, nil
	}
	if d.expiresAt <= tx.Now().UnixMilli() {
		return true, s.end(tx, d.subscription, expired, system(d.owner))
	}
	t, err := findType(d.name)
	if err != nil {
		return false, err
	}
	ok, err := s.allowed(tx, d.clientID, t.permission)
	if err != nil {
		return false, fmt.Errorf("asking what a client is allowed: %w", err)
	}
	if ok {
		return false, nil
	}
	return true, cancelSubscription(tx, d.subscription, notPermitted)
}

// begin writes an attempt down before it is made.
func begin(tx *store.Tx, d deliveryRow) error {
	now := tx.Now().UnixMilli()
	_, err := tx.Exec(`UPDATE event_deliveries SET state = 'submitting', reason = '', attempts = ?, tries = ?, last_attempt_at = ? WHERE id = ?`,
		d.attempts, d.tries, now, d.id)
	if err != nil {
		return fmt.Errorf("claiming a delivery: %w", err)
	}
	if _, err := tx.Exec(`INSERT INTO event_attempts (delivery, attempt, started_at) VALUES (?, ?, ?)`, d.id, d.attempts, now); err != nil {
		return fmt.Errorf("recording an attempt: %w", err)
	}
	return nil
}

// verdict is what an attempt does to its delivery.
type verdict struct {
	state   State
	outcome string // "accepted" or a reason
	again   bool   // another attempt may follow
	// blames is whether the receiver failed, praises whether it worked.
	blames, praises bool
	end             string // ends the subscription for this reason
}

// judge decides about an attempt. broken is whether we broke it off ourselves.
func judge(d deliveryRow, a answer, accepts func(status int) bool, broken bool) verdict {
	switch {
	case a.failure == secretUnreadable:
		return verdict{state: Cancelled, outcome: secretUnreadable, end: secretUnreadable}
	case a.failure == credentialUnusable:
		return verdict{state: Failed, outcome: credentialUnusable}
	case accepts(a.status):
		return verdict{state: accepted, outcome: string(accepted), praises: true}
	case broken && a.status == 0:
		return verdict{state: Unknown, outcome: interrupted, again: d.subscription != ""}
	case d.subscription == "" && a.status == 0 && a.reached:
		return verdict{state: Unknown, outcome: a.failure, blames: true}
	case d.subscription == "":
		return verdict{state: Failed, outcome: a.reason(), blames: true}
	case a.status == 410:
		return verdict{state: Cancelled, outcome: gone, end: gone}
	case a.status == 413: // this event is too large; the next one may not be
		return verdict{state: Failed, outcome: a.reason()}
	}
	return verdict{state: Failed, outcome: a.reason(), again: true, blames: true}
}

// settle writes down what came of an attempt, and reports whether it opened or
// closed the receiver's breaker. A delivery that was cancelled meanwhile stays so.
func (s *Service) settle(tx *store.Tx, j *job, a answer, v verdict) (changed bool, err error) {
	d, now := j.row, tx.Now()
	_, err = tx.Exec(`UPDATE event_attempts SET ended_at = ?, status = nullif(?, 0), outcome = ? WHERE delivery = ? AND attempt = ?`,
		now.UnixMilli(), a.status, v.outcome, d.id, d.attempts)
	if err != nil {
		return false, fmt.Errorf("recording an attempt: %w", err)
	}
	if changed, err = rateReceiver(tx, j, a, v); err != nil {
		return false, err
	}
	state, nextAt := v.state, now.UnixMilli()
	if wait, more := retryDelay(d.tries, s.jitter()); v.again && more {
		state, nextAt = Queued, now.Add(wait).UnixMilli()
	}
	reason := v.outcome
	if v.praises {
		reason = ""
	}
	n, err := tx.Exec(`UPDATE event_deliveries SET state = ?, reason = ?, next_at = ? WHERE id = ? AND state = 'submitting' AND attempts = ?`,
		state, reason, nextAt, d.id, d.attempts)
	if err != nil {
		return false, fmt.Errorf("settling a delivery: %w", err)
	}
	if n == 0 || d.subscription == "" {
		return changed, nil
	}
	return changed, s.settleSubscription(tx, d, v)
}

// settleSubscription is what an attempt means for its subscription.
func (s *Service) settleSubscription(tx *store.Tx, d deliveryRow, v verdict) error {
	if v.praises {
		if _, err := tx.Exec(`UPDATE event_subscriptions SET last_accepted_at = ? WHERE id = ?`, tx.Now().UnixMilli(), d.subscription); err != nil {
			return fmt.Errorf("noting an accepted delivery: %w", err)
		}
	}
	if v.end == "" {
		return nil
	}
	if _, err := tx.Exec(`DELETE FROM event_verifications WHERE owner = ? AND url = ?`, d.owner, d.address); err != nil {
		return fmt.Errorf("forgetting a verification: %w", err)
	}
	return s.end(tx, d.subscription, v.end, system(d.owner))
}

// rateReceiver notes how the receiver fared, and reports whether its breaker opened or
// closed.
func rateReceiver(tx *store.Tx, j *job, a answer, v verdict) (changed bool, err error) {
	if !v.blames && !v.praises {
		return false, nil
	}
	r, err := readReceiver(tx, j.row.receiver)
	if err != nil {
		return false, err
	}
	before := r.open()
	if v.praises {
		r = receiver{id: r.id, address: r.address}
	} else {
		r.failures++
		r.lastError = v.outcome
		if r.failedSince == 0 {
			r.failedSince = tx.Now().UnixMilli()
		}
		r.probeAt = j.claimedAt.Add(probeEvery).UnixMilli()
		if a.retryAfter > 0 {
			r.throttledUntil = tx.Now().Add(a.retryAfter).UnixMilli()
		}
	}
	return r.open() != before, r.save(tx)
}

// settleInterrupted settles the attempts that a former run began and did not
// finish: nobody knows what came of them. A callback is tried again when its
// schedule says so, a wake-up target is not.
func (s *Service) settleInterrupted(tx *store.Tx) error {
	var rows []deliveryRow
	err := tx.Query(func(row store.Scanner) error {
		var d deliveryRow
		err := row.Scan(&d.id, &d.attempts, &d.tries, &d.subscription)
		rows = append(rows, d)
		return err
	}, `SELECT id, attempts, tries, coalesce(subscription, '') FROM event_deliveries WHERE state = 'submitting'`)
	if err != nil {
		return fmt.Errorf("looking for interrupted attempts: %w", err)
	}
	for _, d := range rows {
		j := &job{row: d}
		if _, err := s.settle(tx, j, answer{}, judge(d, answer{}, acceptsNothing, true)); err != nil {
			return err
		}
	}
	return nil
}

func acceptsNothing(int) bool { return false }

// receiversWithMail are those that something waits for.
func receiversWithMail(q store.Querier) (ids []int64, err error) {
	err = q.Query(func(row store.Scanner) error {
		var id int64
		err := row.Scan(&id)
		ids = append(ids, id)
		return err
	}, `SELECT id FROM event_receivers r WHERE EXISTS (SELECT 1 FROM event_deliveries d WHERE d.receiver = r.id AND d.state = 'queued')`)
	if err != nil {
		return nil, fmt.Errorf("looking for receivers: %w", err)
	}
	return ids, nil
}
