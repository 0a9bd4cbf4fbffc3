package store

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
)

// maxStatements bounds the statements that one session keeps. The project has
// fewer; a text that is made anew each time must not use memory for ever.
const maxStatements = 128

// session is one connection with the statements prepared on it: parsing and
// planning a statement costs several times what running it does. It is used by
// one function at a time.
type session struct {
	conn *sql.Conn
	idle map[string]*sql.Stmt // by their text; one that runs is not here
}

func newSession(conn *sql.Conn) *session {
	return &session{conn: conn, idle: map[string]*sql.Stmt{}}
}

// take returns a statement that nothing else runs: a query inside the loop over
// an equal one gets its own.
func (s *session) take(ctx context.Context, query string) (*sql.Stmt, error) {
	if stmt, ok := s.idle[query]; ok {
		delete(s.idle, query)
		return stmt, nil
	}
	return s.conn.PrepareContext(ctx, query)
}

// give takes a statement back after a run that ended with err.
func (s *session) give(query string, stmt *sql.Stmt, err error) {
	_, twice := s.idle[query]
	if twice || !keepable(query) || err != nil && !errors.Is(err, sql.ErrNoRows) {
		stmt.Close()
		return
	}
	if len(s.idle) == maxStatements {
		for other := range s.idle {
			s.idle[other].Close()
			delete(s.idle, other)
			break
		}
	}
	s.idle[query] = stmt
}

// close ends the statements with the connection: SQLite keeps a connection open
// in secret while it has any, and then neither the log is moved into the database
// nor are the files let go.
func (s *session) close() error {
	var errs []error
	for _, stmt := range s.idle {
		errs = append(errs, stmt.Close())
	}
	clear(s.idle)
	return errors.Join(append(errs, s.conn.Close())...)
}

// keepable reports whether a statement may run again without being prepared
// again. SQLite carries out many pragmas while it prepares them.
func keepable(query string) bool {
	const pragma = "PRAGMA"
	query = strings.TrimSpace(query)
	return len(query) < len(pragma) || !strings.EqualFold(query[:len(pragma)], pragma)
}

func (s *session) exec(ctx context.Context, query string, args ...any) (_ sql.Result, err error) {
	stmt, err := s.take(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() { s.give(query, stmt, err) }()
	return stmt.ExecContext(ctx, args...)
}

func (s *session) query(ctx context.Context, each func(Scanner) error, query string, args ...any) (err error) {
	stmt, err := s.take(ctx, query)
	if err != nil {
		return err
	}
	defer func() { s.give(query, stmt, err) }()
	rows, err := stmt.QueryContext(ctx, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (s *session) scan(ctx context.Context, dest []any, query string, args ...any) (err error) {
	stmt, err := s.take(ctx, query)
	if err != nil {
		return err
	}
	defer func() { s.give(query, stmt, err) }()
	return stmt.QueryRowContext(ctx, args...).Scan(dest...)
}

// readPool lends sessions for reading, at most [readers] at one time. The one
// given back last is lent first: a quiet gateway uses the memory of one.
type readPool struct {
	db    *sql.DB       // keeps no connections of its own
	slots chan struct{} // one for each session lent

	mu     sync.Mutex
	idle   []*session
	closed bool
}

func newReadPool(db *sql.DB) *readPool {
	db.SetMaxOpenConns(readers)
	db.SetMaxIdleConns(-1)
	return &readPool{db: db, slots: make(chan struct{}, readers)}
}

// begin lends a session in a read transaction.
func (p *readPool) begin(ctx context.Context) (*session, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s, err := p.take(ctx)
	if err != nil {
		<-p.slots
		return nil, err
	}
	if _, err := s.exec(context.Background(), "BEGIN"); err != nil {
		p.end(s)
		return nil, err
	}
	return s, nil
}

// take returns the session given back last, or a new one.
func (p *readPool) take(ctx context.Context) (*session, error) {
	p.mu.Lock()
	if n := len(p.idle) - 1; n >= 0 {
		defer p.mu.Unlock()
		s := p.idle[n]
		p.idle = p.idle[:n]
		return s, nil
	}
	p.mu.Unlock()
	conn, err := p.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return newSession(conn), nil
}

// end ends the transaction of a session and takes it back. A session that can't
// end it is not used again.
func (p *readPool) end(s *session) {
	defer func() { <-p.slots }()
	_, err := s.exec(context.Background(), "ROLLBACK")
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil || p.closed {
		s.close()
		return
	}
	p.idle = append(p.idle, s)
}

// shrink closes what is not lent.
func (p *readPool) shrink() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.idle {
		s.close()
	}
	p.idle = nil
}

// close is shrink for good: a session that is lent closes when it comes back.
func (p *readPool) close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.shrink()
	return p.db.Close()
}
