package paseo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
)

// trouble is why a connection was not made, or ended.
type trouble struct {
	code   Code
	reason string
	cause  error
}

func (t *trouble) Error() string { return describe(string(t.code), t.reason, t.cause) }

func (t *trouble) Unwrap() error { return t.cause }

// writeTimeout bounds the writing of one frame; the largest prompts take their
// time over slow links.
const writeTimeout = 60 * time.Second

// keptBuffer is how much of a read buffer is kept for the next frame.
const keptBuffer = 1 << 20

// conn is one established connection: a reader, a writer and a keeper, which
// all end with it.
type conn struct {
	c          *Client
	ws         *websocket.Conn
	info       ServerInfo
	generation uint64

	out   chan *frame
	pings chan struct{}
	seq   atomic.Uint64

	mu      sync.Mutex
	pending map[string]chan answer // by request id
	asked   map[string][]asker     // by permission id
	ended   chan struct{}          // closed when the connection ends
	why     *trouble

	heard  atomic.Int64 // when the last frame came, in ns since start
	pinged atomic.Int64 // when the last ping went out; 0 if heard since
	start  time.Time

	rows rowTracker // the reader's own
}

type answer struct {
	payload json.RawMessage
	err     error
}

// asker waits for the end of a permission of one agent.
type asker struct {
	agentID string
	got     chan answer
}

// frame is one message on its way out. Whoever moves state away from queued
// decides: taken frames may have reached the daemon, withdrawn ones never will.
type frame struct {
	bytes []byte
	state atomic.Int32
}

const (
	queuedFrame int32 = iota
	takenFrame
	withdrawnFrame
)

func newConn(c *Client, ws *websocket.Conn, info ServerInfo) *conn {
	return &conn{
		c: c, ws: ws, info: info,
		out: make(chan *frame, 64), pings: make(chan struct{}, 1),
		pending: map[string]chan answer{}, asked: map[string][]asker{},
		ended: make(chan struct{}), start: time.Now(), rows: rowTracker{},
	}
}

// end marks the connection as over; the first reason stays. It doesn't wait.
func (cn *conn) end(t *trouble) {
	cn.mu.Lock()
	defer cn.mu.Unlock()
	if cn.why == nil {
		cn.why = t
		close(cn.ended)
	}
}

func (cn *conn) reason() *trouble {
	cn.mu.Lock()
	defer cn.mu.Unlock()
	return cn.why
}

// quiet is how long nothing has come.
func (cn *conn) quiet() time.Duration { return time.Since(cn.start) - time.Duration(cn.heard.Load()) }

// serve runs the connection until it ends or ctx does.
func (cn *conn) serve(ctx context.Context) *trouble {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() { cn.read(ctx) })
	running.Go(func() { cn.write(ctx) })
	running.Go(func() { cn.keep(ctx) })
	running.Go(func() { cn.resync(ctx) })
	select {
	case <-cn.ended:
	case <-ctx.Done():
		cn.end(&trouble{Stopped, "The gateway is stopping.", nil})
	}
	cancel()
	// Not a polite close: it would wait for a daemon that may have died.
	_ = cn.ws.CloseNow()
	running.Wait()
	return cn.reason()
}

// read takes in frames until the connection breaks. It never waits for a
// subscriber or a caller.
func (cn *conn) read(ctx context.Context) {
	var buf bytes.Buffer
	for {
		_, r, err := cn.ws.Reader(ctx)
		if err == nil {
			buf.Reset()
			_, err = buf.ReadFrom(r)
		}
		if err != nil {
			cn.end(lostBy(err))
			return
		}
		cn.heard.Store(int64(time.Since(cn.start)))
		if cn.pinged.Swap(0) != 0 {
			cn.c.setAlive(cn)
		}
		cn.handle(buf.Bytes())
		if buf.Cap() > keptBuffer {
			buf = bytes.Buffer{}
		}
	}
}

// lostBy says why an established connection broke.
func lostBy(err error) *trouble {
	switch {
	case errors.Is(err, websocket.ErrMessageTooBig):
		return &trouble{ConnectionLost, "The daemon sent a message larger than this client reads.", err}
	case websocket.CloseStatus(err) == -1:
		return &trouble{ConnectionLost, "The connection to the daemon broke.", err}
	}
	if t := refusal(err, true); t.code != HelloRefused {
		return t
	}
	return &trouble{ConnectionLost, "The daemon closed the connection.", err}
}

// write sends what is queued, one frame at a time.
func (cn *conn) write(ctx context.Context) {
	for {
		var data []byte
		ping := false
		select {
		case <-cn.ended:
			return
		case <-cn.pings:
			data, ping = []byte(`{"type":"ping"}`), true
		case f := <-cn.out:
			if cn.reason() != nil {
				return // so that the frame stays one that was never sent
			}
			if !f.state.CompareAndSwap(queuedFrame, takenFrame) {
				continue
			}
			data = f.bytes
		}
		bounded, cancel := context.WithTimeout(ctx, writeTimeout)
		err := cn.ws.Write(bounded, websocket.MessageText, data)
		cancel()
		if err != nil {
			cn.end(&trouble{ConnectionLost, "The connection to the daemon broke.", err})
			return
		}
		if ping {
			cn.pinged.CompareAndSwap(0, max(1, int64(time.Since(cn.start))))
		}
	}
}

// keep pings, and gives the connection up when nothing comes back. A daemon that
// was pinged once drops connections that fall silent, so it never stops.
func (cn *conn) keep(ctx context.Context) {
	o := cn.c.o
	tick := time.NewTicker(max(min(o.PingEvery, o.PongWithin)/4, time.Millisecond))
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if time.Since(last) >= o.PingEvery-o.PingEvery/8 {
			last = time.Now()
			select {
			case cn.pings <- struct{}{}:
			default:
			}
		}
		since := cn.pinged.Load()
		if since == 0 {
			continue
		}
		silent := time.Since(cn.start) - time.Duration(since)
		if silent > o.PongWithin {
			cn.end(&trouble{NoAnswer, "The daemon stopped answering.", nil})
			return
		}
		if silent > o.PongWithin/2 {
			cn.c.setSilent(cn)
		}
	}
}

// call sends one request and waits for its answer.
func (cn *conn) call(ctx context.Context, kind string, f fields) (json.RawMessage, error) {
	id := cn.c.requestID(cn)
	data, err := encode(kind, id, f)
	if err != nil {
		return nil, refuse("The request can't be written as JSON.")
	}
	got := make(chan answer, 1)
	cn.mu.Lock()
	cn.pending[id] = got
	cn.mu.Unlock()
	defer func() {
		cn.mu.Lock()
		delete(cn.pending, id)
		cn.mu.Unlock()
	}()
	return cn.exchange(ctx, data, got)
}

// exchange hands data to the writer and waits on got. Until the writer takes the
// frame it can be withdrawn, and then the call was never sent.
func (cn *conn) exchange(ctx context.Context, data []byte, got <-chan answer) (json.RawMessage, error) {
	f := &frame{bytes: data}
	select {
	case cn.out <- f:
	case <-cn.ended:
		return nil, cn.notSent()
	case <-ctx.Done():
		return nil, &NotSent{Code: ConnectionLost, Reason: "The connection to the daemon is too busy.", cause: context.Cause(ctx)}
	}
	select {
	case a := <-got:
		return a.payload, a.err
	case <-cn.ended:
	case <-ctx.Done():
	}
	select {
	case a := <-got: // it came at the same moment
		return a.payload, a.err
	default:
	}
	if f.state.CompareAndSwap(queuedFrame, withdrawnFrame) {
		if ctx.Err() != nil {
			return nil, &NotSent{Code: ConnectionLost, Reason: "The call ended before it could be sent.", cause: context.Cause(ctx)}
		}
		return nil, cn.notSent()
	}
	if ctx.Err() != nil {
		return nil, abandoned(ctx)
	}
	why := cn.reason()
	return nil, &Lost{Reason: why.reason, cause: why}
}

func (cn *conn) notSent() error {
	why := cn.reason()
	return &NotSent{Code: why.code, Reason: why.reason, cause: why}
}

// listen waits for the end of a permission, until forget.
func (cn *conn) listen(agentID, permissionID string) chan answer {
	got := make(chan answer, 1)
	cn.mu.Lock()
	defer cn.mu.Unlock()
	cn.asked[permissionID] = append(cn.asked[permissionID], asker{agentID, got})
	return got
}

// respond sends a permission answer, which has no answer of its own: the news
// that the permission is resolved is one, and so is an rpc_error that carries the
// permission's id in place of a request's.
func (cn *conn) respond(ctx context.Context, a PermissionAnswer, behavior string, got chan answer) error {
	data, err := encode("agent_permission_response", a.PermissionID, fields{"agentId": a.AgentID, "response": a.Response})
	if err != nil {
		return refuse("The response can't be written as JSON.")
	}
	payload, err := cn.exchange(ctx, data, got)
	var no *Rejected
	if errors.As(err, &no) {
		return &Rejected{Message: no.Message, Code: CodePermissionNotPending}
	}
	if err != nil {
		return err
	}
	if resolved, ok := decodeResolved(payload); ok && resolved.Behavior != "" && resolved.Behavior != behavior {
		return &Rejected{Message: "Somebody else answered this permission first.", Code: CodePermissionNotPending}
	}
	return nil
}

func (cn *conn) forget(permissionID string, got chan answer) {
	cn.mu.Lock()
	defer cn.mu.Unlock()
	kept := slices.DeleteFunc(cn.asked[permissionID], func(a asker) bool { return a.got == got })
	if len(kept) == 0 {
		delete(cn.asked, permissionID)
		return
	}
	cn.asked[permissionID] = kept
}

// deliver gives an answer to the call with this request id, if there is one.
func (cn *conn) deliver(requestID string, a answer) {
	cn.mu.Lock()
	defer cn.mu.Unlock()
	if got, ok := cn.pending[requestID]; ok {
		delete(cn.pending, requestID)
		got <- a // has room for one
	}
}

// settle gives an answer to everybody who answered this permission; agentID "" is
// of whatever agent.
func (cn *conn) settle(agentID, permissionID string, a answer) {
	cn.mu.Lock()
	defer cn.mu.Unlock()
	for _, asker := range cn.asked[permissionID] {
		if agentID != "" && agentID != asker.agentID {
			continue
		}
		select {
		case asker.got <- a:
		default: // it has one
		}
	}
}

// requestID is unique over this process, for the daemon may hand the answers of
// a session that it resumes to a later connection.
func (c *Client) requestID(cn *conn) string {
	return c.o.ClientID + ":" + strconv.FormatUint(cn.generation, 36) + ":" + strconv.FormatUint(cn.seq.Add(1), 36)
}
