package gateway

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"agentrelay/internal/fault"
	"agentrelay/internal/tool"
)

const (
	// maxBodyUnauthenticated bounds what is read from a request whose sender is
	// not known yet.
	maxBodyUnauthenticated = 64 << 10
	// maxBody bounds a request to the MCP endpoint (tools.md).
	maxBody = 4 << 20
	// bodyTimeout is how long a request's body may take to arrive.
	bodyTimeout = 30 * time.Second
)

// record is what one request leaves in the log: never an argument, a query, a
// header or a text.
type record struct {
	id   string
	body io.ReadCloser // without the limit for unauthenticated requests

	mu      sync.Mutex
	client  string   // the OAuth client's id, once known
	methods []string // of JSON-RPC; several in a batch
	tools   []string
	codes   []string // of refusals
	cause   error    // of the last refusal that has one
}

type recordKey struct{}

// recordOf returns the record of the request that ctx belongs to.
func recordOf(ctx context.Context) *record {
	rec, ok := ctx.Value(recordKey{}).(*record)
	if !ok { // a handler used without the stack; never in the gateway
		return &record{id: "noid"}
	}
	return rec
}

func (rec *record) authenticated(client string) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.client = client
}

func (rec *record) called(method, toolName string) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.methods = append(rec.methods, method)
	if toolName != "" {
		rec.tools = append(rec.tools, tool.Shown(toolName, 64))
	}
}

// refused notes a refusal. Its message is for the caller and stays out of the
// log; its cause is for the log.
func (rec *record) refused(e *fault.Error) {
	rec.refusedAs(e.Code)
	if cause := e.Unwrap(); cause != nil {
		rec.failed(cause)
	}
}

// refusedAs notes refusals by their codes alone.
func (rec *record) refusedAs(codes ...string) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.codes = append(rec.codes, codes...)
}

// failed notes what went wrong on our side.
func (rec *record) failed(cause error) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.cause = cause
}

// attrs is the record as log attributes, in a fixed order, without empty ones.
func (rec *record) attrs() []slog.Attr {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	var out []slog.Attr
	for _, a := range []struct{ key, value string }{
		{"client", rec.client},
		{"rpc", strings.Join(rec.methods, ",")},
		{"tool", strings.Join(rec.tools, ",")},
		{"refused", strings.Join(rec.codes, ",")},
	} {
		if a.value != "" {
			out = append(out, slog.String(a.key, a.value))
		}
	}
	if rec.cause != nil {
		out = append(out, slog.String("cause", rec.cause.Error()))
	}
	return out
}

// observe gives each request its record, writes its one log line, bounds its
// body, and turns a panic into an answer.
func (g *Gateway) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := g.now()
		rec := &record{id: newID(g.rand), body: r.Body}
		r = r.WithContext(context.WithValue(r.Context(), recordKey{}, rec))
		r.Body = http.MaxBytesReader(w, r.Body, maxBodyUnauthenticated)
		ww := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
		ww.Header().Set("X-Content-Type-Options", "nosniff")
		// The server has no read timeout of its own, for that would also end
		// long answers. Only a recorder in a test can't set the deadline.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
		defer func() {
			p := recover()
			if p != nil && p != http.ErrAbortHandler {
				if e := panicked(p); ww.Status() == 0 {
					refuse(ww, r, http.StatusInternalServerError, e)
				} else {
					rec.refused(e)
				}
			}
			g.logRequest(r, rec, ww.Status(), g.now().Sub(start))
			if p == http.ErrAbortHandler {
				panic(p)
			}
		}()
		next.ServeHTTP(ww, r)
	})
}

// panicked is the refusal after a panic; its cause is the stack.
func panicked(p any) *fault.Error {
	return fault.Internal.New("The gateway failed to finish this call.").Because(fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
}

func (g *Gateway) logRequest(r *http.Request, rec *record, status int, took time.Duration) {
	// The pattern, not the path: a path can hold a ticket.
	path := chi.RouteContext(r.Context()).RoutePattern()
	if path == "" || path == "/*" {
		path = tool.Shown(r.URL.Path, 64)
	}
	if strings.HasPrefix(path, "/files/") {
		path = "/files/*"
	}
	g.metrics.request(r.Method, chi.RouteContext(r.Context()).RoutePattern(), status, rec, took)
	attrs := append([]slog.Attr{
		slog.String("id", rec.id),
		slog.String("http", tool.Shown(r.Method, 16)),
		slog.String("path", path),
		slog.Int("status", status),
		slog.Int64("ms", took.Milliseconds()),
		slog.String("address", clientAddress(r)),
	}, rec.attrs()...)
	level := slog.LevelInfo
	switch {
	case r.Context().Err() != nil: // nothing went wrong here
		attrs = append(attrs, slog.Bool("gone", true)) // the client left before the answer
	case slices.Contains([]string{"/healthz", "/readyz", "/metrics"}, path) && status < 300:
		level = slog.LevelDebug
	case slices.ContainsFunc(attrs, func(a slog.Attr) bool { return a.Key == "cause" }), status >= 500:
		level = slog.LevelError
	}
	g.log.LogAttrs(r.Context(), level, "request", attrs...)
}
