package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
)

// Description is what a database looks like, without anything that is in it.
type Description struct {
	Schema int64            `json:"schema"`
	Tables string           `json:"-"` // the statements that make it
	Rows   map[string]int64 `json:"rows"`
}

// Describe looks at the database of a state directory that another process may
// have open, and changes nothing.
func Describe(ctx context.Context, dir string) (d Description, err error) {
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Opaque: url.PathEscape(filepath.Join(dir, FileName)), RawQuery: "mode=ro"}).String())
	if err != nil {
		return d, fmt.Errorf("opening the database: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := db.QueryRowContext(ctx, "SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied").Scan(&d.Schema); err != nil {
		return d, fmt.Errorf("reading the schema version: %w", err)
	}
	rows, err := db.QueryContext(ctx, "SELECT type, name, coalesce(sql, '') FROM sqlite_schema ORDER BY rowid")
	if err != nil {
		return d, fmt.Errorf("reading the schema: %w", err)
	}
	defer rows.Close()
	var text strings.Builder
	var tables []string
	for rows.Next() {
		var kind, name, statement string
		if err := rows.Scan(&kind, &name, &statement); err != nil {
			return d, fmt.Errorf("reading the schema: %w", err)
		}
		if statement != "" {
			text.WriteString(statement + ";\n")
		}
		if kind == "table" {
			tables = append(tables, name)
		}
	}
	if err := rows.Err(); err != nil {
		return d, fmt.Errorf("reading the schema: %w", err)
	}
	d.Tables, d.Rows = text.String(), map[string]int64{}
	for _, table := range tables {
		var n int64
		if err := db.QueryRowContext(ctx, `SELECT count(*) FROM "`+table+`"`).Scan(&n); err != nil {
			return d, fmt.Errorf("counting rows: %w", err)
		}
		d.Rows[table] = n
	}
	return d, nil
}
