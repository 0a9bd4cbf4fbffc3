package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"agentrelay/internal/config"
	"agentrelay/internal/oauth"
	"agentrelay/internal/principal"
	"agentrelay/internal/tool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The tokens that tests use, and what each stands for.
const (
	goodToken   = "tok-good"
	otherToken  = "tok-other"
	mutedToken  = "tok-muted"  // without the mailbox permission
	blindToken  = "tok-blind"  // without reading files
	narrowToken = "tok-narrow" // without the scope
	brokenToken = "tok-broken" // the store fails while it is checked
)

// fakeTokens is the authorization server with tokens known beforehand, so that
// tests of the transport need no login.
type fakeTokens struct {
	authorizationServer
	shared bool
}

func (f fakeTokens) Authenticate(_ context.Context, token string) (oauth.Access, error) {
	access := func(client string, perms principal.Set, scopes ...string) (oauth.Access, error) {
		return oauth.Access{
			Principal: principal.Principal{Owner: principal.OwnerOf(f.shared, client), ClientID: client, ClientName: "Test", Permissions: perms},
			Scopes:    scopes, ExpiresAt: time.Unix(1, 0), // long ago: only Authenticate decides
		}, nil
	}
	switch token {
	case goodToken:
		return access("client-a", principal.Full(), oauth.ScopeAgents)
	case otherToken:
		return access("client-b", principal.Full(), oauth.ScopeAgents)
	case mutedToken:
		return access("client-m", principal.Full().Without(principal.Mailbox), oauth.ScopeAgents)
	case blindToken:
		return access("client-blind", principal.Full().Without(principal.FilesRead), oauth.ScopeAgents)
	case narrowToken:
		return access("client-n", principal.Full(), oauth.ScopeOffline)
	case brokenToken:
		return oauth.Access{}, errors.New("checking an access token: disk I/O error")
	}
	return oauth.Access{}, oauth.ErrInvalidToken
}

// harness is a gateway in a test, served by httptest.
type harness struct {
	*Gateway
	url string
	log *logBuffer
}

// logBuffer collects the log as JSON lines.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// testConfig is a config with a fresh state directory and a free port.
func testConfig(t testing.TB) *config.Config {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	home := map[string]string{"HOME": dir, "XDG_STATE_HOME": dir}
	c, err := config.Default(func(k string) string { return home[k] })
	if err != nil {
		t.Fatal(err)
	}
	c.StateDir, c.OwnerTokenFile, c.SharedOwner, c.Port = dir, filepath.Join(dir, "owner.json"), true, 0
	if err := os.WriteFile(c.OwnerTokenFile, []byte(`{"ownerToken":"correct horse battery staple 42"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// open builds a gateway. The caller closes it.
func open(t testing.TB, c *config.Config, log io.Writer, extra ...tool.Tool) *Gateway {
	t.Helper()
	g, err := New(t.Context(), Options{Config: c, Log: slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})), Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	g.oauth = fakeTokens{g.oauth, c.SharedOwner}
	g.beats = beats{50 * time.Millisecond, 50 * time.Millisecond}
	g.moreTools = extra
	return g
}

// start builds a gateway and serves it until the test ends.
func start(t *testing.T, c *config.Config, extra ...tool.Tool) *harness {
	t.Helper()
	log := &logBuffer{}
	g := open(t, c, log, extra...)
	h := serve(t, g, g.Handler())
	h.log = log
	return h
}

// serve serves a handler of g until the test ends, and then closes g.
func serve(t *testing.T, g *Gateway, handler http.Handler) *harness {
	t.Helper()
	srv := httptest.NewServer(handler)
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		srv.Close()
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return &harness{Gateway: g, url: srv.URL}
}

// request is one HTTP request of a test.
type request struct {
	method, path string
	header       map[string][]string
	body         string
}

func (h *harness) do(t *testing.T, rq request) (*http.Response, string) {
	t.Helper()
	resp := h.open(t, t.Context(), rq)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// open sends a request and returns before the body is read.
func (h *harness) open(t *testing.T, ctx context.Context, rq request) *http.Response {
	t.Helper()
	if rq.method == "" {
		rq.method = http.MethodPost
	}
	r, err := http.NewRequestWithContext(ctx, rq.method, h.url+rq.path, strings.NewReader(rq.body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range rq.header {
		r.Header[http.CanonicalHeaderKey(k)] = v
	}
	if host := r.Header.Get("Host"); host != "" {
		r.Host = host
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// with copies headers and adds name-value pairs; a value "" removes the name.
func with(base map[string][]string, pairs ...string) map[string][]string {
	out := map[string][]string{}
	for k, v := range base {
		out[k] = v
	}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			delete(out, pairs[i])
			continue
		}
		out[pairs[i]] = []string{pairs[i+1]}
	}
	return out
}

// legacy are the headers of a client of protocol 2025-11-25.
func legacy(pairs ...string) map[string][]string {
	return with(map[string][]string{
		"Authorization":        {"Bearer " + goodToken},
		"Content-Type":         {"application/json"},
		"Accept":               {"application/json, text/event-stream"},
		"Mcp-Protocol-Version": {"2025-11-25"},
	}, pairs...)
}

// modern are the headers of a client of protocol 2026-07-28.
func modern(method string, pairs ...string) map[string][]string {
	return with(legacy("Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", method), pairs...)
}

// rpc is the body of a request. With modern it carries the _meta of protocol
// 2026-07-28.
func rpc(isModern bool, method string, params map[string]any) string {
	if isModern {
		p := map[string]any{"_meta": map[string]any{
			"io.modelcontextprotocol/protocolVersion":    "2026-07-28",
			"io.modelcontextprotocol/clientInfo":         map[string]any{"name": "t", "version": "1"},
			"io.modelcontextprotocol/clientCapabilities": map[string]any{},
		}}
		for k, v := range params {
			p[k] = v
		}
		params = p
	}
	return string(tool.Encode(map[string]any{"jsonrpc": "2.0", "id": 7, "method": method, "params": params}))
}

func callParams(name string, args map[string]any) map[string]any {
	return map[string]any{"name": name, "arguments": args}
}

// toolResult is the result of a tools/call.
type toolResult struct {
	Content []struct {
		Type, Text string
	} `json:"content"`
	Structured json.RawMessage `json:"structuredContent"`
	IsError    bool            `json:"isError"`
}

func (r toolResult) failure(t *testing.T) tool.Failure {
	t.Helper()
	var e tool.Envelope
	if err := json.Unmarshal(r.Structured, &e); err != nil || !r.IsError {
		t.Fatalf("not a failure: %s", r.Structured)
	}
	return e.Error
}

// sameTwice sees that the one text block is the structured content.
func (r toolResult) sameTwice(t *testing.T) {
	t.Helper()
	if len(r.Content) != 1 || r.Content[0].Type != "text" {
		t.Fatalf("not one text block: %v", r.Content)
	}
	var a, b any
	if json.Unmarshal(r.Structured, &a) != nil || json.Unmarshal([]byte(r.Content[0].Text), &b) != nil || !reflect.DeepEqual(a, b) {
		t.Errorf("the text %s differs from the object %s", r.Content[0].Text, r.Structured)
	}
}

// call calls a tool as a client of protocol 2025-11-25 with the given token.
func (h *harness) call(t *testing.T, token, name string, args map[string]any) toolResult {
	t.Helper()
	resp, body := h.do(t, request{path: "/mcp", header: legacy("Authorization", "Bearer "+token, "Accept", "application/json"), body: rpc(false, "tools/call", callParams(name, args))})
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: status %d: %s", name, resp.StatusCode, body)
	}
	return resultOf[toolResult](t, body)
}

// resultOf reads the result of a JSON-RPC response, as JSON or as one event.
func resultOf[T any](t *testing.T, body string) T {
	t.Helper()
	var m struct {
		Result *T              `json:"result"`
		Error  json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal([]byte(eventData(body)), &m); err != nil || m.Result == nil {
		t.Fatalf("no result in %q: %v", body, err)
	}
	return *m.Result
}

// eventData is the data of the only message in an event stream, or the body.
func eventData(body string) string {
	for line := range strings.Lines(body) {
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			return strings.TrimSpace(data)
		}
	}
	return body
}

// rpcErrorOf reads a JSON-RPC error.
func rpcErrorOf(t *testing.T, body string) (e struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Error   struct {
		Code    int64  `json:"code"`
		Message string `json:"message"`
		Data    struct {
			Code, Hint, ID string
			Supported      []string
		}
	}
}) {
	t.Helper()
	if err := json.Unmarshal([]byte(eventData(body)), &e); err != nil || e.JSONRPC != "2.0" || e.Error.Message == "" {
		t.Fatalf("not a JSON-RPC error: %q (%v)", body, err)
	}
	return e
}

// httpFailure reads the error of the HTTP layer.
func httpFailure(t *testing.T, resp *http.Response, body string) tool.Failure {
	t.Helper()
	var e tool.Envelope
	if err := json.Unmarshal([]byte(body), &e); err != nil || !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
		t.Fatalf("status %d: not a JSON error: %q (%s)", resp.StatusCode, body, resp.Header.Get("Content-Type"))
	}
	if e.Error.Code == "" || e.Error.Message == "" || e.Error.Hint == "" || e.Error.ID == "" {
		t.Errorf("an error lacks something: %+v", e.Error)
	}
	return e.Error
}

// slowTool waits until its request ends or release is closed, and says on ended
// how it ended.
func slowTool(release <-chan struct{}, ended chan<- error) tool.Tool {
	return tool.Tool{
		Name: "test_slow", Title: "Slow", Description: "Waits.", ReadOnly: true, In: tool.Arguments(), Out: tool.Result(tool.Opt("done", tool.Boolean("Always true."))),
		Call: func(ctx context.Context, _ principal.Principal, _ json.RawMessage) (any, error) {
			select {
			case <-release:
				ended <- nil
				return map[string]bool{"done": true}, nil
			case <-ctx.Done():
				ended <- ctx.Err()
				return nil, ctx.Err()
			}
		},
	}
}

// lines reads a stream line by line until the given number of lines with prefix.
func readUntil(t *testing.T, r *bufio.Reader, prefix string, n int) (all []string) {
	t.Helper()
	for seen := 0; seen < n; {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("after %q: %v", all, err)
		}
		all = append(all, line)
		if strings.HasPrefix(line, prefix) {
			seen++
		}
	}
	return all
}

func within[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(10 * time.Second):
		t.Fatal("too long: " + what)
		panic("unreachable")
	}
}

func eras(t *testing.T, f func(t *testing.T, isModern bool)) {
	for name, isModern := range map[string]bool{"2025-11-25": false, "2026-07-28": true} {
		t.Run(name, func(t *testing.T) { f(t, isModern) })
	}
}

// headersFor are the headers of a call in either protocol.
func headersFor(isModern bool, method, name string, pairs ...string) map[string][]string {
	if isModern {
		return with(modern(method, "Mcp-Name", name), pairs...)
	}
	return legacy(pairs...)
}
