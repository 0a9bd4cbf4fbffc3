package mailbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"agentrelay/internal/audit"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// purgeRows is how many messages one commit purges.
const purgeRows = 500

// PurgeIn says what [Service.Purge] removes.
type PurgeIn struct {
	Owner  string    // "" is every owner
	Before time.Time // messages created before this instant; required
	// IncludeUnprocessed also removes mail that nobody acknowledged.
	IncludeUnprocessed bool
	// DryRun counts and removes nothing.
	DryRun bool
}

// PurgeOut says what was removed, or with DryRun what would be.
type PurgeOut struct {
	Purged int64 `json:"purged"`
	// KeptUnprocessed counts messages that are old enough but still wait for
	// their recipient.
	KeptUnprocessed int64 `json:"keptUnprocessed"`
}

// Purge removes the text of old messages and takes them out of every list. The
// row stays without text, as a tombstone: a repeat of its messageId is answered
// message_purged and stores nothing, replies to it keep their thread and hop
// count, and it has no second reply. Unprocessed mail is kept unless asked for,
// so that no reader loses what it has not seen.
//
// Each commit removes at most 500 messages, so no sender waits for a long purge.
// When ctx ends or the store fails, what was committed stays removed and is
// counted in the answer beside the error; a further call goes on. The text is
// overwritten where it was stored. What SQLite copied aside when it rearranged
// pages earlier stays in the file until that space is used again, and backups
// stay as they are.
func (s *Service) Purge(ctx context.Context, in PurgeIn) (PurgeOut, error) {
	var out PurgeOut
	if in.Before.IsZero() {
		return out, invalid("before", "is required")
	}
	for after, more := int64(0), true; more; {
		var found purgeable
		var err error
		if found, err = s.purgeable(ctx, in, after); err != nil {
			return out, err
		}
		after, more = found.last, found.rows == scanRows
		out.KeptUnprocessed += found.kept
		if in.DryRun {
			out.Purged += int64(len(found.ids))
			continue
		}
		for len(found.ids) > 0 {
			n := min(len(found.ids), purgeRows)
			done, err := store.Write(ctx, s.store, func(tx *store.Tx) (int64, error) { return purge(tx, in, found.ids[:n]) })
			out.Purged += done
			if err != nil {
				return out, err
			}
			found.ids = found.ids[n:]
		}
	}
	return out, nil
}

// purgeable is what one step of a purge found.
type purgeable struct {
	ids  []int64
	kept int64 // old enough but unprocessed
	rows int   // looked at
	last int64 // row id to go on after
}

const messagesForwards = `SELECT id, owner, created_at, processed_at IS NOT NULL, purged_at IS NOT NULL FROM mailbox_messages WHERE id > ? ORDER BY id LIMIT ?`

func (s *Service) purgeable(ctx context.Context, in PurgeIn, after int64) (purgeable, error) {
	out := purgeable{}
	err := store.Read(ctx, s.store, func(r *store.Reader) error {
		return r.Query(func(row store.Scanner) error {
			var owner string
			var created int64
			var processed, purged bool
			if err := row.Scan(&out.last, &owner, &created, &processed, &purged); err != nil {
				return err
			}
			out.rows++
			switch {
			case purged || created >= in.Before.UnixMilli() || (in.Owner != "" && in.Owner != owner):
			case processed || in.IncludeUnprocessed:
				out.ids = append(out.ids, out.last)
			default:
				out.kept++
			}
			return nil
		}, messagesForwards, after, scanRows)
	})
	if err != nil {
		return purgeable{}, fmt.Errorf("looking for messages to purge: %w", err)
	}
	return out, nil
}

const purgeMessage = `UPDATE mailbox_messages SET purged_at = ? WHERE id = ? AND purged_at IS NULL
	RETURNING owner, to_peer, processed_at IS NULL`

// purge removes the text of these messages in one transaction and records it
// for each owner it concerns.
func purge(tx *store.Tx, in PurgeIn, ids []int64) (int64, error) {
	if err := overwriteFreed(tx, true); err != nil {
		return 0, err
	}
	perOwner := map[string]int64{}
	for _, id := range ids {
		var owner string
		var to int64
		var unprocessed bool
		err := tx.QueryRow(purgeMessage, tx.Now().UnixMilli(), id).Scan(&owner, &to, &unprocessed)
		if errors.Is(err, sql.ErrNoRows) {
			continue // another purge was faster
		}
		if err != nil {
			return 0, fmt.Errorf("purging a message: %w", err)
		}
		if _, err := tx.Exec(`DELETE FROM mailbox_texts WHERE id = ?`, id); err != nil {
			return 0, fmt.Errorf("purging a text: %w", err)
		}
		perOwner[owner]++
		if !unprocessed {
			continue
		}
		if err := uncount(tx, to, id); err != nil {
			return 0, err
		}
	}
	var total int64
	for owner, n := range perOwner {
		total += n
		if err := audit.Record(tx, principal.Owner(owner), "message.purge", "", audit.OK, "messages", n, "before", Time{in.Before}.String()); err != nil {
			return 0, err
		}
	}
	return total, overwriteFreed(tx, false)
}

// overwriteFreed makes SQLite zero what it frees, or stop it.
func overwriteFreed(tx *store.Tx, on bool) error {
	var state int
	if err := tx.QueryRow(fmt.Sprintf("PRAGMA secure_delete = %t", on)).Scan(&state); err != nil {
		return fmt.Errorf("switching secure_delete: %w", err)
	}
	return nil
}
