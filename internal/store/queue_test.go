package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var errForced = errors.New("forced")

func TestConcurrentWritesShareCommits(t *testing.T) {
	s := open(t, "")
	before := s.Commits()
	fns := make([]func(*Tx) error, 200)
	for i := range fns {
		fns[i] = insert(i)
	}
	errs := batchOf(t, s, fns)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	agree(t, s, 0, errs)
	// One for the function that held the writer with what fitted behind it, one
	// for the rest; a slow machine may need a few more for the 20 ms bound.
	if n := s.Commits() - before; n > 20 {
		t.Errorf("%d writes took %d commits", len(fns), n)
	}
}

func TestWriteReturnsWhatTheFunctionFound(t *testing.T) {
	s := open(t, "")
	n, err := Write(context.Background(), s, func(tx *Tx) (int64, error) {
		if err := insert(1)(tx); err != nil {
			return 0, err
		}
		return tx.Exec(`UPDATE t SET v = 'x'`)
	})
	if err != nil || n != 1 {
		t.Errorf("got %d, %v; want 1", n, err)
	}
	p, err := Write(context.Background(), s, func(*Tx) (any, error) { return nil, nil })
	if p != nil || err != nil {
		t.Errorf("a nil interface result: got %v, %v", p, err)
	}
	n, err = Write(context.Background(), s, func(*Tx) (int64, error) { return 7, errForced })
	if n != 0 || !errors.Is(err, errForced) {
		t.Errorf("a failed function returned %d, %v; want 0 and its error", n, err)
	}
}

func TestNowIsOneValueInMilliseconds(t *testing.T) {
	at := time.Date(2026, 3, 4, 5, 6, 7, 8_999_999, time.FixedZone("x", 3600))
	s, err := Open(context.Background(), Options{Dir: t.TempDir() + "/s", Now: func() time.Time { at = at.Add(time.Second); return at }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	times, err := Write(context.Background(), s, func(tx *Tx) ([2]time.Time, error) {
		return [2]time.Time{tx.Now(), tx.Now()}, nil
	})
	if err != nil || times[0] != times[1] || times[0].Location() != time.UTC || times[0].Nanosecond() != 8_000_000 {
		t.Errorf("got %v, %v", times, err)
	}
}

// A cancelled statement would roll back the whole transaction, everybody's rows
// included, so the caller's context must never reach SQLite.
func TestCancelOneOf64MidStatement(t *testing.T) {
	s := open(t, "")
	const slow = 17
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	fns := make([]func(*Tx) error, 64)
	for i := range fns {
		fns[i] = insert(i)
	}
	running := make(chan struct{})
	var once sync.Once
	fns[slow] = func(tx *Tx) error {
		if err := insert(slow)(tx); err != nil {
			return err
		}
		once.Do(func() { close(running) })
		for last := false; !last; { // the caller leaves in one of these statements, and one more begins after
			last = ctx.Err() != nil
			var n int
			if err := tx.QueryRow(`WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x < 20000) SELECT count(*) FROM c`).Scan(&n); err != nil {
				return err
			}
		}
		return nil
	}
	go func() {
		<-running
		cancel()
	}()
	errs := batchWith(t, s, fns, map[int]context.Context{slow: ctx}, func() {})
	for i, err := range errs {
		if i != slow && err != nil {
			t.Errorf("caller %d heard %v", i, err)
		}
	}
	if !errors.Is(errs[slow], context.Canceled) {
		t.Errorf("the cancelled caller heard %v", errs[slow])
	}
	// Its function had begun, so it ran to its end as Write promises.
	if ids := stored(t, s); len(ids) != 64 {
		t.Errorf("%d of 64 rows are there", len(ids))
	}
}

func TestCancelledBeforeItsTurnDoesNotRun(t *testing.T) {
	s := open(t, "")
	ctx, cancel := context.WithCancel(context.Background())
	release := hold(t, s)
	var ran atomic.Bool
	done := make(chan error, 1)
	go func() {
		done <- Exec(ctx, s, func(*Tx) error { ran.Store(true); return nil })
	}()
	waitQueued(t, s, 1)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	release()
	if err := Exec(context.Background(), s, insert(1)); err != nil {
		t.Fatal(err)
	}
	if ran.Load() {
		t.Error("the function ran")
	}
}

// Each step of a batch is made to fail at each of its first calls; whatever
// then happens, answers and rows must agree.
func TestForcedErrorAtEachStep(t *testing.T) {
	for _, step := range []string{"BEGIN IMMEDIATE", "SAVEPOINT job", "ROLLBACK TO job", "RELEASE job", "COMMIT"} {
		for n := int32(1); n <= 5; n++ {
			t.Run(fmt.Sprintf("%s/%d", step, n), func(t *testing.T) {
				s := open(t, "")
				fns := make([]func(*Tx) error, 8)
				for i := range fns {
					fns[i] = insert(i)
				}
				for _, i := range []int{2, 5} {
					fns[i] = func(tx *Tx) error { return errors.Join(insert(i)(tx), errForced) }
				}
				s.queue.fail = failNth(step, n, errForced)
				errs := batchOf(t, s, fns)
				agree(t, s, 0, errs)
				for i, err := range errs {
					if i != 2 && i != 5 && err != nil {
						t.Errorf("one failed step of a batch reached caller %d: %v", i, err)
					}
				}
				for _, i := range []int{2, 5} {
					if !errors.Is(errs[i], errForced) {
						t.Errorf("failing function %d heard %v", i, errs[i])
					}
				}
				if err := Exec(context.Background(), s, insert(100)); err != nil {
					t.Errorf("the queue did not recover: %v", err)
				}
			})
		}
	}
}

func TestStepThatKeepsFailingAnswersEverybodyWithTheError(t *testing.T) {
	for _, step := range []string{"BEGIN IMMEDIATE", "SAVEPOINT job", "RELEASE job", "COMMIT"} {
		t.Run(step, func(t *testing.T) {
			s := open(t, "")
			var broken atomic.Bool
			s.queue.fail = func(at string) error {
				if at == step && broken.Load() {
					return errForced
				}
				return nil
			}
			fns := make([]func(*Tx) error, 8)
			for i := range fns {
				fns[i] = insert(i)
			}
			errs := batchWith(t, s, fns, nil, func() { broken.Store(true) })
			agree(t, s, 0, errs)
			for i, err := range errs {
				if !errors.Is(err, errForced) {
					t.Errorf("caller %d heard %v", i, err)
				}
			}
			broken.Store(false)
			if err := Exec(context.Background(), s, insert(100)); err != nil {
				t.Errorf("the queue did not recover: %v", err)
			}
		})
	}
}

// A commit that fails when everybody in its batch has left must not answer
// anybody twice: the second answer would block the writer for ever.
func TestCommitFailsWhenEverybodyLeft(t *testing.T) {
	for _, step := range []string{"BEGIN IMMEDIATE", "COMMIT"} {
		t.Run(step, func(t *testing.T) {
			s := open(t, "")
			s.queue.fail = failNth(step, 2, errForced)
			ctx, cancel := context.WithCancel(context.Background())
			release := hold(t, s)
			var ran atomic.Bool
			done := make(chan error, 1)
			go func() {
				done <- Exec(ctx, s, func(*Tx) error { ran.Store(true); return nil })
			}()
			waitQueued(t, s, 1)
			time.Sleep(maxBatchTime) // now the held batch takes no more in, and the job is the first of its own
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("the caller who left heard %v", err)
			}
			release()
			answered := make(chan error, 1)
			go func() { answered <- Exec(context.Background(), s, insert(1)) }()
			select {
			case err := <-answered:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("the writer is stuck")
			}
			if ran.Load() {
				t.Error("the function of a caller who had left ran")
			}
		})
	}
}

// Real errors of SQLite after which the transaction is gone, although the
// function hides them.
func TestSwallowedErrorThatEndedTheTransaction(t *testing.T) {
	tests := map[string]func(*Tx){
		"conflict clause": func(tx *Tx) {
			_, _ = tx.Exec(`INSERT OR ROLLBACK INTO t (id, v) VALUES (1000, 'again')`)
		},
		"trigger": func(tx *Tx) {
			_, _ = tx.Exec(`INSERT INTO t (id, v) VALUES (5000, 'refused')`)
		},
		"conflict while reading": func(tx *Tx) {
			var id int
			_ = tx.QueryRow(`INSERT OR ROLLBACK INTO t (id, v) VALUES (1000, 'again') RETURNING id`).Scan(&id)
		},
		"conflict in a list": func(tx *Tx) {
			_ = tx.Query(func(Scanner) error { return nil }, `INSERT OR ROLLBACK INTO t (id, v) VALUES (1000, 'again') RETURNING id`)
		},
	}
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			s := open(t, "")
			if err := Exec(context.Background(), s, func(tx *Tx) error {
				_, err := tx.Exec(`CREATE TRIGGER no BEFORE INSERT ON t WHEN NEW.id = 5000 BEGIN SELECT RAISE(ROLLBACK, 'no'); END`)
				return errors.Join(insert(1000)(tx), err)
			}); err != nil {
				t.Fatal(err)
			}
			fns := make([]func(*Tx) error, 9)
			for i := range fns {
				fns[i] = insert(i)
			}
			fns[4] = func(tx *Tx) error {
				if err := insert(4)(tx); err != nil {
					return err
				}
				spoil(tx)
				_, _ = tx.Exec(`INSERT INTO t (id, v) VALUES (44, 'after the transaction ended')`)
				return nil
			}
			errs := batchOf(t, s, fns)
			agree(t, s, 0, errs)
			for i, err := range errs {
				if (err != nil) != (i == 4) {
					t.Errorf("caller %d heard %v", i, err)
				}
			}
			if stored(t, s)[44] {
				t.Error("a statement ran outside of any transaction")
			}
		})
	}
}

// The same with errors that SQLite reports when the disk is full.
func TestDiskFull(t *testing.T) {
	s := open(t, "")
	if err := Exec(context.Background(), s, insert(1000)); err != nil {
		t.Fatal(err)
	}
	limit := func(pages int) {
		t.Helper()
		if err := Exec(context.Background(), s, func(tx *Tx) error {
			_, err := tx.Exec(fmt.Sprintf(`PRAGMA max_page_count = %d`, pages))
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	limit(1) // SQLite raises it to the present size
	big := func(swallow bool) func(*Tx) error {
		return func(tx *Tx) error {
			_, err := tx.Exec(`INSERT INTO t (id, v) VALUES (4, ?)`, strings.Repeat("x", 1<<20))
			if swallow {
				return nil
			}
			return err
		}
	}
	for _, swallow := range []bool{false, true} {
		fns := []func(*Tx) error{insert(0), insert(1), insert(2), insert(3), big(swallow), insert(5), insert(6)}
		errs := batchOf(t, s, fns)
		agree(t, s, 0, errs)
		for i, err := range errs {
			if (err != nil) != (i == 4) {
				t.Errorf("swallow=%v: caller %d heard %v", swallow, i, err)
			}
		}
		if !IsTrouble(errs[4]) {
			t.Errorf("swallow=%v: a full disk is not called trouble: %v", swallow, errs[4])
		}
		if err := Exec(context.Background(), s, func(tx *Tx) error {
			_, err := tx.Exec(`DELETE FROM t WHERE id < 1000`)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	limit(1 << 30)
	if err := Exec(context.Background(), s, big(false)); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

// A deferred foreign key fails the commit itself: only the guilty may hear it.
func TestCommitRefusedForOneFunction(t *testing.T) {
	s := open(t, "")
	if err := Exec(context.Background(), s, func(tx *Tx) error {
		_, err := tx.Exec(`CREATE TABLE child (t INTEGER REFERENCES t (id) DEFERRABLE INITIALLY DEFERRED) STRICT`)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	fns := []func(*Tx) error{insert(0), insert(1), func(tx *Tx) error {
		_, err := tx.Exec(`INSERT INTO child (t) VALUES (999)`)
		return errors.Join(err, insert(2)(tx))
	}, insert(3)}
	errs := batchOf(t, s, fns)
	agree(t, s, 0, errs)
	if !IsConstraint(errs[2]) {
		t.Errorf("the guilty function heard %v", errs[2])
	}
	if errs[0] != nil || errs[1] != nil || errs[3] != nil {
		t.Errorf("the innocent heard %v", errs)
	}
}

func TestConstraintErrorUndoesItsFunctionAlone(t *testing.T) {
	s := open(t, "")
	fns := []func(*Tx) error{insert(0), func(tx *Tx) error {
		return errors.Join(insert(1)(tx), insert(0)(tx))
	}, insert(2)}
	before := s.Commits()
	errs := batchOf(t, s, fns)
	agree(t, s, 0, errs)
	if errs[0] != nil || !IsConstraint(errs[1]) || errs[2] != nil {
		t.Errorf("heard %v", errs)
	}
	if IsTrouble(errs[1]) {
		t.Error("a violated rule is called trouble of the store")
	}
	if n := s.Commits() - before; n > 2 {
		t.Errorf("the batch was split into %d commits", n)
	}
}

func TestPanicUndoesItsFunctionAlone(t *testing.T) {
	s := open(t, "")
	fns := []func(*Tx) error{insert(0), func(tx *Tx) error {
		_ = insert(1)(tx)
		panic("boom")
	}, insert(2)}
	errs := batchOf(t, s, fns)
	agree(t, s, 0, errs)
	if errs[0] != nil || errs[2] != nil {
		t.Errorf("the innocent heard %v", errs)
	}
	if errs[1] == nil || !strings.Contains(errs[1].Error(), "boom") || !strings.Contains(errs[1].Error(), "queue_test.go") {
		t.Errorf("the panic lost its reason or place: %v", errs[1])
	}
}

func TestCloseWhile1000Wait(t *testing.T) {
	dir := t.TempDir() + "/state"
	s := open(t, dir)
	release := hold(t, s)
	errs := make([]error, 1000)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = Exec(context.Background(), s, insert(i)) })
	}
	waitQueued(t, s, 1000)
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	eventually(t, "the store refuses new work", func() bool { return s.Ping(context.Background()) != nil })
	if err := Exec(context.Background(), s, insert(2000)); !errors.Is(err, ErrClosed) {
		t.Errorf("a closing store answered %v", err)
	}
	release()
	wg.Wait()
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	for i, err := range errs {
		if err != nil {
			t.Fatalf("caller %d, who waited before the close, heard %v", i, err)
		}
	}
	if err := Read(context.Background(), s, func(*Reader) error { return nil }); !errors.Is(err, ErrClosed) {
		t.Errorf("a read of a closed store: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
	agree(t, open(t, dir), 0, errs)
}

func TestFullQueueMakesCallersWait(t *testing.T) {
	s := open(t, "")
	release := hold(t, s)
	errs := make([]error, maxQueued)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = Exec(context.Background(), s, insert(i)) })
	}
	waitQueued(t, s, maxQueued)

	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := Exec(ctx, s, insert(-1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a caller beyond the queue, out of patience, heard %v", err)
	}
	patient := make(chan error, 1)
	go func() { patient <- Exec(context.Background(), s, insert(maxQueued)) }()
	select {
	case err := <-patient:
		t.Errorf("a caller beyond a full queue was answered at once: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	release()
	wg.Wait()
	if err := errors.Join(append(errs, <-patient)...); err != nil {
		t.Fatal(err)
	}
	if ids := stored(t, s); len(ids) != maxQueued+1 || ids[-1] {
		t.Errorf("%d rows, impatient's %v", len(ids), ids[-1])
	}
}

func TestAfterCommit(t *testing.T) {
	dir := t.TempDir() + "/state"
	s := open(t, dir)
	db, err := sql.Open("sqlite", dsn(dir+"/"+FileName, true))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	committed := func(id int) (n int) {
		if err := db.QueryRow(`SELECT count(*) FROM t WHERE id = ?`, id).Scan(&n); err != nil {
			t.Error(err)
		}
		return n
	}

	var calls []int
	hooked := func(id int, verdict error) func(*Tx) error {
		return func(tx *Tx) error {
			tx.AfterCommit(func() {
				if committed(id) != 1 {
					t.Errorf("the hook of %d ran before its row was there", id)
				}
				calls = append(calls, id)
			})
			return errors.Join(insert(id)(tx), verdict)
		}
	}
	s.queue.fail = failNth("COMMIT", 1, errForced) // everything runs twice
	errs := batchOf(t, s, []func(*Tx) error{hooked(0, nil), hooked(1, errForced), hooked(2, nil)})
	if errs[0] != nil || errs[1] == nil || errs[2] != nil {
		t.Fatal(errs)
	}
	if want := []int{0, 2}; !slices.Equal(calls, want) {
		t.Errorf("hooks ran for %v, want %v", calls, want)
	}

	s.queue.fail = func(step string) error {
		if step == "COMMIT" {
			return errForced
		}
		return nil
	}
	if err := Exec(context.Background(), s, hooked(3, nil)); !errors.Is(err, errForced) {
		t.Error(err)
	}
	if len(calls) != 2 {
		t.Errorf("a transaction that failed called %v", calls)
	}
}

func Test64WritersAnd64Readers(t *testing.T) {
	s := open(t, "")
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	var wrote, read, next atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := Exec(context.Background(), s, insert(int(next.Add(1)))); err != nil {
					t.Error(err)
					return
				}
				wrote.Add(1)
			}
		})
		wg.Go(func() {
			for ctx.Err() == nil {
				before := wrote.Load()
				var n, again int64
				if err := Read(context.Background(), s, func(r *Reader) error {
					if err := r.QueryRow(`SELECT count(*) FROM t`).Scan(&n); err != nil {
						return err
					}
					return r.QueryRow(`SELECT count(*) FROM t`).Scan(&again)
				}); err != nil {
					t.Error(err)
					return
				}
				if n != again {
					t.Errorf("one read transaction saw %d and %d rows", n, again)
				}
				if n < before {
					t.Errorf("%d writes were answered, a later read saw %d", before, n)
				}
				read.Add(1)
			}
		})
	}
	wg.Wait()
	if got := int64(len(stored(t, s))); got != wrote.Load() {
		t.Errorf("%d answered, %d stored", wrote.Load(), got)
	}
	t.Logf("%d writes, %d reads", wrote.Load(), read.Load())
}
