package store

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// childEnv makes a run of this test binary a second process on a state
// directory: "<mode>:<dir>".
const childEnv = "STORE_TEST_CHILD"

func TestMain(m *testing.M) {
	if child := os.Getenv(childEnv); child != "" {
		os.Exit(runChild(child))
	}
	goleak.VerifyTestMain(m)
}

// open returns a store on dir, or on a fresh directory when dir is "", with a
// table t (id, v) in it.
func open(t testing.TB, dir string) *Store {
	t.Helper()
	if dir == "" {
		dir = t.TempDir() + "/state"
	}
	return openWith(t, Options{Dir: dir})
}

func openWith(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if err := makeTable(s); err != nil {
		t.Fatal(err)
	}
	return s
}

func makeTable(s *Store) error {
	return Exec(context.Background(), s, func(tx *Tx) error {
		_, err := tx.Exec(`CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, v TEXT NOT NULL) STRICT`)
		return err
	})
}

// insert is a write function that stores one row.
func insert(id int) func(*Tx) error {
	return func(tx *Tx) error {
		_, err := tx.Exec(`INSERT INTO t (id, v) VALUES (?, ?)`, id, fmt.Sprint("row ", id))
		return err
	}
}

// stored returns the ids that a reader sees.
func stored(t testing.TB, s *Store) map[int]bool {
	t.Helper()
	ids := map[int]bool{}
	err := Read(context.Background(), s, func(r *Reader) error {
		return r.Query(func(row Scanner) error {
			var id int
			if err := row.Scan(&id); err != nil {
				return err
			}
			ids[id] = true
			return nil
		}, `SELECT id FROM t`)
	})
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// hold occupies the writer until the returned function is called, so that what
// is submitted meanwhile shares one batch.
func hold(t testing.TB, s *Store) (release func()) {
	t.Helper()
	started, gate := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	var once sync.Once
	go func() {
		done <- Exec(context.Background(), s, func(*Tx) error {
			once.Do(func() { close(started) })
			<-gate
			return nil
		})
	}()
	<-started
	return sync.OnceFunc(func() {
		close(gate)
		<-done // its error is the affair of the test that forced it
	})
}

// waitQueued returns when n jobs wait in the queue.
func waitQueued(t testing.TB, s *Store, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d jobs are queued", n), func() bool { return len(s.queue.jobs) >= n })
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// batchOf submits fns so that they wait together, and returns their answers in
// order.
func batchOf(t testing.TB, s *Store, fns []func(*Tx) error) []error {
	t.Helper()
	return batchWith(t, s, fns, nil, func() {})
}

// batchWith is batchOf with a context for some of fns, and with meanwhile
// called when all wait.
func batchWith(t testing.TB, s *Store, fns []func(*Tx) error, ctxs map[int]context.Context, meanwhile func()) []error {
	t.Helper()
	release := hold(t, s)
	errs := make([]error, len(fns))
	var wg sync.WaitGroup
	for i, fn := range fns {
		ctx := ctxs[i]
		if ctx == nil {
			ctx = context.Background()
		}
		wg.Go(func() { errs[i] = Exec(ctx, s, fn) })
		waitQueued(t, s, i+1) // keeps the order
	}
	time.Sleep(maxBatchTime) // now the held batch takes no more in, and fns begin one of their own
	meanwhile()
	release()
	wg.Wait()
	return errs
}

// agree fails the test unless exactly the rows answered ok are stored. first is
// the id of the row that errs[0] answers for.
func agree(t testing.TB, s *Store, first int, errs []error) {
	t.Helper()
	ids := stored(t, s)
	for i, err := range errs {
		switch id := first + i; {
		case err == nil && !ids[id]:
			t.Errorf("row %d was answered ok and is not there", id)
		case err != nil && ids[id]:
			t.Errorf("row %d was answered %v and is there", id, err)
		}
	}
}

// failNth returns a fail hook that breaks the n-th call (from 1) of one step.
func failNth(step string, n int32, err error) func(string) error {
	var calls atomic.Int32
	return func(s string) error {
		if s == step && calls.Add(1) == n {
			return err
		}
		return nil
	}
}

// rounds reads a number of rounds from the environment.
func rounds(t testing.TB, env string, otherwise int) int {
	t.Helper()
	s := os.Getenv(env)
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q is not a number of rounds", env, s)
	}
	return n
}
