package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrelay/internal/principal"
	"agentrelay/internal/tool"
)

func TestSilentStreamIsKeptAlive(t *testing.T) {
	release, ended := make(chan struct{}), make(chan error, 1)
	h := start(t, testConfig(t), slowTool(release, ended))
	proxied := httptest.NewServer(httputil.NewSingleHostReverseProxy(must(url.Parse(h.url))))
	defer proxied.Close()
	direct := h.url
	eras(t, func(t *testing.T, isModern bool) {
		for _, base := range []string{direct, proxied.URL} {
			h.url = base
			resp := h.open(t, t.Context(), request{path: "/mcp", header: headersFor(isModern, "tools/call", "test_slow"), body: rpc(isModern, "tools/call", callParams("test_slow", nil))})
			defer resp.Body.Close()
			if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" || resp.Header.Get("Cache-Control") != "no-store, no-transform" {
				t.Fatalf("status %d, header %v", resp.StatusCode, resp.Header)
			}
			if base == direct && resp.Header.Get("X-Accel-Buffering") != "no" {
				t.Error("nginx would buffer the stream")
			}
			r := bufio.NewReader(resp.Body)
			readUntil(t, r, ": ok", 3)
			select {
			case release <- struct{}{}:
			case <-time.After(10 * time.Second):
				t.Fatal("the tool ended by itself")
			}
			within(t, "the tool's end", ended)
			rest, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			var got toolResult
			for line := range strings.Lines(string(rest)) {
				if data, ok := strings.CutPrefix(line, "data: "); ok {
					got = resultOf[toolResult](t, data)
				}
			}
			if string(got.Structured) != `{"done":true}` {
				t.Errorf("after the comments: %q", rest)
			}
		}
	})
}

func TestQuickStreamHasNoComment(t *testing.T) {
	g := open(t, testConfig(t), io.Discard)
	g.beats = beats{time.Hour, time.Hour}
	h := serve(t, g, g.Handler())
	resp, body := h.do(t, request{path: "/mcp", header: legacy(), body: rpc(false, "tools/list", nil)})
	if resp.Header.Get("Content-Type") != "text/event-stream" || strings.Contains(body, ": ok") || strings.Count(body, "event: message\n") != 1 {
		t.Errorf("%v %q", resp.Header, body)
	}
}

func TestClosedRequestCancelsItsCall(t *testing.T) {
	release, ended := make(chan struct{}), make(chan error, 1)
	defer close(release)
	running := make(chan struct{}, 1)
	slow := slowTool(release, ended)
	wait := slow.Call
	slow.Call = func(ctx context.Context, who principal.Principal, raw json.RawMessage) (any, error) {
		running <- struct{}{}
		return wait(ctx, who, raw)
	}
	h := start(t, testConfig(t), slow)
	eras(t, func(t *testing.T, isModern bool) {
		for _, accept := range []string{"application/json", "application/json, text/event-stream"} {
			ctx, leave := context.WithCancel(t.Context())
			r, err := http.NewRequestWithContext(ctx, "POST", h.url+"/mcp", strings.NewReader(rpc(isModern, "tools/call", callParams("test_slow", nil))))
			if err != nil {
				t.Fatal(err)
			}
			r.Header = headersFor(isModern, "tools/call", "test_slow", "Accept", accept)
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				if resp, err := http.DefaultClient.Do(r); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}()
			within(t, "the call to begin", running)
			leave()
			if err := within(t, "the call to be cancelled", ended); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: the call ended with %v", accept, err)
			}
			within(t, "the client to leave", gone)
		}
	})
}

// TestErrorAfterTheStreamBegan: an error that would have its own status comes too
// late for it, and must still be an event.
func TestErrorAfterTheStreamBegan(t *testing.T) {
	g := open(t, testConfig(t), io.Discard)
	server := mcp.NewServer(&mcp.Implementation{Name: "fixture", Version: "1"}, nil)
	server.AddTool(&mcp.Tool{Name: "late", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		select {
		case <-time.After(4 * g.beats.first):
		case <-ctx.Done():
		}
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "too late"}
	})
	h := serve(t, g, g.HandlerFor(server))
	resp, body := h.do(t, request{path: "/mcp", header: modern("tools/call", "Mcp-Name", "late"), body: rpc(true, "tools/call", callParams("late", nil))})
	if resp.StatusCode != 200 || !strings.HasPrefix(body, ": ok\n\n") || !strings.HasSuffix(body, "\n\n") {
		t.Fatalf("status %d: %q", resp.StatusCode, body)
	}
	if e := rpcErrorOf(t, body); e.Error.Code != jsonrpc.CodeInvalidParams || e.Error.Message != "too late" {
		t.Errorf("%q", body)
	}
}

// TestPanicInAHandlerIsAnAnswer: the SDK runs handlers in goroutines of its own,
// where a panic would end the process.
func TestPanicInAHandlerIsAnAnswer(t *testing.T) {
	h := start(t, testConfig(t), tool.Tool{
		Name: "test_panic", Title: "P", Description: "Panics.", In: tool.Arguments(), Out: tool.Result(),
		Call: func(context.Context, principal.Principal, json.RawMessage) (any, error) { panic("boom") },
	})
	got := h.call(t, goodToken, "test_panic", nil).failure(t)
	if got.Code != "internal_error" || !strings.Contains(h.log.String(), got.ID) || !strings.Contains(h.log.String(), "boom") {
		t.Errorf("%+v\n%s", got, h.log)
	}
}

func TestNothingToListenTo(t *testing.T) {
	h := start(t, testConfig(t))
	resp, body := h.do(t, request{path: "/mcp", header: modern("subscriptions/listen"), body: rpc(true, "subscriptions/listen", map[string]any{"notifications": map[string]any{"toolsListChanged": true}})})
	if resp.StatusCode != 200 || !strings.Contains(body, "acknowledged") {
		t.Errorf("status %d: %s", resp.StatusCode, body)
	}
}

func TestListeningEndsWithTheGateway(t *testing.T) {
	g := open(t, testConfig(t), io.Discard)
	h := serve(t, g, g.HandlerFor(mcp.NewServer(&mcp.Implementation{Name: "fixture", Version: "1"}, &mcp.ServerOptions{
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{ListChanged: true}},
	})))
	resp := h.open(t, t.Context(), request{path: "/mcp", header: modern("subscriptions/listen"), body: rpc(true, "subscriptions/listen", map[string]any{"notifications": map[string]any{"toolsListChanged": true}})})
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	readUntil(t, r, "data: ", 1) // acknowledged
	readUntil(t, r, ": ok", 2)
	h.stop()
	if _, err := io.ReadAll(r); err != nil {
		t.Error(err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
