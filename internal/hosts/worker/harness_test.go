package worker_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"agentrelay/internal/direct"
	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/worker"
	"agentrelay/internal/hosts/worker/wire"
	"agentrelay/internal/principal"
	"agentrelay/internal/shellquote"
)

// program is a built peer-agent.
var program string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "peer-agent")
	if err != nil {
		panic(err)
	}
	program = filepath.Join(dir, "peer-agent")
	if out, err := exec.Command("go", "build", "-o", program, "agentrelay/cmd/peer-agent").CombinedOutput(); err != nil {
		panic(string(out))
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			println(err.Error())
			code = 1
		}
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

// machine is a host whose connection is a shell on this machine.
type machine struct {
	t        *testing.T
	stateDir string
	project  string
	banner   string // what its login shell prints

	mu     sync.Mutex
	link   *link
	reason string // why it can't be reached; "" when it can
	since  time.Time
	client *worker.Client
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	dir := t.TempDir()
	m := &machine{t: t, stateDir: filepath.Join(dir, "state"), project: filepath.Join(dir, "project"), since: time.Now()}
	for _, d := range []string{m.stateDir, m.project} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	m.link = newLink()
	t.Cleanup(func() { m.current().drop() })
	return m
}

func (m *machine) settings() wire.Settings {
	return wire.Settings{Policy: direct.Policy{
		AllowedRoots: []string{filepath.Dir(m.project)},
		Projects: []direct.Project{{
			ID: "p", Name: "Project", Path: m.project, Read: true, Write: true, CommandMode: direct.Full,
		}},
	}, Commands: wire.Commands{Path: os.Getenv("PATH")}}
}

func (m *machine) open(change ...func(*worker.Options)) *worker.Client {
	m.t.Helper()
	o := worker.Options{
		ID: "far", Name: "Far", Links: m, StateDir: m.stateDir, Settings: m.settings(),
		Command: func(args ...string) string {
			words := []string{}
			for _, a := range append([]string{program}, args...) {
				words = append(words, shellquote.Word(a))
			}
			return m.banner + "exec " + strings.Join(words, " ")
		},
		SettleTimeout: 20 * time.Second,
	}
	for _, f := range change {
		f(&o)
	}
	m.client = worker.New(o)
	m.t.Cleanup(m.client.Close)
	return m.client
}

func (m *machine) current() *link {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.link
}

// Link implements [worker.Links].
func (m *machine) Link(context.Context) (worker.Transport, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reason != "" {
		return nil, hosts.Unavailable.New("Far can't be reached: " + m.reason)
	}
	return m.link, nil
}

// Status implements [worker.Links].
func (m *machine) Status() hosts.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reason != "" {
		return hosts.Status{State: hosts.Down, Since: m.since, CheckedAt: m.since, Reason: m.reason}
	}
	return hosts.Status{State: hosts.Up, Since: m.since, CheckedAt: m.since}
}

// cut loses the connection. What was sent on it may still arrive.
func (m *machine) cut(reason string) {
	m.mu.Lock()
	old := m.link
	m.reason, m.since = reason, time.Now()
	m.mu.Unlock()
	old.drop()
	m.client.LinkChanged(m.Status())
}

// join connects again.
func (m *machine) join() {
	m.mu.Lock()
	m.link, m.reason, m.since = newLink(), "", time.Now()
	m.mu.Unlock()
	m.client.LinkChanged(m.Status())
}

// killWorker kills the worker, as the kernel does when memory is short.
func (m *machine) killWorker() {
	for _, p := range m.current().processes() {
		_ = syscall.Kill(-p, syscall.SIGKILL)
	}
}

func (m *machine) write(name, content string) {
	m.t.Helper()
	if err := os.WriteFile(filepath.Join(m.project, name), []byte(content), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) read(name string) string {
	raw, err := os.ReadFile(filepath.Join(m.project, name))
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return string(raw)
}

// link is one connection.
type link struct {
	done chan struct{}
	once sync.Once
	sent atomic.Int64 // bytes that the processes' inputs have taken
	full atomic.Bool  // there is room for no further process

	mu      sync.Mutex
	running map[int]*proc
}

func newLink() *link { return &link{done: make(chan struct{}), running: map[int]*proc{}} }

func (l *link) processes() (pids []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for pid := range l.running {
		pids = append(pids, pid)
	}
	return pids
}

// drop closes the ends that the gateway has. The processes see that as they
// would that of sshd.
func (l *link) drop() {
	l.once.Do(func() { close(l.done) })
	l.mu.Lock()
	all := []*proc{}
	for _, p := range l.running {
		all = append(all, p)
	}
	l.mu.Unlock()
	for _, p := range all {
		p.close()
	}
}

// Done implements [worker.Transport].
func (l *link) Done() <-chan struct{} { return l.done }

type proc struct {
	cmd                   *exec.Cmd
	stdin, stdout, stderr *os.File
	ended                 chan struct{}
	err                   error
	once                  sync.Once
}

func (p *proc) close() {
	p.once.Do(func() { p.stdin.Close(); p.stdout.Close(); p.stderr.Close() })
}

var errGone = errors.New("the connection was lost")

// Exec implements [worker.Transport].
func (l *link) Exec(ctx context.Context, command string) (*worker.Process, error) {
	if l.full.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	select {
	case <-l.done:
		return nil, errGone
	default:
	}
	var theirs, ours [3]*os.File
	for i := range 3 {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		if i == 0 {
			theirs[i], ours[i] = r, w
		} else {
			theirs[i], ours[i] = w, r
		}
	}
	cmd := exec.Command("/bin/sh", "-c", command)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs[0], theirs[1], theirs[2]
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	for _, f := range theirs {
		f.Close()
	}
	p := &proc{cmd: cmd, stdin: ours[0], stdout: ours[1], stderr: ours[2], ended: make(chan struct{})}
	l.mu.Lock()
	l.running[cmd.Process.Pid] = p
	l.mu.Unlock()
	go func() {
		p.err = cmd.Wait()
		l.mu.Lock()
		delete(l.running, cmd.Process.Pid)
		l.mu.Unlock()
		close(p.ended)
	}()
	wait := func() error {
		select {
		case <-p.ended:
		case <-l.done:
			return errGone
		}
		var exit *exec.ExitError
		if errors.As(p.err, &exit) {
			return &worker.ExitError{Code: exit.ExitCode(), Cause: p.err}
		}
		return p.err
	}
	return &worker.Process{
		Stdin: counted{p.stdin, &l.sent}, Stdout: p.stdout, Stderr: io.Reader(p.stderr), Wait: wait,
		Close: func() error { p.close(); return nil },
	}, nil
}

type counted struct {
	io.WriteCloser
	sent *atomic.Int64
}

func (c counted) Write(b []byte) (int, error) {
	n, err := c.WriteCloser.Write(b)
	c.sent.Add(int64(n))
	return n, err
}

func me() principal.Principal { return principal.Owner(principal.SharedOwner) }

func ptr[T any](v T) *T { return &v }
