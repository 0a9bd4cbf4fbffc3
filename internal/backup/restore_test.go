package backup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentrelay/internal/audit"
	"agentrelay/internal/store"
)

func (i *installation) restore(set Set) Restored {
	i.t.Helper()
	out, err := Restore(i.t.Context(), set.Dir, i.target())
	if err != nil {
		i.t.Fatal(err)
	}
	return out
}

func TestRestore(t *testing.T) {
	i := install(t)
	if err := note(t.Context(), i.store, "a", 1); err != nil {
		t.Fatal(err)
	}
	set := i.create(Manual)
	if err := note(t.Context(), i.store, "a", 2); err != nil {
		t.Fatal(err)
	}
	i.write(i.src.OwnerFile, `{"ownerTokenHash": "newer"}`)
	i.write(i.src.ConfigFile, `{"port": 7001}`)
	var locked *store.LockedError
	if _, err := Restore(t.Context(), set.Dir, i.target()); !errors.As(err, &locked) {
		t.Fatalf("restored under a running gateway: %v", err)
	}
	i.store.Close()
	out := i.restore(set)
	if !strings.HasPrefix(out.Kept, i.src.StateDir+".before-restore-") || out.ConfigWritten || out.KeptOwnerFile != "" {
		t.Errorf("it says %+v", out)
	}
	if got := read(t, i.src.OwnerFile); got != `{"ownerTokenHash": "hash"}` {
		t.Errorf("the owner's file has %s", got)
	}
	if got := read(t, i.src.ConfigFile); got != `{"port": 7001}` {
		t.Errorf("the config has %s", got)
	}
	if read(t, out.Kept, "owner.json") != `{"ownerTokenHash": "newer"}` {
		t.Error("the owner's file that was there is gone")
	}
	if read(t, i.src.StateDir, "gateway.db") != read(t, set.Dir, "gateway.db") {
		t.Error("the database is not, byte for byte, the one of the backup")
	}
	if n := noted(t, filepath.Join(i.src.StateDir, "gateway.db"))["a"]; n != 1 {
		t.Errorf("%d writes, want 1", n)
	}
	if _, err := Verify(t.Context(), filepath.Join(i.src.StateDir, "backups", set.ID)); err != nil {
		t.Errorf("the backups are gone with the directory: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(i.dir, ".state*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}

	// The kept directory is one that works.
	s, err := store.Open(t.Context(), store.Options{Dir: out.Kept})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if n := noted(t, filepath.Join(out.Kept, "gateway.db"))["a"]; n != 2 {
		t.Errorf("the kept database has %d writes, want 2", n)
	}

	// The first start settles, once.
	if s, err = store.Open(t.Context(), store.Options{Dir: i.src.StateDir}); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	steps := 0
	for range 2 {
		if err := Settle(t.Context(), s, func(kept string) []func(*store.Tx) error {
			if kept != out.Kept {
				t.Errorf("kept is %s, want %s", kept, out.Kept)
			}
			return []func(*store.Tx) error{func(*store.Tx) error { steps++; return nil }}
		}); err != nil {
			t.Fatal(err)
		}
	}
	var last []audit.Entry
	err = store.Read(t.Context(), s, func(r *store.Reader) error {
		last, err = audit.Last(r, 5)
		return err
	})
	if err != nil || steps != 1 || last[0].Action != "backup.restore" || last[0].Subject != set.ID || last[1].Action == "backup.restore" {
		t.Errorf("%d steps, on record is %+v, %v", steps, last, err)
	}
}

func TestASettlementThatFailsIsDoneAgain(t *testing.T) {
	i := install(t)
	set := i.create(Manual)
	i.store.Close()
	i.restore(set)
	s, err := store.Open(t.Context(), store.Options{Dir: i.src.StateDir})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	bad := errors.New("the disk is full")
	with := func(step func(*store.Tx) error) func(string) []func(*store.Tx) error {
		return func(string) []func(*store.Tx) error { return []func(*store.Tx) error{step} }
	}
	if err := Settle(t.Context(), s, with(func(*store.Tx) error { return bad })); !errors.Is(err, bad) {
		t.Errorf("got %v", err)
	}
	done := false
	if err := Settle(t.Context(), s, with(func(*store.Tx) error { done = true; return nil })); err != nil || !done {
		t.Errorf("done %v, %v", done, err)
	}
}

// What this machine did after the backup is known after the restore: else a repeat
// of it would run a second time.
func TestWhatRanStaysKnown(t *testing.T) {
	i := install(t)
	set := i.create(Manual)
	later := "fedcba987654321001234567"
	i.write(filepath.Join(i.src.StateDir, "direct/commands", later, "spec.json"), "later")
	i.write(filepath.Join(i.src.StateDir, "direct/commands", commandID, "status.json"), "changed")
	days := filepath.Join(i.src.StateDir, "direct/commands/days/2026-11-30")
	if err := os.Rename(filepath.Join(days, "1-"+commandID+"-aa"), filepath.Join(days, "1-"+commandID+"-aa-swept")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(i.src.StateDir, "direct/transfers", placementID)); err != nil {
		t.Fatal(err)
	}
	i.store.Close()
	i.restore(set)
	for name, want := range map[string]string{
		"direct/commands/" + later + "/spec.json":                      "later",
		"direct/commands/" + commandID + "/status.json":                "changed",
		"direct/commands/" + commandID + "/output.log":                 "printed",
		"direct/transfers/" + placementID:                              `{"step":"placed"}`,
		"transfer-spool/00112233445566778899aabbccddeeff":              "bytes of a project",
		"hosts/wsl/host.json":                                          `{"id":"wsl"}`,
		"direct/commands/days/2026-11-30/1-" + commandID + "-aa-swept": "",
	} {
		if got := read(t, i.src.StateDir, name); got != want {
			t.Errorf("%s has %q, want %q", name, got, want)
		}
	}
	if exists(filepath.Join(i.src.StateDir, "direct/commands/days/2026-11-30/1-"+commandID+"-aa")) {
		t.Error("a command is listed twice")
	}
}

func TestRestoreOnAnotherMachine(t *testing.T) {
	i := install(t)
	i.src.OwnerFile = filepath.Join(i.dir, "secrets", "owner.json")
	i.write(i.src.OwnerFile, "outside")
	set := i.create(Manual)
	to := Target{StateDir: filepath.Join(i.dir, "a/b/state"), OwnerFile: filepath.Join(i.dir, "a/secrets/owner.json"), ConfigFile: filepath.Join(i.dir, "a/config.json")}
	out, err := Restore(t.Context(), set.Dir, to)
	if err != nil || !out.ConfigWritten || out.Kept != "" {
		t.Fatalf("%+v, %v", out, err)
	}
	if read(t, to.OwnerFile) != "outside" || read(t, to.ConfigFile) != `{"port": 7000}` {
		t.Error("the owner's file or the config differ")
	}
	// Again, over another password.
	i.write(to.OwnerFile, "another")
	if out, err = Restore(t.Context(), set.Dir, to); err != nil || out.ConfigWritten || read(t, out.KeptOwnerFile) != "another" || read(t, to.OwnerFile) != "outside" {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestRestoreOfANewerGatewayIsRefused(t *testing.T) {
	i := install(t)
	err := store.Exec(t.Context(), i.store, func(tx *store.Tx) error {
		_, err := tx.Exec(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, 1)`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	set := i.create(Manual)
	i.store.Close()
	before, _ := os.ReadDir(i.dir)
	var newer *store.SchemaError
	if _, err := Restore(t.Context(), set.Dir, i.target()); !errors.As(err, &newer) || newer.Database != 9999 {
		t.Errorf("got %v", err)
	}
	if after, _ := os.ReadDir(i.dir); len(after) != len(before) {
		t.Errorf("left behind: %v", after)
	}
}

func TestRestoreThatIsBrokenOffChangesNothing(t *testing.T) {
	i := install(t)
	set := i.create(Manual)
	i.store.Close()
	want := read(t, i.src.StateDir, "gateway.db")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Restore(ctx, set.Dir, i.target()); err == nil {
		t.Error("no error")
	}
	if read(t, i.src.StateDir, "gateway.db") != want {
		t.Error("the database was changed")
	}
	if left, _ := os.ReadDir(i.dir); len(left) != 2 {
		t.Errorf("left behind: %v", left)
	}
}
