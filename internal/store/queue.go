package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxBatch and maxBatchTime bound one commit: how many functions share it
	// and how long new ones are still taken into it.
	maxBatch     = 256
	maxBatchTime = 20 * time.Millisecond
	// maxQueued is how many callers may wait. A further caller blocks until
	// there is room or its context ends, so a stalled disk costs bounded memory.
	maxQueued = 4096
	// idleBeforeTruncate is how long the writer is idle before it shrinks a
	// write-ahead log that grew past walLimit, and how long it waits to try
	// again while a reader still needs the log.
	idleBeforeTruncate = 2 * time.Second
	// walPatience is how long a writer that is never idle waits for readers to
	// step out of a log that reached its high mark. Without that, reads that
	// always overlap would let the log grow for ever; with more patience one long
	// read would delay all writes.
	walPatience = 100 * time.Millisecond
)

// Write runs fn in a write transaction and returns its result once that is
// committed to disk.
//
// Functions of concurrent callers share a commit, each in its own savepoint: an
// error of one undoes that one alone. fn runs with the store's context, not
// the caller's; a caller that leaves early does not stop it. fn may run more
// than once (only its last run counts), so it must touch nothing but the
// transaction and its own variables, and must return what it found instead of
// assigning to variables of the caller.
//
// When ctx ends before fn was started, fn does not run and the error is ctx's.
// When it ends later, Write returns ctx's error although fn may be committed:
// only a repeat with the same key can tell.
func Write[T any](ctx context.Context, s *Store, fn func(*Tx) (T, error)) (T, error) {
	var out T
	j := &job{ctx: ctx, done: make(chan error, 1)}
	j.run = func(tx *Tx) error {
		v, err := fn(tx)
		if err == nil {
			j.value = v
		}
		return err
	}
	if err := s.queue.submit(ctx, j); err != nil {
		return out, err
	}
	select {
	case err := <-j.done:
		if err == nil {
			out, _ = j.value.(T) // not ok: T is an interface and the result nil
		}
		return out, err
	case <-ctx.Done():
		return out, ctx.Err()
	}
}

// Exec is [Write] for functions without a result.
func Exec(ctx context.Context, s *Store, fn func(*Tx) error) error {
	_, err := Write(ctx, s, func(tx *Tx) (struct{}, error) { return struct{}{}, fn(tx) })
	return err
}

// job is one function on its way through the queue. value belongs to the queue
// until done is answered.
type job struct {
	ctx   context.Context
	run   func(*Tx) error
	value any
	hooks []func()
	done  chan error
}

// abandoned answers a job whose caller left before it was started, and reports
// that it did.
func (j *job) abandoned() bool {
	err := j.ctx.Err()
	if err != nil {
		j.answer(err)
	}
	return err != nil
}

func (j *job) answer(err error) {
	if err == nil {
		for _, h := range j.hooks {
			h()
		}
	}
	j.done <- err
}

// errAborted means that the transaction of a batch can no longer be trusted.
var errAborted = errors.New("the batch was rolled back")

type queue struct {
	session *session
	walPath string
	walHigh int64 // how much the log may grow before it is shrunk between batches
	now     func() time.Time
	log     *slog.Logger

	mu     sync.RWMutex // guards closed against a send on jobs
	closed bool
	jobs   chan *job
	done   chan struct{}

	commits atomic.Int64
	writes  atomic.Int64 // functions that had a verdict
	busy    atomic.Int64 // nanoseconds, from the first function of a batch to the last answer

	// fail, in tests, is asked before each step and can make it fail.
	fail func(step string) error
}

func startQueue(db *sql.DB, walPath string, o Options) (*queue, error) {
	conn, err := db.Conn(context.Background())
	if err != nil {
		return nil, fmt.Errorf("opening the writer: %w", err)
	}
	q := &queue{
		session: newSession(conn), walPath: walPath, walHigh: o.walHigh, now: o.Now, log: o.Log,
		jobs: make(chan *job, maxQueued), done: make(chan struct{}),
		fail: func(string) error { return nil },
	}
	go q.loop()
	return q, nil
}

func (q *queue) submit(ctx context.Context, j *job) error {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.closed {
		return ErrClosed
	}
	select {
	case q.jobs <- j:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (q *queue) alive() error {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.closed {
		return ErrClosed
	}
	return nil
}

// close refuses new jobs, runs those that wait and returns when the writer is
// idle for good.
func (q *queue) close() {
	q.mu.Lock()
	if !q.closed {
		q.closed = true
		close(q.jobs)
	}
	q.mu.Unlock()
	<-q.done
}

func (q *queue) loop() {
	defer close(q.done)
	defer q.session.close()
	idle := time.NewTimer(idleBeforeTruncate)
	defer idle.Stop()
	shrinkAt := q.walHigh
	for {
		select {
		case j, ok := <-q.jobs:
			if !ok {
				return
			}
			begun := time.Now()
			q.writes.Add(int64(q.batch(j)))
			q.busy.Add(int64(time.Since(begun)))
			idle.Reset(idleBeforeTruncate)
			if size := q.walSize(); size >= shrinkAt {
				shrinkAt = q.walHigh
				if !q.truncateWAL(walPatience) {
					shrinkAt += size
				}
			}
		case <-idle.C:
			if q.walSize() > walLimit && !q.truncateWAL(0) {
				idle.Reset(idleBeforeTruncate)
			}
		}
	}
}

func (q *queue) walSize() int64 {
	info, err := os.Stat(q.walPath)
	if err != nil {
		return 0
	}
	return info.Size()
}

// truncateWAL moves the log into the database and empties it. It reports
// whether it could: readers that need the log for longer than wait prevent it.
func (q *queue) truncateWAL(wait time.Duration) bool {
	ctx := context.Background()
	var busy, pages, moved int
	_, err := q.session.conn.ExecContext(ctx, fmt.Sprintf("PRAGMA busy_timeout = %d", wait.Milliseconds()))
	if err == nil {
		err = q.session.conn.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &pages, &moved)
	}
	_, restored := q.session.conn.ExecContext(ctx, fmt.Sprintf("PRAGMA busy_timeout = %d", busyTimeout.Milliseconds()))
	if err = errors.Join(err, restored); err != nil {
		q.log.Warn("the write-ahead log could not be truncated", "bytes", q.walSize(), "error", err)
		return false
	}
	return busy == 0
}

// batch runs first and what waits behind it in one transaction. If that
// transaction fails as a whole nobody is answered yet: each function runs again
// in a transaction of its own, and so only the guilty one fails. It returns how many
// functions ran.
func (q *queue) batch(first *job) int {
	if first.abandoned() {
		return 0
	}
	ran := []*job{first}
	var verdicts []error
	err := q.transaction(func() error {
		deadline := time.Now().Add(maxBatchTime)
		for i := 0; i < len(ran); i++ {
			verdict, err := q.savepoint(ran[i])
			if err != nil {
				return err
			}
			verdicts = append(verdicts, verdict)
			if j := q.more(len(ran), deadline); j != nil {
				ran = append(ran, j)
			}
		}
		return nil
	})
	if err == nil {
		for i, j := range ran {
			j.answer(verdicts[i])
		}
		return len(ran)
	}
	q.log.Warn("a write batch failed and runs again one by one", "functions", len(ran), "error", err)
	for _, j := range ran {
		j.answer(q.alone(j))
	}
	return len(ran)
}

// more returns the next waiting job of a batch, or nil when the batch is full
// or nothing waits.
func (q *queue) more(n int, deadline time.Time) *job {
	for n < maxBatch && time.Now().Before(deadline) {
		select {
		case j := <-q.jobs:
			if j == nil || !j.abandoned() { // nil: the queue is closed and empty
				return j
			}
		default:
			return nil
		}
	}
	return nil
}

// alone runs one job in a transaction of its own.
func (q *queue) alone(j *job) error {
	var verdict error
	err := q.transaction(func() error {
		var err error
		verdict, err = q.savepoint(j)
		return err
	})
	if verdict != nil {
		return verdict
	}
	return err
}

// transaction runs body between BEGIN IMMEDIATE and COMMIT. Any error leaves no
// transaction open.
func (q *queue) transaction(body func() error) error {
	if err := q.step("BEGIN IMMEDIATE"); err != nil {
		return fmt.Errorf("beginning: %w", err)
	}
	err := body()
	if err == nil {
		if err = q.step("COMMIT"); err == nil {
			q.commits.Add(1)
			return nil
		}
		err = fmt.Errorf("committing: %w", err)
	}
	// SQLite may have rolled back already; then this says "no transaction is
	// active", which is what we want.
	_, _ = q.session.conn.ExecContext(context.Background(), "ROLLBACK")
	return err
}

// savepoint runs a job and undoes it alone when it fails. verdict is what the
// caller will hear if the batch commits; err means that the batch can't be
// trusted any more.
func (q *queue) savepoint(j *job) (verdict, err error) {
	if err := q.step("SAVEPOINT job"); err != nil {
		return nil, fmt.Errorf("%w: %w", errAborted, err)
	}
	tx := &Tx{ctx: context.Background(), session: q.session, now: q.now().UTC().Truncate(time.Millisecond)}
	verdict = guard(j.run, tx)
	if tx.broken != nil {
		return verdict, fmt.Errorf("%w: %w", errAborted, tx.broken)
	}
	if verdict != nil {
		if err := q.step("ROLLBACK TO job"); err != nil {
			return verdict, fmt.Errorf("%w: %w", errAborted, err)
		}
	}
	if err := q.step("RELEASE job"); err != nil {
		return verdict, fmt.Errorf("%w: %w", errAborted, err)
	}
	j.hooks = tx.hooks
	return verdict, nil
}

// guard turns a panic of a function into its error: it must not end the writer.
func guard(run func(*Tx) error, tx *Tx) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("a write function panicked: %v\n%s", p, debug.Stack())
		}
	}()
	return run(tx)
}

func (q *queue) step(sql string) error {
	if err := q.fail(sql); err != nil {
		return err
	}
	_, err := q.session.exec(context.Background(), sql)
	return err
}
