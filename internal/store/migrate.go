package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/pressly/goose/v3"

	"agentrelay/migrations"
)

// SchemaError says that the database was written by a newer binary.
type SchemaError struct {
	Database int64 // the schema the database has
	Binary   int64 // the newest schema this binary knows
}

func (e *SchemaError) Error() string {
	return fmt.Sprintf("the database has schema %d, this gateway knows up to %d: run the newer gateway, or restore the backup made before the upgrade", e.Database, e.Binary)
}

func migrate(ctx context.Context, db *sql.DB, o Options) error {
	return migrateFS(ctx, db, o, migrations.FS)
}

func migrateFS(ctx context.Context, db *sql.DB, o Options, files fs.FS) error {
	p, err := goose.NewProvider(goose.DialectSQLite3, db, files)
	if err != nil {
		return fmt.Errorf("reading the migrations: %w", err)
	}
	have, want, err := p.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("reading the schema version: %w", err)
	}
	if have > want {
		return &SchemaError{Database: have, Binary: want}
	}
	if have == want {
		return nil
	}
	if have > 0 {
		if err := backupBefore(ctx, db, o, have, want); err != nil {
			return err
		}
	}
	results, err := p.Up(ctx)
	if err != nil {
		var partial *goose.PartialError
		if errors.As(err, &partial) && partial.Failed != nil {
			return fmt.Errorf("migration %d failed, the database stays at the step before it: %w", partial.Failed.Source.Version, err)
		}
		return fmt.Errorf("migrating from schema %d to %d: %w", have, want, err)
	}
	o.Log.Info("schema migrated", "from", have, "to", want, "steps", len(results))
	return nil
}

// backupBefore copies the database as it is before a migration. The copy is
// consistent because VACUUM INTO reads one snapshot. It has its name only when
// it is whole and on disk, for SQLite does not sync such a copy itself
// (https://sqlite.org/lang_vacuum.html).
func backupBefore(ctx context.Context, db *sql.DB, o Options, from, to int64) error {
	dir := filepath.Join(o.Dir, "backups")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the backup directory: %w", err)
	}
	path := filepath.Join(dir, fmt.Sprintf("before-schema-%d-%s.db", to, o.Now().UTC().Format("20060102T150405.000Z")))
	part := path + ".part"
	leftovers, err := filepath.Glob(filepath.Join(dir, "*.part")) // of a crash; we hold the lock
	if err != nil {
		return err
	}
	for _, old := range leftovers {
		if err := os.Remove(old); err != nil {
			return fmt.Errorf("removing an unfinished backup: %w", err)
		}
	}
	if err := touchPrivate(part); err != nil {
		return err
	}
	defer os.Remove(part)
	if _, err := db.ExecContext(ctx, "VACUUM INTO ?", part); err != nil {
		return fmt.Errorf("backing up before the migration from schema %d: %w", from, err)
	}
	for _, step := range []func() error{
		func() error { return syncPath(part) },
		func() error { return os.Rename(part, path) },
		func() error { return syncPath(dir) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("storing the backup from before the migration: %w", err)
		}
	}
	o.Log.Info("backup written before migrating", "file", filepath.Base(path), "from", from, "to", to)
	return nil
}

// syncPath makes a file or directory survive a power cut.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
