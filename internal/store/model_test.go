package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// behaviour is one way a write function can go, by the verdict its caller must
// hear when the queue itself has no trouble.
type behaviour struct {
	name string
	run  func(id int) func(*Tx) error
	ok   bool
}

var behaviours = []behaviour{
	{"ok", insert, true},
	{"fails after writing", func(id int) func(*Tx) error {
		return func(tx *Tx) error { return errors.Join(insert(id)(tx), errForced) }
	}, false},
	{"panics after writing", func(id int) func(*Tx) error {
		return func(tx *Tx) error { _ = insert(id)(tx); panic("boom") }
	}, false},
	{"breaks a rule", func(id int) func(*Tx) error {
		return func(tx *Tx) error { return errors.Join(insert(id)(tx), insert(id)(tx)) }
	}, false},
	{"breaks a rule and hides it", func(id int) func(*Tx) error {
		return func(tx *Tx) error { err := insert(id)(tx); _ = insert(id)(tx); return err }
	}, true},
	{"ends the transaction and hides it", func(id int) func(*Tx) error {
		return func(tx *Tx) error {
			err := insert(id)(tx)
			_, _ = tx.Exec(`INSERT OR ROLLBACK INTO t (id, v) VALUES (?, 'again')`, id)
			return err
		}
	}, false},
	{"is not valid SQL and hides it", func(id int) func(*Tx) error {
		return func(tx *Tx) error { err := insert(id)(tx); _, _ = tx.Exec(`NONSENSE`); return err }
	}, true},
}

// Any mix of functions, callers that leave and steps that fail: who was
// answered ok has a row, who was answered an error of their own or of the store
// has none, and nobody is left without an answer.
func TestQueueAgainstModel(t *testing.T) {
	s := open(t, "")
	var failing atomic.Pointer[map[int]bool] // which steps of the queue fail, by their number
	var step atomic.Int64
	failing.Store(&map[int]bool{})
	s.queue.fail = func(string) error {
		if (*failing.Load())[int(step.Add(1))] {
			return errForced
		}
		return nil
	}
	next := 0
	rapid.Check(t, func(t *rapid.T) {
		first := next
		kinds := rapid.SliceOfN(rapid.IntRange(0, len(behaviours)-1), 1, 40).Draw(t, "functions")
		leave := rapid.SliceOfN(rapid.IntRange(0, 5), len(kinds), len(kinds)).Draw(t, "who leaves (0)")
		broken := rapid.SliceOfN(rapid.IntRange(1, 100), 0, 4).Draw(t, "steps that fail")
		next += len(kinds)

		steps := map[int]bool{}
		for _, n := range broken {
			steps[n] = true
		}
		step.Store(0)
		failing.Store(&steps)
		errs := make([]error, len(kinds))
		var wg sync.WaitGroup
		for i, kind := range kinds {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			wg.Go(func() { errs[i] = Exec(ctx, s, behaviours[kind].run(first+i)) })
			if leave[i] == 0 {
				wg.Go(cancel)
			}
		}
		wg.Wait()
		failing.Store(&map[int]bool{})
		if err := Exec(context.Background(), s, func(*Tx) error { return nil }); err != nil { // all before it is decided
			t.Fatalf("the queue did not recover: %v", err)
		}

		ids := map[int]bool{}
		if err := Read(context.Background(), s, func(r *Reader) error {
			return r.Query(func(row Scanner) error {
				var id int
				err := row.Scan(&id)
				ids[id] = true
				return err
			}, `SELECT id FROM t WHERE id >= ?`, first)
		}); err != nil {
			t.Fatal(err)
		}
		for i, err := range errs {
			b := behaviours[kinds[i]]
			what := fmt.Sprintf("function %d (%s) was answered %v, stored: %v", i, b.name, err, ids[first+i])
			left := leave[i] == 0 && errors.Is(err, context.Canceled)
			switch {
			case err == nil && (!ids[first+i] || !b.ok):
				t.Error(what)
			case err != nil && ids[first+i] && !(left && b.ok): // who left can't know
				t.Error(what)
			case err != nil && b.ok && !left && len(broken) == 0:
				t.Error(what)
			}
		}
	})
}
