// Package paseotest is a double of the Paseo daemon for tests: a server that
// speaks its websocket and MCP endpoints as versions 0.1.65, 0.5 and 0.10 do,
// with fake providers in place of coding agents.
//
// It promises the daemon's habits, good and bad, as they were observed: what is
// kept over a restart (agents, labels, workspaces, receipts) and what is not
// (timelines, turns, permissions), the lies a restart makes it tell, prompts that
// replace each other, and the differences between versions. It does on order what
// tests need to see: crashes at given points, answers that get lost, cut and slow
// connections, another identity, smaller limits. All state is in one directory,
// so a [Daemon] in a process of its own (package daemon below this one) can be
// killed and started again.
//
// It leaves out everything a gateway does not use (relay, terminals, schedules,
// git, real providers) and is no reference: where it and a real daemon differ,
// the real one is right.
package paseotest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// The versions a double can be.
const (
	V01 = "0.1.65"
	V05 = "0.5.0"
	V10 = "0.10.3"
)

// Versions lists them, oldest first.
func Versions() []string { return []string{V01, V05, V10} }

// Options says which daemon to be.
type Options struct {
	// Version decides the features; V10 by default.
	Version string
	// Password, if not "", is asked for.
	Password string
	// Dir keeps the state; it must exist.
	Dir string
	// HelloTimeout is how long a client may take to say hello (15 s), Lease how long
	// a client that has pinged may then be silent (45 s).
	HelloTimeout, Lease time.Duration
	// BodyLimit is the largest body the MCP endpoint takes, in bytes (100 KB).
	BodyLimit int64
	// OnCrash, if set, is called for an ordered crash in place of [Daemon.Kill]; it
	// doesn't return if it kills the process.
	OnCrash func()
}

// Daemon is a double. It is down until Start.
type Daemon struct {
	o     Options
	level level
	store store

	mu     sync.Mutex
	proc   *process // nil while down
	dead   []*process
	faults []Fault
	asked  map[string]int // requests by type, over all processes
	opened int            // websockets, over all processes
	pid    int
	since  time.Time // of the supervisor
	addr   net.Addr  // where it listened last
}

// New returns a double with the state in o.Dir.
func New(o Options) (*Daemon, error) {
	if o.Version == "" {
		o.Version = V10
	}
	if o.HelloTimeout == 0 {
		o.HelloTimeout = 15 * time.Second
	}
	if o.Lease == 0 {
		o.Lease = 45 * time.Second
	}
	if o.BodyLimit == 0 {
		o.BodyLimit = 100 << 10
	}
	d := &Daemon{o: o, level: levelOf(o.Version), store: store{o.Dir}, asked: map[string]int{}, pid: os.Getpid()}
	return d, d.store.prepare()
}

// Start makes a double in a temporary directory, listening on loopback TCP until
// the test ends.
func Start(t testing.TB, o Options) *Daemon {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Serve(l); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Terminate)
	return d
}

// Serve starts the daemon on l, which it owns from now on, and returns at once.
func (d *Daemon) Serve(l net.Listener) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.proc != nil {
		_ = l.Close()
		return errors.New("paseotest: the daemon is running")
	}
	if d.since.IsZero() {
		d.since = time.Now()
	}
	p, err := d.newProcess()
	if err != nil {
		_ = l.Close()
		return err
	}
	d.proc, d.addr = p, l.Addr()
	p.listen = l.Addr().String()
	p.server = &http.Server{Handler: p.routes(), ReadHeaderTimeout: 10 * time.Second}
	p.running.Go(func() { _ = p.server.Serve(l) })
	return nil
}

// Restart starts a daemon that is down at the address it had.
func (d *Daemon) Restart() error {
	d.buried()
	d.mu.Lock()
	addr := d.addr
	d.pid++
	d.since = time.Now()
	d.mu.Unlock()
	l, err := d.listenAgain(addr)
	if err != nil {
		return err
	}
	return d.Serve(l)
}

// RestartWorker is what a supervisor does after a worker's crash (from 0.5): a
// new pid, and the old start time.
func (d *Daemon) RestartWorker() error {
	d.mu.Lock()
	since := d.since
	d.mu.Unlock()
	d.Kill()
	d.mu.Lock()
	addr := d.addr
	d.pid++
	d.since = since
	d.mu.Unlock()
	l, err := d.listenAgain(addr)
	if err != nil {
		return err
	}
	return d.Serve(l)
}

// buried waits for processes that crashed.
func (d *Daemon) buried() {
	d.mu.Lock()
	ended := d.dead
	d.dead = nil
	d.mu.Unlock()
	for _, p := range ended {
		p.running.Wait()
	}
}

func (d *Daemon) listenAgain(addr net.Addr) (net.Listener, error) {
	if addr.Network() == "unix" {
		_ = os.Remove(addr.String())
	}
	return net.Listen(addr.Network(), addr.String())
}

// Terminate stops the daemon as SIGTERM does: running agents are recorded as
// closed, and clients get a close frame without a code. It is nothing when down.
func (d *Daemon) Terminate() { d.halt(true) }

// Kill stops the daemon as SIGKILL does: records stay as they are, connections
// break. It is nothing when down.
func (d *Daemon) Kill() { d.halt(false) }

func (d *Daemon) halt(graceful bool) {
	d.mu.Lock()
	p := d.proc
	d.proc = nil
	d.mu.Unlock()
	if p != nil {
		p.halt(graceful)
		p.running.Wait()
	}
	d.buried()
}

// crash is an ordered Kill, from within a request.
func (d *Daemon) crash(p *process) {
	if d.o.OnCrash != nil {
		d.o.OnCrash()
		return
	}
	d.mu.Lock()
	if d.proc == p {
		d.proc = nil
		d.dead = append(d.dead, p)
	}
	d.mu.Unlock()
	p.halt(false)
}

// Dial connects to the daemon; it is refused while the daemon is down.
func (d *Daemon) Dial(ctx context.Context) (net.Conn, error) {
	d.mu.Lock()
	addr := d.addr
	d.mu.Unlock()
	var dialer net.Dialer
	return dialer.DialContext(ctx, addr.Network(), addr.String())
}

// Addr is where the daemon listens or last listened.
func (d *Daemon) Addr() net.Addr {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.addr
}

// Running reports whether the daemon is up; an ordered crash ends that.
func (d *Daemon) Running() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.proc != nil
}

// SetServerID gives the daemon another identity from the next start on.
func (d *Daemon) SetServerID(id string) error {
	return os.WriteFile(filepath.Join(d.o.Dir, "server-id"), []byte(id), 0o600)
}

// ServerID is the daemon's identity, for its next start.
func (d *Daemon) ServerID() string { id, _ := d.store.serverID(); return id }

// Asked counts the requests of a type that were received, over all restarts.
func (d *Daemon) Asked(kind string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked[kind]
}

// Opened counts the websockets that were opened, over all restarts.
func (d *Daemon) Opened() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.opened
}

// Prompt is a prompt that was given to a provider.
type Prompt struct {
	AgentID   string `json:"agentId"`
	MessageID string `json:"messageId"`
	Text      string `json:"text"`
}

// Prompts lists every prompt that was ever run, over all restarts.
func (d *Daemon) Prompts() ([]Prompt, error) { return d.store.prompts() }

// Replace replaces an agent's timeline by an empty one, as a rewind does.
func (d *Daemon) Replace(agentID string) {
	d.mu.Lock()
	p := d.proc
	d.mu.Unlock()
	if p != nil {
		p.replaceTimeline(agentID)
	}
}

// Skip makes the next row of an agent's timeline leave out seqs, as rows do that
// a client never got.
func (d *Daemon) Skip(agentID string, seqs int64) {
	d.mu.Lock()
	p := d.proc
	d.mu.Unlock()
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.agents[agentID]; a != nil {
		a.nextSeq += seqs
	}
}

// newID returns an id with a random part.
func newID(prefix string) string {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return prefix + hex.EncodeToString(b[:])
}
