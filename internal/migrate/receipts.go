package migrate

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"agentrelay/internal/store"
)

// receipts are the tables whose rows say that something was done outside of this
// state directory, under a key that must not do it again.
var receipts = []string{"agents", "dispatches", "device_calls"}

// Receipts reads from a state directory that was put aside what was dispatched from
// it, and returns a step that adds to another one what that does not know. A restore
// takes the database back in time, and with it the keys of what was dispatched since;
// the daemons were not taken back.
func Receipts(ctx context.Context, dir string) (func(*store.Tx) error, error) {
	from := place{o: &original{dir: dir, open: map[string]*sql.DB{}}}
	defer from.o.close()
	rows := map[string][]found{}
	for _, table := range receipts {
		var err error
		if rows[table], err = from.rows(ctx, store.FileName, table); err != nil {
			return nil, fmt.Errorf("reading what was dispatched from %s: %w", filepath.Base(dir), err)
		}
	}
	return func(tx *store.Tx) error {
		for _, table := range receipts {
			columns, err := texts(tx, `SELECT name FROM pragma_table_info(?) WHERE name <> 'id'`, table)
			if err != nil {
				return fmt.Errorf("reading the columns of %s: %w", table, err)
			}
			for _, row := range rows[table] {
				if err := addRow(tx, table, columns, row); err != nil {
					return err
				}
			}
		}
		return nil
	}, nil
}

// addRow adds a row of another database of this schema or an older one.
func addRow(tx *store.Tx, table string, columns []string, row found) error {
	columns = slices.DeleteFunc(slices.Clone(columns), func(c string) bool { _, ok := row[c]; return !ok })
	values := make([]any, len(columns))
	for i, c := range columns {
		values[i] = row[c]
		if b, ok := row[c].([]byte); ok && b == nil { // an empty BLOB, which is not NULL
			values[i] = []byte{}
		}
	}
	_, err := tx.Exec(fmt.Sprintf(`INSERT INTO %s (%s) VALUES (%s) ON CONFLICT DO NOTHING`, table, strings.Join(columns, ", "), strings.TrimSuffix(strings.Repeat("?, ", len(columns)), ", ")), values...)
	if err != nil {
		return fmt.Errorf("keeping what was dispatched: %w", err)
	}
	return nil
}
