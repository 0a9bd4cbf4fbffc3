package server

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/commands"
	"agentrelay/internal/direct/commands/record"
	"agentrelay/internal/direct/files"
	"agentrelay/internal/directtools"
	"agentrelay/internal/fault"
	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/worker/wire"
	"agentrelay/internal/principal"
	"agentrelay/internal/tool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func sumOf(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:])
}

// bench is a worker and its project.
type bench struct {
	*worker
	t       *testing.T
	project string
	state   string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	dir := t.TempDir()
	b := &bench{t: t, project: filepath.Join(dir, "project"), state: filepath.Join(dir, "state")}
	if err := os.Mkdir(b.project, 0o700); err != nil {
		t.Fatal(err)
	}
	b.open()
	t.Cleanup(func() { b.close() })
	return b
}

func settingsFor(project string) wire.Settings {
	return wire.Settings{Policy: direct.Policy{
		HostID: "far", AllowedRoots: []string{filepath.Dir(project)},
		Projects: []direct.Project{{ID: "p", Path: project, Read: true, Write: true, CommandMode: direct.Full}},
	}, Commands: wire.Commands{Path: "/usr/bin:/bin"}}
}

func (b *bench) open() {
	b.t.Helper()
	w, err := start(b.t.Context(), Options{In: strings.NewReader(""), Out: io.Discard, Supervisor: []string{"/bin/false"}}.withDefaults(), settingsFor(b.project), b.state, false)
	if err != nil {
		b.t.Fatal(err)
	}
	b.worker = w
}

// reopen is a worker that ended and the next one.
func (b *bench) reopen() {
	b.t.Helper()
	b.close()
	b.open()
}

func (b *bench) put(name, content string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.project, name), []byte(content), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) get(name string) string {
	raw, _ := os.ReadFile(filepath.Join(b.project, name))
	return string(raw)
}

// ask makes a call as a gateway does.
func (b *bench) ask(name, operation string, settle bool, in any) (json.RawMessage, error) {
	b.t.Helper()
	calls, changes := b.calls(), b.changes()
	for _, t := range directtools.All() {
		if t.Name != name {
			continue
		}
		c := &changeable{Tool: t, call: calls[name], change: changes[name], changes: true}
		raw, err := c.Check(tool.Encode(in))
		if err != nil {
			b.t.Fatal(err)
		}
		from := caller{who: principal.Owner(principal.SharedOwner), operation: operation, settle: settle}
		var out any
		if settle {
			out, err = b.settle(b.t.Context(), c, from, raw)
		} else {
			out, err = b.do(b.t.Context(), c, from, raw)
		}
		return tool.Encode(out), err
	}
	b.t.Fatal(name)
	return nil, nil
}

func id(n int) string { return fmt.Sprintf("%024x", n) }

// What never arrived is answered as not made, and refused when it arrives.
func TestSettledBeforeItArrived(t *testing.T) {
	b := newBench(t)
	b.put("e", "one")
	write := files.WriteDirectFileIn{ProjectID: "p", Path: "w", Content: "x"}
	edit := files.EditDirectFileIn{ProjectID: "p", Path: "e", ExpectedSHA256: sumOf("one"), OldText: "one", NewText: "two"}
	for i, c := range []struct {
		name string
		in   any
	}{{"write_direct_file", write}, {"edit_direct_file", edit}} {
		for range 2 {
			if _, err := b.ask(c.name, id(i), true, c.in); !errors.Is(err, wire.Withdrawn) {
				t.Fatal(err)
			}
		}
		b.reopen()
		if _, err := b.ask(c.name, id(i), false, c.in); !errors.Is(err, wire.Withdrawn) {
			t.Fatal(err)
		}
	}
	if b.get("w") != "" || b.get("e") != "one" {
		t.Error("a change was made that had been answered as not made")
	}
}

// What was made, or refused, is answered as it was, also by the next worker.
func TestSettledAfterItWasMade(t *testing.T) {
	b := newBench(t)
	b.put("e", "one")
	in := files.EditDirectFileIn{ProjectID: "p", Path: "e", ExpectedSHA256: sumOf("one"), OldText: "one", NewText: "two"}
	first, err := b.ask("edit_direct_file", id(1), false, in)
	if err != nil {
		t.Fatal(err)
	}
	_, refused := b.ask("write_direct_file", id(2), false, files.WriteDirectFileIn{ProjectID: "p", Path: "e", Content: "x"})
	if !errors.Is(refused, files.FileExists) {
		t.Fatal(refused)
	}
	b.put("e", "three") // later than both
	b.reopen()
	if got, err := b.ask("edit_direct_file", id(1), true, in); err != nil || string(got) != string(first) {
		t.Errorf("%s, %v", got, err)
	}
	_, err = b.ask("write_direct_file", id(2), true, files.WriteDirectFileIn{ProjectID: "p", Path: "e", Content: "x"})
	var was, is *fault.Error
	if !errors.As(refused, &was) || !errors.As(err, &is) || was.Kind != is.Kind || was.Message != is.Message {
		t.Errorf("%v became %v", refused, err)
	}
}

// A worker that was killed within a change has only begun on record; the file
// tells the rest.
func TestSettledFromTheFile(t *testing.T) {
	write := files.WriteDirectFileIn{ProjectID: "p", Path: "f", Content: "new", ExpectedSHA256: new(sumOf("old"))}
	create := files.WriteDirectFileIn{ProjectID: "p", Path: "f", Content: "new"}
	deep := files.WriteDirectFileIn{ProjectID: "p", Path: "a/b/f", Content: "new", CreateParents: true}
	edit := files.EditDirectFileIn{ProjectID: "p", Path: "f", ExpectedSHA256: sumOf("old"), OldText: "old", NewText: "new"}
	for name, c := range map[string]struct {
		tool  string
		in    any
		there string // the file now; "" for none
		made  bool   // the change was made before the worker was killed
		want  string // "made", "not made" or "unknown"
	}{
		"write made":        {"write_direct_file", write, "new", false, "made"},
		"write not made":    {"write_direct_file", write, "old", false, "not made"},
		"write overwritten": {"write_direct_file", write, "other", false, "unknown"},
		"create made":       {"write_direct_file", create, "new", false, "made"},
		"create not made":   {"write_direct_file", create, "", false, "not made"},
		"parents not made":  {"write_direct_file", deep, "", false, "not made"},
		"edit made":         {"edit_direct_file", edit, "old", true, "made"},
		"edit not made":     {"edit_direct_file", edit, "old", false, "not made"},
		"edit overwritten":  {"edit_direct_file", edit, "other", false, "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			if c.there != "" {
				b.put("f", c.there)
			}
			if c.made {
				if _, err := b.Files.EditDirectFile(t.Context(), edit); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := b.ops.begin(id(1), operation{}, true); err != nil {
				t.Fatal(err)
			}
			b.reopen()
			for range 2 { // to ask is to settle
				raw, err := b.ask(c.tool, id(1), true, c.in)
				got := "unknown"
				var out struct{ Duplicate, Created bool }
				switch {
				case err == nil && json.Unmarshal(raw, &out) == nil && !out.Duplicate && out.Created == (name == "create made"):
					got = "made"
				case errors.Is(err, wire.Withdrawn):
					got = "not made"
				case !errors.Is(err, hosts.OutcomeUnknown):
					t.Fatal(err)
				}
				if got != c.want {
					t.Errorf("%s, want %s: %s, %v", got, c.want, raw, err)
				}
			}
		})
	}
}

// A run that never arrived has a tombstone, and one that did is no duplicate of
// itself.
func TestSettledRun(t *testing.T) {
	b := newBench(t)
	in := commands.RunDirectCommandIn{ProjectID: "p", RequestID: "r", Argv: []string{"true"}}
	var out commands.RunDirectCommandOut
	decode := func(raw json.RawMessage, err error) {
		t.Helper()
		out = commands.RunDirectCommandOut{}
		if err != nil || json.Unmarshal(raw, &out) != nil {
			t.Fatal(err)
		}
	}
	decode(b.ask("run_direct_command", id(1), true, in))
	if out.State != record.Failed || out.Error.Code != record.CodeNotStarted || out.Duplicate {
		t.Fatalf("%+v", out)
	}
	decode(b.ask("run_direct_command", id(1), false, in)) // late
	if out.Error.Code != record.CodeNotStarted || !out.Duplicate {
		t.Fatalf("%+v", out)
	}
	in.RequestID = "s"
	decode(b.ask("run_direct_command", id(2), false, in))
	b.reopen()
	decode(b.ask("run_direct_command", id(2), true, in))
	if out.Duplicate || out.ProjectID != "p" { // a tombstone has no project
		t.Fatalf("%+v", out)
	}
	// A repeat that was lost is one.
	decode(b.ask("run_direct_command", id(3), true, in))
	if !out.Duplicate {
		t.Fatalf("%+v", out)
	}
	// A refusal leaves no record of the command, and is answered as it was.
	in = commands.RunDirectCommandIn{ProjectID: "q", RequestID: "t", Argv: []string{"true"}}
	if _, err := b.ask("run_direct_command", id(4), false, in); !errors.Is(err, direct.UnknownProject) {
		t.Fatal(err)
	}
	if _, err := b.ask("run_direct_command", id(4), true, in); !errors.Is(err, direct.UnknownProject) {
		t.Fatal(err)
	}
}

// Records that a crash has torn say what they said before.
func TestTornRecords(t *testing.T) {
	for torn, want := range map[string]state{
		"": unknown, `{"state":"be`: unknown, "{\"state\":\"begun\"}\n": begun,
		"{\"state\":\"begun\"}\n{\"state\":\"done\",\"resu": begun, "{\"state\":\"begun\"}\n{\"state\":\"done\"}\n": done,
	} {
		o, err := newOperations(t.TempDir(), time.Now)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(o.path(id(1)), []byte(torn), 0o600); err != nil {
			t.Fatal(err)
		}
		if op, err := o.read(id(1)); err != nil || op.State != want {
			t.Errorf("%q: %q, %v", torn, op.State, err)
		}
		if err := o.add(id(1), operation{State: withdrawn}, true); err != nil {
			t.Fatal(err)
		}
		if op, err := o.read(id(1)); err != nil || op.State != withdrawn {
			t.Errorf("%q: %q, %v", torn, op.State, err)
		}
	}
}

func TestOldRecordsAreRemoved(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	o, err := newOperations(dir, func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.begin(id(1), operation{}, false); err != nil {
		t.Fatal(err)
	}
	now = now.Add(operationAge + time.Hour)
	if _, err := newOperations(dir, func() time.Time { return now }); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(o.path(id(1))); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// greeted is a worker that was greeted.
type greeted struct {
	reply wire.Reply
	in    *io.PipeWriter
	done  chan error
}

func greet(t *testing.T, change func(*wire.Hello), o Options) greeted {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "project"), 0o700); err != nil {
		t.Fatal(err)
	}
	h := wire.Hello{Protocol: wire.Protocol, Nonce: "n", StateDir: filepath.Join(dir, "state"), Settings: settingsFor(filepath.Join(dir, "project"))}
	change(&h)
	theirs, in := io.Pipe()
	out, ours := io.Pipe()
	o.In, o.Out = theirs, ours
	g := greeted{in: in, done: make(chan error, 1)}
	go func() {
		err := Serve(context.Background(), o)
		ours.Close()
		g.done <- err
	}()
	if err := wire.WriteHello(in, h); err != nil {
		t.Fatal(err)
	}
	if err := wire.ReadAnswer(bufio.NewReader(out), "n", &g.reply); err != nil {
		t.Fatal(err)
	}
	return g
}

// Versions are counted from both sides.
func TestVersions(t *testing.T) {
	for _, c := range []struct {
		gateway, worker, spoken int
		code                    string
	}{
		{1, 1, 1, ""}, {1, 2, 1, ""}, {2, 1, 1, ""}, {3, 2, 2, ""}, {1, 3, 1, wire.CodeGatewayOutdated},
	} {
		g := greet(t, func(h *wire.Hello) { h.Protocol = c.gateway }, Options{protocol: c.worker})
		code := ""
		if g.reply.Error != nil {
			code = g.reply.Error.Code
		}
		if g.reply.Protocol != c.spoken || code != c.code || g.reply.Version == "" {
			t.Errorf("%+v: %+v", c, g.reply)
		}
		g.in.Close()
		if err := <-g.done; (err != nil) != (c.code != "") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A newcomer has a worker make way, which says so.
func TestMakesWay(t *testing.T) {
	state := filepath.Join(t.TempDir(), strings.Repeat("long", 30)) // too long for a socket
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	set := func(h *wire.Hello) { h.StateDir = state }
	old := greet(t, set, Options{})
	if old.reply.Error != nil || len(old.reply.Bulk) > maxSocket {
		t.Fatalf("%+v", old.reply)
	}
	next := greet(t, set, Options{})
	if next.reply.Error != nil {
		t.Fatalf("%+v", next.reply)
	}
	if err := <-old.done; !errors.Is(err, ErrReplaced) {
		t.Error(err)
	}
	// One that runs alone does not.
	err := ServeAlone(t.Context(), Options{In: strings.NewReader(""), Out: io.Discard}, settingsFor(t.TempDir()), state)
	if !errors.Is(err, Busy) {
		t.Error(err)
	}
	next.in.Close()
	if err := <-next.done; err != nil {
		t.Error(err)
	}
	old.in.Close()
}
