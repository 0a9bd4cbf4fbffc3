package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"agentrelay/internal/client"
	"agentrelay/internal/device"
	"agentrelay/internal/device/plugins"
	"agentrelay/internal/device/policy"
	"agentrelay/internal/device/state"
	"agentrelay/internal/e2e/rig"
)

// deviceWait bounds each wait for a device, whose first try to come back may take a
// second and a half.
const deviceWait = 30 * time.Second

// machine is a machine with the device program and a home of its own.
type machine struct {
	t       testing.TB
	program string
	gateway *rig.Home
	name    string
	home    string
}

func newMachine(t testing.TB, program string, gateway *rig.Home, name string) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "device") // not t.TempDir: the name of a socket must fit
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	m := &machine{t, program, gateway, name, dir}
	if err := os.Mkdir(filepath.Join(dir, "work"), 0o700); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *machine) command(args ...string) *exec.Cmd {
	cmd := exec.Command(m.program, args...)
	cmd.Env = []string{"HOME=" + m.home, "PATH=" + os.Getenv("PATH"), "SECRET_OF_THE_SHELL=x"}
	cmd.Dir = filepath.Join(m.home, "work")
	return cmd
}

// run runs one command to its end.
func (m *machine) run(args ...string) rig.Result {
	m.t.Helper()
	cmd := m.command(args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		m.t.Fatal(err)
	}
	return rig.Result{Code: cmd.ProcessState.ExitCode(), Stdout: stdout.String(), Stderr: stderr.String()}
}

func (m *machine) ok(args ...string) string {
	m.t.Helper()
	r := m.run(args...)
	if r.Code != 0 {
		m.t.Fatalf("device %s: %+v", strings.Join(args, " "), r)
	}
	return r.Stdout
}

// pair pairs the machine with a code of the owner.
func (m *machine) pair(args ...string) {
	m.t.Helper()
	code, url := pairingCode(m.t, m.gateway, args...)
	m.ok(append([]string{"pair", url, code, "--device", m.name}, replaceOf(args)...)...)
}

func replaceOf(args []string) []string {
	if len(args) > 0 {
		return []string{"--replace"}
	}
	return nil
}

func pairingCode(t testing.TB, home *rig.Home, args ...string) (code, url string) {
	t.Helper()
	var out struct{ Code, URL string }
	if err := json.Unmarshal([]byte(home.OK(append([]string{"devices", "pair", "--json"}, args...)...)), &out); err != nil {
		t.Fatal(err)
	}
	return out.Code, out.URL
}

// plugin makes a plugin whose program is a shell script.
func (m *machine) plugin(name, body string) {
	m.t.Helper()
	dir := filepath.Join(m.home, ".config/agent-relay-device/plugins", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		m.t.Fatal(err)
	}
	manifest := fmt.Sprintf(`{"name":%q,"description":"A test.","entry":"main.sh","interpreter":"sh","summary_hint":"x"}`, name)
	for file, text := range map[string]string{"manifest.json": manifest, "main.sh": body + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			m.t.Fatal(err)
		}
	}
}

// running is a device program that runs.
type running struct {
	t     testing.TB
	cmd   *exec.Cmd
	ended chan struct{}
	keys  *os.File // of its terminal, or nil

	mu  sync.Mutex
	out strings.Builder
}

func (r *running) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.Write(p)
}

// sees is what it has printed, or what is on its terminal.
func (r *running) sees() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.ReplaceAll(r.out.String(), "\r\n", "\n")
}

func (r *running) waitFor(text string, times int) {
	r.t.Helper()
	for until := time.Now().Add(deviceWait); strings.Count(r.sees(), text) < times; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			r.t.Fatalf("%q did not appear:\n%s", text, r.sees())
		}
	}
}

func (r *running) end(s os.Signal) int {
	r.t.Helper()
	_ = r.cmd.Process.Signal(s)
	select {
	case <-r.ended:
	case <-time.After(deviceWait):
		_ = r.cmd.Process.Kill()
		r.t.Fatalf("the device does not end:\n%s", r.sees())
	}
	return r.cmd.ProcessState.ExitCode()
}

// daemon starts "device daemon" and waits until it is connected.
func (m *machine) daemon(args ...string) *running {
	m.t.Helper()
	r := &running{t: m.t, cmd: m.command(append([]string{"daemon"}, args...)...), ended: make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = r, r
	if err := r.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	go func() { _ = r.cmd.Wait(); close(r.ended) }()
	m.t.Cleanup(func() { r.end(syscall.SIGKILL) })
	r.waitFor("msg=connected", 1)
	return r
}

// atTerminal starts "device run" with a person in front of it.
func (m *machine) atTerminal(args ...string) *running {
	m.t.Helper()
	r := &running{t: m.t, cmd: m.command(append([]string{"run"}, args...)...), ended: make(chan struct{})}
	var err error
	if r.keys, err = pty.StartWithSize(r.cmd, &pty.Winsize{Rows: 40, Cols: 80}); err != nil {
		m.t.Fatal(err)
	}
	// Sizing it made it block, and what blocks in a read can't be closed.
	fd, err := syscall.Dup(int(r.keys.Fd()))
	if err := errors.Join(err, syscall.SetNonblock(fd, true), r.keys.Close()); err != nil {
		m.t.Fatal(err)
	}
	r.keys = os.NewFile(uintptr(fd), "pty")
	go func() {
		_, _ = io.Copy(r, r.keys) // until the terminal is closed
		_ = r.cmd.Wait()
		close(r.ended)
	}()
	m.t.Cleanup(func() {
		r.end(syscall.SIGKILL)
		r.keys.Close()
	})
	r.waitFor("msg=connected", 1)
	return r
}

// hangUp closes the window.
func (r *running) hangUp() error { return r.keys.Close() }

// types answers like somebody who has read the question.
func (r *running) types(keys string) {
	r.t.Helper()
	time.Sleep(500 * time.Millisecond)
	if _, err := r.keys.WriteString(keys); err != nil {
		r.t.Fatal(err)
	}
}

// outcome is the answer to spooky_call, or its refusal.
type outcome struct {
	CallID, State, Output, Summary, Phase string
	Spilled, Duplicate                    bool
	refusal                               *client.ToolError
}

func callDevice(t testing.TB, s *client.Session, in map[string]any) (out outcome) {
	t.Helper()
	err := s.Call(context.Background(), "spooky_call", in, &out)
	if err != nil && !errors.As(err, &out.refusal) {
		t.Fatal(err)
	}
	return out
}

func call(device, tool string, args map[string]any) map[string]any {
	return map[string]any{"device": device, "tool": tool, "args": args, "reason": "the test wants it"}
}

// buildDevices is a gateway that runs, the device program, and a client.
func buildDevices(t testing.TB) (*rig.Home, string, *client.Session) {
	t.Helper()
	program, err := rig.Build(t.TempDir(), "device")
	if err != nil {
		t.Fatal(err)
	}
	home := rig.NewHome(t, binary)
	home.Serve()
	c := home.Authorize("agent-of-test")
	session, err := c.Connect(context.Background(), "agent-of-test", c.Token.AccessToken)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	return home, program, session
}

// cutting is a way to the gateway that breaks after so many pieces of data.
type cutting struct {
	t      testing.TB
	listen net.Listener
	to     string
	left   atomic.Int64 // pieces until the cut
	then   atomic.Int64 // pieces from that until the next one
	cuts   atomic.Int64
	open   sync.WaitGroup
}

// never is more pieces than there are.
const never = 1 << 40

func newCutting(t testing.TB, to string) *cutting {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutting{t: t, listen: l, to: to}
	c.left.Store(never)
	c.open.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			c.open.Go(func() { c.carry(in) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		c.open.Wait()
	})
	return c
}

func (c *cutting) carry(in net.Conn) {
	defer in.Close()
	out, err := net.Dial("tcp", c.to)
	if err != nil {
		return
	}
	defer out.Close()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		both.Go(func() {
			defer in.Close()
			defer out.Close()
			b := make([]byte, 64<<10)
			for {
				n, err := way[0].Read(b)
				if err != nil {
					return
				}
				if c.left.Add(-1) == 0 {
					c.cuts.Add(1)
					c.left.Store(c.then.Swap(never))
					return // the piece that was read is lost
				}
				if _, err := way[1].Write(b[:n]); err != nil {
					return
				}
			}
		})
	}
	both.Wait()
}

// inProcess runs a device in this process, one that comes back at once.
func inProcess(t testing.TB, m *machine, id state.Identity) (stop func()) {
	t.Helper()
	dir, err := state.Open(filepath.Join(m.home, "state"))
	if err != nil {
		t.Fatal(err)
	}
	journal, err := dir.Journal(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	d := device.New(device.Options{
		Identity: id, Journal: journal, Sink: device.Headless{}, Yolo: true, Policy: policy.File{},
		Root: plugins.Root{Dir: filepath.Join(m.home, ".config/agent-relay-device/plugins"), Spill: dir.Spill(), State: dir.Path(), Cwd: filepath.Join(m.home, "work"), Device: id.Device, Getenv: os.Getenv},
		Rand: func(time.Duration) time.Duration { return time.Millisecond },
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		journal.Close()
	}
}

func waitConnected(t testing.TB, session *client.Session) {
	t.Helper()
	for until := time.Now().Add(deviceWait); ; time.Sleep(5 * time.Millisecond) {
		var list json.RawMessage
		if err := session.Call(context.Background(), "spooky_list", map[string]any{"device": "laptop"}, &list); err == nil {
			return
		}
		if time.Now().After(until) {
			t.Fatal("the device is not connected")
		}
	}
}
