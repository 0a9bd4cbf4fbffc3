package transfers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"agentrelay/internal/fault"
	"agentrelay/internal/store"
)

// jobs are the transfers at work in this process.
type jobs struct {
	perHost int

	mu      sync.Mutex
	running map[int64]*running
	slots   map[lane]chan struct{}
	late    []ending // those that could not be stored yet
}

// lane is what transfers wait in line for: a slow host or source must not hold
// up others.
type lane struct {
	hostID    string
	direction Direction
}

type running struct {
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when its end is stored
}

func newJobs(perHost int) jobs {
	return jobs{perHost: perHost, running: map[int64]*running{}, slots: map[lane]chan struct{}{}}
}

func (j *jobs) find(id int64) *running {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.running[id]
}

func (j *jobs) lane(l lane) chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.slots[l] == nil {
		j.slots[l] = make(chan struct{}, j.perHost)
	}
	return j.slots[l]
}

// start begins the job of a row that was just committed. It is quick.
func (s *Service) start(r row, j job) {
	ctx, cancel := context.WithCancelCause(s.running)
	run := &running{cancel: cancel, done: make(chan struct{})}
	s.jobs.mu.Lock()
	s.jobs.running[r.id] = run
	s.jobs.mu.Unlock()
	s.work.Go(func() {
		defer func() {
			cancel(nil)
			s.jobs.mu.Lock()
			delete(s.jobs.running, r.id)
			s.jobs.mu.Unlock()
			close(run.done)
		}()
		slots := s.jobs.lane(lane{r.HostID, r.Direction})
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-ctx.Done():
			j.drop()
			s.fail(r, context.Cause(ctx))
			return
		}
		j.run(ctx, r)
	})
}

// wait waits until a transfer is no longer pending, and returns what it is then.
func (s *Service) wait(ctx context.Context, r row, most time.Duration) (row, error) {
	run := s.jobs.find(r.id)
	if r.State != Pending || most == 0 {
		return r, nil
	}
	if run != nil {
		timer := time.NewTimer(most)
		defer timer.Stop()
		select {
		case <-run.done:
		case <-timer.C:
		case <-s.running.Done():
		case <-ctx.Done():
			return row{}, ctx.Err()
		}
	}
	now, _, err := s.read(ctx, byID, r.id)
	return now, err
}

// endingTimeout bounds the write that ends a transfer.
const endingTimeout = 30 * time.Second

// end stores how a job ended, unless the transfer was ended otherwise before,
// and removes its file from the spool unless keep.
func (s *Service) end(r row, keep bool, write func(tx *store.Tx) (bool, error)) {
	ctx, cancel := context.WithTimeout(context.Background(), endingTimeout)
	defer cancel()
	wrote, err := store.Write(ctx, s.store, write)
	if err != nil {
		s.log.Error("the end of a transfer could not be stored, and will be later", "transfer", r.id, "error", err)
		s.jobs.mu.Lock()
		defer s.jobs.mu.Unlock()
		s.jobs.late = append(s.jobs.late, ending{r, keep, write})
		return
	}
	if !keep || !wrote {
		s.discard(r.id, r.spool)
	}
}

// ending is the arguments of an end. When the process ends first, the next start
// finds the transfer pending.
type ending struct {
	row   row
	keep  bool
	write func(tx *store.Tx) (bool, error)
}

// endLate stores what could not be stored when it happened.
func (s *Service) endLate() {
	s.jobs.mu.Lock()
	late := s.jobs.late
	s.jobs.late = nil
	s.jobs.mu.Unlock()
	for _, e := range late {
		s.end(e.row, e.keep, e.write)
	}
}

// discard removes a file from the spool.
func (s *Service) discard(id int64, name string) {
	s.tickets.forget(id)
	if err := s.spool.remove(name); err != nil {
		s.log.Warn("a file of the spool could not be removed and will be by a sweep", "transfer", id, "error", err)
	}
}

// fail ends a pending transfer that was not done, for the reason in err.
func (s *Service) fail(r row, err error) {
	state, f := reasonOf(err)
	if f.Code == fault.Internal.Code {
		s.log.Error("a transfer failed", "transfer", r.id, "error", err)
	}
	s.end(r, false, func(tx *store.Tx) (bool, error) {
		ok, err := update(tx, r.id, Pending, `state = ?, spool = '', ended_at = ?, error_code = ?, error_message = ?, error_hint = ?`, state, tx.Now().UnixMilli(), f.Code, f.Message, f.Hint)
		if err != nil || !ok {
			return false, err
		}
		return true, r.record(tx, "file."+string(r.Direction), f.Code)
	})
}

// reasonOf says what the error of a job means for its receipt.
func reasonOf(err error) (State, Failure) {
	switch {
	case errors.Is(err, errRevoked):
		return Revoked, failure(TransferRevoked.New("It was revoked before it was done."))
	case errors.Is(err, errClosing):
		return StateInterrupted, interrupted("The gateway was stopped before it was done.")
	case errors.Is(err, Interrupted):
		return StateInterrupted, failure(fault.From(err))
	}
	return Failed, failure(fault.From(err))
}

// failure is a refusal as it stands in a receipt, where repeating the call does
// nothing.
func failure(e *fault.Error) Failure {
	return Failure{e.Code, e.Message, e.Hint + " Use a new requestId: this one keeps its answer."}
}

func interrupted(message string) Failure { return failure(Interrupted.New(message)) }

// because is err, or the reason for which ctx was ended.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && err != nil {
		return fmt.Errorf("%w (%w)", cause, err)
	}
	return err
}
