package backup

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"agentrelay/internal/audit"
	"agentrelay/internal/principal"
	"agentrelay/internal/sealing"
	"agentrelay/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// installation is a state directory with a bit of everything, and its store.
type installation struct {
	t     *testing.T
	dir   string // holds all of it
	store *store.Store
	src   Source
}

const (
	commandID   = "0123456789abcdef01234567"
	placementID = "89abcdef0123456789abcdef"
)

// stateFiles are what an installation has beside the database: what travels.
var stateFiles = map[string]string{
	"agent-channels/6a1f0000-0000-4000-8000-000000000000.json": `{"version":1,"key":"capability"}`,
	"direct/commands/" + commandID + "/spec.json":              `{"commandId":"` + commandID + `"}`,
	"direct/commands/" + commandID + "/status.json":            `{"state":"exited"}`,
	"direct/commands/days/2026-11-30/1-" + commandID + "-aa":   ``,
	"direct/transfers/" + placementID:                          `{"step":"placed"}`,
	"hosts/wsl/host.json":                                      `{"id":"wsl"}`,
}

// leftFiles are what does not.
var leftFiles = map[string]string{
	"direct/commands/" + commandID + "/output.log":      "printed",
	"direct/commands/" + commandID + "/output.4096.log": "printed",
	"direct/commands/" + commandID + "/status.json.new": "half",
	"direct/commands/new-123/spec.json":                 "half",
	"direct/files/recovery/1":                           "text of a project",
	"transfer-spool/00112233445566778899aabbccddeeff":   "bytes of a project",
	"bin/peer-agent":     "program",
	"owner-password.txt": "the password itself",
	".sealing.key.123":   "temporary",
}

func install(t *testing.T) *installation {
	t.Helper()
	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	s, err := store.Open(t.Context(), store.Options{Dir: state})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if _, err := sealing.LoadOrCreate(state); err != nil {
		t.Fatal(err)
	}
	i := &installation{t: t, dir: dir, store: s, src: Source{
		StateDir: state, ConfigFile: filepath.Join(dir, "config.json"), OwnerFile: filepath.Join(state, "owner.json"), Copy: s.Copy, Version: "v1",
	}}
	i.write(i.src.ConfigFile, `{"port": 7000}`)
	i.write(i.src.OwnerFile, `{"ownerTokenHash": "hash"}`)
	for _, files := range []map[string]string{stateFiles, leftFiles} {
		for name, text := range files {
			i.write(filepath.Join(state, name), text)
		}
	}
	return i
}

func (i *installation) write(path, text string) {
	i.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		i.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		i.t.Fatal(err)
	}
}

func (i *installation) create(kind Kind) Set {
	i.t.Helper()
	set, err := Create(i.t.Context(), i.src, filepath.Join(i.src.StateDir, "backups"), kind)
	if err != nil {
		i.t.Fatal(err)
	}
	return set
}

func (i *installation) target() Target {
	return Target{StateDir: i.src.StateDir, OwnerFile: i.src.OwnerFile, ConfigFile: i.src.ConfigFile}
}

func read(t *testing.T, parts ...string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// note writes one numbered row, as an effect of a caller would.
func note(ctx context.Context, s *store.Store, who string, n int) error {
	return store.Exec(ctx, s, func(tx *store.Tx) error {
		return audit.Record(tx, principal.Owner(who), "test.write", fmt.Sprint(n), audit.OK)
	})
}

// noted returns how many rows each caller has in a database file, whose numbers must
// be whole, and fails when one is missing between them.
func noted(t *testing.T, path string) map[string]int {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?mode=ro&immutable=1")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.Query(`SELECT owner, CAST(subject AS INTEGER) FROM audit_log WHERE action = 'test.write' ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	have := map[string]int{}
	for rows.Next() {
		var who string
		var n int
		if err := rows.Scan(&who, &n); err != nil {
			t.Fatal(err)
		}
		if have[who]++; have[who] != n {
			t.Fatalf("%s: row %d of %s stands where %d should", path, n, who, have[who])
		}
	}
	return have
}

// Fifty backups of a store that takes 500 writes a second and more: each is whole,
// has all that was acknowledged before it was begun, and of each caller's writes a
// beginning without a gap.
func TestBackupsOfABusyStore(t *testing.T) {
	i := install(t)
	const writers = 8
	backups, rate := 50, 600
	if raced { // SQLite is ten times slower then
		backups, rate = 10, 60
	}
	var acknowledged, asked [writers]atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	begun := time.Now()
	for w := range writers {
		wg.Go(func() {
			tick := time.NewTicker(writers * time.Second / time.Duration(rate))
			defer tick.Stop()
			for n := 1; ; n++ {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				asked[w].Store(int64(n))
				if err := note(context.Background(), i.store, fmt.Sprint(w), n); err != nil {
					t.Error(err)
					return
				}
				acknowledged[w].Store(int64(n))
			}
		})
	}
	for range backups {
		var before, after [writers]int64
		for w := range writers {
			before[w] = acknowledged[w].Load()
		}
		set := i.create(Manual)
		for w := range writers {
			after[w] = asked[w].Load()
		}
		if _, err := Verify(t.Context(), set.Dir); err != nil {
			t.Error(err)
		}
		have := noted(t, filepath.Join(set.Dir, store.FileName))
		for w := range writers {
			if n := int64(have[fmt.Sprint(w)]); n < before[w] || n > after[w] {
				t.Errorf("%s has %d writes of caller %d: %d were acknowledged before and %d asked for", set.ID, n, w, before[w], after[w])
			}
		}
	}
	stop()
	wg.Wait()
	var total int64
	for w := range writers {
		total += acknowledged[w].Load()
	}
	t.Logf("%d writes in %v, %.0f a second", total, time.Since(begun).Round(time.Millisecond), float64(total)/time.Since(begun).Seconds())
}

func TestWhatASetHas(t *testing.T) {
	i := install(t)
	if err := note(t.Context(), i.store, "a", 1); err != nil {
		t.Fatal(err)
	}
	set := i.create(Manual)
	got, err := Verify(t.Context(), filepath.Join(set.Dir, "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	if got.Kind != Manual || got.Schema != store.Schema() || got.Version != "v1" || got.StateDir != i.src.StateDir || len(got.Files) != 5 {
		t.Errorf("the manifest says %+v", got)
	}
	if read(t, set.Dir, "config.json") != `{"port": 7000}` || read(t, set.Dir, "owner.json") != `{"ownerTokenHash": "hash"}` {
		t.Error("config or owner's file differ")
	}
	if read(t, set.Dir, "sealing.key") != read(t, i.src.StateDir, "sealing.key") {
		t.Error("the key differs")
	}
	if raw := read(t, set.Dir, "state.tar.gz"); len(raw) == 0 {
		t.Error("the archive is empty")
	}
	err = filepath.WalkDir(filepath.Dir(set.Dir), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	// A set does not have the sets before it, nor what need not travel.
	again := i.create(Manual)
	out := filepath.Join(i.dir, "elsewhere")
	if _, err := Restore(t.Context(), again.Dir, Target{StateDir: out, OwnerFile: filepath.Join(out, "owner.json")}); err != nil {
		t.Fatal(err)
	}
	for name, text := range stateFiles {
		if got := read(t, out, name); got != text {
			t.Errorf("%s has %q", name, got)
		}
	}
	for name := range leftFiles {
		if exists(filepath.Join(out, name)) {
			t.Errorf("%s was in the set", name)
		}
	}
	for _, name := range []string{"backups", "lock", "gateway.db-wal"} {
		if exists(filepath.Join(out, name)) {
			t.Errorf("%s was in the set", name)
		}
	}
}

func TestDamageIsFound(t *testing.T) {
	i := install(t)
	set := i.create(Manual)
	flip := func(path string) error {
		raw, err := os.ReadFile(path)
		if err == nil {
			raw[len(raw)/2] ^= 1
			err = os.WriteFile(path, raw, 0o600)
		}
		return err
	}
	cut := func(path string) error {
		info, err := os.Stat(path)
		if err == nil {
			err = os.Truncate(path, info.Size()/2)
		}
		return err
	}
	for _, name := range []string{"gateway.db", "sealing.key", "owner.json", "config.json", "state.tar.gz", "manifest.json"} {
		for what, damage := range map[string]func(string) error{"flipped": flip, "cut": cut, "removed": os.Remove} {
			if name == "manifest.json" && what == "flipped" {
				continue // a bit of a name or a size; each file tells
			}
			dir := filepath.Join(t.TempDir(), "set")
			if err := os.CopyFS(dir, os.DirFS(set.Dir)); err != nil {
				t.Fatal(err)
			}
			if err := damage(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
			if _, err := Verify(t.Context(), dir); err == nil {
				t.Errorf("%s of %s is not found", what, name)
			}
			if _, err := Restore(t.Context(), dir, Target{StateDir: filepath.Join(i.dir, "new")}); err == nil || exists(filepath.Join(i.dir, "new")) {
				t.Errorf("%s of %s: restored, %v", what, name, err)
			}
		}
	}
	if _, err := Verify(t.Context(), set.Dir); err != nil {
		t.Error(err)
	}
	for _, path := range []string{i.dir, filepath.Join(i.dir, "config.json"), "/nowhere"} {
		if _, err := Verify(t.Context(), path); err == nil {
			t.Errorf("%s passes for a backup", path)
		}
	}
}

func TestNamesThatLeadOutAreRefused(t *testing.T) {
	i := install(t)
	set := i.create(Manual)
	for _, name := range []string{"../x", "/etc/x", "manifest.json", ""} {
		changed := set
		changed.Files = append([]File{{Name: name}}, set.Files...)
		raw, err := json.Marshal(changed)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(set.Dir, manifestName), raw, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Verify(t.Context(), set.Dir); err == nil {
			t.Errorf("a file named %q passes", name)
		}
	}
}

func TestWhatIsKept(t *testing.T) {
	i := install(t)
	at := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	i.src.Now = func() time.Time { at = at.Add(time.Hour); return at }
	dir := filepath.Join(i.src.StateDir, "backups")
	var ids []string
	for _, kind := range []Kind{Manual, Scheduled, Scheduled, Upgrade, Scheduled, Manual} {
		ids = append(ids, i.create(kind).ID)
	}
	i.write(filepath.Join(dir, "notes.txt"), "of the owner")
	i.write(filepath.Join(dir, "20260101T000000.000Z-manual", "manifest.json"), "{")
	removed, err := Prune(dir, Scheduled, 1)
	if err != nil || len(removed) != 2 || removed[0] != ids[2] || removed[1] != ids[1] {
		t.Errorf("removed %v, %v", removed, err)
	}
	if removed, err := Prune(dir, Manual, 0); err != nil || removed != nil {
		t.Errorf("removed the owner's: %v, %v", removed, err)
	}
	sets, unreadable, err := List(dir)
	if err != nil || unreadable != 1 || len(sets) != 4 || sets[0].ID != ids[5] || sets[1].ID != ids[4] {
		t.Errorf("listed %v, %d unreadable, %v", sets, unreadable, err)
	}
	if !exists(filepath.Join(dir, "notes.txt")) {
		t.Error("another file was removed")
	}
}

func TestOneAtATimeAndNoLeftovers(t *testing.T) {
	i := install(t)
	dir := filepath.Join(i.src.StateDir, "backups")
	i.write(filepath.Join(dir, partPrefix+"123", "gateway.db"), "of a crash")
	fail := i.src
	fail.Copy = func(ctx context.Context, path string) error {
		var busy *BusyError
		if _, err := Create(ctx, i.src, dir, Manual); !errors.As(err, &busy) {
			t.Errorf("a second one at the same time: %v", err)
		}
		return errors.New("the disk is full")
	}
	if _, err := Create(t.Context(), fail, dir, Manual); err == nil {
		t.Error("no error")
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != ".lock" {
		t.Errorf("there is %v, %v", entries, err)
	}
	i.create(Manual)
}

func TestScheduleMakesAndRemoves(t *testing.T) {
	i := install(t)
	synctest.Test(t, func(t *testing.T) {
		s := &Schedule{Source: i.src, Dir: filepath.Join(i.dir, "scheduled"), Every: 24 * time.Hour, Keep: 3, Log: slog.New(slog.DiscardHandler)}
		ctx, stop := context.WithCancel(t.Context())
		go s.Run(ctx)
		count := func() int {
			synctest.Wait()
			sets, _, err := List(s.Dir)
			if err != nil {
				t.Error(err)
			}
			return len(sets)
		}
		time.Sleep(settleTime - time.Second)
		if n := count(); n != 0 {
			t.Errorf("%d backups right after the start", n)
		}
		time.Sleep(2 * time.Second)
		for day, want := range []int{1, 2, 3, 3, 3} {
			if n := count(); n != want {
				t.Errorf("day %d: %d backups, want %d", day, n, want)
			}
			time.Sleep(24*time.Hour + lookTime)
		}
		stop()
		synctest.Wait()
		// A restart does not make another one.
		ctx, stop = context.WithCancel(t.Context())
		before, _, _ := List(s.Dir)
		go s.Run(ctx)
		time.Sleep(time.Hour)
		if after, _, _ := List(s.Dir); after[0].ID != before[0].ID {
			t.Error("a restart makes a backup that is not due")
		}
		stop()
		synctest.Wait()
	})
}

func TestScheduleTriesAgain(t *testing.T) {
	i := install(t)
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		broken.Store(true)
		src := i.src
		src.Copy = func(ctx context.Context, path string) error {
			if broken.Load() {
				return errors.New("the disk is full")
			}
			return i.store.Copy(ctx, path)
		}
		s := &Schedule{Source: src, Dir: filepath.Join(i.dir, "scheduled"), Every: 24 * time.Hour, Keep: 3, Log: slog.New(slog.DiscardHandler)}
		ctx, stop := context.WithCancel(t.Context())
		go s.Run(ctx)
		time.Sleep(time.Hour)
		synctest.Wait()
		if s.Failed() == nil {
			t.Error("no failure is known")
		}
		broken.Store(false)
		time.Sleep(retryTime)
		synctest.Wait()
		if sets, _, _ := List(s.Dir); s.Failed() != nil || len(sets) != 1 {
			t.Errorf("%d backups, %v", len(sets), s.Failed())
		}
		stop()
		synctest.Wait()
	})
}
