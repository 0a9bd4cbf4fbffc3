package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrelay/internal/audit"
	"agentrelay/internal/fault"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
	"agentrelay/internal/tool"
)

// groups are all tools there are, by the config's names.
func groups() map[string][]tool.Tool {
	return map[string][]tool.Tool{"mailbox": mailboxTools(nil), "hosts": hostTools(&workspace{}, nil), "direct": directTools(&workspace{}), "agents": agentTools(&dispatching{}), "devices": deviceTools(nil)}
}

func TestToolDefinitions(t *testing.T) {
	for group, tools := range groups() {
		for _, each := range tools {
			var def struct {
				Name, Title, Description string
				Annotations              map[string]any
				InputSchema              map[string]any
				OutputSchema             map[string]any
			}
			if err := json.Unmarshal(tool.Encode(each.Definition()), &def); err != nil {
				t.Fatal(err)
			}
			if def.Title == "" || len(def.Description) < 80 || strings.Contains(string(tool.Encode(each.Definition())), `\u00`) {
				t.Errorf("%s: title, description or characters: %+v", def.Name, def)
			}
			for _, hint := range []string{"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"} {
				if _, ok := def.Annotations[hint].(bool); !ok {
					t.Errorf("%s: %s is not explicit", def.Name, hint)
				}
			}
			if def.Annotations["title"] != def.Title || def.InputSchema["type"] != "object" || def.OutputSchema["type"] != "object" {
				t.Errorf("%s: %v", def.Name, def)
			}
			if def.InputSchema["additionalProperties"] != false || def.OutputSchema["required"] != nil || def.OutputSchema["properties"].(map[string]any)["error"] == nil {
				t.Errorf("%s: the roots of its schemas", def.Name)
			}
			checkSchema(t, def.Name+" in", def.InputSchema, true)
			checkSchema(t, def.Name+" out", def.OutputSchema, true)
			if each.Permission == "" && each.Name != "list_hosts" {
				t.Errorf("%s needs no permission", def.Name)
			}
		}
		t.Logf("group %s: %d tools", group, len(tools))
	}
}

func checkSchema(t *testing.T, path string, s map[string]any, root bool) {
	for _, word := range []string{"oneOf", "anyOf", "allOf", "not", "if", "$ref", "$defs", "const"} {
		if _, ok := s[word]; ok {
			t.Errorf("%s uses %s", path, word)
		}
	}
	if description, _ := s["description"].(string); !root && description == "" {
		t.Errorf("%s is not described", path)
	}
	if items, ok := s["items"].(map[string]any); ok {
		checkSchema(t, path+"[]", items, false)
	}
	if properties, ok := s["properties"].(map[string]any); ok {
		for name, p := range properties {
			checkSchema(t, path+"."+name, p.(map[string]any), false)
		}
	}
}

// maxSurface is what some hosts read of a tools/list answer.
const maxSurface = 64 << 10

func TestSizeOfTheToolList(t *testing.T) {
	total := 0
	for group, tools := range groups() {
		n := 0
		for i := range tools {
			n += len(tool.Encode(tools[i].Definition()))
		}
		t.Logf("group %s: %d tools, %d bytes", group, len(tools), n)
		total += n
	}
	h := start(t, testConfig(t))
	_, body := h.do(t, request{path: "/mcp", header: modern("tools/list", "Accept", "application/json"), body: rpc(true, "tools/list", nil)})
	t.Logf("tools/list: %d bytes", len(body))
	if len(body) > maxSurface || total > maxSurface {
		t.Errorf("the list has %d bytes, at most %d are read", len(body), maxSurface)
	}
}

// TestTheSurfaceNeverMoves: the list is the same bytes in every start, and in
// every order in which a config may be written.
func TestTheSurfaceNeverMoves(t *testing.T) {
	list := func(h *harness, isModern bool) string {
		header := headersFor(isModern, "tools/list", "", "Accept", "application/json")
		_, body := h.do(t, request{path: "/mcp", header: header, body: rpc(isModern, "tools/list", nil)})
		return body
	}
	c := testConfig(t)
	c.AllowedHosts, c.AllowedOrigins = []string{"a.test", "b.test"}, []string{"https://a.test", "https://b.test"}
	a := start(t, c)
	c2 := testConfig(t)
	c2.AllowedHosts, c2.AllowedOrigins = []string{"b.test", "a.test"}, []string{"https://b.test", "https://a.test"}
	b := start(t, c2)
	eras(t, func(t *testing.T, isModern bool) {
		if diff := cmp.Diff(list(a, isModern), list(b, isModern)); diff != "" {
			t.Error(diff)
		}
	})
	sa, err := a.Status(t.Context())
	sb, err2 := b.Status(t.Context())
	if err != nil || err2 != nil || sa.Surface != sb.Surface || sa.Surface == "" {
		t.Errorf("%v %v %q %q", err, err2, sa.Surface, sb.Surface)
	}
	cached := resultOf[struct {
		TTLMs      int
		CacheScope string
	}](t, list(a, true))
	if cached.TTLMs != listTTLMs || cached.CacheScope != "private" {
		t.Errorf("%+v", cached)
	}

	c3 := testConfig(t)
	c3.Tools.Mailbox, c3.Tools.Direct, c3.Tools.Agents, c3.Tools.Devices = false, false, false, false
	off := start(t, c3)
	if body := list(off, false); !strings.Contains(body, `"tools":[]`) {
		t.Errorf("a group that is off: %s", body)
	}
}

// The messages of the tests. Their text must never be logged.
const (
	firstID  = "B0BD3F0E-08D7-4BF6-9764-58E8EF83F85A"
	replyID  = "a0ebd6ce-e25f-4e14-88de-12e2c6cf6277"
	secretly = "the eagle lands at midnight"
)

func TestMailboxOverRawHTTP(t *testing.T) {
	h := start(t, testConfig(t))
	for _, c := range []struct {
		token, tool string
		args        map[string]any
		want        string // part of the structured content
	}{
		{goodToken, "register_peer", map[string]any{"peerId": "chat-main", "kind": "chat", "displayName": "Main", "hostId": nil}, `"created":true`},
		{otherToken, "register_peer", map[string]any{"peerId": "dot", "kind": "dot"}, `"created":true`},
		{goodToken, "list_peers", map[string]any{}, `"peerId":"dot"`},
		{goodToken, "send_peer_message", map[string]any{"messageId": firstID, "fromPeerId": "chat-main", "toPeerId": "dot", "text": secretly}, `"duplicate":false`},
		{goodToken, "send_peer_message", map[string]any{"messageId": strings.ToLower(firstID), "fromPeerId": "chat-main", "toPeerId": "dot", "text": secretly}, `"duplicate":true`},
		{otherToken, "list_peer_messages", map[string]any{"peerId": "dot", "limit": 50.0, "waitMs": 0}, `"unprocessedCount":1`},
		{otherToken, "get_peer_message", map[string]any{"messageId": firstID, "peerId": "dot"}, secretly},
		{otherToken, "send_peer_message", map[string]any{"messageId": replyID, "fromPeerId": "dot", "toPeerId": "chat-main", "text": "done <&>", "inReplyTo": firstID}, `"hop":2`},
		{otherToken, "ack_peer_message", map[string]any{"messageId": firstID, "peerId": "dot"}, `"alreadyProcessed":false`},
		{goodToken, "get_peer_message", map[string]any{"messageId": replyID}, "done <&>"},
		{goodToken, "stop_peer", map[string]any{"peerId": "chat-main"}, `"alreadyStopped":false`},
	} {
		got := h.call(t, c.token, c.tool, c.args)
		got.sameTwice(t)
		if got.IsError || !strings.Contains(got.Content[0].Text, c.want) {
			t.Errorf("%s: %s", c.tool, got.Content[0].Text)
		}
		checkAgainstOutputSchema(t, c.tool, got.Structured)
	}
	log := h.log.String()
	for _, secret := range []string{secretly, "done", goodToken, otherToken, "Bearer", "displayName"} {
		if strings.Contains(log, secret) {
			t.Errorf("the log has %q", secret)
		}
	}
	for _, want := range []string{`"tool":"send_peer_message"`, `"client":"client-a"`, `"rpc":"tools/call"`, `"status":200`, `"path":"/mcp"`} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %s", want)
		}
	}
}

// checkAgainstOutputSchema sees that an answer has only properties that the
// schema declares: what models read about must be what they get.
func checkAgainstOutputSchema(t *testing.T, name string, raw json.RawMessage) {
	t.Helper()
	for _, tools := range groups() {
		for _, each := range tools {
			if each.Name == name {
				var v any
				if err := json.Unmarshal(raw, &v); err != nil {
					t.Fatal(err)
				}
				declared(t, name, each.Out, v)
			}
		}
	}
}

func declared(t *testing.T, path string, s *tool.Schema, v any) {
	t.Helper()
	switch v := v.(type) {
	case map[string]any:
		if s.Kind() != "object" {
			t.Errorf("%s is an object, declared as %s", path, s.Kind())
		}
		for name, member := range v {
			i := slices.IndexFunc(s.Properties, func(f tool.Field) bool { return f.Name == name })
			if i >= 0 {
				declared(t, path+"."+name, s.Properties[i].Schema, member)
			} else if len(s.Properties) > 0 {
				t.Errorf("%s.%s is not declared", path, name)
			}
		}
	case []any:
		for _, item := range v {
			declared(t, path+"[]", s.Items, item)
		}
	default:
		want := map[reflect.Kind]string{reflect.String: "string", reflect.Bool: "boolean", reflect.Float64: "integer"}[reflect.ValueOf(v).Kind()]
		if s.Kind() != want {
			t.Errorf("%s is %T, declared as %s", path, v, s.Kind())
		}
	}
}

// withToken adds the bearer token to the requests of an HTTP client.
type withToken struct {
	base  *http.Transport
	token string
}

func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+w.token)
	return w.base.RoundTrip(r)
}

func TestMailboxWithTheGoClient(t *testing.T) {
	h := start(t, testConfig(t))
	for name, version := range map[string]string{"newest": "", "legacy": "2025-11-25"} {
		t.Run(name, func(t *testing.T) {
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			client := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, nil)
			opts := &mcp.ClientSessionOptions{ProtocolVersion: version}
			session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{
				Endpoint: h.url + "/mcp?cache=buster", HTTPClient: &http.Client{Transport: withToken{transport, goodToken}},
			}, opts)
			if err != nil {
				t.Fatal(err)
			}
			defer session.Close()
			tools, err := session.ListTools(t.Context(), nil)
			if err != nil || len(tools.Tools) != 7+1+13+23+3 {
				t.Fatalf("%v, %v", tools, err)
			}
			res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "register_peer", Arguments: map[string]any{"peerId": "chat-" + name, "kind": "chat"}})
			if err != nil || res.IsError {
				t.Fatalf("%+v, %v", res, err)
			}
			res, err = session.CallTool(t.Context(), &mcp.CallToolParams{Name: "register_peer", Arguments: map[string]any{"peerId": "chat-" + name, "kind": "pigeon"}})
			if err != nil || !res.IsError || res.StructuredContent == nil {
				t.Fatalf("%+v, %v", res, err)
			}
			if _, err = session.CallTool(t.Context(), &mcp.CallToolParams{Name: "no_such_tool"}); err == nil || !strings.Contains(err.Error(), "unknown tool") {
				t.Errorf("an unknown tool: %v", err)
			}
			if prompts, err := session.ListPrompts(t.Context(), nil); err != nil || len(prompts.Prompts) != 0 {
				t.Errorf("prompts: %v, %v", prompts, err)
			}
		})
	}
}

func TestRefusalsOfTools(t *testing.T) {
	h := start(t, testConfig(t))
	for _, c := range []struct {
		name, token, tool string
		args              map[string]any
		code              string
		says              []string
	}{
		{"permission", mutedToken, "list_peers", nil, "not_permitted", []string{"gateway clients allow client-m mailbox"}},
		{"permission before arguments", mutedToken, "list_peers", map[string]any{"limit": "x"}, "not_permitted", nil},
		{"missing", goodToken, "register_peer", map[string]any{"kind": "chat"}, "invalid_arguments", []string{"peerId is required"}},
		{"null for required", goodToken, "register_peer", map[string]any{"kind": "chat", "peerId": nil}, "invalid_arguments", []string{"peerId must be a string"}},
		{"several", goodToken, "register_peer", map[string]any{"peerId": 5, "kind": "owl"}, "invalid_arguments", []string{"peerId must be a string", "kind must be one of chat, dot, local"}},
		{"unknown argument", goodToken, "list_peers", map[string]any{"includeAll": true}, "invalid_arguments", []string{"includeAll is unknown", "includeStopped"}},
		{"range", goodToken, "list_peers", map[string]any{"limit": 201}, "invalid_arguments", []string{"limit must be from 1 to 200"}},
		{"fraction", goodToken, "list_peers", map[string]any{"limit": 1.5}, "invalid_arguments", []string{"limit must be a whole number"}},
		{"pattern", goodToken, "stop_peer", map[string]any{"peerId": "-secret-"}, "invalid_arguments", []string{"peerId must match ^[A-Za-z0-9]"}},
		{"text too long", goodToken, "send_peer_message", map[string]any{"messageId": firstID, "fromPeerId": "a", "toPeerId": "b", "text": strings.Repeat("é", 8193)}, "invalid_arguments", []string{"text must have 1 to 8192 characters, it has 8193"}},
		{"half a character", goodToken, "stop_peer", map[string]any{"peerId": json.RawMessage(`"\ud83d"`)}, "invalid_arguments", []string{"half of a character"}},
		{"of the domain", goodToken, "stop_peer", map[string]any{"peerId": "nobody"}, "unknown_peer", nil},
	} {
		got := h.call(t, c.token, c.tool, c.args)
		e := got.failure(t)
		if e.Code != c.code || e.Message == "" || e.Hint == "" || e.ID == "" {
			t.Errorf("%s: %+v", c.name, e)
		}
		for _, part := range c.says {
			if !strings.Contains(e.Message+e.Hint, part) {
				t.Errorf("%s: %q is not in %+v", c.name, part, e)
			}
		}
		if strings.Contains(e.Message, "secret") || strings.Contains(e.Message, "owl") {
			t.Errorf("%s: the refusal quotes the caller: %s", c.name, e.Message)
		}
		got.sameTwice(t)
		if !strings.Contains(h.log.String(), e.ID) {
			t.Errorf("%s: the id is not in the log", c.name)
		}
		checkAgainstOutputSchema(t, c.tool, got.Structured)

		var last []audit.Entry
		if err := store.Read(t.Context(), h.store, func(r *store.Reader) (err error) { last, err = audit.Last(r, 1); return err }); err != nil {
			t.Fatal(err)
		}
		if len(last) != 1 || last[0].Action != "tool.refuse" || last[0].Subject != c.tool || last[0].Outcome != c.code || last[0].Detail["id"] != e.ID {
			t.Errorf("%s: the audit log has %+v", c.name, last)
		}
	}
	if strings.Contains(h.log.String(), "secret") {
		t.Error("the log quotes a caller")
	}
}

// TestHintIsSafeToRun: the owner is asked to run a command that names the client,
// and a client whose id is a URL has chosen its id itself.
func TestHintIsSafeToRun(t *testing.T) {
	for id, word := range map[string]string{
		"ar_client_AAAA-_A":          "ar_client_AAAA-_A",
		"https://a.test/client.json": "https://a.test/client.json",
		"https://a.test/x;id>/tmp/y": `'https://a.test/x;id>/tmp/y'`,
		"https://a.test/'$(id)'":     `'https://a.test/'\''$(id)'\'''`,
	} {
		_, err := (&frame{}).run(t.Context(), &tool.Tool{Name: "test", Permission: principal.Mailbox}, principal.Principal{ClientID: id}, nil)
		if hint := fault.From(err).Hint; !strings.HasSuffix(hint, "gateway clients allow "+word+" mailbox") {
			t.Errorf("%s: %s", id, hint)
		}
	}
}

func TestErrorsOfADomain(t *testing.T) {
	failing := func(name string, err error) tool.Tool {
		return tool.Tool{Name: name, Title: "F", Description: "Fails.", In: tool.Arguments(), Out: tool.Result(),
			Call: func(context.Context, principal.Principal, json.RawMessage) (any, error) { return nil, err }}
	}
	h := start(t, testConfig(t),
		failing("test_internal", errors.New("open /home/owner/key: denied")),
		failing("test_closed", store.ErrClosed),
		failing("test_cancelled", context.Canceled),
	)
	for name, code := range map[string]string{"test_internal": "internal_error", "test_closed": "unavailable", "test_cancelled": "unavailable"} {
		got := h.call(t, goodToken, name, nil)
		if e := got.failure(t); e.Code != code || !e.Retryable || strings.Contains(string(got.Structured), "/home") {
			t.Errorf("%s: %+v", name, e)
		}
	}
	if !strings.Contains(h.log.String(), "/home/owner/key") {
		t.Error("the log lacks the cause")
	}
}

// TestOwnersStayApart: without sharedOwner another client's peers do not exist.
func TestOwnersStayApart(t *testing.T) {
	c := testConfig(t)
	c.SharedOwner = false
	h := start(t, c)
	h.call(t, goodToken, "register_peer", map[string]any{"peerId": "mine", "kind": "chat"})
	if got := h.call(t, otherToken, "list_peers", nil); string(got.Structured) != `{"peers":[]}` {
		t.Errorf("%s", got.Structured)
	}
	if got := h.call(t, otherToken, "stop_peer", map[string]any{"peerId": "mine"}).failure(t); got.Code != mailbox.UnknownPeer.Code {
		t.Errorf("%+v", got)
	}
}

func TestHandlersSeeNoToken(t *testing.T) {
	g := open(t, testConfig(t), io.Discard)
	server := mcp.NewServer(&mcp.Implementation{Name: "fixture", Version: "1"}, nil)
	server.AddTool(&mcp.Tool{Name: "headers", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		who, err := caller(req.Extra.TokenInfo)
		if err != nil {
			return nil, err
		}
		return tool.Answer(map[string]any{"client": who.ClientID, "token": req.Extra.Header.Get("Authorization"), "session": req.Extra.Header.Get("Mcp-Session-Id")}, false), nil
	})
	h := serve(t, g, g.HandlerFor(server))
	h.log = &logBuffer{}
	got := h.do2(t, legacy("Mcp-Session-Id", "x"), rpc(false, "tools/call", callParams("headers", nil)))
	if string(got.Structured) != `{"client":"client-a","session":"","token":""}` {
		t.Errorf("%s", got.Structured)
	}
}
