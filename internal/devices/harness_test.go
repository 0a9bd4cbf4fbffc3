package devices

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// relay is a service with a store and a websocket address that outlives restarts.
type relay struct {
	*Service
	t       testing.TB
	options Options
	dir     string
	url     string
	log     *logs
	current atomic.Pointer[Service]
	refused atomic.Int64 // upgrades answered with 503
}

type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// wsSocket is what the gateway gives to a service, without the gateway.
type wsSocket struct{ conn *websocket.Conn }

func (s wsSocket) Next(ctx context.Context) (io.Reader, error) {
	_, r, err := s.conn.Reader(ctx)
	return r, err
}
func (s wsSocket) Write(ctx context.Context, m []byte) error {
	return s.conn.Write(ctx, websocket.MessageText, m)
}
func (s wsSocket) Ping(ctx context.Context) error { return s.conn.Ping(ctx) }
func (s wsSocket) Close(code int, reason string) {
	if code == 0 {
		_ = s.conn.CloseNow()
		return
	}
	_ = s.conn.Close(websocket.StatusCode(code), reason)
}

func newRelay(t testing.TB, change ...func(*Options)) *relay {
	r := &relay{t: t, dir: t.TempDir() + "/state", log: &logs{}}
	r.options = Options{
		LinksPerSecond: 10_000, URL: "ws://relay.test/device",
		Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, f := range change {
		f(&r.options)
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		s := r.current.Load()
		leave, retry, ok := s.Admit()
		if !ok {
			r.refused.Add(1)
			w.Header().Set("Retry-After", fmt.Sprint(int(retry.Seconds())+1))
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		conn, err := websocket.Accept(w, req, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			leave()
			return
		}
		conn.SetReadLimit(-1)
		s.Serve(wsSocket{conn}, leave)
	}))
	r.url = "ws" + strings.TrimPrefix(srv.URL, "http") + "/device"
	r.open()
	t.Cleanup(func() {
		r.close()
		srv.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return r
}

func (r *relay) open() {
	r.t.Helper()
	var err error
	o := r.options
	if o.Store, err = store.Open(context.Background(), store.Options{Dir: r.dir, Now: o.Now}); err != nil {
		r.t.Fatal(err)
	}
	r.Service = New(o)
	r.current.Store(r.Service)
	if err := r.Start(context.Background()); err != nil {
		r.t.Fatal(err)
	}
}

func (r *relay) close() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := errors.Join(r.Close(ctx), r.store.Close()); err != nil {
		r.t.Error(err)
	}
}

func (r *relay) restart() { r.t.Helper(); r.close(); r.open() }

// frame is a frame as a stranger's program has it.
type frame map[string]any

func (f frame) text(name string) string { s, _ := f[name].(string); return s }

// stranger is a device written from the specification alone: it knows no package of
// ours.
type stranger struct {
	t    testing.TB
	conn *websocket.Conn
}

func dial(t testing.TB, url string) *stranger {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(4 << 20)
	t.Cleanup(func() { conn.CloseNow() })
	return &stranger{t, conn}
}

func (d *stranger) send(f frame) {
	d.t.Helper()
	if err := d.try(f); err != nil {
		d.t.Fatal(err)
	}
}

func (d *stranger) try(f frame) error {
	raw, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return d.raw(raw)
}

func (d *stranger) raw(raw []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return d.conn.Write(ctx, websocket.MessageText, raw)
}

func (d *stranger) next() (frame, error) { return d.nextIn(10 * time.Second) }

func (d *stranger) nextIn(patience time.Duration) (frame, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, raw, err := d.conn.Read(ctx)
	if err != nil {
		return nil, err
	}
	var f frame
	return f, json.Unmarshal(raw, &f)
}

// want reads the next frame, which must have a type.
func (d *stranger) want(kind string) frame {
	d.t.Helper()
	f, err := d.next()
	if err != nil || f.text("type") != kind {
		d.t.Fatalf("got %v, %v; want %s", f, err, kind)
	}
	return f
}

// refused reads the err frame and the end of the link.
func (d *stranger) refused(code string) frame {
	d.t.Helper()
	f := d.want("err")
	if f.text("code") != code || f.text("msg") == "" {
		d.t.Fatalf("got %v, want the code %s", f, code)
	}
	if _, err := d.next(); err == nil {
		d.t.Fatal("the link goes on")
	}
	return f
}

// answer serves one call.
func (d *stranger) answer(output string) frame {
	d.t.Helper()
	f := d.want("call")
	d.send(frame{"type": "tool_result", "ref": f["ref"], "ok": true, "output": output})
	return f
}

// run and echo are the tools of a stranger.
var tools = []frame{
	{"name": "run", "desc": "Run a shell command on this device.\nIn a shell.", "requires": []string{"shell", "net", "moon"}, "schema": json.RawMessage(
		`{"type":"object","properties":{"cmd":{"type":"string","description":"the command line"},"timeout_s":{"type":"integer","default":60}},"required":["cmd"]}`)},
	{"name": "echo", "desc": "Say it again.", "schema": frame{"type": "object"}},
}

func (r *relay) pairDevice(name string) (token string) {
	r.t.Helper()
	code, err := r.PairingCode(context.Background(), PairIn{})
	if err != nil {
		r.t.Fatal(err)
	}
	return r.pairWith(code.Code, name)
}

func (r *relay) pairWith(code, name string) string {
	r.t.Helper()
	d := dial(r.t, r.url)
	d.send(frame{"type": "pair", "code": code, "device": name})
	f := d.want("paired")
	if f.text("device") != name || len(f.text("token")) < 43 {
		r.t.Fatal(f)
	}
	if _, err := d.next(); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		r.t.Fatalf("the socket did not close after paired: %v", err)
	}
	return f.text("token")
}

func hello(name, token string) frame {
	return frame{"type": "hello", "token": token, "proto": 1, "device": name, "platform": "linux x86_64", "tools": tools}
}

func (r *relay) connect(name, token string, more ...any) *stranger {
	r.t.Helper()
	d := dial(r.t, r.url)
	f := hello(name, token)
	for i := 0; i+1 < len(more); i += 2 {
		f[more[i].(string)] = more[i+1]
	}
	d.send(f)
	if ready := d.want("ready"); ready.text("device") != name || ready["proto"] != 1.0 || ready.text("policy_hint") == "" {
		r.t.Fatal(ready)
	}
	return d
}

// alice and bob are clients of two owners.
var (
	alice = principal.Principal{Owner: "local-owner:a", ClientID: "a", ClientName: "Alice's harness", Permissions: principal.Full()}
	bob   = principal.Principal{Owner: "local-owner:b", ClientID: "b", ClientName: "Bob", Permissions: principal.Full()}
)

func echo(device string) CallIn {
	return CallIn{Device: device, Tool: "echo", Args: json.RawMessage(`{"text":"hi"}`), Reason: "to hear it"}
}

// result is what a call gave.
type result struct {
	out CallOut
	err error
}

// start makes a call in the background.
func (r *relay) start(ctx context.Context, who principal.Principal, in CallIn) <-chan result {
	c := make(chan result, 1)
	s := r.Service
	go func() {
		out, err := s.Call(ctx, who, in)
		c <- result{out, err}
	}()
	return c
}

func within[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatal("it did not end")
		panic("unreachable")
	}
}

func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never: " + what)
		}
	}
}

// refusedWith checks a refusal's kind and its message.
func refusedWith(t testing.TB, err error, kind fault.Kind, message string) {
	t.Helper()
	var e *fault.Error
	if !errors.As(err, &e) || e.Code != kind.Code || (message != "" && e.Message != message) {
		t.Fatalf("got %v, want %s: %s", err, kind.Code, message)
	}
}

// stored reads a call from the store.
func (r *relay) stored(id string) (out row) {
	r.t.Helper()
	err := store.Read(context.Background(), r.store, func(q *store.Reader) (err error) {
		out, _, err = find(q, `call_id = ?`, id)
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}
