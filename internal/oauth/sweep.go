package oauth

import (
	"context"
	"errors"
	"fmt"
	"time"

	"agentrelay/internal/audit"
	"agentrelay/internal/store"
)

const (
	// waitingLife is how long a registration waits for its first consent.
	waitingLife = time.Hour
	// idleLife is how long an authorised client may be silent.
	idleLife = 90 * 24 * time.Hour
	// graveLife is how long ended grants and tokens are kept, so that what is
	// presented late is recognised.
	graveLife = 24 * time.Hour
	// sweepStep is how many rows one transaction removes.
	sweepStep = 500
)

// sweeps are the rows that have no more use, by the time before which they ended.
var sweeps = []struct {
	life  time.Duration
	query string
}{
	{leeway, `DELETE FROM oauth_access_tokens WHERE hash IN (SELECT hash FROM oauth_access_tokens WHERE expires_at < ? LIMIT ?)`},
	{graveLife, `DELETE FROM oauth_refresh_tokens WHERE hash IN (SELECT hash FROM oauth_refresh_tokens WHERE expires_at < ? LIMIT ?)`},
	{graveLife, `DELETE FROM oauth_grants WHERE id IN (SELECT id FROM oauth_grants WHERE expires_at < ? LIMIT ?)`},
	{waitingLife, `DELETE FROM oauth_clients WHERE id IN (SELECT id FROM oauth_clients WHERE authorized_at IS NULL AND kind <> 'registered' AND created_at < ? LIMIT ?)`},
}

// Sweep stores when clients were last seen and removes what has ended: tokens,
// codes and grants, registrations without a consent after an hour, clients that
// were silent for 90 days. Each transaction is short; call it about once a
// minute. It stops early when ctx ends.
func (s *Server) Sweep(ctx context.Context) error {
	errs := []error{s.Flush(ctx)}
	for _, sweep := range sweeps {
		errs = append(errs, s.repeat(ctx, func(tx *store.Tx) (int64, error) {
			return tx.Exec(sweep.query, tx.Now().Add(-sweep.life).UnixMilli(), sweepStep)
		}))
	}
	errs = append(errs, s.repeat(ctx, s.endIdle))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("sweeping what OAuth keeps: %w", err)
	}
	return nil
}

// repeat runs step until it finds less than a full step of rows.
func (s *Server) repeat(ctx context.Context, step func(*store.Tx) (int64, error)) error {
	for {
		n, err := store.Write(ctx, s.store, step)
		if err != nil || n < sweepStep {
			return err
		}
	}
}

// endIdle removes clients that were authorised and fell silent, and with them
// what they made. Those the owner added stay.
func (s *Server) endIdle(tx *store.Tx) (int64, error) {
	var ids []string
	err := tx.Query(func(row store.Scanner) error {
		var id string
		ids = append(ids, "")
		err := row.Scan(&id)
		ids[len(ids)-1] = id
		return err
	}, `SELECT id FROM oauth_clients WHERE authorized_at < ?1 AND coalesce(last_used_at, 0) < ?1 AND kind <> 'registered' LIMIT ?2`,
		tx.Now().Add(-idleLife).UnixMilli(), sweepStep)
	if err != nil {
		return 0, err
	}
	for _, id := range ids {
		if err := s.clients.end(tx, id); err != nil {
			return 0, err
		}
		if _, err := tx.Exec(`DELETE FROM oauth_clients WHERE id = ?`, id); err != nil {
			return 0, err
		}
		if err := audit.Record(tx, s.clients.ownerOf(id), "client.expire", id, audit.OK); err != nil {
			return 0, err
		}
	}
	return int64(len(ids)), nil
}
