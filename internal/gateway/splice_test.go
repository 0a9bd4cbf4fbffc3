package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrelay/internal/principal"
	"agentrelay/internal/tool"
)

// TestLargeAnswersAreWhatTheSDKWrites compares every byte with bare servers of
// the SDK that answer the same.
func TestLargeAnswersAreWhatTheSDKWrites(t *testing.T) {
	out := map[string]string{"text": strings.Repeat("\"<a&b>\\\n\t\x01\u2028\u00e9\U0001F600\"error\":{\"code\":1},\"structuredContent\":", 300)}
	h := start(t, testConfig(t), tool.Tool{
		Name: "test_large", Title: "L", Description: "Answers much.", In: tool.Arguments(), Out: tool.Result(),
		Call: func(context.Context, principal.Principal, json.RawMessage) (any, error) { return out, nil },
	})
	bare := mcp.NewServer(&mcp.Implementation{Name: ServerName, Title: "Agent Relay", Version: "test"}, nil)
	bare.AddTool(&mcp.Tool{Name: "test_large", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return tool.Answer(out, false), nil
	})
	call := rpc(false, "tools/call", callParams("test_large", map[string]any{}))
	for _, c := range []struct {
		name   string
		asJSON bool
		header map[string][]string
		body   string
	}{
		{"one response", true, legacy(), call},
		{"a stream", false, legacy(), call},
		{"a protocol without sessions", true, modern("tools/call", "Mcp-Name", "test_large"), rpc(true, "tools/call", callParams("test_large", map[string]any{}))},
		{"a batch", true, legacy("Mcp-Protocol-Version", ""), "[" + call + "," + strings.Replace(call, `"id":7`, `"id":8`, 1) + "]"},
	} {
		sdk := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return bare }, &mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: c.asJSON}))
		_, want := (&harness{url: sdk.URL}).do(t, request{path: "/", header: c.header, body: c.body})
		sdk.Close()
		if c.asJSON {
			c.header = with(c.header, "Accept", "application/json")
		}
		_, got := h.do(t, request{path: "/mcp", header: c.header, body: c.body})
		if len(got) < 2*spliceFrom || !slices.Equal(messages(got), messages(want)) {
			t.Errorf("%s: got %d bytes, want %d\n%.300s\n%.300s", c.name, len(got), len(want), got, want)
		}
	}
}

// messages are the messages of a body as they were written; those of a batch
// come in any order.
func messages(body string) []string {
	var batch []json.RawMessage
	if json.Unmarshal([]byte(body), &batch) != nil {
		return []string{body}
	}
	out := make([]string, len(batch))
	for i, m := range batch {
		out[i] = string(m)
	}
	slices.Sort(out)
	return out
}
