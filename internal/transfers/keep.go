package transfers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"agentrelay/internal/store"
)

// settleBudget is how long a host may take to say what became of a placement,
// and how long a start waits for all of them.
const settleBudget = 2 * time.Second

// recover ends what the last run left: it is called before anything begins.
func (s *Service) recover(ctx context.Context) error {
	unsettled, err := store.Write(ctx, s.store, func(tx *store.Tx) (bool, error) {
		rows, err := all(tx, `SELECT `+columns+` FROM transfers t WHERE state IN ('pending', 'outcome_unknown')`)
		if err != nil {
			return false, err
		}
		unsettled := false
		for _, r := range rows {
			switch {
			case r.State == StateUnknown:
				unsettled = true
			case r.placing:
				unsettled = true
				_, err = leaveUnknown(tx, r)
			default:
				_, err = interrupt(tx, r, Pending, "The gateway stopped before it was done.")
			}
			if err != nil {
				return false, err
			}
		}
		return unsettled, s.recoverLinks(tx)
	})
	if err != nil {
		return err
	}
	if err := s.sweepSpool(ctx); err != nil {
		return err
	}
	if unsettled {
		s.settleInTime()
	}
	return nil
}

// recoverLinks ends the exports whose snapshot did not survive, as when the power
// failed on a disk that lies.
func (s *Service) recoverLinks(tx *store.Tx) error {
	rows, err := all(tx, `SELECT `+columns+` FROM transfers t WHERE spool <> '' AND state IN ('ready', 'completed')`)
	if err != nil {
		return err
	}
	for _, r := range rows {
		info, err := os.Stat(s.spool.path(r.spool))
		if err == nil && info.Size() == *r.Size {
			s.spool.belongs(r.spool, r.owner)
			continue
		}
		if r.State == Completed {
			_, err = update(tx, r.id, Completed, `spool = ''`)
		} else {
			_, err = interrupt(tx, r, Ready, "The snapshot was lost when the gateway's machine failed.")
		}
		if err = errors.Join(err, deleteTickets(tx, r.id)); err != nil {
			return err
		}
	}
	return nil
}

// interrupt ends a transfer that was not done and changed nothing.
func interrupt(tx *store.Tx, r row, from State, message string) (bool, error) {
	f := interrupted(message)
	ok, err := update(tx, r.id, from, `state = 'interrupted', spool = '', ended_at = ?, error_code = ?, error_message = ?, error_hint = ?`, tx.Now().UnixMilli(), f.Code, f.Message, f.Hint)
	if err != nil || !ok {
		return false, err
	}
	return true, r.record(tx, "file."+string(r.Direction), f.Code)
}

// settleInTime asks the hosts about imports whose outcome is unknown, and goes
// on in the background with those that do not answer at once.
func (s *Service) settleInTime() {
	leave, ok := s.enter()
	if !ok {
		return
	}
	done := make(chan struct{})
	go func() {
		defer leave()
		defer close(done)
		if err := s.settleAll(s.running); err != nil && s.running.Err() == nil {
			s.log.Warn("imports of unknown outcome could not be settled", "error", err)
		}
	}()
	select {
	case <-done:
	case <-time.After(settleBudget):
	}
}

// settleAll asks the hosts about all imports whose outcome is unknown. Each is
// asked beside the others, so that one which does not answer delays none.
func (s *Service) settleAll(ctx context.Context) error {
	rows, err := s.unsettled(ctx, `state = 'outcome_unknown'`)
	byHost := map[string][]row{}
	for _, r := range rows {
		byHost[r.HostID] = append(byHost[r.HostID], r)
	}
	ended := make(chan error, len(byHost))
	for _, rows := range byHost {
		go func() { ended <- s.settleEach(ctx, rows) }()
	}
	for range byHost {
		err = errors.Join(err, <-ended)
	}
	return err
}

// SettleHost asks a host about its imports whose outcome is unknown. It is for
// when the host can be reached again, and quick when there are none.
func (s *Service) SettleHost(ctx context.Context, hostID string) error {
	leave, ok := s.enter()
	if !ok {
		return nil
	}
	defer leave()
	rows, err := s.unsettled(ctx, `state = 'outcome_unknown' AND host_id = ?`, hostID)
	return errors.Join(err, s.settleEach(ctx, rows))
}

func (s *Service) unsettled(ctx context.Context, where string, args ...any) (rows []row, err error) {
	err = store.Read(ctx, s.store, func(q *store.Reader) (err error) {
		rows, err = all(q, `SELECT `+columns+` FROM transfers t WHERE `+where, args...)
		return err
	})
	return rows, err
}

// settleEach settles imports of one host, until it can't be asked.
func (s *Service) settleEach(ctx context.Context, rows []row) (err error) {
	for _, r := range rows {
		known, failed := s.settle(ctx, r)
		if err = errors.Join(err, failed); !known {
			break
		}
	}
	return err
}

// settle asks the host what became of an import. That the host can't say is no
// error: the outcome stays unknown.
func (s *Service) settle(ctx context.Context, r row) (known bool, err error) {
	h, err := s.hosts.Host(r.HostID)
	if err != nil {
		return false, nil //nolint:nilerr // asked again later
	}
	ask, cancel := context.WithTimeout(ctx, settleBudget)
	defer cancel()
	_, placed, err := h.Settle(ask, r.placementID())
	if err != nil {
		s.log.Info("the outcome of an import is still unknown", "transfer", r.id, "error", err)
		return false, nil
	}
	return true, store.Exec(context.WithoutCancel(ctx), s.store, func(tx *store.Tx) error {
		if placed {
			_, err := complete(tx, r, StateUnknown)
			return err
		}
		_, err := interrupt(tx, r, StateUnknown, "The gateway or its connection stopped before the file was placed.")
		return err
	})
}

// settleNow is settle for a caller, who gets the row as it is then.
func (s *Service) settleNow(ctx context.Context, r row) (row, error) {
	if _, err := s.settle(ctx, r); err != nil {
		return row{}, err
	}
	now, _, err := s.read(ctx, byID, r.id)
	return now, err
}

// Sweep ends links whose time is over, removes their files, and asks again about
// imports whose outcome is unknown. It should run about every minute.
func (s *Service) Sweep(ctx context.Context) error {
	leave, ok := s.enter()
	if !ok {
		return nil
	}
	defer leave()
	err := store.Exec(ctx, s.store, func(tx *store.Tx) error {
		rows, err := all(tx, `SELECT `+columns+` FROM transfers t WHERE spool <> '' AND expires_at <= ?`, tx.Now().UnixMilli())
		if err != nil {
			return err
		}
		for _, r := range rows {
			if _, err := tx.Exec(`UPDATE transfers SET spool = '', state = iif(state = 'ready', 'expired', state) WHERE id = ?`, r.id); err != nil {
				return fmt.Errorf("ending an expired link: %w", err)
			}
			if err := deleteTickets(tx, r.id); err != nil {
				return err
			}
			tx.AfterCommit(func() { s.discard(r.id, r.spool) })
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("sweeping transfers: %w", err)
	}
	s.endLate()
	return errors.Join(s.sweepSpool(ctx), s.settleAll(ctx))
}

// sweepSpool removes files that no transfer has.
func (s *Service) sweepSpool(ctx context.Context) error {
	names := s.spool.leftovers()
	if len(names) == 0 {
		return nil
	}
	kept := map[string]bool{}
	err := store.Read(ctx, s.store, func(q *store.Reader) error {
		return q.Query(func(from store.Scanner) error {
			var name string
			err := from.Scan(&name)
			kept[name] = true
			return err
		}, `SELECT spool FROM transfers WHERE spool <> ''`)
	})
	if err != nil {
		return fmt.Errorf("looking for what the spool should hold: %w", err)
	}
	for _, name := range names {
		if !kept[name] {
			if err := s.spool.remove(name); err != nil {
				s.log.Warn("a file of the spool could not be removed", "error", err)
			}
		}
	}
	return nil
}
