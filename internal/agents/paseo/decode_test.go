package paseo

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestSnapshotsOfAllVersionsAreRead(t *testing.T) {
	for name, one := range map[string]struct {
		raw  string
		want func(Agent) bool
	}{
		"no activeTurn":   {`{"id":"a","status":"running"}`, func(a Agent) bool { return a.Turn == TurnAbsent && a.Status == AgentRunning }},
		"null activeTurn": {`{"id":"a","activeTurn":null}`, func(a Agent) bool { return a.Turn == TurnNone }},
		"activeTurn":      {`{"id":"a","activeTurn":{"turnId":"t","startedAt":"s"}}`, func(a Agent) bool { return a.Turn == TurnActive && a.TurnID == "t" && a.TurnStartedAt == "s" }},
		"odd activeTurn":  {`{"id":"a","activeTurn":7}`, func(a Agent) bool { return a.Turn == TurnAbsent }},
		"unknown status":  {`{"id":"a","status":"dreaming"}`, func(a Agent) bool { return a.Status == "dreaming" }},
		"odd fields": {`{"id":"a","labels":[1],"title":{},"requiresAttention":"yes","pendingPermissions":7,"model":3}`, func(a Agent) bool {
			return a.Labels != nil && len(a.Labels) == 0 && a.Title == "" && !a.RequiresAttention
		}},
		"some odd labels":    {`{"id":"a","labels":{"x":"1","y":2}}`, func(a Agent) bool { return len(a.Labels) == 1 && a.Labels["x"] == "1" }},
		"permissions":        {`{"id":"a","pendingPermissions":[{"id":"p","kind":"tool","detail":{"type":"shell"}},{},null,3]}`, func(a Agent) bool { return len(a.PendingPermissions) == 1 && a.PendingPermissions[0].Kind == "tool" }},
		"what we don't know": {`{"id":"a","novelty":{"x":[1,2]}}`, func(a Agent) bool { return strings.Contains(string(a.Raw), "novelty") }},
	} {
		t.Run(name, func(t *testing.T) {
			a, ok := decodeAgent(json.RawMessage(one.raw))
			if !ok || !one.want(a) {
				t.Fatalf("%v, %+v", ok, a)
			}
		})
	}
	for _, raw := range []string{``, `null`, `{}`, `[]`, `"a"`, `{"id":""}`, `{"id":null}`} {
		if _, ok := decodeAgent(json.RawMessage(raw)); ok {
			t.Errorf("%q is an agent", raw)
		}
	}
}

func TestServerInfoIsReadLeniently(t *testing.T) {
	info, ok := decodeInfo([]byte(`{"serverId":" s ","hostname":null,"version":7,"features":{"a":true,"b":false,"c":{"x":1},"d":null},"permissions":["daemon.read",3]}`))
	if !ok || info.ServerID != "s" || info.Version != "" || !info.Has("a") || info.Has("b") || !info.Has("c") || info.Has("d") || len(info.Permissions) != 1 {
		t.Fatalf("%v, %+v", ok, info)
	}
	if _, ok := decodeInfo([]byte(`{"hostname":"x"}`)); ok {
		t.Fatal("a daemon without identity was taken")
	}
	for version, want := range map[string]bool{"0.1.65-beta.5": false, "0.2.5": false, "0.2.6": true, "0.10.3": true, "1.0.0": true, "": false, "junk": false, "0.x.9": false} {
		if got := (ServerInfo{Version: version}).TurnIDs(); got != want {
			t.Errorf("%q: %v", version, got)
		}
	}
}

func TestAPageWithoutEntriesIsNoEmptyPage(t *testing.T) {
	for _, raw := range []string{`{}`, `{"entries":null}`, `{"entries":{}}`, `null`, `7`, `{"error":"no"}`} {
		if page, err := decodePage([]byte(raw)); err == nil {
			t.Errorf("%s: %+v", raw, page)
		}
	}
	page, err := decodePage([]byte(`{"entries":[{"seqStart":1,"seqEnd":2,"item":{"type":"hologram","text":"x"}},7,{"item":[]}],"window":3,"startCursor":"x"}`))
	if err != nil || len(page.Entries) != 3 || page.Entries[0].Item.Type != "hologram" || page.StartCursor != nil {
		t.Fatalf("%v, %+v", err, page)
	}
}

func TestTheDaemonsReceiptCodesAreFoundWhereverTheyStand(t *testing.T) {
	for _, one := range []struct {
		message, code string
		lost          bool
	}{
		{"agent_request_key_conflict", CodeKeyConflict, false},
		{"Error: agent_request_not_accepted: busy", CodeNotAccepted, false},
		{"agent_request_outcome_unknown", CodeOutcomeUnknown, true},
		{"something else", "unknown", false},
	} {
		err := rejected(one.message, "unknown")
		if MaybeHappened(err) != one.lost || !one.lost && !RejectedAs(err, one.code) {
			t.Errorf("%q: %#v", one.message, err)
		}
	}
}

func TestMCPAnswersAreReadFromStreams(t *testing.T) {
	reply := func(status int, kind, body string) (json.RawMessage, error) {
		w := httptest.NewRecorder()
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		_, _ = w.WriteString(body)
		r, err := readReply(w.Result())
		if err != nil {
			return nil, err
		}
		return r.result()
	}
	for name, body := range map[string]string{
		"plain":          "event: message\ndata: {\"result\":{\"structuredContent\":{\"x\":1}}}\n\n",
		"CRLF":           "event: message\r\ndata: {\"result\":{\"structuredContent\":{\"x\":1}}}\r\n\r\n",
		"several lines":  "data: {\"result\":\ndata: {\"structuredContent\":{\"x\":1}}}\n\n",
		"a notice first": ": hi\n\ndata: {\"method\":\"notifications/message\"}\n\ndata: {\"result\":{\"structuredContent\":{\"x\":1}}}\n\n",
	} {
		if got, err := reply(http.StatusOK, "text/event-stream", body); err != nil || string(got) != `{"x":1}` {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
	if _, err := reply(http.StatusOK, "text/event-stream", "data: {\"result\":{\"structuredContent\":{\"x\":1}}}"); !MaybeHappened(err) {
		t.Errorf("a stream that was cut off: %v", err)
	}
	hazard := `{"error":{"code":-32602,"message":"MCP error -32602: Invalid structured content for tool get_agent_activity"}}`
	if _, err := reply(http.StatusOK, "application/json", hazard); !MaybeHappened(err) {
		t.Errorf("work that the daemon then can't tell: %v", err)
	}
	if _, err := reply(http.StatusUnauthorized, "application/json", `{"error":"Unauthorized"}`); !RejectedAs(err, string(PasswordWrong)) {
		t.Errorf("401: %v", err)
	}
	if _, err := reply(http.StatusOK, "application/json", `{"result":{"isError":true,"content":[{"type":"text","text":"Agent not found: x"}]}}`); !RejectedAs(notFoundAs(err), CodeAgentNotFound) {
		t.Errorf("a tool's failure: %v", err)
	}
}

func TestSubprotocolTokens(t *testing.T) {
	for s, want := range map[string]bool{"": true, "abcXYZ019": true, "!#$%&'*+-.^_`|~": true, "a b": false, "a,b": false, "é": false, "a\"b": false, "a/b": false, "a=b": false, "a\x00": false} {
		if isToken(s) != want {
			t.Errorf("%q: %v", s, !want)
		}
	}
}

// seeds are frames of every kind that the client reads.
var seeds = []string{
	`{"type":"pong"}`,
	`{"type":"session","message":{"type":"status","payload":{"status":"server_info","serverId":"s","features":{"x":true}}}}`,
	`{"type":"session","message":{"type":"status","payload":{"status":"agent_created","requestId":"r","agentId":"a","agent":{"id":"a"}}}}`,
	`{"type":"session","message":{"type":"agent_stream","payload":{"agentId":"a","timestamp":"t","seq":3,"epoch":"e","event":{"type":"timeline","turnId":"t","item":{"type":"assistant_message","text":"x"}}}}}`,
	`{"type":"session","message":{"type":"agent_stream","payload":{"agentId":"a","event":{"type":"turn_failed","error":"x","code":"y"}}}}`,
	`{"type":"session","message":{"type":"agent_stream","payload":{"agentId":"a","event":{"type":"attention_required","reason":"finished"}}}}`,
	`{"type":"session","message":{"type":"agent_update","payload":{"kind":"upsert","agent":{"id":"a","labels":{"x":"y"},"activeTurn":null}}}}`,
	`{"type":"session","message":{"type":"agent_update","payload":{"kind":"remove","agentId":"a"}}}`,
	`{"type":"session","message":{"type":"agent_permission_request","payload":{"agentId":"a","request":{"id":"p","kind":"tool"}}}}`,
	`{"type":"session","message":{"type":"agent_permission_resolved","payload":{"agentId":"a","requestId":"p","resolution":{"behavior":"allow"}}}}`,
	`{"type":"session","message":{"type":"agent_attention_required","payload":{"agentId":"a","reason":"error"}}}`,
	`{"type":"session","message":{"type":"agent.timeline.replacement","payload":{"agentId":"a","epoch":"e"}}}`,
	`{"type":"session","message":{"type":"rpc_error","payload":{"requestId":"r","error":"x","code":"handler_error"}}}`,
	`{"type":"session","message":{"type":"fetch_agent_response","payload":{"requestId":"r","agent":{"id":"a"},"error":null}}}`,
	`{"type":"session","message":{"type":"fetch_agents_response","payload":{"requestId":"r","entries":[{"agent":{"id":"a"}}],"pageInfo":{"nextCursor":"c","hasMore":true}}}}`,
	`{"type":"session","message":{"type":"wait_for_finish_response","payload":{"requestId":"r","status":"idle","final":{"id":"a"},"lastMessage":null}}}`,
	`{"type":"session","message":{"type":"get_providers_snapshot_response","payload":{"requestId":"r","entries":[{"provider":"p","enabled":true}]}}}`,
	`{"type":"session","message":7}`, `{"type":"session"}`, `[]`, `null`, ``, `{"type":{}}`,
}

// FuzzFrames gives the client any frame: it must take it, publish only events of
// agents with an id, and answer calls once.
func FuzzFrames(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s), true)
		f.Add([]byte(s), false)
	}
	f.Fuzz(func(t *testing.T, data []byte, selective bool) {
		c := New(Options{})
		c.watched = map[string]bool{"a": true}
		sub := c.Subscribe()
		cn := newConn(c, nil, ServerInfo{ServerID: "s", Features: map[string]bool{"selectiveAgentTimeline": selective}})
		got := make(chan answer, 1)
		cn.pending["r"] = got
		cn.asked["p"] = []asker{{"a", make(chan answer, 1)}}
		cn.handle(data)
		cn.handle(data)
		if len(got) == 1 {
			readEverything((<-got).payload)
		}
		for len(sub.queue) > 0 {
			e, err := sub.Next(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if id, named := agentOf(e); named && id == "" {
				t.Fatalf("%#v is of no agent", e)
			}
		}
	})
}

func agentOf(e Event) (id string, named bool) {
	switch e := e.(type) {
	case AgentUpdated:
		return e.Agent.ID, true
	case TurnChanged:
		return e.AgentID, true
	case RowAdded:
		return e.AgentID, true
	case PermissionRequested:
		return e.AgentID, e.Permission.ID != ""
	case PermissionResolved:
		return e.AgentID, true
	case AttentionRequired:
		return e.AgentID, true
	}
	return "", false
}

// readEverything decodes a payload as every answer.
func readEverything(payload []byte) {
	_, _ = decodePage(payload)
	_, _ = decodeFinish(payload)
	_, _ = decodeProviders(payload)
	_, _ = decodeDaemonStatus(payload)
	_, _, _ = decodeEntries(payload, "list")
	_, _ = decodeInfo(payload)
	_, _ = decodeWorkspace(payload)
	_, _ = decodeAgent(payload)
}

// FuzzPages gives any timeline page: what is accepted must be usable.
func FuzzPages(f *testing.F) {
	f.Add([]byte(`{"agentId":"a","epoch":"e","entries":[{"seqStart":1,"seqEnd":1,"turnId":"t","item":{"type":"user_message","text":"x","messageId":"m"}}],"window":{"minSeq":1,"maxSeq":1,"nextSeq":2},"startCursor":{"epoch":"e","seq":1},"hasOlder":false}`))
	f.Add([]byte(`{"entries":[{"item":{"type":"tool_call","callId":"c","status":"running"}}],"agent":null,"reset":true}`))
	f.Add([]byte(`{"entries":[7,null,[]]}`))
	f.Add([]byte(`{"error":"Agent not found: a"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		page, err := decodePage(data)
		if err != nil {
			return
		}
		if page.Entries == nil {
			t.Fatal("a page without a list")
		}
		for _, e := range page.Entries {
			if len(e.Raw) == 0 || !json.Valid(e.Raw) {
				t.Fatalf("entry without its text: %+v", e)
			}
		}
		readEverything(data)
	})
}

// FuzzStreams gives any body of an MCP answer.
func FuzzStreams(f *testing.F) {
	f.Add([]byte("event: message\ndata: {\"result\":{\"structuredContent\":{}}}\n\n"))
	f.Add([]byte("data: {\"error\":{\"message\":\"x\"}}\r\n\r\n"))
	f.Add([]byte("data:\n\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		result, err := mcpReply{body: firstAnswer(data)}.result()
		if err == nil && !json.Valid(result) {
			t.Fatalf("a result that is no JSON: %q", result)
		}
	})
}
