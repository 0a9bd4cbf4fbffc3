package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
)

// A query inside the loop over an equal one must not disturb it, though both
// have the same text and so the same prepared statement.
func TestEqualQueriesNest(t *testing.T) {
	s := open(t, "")
	for id := range 3 {
		if err := Exec(context.Background(), s, insert(id)); err != nil {
			t.Fatal(err)
		}
	}
	pairs := func(q Querier) (n int, err error) {
		const ids = `SELECT id FROM t ORDER BY id`
		err = q.Query(func(row Scanner) error {
			var outer int
			if err := row.Scan(&outer); err != nil {
				return err
			}
			var first int
			if err := q.QueryRow(ids).Scan(&first); err != nil || first != 0 {
				return fmt.Errorf("the first id is %d: %w", first, err)
			}
			return q.Query(func(Scanner) error { n++; return nil }, ids)
		}, ids)
		return n, err
	}
	for range 2 { // the second time the statements are prepared already
		n, err := Write(context.Background(), s, func(tx *Tx) (int, error) { return pairs(tx) })
		if n != 9 || err != nil {
			t.Errorf("writing: %d pairs of 3 rows, %v", n, err)
		}
		err = Read(context.Background(), s, func(r *Reader) error {
			n, err = pairs(r)
			return err
		})
		if n != 9 || err != nil {
			t.Errorf("reading: %d pairs of 3 rows, %v", n, err)
		}
	}
}

// SQLite acts on a pragma when it is prepared, so an equal one must be prepared
// each time.
func TestPragmasTakeEffectEachTime(t *testing.T) {
	s := open(t, "")
	for i := range 6 {
		want := i % 2
		got, err := Write(context.Background(), s, func(tx *Tx) (got int, err error) {
			if err := tx.QueryRow(fmt.Sprintf(" pragma secure_delete = %d", want)).Scan(&got); err != nil {
				return 0, err
			}
			return got, tx.QueryRow(`PRAGMA secure_delete`).Scan(&got)
		})
		if got != want || err != nil {
			t.Fatalf("after setting %d it is %d, %v", want, got, err)
		}
	}
}

func TestStatementsAreBounded(t *testing.T) {
	s := open(t, "")
	err := Read(context.Background(), s, func(r *Reader) error {
		for i := range 3 * maxStatements {
			var n int
			if err := r.QueryRow(fmt.Sprintf(`SELECT %d`, i)).Scan(&n); err != nil || n != i {
				return fmt.Errorf("SELECT %d is %d: %w", i, n, err)
			}
			if n := len(r.session.idle); n > maxStatements {
				return fmt.Errorf("%d statements are kept", n)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// What ends badly for one reader is nothing to the next, which gets the same
// connection.
func TestReadsAfterABadOne(t *testing.T) {
	s := open(t, "")
	if err := Exec(context.Background(), s, insert(1)); err != nil {
		t.Fatal(err)
	}
	read := func(ctx context.Context, query string) error {
		return Read(ctx, s, func(r *Reader) error {
			var v any
			return r.QueryRow(query).Scan(&v)
		})
	}
	const forever = `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n`
	for range 2 * readers {
		ctx, cancel := context.WithCancel(context.Background())
		started := make(chan struct{})
		done := make(chan error, 1)
		go func() {
			done <- Read(ctx, s, func(r *Reader) error {
				close(started)
				var v any
				return r.QueryRow(forever).Scan(&v)
			})
		}()
		<-started
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatalf("a cancelled read: %v", err)
		}
		if err := read(context.Background(), `SELECT nothing FROM nowhere`); err == nil {
			t.Fatal("a wrong query worked")
		}
		if err := read(context.Background(), `SELECT v FROM t WHERE id = 2`); !errors.Is(err, sql.ErrNoRows) {
			t.Fatalf("a row that is not there: %v", err)
		}
		func() {
			defer func() { _ = recover() }()
			_ = Read(context.Background(), s, func(*Reader) error { panic("forced") })
		}()
		if err := read(context.Background(), `SELECT v FROM t WHERE id = 1`); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.reads.slots); n != 0 {
		t.Errorf("%d sessions were not given back", n)
	}
}

// More readers than sessions wait for one, as long as their context lasts.
func TestReadersWaitForASession(t *testing.T) {
	s := open(t, "")
	leave := make(chan struct{})
	inside, done := make(chan struct{}), make(chan error)
	for range readers {
		go func() {
			done <- Read(context.Background(), s, func(*Reader) error {
				inside <- struct{}{}
				<-leave
				return nil
			})
		}()
		<-inside
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { done <- Read(ctx, s, func(*Reader) error { return nil }) }()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("a reader that gave up: %v", err)
	}
	close(leave)
	for range readers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// A read that runs while the store closes ends well.
func TestCloseDuringRead(t *testing.T) {
	s := open(t, "")
	var n int
	err := Read(context.Background(), s, func(r *Reader) error {
		if err := s.Close(); err != nil {
			return err
		}
		return r.QueryRow(`SELECT count(*) FROM t`).Scan(&n)
	})
	if err != nil {
		t.Errorf("a read that began before: %v", err)
	}
	if err := Read(context.Background(), s, func(*Reader) error { return nil }); !errors.Is(err, ErrClosed) {
		t.Errorf("a read that began after: %v", err)
	}
}
