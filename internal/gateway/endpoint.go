package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// firstStateless is the first protocol version without sessions. From it on the
// SDK cancels the handlers of a closed request and answers errors with statuses.
const firstStateless = "2026-07-28"

// endpoint is POST /mcp behind the bearer check: two handlers of the SDK over
// one server, one for each form of answer. Both are stateless, so that a restart
// of the gateway is invisible to clients of every protocol version.
type endpoint struct {
	json, sse http.Handler
	beats     beats
}

func newEndpoint(server *mcp.Server, b beats) *endpoint {
	handler := func(asJSON bool) http.Handler {
		return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{
			Stateless:                    true,
			JSONResponse:                 asJSON,
			PropagateRequestCancellation: true,
			DisableLocalhostProtection:   true, // guard stands in its place
			MaxRequestBodyBytes:          maxBody,
			Logger:                       slog.New(slog.DiscardHandler), // its lines can hold arguments
		})
	}
	return &endpoint{json: handler(true), sse: handler(false), beats: b}
}

// post is one request to the endpoint, for the layers below it.
type post struct {
	beats   beats
	rec     *record
	reply   *reply
	splices splices
	body    []byte
	version string          // of the MCP-Protocol-Version header
	closed  context.Context // ends when the client is gone
}

func (p *post) modern() bool { return p.version >= firstStateless }

type postKey struct{}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", "POST, OPTIONS")
		refuse(w, r, http.StatusMethodNotAllowed, methodNotAllowed.New("The MCP endpoint has no streams or sessions to open or end: it takes POST only."))
		return
	}
	form := negotiate(r.Header["Accept"])
	if form == formNone {
		refuse(w, r, http.StatusNotAcceptable, notAcceptable.New("This endpoint answers with application/json or text/event-stream; the Accept header allows neither."))
		return
	}
	if !plainJSON(r.Header) {
		refuse(w, r, http.StatusUnsupportedMediaType, unsupportedType.New("The body must be plain application/json."))
		return
	}
	p := &post{
		beats: e.beats, rec: recordOf(r.Context()), version: r.Header.Get("Mcp-Protocol-Version"), closed: r.Context(),
	}
	var ok bool
	if p.body, ok = readBody(w, r); !ok {
		return
	}
	if number, message := checkMessage(p.body); message != "" {
		resp := rpcFailure(p.body, number, message, p.rec.id)
		p.rec.refusedAs(resp.Error.name())
		writeJSON(w, http.StatusBadRequest, resp)
		return
	}
	e.serve(w, r, p, form)
}

// plainJSON reports whether the body is JSON that needs no unpacking.
func plainJSON(h http.Header) bool {
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	encoding := h.Get("Content-Encoding")
	return err == nil && kind == "application/json" && (encoding == "" || strings.EqualFold(encoding, "identity"))
}

// serve hands a request to the SDK in the shape that it accepts.
func (e *endpoint) serve(w http.ResponseWriter, r *http.Request, p *post, form form) {
	r.Body = io.NopCloser(bytes.NewReader(p.body))
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Del("Authorization")  // handlers see the headers; the token is no business of theirs
	r.Header.Del("Mcp-Session-Id") // there are no sessions, whatever a client remembers
	r.Header.Del("Last-Event-ID")  // nor streams to resume
	p.reply = newReply(w, p)
	defer p.reply.finish()
	r = r.WithContext(context.WithValue(r.Context(), postKey{}, p))
	if form == formSSE {
		e.sse.ServeHTTP(p.reply, r)
	} else {
		e.json.ServeHTTP(p.reply, r)
	}
}

// readBody reads a whole body, or refuses it.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	tooLarge := func() ([]byte, bool) {
		refuse(w, r, http.StatusRequestEntityTooLarge, bodyTooLarge.New("A request to this endpoint has at most 4 MiB."))
		return nil, false
	}
	if r.ContentLength > maxBody {
		return tooLarge()
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return tooLarge()
	case err != nil:
		refuse(w, r, http.StatusBadRequest, bodyUnreadable.New("The body did not arrive whole.").Because(err))
		return nil, false
	}
	// From here on only the client's leaving may end the wait for an answer.
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Time{})
	_ = rc.SetWriteDeadline(time.Time{})
	return body, true
}

// receive is the middleware that every MCP call passes on its way to a handler,
// in all protocol versions. It notes the call, keeps the answer's stream alive,
// ends the handler with its request, and survives its panics: the SDK runs it in
// a goroutine of its own.
func (g *Gateway) receive(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (res mcp.Result, err error) {
		p, ok := ctx.Value(postKey{}).(*post)
		if !ok {
			return nil, errors.New("a call came without its request")
		}
		tool := ""
		if params, ok := req.GetParams().(*mcp.CallToolParamsRaw); ok {
			tool = params.Name
		}
		p.rec.called(method, tool)
		p.reply.keepAlive()

		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(p.closed, cancel)()
		if method == "subscriptions/listen" { // waits for nothing but its end
			defer context.AfterFunc(g.stopping, cancel)()
		}
		defer func() {
			if v := recover(); v != nil {
				res, err = nil, panicked(v)
			}
			err = forClient(p.rec, err)
		}()
		res, err = next(ctx, method, req)
		if err == nil {
			p.splices.hold(res)
		}
		return res, err
	}
}

// forClient keeps errors that are meant for the client. All others go to the log.
func forClient(rec *record, err error) error {
	var wire *jsonrpc.Error
	if err == nil || errors.As(err, &wire) {
		return err
	}
	rec.failed(err)
	return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "The gateway failed to finish this call."}
}
