package commands

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"agentrelay/internal/direct/commands/output"
	"agentrelay/internal/direct/commands/record"
)

const (
	// sweepTime is how often output is swept, beside after every sweepEvery runs.
	sweepTime  = 15 * time.Minute
	sweepEvery = 32
)

func (s *Service) sweepLoop() {
	tick := time.NewTicker(sweepTime)
	defer tick.Stop()
	for {
		if err := s.Sweep(); err != nil {
			s.log.Error("could not sweep the output of commands", "error", err)
		}
		select {
		case <-tick.C:
		case <-s.sweeps:
		case <-s.ctx.Done():
			return
		}
	}
}

// Sweep removes the output of commands that have ended, the oldest first, as
// far as the limits on what is kept demand. Records stay. It is called in the
// background; the owner may ask for it too.
func (s *Service) Sweep() error {
	if err := s.root.SweepNew(); err != nil {
		return fmt.Errorf("removing unfinished records: %w", err)
	}
	oldest := s.now().Add(-s.limits.StoredFor).UnixMilli()
	stored, bytes := map[string]int{}, int64(0)
	return s.root.Newest(record.Entry{}, func(e record.Entry) (bool, error) {
		if s.ctx.Err() != nil {
			return false, nil
		}
		if e.Swept {
			return true, nil
		}
		size := output.Size(string(s.root.Record(e.CommandID)))
		stored[e.OwnerTag]++
		bytes += size
		if e.CreatedAt > oldest && stored[e.OwnerTag] <= s.limits.StoredPerOwner && bytes <= s.limits.StoredBytes {
			return true, nil
		}
		swept, err := s.sweep(e)
		if swept {
			stored[e.OwnerTag]--
			bytes -= size
		}
		return true, err
	})
}

// sweep removes the output of one command, unless it still runs.
func (s *Service) sweep(e record.Entry) (bool, error) {
	rec, _, err := s.root.Settle(e.CommandID)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return false, fmt.Errorf("sweeping a command: %w", err)
	}
	if !missing && !rec.Status.State.Final() {
		return false, nil
	}
	if !missing {
		if err := output.Remove(string(s.root.Record(e.CommandID))); err != nil {
			return false, fmt.Errorf("sweeping a command: %w", err)
		}
	}
	return true, s.root.SetSwept(e)
}
