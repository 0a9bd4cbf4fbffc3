package gateway

import (
	"bytes"
	"errors"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"agentrelay/internal/tool"
)

const (
	// firstBeat is how long a stream may be silent before its headers and a
	// comment are sent: quick answers need none.
	firstBeat = 500 * time.Millisecond
	// nextBeat keeps proxies from cutting a silent stream; the strictest known
	// cuts after 30 s.
	nextBeat = 15 * time.Second
	// writeTimeout is how long a client may take no byte before it is given up.
	writeTimeout = 30 * time.Second
)

// beats are the times of an event stream that is kept alive.
type beats struct{ first, next time.Duration }

// reply is the [http.ResponseWriter] that the SDK answers one POST with. It
// keeps a silent event stream alive with comments, gives errors the form that all
// our errors have, and sees that nothing is written once the request is over.
//
// The SDK writes from several goroutines and changes headers while it does, so
// it gets a header map of its own, which is copied under the lock when the first
// byte goes out.
type reply struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	post   *post
	header http.Header

	mu        sync.Mutex
	closed    bool
	committed bool
	status    int          // of an error that is held back for finish; else 0
	held      bytes.Buffer // the body of that error
	framed    bool         // an error came after the stream began: it must be an event
	timer     *time.Timer  // not nil once armed
}

func newReply(w http.ResponseWriter, p *post) *reply {
	return &reply{w: w, rc: http.NewResponseController(w), post: p, header: http.Header{}}
}

// errOver is returned to a handler that writes after its request has ended.
var errOver = errors.New("the request is over")

// Header implements [http.ResponseWriter].
func (rp *reply) Header() http.Header { return rp.header }

// Unwrap lets an [http.ResponseController] reach the connection.
func (rp *reply) Unwrap() http.ResponseWriter { return rp.w }

// WriteHeader implements [http.ResponseWriter].
func (rp *reply) WriteHeader(status int) {
	rp.mu.Lock()
	defer rp.mu.Unlock()
	switch {
	case rp.closed, rp.status != 0:
	case rp.committed:
		rp.framed = status >= 400
	case status >= 400:
		rp.status = status
	default:
		rp.commit(rp.header, status)
	}
}

// Write implements [http.ResponseWriter]. The SDK writes whole messages.
func (rp *reply) Write(b []byte) (int, error) {
	rp.mu.Lock()
	defer rp.mu.Unlock()
	if rp.closed {
		return 0, errOver
	}
	if rp.status != 0 {
		return rp.held.Write(b)
	}
	if !rp.committed {
		rp.commit(rp.header, http.StatusOK)
	}
	if _, err := rp.w.Write(rp.post.splices.fill(rp.complete(b))); err != nil {
		return 0, err
	}
	return len(b), nil
}

// complete gives a message of the SDK its final form.
func (rp *reply) complete(b []byte) []byte {
	message, isEvent := b, false
	if rest, ok := bytes.CutPrefix(b, []byte("event: message\ndata: ")); ok {
		message, isEvent = bytes.TrimSuffix(rest, []byte("\n\n")), true
	}
	refined, codes := refine(message, rp.post.rec.id)
	rp.post.rec.refusedAs(codes...)
	switch {
	case rp.framed, isEvent && len(codes) > 0:
		return event(refined)
	case isEvent:
		return b
	}
	return refined
}

// event frames a message as the SDK does.
func event(message []byte) []byte {
	return append(append([]byte("event: message\ndata: "), message...), "\n\n"...)
}

// FlushError implements the flushing of [http.ResponseController].
func (rp *reply) FlushError() error {
	rp.mu.Lock()
	defer rp.mu.Unlock()
	if rp.closed || !rp.committed {
		return nil
	}
	return rp.flush()
}

func (rp *reply) flush() error {
	err := rp.rc.Flush()
	if errors.Is(err, http.ErrNotSupported) { // a recorder in a test
		return nil
	}
	return err
}

// commit sends the headers. The caller holds the lock.
func (rp *reply) commit(header http.Header, status int) {
	rp.committed = true
	h := rp.w.Header()
	maps.Copy(h, header)
	h.Set("Cache-Control", "no-store, no-transform")
	if isStream(header) {
		h.Set("X-Accel-Buffering", "no")
	}
	rp.extend()
	rp.w.WriteHeader(status)
}

// extend gives the client a new while to take what is written next.
func (rp *reply) extend() {
	_ = rp.rc.SetWriteDeadline(time.Now().Add(writeTimeout)) // only a recorder can't
}

// keepAlive begins to keep the stream alive, if the answer is one. It is called
// once a handler is about to run: what can be refused with a status has been.
func (rp *reply) keepAlive() {
	rp.mu.Lock()
	defer rp.mu.Unlock()
	if rp.closed || rp.timer != nil || !isStream(rp.header) {
		return
	}
	header := rp.header.Clone()
	rp.timer = time.AfterFunc(rp.post.beats.first, func() { rp.beat(header) })
}

func (rp *reply) beat(header http.Header) {
	rp.mu.Lock()
	defer rp.mu.Unlock()
	if rp.closed || rp.status != 0 {
		return
	}
	if !rp.committed {
		rp.commit(header, http.StatusOK)
	}
	rp.extend()
	if _, err := rp.w.Write([]byte(": ok\n\n")); err != nil || rp.flush() != nil {
		return // the client is gone; the server cancels the request
	}
	rp.timer.Reset(rp.post.beats.next)
}

// finish sends an error that was held back, and ends all writing. It must be
// called before the request's handler returns.
func (rp *reply) finish() {
	rp.mu.Lock()
	defer rp.mu.Unlock()
	rp.closed = true
	if rp.timer != nil {
		rp.timer.Stop()
	}
	rp.extend()
	if rp.status == 0 {
		return
	}
	body := rp.held.Bytes()
	if !strings.HasPrefix(rp.header.Get("Content-Type"), "application/json") {
		var resp rpcResponse
		resp, rp.status = fromText(string(body), rp.status, rp.post)
		rp.post.rec.refusedAs(resp.Error.name())
		body = tool.Encode(resp)
	} else {
		body = rp.complete(body)
	}
	rp.header.Set("Content-Type", "application/json")
	rp.commit(rp.header, rp.status)
	rp.w.Write(body)
}

func isStream(h http.Header) bool {
	return strings.HasPrefix(h.Get("Content-Type"), "text/event-stream")
}
