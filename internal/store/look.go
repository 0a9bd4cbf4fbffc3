package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
)

// NetworkFS names the file system of a directory when it is shared between
// machines or served over a protocol, where a database is in danger; else "".
func NetworkFS(dir string) (string, error) { return networkFS(dir) }

// look reads the database of a state directory beside whoever has it open, without
// the lock.
func look(ctx context.Context, dir string, read func(*sql.DB) error) (err error) {
	db, err := sql.Open("sqlite", dsn(filepath.Join(dir, FileName), true))
	if err != nil {
		return fmt.Errorf("opening the database: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return read(db)
}

// SchemaOf reads the version of the schema of a state directory, which may be in
// use. The caller must be the user whose directory it is: SQLite may make the files
// of the write-ahead log.
func SchemaOf(ctx context.Context, dir string) (schema int64, err error) {
	err = look(ctx, dir, func(db *sql.DB) error {
		return db.QueryRowContext(ctx, "SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied").Scan(&schema)
	})
	if err != nil {
		return 0, fmt.Errorf("reading the schema version: %w", err)
	}
	return schema, nil
}

// QuickCheck looks for damage in the database of a state directory, which may be in
// use; as with [SchemaOf], by its own user. The error says what is damaged. Nothing
// waits for it, and it takes about a second for a few hundred megabytes.
func QuickCheck(ctx context.Context, dir string) error {
	return look(ctx, dir, func(db *sql.DB) error {
		var verdict string
		if err := db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&verdict); err != nil {
			return fmt.Errorf("checking the database: %w", err)
		}
		if verdict != "ok" {
			return fmt.Errorf("the database is damaged: %s", verdict)
		}
		return nil
	})
}
