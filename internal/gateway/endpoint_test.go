package gateway

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

func TestAcceptValues(t *testing.T) {
	h := start(t, testConfig(t))
	for _, c := range []struct {
		name   string
		accept []string
		want   string // content type; "" is refused
	}{
		{"missing", nil, "application/json"},
		{"empty", []string{""}, "application/json"},
		{"anything", []string{"*/*"}, "application/json"},
		{"json only", []string{"application/json"}, "application/json"},
		{"stream only", []string{"text/event-stream"}, "text/event-stream"},
		{"both", []string{"application/json, text/event-stream"}, "text/event-stream"},
		{"both on two lines", []string{"application/json", "text/event-stream"}, "text/event-stream"},
		{"json preferred", []string{"text/event-stream;q=0.5, application/json;q=0.9"}, "application/json"},
		{"json refused", []string{"*/*, application/json;q=0"}, "text/event-stream"},
		{"wildcard subtype", []string{"text/*"}, "text/event-stream"},
		{"upper case", []string{"Application/JSON"}, "application/json"},
		{"a page", []string{"text/html"}, ""},
		{"a page of a browser with anything", []string{"text/html,application/xhtml+xml,*/*;q=0.8"}, "application/json"},
		{"both refused", []string{"application/json;q=0, text/event-stream;q=0"}, ""},
		{"nonsense", []string{"§§§"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			header := legacy()
			delete(header, "Accept")
			if c.accept != nil {
				header["Accept"] = c.accept
			} else {
				header["Accept"] = []string{} // else the client adds none anyway
			}
			resp, body := h.do(t, request{path: "/mcp", header: header, body: rpc(false, "ping", nil)})
			if c.want == "" {
				if resp.StatusCode != http.StatusNotAcceptable || httpFailure(t, resp, body).Code != "not_acceptable" {
					t.Errorf("status %d: %s", resp.StatusCode, body)
				}
				return
			}
			if got := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || got != c.want {
				t.Fatalf("status %d, %s: %s", resp.StatusCode, got, body)
			}
			resultOf[map[string]any](t, body)
			if resp.Header.Get("Cache-Control") != "no-store, no-transform" {
				t.Errorf("Cache-Control: %q", resp.Header.Get("Cache-Control"))
			}
			if stream := c.want == "text/event-stream"; (resp.Header.Get("X-Accel-Buffering") == "no") != stream {
				t.Errorf("X-Accel-Buffering: %q", resp.Header.Get("X-Accel-Buffering"))
			}
		})
	}
}

// malformed are bodies and headers that are no valid MCP, with what each must get
// in the two eras.
var malformed = []struct {
	name   string
	body   string
	header []string // pairs for with
	modern bool     // only in the modern era
	legacy bool     // only in the older ones
	status int
	code   int64 // of JSON-RPC; 0 is an error of the HTTP layer
	id     string
}{
	{name: "not JSON", body: `hello`, status: 400, code: -32700, id: "null"},
	{name: "cut off", body: `{"jsonrpc":"2.0","id":1,`, status: 400, code: -32700, id: "null"},
	{name: "empty", body: ``, status: 400, code: -32700, id: "null"},
	{name: "invalid UTF-8", body: "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}", status: 400, code: -32700, id: "1"},
	{name: "a string", body: `"hello"`, status: 400, code: -32600, id: "null"},
	{name: "empty batch", body: `[]`, status: 400, code: -32600, id: "null"},
	{name: "batch", body: `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, status: 400, code: -32600, id: "null"},
	{name: "a response", body: `{"jsonrpc":"2.0","id":1,"result":{}}`, status: 400, code: -32600, id: "1"},
	{name: "no method", body: `{"jsonrpc":"2.0","id":1}`, status: 400, code: -32600, id: "1"},
	{name: "empty object", body: `{}`, status: 400, code: -32600, id: "null"},
	{name: "other version of JSON-RPC", body: `{"jsonrpc":"1.0","id":1,"method":"ping"}`, status: 400, code: -32600, id: "1"},
	{name: "method is a number", body: `{"jsonrpc":"2.0","id":1,"method":5}`, status: 400, code: -32600, id: "1"},
	{name: "id is an object", body: `{"jsonrpc":"2.0","id":{},"method":"tools/list"}`, status: 400, code: -32600, id: "null"},
	{name: "request without id", body: `{"jsonrpc":"2.0","method":"tools/list"}`, status: 400, code: -32600, id: "null"},
	{name: "call without params", body: `{"jsonrpc":"2.0","id":"x","method":"tools/call"}`, status: 400, code: -32600, id: `"x"`},
	{name: "notification with id", body: `{"jsonrpc":"2.0","id":1,"method":"notifications/initialized"}`, status: 400, code: -32600, id: "1"},
	{name: "wrong content type", body: `{}`, header: []string{"Content-Type", "text/plain"}, status: 415},
	{name: "no content type", body: `{}`, header: []string{"Content-Type", ""}, status: 415},
	{name: "compressed", body: `{}`, header: []string{"Content-Encoding", "gzip"}, status: 415},
	{name: "too large", body: strings.Repeat(" ", maxBody+1), status: 413},

	{name: "unknown method", body: rpc(false, "no/such", map[string]any{}), legacy: true, status: 200, code: -32601, id: "7"},
	{name: "unknown version", body: rpc(false, "tools/list", nil), header: []string{"Mcp-Protocol-Version", "2024-01-01"}, legacy: true, status: 400, code: -32022, id: "7"},
	{name: "params of the wrong type", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":5,"arguments":{"text":"secret words"}}}`, legacy: true, status: 200, code: -32602, id: "1"},
	{name: "params are a string", body: `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":"secret words"}`, legacy: true, status: 200, code: -32602, id: "1"},
	{name: "unknown tool", body: rpc(false, "tools/call", callParams("no_such_tool", nil)), legacy: true, status: 200, code: -32602, id: "7"},
	{name: "modern meta without the header", body: rpc(true, "tools/list", nil), legacy: true, header: []string{"Mcp-Protocol-Version", ""}, status: 400, code: -32020, id: "7"},

	{name: "unknown method", body: rpc(true, "no/such", nil), header: []string{"Mcp-Method", "no/such"}, modern: true, status: 404, code: -32601, id: "7"},
	{name: "removed method", body: rpc(true, "ping", nil), header: []string{"Mcp-Method", "ping"}, modern: true, status: 404, code: -32601, id: "7"},
	{name: "missing Mcp-Method", body: rpc(true, "tools/list", nil), header: []string{"Mcp-Method", ""}, modern: true, status: 400, code: -32020, id: "7"},
	{name: "other Mcp-Method", body: rpc(true, "tools/list", nil), header: []string{"Mcp-Method", "tools/call"}, modern: true, status: 400, code: -32020, id: "7"},
	{name: "missing Mcp-Name", body: rpc(true, "tools/call", callParams("list_peers", nil)), header: []string{"Mcp-Method", "tools/call"}, modern: true, status: 400, code: -32020, id: "7"},
	{name: "other Mcp-Name", body: rpc(true, "tools/call", callParams("list_peers", nil)), header: []string{"Mcp-Method", "tools/call", "Mcp-Name", "stop_peer"}, modern: true, status: 400, code: -32020, id: "7"},
	{name: "other version in _meta", body: strings.Replace(rpc(true, "tools/list", nil), "2026-07-28", "2025-11-25", 1), modern: true, status: 400, code: -32020, id: "7"},
	{name: "no _meta", body: rpc(false, "tools/list", nil), modern: true, status: 400, code: -32602, id: "7"},
	{name: "unknown version", body: strings.Replace(rpc(true, "tools/list", nil), "2026-07-28", "2030-01-01", 1), header: []string{"Mcp-Protocol-Version", "2030-01-01"}, modern: true, status: 400, code: -32022, id: "7"},
	{name: "unknown tool", body: rpc(true, "tools/call", callParams("no_such_tool", nil)), header: []string{"Mcp-Method", "tools/call", "Mcp-Name", "no_such_tool"}, modern: true, status: 400, code: -32602, id: "7"},
	{name: "params of the wrong type", body: strings.Replace(rpc(true, "tools/list", map[string]any{"cursor": 5}), `"id":7`, `"id":"secret words"`, 1), modern: true, status: 400, code: -32602, id: `"secret words"`},
}

func TestMalformedMCP(t *testing.T) {
	h := start(t, testConfig(t))
	for _, c := range malformed {
		eras(t, func(t *testing.T, isModern bool) {
			if c.legacy && isModern || c.modern && !isModern {
				return
			}
			for _, accept := range []string{"application/json", "application/json, text/event-stream"} {
				base := legacy("Accept", accept)
				if isModern {
					base = modern("tools/list", "Accept", accept)
				}
				resp, body := h.do(t, request{path: "/mcp", header: with(base, c.header...), body: c.body})
				if resp.StatusCode != c.status {
					t.Errorf("%s, %s: status %d, want %d: %s", c.name, accept, resp.StatusCode, c.status, body)
				}
				if c.code == 0 {
					httpFailure(t, resp, body)
					continue
				}
				e := rpcErrorOf(t, body)
				if e.Error.Code != c.code || string(e.ID) != c.id {
					t.Errorf("%s, %s: %s", c.name, accept, body)
				}
				if e.Error.Data.Code == "" && len(e.Error.Data.Supported) == 0 {
					t.Errorf("%s: no data: %s", c.name, body)
				}
				if c.status >= 400 && resp.Header.Get("Content-Type") != "application/json" {
					t.Errorf("%s: content type %q", c.name, resp.Header.Get("Content-Type"))
				}
				if strings.Contains(e.Error.Message, "secret") {
					t.Errorf("%s: the error quotes the caller: %s", c.name, body)
				}
			}
		})
	}
	if strings.Contains(h.log.String(), "secret words") {
		t.Error("the log quotes a caller")
	}
}

func TestBatchesOfTheProtocolThatHasThem(t *testing.T) {
	h := start(t, testConfig(t))
	ping := `{"jsonrpc":"2.0","id":%,"method":"ping"}`
	batch := func(n int) string {
		items := make([]string, n)
		for i := range items {
			items[i] = strings.Replace(ping, "%", string(rune('0'+i%10))+strings.Repeat("0", i/10), 1)
		}
		return "[" + strings.Join(items, ",") + "]"
	}
	header := legacy("Mcp-Protocol-Version", "", "Accept", "application/json")
	resp, body := h.do(t, request{path: "/mcp", header: header, body: batch(3)})
	var answers []json.RawMessage
	if err := json.Unmarshal([]byte(body), &answers); err != nil || len(answers) != 3 {
		t.Fatalf("status %d: %s", resp.StatusCode, body)
	}
	bad := `[{"jsonrpc":"2.0","id":1,"method":"tools/list","params":"secret words"},{"jsonrpc":"2.0","id":2,"method":"ping"}]`
	if _, body := h.do(t, request{path: "/mcp", header: header, body: bad}); !strings.Contains(body, "-32602") || strings.Contains(body, "secret") {
		t.Errorf("an error in a batch: %s", body)
	}
	if resp, body := h.do(t, request{path: "/mcp", header: header, body: batch(maxBatch + 1)}); resp.StatusCode != 400 {
		t.Errorf("a batch beyond the limit: %d %s", resp.StatusCode, body)
	}
}

// TestIDsThatCannotBeAnswered: a client finds its answer by the id alone, so a
// call whose id would come back as another one must not run.
func TestIDsThatCannotBeAnswered(t *testing.T) {
	h := start(t, testConfig(t))
	call := func(id string) string { return `{"jsonrpc":"2.0","id":` + id + `,"method":"ping"}` }
	header := legacy("Mcp-Protocol-Version", "", "Accept", "application/json")
	for id, ok := range map[string]bool{
		"0": true, "-7": true, "9007199254740991": true, "-9007199254740991": true, `""`: true, `"9007199254740993"`: true,
		"1.5": false, "9007199254740993": false, "1764457512345678901": false, "-9223372036854775809": false, "1e300": false,
		"true": false, "[1]": false, `{"a":1}`: false,
	} {
		resp, body := h.do(t, request{path: "/mcp", header: header, body: call(id)})
		switch {
		case ok && (resp.StatusCode != 200 || !strings.Contains(body, `"id":`+id+`,"result"`)):
			t.Errorf("id %s: status %d: %s", id, resp.StatusCode, body)
		case !ok && (resp.StatusCode != 400 || rpcErrorOf(t, body).Error.Data.Code != "invalid_request_message"):
			t.Errorf("id %s: status %d: %s", id, resp.StatusCode, body)
		}
	}
	for _, ids := range [][2]string{{"1", "1"}, {"1", "1.0"}, {`"a"`, `"\u0061"`}} {
		body := "[" + call(ids[0]) + "," + call(ids[1]) + "]"
		if resp, body := h.do(t, request{path: "/mcp", header: header, body: body}); resp.StatusCode != 400 || !strings.Contains(rpcErrorOf(t, body).Error.Message, "same id") {
			t.Errorf("ids %v: status %d: %s", ids, resp.StatusCode, body)
		}
	}
	if resp, body := h.do(t, request{path: "/mcp", header: header, body: "[" + call("1") + "," + call(`"1"`) + "]"}); resp.StatusCode != 200 {
		t.Errorf("a number and a string: status %d: %s", resp.StatusCode, body)
	}
}

func TestSessionsAreIgnored(t *testing.T) {
	c := testConfig(t)
	first := start(t, c)
	resp, body := first.do(t, request{path: "/mcp", header: legacy(), body: rpc(false, "initialize", map[string]any{
		"protocolVersion": "2025-11-25", "capabilities": map[string]any{}, "clientInfo": map[string]any{"name": "t", "version": "1"},
	})})
	init := resultOf[struct {
		ProtocolVersion string
		ServerInfo      struct{ Name string }
		Capabilities    map[string]json.RawMessage
		Instructions    string
	}](t, body)
	if init.ServerInfo.Name != ServerName || init.ProtocolVersion != "2025-11-25" || init.Instructions == "" {
		t.Errorf("initialize: %s", body)
	}
	for _, capability := range []string{"tools", "prompts", "resources"} {
		if string(init.Capabilities[capability]) != "{}" {
			t.Errorf("capability %s: %s", capability, init.Capabilities[capability])
		}
	}
	if _, ok := init.Capabilities["logging"]; ok || resp.Header.Get("Mcp-Session-Id") != "" {
		t.Errorf("logging or a session is offered: %s, %v", body, resp.Header)
	}

	second := start(t, testConfig(t)) // another process, for all the client can tell
	got := second.do2(t, legacy("Mcp-Session-Id", "0123456789abcdef", "Last-Event-ID", "x_3", "Mcp-Method", "whatever"), rpc(false, "tools/call", callParams("list_peers", nil)))
	if string(got.Structured) != `{"peers":[]}` {
		t.Errorf("after a restart: %s", got.Structured)
	}
}

func (h *harness) do2(t *testing.T, header map[string][]string, body string) toolResult {
	t.Helper()
	_, answer := h.do(t, request{path: "/mcp", header: header, body: body})
	return resultOf[toolResult](t, answer)
}
