package commands_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/commands"
	"agentrelay/internal/direct/commands/process"
	"agentrelay/internal/direct/commands/record"
	"agentrelay/internal/direct/commands/supervisor"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
)

// TestMain makes the test binary be the programs that tests start: the
// supervisor, and a gateway that can be killed.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "supervise":
			os.Exit(supervisor.Supervise(context.Background(), os.Args[2:], supervisor.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
		case "run-commands":
			os.Exit(runCommands(os.Args[2:]))
		}
	}
	goleak.VerifyTestMain(m)
}

var owner = principal.Owner("local-owner:shared")

// host is a service over a project of its own.
type host struct {
	t       *testing.T
	project string
	state   string
	options commands.Options
	*commands.Service
}

type change func(*host)

func newHost(t *testing.T, changes ...change) *host {
	t.Helper()
	dir, err := os.MkdirTemp("", "cmd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, project: filepath.Join(dir, "project"), state: filepath.Join(dir, "state")}
	if err := os.MkdirAll(filepath.Join(h.project, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	h.options = options(dir, h.project, h.state)
	for _, c := range changes {
		c(h)
	}
	h.open()
	t.Cleanup(func() { h.Close() })
	t.Cleanup(h.noProcessLeft)
	return h
}

func options(root, project, state string) commands.Options {
	return commands.Options{
		Host: direct.New(direct.Policy{
			HostID: "local", AllowedRoots: []string{root}, Protected: []string{state},
			Projects: []direct.Project{
				{ID: "p", Path: project, CommandMode: direct.Full, Commands: []direct.Command{{Name: "hello", Argv: []string{"echo", "hello"}}}},
				{ID: "registered", Path: project, CommandMode: direct.Registered, Commands: []direct.Command{{Name: "hello", Argv: []string{"echo", "hello"}}}},
				{ID: "disabled", Path: project, CommandMode: direct.Disabled},
			},
		}),
		StateDir: state, Supervisor: []string{self(), "supervise"}, Path: os.Getenv("PATH"),
		Limits: commands.Limits{Grace: 300 * time.Millisecond},
	}
}

func self() string {
	path, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return path
}

// open starts a service over the state as it is.
func (h *host) open() {
	h.t.Helper()
	var err error
	if h.Service, err = commands.New(h.options); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) restart() {
	h.t.Helper()
	h.Close()
	h.open()
}

// run runs a shell script and waits at most 20 s for its end.
func (h *host) run(requestID, script string, changes ...func(*commands.RunDirectCommandIn)) commands.RunDirectCommandOut {
	h.t.Helper()
	out, err := h.tryRun(requestID, script, changes...)
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}

func (h *host) tryRun(requestID, script string, changes ...func(*commands.RunDirectCommandIn)) (commands.RunDirectCommandOut, error) {
	in := commands.RunDirectCommandIn{ProjectID: "p", RequestID: requestID, Argv: []string{"sh", "-c", script}, WaitMs: new(20_000)}
	for _, c := range changes {
		c(&in)
	}
	return h.RunDirectCommand(context.Background(), owner, in)
}

func noWait(in *commands.RunDirectCommandIn)    { in.WaitMs = nil }
func openStdin(in *commands.RunDirectCommandIn) { in.Stdin = new("open") }

func timeout(ms int) func(*commands.RunDirectCommandIn) {
	return func(in *commands.RunDirectCommandIn) { in.TimeoutMs = &ms }
}

// ended reads a command until it has ended.
func (h *host) ended(commandID string) commands.ReadDirectCommandOut {
	h.t.Helper()
	for range 20 {
		out, err := h.ReadDirectCommand(context.Background(), owner, commands.ReadDirectCommandIn{CommandID: &commandID, Cursor: new(int64(1 << 50)), WaitMs: new(5000)})
		if err != nil {
			h.t.Fatal(err)
		}
		if out.State.Final() {
			return h.read(commandID)
		}
	}
	h.t.Fatal("the command does not end")
	panic("unreachable")
}

func (h *host) read(commandID string) commands.ReadDirectCommandOut {
	h.t.Helper()
	out, err := h.ReadDirectCommand(context.Background(), owner, commands.ReadDirectCommandIn{CommandID: &commandID, Limit: new(1000)})
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}

func text(o commands.Output) string {
	var b strings.Builder
	for _, e := range o.Events {
		b.WriteString(e.Text)
	}
	return b.String()
}

func (h *host) input(commandID, inputID, s string, eof bool) commands.WriteDirectCommandInputOut {
	h.t.Helper()
	out, err := h.WriteDirectCommandInput(context.Background(), owner, commands.WriteDirectCommandInputIn{CommandID: commandID, InputID: inputID, Text: &s, EOF: eof})
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}

func (h *host) cancel(commandID string) commands.CancelDirectCommandOut {
	h.t.Helper()
	out, err := h.CancelDirectCommand(context.Background(), owner, commands.CancelDirectCommandIn{CommandID: commandID})
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}

func (h *host) record(commandID string) record.Record {
	h.t.Helper()
	rec, err := record.Dir(filepath.Join(h.state, commandID)).Load()
	if err != nil {
		h.t.Fatal(err)
	}
	return rec
}

func refused(t *testing.T, err error, kind fault.Kind) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("got %v, want %s", err, kind.Code)
	}
}

// eventually waits for something that other processes do.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 1000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("never happened: %s", what)
}

// processes are the living processes of this host's commands and supervisors.
func (h *host) processes() (pids []int) {
	all, err := process.All()
	if err != nil {
		h.t.Fatal(err)
	}
	for _, p := range all {
		if p.Zombie || p.PID == os.Getpid() {
			continue
		}
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
		cwd, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.PID))
		if strings.Contains(string(cmdline), h.state) || strings.HasPrefix(cwd, h.project) || strings.HasPrefix(cwd, h.state) {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// noProcessLeft kills what a test forgot, and says so.
func (h *host) noProcessLeft() {
	var left []int
	for range 300 {
		if left = h.processes(); len(left) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	h.t.Errorf("%d processes are left", len(left))
	for _, pid := range left {
		syscall.Kill(pid, syscall.SIGKILL)
	}
}

func terminate(pid int) { syscall.Kill(pid, syscall.SIGKILL) }
