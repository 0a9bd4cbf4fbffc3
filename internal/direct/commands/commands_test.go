package commands_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/commands"
	"agentrelay/internal/direct/commands/record"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
)

func TestACommandEndsAsWhatItWas(t *testing.T) {
	h := newHost(t)
	out := h.run("r1", "echo out; sleep 0.05; echo err >&2; exit 7")
	if out.State != record.Exited || out.ExitCode == nil || *out.ExitCode != 7 || out.Duplicate || out.Error != nil || out.DetachedProcesses {
		t.Fatalf("got %+v", out.Receipt)
	}
	if out.StartedAt.IsZero() || out.EndedAt.Before(out.StartedAt.Time) || out.StartedAt.Before(out.CreatedAt.Time) {
		t.Fatalf("times: %+v", out.Receipt)
	}
	if len(out.Output.Events) != 2 || out.Output.Events[0].Source != "stdout" || out.Output.Events[1].Source != "stderr" || text(*out.Output) != "out\nerr\n" {
		t.Fatalf("got %+v", out.Output)
	}
	if o := out.Output; o.NextCursor != 8 || o.LostCount != 0 || o.Truncated || !o.OutputAvailable {
		t.Fatalf("got %+v", o)
	}
	h.restart()
	if got := h.read(out.CommandID); text(got.Output) != "out\nerr\n" || *got.ExitCode != 7 {
		t.Fatalf("after a restart: %+v", got)
	}
	killed := h.run("r2", "kill -9 $$")
	if killed.State != record.Exited || killed.Signal != "SIGKILL" || killed.ExitCode != nil {
		t.Fatalf("got %+v", killed.Receipt)
	}
}

func TestRunAnswersWhenTheCommandRuns(t *testing.T) {
	h := newHost(t)
	out := h.run("r", "sleep 30", noWait)
	if out.State != record.Running || out.Output != nil || out.StartedAt.IsZero() {
		t.Fatalf("got %+v", out)
	}
	if got := h.cancel(out.CommandID); !got.CancelRequested || got.State != record.Cancelled || got.Signal != "SIGTERM" {
		t.Fatalf("got %+v", got)
	}
	if got := h.cancel(out.CommandID); got.CancelRequested || got.State != record.Cancelled {
		t.Fatalf("a second cancel: %+v", got)
	}
}

func TestOneKeyIsOneEffect(t *testing.T) {
	h := newHost(t)
	var wg sync.WaitGroup
	outs := make([]commands.RunDirectCommandOut, 100)
	for i := range outs {
		wg.Go(func() { outs[i], _ = h.tryRun("same", "echo x >> ran") })
	}
	wg.Wait()
	fresh := 0
	for _, o := range outs {
		if o.State != record.Exited || o.CommandID != outs[0].CommandID {
			t.Fatalf("got %+v", o)
		}
		if !o.Duplicate {
			fresh++
		}
	}
	if ran, _ := os.ReadFile(filepath.Join(h.project, "ran")); fresh != 1 || string(ran) != "x\n" {
		t.Fatalf("%d fresh answers, ran %q", fresh, ran)
	}
	for name, c := range map[string]func(*commands.RunDirectCommandIn){
		"argv":    func(in *commands.RunDirectCommandIn) { in.Argv = []string{"true"} },
		"cwd":     func(in *commands.RunDirectCommandIn) { in.CWD = new("sub") },
		"timeout": timeout(5),
		"stdin":   openStdin,
		"project": func(in *commands.RunDirectCommandIn) { in.ProjectID = "registered" },
		"command": func(in *commands.RunDirectCommandIn) { in.Argv, in.Command = nil, new("hello") },
	} {
		if _, err := h.tryRun("same", "echo x >> ran", c); err == nil {
			t.Errorf("another %s: no refusal", name)
		} else {
			refused(t, err, fault.KeyConflict)
		}
	}
	// waitMs is no part of what the key stands for, and other owners have other keys.
	if out := h.run("same", "echo x >> ran", noWait); !out.Duplicate {
		t.Fatalf("got %+v", out)
	}
	other, err := h.RunDirectCommand(context.Background(), principal.Owner("local-owner:b"), commands.RunDirectCommandIn{ProjectID: "p", RequestID: "same", Argv: []string{"true"}, WaitMs: new(20000)})
	if err != nil || other.Duplicate || other.CommandID == outs[0].CommandID {
		t.Fatalf("another owner: %+v, %v", other, err)
	}
	_, err = h.ReadDirectCommand(context.Background(), owner, commands.ReadDirectCommandIn{CommandID: &other.CommandID})
	refused(t, err, commands.UnknownCommand)
	_, err = h.CancelDirectCommand(context.Background(), owner, commands.CancelDirectCommandIn{CommandID: other.CommandID})
	refused(t, err, commands.UnknownCommand)
}

func TestRegisteredCommands(t *testing.T) {
	h := newHost(t)
	for i, c := range []struct {
		project string
		argv    []string
		name    *string
		want    fault.Kind
	}{
		{"registered", nil, new("hello"), fault.Kind{}},
		{"registered", []string{"echo", "hello"}, nil, fault.Kind{}},
		{"p", nil, new("hello"), fault.Kind{}},
		{"registered", []string{"echo", "hello", "more"}, nil, commands.CommandNotRegistered},
		{"registered", []string{"echo"}, nil, commands.CommandNotRegistered},
		{"registered", nil, new("other"), commands.CommandNotRegistered},
		{"p", nil, new("other"), commands.CommandNotRegistered},
		{"disabled", []string{"echo", "hello"}, nil, commands.CommandsDisabled},
		{"nowhere", []string{"echo"}, nil, direct.UnknownProject},
	} {
		out, err := h.RunDirectCommand(context.Background(), owner, commands.RunDirectCommandIn{
			ProjectID: c.project, RequestID: fmt.Sprint("r", i), Argv: c.argv, Command: c.name, WaitMs: new(20000),
		})
		if c.want.Code != "" {
			refused(t, err, c.want)
			continue
		}
		if err != nil || text(*out.Output) != "hello\n" || !slices.Equal(out.Argv, []string{"echo", "hello"}) {
			t.Errorf("%d: %+v, %v", i, out, err)
		}
	}
}

func TestMalformedArguments(t *testing.T) {
	h := newHost(t)
	base := func() commands.RunDirectCommandIn {
		return commands.RunDirectCommandIn{ProjectID: "p", RequestID: "r", Argv: []string{"true"}}
	}
	for name, c := range map[string]func(*commands.RunDirectCommandIn){
		"requestId": func(in *commands.RunDirectCommandIn) { in.RequestID = "-r" },
		"argv":      func(in *commands.RunDirectCommandIn) { in.Argv = []string{} },
		"argv and":  func(in *commands.RunDirectCommandIn) { in.Command = new("hello") },
		"argv none": func(in *commands.RunDirectCommandIn) { in.Argv = nil },
		"argv[0]":   func(in *commands.RunDirectCommandIn) { in.Argv = []string{""} },
		"argv[1]":   func(in *commands.RunDirectCommandIn) { in.Argv = []string{"true", "a\x00b"} },
		"argv long": func(in *commands.RunDirectCommandIn) { in.Argv = []string{"true", strings.Repeat("x", 17000)} },
		"argv 65":   func(in *commands.RunDirectCommandIn) { in.Argv = slices.Repeat([]string{"x"}, 65) },
		"timeoutMs": timeout(3_600_001),
		"timeout 0": timeout(0),
		"stdin":     func(in *commands.RunDirectCommandIn) { in.Stdin = new("maybe") },
		"waitMs":    func(in *commands.RunDirectCommandIn) { in.WaitMs = new(20_001) },
		"cwd":       func(in *commands.RunDirectCommandIn) { in.CWD = new("/tmp") },
	} {
		in := base()
		c(&in)
		_, err := h.RunDirectCommand(context.Background(), owner, in)
		refused(t, err, fault.InvalidArguments)
		if arg := strings.Fields(name)[0]; !strings.HasPrefix(fault.From(err).Message, arg) {
			t.Errorf("%s: the message is %q", name, fault.From(err).Message)
		}
	}
	os.Symlink("/", filepath.Join(h.project, "out"))
	for cwd, want := range map[string]fault.Kind{"missing": direct.PathNotFound, "../..": direct.OutsideProject, "out": direct.OutsideProject} {
		in := base()
		in.CWD = &cwd
		_, err := h.RunDirectCommand(context.Background(), owner, in)
		refused(t, err, want)
	}
	in := base()
	in.CWD, in.Argv, in.WaitMs = new("sub"), []string{"pwd"}, new(20000)
	out, err := h.RunDirectCommand(context.Background(), owner, in)
	if err != nil || strings.TrimSpace(text(*out.Output)) != filepath.Join(h.project, "sub") || out.CWD != "sub" {
		t.Fatalf("got %+v, %v", out, err)
	}
}

func TestWhatCannotBeExecuted(t *testing.T) {
	h := newHost(t)
	os.WriteFile(filepath.Join(h.project, "plain"), []byte("x"), 0o600)
	os.WriteFile(filepath.Join(h.project, "script"), []byte("#!/no/such/interpreter\n"), 0o700)
	for i, c := range []struct{ argv0, code string }{
		{"no-such-program", "command_not_found"},
		{"./none", "command_not_found"},
		{"./plain", "command_not_executable"},
		{"./script", "exec_failed"},
	} {
		out, err := h.RunDirectCommand(context.Background(), owner, commands.RunDirectCommandIn{ProjectID: "p", RequestID: fmt.Sprint("r", i), Argv: []string{c.argv0}})
		if err != nil || out.State != record.Failed || out.Error == nil || out.Error.Code != c.code || out.Error.Hint == "" || !out.StartedAt.IsZero() {
			t.Errorf("%s: %+v %+v, %v", c.argv0, out.Receipt, out.Error, err)
		}
		if i == 0 && !strings.Contains(out.Error.Message, os.Getenv("PATH")) {
			t.Errorf("the PATH is not named: %q", out.Error.Message)
		}
	}
}

func TestDeadlineAndCancelEndWholeTrees(t *testing.T) {
	h := newHost(t)
	out := h.run("deadline", "sleep 60", timeout(150))
	if out.State != record.TimedOut || out.Signal != "SIGTERM" {
		t.Fatalf("got %+v", out.Receipt)
	}
	// A tree in which nobody minds TERM.
	stubborn := `trap "" TERM; sh -c 'trap "" TERM; while :; do sleep 0.05; done' & while :; do sleep 0.05; done`
	out = h.run("tree", stubborn, noWait)
	got := h.cancel(out.CommandID)
	if !got.CancelRequested {
		t.Fatalf("got %+v", got)
	}
	end := h.ended(out.CommandID)
	if end.State != record.Cancelled || end.Signal != "SIGKILL" || end.DetachedProcesses {
		t.Fatalf("got %+v", end.Receipt)
	}
	out = h.run("handled", `trap "exit 3" TERM; while :; do sleep 0.02; done`, noWait)
	h.cancel(out.CommandID)
	if end = h.ended(out.CommandID); end.State != record.Cancelled || end.ExitCode == nil || *end.ExitCode != 3 {
		t.Fatalf("got %+v", end.Receipt)
	}
}

func TestBackgroundProcessesDoNotHoldTheReceipt(t *testing.T) {
	h := newHost(t)
	begun := time.Now()
	out := h.run("group", "sleep 60 & echo hi")
	if out.State != record.Exited || text(*out.Output) != "hi\n" || out.DetachedProcesses || time.Since(begun) > 5*time.Second {
		t.Fatalf("got %+v %v", out, time.Since(begun))
	}
	h.noProcessLeft()

	begun = time.Now()
	out = h.run("detached", "setsid sleep 7.25 & sleep 0.1; echo hi")
	if out.State != record.Exited || *out.ExitCode != 0 || text(*out.Output) != "hi\n" || !out.DetachedProcesses || time.Since(begun) > 5*time.Second {
		t.Fatalf("got %+v %v", out, time.Since(begun))
	}
	out = h.run("closed", "setsid sleep 7.25 >/dev/null 2>&1 </dev/null & sleep 0.1; echo hi")
	if out.State != record.Exited || !out.DetachedProcesses {
		t.Fatalf("a quiet detached process is not reported: %+v", out)
	}
	out = h.run("cancelled", `trap "" TERM; (setsid sleep 7.25 &) ; echo up; sleep 60`, noWait)
	h.cancel(out.CommandID)
	if end := h.ended(out.CommandID); end.State != record.Cancelled || !end.DetachedProcesses {
		t.Fatalf("got %+v", end)
	}
	for _, pid := range h.processes() {
		terminate(pid)
	}
}

func TestReadWaitsForNews(t *testing.T) {
	h := newHost(t)
	out := h.run("r", "read x; echo $x; read y", noWait, openStdin)
	ctx, stop := context.WithCancel(context.Background())
	failed := make(chan error, 1)
	go func() {
		_, err := h.ReadDirectCommand(ctx, owner, commands.ReadDirectCommandIn{CommandID: &out.CommandID, WaitMs: new(20000)})
		failed <- err
	}()
	time.Sleep(50 * time.Millisecond)
	stop()
	if err := <-failed; err != context.Canceled {
		t.Fatalf("a cancelled wait: %v", err)
	}
	begun := time.Now()
	if got, err := h.ReadDirectCommand(context.Background(), owner, commands.ReadDirectCommandIn{CommandID: &out.CommandID, WaitMs: new(100)}); err != nil || len(got.Events) != 0 || time.Since(begun) < 100*time.Millisecond {
		t.Fatalf("got %+v, %v after %v", got, err, time.Since(begun))
	}
	time.AfterFunc(50*time.Millisecond, func() { h.input(out.CommandID, "i", "news\n", false) })
	begun = time.Now()
	got, err := h.ReadDirectCommand(context.Background(), owner, commands.ReadDirectCommandIn{CommandID: &out.CommandID, WaitMs: new(20000)})
	if err != nil || text(got.Output) != "news\n" || got.State != record.Running || time.Since(begun) > 10*time.Second {
		t.Fatalf("got %+v, %v", got, err)
	}
	time.AfterFunc(50*time.Millisecond, func() { h.input(out.CommandID, "j", "", true) })
	got, err = h.ReadDirectCommand(context.Background(), owner, commands.ReadDirectCommandIn{CommandID: &out.CommandID, Cursor: &got.NextCursor, WaitMs: new(20000)})
	if err != nil || got.State != record.Exited {
		t.Fatalf("the end is no news: %+v, %v", got, err)
	}
}

func TestToAskIsToSettle(t *testing.T) {
	h := newHost(t)
	got, err := h.ReadDirectCommand(context.Background(), owner, commands.ReadDirectCommandIn{RequestID: new("late")})
	if err != nil || got.State != record.Failed || got.Error.Code != "not_started" || got.OutputAvailable || got.Argv == nil {
		t.Fatalf("got %+v, %v", got, err)
	}
	out := h.run("late", "echo x >> ran")
	if !out.Duplicate || out.State != record.Failed || out.Error.Code != "not_started" {
		t.Fatalf("a start that comes late: %+v", out)
	}
	if _, err := os.Stat(filepath.Join(h.project, "ran")); err == nil {
		t.Fatal("a command ran after it was said that it never will")
	}
	_, err = h.ReadDirectCommand(context.Background(), owner, commands.ReadDirectCommandIn{CommandID: new("nope")})
	refused(t, err, commands.UnknownCommand)
	_, err = h.ReadDirectCommand(context.Background(), owner, commands.ReadDirectCommandIn{})
	refused(t, err, fault.InvalidArguments)
	known := h.run("known", "echo known")
	got, err = h.ReadDirectCommand(context.Background(), owner, commands.ReadDirectCommandIn{RequestID: new("known")})
	if err != nil || got.CommandID != known.CommandID || text(got.Output) != "known\n" {
		t.Fatalf("got %+v, %v", got, err)
	}
}

// TestACallersDirectoryDoesNotChooseTheOwnersProgram: a path in a registered
// command is the owner's, so it counts from the project wherever it runs.
func TestACallersDirectoryDoesNotChooseTheOwnersProgram(t *testing.T) {
	h := newHost(t, func(h *host) {
		script := []direct.Command{{Name: "script", Argv: []string{"./tools/script", "x"}}}
		h.options.Host = direct.New(direct.Policy{
			HostID: "local", AllowedRoots: []string{filepath.Dir(h.project)}, Protected: []string{h.state},
			Projects: []direct.Project{
				{ID: "full", Path: h.project, CommandMode: direct.Full, Commands: script},
				{ID: "registered", Path: h.project, CommandMode: direct.Registered, Commands: script},
			},
		})
	})
	for dir, says := range map[string]string{"": "the owner's", "sub": "the caller's"} {
		tools := filepath.Join(h.project, dir, "tools")
		if err := os.MkdirAll(tools, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(tools, "script"), []byte("#!/bin/sh\necho \"$1 $(basename $PWD) "+says+"\"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	argv := []string{"./tools/script", "x"}
	for i, c := range []struct {
		project string
		argv    []string
		name    *string
		cwd     *string
		want    string
	}{
		{"registered", argv, nil, nil, "x project the owner's\n"},
		{"registered", argv, nil, new("sub"), "x sub the owner's\n"},
		{"registered", nil, new("script"), new("sub"), "x sub the owner's\n"},
		{"full", nil, new("script"), new("sub"), "x sub the owner's\n"},
		{"full", argv, nil, new("sub"), "x sub the caller's\n"}, // who may run anything names it from where it runs
	} {
		out := h.run(fmt.Sprint("r", i), "", func(in *commands.RunDirectCommandIn) {
			in.ProjectID, in.Argv, in.Command, in.CWD = c.project, c.argv, c.name, c.cwd
		})
		if out.State != record.Exited || text(*out.Output) != c.want {
			t.Errorf("%+v: %s with %q, want %q", c, out.State, text(*out.Output), c.want)
		}
		if !slices.Equal(out.Argv, argv) {
			t.Errorf("%+v: the receipt shows %q", c, out.Argv)
		}
	}
}

// TestRequestsThatNeverArrivedAreCounted: each asked about is kept for ever.
func TestRequestsThatNeverArrivedAreCounted(t *testing.T) {
	var ahead atomic.Int64
	h := newHost(t, func(h *host) {
		h.options.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	ask := func(who principal.Principal, id string) error {
		_, err := h.ReadDirectCommand(context.Background(), who, commands.ReadDirectCommandIn{RequestID: &id})
		return err
	}
	h.run("real", "true")
	for i := range commands.MaxUnknownPerHour {
		if err := ask(owner, fmt.Sprint("r", i)); err != nil {
			t.Fatal(err)
		}
	}
	err := ask(owner, "one-more")
	refused(t, err, commands.TooManyUnknown)
	if e := fault.From(err); !e.Retryable || !strings.Contains(e.Message, "from 20") {
		t.Errorf("the refusal does not say until when: %+v", e)
	}
	// What is known is answered, a run is not kept from running, others may ask.
	for _, id := range []string{"real", "r0", fmt.Sprint("r", commands.MaxUnknownPerHour-1)} {
		if err := ask(owner, id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	if err := ask(principal.Owner("local-owner:b"), "r0"); err != nil {
		t.Error(err)
	}
	if out := h.run("one-more", "true"); out.State != record.Exited || out.Duplicate {
		t.Errorf("what could not be asked about does not run: %+v", out.Receipt)
	}
	ahead.Store(int64(time.Hour))
	if err := ask(owner, "one-more-yet"); err != nil {
		t.Error(err)
	}
}

// TestDirectoryThatIsGoneWhenTheCommandStarts: it was there when it was checked.
func TestDirectoryThatIsGoneWhenTheCommandStarts(t *testing.T) {
	h := newHost(t, func(h *host) {
		h.options.Supervisor = []string{"/bin/sh", "-c", `rmdir "$0" && exec "$@"`, filepath.Join(h.project, "sub"), self(), "supervise"}
	})
	out := h.run("r", "echo ran", func(in *commands.RunDirectCommandIn) { in.CWD = new("sub") })
	if out.State != record.Failed || out.Error == nil || out.Error.Code != commands.NoDirectory.Code || out.Error.Hint == "" {
		t.Fatalf("got %+v, %+v", out.Receipt, out.Error)
	}
}

func TestAServiceThatIsClosedRefuses(t *testing.T) {
	h := newHost(t)
	h.Close()
	_, err := h.tryRun("r", "true")
	refused(t, err, commands.CommandsClosed)
	h.open()
	if out := h.run("r", "true"); out.Duplicate || out.State != record.Exited {
		t.Fatalf("the repeat: %+v", out.Receipt)
	}
}
