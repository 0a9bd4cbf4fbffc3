package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func open(t *testing.T) Dir {
	t.Helper()
	d, err := Open(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func journal(t *testing.T, d Dir) *Journal {
	t.Helper()
	j, err := d.Journal(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func TestIdentity(t *testing.T) {
	d := open(t)
	if _, err := d.Identity(); !errors.Is(err, ErrNotPaired) {
		t.Error(err)
	}
	id := Identity{RelayURL: "wss://relay.example/device", Device: "laptop", Token: "secret-token"}
	if err := d.SetIdentity(id); err != nil {
		t.Fatal(err)
	}
	if got, err := d.Identity(); err != nil || got != id {
		t.Errorf("%+v %v", got, err)
	}
	for path, want := range map[string]os.FileMode{d.Path(): 0o700, d.token(): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v %v", path, info.Mode(), err)
		}
	}
	if err := os.Chmod(d.token(), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Identity(); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Error(err)
	}
	if err := os.WriteFile(d.token(), []byte(`{"token":"secret-token"`), 0o600); err != nil {
		t.Fatal(err)
	}
	os.Chmod(d.token(), 0o600)
	if _, err := d.Identity(); err == nil || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
	if err := d.Forget(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Identity(); !errors.Is(err, ErrNotPaired) {
		t.Error(err)
	}
}

func TestOneProcessADirectory(t *testing.T) {
	d := open(t)
	if pid, running := d.Running(); running {
		t.Error(pid)
	}
	l, err := d.Lock()
	if err != nil {
		t.Fatal(err)
	}
	var runs *ErrRuns
	if _, err := d.Lock(); !errors.As(err, &runs) || runs.PID != os.Getpid() {
		t.Error(err)
	}
	if pid, running := d.Running(); !running || pid != os.Getpid() {
		t.Error(pid, running)
	}
	if sent, err := d.Signal(syscall.Signal(0)); !sent || err != nil {
		t.Error(sent, err)
	}
	l.Release()
	if sent, err := d.Signal(syscall.Signal(0)); sent || err != nil {
		t.Error("a process that has ended was signalled", sent, err)
	}
	again, err := d.Lock()
	if err != nil {
		t.Fatal(err)
	}
	again.Release()
}

func TestJournalOverARestart(t *testing.T) {
	d := open(t)
	j := journal(t, d)
	if err := j.Begin("a", "p"); err != nil {
		t.Fatal(err)
	}
	if err := j.Begin("a", "p"); !errors.Is(err, ErrKnown) {
		t.Error(err)
	}
	if err := j.Begin("b", "p"); err != nil {
		t.Fatal(err)
	}
	if err := j.Started("b", 4711, 99); err != nil {
		t.Fatal(err)
	}
	if _, err := j.End("a", "p", json.RawMessage(`{"n":1}`)); err != nil {
		t.Fatal(err)
	}
	if got, err := j.End("a", "p", json.RawMessage(`{"n":2}`)); err != nil || string(got) != `{"n":1}` {
		t.Errorf("a second result replaced the first: %s %v", got, err)
	}
	j.Close() // as a crash would: nothing is written at the end
	// A line that was cut off, as by a crash in the middle of it.
	f, err := os.OpenFile(d.calls(), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString(`{"ref":"c","pri`)
	f.Close()

	j = journal(t, d)
	if kept := j.Kept(); len(kept) != 1 || kept[0].Ref != "a" || string(kept[0].Result) != `{"n":1}` {
		t.Errorf("%+v", kept)
	}
	if o := j.Open(); len(o) != 1 || o[0].Ref != "b" || o[0].PID != 4711 || o[0].Start != 99 {
		t.Errorf("%+v", o)
	}
	if _, known := j.Find("c"); known {
		t.Error("half a line counts")
	}
	if err := j.Ack("a"); err != nil {
		t.Fatal(err)
	}
	j.Close()
	j = journal(t, d)
	if len(j.Kept()) != 0 {
		t.Error("an acknowledged result is kept")
	}
	if err := j.Begin("a", "p"); !errors.Is(err, ErrKnown) {
		t.Errorf("an acknowledged call could run again: %v", err)
	}
}

func TestJournalIsBounded(t *testing.T) {
	d := open(t)
	j := journal(t, d)
	big := json.RawMessage(`"` + strings.Repeat("x", 100<<10) + `"`)
	for i := range 200 {
		ref := fmt.Sprint(i)
		if err := j.Begin(ref, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := j.End(ref, "", big); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(d.calls())
	if err != nil || info.Size() > 2*maxKept*110<<10+maxJournal {
		t.Errorf("%d bytes, %v", info.Size(), err)
	}
	if kept := j.Kept(); len(kept) != maxKept || kept[len(kept)-1].Ref != "199" {
		t.Errorf("%d kept", len(kept))
	}
	old := &Journal{now: func() time.Time { return time.Now().Add(keepRefs + time.Hour) }, path: j.path, calls: j.calls}
	if err := old.rewrite(); err != nil || len(old.calls) != 0 {
		t.Errorf("%d calls of long ago are kept, %v", len(old.calls), err)
	}
	old.Close()
}
