package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"agentrelay/migrations"
)

// Copy writes the database as it is at one instant to a new file, mode 0600, and
// returns when that is on disk. What was committed before the call is in it; of
// what is committed meanwhile, all up to some commit and nothing after. Writers do
// not wait for it. A failed copy leaves no file.
func (s *Store) Copy(ctx context.Context, path string) error {
	// A connection of its own: the sessions of the pool can't write any file.
	q := url.Values{"mode": {"ro"}, "_pragma": {fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds())}}
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Opaque: url.PathEscape(filepath.Join(s.dir, FileName)), RawQuery: q.Encode()}).String())
	if err != nil {
		return fmt.Errorf("opening the database to copy it: %w", err)
	}
	return errors.Join(vacuumInto(ctx, db, path), db.Close())
}

// vacuumInto copies a database. The copy is consistent because VACUUM INTO reads
// one snapshot; SQLite does not sync it (https://sqlite.org/lang_vacuum.html).
func vacuumInto(ctx context.Context, db *sql.DB, path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600) // VACUUM INTO takes an empty file
	if err != nil {
		return fmt.Errorf("making the copy of the database: %w", err)
	}
	_, err = db.ExecContext(ctx, "VACUUM INTO ?", path)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		os.Remove(path)
		return fmt.Errorf("copying the database: %w", err)
	}
	return nil
}

// Schema is the newest schema that this binary knows.
func Schema() int64 {
	newest := int64(0)
	files, _ := migrations.FS.ReadDir(".") // embedded
	for _, f := range files {
		number, _, _ := strings.Cut(f.Name(), "_")
		n, _ := strconv.ParseInt(number, 10, 64)
		newest = max(newest, n)
	}
	return newest
}

// Inspect checks the whole of a database file that nobody writes, changes nothing,
// and returns the version of its schema.
func Inspect(ctx context.Context, path string) (schema int64, err error) {
	// immutable: SQLite would else make files beside it.
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Opaque: url.PathEscape(path), RawQuery: "mode=ro&immutable=1"}).String())
	if err != nil {
		return 0, fmt.Errorf("opening %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var verdict string
	if err := db.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&verdict); err != nil {
		return 0, fmt.Errorf("checking the database: %w", err)
	}
	if verdict != "ok" {
		return 0, fmt.Errorf("the database is damaged: %s", verdict)
	}
	var broken int
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM pragma_foreign_key_check").Scan(&broken); err != nil {
		return 0, fmt.Errorf("checking the references of the database: %w", err)
	}
	if broken > 0 {
		return 0, fmt.Errorf("the database is damaged: %d rows refer to rows that are missing", broken)
	}
	if err := db.QueryRowContext(ctx, "SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied").Scan(&schema); err != nil {
		return 0, fmt.Errorf("reading the schema version: %w", err)
	}
	return schema, nil
}

// Lock takes the lock of a state directory without opening its database, for
// those who replace the directory as a whole. It fails with [LockedError] when
// another process has it.
func Lock(dir string) (release func(), err error) {
	l, err := acquire(dir)
	if err != nil {
		return nil, err
	}
	return l.release, nil
}
