package migrate

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// original is the state directory of an original gateway, which is only read. Its
// databases are opened as if they could not change, so that not even a lock is left.
type original struct {
	dir    string
	open   map[string]*sql.DB
	copies []string // temporary directories
}

func (o *original) close() {
	for _, db := range o.open {
		db.Close()
	}
	for _, dir := range o.copies {
		os.RemoveAll(dir)
	}
}

// copy copies a database with its write-ahead log, which a crash has left and SQLite
// would not read without writing beside it.
func (o *original) copy(path string) (string, error) {
	dir, err := os.MkdirTemp("", "agent-relay-import-")
	if err != nil {
		return "", err
	}
	o.copies = append(o.copies, dir)
	to := filepath.Join(dir, filepath.Base(path))
	for _, suffix := range []string{"", "-wal"} {
		raw, err := os.ReadFile(path + suffix)
		if err == nil {
			err = os.WriteFile(to+suffix, raw, 0o600)
		}
		if err != nil {
			return "", err
		}
	}
	return to, nil
}

// place is the state of one host in it.
type place struct {
	o      *original
	dir    string // below the state directory; "" is the local host
	hostID string // as hosts are called here
}

var hostName = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,31}$`)

// places are the local host and the others that the original knew.
func (o *original) places(localHostID string) ([]place, error) {
	all := []place{{o, "", localHostID}}
	entries, err := os.ReadDir(filepath.Join(o.dir, "hosts"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() && hostName.MatchString(e.Name()) {
			all = append(all, place{o, filepath.Join("hosts", e.Name()), e.Name()})
		}
	}
	return all, nil
}

// found is a row as it is, by the names of its columns.
type found map[string]any

// text is the value of the first of some columns that is there; columns of the
// original are in snake case, its files in camel case.
func (f found) text(names ...string) string {
	for _, n := range names {
		switch v := f[n].(type) {
		case string:
			return v
		case []byte:
			return string(v)
		case nil:
		default:
			return fmt.Sprint(v)
		}
	}
	return ""
}

func (f found) number(names ...string) int64 {
	for _, n := range names {
		switch v := f[n].(type) {
		case int64:
			return v
		case float64:
			return int64(v)
		case bool:
			if v {
				return 1
			}
		}
	}
	return 0
}

// at is a time in milliseconds: the original has them so, or as RFC 3339.
func (f found) at(names ...string) int64 {
	for _, n := range names {
		if ms := f.number(n); ms != 0 {
			return ms
		}
		if t, err := time.Parse(time.RFC3339Nano, f.text(n)); err == nil {
			return t.UnixMilli()
		}
	}
	return 0
}

// database opens one; nil when it is not there.
func (p place) database(name string) (*sql.DB, error) {
	path := filepath.Join(p.o.dir, p.dir, name)
	if db := p.o.open[path]; db != nil {
		return db, nil
	}
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", path)
	}
	at, mode := path, "mode=ro&immutable=1"
	if wal, err := os.Stat(path + "-wal"); err == nil && wal.Size() > 0 {
		if at, err = p.o.copy(path); err != nil {
			return nil, err
		}
		mode = "mode=rw"
	}
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Opaque: url.PathEscape(at), RawQuery: mode}).String())
	if err != nil {
		return nil, err
	}
	p.o.open[path] = db
	return db, nil
}

// rows are all rows of a table, in the order in which they came; none when database
// or table are not there.
func (p place) rows(ctx context.Context, database, table string) (out []found, err error) {
	db, err := p.database(database)
	if db == nil || err != nil {
		return nil, err
	}
	var there int
	if err := db.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?`, table).Scan(&there); err != nil {
		return nil, fmt.Errorf("reading %s: %w", filepath.Join(p.dir, database), err)
	}
	if there == 0 {
		return nil, nil
	}
	rows, err := db.QueryContext(ctx, `SELECT * FROM "`+strings.ReplaceAll(table, `"`, `""`)+`"`)
	if err != nil {
		return nil, fmt.Errorf("reading %s of %s: %w", table, filepath.Join(p.dir, database), err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		values, dest := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			dest[i] = &values[i]
		}
		if err := rows.Scan(dest...); err != nil {
			return nil, err
		}
		f := found{}
		for i, c := range columns {
			f[c] = values[i]
		}
		out = append(out, f)
	}
	return out, rows.Err()
}

// tablesWith are the databases and tables of this place that have all these columns.
// The original's form of the mailbox is not written down anywhere; its words are.
func (p place) tablesWith(ctx context.Context, columns ...string) (all [][2]string, err error) {
	entries, err := os.ReadDir(filepath.Join(p.o.dir, p.dir))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".sqlite" {
			continue
		}
		db, err := p.database(e.Name())
		if db == nil || err != nil {
			return nil, err
		}
		names := map[string][]string{}
		rows, err := db.QueryContext(ctx, `SELECT t.name, c.name FROM sqlite_schema t JOIN pragma_table_info(t.name) c WHERE t.type = 'table'`)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", e.Name(), err)
		}
		for rows.Next() {
			var table, column string
			if err := rows.Scan(&table, &column); err != nil {
				rows.Close()
				return nil, err
			}
			names[table] = append(names[table], column)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return nil, err
		}
		for table, has := range names {
			if !slices.ContainsFunc(columns, func(c string) bool { return !slices.Contains(has, c) }) {
				all = append(all, [2]string{e.Name(), table})
			}
		}
	}
	slices.SortFunc(all, func(a, b [2]string) int { return strings.Compare(a[0]+a[1], b[0]+b[1]) })
	return all, nil
}

// file reads a JSON file of the original; ok is false when it is not there.
func (p place) file(name string, v any) (ok bool, err error) {
	raw, err := os.ReadFile(filepath.Join(p.o.dir, p.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, v)
	}
	if err != nil {
		return false, fmt.Errorf("reading %s: %w", filepath.Join(p.dir, name), err)
	}
	return true, nil
}
