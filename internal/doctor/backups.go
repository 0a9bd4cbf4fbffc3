package doctor

import (
	"context"
	"errors"
	"time"

	"agentrelay/internal/backup"
)

// A backup by hand is old after a month; the first by schedule is not missed before
// the gateway has run for this long.
const (
	oldBackup   = 30 * 24 * time.Hour
	firstBackup = 10 * time.Minute
)

func backupChecks() []check {
	return []check{
		{id: "backup.age", needs: needState, why: "What is not in a backup is gone with the disk.", run: checkBackupAge},
		{
			id: "backup.newest", needs: needState, budget: 2 * time.Minute, why: "A backup that can't be read is none.", run: checkBackup,
			late: warn("Run it by hand: gateway backup list shows it, gateway backup verify reads it.", "The newest backup could not be read within two minutes."),
		},
	}
}

func checkBackupAge(_ context.Context, v *visit) []finding {
	b := v.config.Backup
	sets, unreadable, err := backup.List(b.Dir)
	if err != nil {
		return one(fail("See that backup.dir is there and yours.", "%s", sentence(err)))
	}
	if v.running() != nil {
		for _, w := range v.status().Warnings {
			if w.Name == "backup_failed" {
				return one(fail("Make one by hand to see whether it works: gateway backup", "%s", w.Text))
			}
		}
	}
	if unreadable > 0 {
		return one(warn("Look at them with: gateway backup list. Remove what can't be used.", "%s in %s can't be read.", count(int64(unreadable), "backup"), b.Dir))
	}
	const byHand = "Make one: gateway backup. The gateway makes them by itself with backup.every in the config."
	if len(sets) == 0 {
		if v.running() != nil && b.Interval() > 0 && time.Duration(v.status().UptimeMs)*time.Millisecond < firstBackup {
			return one(pass("None yet: the gateway makes the first one soon after its start."))
		}
		return one(warn(byHand, "There is no backup in %s.", b.Dir))
	}
	age := v.o.Now().Sub(sets[0].CreatedAt)
	limit := oldBackup
	if every := b.Interval(); every > 0 {
		limit = 2*every + time.Hour
	}
	if age > limit {
		return one(warn(byHand, "The newest backup is %s old.", span(age)))
	}
	return one(pass("%s, the newest is %s old.", count(int64(len(sets)), "backup"), span(age)))
}

func checkBackup(ctx context.Context, v *visit) []finding {
	sets, _, err := backup.List(v.config.Backup.Dir)
	if err != nil || len(sets) == 0 {
		return one(skip("There is no backup."))
	}
	set, err := backup.Verify(ctx, sets[0].Dir)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return one(warn("Run it by hand: gateway backup list shows it, gateway backup verify reads it.", "The newest backup could not be read within two minutes."))
	case err != nil:
		return one(fail("Make a new one (gateway backup), and see whether its disk is failing.", "%s", sentence(err)))
	case set.StateDir != v.config.StateDir:
		return one(warn("Give this gateway a backup.dir of its own.", "The newest backup in %s is of another state directory, %s.", v.config.Backup.Dir, set.StateDir))
	}
	return one(pass("%s is whole: %s, schema %d.", set.ID, size(uint64(set.Bytes())), set.Schema))
}
