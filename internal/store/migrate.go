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

// Upgrade is a migration that is about to be done.
type Upgrade struct {
	From, To int64
	// Copy writes the database as it is now to a new file, on disk when it returns.
	Copy func(ctx context.Context, path string) error
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
		u := Upgrade{From: have, To: want, Copy: func(ctx context.Context, path string) error { return vacuumInto(ctx, db, path) }}
		backup := o.BeforeUpgrade
		if backup == nil {
			backup = func(ctx context.Context, u Upgrade) error { return backupBefore(ctx, u, o) }
		}
		if err := backup(ctx, u); err != nil {
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

// backupBefore copies the database alone as it is before a migration. It has its
// name only when it is whole and on disk.
func backupBefore(ctx context.Context, u Upgrade, o Options) error {
	dir := filepath.Join(o.Dir, "backups")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the backup directory: %w", err)
	}
	path := filepath.Join(dir, fmt.Sprintf("before-schema-%d-%s.db", u.To, o.Now().UTC().Format("20060102T150405.000Z")))
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
	defer os.Remove(part)
	for _, step := range []func() error{
		func() error { return u.Copy(ctx, part) },
		func() error { return os.Rename(part, path) },
		func() error { return syncPath(dir) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("backing up before the migration from schema %d: %w", u.From, err)
		}
	}
	o.Log.Info("backup written before migrating", "file", filepath.Base(path), "from", u.From, "to", u.To)
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
