// Package rig sets up what the end-to-end tests use: the built gateway in a home
// directory of its own, clients with the owner's consent, the clients of others
// that scripts/test installs, and a harness that kills the gateway.
//
// It promises that a test sees what a user sees: programs are started with the
// environment of an empty home, and are waited for by what they print. What it
// starts ends with the test. It leaves every judgement to the tests; it fails
// one itself only when something that must be there is not.
package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/oauth2"

	"agentrelay/internal/client"
)

// patience bounds each wait for a program, which takes well under a second when
// the machine is idle.
const patience = 30 * time.Second

// Build builds a command of this module into dir and returns the path of the
// binary.
func Build(dir, command string) (string, error) {
	binary := filepath.Join(dir, command)
	out, err := exec.Command("go", "build", "-o", binary, "agentrelay/cmd/"+command).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", command, err, out)
	}
	return binary, nil
}

// Home is the home directory of an owner with a gateway that is set up.
type Home struct {
	Dir        string
	ConfigPath string
	StateDir   string
	Password   string // the owner's
	MCPURL     string
	Env        []string // further variables of its commands

	t      testing.TB
	binary string
}

// NewHome sets up a gateway with "gateway init" on a port that is free now.
func NewHome(t testing.TB, binary string) *Home {
	t.Helper()
	// Not t.TempDir: its long path leaves no room for the name of a socket.
	dir, err := os.MkdirTemp("", "relay")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	h := &Home{Dir: dir, t: t, binary: binary}
	var made struct{ ConfigPath, StateDir, OwnerPassword, MCPURL string }
	if err := json.Unmarshal([]byte(h.OK("init", "--json", "--port", strconv.Itoa(freePort(t)))), &made); err != nil {
		t.Fatal(err)
	}
	h.ConfigPath, h.StateDir, h.Password, h.MCPURL = made.ConfigPath, made.StateDir, made.OwnerPassword, made.MCPURL
	return h
}

// freePort is a port that nobody listens on, outside of the range from which
// systems take the ports of outgoing connections: a gateway that was killed
// finds it free again.
func freePort(t testing.TB) int {
	t.Helper()
	for range 100 {
		port := 20000 + rand.IntN(10000)
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

// Configure changes the config file: value replaces the member with this key.
func (h *Home) Configure(key string, value any) {
	h.t.Helper()
	raw, err := os.ReadFile(h.ConfigPath)
	if err != nil {
		h.t.Fatal(err)
	}
	members := map[string]any{}
	if err := json.Unmarshal(raw, &members); err != nil {
		h.t.Fatal(err)
	}
	members[key] = value
	if raw, err = json.Marshal(members); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(h.ConfigPath, raw, 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// Command is a command line of the gateway in this home.
func (h *Home) Command(args ...string) *exec.Cmd {
	cmd := exec.Command(h.binary, args...)
	cmd.Env = []string{"HOME=" + h.Dir, "PATH=" + os.Getenv("PATH"), "TMPDIR=" + h.Dir}
	cmd.Env = append(cmd.Env, h.Env...)
	cmd.Dir = h.Dir
	return cmd
}

// Result is what a user sees of a command.
type Result struct {
	Code           int
	Stdout, Stderr string
}

// Run runs a command to its end.
func (h *Home) Run(args ...string) Result {
	h.t.Helper()
	cmd := h.Command(args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	_ = cmd.Wait() // the exit code says it
	return Result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// OK runs a command that must succeed and returns its standard output.
func (h *Home) OK(args ...string) string {
	h.t.Helper()
	r := h.Run(args...)
	if r.Code != 0 {
		h.t.Fatalf("gateway %s: exit code %d\n%s%s", strings.Join(args, " "), r.Code, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// Gateway is a "gateway serve" that runs.
type Gateway struct {
	// Ready is how long it took from the start to the ready line.
	Ready time.Duration

	home           *Home
	cmd            *exec.Cmd
	stdout, stderr buffer
	ended          chan struct{} // closed when it has ended
	killed         bool
}

// Serve starts the gateway and waits for its ready line.
func (h *Home) Serve() *Gateway {
	h.t.Helper()
	g := &Gateway{home: h, cmd: h.Command("serve"), ended: make(chan struct{})}
	ready := make(chan struct{})
	g.stdout.onWrite = sync.OnceFunc(func() { close(ready) })
	g.cmd.Stdout, g.cmd.Stderr = &g.stdout, &g.stderr
	begun := time.Now()
	if err := g.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	go func() {
		_ = g.cmd.Wait()
		close(g.ended)
	}()
	h.t.Cleanup(func() {
		wanted := g.killed
		g.Kill()
		if h.t.Failed() && !wanted {
			log := g.stderr.String()
			h.t.Logf("the gateway's log ends with\n%s", log[max(0, len(log)-4000):])
		}
	})
	select {
	case <-ready:
	case <-g.ended:
		h.t.Fatalf("the gateway ended before it was ready:\n%s%s", &g.stdout, &g.stderr)
	case <-time.After(patience):
		h.t.Fatalf("the gateway is not ready after %v:\n%s%s", patience, &g.stdout, &g.stderr)
	}
	g.Ready = time.Since(begun)
	if line := g.stdout.String(); !strings.HasSuffix(line, " "+h.MCPURL+"\n") {
		h.t.Errorf("the ready line is %q", line)
	}
	return g
}

// PID is the process of the gateway.
func (g *Gateway) PID() int { return g.cmd.Process.Pid }

// Kill ends the gateway with SIGKILL, if it runs.
func (g *Gateway) Kill() {
	g.killed = true
	_ = g.cmd.Process.Kill()
	<-g.ended
}

// Stop asks the gateway to stop and returns its exit code.
func (g *Gateway) Stop() int {
	g.home.t.Helper()
	if err := g.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		g.home.t.Errorf("stopping the gateway: %v", err)
	}
	select {
	case <-g.ended:
	case <-time.After(patience):
		g.home.t.Errorf("the gateway did not stop in %v", patience)
		g.Kill()
	}
	return g.cmd.ProcessState.ExitCode()
}

// Output is all that the gateway printed, its log included.
func (g *Gateway) Output() string { return g.stdout.String() + g.stderr.String() }

// buffer collects the output of a process while it runs.
type buffer struct {
	onWrite func()

	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	n, err := b.b.Write(p)
	b.mu.Unlock()
	if b.onWrite != nil {
		b.onWrite()
	}
	return n, err
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// callback is where redirects go. Nobody listens there: the rig reads them
// itself.
const callback = "http://127.0.0.1/callback"

// Client is an OAuth client that the owner allowed everything.
type Client struct {
	*client.Server
	ID    string
	Token *oauth2.Token
	// Code is the authorization code that the token was got for.
	Code string
}

// Authorize registers a client at the gateway, which must run, and gives it the
// owner's consent.
func (h *Home) Authorize(name string) *Client {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	h.t.Cleanup(transport.CloseIdleConnections)
	server, err := client.Discover(ctx, &http.Client{Transport: transport}, h.MCPURL)
	if err != nil {
		h.t.Fatal(err)
	}
	c := &Client{Server: server}
	if c.ID, err = server.Register(ctx, name, callback); err != nil {
		h.t.Fatal(err)
	}
	flow := server.Authorize(c.ID, "", callback)
	to, err := flow.Consent(ctx, h.Password, client.Allow)
	if err != nil {
		h.t.Fatal(err)
	}
	if c.Token, err = flow.Redeem(ctx, to); err != nil {
		h.t.Fatal(err)
	}
	c.Code = to.Query().Get("code")
	return c
}
