package store

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"
)

func TestEverythingIsPrivate(t *testing.T) {
	dir := t.TempDir() + "/a/state"
	s := open(t, dir)
	if err := Exec(context.Background(), s, insert(1)); err != nil {
		t.Fatal(err)
	}
	stored(t, s)
	seen := map[string]bool{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		seen[d.Name()] = true
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{FileName, FileName + "-wal", FileName + "-shm", lockName} {
		if !seen[name] {
			t.Errorf("%s is missing: %v", name, seen)
		}
	}
}

func TestStatePathsOfAllKinds(t *testing.T) {
	for _, name := range []string{"with space", "a?b", "a#b", "100%", "%41", "a&b=c;d", "añb ☕ ру", "a:b", "it's \"x\"", "+plus"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), name)
			s := open(t, dir)
			if err := Exec(context.Background(), s, insert(1)); err != nil {
				t.Fatal(err)
			}
			if !stored(t, s)[1] {
				t.Error("readers opened another database than the writer")
			}
			if _, err := os.Stat(filepath.Join(dir, FileName)); err != nil {
				t.Error(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if !stored(t, open(t, dir))[1] {
				t.Error("the row is gone after reopening")
			}
		})
	}
}

func TestRelativeStatePath(t *testing.T) {
	t.Chdir(t.TempDir())
	s := open(t, "state/x")
	if err := Exec(context.Background(), s, insert(1)); err != nil {
		t.Fatal(err)
	}
	if !stored(t, s)[1] {
		t.Error("the row is not there")
	}
}

func TestOpenDirectoryIsRefused(t *testing.T) {
	for _, mode := range []os.FileMode{0o755, 0o710, 0o701, 0o777} {
		dir := t.TempDir() + "/state"
		if err := os.Mkdir(dir, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, mode); err != nil { // past the umask
			t.Fatal(err)
		}
		_, err := Open(context.Background(), Options{Dir: dir})
		if err == nil || !strings.Contains(err.Error(), "chmod 700 "+dir) {
			t.Errorf("mode %v: %v", mode, err)
		}
		if entries, _ := os.ReadDir(dir); len(entries) != 0 {
			t.Errorf("mode %v: refused, but %v was made", mode, entries)
		}
	}
}

func TestNetworkFileSystem(t *testing.T) {
	dir := t.TempDir() + "/state"
	nfs := func(string) (string, error) { return "nfs", nil }
	_, err := Open(context.Background(), Options{Dir: dir, fsName: nfs})
	var refused *NetworkFSError
	if !errors.As(err, &refused) || refused.FS != "nfs" || !strings.Contains(err.Error(), "store.allowNetworkFilesystem") {
		t.Fatalf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, FileName)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("refused, but the database exists: %v", err)
	}
	s, err := Open(context.Background(), Options{Dir: dir, fsName: nfs, AllowNetworkFS: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	_, err = Open(context.Background(), Options{Dir: dir, fsName: func(string) (string, error) { return "", errForced }})
	if !errors.Is(err, errForced) {
		t.Errorf("a file system that can't be asked: %v", err)
	}
}

func TestLocalFileSystemIsNoNetwork(t *testing.T) {
	if name, err := networkFS(t.TempDir()); name != "" || err != nil {
		t.Errorf("got %q, %v", name, err)
	}
}

// The pragmas are per connection: each one of both pools must have them.
func TestPragmasOfEveryConnection(t *testing.T) {
	s := open(t, "")
	check := func(name string, conn *sql.Conn, want map[string]string) {
		t.Helper()
		for pragma, value := range want {
			var got string
			if err := conn.QueryRowContext(context.Background(), "PRAGMA "+pragma).Scan(&got); err != nil || got != value {
				t.Errorf("%s: %s is %q (%v), want %q", name, pragma, got, err, value)
			}
		}
	}
	check("writer", s.queue.session.conn, map[string]string{
		"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "5000", "query_only": "0",
		"journal_size_limit": strconv.Itoa(walLimit), "fullfsync": "1", "checkpoint_fullfsync": "1",
	})
	for i := range readers {
		conn, err := s.reads.db.Conn(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		name := fmt.Sprint("reader ", i)
		check(name, conn, map[string]string{"journal_mode": "wal", "foreign_keys": "1", "query_only": "1", "busy_timeout": "5000"})
		if _, err := conn.ExecContext(context.Background(), `INSERT INTO t (id, v) VALUES (1, 'x')`); err == nil {
			t.Errorf("%s can write", name)
		}
	}
}

// A store that was closed is one file: whoever copies gateway.db of a gateway
// that was stopped has everything.
func TestCloseLeavesOneFile(t *testing.T) {
	dir := t.TempDir() + "/state"
	s := open(t, dir)
	if err := Exec(context.Background(), s, insert(1)); err != nil {
		t.Fatal(err)
	}
	stored(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{FileName + "-wal", FileName + "-shm"} {
		if info, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v, %v", name, info, err)
		}
	}
}

func TestPing(t *testing.T) {
	s := open(t, "")
	if err := s.Ping(context.Background()); err != nil {
		t.Errorf("a healthy store: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Ping(context.Background()); !errors.Is(err, ErrClosed) || !IsTrouble(err) {
		t.Errorf("a closed store: %v", err)
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	dir := t.TempDir() + "/state"
	s := open(t, dir)
	if err := Exec(context.Background(), s, func(tx *Tx) error {
		_, err := tx.Exec(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (9001, 1)`)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	before := dump(t, dir)
	_, err := Open(context.Background(), Options{Dir: dir})
	var newer *SchemaError
	if !errors.As(err, &newer) || newer.Database != 9001 || newer.Binary < 1 {
		t.Fatalf("got %v", err)
	}
	for _, n := range []int64{newer.Database, newer.Binary} {
		if !strings.Contains(err.Error(), strconv.FormatInt(n, 10)) {
			t.Errorf("%q does not name %d", err, n)
		}
	}
	if after := dump(t, dir); after != before {
		t.Error("the refused database was changed")
	}
}

// dump is the content of a database that nobody has open.
func dump(t *testing.T, dir string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, FileName))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var (
	stepOne = &fstest.MapFile{Data: []byte("-- +goose Up\nCREATE TABLE one (id INTEGER PRIMARY KEY) STRICT;\nINSERT INTO one VALUES (1);\n-- +goose Down\nDROP TABLE one;\n")}
	stepTwo = &fstest.MapFile{Data: []byte("-- +goose Up\nCREATE TABLE two (id INTEGER PRIMARY KEY) STRICT;\n-- +goose Down\nDROP TABLE two;\n")}
	badStep = &fstest.MapFile{Data: []byte("-- +goose Up\nCREATE TABLE two (id INTEGER PRIMARY KEY) STRICT;\nINSERT INTO one VALUES (2);\nINSERT INTO nowhere VALUES (1);\n-- +goose Down\nDROP TABLE two;\n")}
)

// migrating is a bare database on which steps are tried, and its options.
func migrating(t *testing.T) (*sql.DB, Options, *bytes.Buffer) {
	t.Helper()
	dir := t.TempDir()
	db, err := sql.Open("sqlite", dsn(filepath.Join(dir, FileName), false))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	db.SetMaxOpenConns(1)
	var log bytes.Buffer
	return db, Options{Dir: dir, Now: time.Now, Log: slog.New(slog.NewTextHandler(&log, nil))}, &log
}

func tables(t *testing.T, db *sql.DB) string {
	t.Helper()
	var names string
	if err := db.QueryRow(`SELECT group_concat(name) FROM (SELECT name FROM sqlite_schema WHERE name IN ('one', 'two') ORDER BY name)`).Scan(&names); err != nil {
		t.Fatal(err)
	}
	return names
}

func TestBackupBeforeMigration(t *testing.T) {
	db, o, log := migrating(t)
	ctx := context.Background()
	if err := migrateFS(ctx, db, o, fstest.MapFS{"0001_one.sql": stepOne}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(o.Dir, "backups")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a new database was backed up: %v", err)
	}
	if _, err := db.Exec(`INSERT INTO one VALUES (7)`); err != nil {
		t.Fatal(err)
	}
	if err := migrateFS(ctx, db, o, fstest.MapFS{"0001_one.sql": stepOne, "0002_two.sql": stepTwo}); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(filepath.Join(o.Dir, "backups"))
	if err != nil || len(files) != 1 {
		t.Fatalf("backups: %v, %v", files, err)
	}
	name := files[0].Name()
	if !strings.HasPrefix(name, "before-schema-2-") {
		t.Errorf("the backup is called %s", name)
	}
	path := filepath.Join(o.Dir, "backups", name)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory mode %v, %v", info.Mode(), err)
	}
	backup, err := sql.Open("sqlite", dsn(path, true))
	if err != nil {
		t.Fatal(err)
	}
	defer backup.Close()
	var rows int
	if err := backup.QueryRow(`SELECT count(*) FROM one`).Scan(&rows); err != nil || rows != 2 {
		t.Errorf("the backup has %d rows, %v", rows, err)
	}
	if got := tables(t, backup); got != "one" {
		t.Errorf("the backup has the tables %s", got)
	}
	if !strings.Contains(log.String(), "backup written") || !strings.Contains(log.String(), "schema migrated") {
		t.Errorf("log: %s", log)
	}

	// A caller's own way to back up gets the database as it was, and can stop it.
	db, o, _ = migrating(t)
	if err := migrateFS(ctx, db, o, fstest.MapFS{"0001_one.sql": stepOne}); err != nil {
		t.Fatal(err)
	}
	refused := errors.New("refused")
	o.BeforeUpgrade = func(ctx context.Context, u Upgrade) error {
		copied := filepath.Join(o.Dir, "copied.db")
		if err := u.Copy(ctx, copied); err != nil || u.From != 1 || u.To != 2 {
			t.Errorf("from %d to %d, %v", u.From, u.To, err)
		}
		if schema, err := Inspect(ctx, copied); schema != 1 || err != nil {
			t.Errorf("the copy has schema %d, %v", schema, err)
		}
		return refused
	}
	if err := migrateFS(ctx, db, o, fstest.MapFS{"0001_one.sql": stepOne, "0002_two.sql": stepTwo}); !errors.Is(err, refused) || tables(t, db) != "one" {
		t.Errorf("migrated although the backup was refused: %v", err)
	}

	// A failed attempt to back up stops the migration.
	db, o, _ = migrating(t)
	if err := migrateFS(ctx, db, o, fstest.MapFS{"0001_one.sql": stepOne}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(o.Dir, "backups"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := migrateFS(ctx, db, o, fstest.MapFS{"0001_one.sql": stepOne, "0002_two.sql": stepTwo}); err == nil {
		t.Error("migrated without a backup")
	}
	if got := tables(t, db); got != "one" {
		t.Errorf("tables: %s", got)
	}
}

func TestInterruptedMigrationLeavesTheStepBefore(t *testing.T) {
	db, o, _ := migrating(t)
	ctx := context.Background()
	err := migrateFS(ctx, db, o, fstest.MapFS{"0001_one.sql": stepOne, "0002_two.sql": badStep})
	if err == nil || !strings.Contains(err.Error(), "migration 2 failed") {
		t.Fatalf("got %v", err)
	}
	if got := tables(t, db); got != "one" {
		t.Errorf("after the failure the tables are %s", got)
	}
	var rows int
	if err := db.QueryRow(`SELECT count(*) FROM one`).Scan(&rows); err != nil || rows != 1 {
		t.Errorf("half of step 2 stayed: %d rows, %v", rows, err)
	}
	// The repaired step continues where it stopped.
	if err := migrateFS(ctx, db, o, fstest.MapFS{"0001_one.sql": stepOne, "0002_two.sql": stepTwo}); err != nil {
		t.Fatal(err)
	}
	if got := tables(t, db); got != "one,two" {
		t.Errorf("after the repair the tables are %s", got)
	}
}

// A reader that stays open lets the write-ahead log grow. The log shrinks again
// on an idle writer once the reader has gone, even if the writer had become
// idle before; and no write waits for that reader.
func TestWALIsBounded(t *testing.T) {
	t.Parallel() // most of it is waiting
	dir := t.TempDir() + "/state"
	s := open(t, dir)
	tx, err := s.reads.db.BeginTx(context.Background(), &sql.TxOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	var n int
	if err := tx.QueryRow(`SELECT count(*) FROM t`).Scan(&n); err != nil { // takes the snapshot
		t.Fatal(err)
	}
	const callers, each = 512, 100
	answers := make(chan error, callers*each)
	for c := range callers {
		go func() {
			for i := range each {
				answers <- Exec(context.Background(), s, func(tx *Tx) error {
					_, err := tx.Exec(`INSERT INTO t (id, v) VALUES (?, ?)`, c*each+i, strings.Repeat("x", 400))
					return err
				})
			}
		}()
	}
	for range callers * each {
		if err := <-answers; err != nil {
			t.Fatal(err)
		}
	}
	size := func() int64 {
		info, err := os.Stat(filepath.Join(dir, FileName+"-wal"))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	if size() <= walLimit {
		t.Fatalf("%d writes grew the log to %d bytes only: the test shows nothing", callers*each, size())
	}
	const pastIdle = idleBeforeTruncate * 3 / 2
	time.Sleep(pastIdle)
	start := time.Now()
	if err := Exec(context.Background(), s, insert(1<<30)); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("a write waited %v for the log to shrink", took)
	}
	time.Sleep(pastIdle)
	tx.Rollback()
	eventually(t, "the log shrinks to its limit", func() bool { return size() <= walLimit })
}

// Reads that always overlap never leave a moment in which the log could start
// over by itself; it must stay bounded all the same.
func TestWALIsBoundedUnderConstantReads(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/state"
	const high, total = 2 << 20, 24 << 20
	s := openWith(t, Options{Dir: dir, walHigh: high})
	row := strings.Repeat("x", 64<<10)
	var next, largest atomic.Int64
	writing := func() bool { return next.Load()<<16 < total && !t.Failed() }
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for writing() {
				if err := Exec(context.Background(), s, func(tx *Tx) error {
					_, err := tx.Exec(`INSERT INTO t (id, v) VALUES (?, ?)`, next.Add(1), row)
					return err
				}); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for writing() {
				if err := Read(context.Background(), s, func(r *Reader) error {
					var n int
					err := r.QueryRow(`SELECT count(*) FROM t WHERE id > ?`, next.Load()-100).Scan(&n)
					time.Sleep(2 * time.Millisecond) // reading takes its time, so the readers overlap
					return err
				}); err != nil {
					t.Error(err)
				}
				if info, err := os.Stat(filepath.Join(dir, FileName+"-wal")); err == nil && info.Size() > largest.Load() {
					largest.Store(info.Size())
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d MiB written, the log was at most %d MiB", next.Load()>>4, largest.Load()>>20)
	if largest.Load() > total/2 {
		t.Errorf("the log grew to %d of %d bytes", largest.Load(), total)
	}
}
