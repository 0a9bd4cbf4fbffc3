package events

import (
	"database/sql"
	"errors"
	"fmt"
	"time"

	"agentrelay/internal/store"
)

// subRow is a row of event_subscriptions.
type subRow struct {
	id             string
	found          bool // false when there is no row, and then id is a new one
	receiver       int64
	clientID       string
	secret         []byte // sealed
	oldSecret      []byte // sealed
	oldUntil       int64
	expiresAt      int64
	endedAt        int64
	lastAcceptedAt int64
}

// live reports whether events are sent to it.
func (r subRow) live(now time.Time) bool {
	return r.found && r.endedAt == 0 && r.expiresAt > now.UnixMilli()
}

const subscriptionByKey = `SELECT s.id, s.receiver, s.client_id, s.secret, s.old_secret, coalesce(s.old_secret_until, 0),
		s.expires_at, coalesce(s.ended_at, 0), coalesce(s.last_accepted_at, 0)
	FROM event_receivers r JOIN event_subscriptions s ON s.receiver = r.id
	WHERE r.address = ? AND s.owner = ? AND s.name = ? AND s.arguments = ?`

func findSubscription(q store.Querier, k subKey) (subRow, error) {
	r := subRow{found: true}
	err := q.QueryRow(subscriptionByKey, k.url, k.owner, k.name, k.arguments).Scan(
		&r.id, &r.receiver, &r.clientID, &r.secret, &r.oldSecret, &r.oldUntil, &r.expiresAt, &r.endedAt, &r.lastAcceptedAt)
	switch {
	case err == nil:
		return r, nil
	case errors.Is(err, sql.ErrNoRows):
		return newSubRow(q, k)
	}
	return subRow{}, fmt.Errorf("reading a subscription: %w", err)
}

// newSubRow finds an id for a subscription that has no row. The usual one can be
// taken by a row that a migration gave to another owner.
func newSubRow(q store.Querier, k subKey) (subRow, error) {
	for {
		var taken int
		id := k.id()
		if err := q.QueryRow(`SELECT count(*) FROM event_subscriptions WHERE id = ?`, id).Scan(&taken); err != nil {
			return subRow{}, fmt.Errorf("choosing a subscription id: %w", err)
		}
		if taken == 0 {
			return subRow{id: id}, nil
		}
		k.owner += "\x00"
	}
}

// save inserts or refreshes the row.
func (r subRow) save(tx *store.Tx, k subKey) error {
	now := tx.Now().UnixMilli()
	_, err := tx.Exec(`INSERT INTO event_subscriptions (id, owner, receiver, name, arguments, client_id, secret, old_secret, old_secret_until, created_at, refreshed_at, expires_at)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?10, ?11)
		ON CONFLICT (id) DO UPDATE SET client_id = ?6, secret = ?7, old_secret = ?8, old_secret_until = ?9, refreshed_at = ?10, expires_at = ?11,
			ended_at = NULL, ended_reason = ''`,
		r.id, k.owner, r.receiver, k.name, k.arguments, r.clientID, r.secret, orNull(r.oldSecret), nullable(r.oldUntil), now, r.expiresAt)
	if err != nil {
		return fmt.Errorf("storing a subscription: %w", err)
	}
	return nil
}

// resume lets a refreshed subscription's receiver be tried at once, and sends
// what was cancelled because the subscription had expired or was ended by it.
func resume(tx *store.Tx, r subRow) error {
	_, err := tx.Exec(`UPDATE event_receivers SET failures = 0, failed_since = NULL, last_error = '' WHERE id = ?`, r.receiver)
	if err != nil {
		return fmt.Errorf("resuming a receiver: %w", err)
	}
	_, err = tx.Exec(`UPDATE event_deliveries SET state = 'queued', reason = '', tries = 0, next_at = ?
		WHERE subscription = ? AND state = 'cancelled' AND reason IN (?, ?)`, tx.Now().UnixMilli(), r.id, expired, gone)
	if err != nil {
		return fmt.Errorf("resuming deliveries: %w", err)
	}
	return nil
}

func countLive(q store.Querier, owner string, now time.Time) (n int, err error) {
	err = q.QueryRow(`SELECT count(*) FROM event_subscriptions WHERE owner = ? AND ended_at IS NULL AND expires_at > ?`, owner, now.UnixMilli()).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("counting subscriptions: %w", err)
	}
	return n, nil
}

const subscriptionsOfClient = `SELECT id, owner FROM event_subscriptions WHERE client_id = ? AND ended_at IS NULL`

// endSubscription is the end of a subscription in the database.
func endSubscription(tx *store.Tx, id, reason string) error {
	_, err := tx.Exec(`UPDATE event_subscriptions SET ended_at = min(?, expires_at), ended_reason = ?, secret = x'', old_secret = NULL, old_secret_until = NULL
		WHERE id = ? AND ended_at IS NULL`, tx.Now().UnixMilli(), reason, id)
	if err != nil {
		return fmt.Errorf("ending a subscription: %w", err)
	}
	return cancelSubscription(tx, id, reason)
}

// cancelSubscription cancels what is on its way to a subscription.
func cancelSubscription(tx *store.Tx, id, reason string) error {
	_, err := tx.Exec(`UPDATE event_deliveries SET state = 'cancelled', reason = ? WHERE subscription = ? AND state IN ('queued', 'submitting')`, reason, id)
	if err != nil {
		return fmt.Errorf("cancelling deliveries: %w", err)
	}
	return nil
}

// receiverOf returns the row of an address, made when it is new.
func receiverOf(tx *store.Tx, address string) (id int64, err error) {
	if _, err := tx.Exec(`INSERT INTO event_receivers (address) VALUES (?) ON CONFLICT DO NOTHING`, address); err != nil {
		return 0, fmt.Errorf("storing a receiver: %w", err)
	}
	err = tx.QueryRow(`SELECT id FROM event_receivers WHERE address = ?`, address).Scan(&id)
	if err != nil {
		return 0, fmt.Errorf("reading a receiver: %w", err)
	}
	return id, nil
}

// receiver is how a receiver fares.
type receiver struct {
	id             int64
	address        string
	failures       int
	failedSince    int64
	lastError      string
	probeAt        int64
	throttledUntil int64
}

func readReceiver(q store.Querier, id int64) (receiver, error) {
	r := receiver{id: id}
	err := q.QueryRow(`SELECT address, failures, coalesce(failed_since, 0), last_error, probe_at, throttled_until FROM event_receivers WHERE id = ?`, id).
		Scan(&r.address, &r.failures, &r.failedSince, &r.lastError, &r.probeAt, &r.throttledUntil)
	if err != nil {
		return r, fmt.Errorf("reading a receiver: %w", err)
	}
	return r, nil
}

// open reports whether the breaker is open.
func (r receiver) open() bool { return r.failures >= breakerAfter }

// freeAt is when the next attempt may be made.
func (r receiver) freeAt() int64 {
	if r.open() {
		return max(r.throttledUntil, r.probeAt)
	}
	return r.throttledUntil
}

func (r receiver) save(tx *store.Tx) error {
	_, err := tx.Exec(`UPDATE event_receivers SET failures = ?, failed_since = ?, last_error = ?, probe_at = ?, throttled_until = ? WHERE id = ?`,
		r.failures, nullable(r.failedSince), r.lastError, r.probeAt, r.throttledUntil, r.id)
	if err != nil {
		return fmt.Errorf("storing a receiver: %w", err)
	}
	return nil
}

// deliveryStatus is how delivery to a subscription went before it is refreshed.
func deliveryStatus(q store.Querier, sub subRow, now time.Time) (DeliveryStatus, error) {
	status := DeliveryStatus{Active: true}
	if !sub.found {
		return status, nil
	}
	r, err := readReceiver(q, sub.receiver)
	if err != nil {
		return status, err
	}
	if sub.lastAcceptedAt > 0 {
		status.LastDeliveryAt = new(at(sub.lastAcceptedAt))
	}
	if r.lastError != "" {
		status.LastError = new(wireReason(r.lastError))
		status.FailedSince = new(at(r.failedSince))
	}
	if wait := r.throttledUntil - now.UnixMilli(); wait > 0 {
		status.Throttled, status.RetryAfterMs = true, wait
	}
	return status, nil
}

func isVerified(q store.Querier, owner, url string, now time.Time) (bool, error) {
	var at int64
	err := q.QueryRow(`SELECT verified_at FROM event_verifications WHERE owner = ? AND url = ?`, owner, url).Scan(&at)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading a verification: %w", err)
	}
	age := now.Sub(time.UnixMilli(at))
	return age >= 0 && age < verifiedFor, nil
}

func recordVerified(tx *store.Tx, owner, url string) error {
	_, err := tx.Exec(`INSERT INTO event_verifications (owner, url, verified_at) VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET verified_at = ?3`,
		owner, url, tx.Now().UnixMilli())
	if err != nil {
		return fmt.Errorf("storing a verification: %w", err)
	}
	return nil
}

// nullable is a time, or NULL for none.
func nullable(ms int64) any {
	if ms == 0 {
		return nil
	}
	return ms
}

// orNull is a box, or NULL for none.
func orNull(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}
