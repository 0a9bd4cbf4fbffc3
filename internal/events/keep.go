package events

import (
	"context"
	"fmt"
	"time"

	"agentrelay/internal/audit"
	"agentrelay/internal/principal"
	"agentrelay/internal/sealing"
	"agentrelay/internal/store"
)

// sweepRows bounds one sweep, so that no commit waits for a long backlog.
const sweepRows = 500

// Sweep removes events from before a time that nothing waits for, with their
// deliveries and attempts, and what only they kept: subscriptions that ended
// before it, receivers, old verifications. It also ends subscriptions that have
// expired, whose secrets nothing needs any more. It removes at most 500 events
// and returns how many; a further call goes on.
func Sweep(tx *store.Tx, before time.Time) (int64, error) {
	if err := endExpired(tx); err != nil {
		return 0, err
	}
	ms := before.UnixMilli()
	n, err := tx.Exec(`DELETE FROM events WHERE id IN (SELECT id FROM events e WHERE created_at < ? AND NOT EXISTS (
		SELECT 1 FROM event_deliveries d WHERE d.event = e.id AND d.state IN ('queued', 'submitting')) ORDER BY created_at LIMIT ?)`, ms, sweepRows)
	if err != nil {
		return 0, fmt.Errorf("removing old events: %w", err)
	}
	for _, statement := range []struct {
		sql  string
		args []any
	}{
		{`DELETE FROM event_verifications WHERE verified_at < ?`, []any{tx.Now().Add(-verifiedFor).UnixMilli()}},
		{`DELETE FROM event_subscriptions WHERE id IN (SELECT id FROM event_subscriptions s WHERE coalesce(ended_at, expires_at) < ?
			AND NOT EXISTS (SELECT 1 FROM event_deliveries d WHERE d.subscription = s.id) LIMIT ?)`, []any{ms, sweepRows}},
		{`DELETE FROM event_receivers WHERE id IN (SELECT id FROM event_receivers r WHERE NOT EXISTS (SELECT 1 FROM event_subscriptions s WHERE s.receiver = r.id)
			AND NOT EXISTS (SELECT 1 FROM event_deliveries d WHERE d.receiver = r.id) LIMIT ?)`, []any{sweepRows}},
	} {
		if _, err := tx.Exec(statement.sql, statement.args...); err != nil {
			return 0, fmt.Errorf("removing what old events kept: %w", err)
		}
	}
	return n, nil
}

// OpenKey returns the key that seals the secrets of subscriptions. It makes one
// when no secret is stored yet; else a missing key is an error that says what to
// do, for a new one could not open them.
func OpenKey(ctx context.Context, s *store.Store) (*sealing.Key, error) {
	var sealed int
	err := store.Read(ctx, s, func(q *store.Reader) error {
		return q.QueryRow(`SELECT count(*) FROM event_subscriptions WHERE ended_at IS NULL`).Scan(&sealed)
	})
	if err != nil {
		return nil, fmt.Errorf("counting sealed secrets: %w", err)
	}
	if sealed == 0 {
		return sealing.LoadOrCreate(s.Dir())
	}
	key, err := sealing.Load(s.Dir())
	if err != nil {
		return nil, fmt.Errorf("%d subscriptions need their key: %w; if it is lost, run gateway events forget-secrets, and let every client subscribe again", sealed, err)
	}
	return key, nil
}

// ForgetSecrets ends every subscription because its secret can't be opened any
// more, and returns how many. Each client has to subscribe again.
func ForgetSecrets(ctx context.Context, s *store.Store) (int, error) {
	return store.Write(ctx, s, func(tx *store.Tx) (int, error) {
		return endAll(tx, secretUnreadable, principal.Owner, `SELECT id, owner FROM event_subscriptions WHERE ended_at IS NULL`)
	})
}

// endExpired ends what has expired, a part at a time.
func endExpired(tx *store.Tx) error {
	_, err := endAll(tx, expired, system, `SELECT id, owner FROM event_subscriptions WHERE ended_at IS NULL AND expires_at <= ? LIMIT ?`, tx.Now().UnixMilli(), sweepRows)
	return err
}

// endAll ends the subscriptions that a query finds and returns how many.
func endAll(tx *store.Tx, reason string, by func(owner string) principal.Principal, query string, args ...any) (int, error) {
	owners := map[string]string{}
	err := tx.Query(func(row store.Scanner) error {
		var id, owner string
		err := row.Scan(&id, &owner)
		owners[id] = owner
		return err
	}, query, args...)
	if err != nil {
		return 0, fmt.Errorf("looking for subscriptions: %w", err)
	}
	for id, owner := range owners {
		if err := endSubscription(tx, id, reason); err != nil {
			return 0, err
		}
		if err := audit.Record(tx, by(owner), "event.end", id, audit.OK, "reason", reason); err != nil {
			return 0, err
		}
	}
	return len(owners), nil
}
