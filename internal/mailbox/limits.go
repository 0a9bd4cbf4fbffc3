package mailbox

import (
	"fmt"
	"time"

	"agentrelay/internal/store"
)

// hour is the length of a budget. It starts with the first message after the
// previous hour ended, so that at the reset time a refused sender named in the
// refusal has the whole budget again. A clock that was set back begins a new
// hour: a wrong clock must not lock an owner out.
const hour = time.Hour

// A budget counts down within the transaction of the message; when it is used up
// the refusal undoes the count with everything else.
const spendBudget = `INSERT INTO mailbox_budgets (owner, pair, started_at, used) VALUES (?1, ?2, ?3, 1)
	ON CONFLICT (owner, pair) DO UPDATE SET
		used       = CASE WHEN ?3 - started_at BETWEEN 0 AND ?4 - 1 THEN used + 1 ELSE 1 END,
		started_at = CASE WHEN ?3 - started_at BETWEEN 0 AND ?4 - 1 THEN started_at ELSE ?3 END
	RETURNING started_at, used`

// spend takes one message from the budgets of the pair and of the owner.
func (s *Service) spend(tx *store.Tx, owner string, m newMessage) error {
	pair := min(m.from, m.to) + " " + max(m.from, m.to)
	for _, b := range []struct {
		pair, name string
		limit      int
	}{
		{pair, "messages an hour between these two peers (mailbox.limits.pairPerHour)", s.limits.PairPerHour},
		{"", "messages an hour of this owner (mailbox.limits.ownerPerHour)", s.limits.OwnerPerHour},
	} {
		if b.limit <= 0 {
			continue
		}
		var started int64
		var used int
		if err := tx.QueryRow(spendBudget, owner, b.pair, tx.Now().UnixMilli(), hour.Milliseconds()).Scan(&started, &used); err != nil {
			return fmt.Errorf("counting against a budget: %w", err)
		}
		if used > b.limit {
			reset := at(started + hour.Milliseconds())
			return RateLimited.Newf("The limit of %d %s is used up; it resets at %s.", b.limit, b.name, reset).
				WithHint(fmt.Sprintf("Repeat the call with the same messageId after %s. If two peers answer each other without an end, stop instead.", reset))
		}
	}
	return nil
}
