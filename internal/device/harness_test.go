package device

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"agentrelay/internal/device/approval"
	"agentrelay/internal/device/plugins"
	"agentrelay/internal/device/policy"
	"agentrelay/internal/device/state"
	"agentrelay/internal/devices/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds each wait for something that takes milliseconds.
const patience = 20 * time.Second

// relay is a scripted relay: tests say what it sends.
type relay struct {
	t     testing.TB
	url   string
	conns chan *websocket.Conn
}

func newRelay(t testing.TB) *relay {
	t.Helper()
	r := &relay{t: t, conns: make(chan *websocket.Conn, 64)}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		c, err := websocket.Accept(w, q, nil)
		if err != nil {
			return
		}
		c.SetReadLimit(2 * wire.MaxFrame)
		r.conns <- c
	}))
	r.url = "ws" + strings.TrimPrefix(server.URL, "http") + wire.Path
	t.Cleanup(func() {
		for {
			select {
			case c := <-r.conns:
				c.CloseNow()
				continue
			default:
			}
			break
		}
		server.CloseClientConnections()
		server.Close()
	})
	return r
}

// conn is one connection, seen from the relay.
type conn struct {
	t testing.TB
	*websocket.Conn
}

func (r *relay) accept() *conn {
	r.t.Helper()
	select {
	case c := <-r.conns:
		r.t.Cleanup(func() { c.CloseNow() })
		return &conn{r.t, c}
	case <-time.After(patience):
		r.t.Fatal("the device did not come")
		return nil
	}
}

// ready takes a device in.
func (r *relay) ready(resume bool) *conn {
	r.t.Helper()
	c := r.accept()
	hello := c.next(wire.Hello)
	if hello.Token != "the-token" || hello.Device != "laptop" || hello.Proto != wire.Proto {
		r.t.Fatalf("hello is %+v", hello)
	}
	c.send(wire.Frame{Type: wire.Ready, Ref: "hello", Device: "laptop", Proto: wire.Proto, PolicyHint: "prompt", Resume: resume})
	return c
}

func (c *conn) send(f wire.Frame) {
	c.t.Helper()
	if err := c.try(f); err != nil {
		c.t.Fatal(err)
	}
}

func (c *conn) try(f wire.Frame) error {
	raw, err := wire.Encode(f)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return c.Write(ctx, websocket.MessageText, raw)
}

func (c *conn) read() (wire.Frame, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, raw, err := c.Read(ctx)
	if err != nil {
		return wire.Frame{}, err
	}
	return wire.Decode(raw)
}

// next is the next frame of a type; pings are answered, progress is passed over.
func (c *conn) next(kind string) wire.Frame {
	c.t.Helper()
	for {
		f, err := c.read()
		if err != nil {
			c.t.Fatalf("waiting for %s: %v", kind, err)
		}
		switch {
		case f.Type == kind:
			return f
		case f.Type == wire.Ping:
			c.send(f.Answer(wire.Pong))
		case f.Type != wire.Progress:
			c.t.Fatalf("%+v came instead of %s", f, kind)
		}
	}
}

func (c *conn) progress(phase string) {
	c.t.Helper()
	if f := c.next(wire.Progress); f.Phase != phase {
		c.t.Fatalf("progress is %+v, want %s", f, phase)
	}
}

func theCall(ref, tool, args string) wire.Frame {
	return wire.Frame{Type: wire.Call, ID: wire.ID(ref), Ref: ref, Tool: tool, Args: json.RawMessage(args), Reason: "to test", Agent: "tester"}
}

// rig is a device with a state directory, which can be started again.
type rig struct {
	t     testing.TB
	relay *relay
	dir   string
	state state.Dir
	root  plugins.Root
	opts  func(*Options)

	device *Device
	stop   func() error
}

func newRig(t testing.TB) *rig {
	t.Helper()
	dir := t.TempDir()
	s, err := state.Open(filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, relay: newRelay(t), dir: dir, state: s}
	r.root = plugins.Root{Dir: filepath.Join(dir, "plugins"), Spill: s.Spill(), State: s.Path(), Cwd: filepath.Join(dir, "work"), Device: "laptop", Getenv: os.Getenv}
	if err := os.MkdirAll(r.root.Cwd, 0o700); err != nil {
		t.Fatal(err)
	}
	// Each run leaves a line behind.
	r.script("mark", `read -r line; echo ran >>ran; echo '{"ok":true,"output":"marked"}'`, `{"type":"object","properties":{"x":{"type":"string"}},"additionalProperties":false}`)
	r.script("slow", `echo ran >>ran; sleep 60; echo '{"ok":true,"output":"slept"}'`, `{"type":"object"}`)
	return r
}

func (r *rig) script(name, body, schema string) {
	r.t.Helper()
	dir := filepath.Join(r.root.Dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		r.t.Fatal(err)
	}
	manifest := fmt.Sprintf(`{"name":%q,"description":"A test.","entry":"main.sh","interpreter":"sh","summary_hint":"x","requires":["fs"],"schema":%s}`, name, schema)
	for file, text := range map[string]string{"manifest.json": manifest, "main.sh": body + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
}

// runs is how often plugins have run.
func (r *rig) runs() int {
	r.t.Helper()
	raw, err := os.ReadFile(filepath.Join(r.root.Cwd, "ran"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.t.Fatal(err)
	}
	return strings.Count(string(raw), "\n")
}

// start starts the device, as a process would after a restart.
func (r *rig) start(sink Sink) {
	r.t.Helper()
	j, err := r.state.Journal(time.Now)
	if err != nil {
		r.t.Fatal(err)
	}
	o := Options{
		Identity: state.Identity{RelayURL: r.relay.url, Device: "laptop", Token: "the-token"}, Root: r.root, Journal: j,
		Policy: policy.File{Path: filepath.Join(r.dir, "policy.json")}, Sink: sink, Log: slog.New(slog.NewTextHandler(logTo{r.t}, nil)),
		Rand: func(time.Duration) time.Duration { return time.Millisecond }, Tick: 5 * time.Millisecond,
	}
	if r.opts != nil {
		r.opts(&o)
	}
	r.device = New(o)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.device.Run(ctx) }()
	r.stop = sync.OnceValue(func() error {
		cancel()
		defer j.Close()
		select {
		case err := <-ended:
			return err
		case <-time.After(patience):
			return errors.New("the device does not stop")
		}
	})
	stop := r.stop
	r.t.Cleanup(func() { _ = stop() })
}

// logTo writes a device's log into the test's.
type logTo struct{ t testing.TB }

func (l logTo) Write(p []byte) (int, error) {
	if testing.Verbose() {
		l.t.Log(strings.TrimSpace(string(p)))
	}
	return len(p), nil
}

// human is a sink that hands approvals to the test.
type human chan *approval.Approval

func (h human) Ask(ctx context.Context, a *approval.Approval) error {
	select {
	case h <- a:
	case <-a.Done():
		return nil
	case <-ctx.Done():
		return nil
	}
	select {
	case <-a.Done():
	case <-ctx.Done():
	}
	return nil
}

func (h human) asked(t testing.TB) *approval.Approval {
	t.Helper()
	select {
	case a := <-h:
		return a
	case <-time.After(patience):
		t.Fatal("nobody was asked")
		return nil
	}
}

func yes(a *approval.Approval) (approval.Outcome, bool) { return a.Allow(a.Question.Hash(), false) }

// eventually waits for a condition.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for until := time.Now().Add(patience); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%s did not happen", what)
		}
	}
}
