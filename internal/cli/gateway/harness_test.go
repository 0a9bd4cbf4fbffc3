package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "write the golden files anew")

// asProgram makes the test binary be the program, for tests that kill it.
const asProgram = "AGENT_RELAY_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		context.AfterFunc(ctx, stop)
		os.Exit(Run(ctx, OSEnv()))
	}
	goleak.VerifyTestMain(m)
}

// now is the clock of tests that print ages.
var now = time.Date(2026, 11, 5, 12, 0, 0, 0, time.UTC)

// home is a machine with one user, whose files lie in dir.
type home struct {
	t        *testing.T
	dir      string
	terminal bool
	rand     counter
}

// newHome makes a home directory with a path short enough for a socket.
func newHome(t *testing.T) *home {
	t.Helper()
	dir, err := os.MkdirTemp("", "gw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &home{t: t, dir: dir}
}

func (h *home) configPath() string {
	return filepath.Join(h.dir, ".config", "agent-relay", "config.json")
}
func (h *home) stateDir() string { return filepath.Join(h.dir, ".local", "state", "agent-relay") }

func (h *home) env(stdout, stderr io.Writer, args ...string) Env {
	return Env{
		Args: args, Stdin: strings.NewReader(""), Stdout: stdout, Stderr: stderr,
		Getenv: func(name string) string { return map[string]string{"HOME": h.dir}[name] },
		Now:    func() time.Time { return now },
		Rand:   &h.rand, StdoutTerminal: h.terminal,
	}
}

// counter is randomness without surprises.
type counter struct {
	mu sync.Mutex
	n  byte
}

func (c *counter) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range p {
		p[i] = c.n
		c.n++
	}
	return len(p), nil
}

// result is what a user sees of a command.
type result struct {
	code           int
	stdout, stderr string
}

// run runs one command line.
func (h *home) run(args ...string) result {
	h.t.Helper()
	var stdout, stderr bytes.Buffer
	code := Run(h.t.Context(), h.env(&stdout, &stderr, args...))
	return result{code, stdout.String(), stderr.String()}
}

// ok is run for commands that must succeed; it returns standard output.
func (h *home) ok(args ...string) string {
	h.t.Helper()
	r := h.run(args...)
	if r.code != ExitOK {
		h.t.Fatalf("gateway %s: exit code %d\n%s%s", strings.Join(args, " "), r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

// init sets up a gateway on a free port.
func (h *home) init(more ...string) {
	h.t.Helper()
	h.ok(append([]string{"init", "--json", "--port", fmt.Sprint(freePort(h.t))}, more...)...)
}

// freePort is a port that nobody listens on.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// served is a "gateway serve" that runs in this process.
type served struct {
	url    string
	stop   context.CancelFunc
	done   chan int
	stdout string
	stderr *buffer
}

// serve starts "gateway serve" and waits for its ready line.
func (h *home) serve(args ...string) *served {
	h.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	r, w := io.Pipe()
	s := &served{stop: stop, done: make(chan int, 1), stderr: &buffer{}}
	env := h.env(w, s.stderr, append([]string{"serve"}, args...)...)
	go func() {
		code := Run(ctx, env)
		w.Close()
		s.done <- code
	}()
	out := bufio.NewReader(r)
	for {
		line, err := out.ReadString('\n')
		if err != nil {
			h.t.Fatalf("serve ended before it was ready: %s%s", s.stdout, s.stderr)
		}
		s.stdout += line
		if _, url, ok := strings.Cut(strings.TrimSpace(line), "Agent Relay is ready at "); ok {
			s.url = url
			break
		}
	}
	h.t.Cleanup(func() { s.end(h.t) })
	return s
}

// end asks the gateway to stop and checks that it ends well. It may be called
// twice.
func (s *served) end(t *testing.T) {
	t.Helper()
	s.stop()
	code, ok := <-s.done
	if !ok {
		return
	}
	close(s.done)
	if code != ExitOK {
		t.Errorf("serve ended with %d: %s", code, s.stderr)
	}
}

// buffer is a bytes.Buffer for several goroutines.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// program starts the program in a process of its own.
func (h *home) program(args ...string) (*exec.Cmd, *buffer, *buffer) {
	h.t.Helper()
	self, err := os.Executable()
	if err != nil {
		h.t.Fatal(err)
	}
	stdout, stderr := &buffer{}, &buffer{}
	c := exec.Command(self, args...)
	c.Env = []string{"HOME=" + h.dir, asProgram + "=1"}
	c.Stdout, c.Stderr = stdout, stderr
	if err := c.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	return c, stdout, stderr
}

// eventually waits until done reports true.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still not: %s", what)
		}
	}
}

// golden compares output with a file of testdata. Paths of the home directory
// are written as /home/you.
func (h *home) golden(name, got string) {
	h.t.Helper()
	got = strings.ReplaceAll(got, h.dir, "/home/you")
	for _, line := range strings.Split(got, "\n") {
		if columns(line) > lineWidth {
			h.t.Errorf("%s: a line has %d columns: %s", name, columns(line), line)
		}
	}
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			h.t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		h.t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		h.t.Errorf("%s (-want +got), run the tests with -update if it is meant:\n%s", name, diff)
	}
}

// decode reads the JSON that a command printed.
func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	d := json.NewDecoder(strings.NewReader(text))
	if err := d.Decode(&v); err != nil {
		t.Fatalf("not JSON: %v\n%s", err, text)
	}
	if d.More() {
		t.Fatalf("more than one JSON value:\n%s", text)
	}
	return v
}
