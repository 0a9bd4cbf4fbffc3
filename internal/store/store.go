// Package store owns the state directory: its lock, its one SQLite file, the
// schema version, the write queue and the read pool.
//
// It promises that a [Write] which returned nil is committed to disk
// (synchronous=FULL, WAL), that a function given to it has run to its end
// exactly once in what was committed or not at all, that no caller can disturb
// another's transaction, and that a second process on the same directory is
// refused before it has touched anything. Domain packages own their tables and
// their SQL; this package knows neither.
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"modernc.org/sqlite"
)

// FileName is the database's name in the state directory.
const FileName = "gateway.db"

// readers is the size of the read pool. Reads are short and CPU bound, so a few
// more than the usual core count keeps one slow page from blocking the rest.
const readers = 8

// walLimit is what the write-ahead log is truncated to after a checkpoint, and
// the size above which an idle writer truncates it.
const walLimit = 16 << 20

// busyTimeout is how long a connection waits for a lock of another one.
const busyTimeout = 5 * time.Second

// Options says how to open a store.
type Options struct {
	// Dir is the state directory. It is created 0700 when absent; one that
	// others can read or write is refused.
	Dir string
	// Now is the clock for [Tx.Now]; nil means time.Now.
	Now func() time.Time
	// AllowNetworkFS opens a state directory on a network file system, where
	// SQLite's write-ahead log cannot be trusted by two hosts.
	AllowNetworkFS bool
	// BeforeUpgrade makes the backup that a migration of data needs; when it fails
	// nothing is migrated. nil copies the database alone to <dir>/backups.
	BeforeUpgrade func(context.Context, Upgrade) error
	// Log receives one line for each migration and each batch that had to be
	// run again; nil discards them.
	Log *slog.Logger

	// fsName names the file system of a directory if it is a network one; nil
	// means the operating system is asked.
	fsName func(dir string) (string, error)
	// walHigh is how much a busy writer lets the write-ahead log grow; 0 means
	// four times walLimit.
	walHigh int64
}

// Store is an open state directory. It is safe for concurrent use.
type Store struct {
	dir    string
	lock   *lock
	writer *sql.DB
	reads  *readPool
	queue  *queue
}

// Open locks the state directory, opens the database and applies the
// migrations it lacks. When the schema is older than the binary a backup is
// made first.
//
// It fails with [LockedError] when another process holds the directory, with
// [SchemaError] when the database is newer than this binary, and with
// [NetworkFSError] on a network file system.
func Open(ctx context.Context, o Options) (_ *Store, err error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.fsName == nil {
		o.fsName = networkFS
	}
	if o.walHigh == 0 {
		o.walHigh = 4 * walLimit
	}
	if err := privateDir(o.Dir); err != nil {
		return nil, err
	}
	lock, err := acquire(o.Dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			lock.release()
		}
	}()
	if !o.AllowNetworkFS {
		name, err := o.fsName(o.Dir)
		if err != nil {
			return nil, fmt.Errorf("asking for the file system of %s: %w", o.Dir, err)
		}
		if name != "" {
			return nil, &NetworkFSError{Dir: o.Dir, FS: name}
		}
	}

	path := filepath.Join(o.Dir, FileName)
	if err := touchPrivate(path); err != nil {
		return nil, err
	}
	s := &Store{dir: o.Dir, lock: lock}
	if s.writer, err = sql.Open("sqlite", dsn(path, false)); err != nil {
		return nil, fmt.Errorf("opening %s: %w", path, err)
	}
	s.writer.SetMaxOpenConns(1)
	defer func() {
		if err != nil {
			s.writer.Close()
		}
	}()
	if err = migrate(ctx, s.writer, o); err != nil {
		return nil, err
	}
	reader, err := sql.Open("sqlite", dsn(path, true))
	if err != nil {
		return nil, fmt.Errorf("opening %s for reading: %w", path, err)
	}
	s.reads = newReadPool(reader)
	if s.queue, err = startQueue(s.writer, path+"-wal", o); err != nil {
		reader.Close()
		return nil, err
	}
	return s, nil
}

// Dir returns the state directory.
func (s *Store) Dir() string { return s.dir }

// Commits is the number of write transactions committed since [Open]. Writes
// that share a commit count once.
func (s *Store) Commits() int64 { return s.queue.commits.Load() }

// Stats is what the write queue has done since [Open].
type Stats struct {
	Commits int64 // transactions
	Writes  int64 // functions in them
	// Busy is how long it worked; divided by Commits it is how long one takes.
	Busy time.Duration
	// Waiting is how many functions wait now.
	Waiting int
	// LogBytes is the size of the write-ahead log now.
	LogBytes int64
}

// Stats measures the write queue.
func (s *Store) Stats() Stats {
	q := s.queue
	return Stats{q.commits.Load(), q.writes.Load(), time.Duration(q.busy.Load()), len(q.jobs), q.walSize()}
}

// Ping reports whether the database answers a read and the write queue is
// alive, without writing.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.queue.alive(); err != nil {
		return err
	}
	return Read(ctx, s, func(r *Reader) error {
		var n int
		return r.QueryRow("SELECT count(*) FROM pragma_user_version").Scan(&n)
	})
}

// Shrink gives back the memory that only work needs: connections that nobody
// reads on now, and the pages that the writer remembers. The next calls are
// slower by a millisecond or two.
func (s *Store) Shrink(ctx context.Context) error {
	s.reads.shrink()
	return Exec(ctx, s, func(tx *Tx) error {
		_, err := tx.Exec("PRAGMA shrink_memory")
		return err
	})
}

// Close finishes the functions already queued, refuses new ones with
// [ErrClosed], closes the database and releases the lock.
func (s *Store) Close() error {
	s.queue.close()
	err := errors.Join(s.reads.close(), s.writer.Close())
	s.lock.release()
	return err
}

// dsn carries every pragma, so that each connection of a pool has them.
// busy_timeout comes first: the others may have to wait.
func dsn(path string, readOnly bool) string {
	q := url.Values{}
	for _, p := range []string{fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()), "foreign_keys(1)"} {
		q.Add("_pragma", p)
	}
	if readOnly {
		q.Set("mode", "ro")
		q.Add("_pragma", "query_only(1)")
	} else {
		q.Set("_txlock", "immediate")
		for _, p := range []string{
			"journal_mode(WAL)", "synchronous(FULL)", "fullfsync(1)", "checkpoint_fullfsync(1)",
			fmt.Sprintf("journal_size_limit(%d)", walLimit), "temp_store(MEMORY)",
		} {
			q.Add("_pragma", p)
		}
	}
	return (&url.URL{Scheme: "file", Opaque: url.PathEscape(path), RawQuery: q.Encode()}).String()
}

// privateDir makes dir, or refuses one that other users can enter.
func privateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the state directory: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("reading the state directory: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("the state directory %s has mode %04o, others can use it: run chmod 700 %s", dir, mode, dir)
	}
	return nil
}

// touchPrivate makes the file 0600 before SQLite would make it with the umask.
func touchPrivate(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("making the database: %w", err)
	}
	return f.Close()
}

// ErrClosed is returned for work given to a store that is closing.
var ErrClosed = errors.New("the store is closed")

// IsTrouble reports whether err is the store's own trouble (disk full, I/O
// error, locked, closing) and not a verdict about the caller's data. Edges
// answer it with 503 and a request to repeat, never with a refusal.
func IsTrouble(err error) bool {
	if errors.Is(err, ErrClosed) || errors.Is(err, errAborted) || errors.Is(err, sql.ErrConnDone) {
		return true
	}
	var e *sqlite.Error
	return errors.As(err, &e) && !IsConstraint(err)
}

// IsConstraint reports whether err is a violated UNIQUE, CHECK, NOT NULL or
// FOREIGN KEY rule.
func IsConstraint(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code()&0xff == 19 // SQLITE_CONSTRAINT
}
