package events

import (
	"agentrelay/internal/store"
)

// Restored settles what a state that was put back from a backup can't tell: what
// waits there for a wake-up target may have been sent after the backup was made, and
// such a target is told at most once. A callback is sent what waits for it again, and
// knows it by its id. The mail itself waits in its inbox either way.
func Restored(tx *store.Tx) error {
	_, err := tx.Exec(`UPDATE event_deliveries SET state = 'unknown', reason = ? WHERE subscription IS NULL AND state IN ('queued', 'submitting')`, restored)
	return wrap(err, "settling what waits for wake-up targets")
}
