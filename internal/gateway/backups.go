package gateway

import (
	"context"
	"fmt"
	"time"

	"agentrelay/internal/backup"
	"agentrelay/internal/events"
	"agentrelay/internal/migrate"
	"agentrelay/internal/store"
)

// openStore opens the state directory, backs it up when its schema is older, and
// settles what a restore has left uncertain.
func (g *Gateway) openStore(ctx context.Context) (err error) {
	c := g.config
	plan := backup.PlanOf(c, g.now)
	g.store, err = store.Open(ctx, store.Options{
		Dir: c.StateDir, Now: g.now, AllowNetworkFS: c.Store.AllowNetworkFilesystem, BeforeUpgrade: plan.BeforeUpgrade, Log: g.log,
	})
	if err != nil {
		return fmt.Errorf("opening the state directory: %w", err)
	}
	g.backups = plan.Schedule(g.store, g.log)
	return backup.Settle(ctx, g.store, func(kept string) []func(*store.Tx) error {
		steps := []func(*store.Tx) error{events.Restored}
		if kept == "" {
			return steps
		}
		add, err := migrate.Receipts(ctx, kept)
		if err != nil { // that can be why the backup was put back
			g.log.Warn("what was dispatched after the backup can't be read from the state of before: a repeat of it is not recognised", "error", err)
			return steps
		}
		return append(steps, add)
	})
}

// Backups says how old the newest backup is.
type Backups struct {
	Count    int        `json:"count"`              // in the directory of the config
	NewestAt *time.Time `json:"newestAt,omitempty"` // absent when there is none
}

// measureBackups lists the backups and warns when they fail.
func (g *Gateway) measureBackups(s *Status) {
	sets, _, err := backup.List(g.backups.Dir)
	if err == nil {
		err = g.backups.Failed()
	}
	s.Backups.Count = len(sets)
	if len(sets) > 0 {
		s.Backups.NewestAt = &sets[0].CreatedAt
	}
	if err != nil {
		s.Warnings = append(s.Warnings, Warning{"backup_failed", fmt.Sprintf("The last backup failed: %v", err)})
	}
}
