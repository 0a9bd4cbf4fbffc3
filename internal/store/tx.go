package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"modernc.org/sqlite"
)

// Querier reads. Both a write transaction and a read transaction are one, so a
// domain writes each query once.
type Querier interface {
	// QueryRow runs a query for at most one row; Scan reports sql.ErrNoRows
	// when there is none.
	QueryRow(query string, args ...any) Scanner
	// Query runs a query and calls each for every row, until each returns an
	// error. The rows are closed when Query returns.
	Query(each func(Scanner) error, query string, args ...any) error
}

// Scanner copies the columns of a row.
type Scanner interface{ Scan(dest ...any) error }

// Tx is the transaction of one function of the write queue. It is valid only
// until that function returns.
type Tx struct {
	ctx     context.Context
	session *session
	now     time.Time
	hooks   []func()
	// broken is the first error after which SQLite may have rolled the whole
	// transaction back by itself. From then on nothing more may run on it.
	broken error
}

// Now is the time of the function: one value however often it asks, in whole
// milliseconds UTC.
func (tx *Tx) Now() time.Time { return tx.now }

// AfterCommit calls f once the transaction is on disk, before the caller of
// [Write] is answered. It is not called for a transaction that failed. f must
// be quick and must not use the store.
func (tx *Tx) AfterCommit(f func()) { tx.hooks = append(tx.hooks, f) }

// Exec runs a statement and returns the number of rows it changed.
func (tx *Tx) Exec(query string, args ...any) (int64, error) {
	if tx.broken != nil {
		return 0, tx.broken
	}
	res, err := tx.session.exec(tx.ctx, query, args...)
	if err != nil {
		return 0, tx.note(err)
	}
	n, err := res.RowsAffected()
	return n, tx.note(err)
}

// QueryRow implements [Querier].
func (tx *Tx) QueryRow(query string, args ...any) Scanner {
	return row{tx: tx, query: query, args: args}
}

// Query implements [Querier].
func (tx *Tx) Query(each func(Scanner) error, query string, args ...any) error {
	if tx.broken != nil {
		return tx.broken
	}
	return tx.note(tx.session.query(tx.ctx, each, query, args...))
}

type row struct {
	tx    *Tx
	query string
	args  []any
}

func (r row) Scan(dest ...any) error {
	if r.tx.broken != nil {
		return r.tx.broken
	}
	return r.tx.note(r.tx.session.scan(r.tx.ctx, dest, r.query, r.args...))
}

func (tx *Tx) note(err error) error {
	if tx.broken == nil && (mayAbort(err) || tx.endedBy(err)) {
		tx.broken = err
	}
	return err
}

// endedBy reports whether the statement that failed with err took the whole
// transaction with it, as OR ROLLBACK and RAISE(ROLLBACK) do with an error code
// that says no more than any violated constraint. SQLite refuses a BEGIN inside
// a transaction, so one that works is the proof; what it opened is rolled back
// with the batch.
func (tx *Tx) endedBy(err error) bool {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return false
	}
	_, err = tx.session.conn.ExecContext(tx.ctx, "BEGIN")
	return err == nil
}

// mayAbort reports whether SQLite may have rolled back the whole transaction
// because of err (https://sqlite.org/lang_transaction.html, section 3.2), or
// whether the connection itself is in doubt.
func mayAbort(err error) bool {
	if err == nil {
		return false
	}
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return errors.Is(err, sql.ErrConnDone) || errors.Is(err, context.Canceled)
	}
	switch e.Code() & 0xff {
	case 1, 19, 20, 25: // ERROR, CONSTRAINT, MISMATCH, RANGE: the statement alone failed
		return false
	}
	return true
}

// Reader is a read transaction: every query of one function sees the same
// snapshot.
type Reader struct {
	ctx     context.Context
	session *session
}

// QueryRow implements [Querier].
func (r *Reader) QueryRow(query string, args ...any) Scanner {
	return readRow{r, query, args}
}

// Query implements [Querier].
func (r *Reader) Query(each func(Scanner) error, query string, args ...any) error {
	return r.session.query(r.ctx, each, query, args...)
}

type readRow struct {
	r     *Reader
	query string
	args  []any
}

func (r readRow) Scan(dest ...any) error {
	return r.r.session.scan(r.r.ctx, dest, r.query, r.args...)
}

// Read calls fn with a read transaction. It ends with ctx. fn must not keep the
// Reader, and must not wait for anything else while it runs: a long read keeps
// the write-ahead log from shrinking.
func Read(ctx context.Context, s *Store, fn func(*Reader) error) error {
	session, err := s.reads.begin(ctx)
	if err != nil {
		return errors.Join(s.queue.alive(), err)
	}
	defer s.reads.end(session)
	return fn(&Reader{ctx, session})
}
