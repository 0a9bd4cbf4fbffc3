package backup

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// settleTime is how long a gateway runs before its first backup is due: one that
	// is restarted in a loop does not fill the disk.
	settleTime = time.Minute
	// retryTime is when a backup that failed is tried again, if none is due before.
	retryTime = 15 * time.Minute
	// lookTime bounds each wait: timers stand still while a machine sleeps.
	lookTime = 10 * time.Minute
)

// Schedule makes a set of the kind [Scheduled] whenever the last one is too old,
// and removes the oldest. It is safe for concurrent use.
type Schedule struct {
	Source Source
	Dir    string
	Every  time.Duration // 0 makes none
	Keep   int
	Log    *slog.Logger

	mu     sync.Mutex
	failed error // of the last try
}

// Failed is why the last backup could not be made; nil when it was, or none was
// tried.
func (s *Schedule) Failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// Run makes backups until ctx ends.
func (s *Schedule) Run(ctx context.Context) {
	if s.Every <= 0 {
		return
	}
	wait := min(settleTime, s.Every)
	for {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		wait = s.look(ctx)
	}
}

// look makes a backup if one is due, and returns when to look again.
func (s *Schedule) look(ctx context.Context) time.Duration {
	if left := s.left(); left > 0 {
		return min(left, lookTime)
	}
	set, err := Create(ctx, s.Source, s.Dir, Scheduled)
	if ctx.Err() != nil {
		return lookTime
	}
	var removed []string
	if err == nil {
		removed, err = Prune(s.Dir, Scheduled, s.Keep)
	}
	s.mu.Lock()
	s.failed = err
	s.mu.Unlock()
	if err != nil {
		s.Log.Error("the scheduled backup failed and will be tried again", "error", err)
		return min(retryTime, s.Every)
	}
	s.Log.Info("backup made", "backup", set.ID, "bytes", set.Bytes(), "removed", len(removed))
	return min(s.Every, lookTime)
}

// left is how long the newest scheduled backup is still young enough. One of the
// future, made before the clock was set back, says nothing.
func (s *Schedule) left() time.Duration {
	sets, _, err := List(s.Dir)
	if err != nil {
		return 0 // Create says what is wrong
	}
	now := s.Source.now()
	for _, set := range sets {
		if set.Kind == Scheduled && !set.CreatedAt.After(now) {
			return set.CreatedAt.Add(s.Every).Sub(now)
		}
	}
	return 0
}
