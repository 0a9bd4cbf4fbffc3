package audit

import (
	"context"
	"fmt"

	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// Begun is the outcome of an action that was about to be done, of which no end
// is recorded: it was done or not.
const Begun = "begun"

// Intent is an entry about an effect that can't share a transaction with it: a
// file that is written, a process that is started. It is committed before the
// effect, so that there is none without an entry.
type Intent struct {
	store *store.Store
	id    int64
}

// Begin commits an entry with the outcome [Begun]. Detail is that of [Record].
func Begin(ctx context.Context, s *store.Store, who principal.Principal, action, subject string, detail ...any) (Intent, error) {
	id, err := store.Write(ctx, s, func(tx *store.Tx) (id int64, err error) {
		if err := Record(tx, who, action, subject, Begun, detail...); err != nil {
			return 0, err
		}
		return id, tx.QueryRow(`SELECT last_insert_rowid()`).Scan(&id)
	})
	if err != nil {
		return Intent{}, fmt.Errorf("recording what is about to be done: %w", err)
	}
	return Intent{s, id}, nil
}

// End puts in the outcome, and adds to the detail. When it fails the entry stays
// as it began.
func (i Intent) End(ctx context.Context, outcome string, detail ...any) error {
	raw, err := encode(detail)
	if err != nil {
		return err
	}
	err = store.Exec(ctx, i.store, func(tx *store.Tx) error {
		_, err := tx.Exec(`UPDATE audit_log SET outcome = ?, detail = json_patch(detail, ?) WHERE id = ?`, outcome, raw, i.id)
		return err
	})
	if err != nil {
		return fmt.Errorf("recording how an action ended: %w", err)
	}
	return nil
}
