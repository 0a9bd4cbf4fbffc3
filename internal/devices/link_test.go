package devices

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"agentrelay/internal/devices/wire"
)

func TestAStrangersDeviceServesACall(t *testing.T) {
	r := newRelay(t)
	d := r.connect("laptop", r.pairDevice("laptop"))
	call := r.start(t.Context(), alice, CallIn{Device: "laptop", Tool: "run", Args: json.RawMessage(`{"cmd": "ls <x>", "timeout_s": 5}`), Reason: "look around"})
	f := d.want("call")
	if args, _ := f["args"].(map[string]any); f.text("tool") != "run" || f.text("reason") != "look around" || f.text("agent") != "Alice's harness" || f.text("ref") == "" || args["cmd"] != "ls <x>" || args["timeout_s"] != 5.0 {
		t.Fatal(f)
	}
	d.send(frame{"type": "ping", "id": 3})
	if pong := d.want("pong"); pong.text("ref") != "3" {
		t.Error(pong)
	}
	d.send(frame{"type": "tool_result", "ref": f["ref"], "ok": true, "output": "a\nb", "summary": "ls", "spilled": true, "extra": nil})
	got := within(t, call)
	if got.err != nil || got.out.State != Done || got.out.Output != "a\nb" || got.out.Summary != "ls" || !got.out.Spilled || got.out.CallID != f.text("ref") {
		t.Fatalf("%+v", got)
	}
	if row := r.stored(got.out.CallID); len(row.args) != 0 || row.reason != "" || row.argsHash != wire.HashArgs([]byte(`{"cmd":"ls <x>","timeout_s":5}`)) {
		t.Errorf("%+v", row)
	}
	// No ack, no progress: it did not ask for what it does not know.
	d.send(frame{"type": "ping"})
	d.want("pong")
}

func TestWhatALinkRefuses(t *testing.T) {
	r := newRelay(t, func(o *Options) { o.Times.FirstFrame = 2 * time.Second })
	token := r.pairDevice("laptop")
	other := r.pairDevice("phone")
	for name, c := range map[string]struct {
		first string
		code  string
	}{
		"no JSON":             {`hello`, "malformed"},
		"no type":             {`{}`, "malformed"},
		"another first frame": {`{"type":"ping"}`, "proto"},
		"a later version":     {`{"type":"hello","proto":2,"token":"x","device":"laptop"}`, "proto"},
		"an unknown token":    {`{"type":"hello","proto":1,"token":"x","device":"laptop"}`, "auth"},
		"another's token":     {`{"type":"hello","proto":1,"token":"` + other + `","device":"laptop"}`, "auth"},
		"a wrong code":        {`{"type":"pair","code":"2222-2222-2222","device":"tablet"}`, "auth"},
		"a bad name":          {`{"type":"pair","code":"2222-2222-2222","device":"../x"}`, "malformed"},
		"a huge first frame":  {`{"type":"pair","code":"` + strings.Repeat("x", 1<<20) + `","device":"tablet"}`, "too_large"},
	} {
		t.Run(name, func(t *testing.T) {
			d := dial(t, r.url)
			if err := d.raw([]byte(c.first)); err != nil {
				t.Fatal(err)
			}
			d.refused(c.code)
		})
	}

	d := r.connect("laptop", token)
	if err := d.raw([]byte(`{"type":`)); err != nil {
		t.Fatal(err)
	}
	if f := d.want("err"); f.text("code") != "malformed" {
		t.Error(f)
	}
	if err := d.raw([]byte(`{"type":"ping","id":"` + strings.Repeat("x", 2<<20) + `"}`)); err != nil {
		t.Fatal(err)
	}
	if f := d.want("err"); f.text("code") != "too_large" {
		t.Error(f)
	}
	d.send(frame{"type": "something_new", "ref": "x"})
	d.send(frame{"type": "tool_result", "ref": "call-of-nobody", "ok": true, "output": ""})
	d.send(frame{"type": "ping"})
	d.want("pong") // the link has survived all that

	// A second device of the name, with a token that is valid for another one.
	second := dial(t, r.url)
	second.send(hello("laptop", other))
	second.refused("device_taken")

	silent := dial(t, r.url)
	if _, err := silent.next(); err == nil {
		t.Error("a link that never says who it is stays")
	}
}

func TestAHelloMayBeAWholeFrame(t *testing.T) {
	r := newRelay(t)
	token := r.pairDevice("laptop")
	schema := `{"type":"object","description":"` + strings.Repeat("x", 900<<10) + `"}`
	d := dial(t, r.url)
	if err := d.raw([]byte(`{"tools":[{"name":"big","desc":"d","schema":` + schema + `}],"type":"hello","proto":1,"device":"laptop","token":"` + token + `"}`)); err != nil {
		t.Fatal(err)
	}
	d.want("ready")
}

func TestHelloAgainReplacesTheTools(t *testing.T) {
	r := newRelay(t)
	token := r.pairDevice("laptop")
	d := r.connect("laptop", token)
	f := hello("laptop", token)
	f["tools"] = []frame{{"name": "fresh", "desc": "new"}}
	d.send(f)
	d.want("ready")
	_, err := r.Call(t.Context(), alice, echo("laptop"))
	refusedWith(t, err, UnknownTool, "device laptop has no tool echo: it has fresh")
	f["token"] = "another"
	d.send(f)
	d.refused("auth")
}

func TestTheSameTokenTakesTheLinkOver(t *testing.T) {
	r := newRelay(t)
	token := r.pairDevice("laptop")
	old := r.connect("laptop", token)
	call := r.start(t.Context(), alice, echo("laptop"))
	f := old.want("call")
	fresh := r.connect("laptop", token)
	if _, err := old.next(); err == nil {
		t.Error("the old link goes on")
	}
	fresh.send(frame{"type": "tool_result", "ref": f["ref"], "ok": true, "output": "late but there"})
	if got := within(t, call); got.out.Output != "late but there" {
		t.Errorf("%+v", got)
	}
}

func TestRevocation(t *testing.T) {
	r := newRelay(t)
	token := r.pairDevice("laptop")
	d := r.connect("laptop", token)
	running := r.start(t.Context(), alice, echo("laptop"))
	f := d.want("call")
	waiting := r.start(t.Context(), alice, echo("laptop"))
	eventually(t, "the second call waits", func() bool { return r.lanes["laptop"] != nil && r.openCalls("laptop") == 2 })
	out, err := r.Revoke(t.Context(), RevokeIn{Name: "laptop"})
	if err != nil || out.Calls != 2 {
		t.Fatal(out, err)
	}
	for _, c := range []<-chan result{running, waiting} {
		refusedWith(t, within(t, c).err, Revoked, "device laptop was revoked")
	}
	if deny := d.want("deny"); deny["ref"] != f["ref"] || deny.text("why") != "revoked" {
		t.Error(deny)
	}
	d.refused("auth")
	again := dial(t, r.url)
	again.send(hello("laptop", token))
	again.refused("auth")
	_, err = r.Revoke(t.Context(), RevokeIn{Name: "laptop"})
	refusedWith(t, err, UnknownDevice, "")
	r.pairDevice("laptop") // the name is free
}

func (r *relay) openCalls(device string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.lanes[device]; l != nil {
		return len(l.calls)
	}
	return 0
}

// TestAHalfOpenLinkIsNoticed: the way to the device is cut without a word after hello.
func TestAHalfOpenLinkIsNoticed(t *testing.T) {
	if worst := time.Duration(wire.MissedPings+1) * wire.PingEvery; worst > 75*time.Second || wire.Silence > 75*time.Second {
		t.Errorf("a dead link is noticed after %v by the relay and %v by the device", worst, wire.Silence)
	}
	const every = 200 * time.Millisecond
	r := newRelay(t, func(o *Options) { o.Times.Ping, o.Times.Budget = every, 2*time.Second })
	hole := newHole(t, strings.TrimSuffix(strings.TrimPrefix(r.url, "ws://"), "/device"))
	token := r.pairDevice("laptop")
	d := dial(t, "ws://"+hole.addr+"/device")
	d.send(hello("laptop", token))
	d.want("ready")
	go func() { // answers pings while the way is open
		for {
			if _, err := d.next(); err != nil {
				return
			}
		}
	}()
	time.Sleep(4 * every) // several pings are answered
	if list, err := r.ListPaired(t.Context()); err != nil || !list[0].Connected {
		t.Fatal(list, err)
	}
	call := r.start(t.Context(), alice, echo("laptop"))
	eventually(t, "the call is sent", func() bool { return r.inFlight("laptop") != "" })
	hole.swallow()
	start := time.Now()
	eventually(t, "the relay notices", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.links["laptop"] == nil })
	if took := time.Since(start); took > (wire.MissedPings+1)*every+2*every {
		t.Errorf("it took %v with a ping every %v", took, every)
	}
	refusedWith(t, within(t, call).err, Lost, "device laptop was lost while the call was under way")
	_, err := r.Call(t.Context(), alice, echo("laptop"))
	refusedWith(t, err, NotConnected, "device laptop is not connected")
}

// hole forwards TCP until it swallows everything.
type hole struct {
	addr  string
	mu    sync.Mutex
	shut  bool
	conns []net.Conn
}

func newHole(t *testing.T, to string) *hole {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &hole{addr: l.Addr().String()}
	var wg sync.WaitGroup
	pump := func(dst, src net.Conn) {
		buf := make([]byte, 32<<10)
		for {
			n, err := src.Read(buf)
			h.mu.Lock()
			shut := h.shut
			h.mu.Unlock()
			if n > 0 && !shut {
				_, _ = dst.Write(buf[:n])
			}
			if err != nil {
				return
			}
		}
	}
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			h.mu.Lock()
			h.conns = append(h.conns, in, out)
			h.mu.Unlock()
			wg.Go(func() { pump(out, in) })
			wg.Go(func() { pump(in, out) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		h.mu.Lock()
		for _, c := range h.conns {
			c.Close()
		}
		h.mu.Unlock()
		wg.Wait()
	})
	return h
}

func (h *hole) swallow() { h.mu.Lock(); defer h.mu.Unlock(); h.shut = true }

func TestAStopTellsDevicesWhenToComeBack(t *testing.T) {
	r := newRelay(t)
	var all []*stranger
	for i := range 3 {
		name := fmt.Sprintf("d-%d", i)
		all = append(all, r.connect(name, r.pairDevice(name)))
	}
	ends := make(chan error, len(all))
	for _, d := range all {
		go func() {
			_, err := d.next()
			ends <- err
		}()
	}
	r.restart()
	for range all {
		err := within(t, ends)
		var e websocket.CloseError
		if code := websocket.CloseStatus(err); code != wire.CloseRestart {
			t.Fatalf("%v %d", err, code)
		}
		if !asClose(err, &e) {
			t.Fatal(err)
		}
		if wait, ok := wire.ParseRetry(e.Reason); !ok || wait < time.Second || wait > 31*time.Second {
			t.Error(e.Reason)
		}
	}
}

func asClose(err error, e *websocket.CloseError) bool {
	for ; err != nil; err = unwrap(err) {
		if c, ok := err.(websocket.CloseError); ok {
			*e = c
			return true
		}
	}
	return false
}

func unwrap(err error) error {
	u, ok := err.(interface{ Unwrap() error })
	if !ok {
		return nil
	}
	return u.Unwrap()
}

// memory is a socket without a network.
type memory struct {
	in, out chan []byte
	end     context.Context
	stop    context.CancelFunc
}

func newMemory() *memory {
	m := &memory{in: make(chan []byte), out: make(chan []byte, 64)}
	m.end, m.stop = context.WithCancel(context.Background())
	return m
}

func (m *memory) Next(ctx context.Context) (io.Reader, error) {
	select {
	case raw := <-m.in:
		return strings.NewReader(string(raw)), nil
	case <-m.end.Done():
	case <-ctx.Done():
	}
	return nil, io.EOF
}

func (m *memory) Write(ctx context.Context, raw []byte) error {
	select {
	case m.out <- raw:
		return nil
	case <-m.end.Done():
	case <-ctx.Done():
	}
	return io.EOF
}
func (m *memory) Ping(context.Context) error { return nil }
func (m *memory) Close(int, string)          { m.stop() }

// FuzzFrames: whatever a device that said hello sends, it gets its pong afterwards, or
// its link has ended, and the next device is served.
func FuzzFrames(f *testing.F) {
	r := newRelay(f)
	token := r.pairDevice("laptop")
	for _, seed := range []string{
		`{"type":"tool_result","ref":"x","ok":true,"output":"y"}`, `{"type":"hello","token":"` + token + `","proto":1,"device":"laptop","tools":[{"name":"a","schema":{"$ref":"#"}}]}`,
		`{"type":"progress","ref":"x","phase":"approval"}`, `{"type":"deny","ref":"x"}`, `[]`, "\x00",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m := newMemory()
		gone := make(chan struct{})
		r.Serve(m, func() { close(gone) })
		first, _ := json.Marshal(hello("laptop", token))
		feed := func(raw []byte) bool {
			select {
			case m.in <- raw:
				return true
			case <-gone:
				return false
			}
		}
		if feed(first) && feed(raw) && feed([]byte(`{"type":"ping","id":"fuzz"}`)) {
			for found := false; !found; {
				select {
				case got := <-m.out:
					if !json.Valid(got) {
						t.Fatalf("%q", got)
					}
					found = strings.Contains(string(got), `"pong"`)
				case <-gone:
					found = true
				}
			}
		}
		_, _ = r.List(t.Context(), alice, ListIn{})
		_, _ = r.Schema(t.Context(), alice, SchemaIn{Device: "laptop", Tool: "a"})
		m.stop()
		<-gone
	})
}
