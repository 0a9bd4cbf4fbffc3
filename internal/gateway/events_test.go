package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"agentrelay/internal/audit"
	"agentrelay/internal/config"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

var eventSecret = "whsec_" + strings.Repeat("QUJD", 10) + "QUI="

// sink is a receiver of callbacks on loopback.
type sink struct {
	*httptest.Server
	got chan sunk
}

type sunk struct {
	header http.Header
	body   string
}

func newSink(t *testing.T) *sink {
	s := &sink{got: make(chan sunk, 100)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch {
		case r.URL.Path == "/broken":
			w.WriteHeader(http.StatusNotFound)
		case strings.Contains(string(body), `"type":"verification"`):
			w.Write(body) // it holds the challenge
		default:
			s.got <- sunk{r.Header, string(body)}
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// startEvents is a gateway in test mode whose events are sent.
func startEvents(t *testing.T, change ...func(*config.Config)) *harness {
	t.Helper()
	c := testConfig(t)
	c.Safedial.AllowLoopback = true
	for _, f := range change {
		f(c)
	}
	h := start(t, c)
	if err := h.events.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The tokens of these tests are of clients that never registered.
	err := store.Exec(t.Context(), h.store, func(tx *store.Tx) error {
		for _, id := range []string{"client-a", "client-b", "client-m"} {
			if _, err := tx.Exec(`INSERT INTO oauth_clients (id, kind, name, redirect_uris, grant_types, created_at) VALUES (?, 'dynamic', 'Test', '[]', '[]', 0)`, id); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// event calls a method of MCP Events.
func (h *harness) event(t *testing.T, isModern bool, token, method string, params map[string]any) (int, string) {
	t.Helper()
	header := legacy("Authorization", "Bearer "+token)
	if isModern {
		header = modern(method, "Authorization", "Bearer "+token)
	}
	resp, body := h.do(t, request{path: "/mcp", header: header, body: rpc(isModern, method, params)})
	return resp.StatusCode, eventData(body)
}

func subscription(url, peer string) map[string]any {
	return map[string]any{
		"name": "peer.message", "arguments": map[string]any{"peerId": peer}, "cursor": nil,
		"delivery": map[string]any{"mode": "webhook", "url": url, "secret": eventSecret},
	}
}

func TestCapabilitiesOfEvents(t *testing.T) {
	h := startEvents(t)
	eras(t, func(t *testing.T, isModern bool) {
		method, params := "initialize", map[string]any{"protocolVersion": "2025-11-25", "capabilities": map[string]any{}, "clientInfo": map[string]any{"name": "t", "version": "1"}}
		if isModern {
			method, params = "server/discover", nil
		}
		status, body := h.event(t, isModern, goodToken, method, params)
		res := resultOf[struct {
			ResultType   string
			Capabilities struct {
				Events, Tools json.RawMessage
				Extensions    map[string]json.RawMessage
			}
			SupportedVersions []string
			ProtocolVersion   string
		}](t, body)
		if status != 200 || string(res.Capabilities.Events) != "{}" || string(res.Capabilities.Extensions["io.modelcontextprotocol/events"]) != "{}" || res.Capabilities.Tools == nil {
			t.Errorf("status %d: %s", status, body)
		}
		if isModern && (res.ResultType != "complete" || len(res.SupportedVersions) == 0) || !isModern && res.ProtocolVersion != "2025-11-25" {
			t.Errorf("the rest of the result is not as it was: %s", body)
		}
	})
}

func TestEventsWakeAPeer(t *testing.T) {
	h := startEvents(t)
	receiver := newSink(t)
	for _, id := range []string{"a", "b"} {
		h.call(t, goodToken, "register_peer", map[string]any{"peerId": id, "kind": "chat"})
	}
	eras(t, func(t *testing.T, isModern bool) {
		url := receiver.URL + "/hook/" + fmt.Sprint(isModern)
		_, body := h.event(t, isModern, goodToken, "events/list", map[string]any{})
		list := resultOf[struct {
			ResultType string
			Events     []struct {
				Name                       string
				Delivery                   []string
				InputSchema, PayloadSchema map[string]any
			}
			NextCursor *string
		}](t, body)
		if len(list.Events) != 2 || list.Events[1].Name != "agent.attention" || list.Events[0].Name != "peer.message" || list.Events[0].InputSchema["type"] != "object" || list.Events[0].PayloadSchema["type"] != "object" || list.NextCursor != nil {
			t.Errorf("events: %s", body)
		}
		if (list.ResultType == "complete") != isModern {
			t.Errorf("resultType %q", list.ResultType)
		}

		_, body = h.event(t, isModern, goodToken, "events/subscribe", subscription(url, "b"))
		members := resultOf[map[string]any](t, body)
		id, _ := members["id"].(string)
		if cursor, ok := members["cursor"]; !ok || cursor != nil || members["truncated"] != false || !strings.HasPrefix(id, "sub_") {
			t.Errorf("subscribed: %s", body)
		}
		expires, err := time.Parse(time.RFC3339, members["refreshBefore"].(string))
		if err != nil || time.Until(expires) < 29*24*time.Hour {
			t.Errorf("refreshBefore %v, %v", members["refreshBefore"], err)
		}
		peers := h.call(t, otherToken, "list_peers", map[string]any{})
		if !strings.Contains(string(peers.Structured), `"path":"events","expiresAt"`) {
			t.Errorf("peers: %s", peers.Structured)
		}

		messageID := "b0bd3f0e-08d7-4bf6-9764-58e8ef83f85" + map[bool]string{true: "a", false: "b"}[isModern]
		h.call(t, otherToken, "send_peer_message", map[string]any{"messageId": messageID, "fromPeerId": "a", "toPeerId": "b", "text": secretly})
		got := within(t, "the callback", receiver.got)
		w, err := standardwebhooks.NewWebhook(eventSecret)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Verify([]byte(got.body), got.header); err != nil || got.header.Get("X-MCP-Subscription-Id") != id {
			t.Errorf("%v: %+v", err, got)
		}
		if !strings.Contains(got.body, messageID) || strings.Contains(got.body, secretly) {
			t.Errorf("the callback is %s", got.body)
		}

		// Unsubscribing is the same whether there is a subscription or not.
		for range 2 {
			status, body := h.event(t, isModern, goodToken, "events/unsubscribe", map[string]any{
				"name": "peer.message", "arguments": map[string]any{"peerId": "b"}, "delivery": map[string]any{"mode": "webhook", "url": url},
			})
			res := resultOf[map[string]any](t, body)
			delete(res, "_meta")
			if delete(res, "resultType"); status != 200 || len(res) != 0 {
				t.Errorf("unsubscribed: %d %s", status, body)
			}
		}
		peers = h.call(t, otherToken, "list_peers", map[string]any{})
		if strings.Contains(string(peers.Structured), `"path":"events"`) {
			t.Errorf("after the end: %s", peers.Structured)
		}
	})
}

func TestEventRefusals(t *testing.T) {
	for _, codes := range []string{"sketch", "sep"} {
		h := startEvents(t, func(c *config.Config) { c.Events.ErrorCodes, c.Events.MaxSubscriptions = codes, 1 })
		receiver := newSink(t)
		for _, id := range []string{"b", "c"} {
			h.call(t, goodToken, "register_peer", map[string]any{"peerId": id, "kind": "chat"})
		}
		eras(t, func(t *testing.T, isModern bool) { eventRefusals(t, h, receiver, codes, isModern) })
		audited := 0
		err := store.Read(t.Context(), h.store, func(q *store.Reader) error {
			entries, err := audit.Last(q, 1000)
			for _, e := range entries {
				if e.Action == "event.refuse" && strings.HasPrefix(e.Subject, "events/") && e.Outcome != audit.OK {
					audited++
				}
			}
			return err
		})
		if err != nil || audited < 14 {
			t.Errorf("%d refusals are audited, %v", audited, err)
		}
		for _, part := range []string{eventSecret, receiver.URL} {
			if strings.Contains(h.log.String(), part) {
				t.Errorf("the log has %s", part)
			}
		}
		if !strings.Contains(h.log.String(), `"refused":"callback_failed"`) {
			t.Error("the log does not name a refusal")
		}
	}
}

func eventRefusals(t *testing.T, h *harness, receiver *sink, codes string, isModern bool) {
	change := func(f func(p map[string]any)) map[string]any {
		p := subscription(receiver.URL, "b")
		f(p)
		return p
	}
	delivery := func(name string, value any) map[string]any {
		return change(func(p map[string]any) { p["delivery"].(map[string]any)[name] = value })
	}
	if _, body := h.event(t, isModern, goodToken, "events/subscribe", subscription(receiver.URL, "c")); !strings.Contains(body, "refreshBefore") {
		t.Fatalf("%s", body)
	}
	for _, tt := range []struct {
		name, token, method string
		params              map[string]any
		code                string
		sketch, sep         int64
		data                string // a part of the data
	}{
		{"no params", goodToken, "events/subscribe", nil, "invalid_arguments", -32602, -32602, ""},
		{"cursor of a list", goodToken, "events/list", map[string]any{"cursor": "x"}, "invalid_arguments", -32602, -32602, ""},
		{"unknown event", goodToken, "events/subscribe", change(func(p map[string]any) { p["name"] = "x" }), "unknown_event", -32011, -32023, `"kind":"event"`},
		{"unknown peer", goodToken, "events/subscribe", subscription(receiver.URL, "nobody"), "unknown_event_subject", -32011, -32023, `"kind":"peer"`},
		{"not allowed", mutedToken, "events/subscribe", subscription(receiver.URL, "b"), "not_permitted", -32012, -32024, "gateway clients allow client-m mailbox"},
		{"poll", goodToken, "events/subscribe", delivery("mode", "poll"), "unsupported_delivery", -32014, -32026, `"feature":"deliveryMode","hint"`},
		{"plain http", goodToken, "events/subscribe", delivery("url", "http://callback.example/"), "invalid_arguments", -32602, -32602, ""},
		{"private", goodToken, "events/subscribe", delivery("url", "https://10.0.0.1/"), "invalid_arguments", -32602, -32602, ""},
		{"bad secret", goodToken, "events/subscribe", delivery("secret", "whsec_x"), "invalid_arguments", -32602, -32602, ""},
		{"bad ttl", goodToken, "events/subscribe", change(func(p map[string]any) { p["ttlMs"] = "1d" }), "invalid_arguments", -32602, -32602, ""},
		{"quota", goodToken, "events/subscribe", subscription(receiver.URL, "b"), "subscription_limit", -32013, -32025, `"limit":"subscriptions","max":1`},
		{"unsubscribe nothing", goodToken, "events/unsubscribe", map[string]any{"name": "peer.message"}, "invalid_arguments", -32602, -32602, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, body := h.event(t, isModern, tt.token, tt.method, tt.params)
			e := rpcErrorOf(t, body).Error
			want := map[string]int64{"sketch": tt.sketch, "sep": tt.sep}[codes]
			if e.Code != want || e.Data.Code != tt.code || e.Data.Hint == "" || e.Data.ID == "" || e.Message == "" || !strings.Contains(body, tt.data) {
				t.Errorf("want %d %s %s: %s", want, tt.code, tt.data, body)
			}
		})
	}
	unsubscribe := subscription(receiver.URL, "c")
	h.event(t, isModern, goodToken, "events/unsubscribe", unsubscribe)
	_, body := h.event(t, isModern, goodToken, "events/subscribe", delivery("url", receiver.URL+"/broken"))
	if e := rpcErrorOf(t, body).Error; e.Data.Code != "callback_failed" || e.Code != map[string]int64{"sketch": -32015, "sep": -32027}[codes] || !strings.Contains(body, `"reason":"http_4xx"`) {
		t.Errorf("a callback that does not pass: %s", body)
	}
}

func TestEventsAreListedByPermission(t *testing.T) {
	h := startEvents(t)
	if _, body := h.event(t, true, mutedToken, "events/list", nil); strings.Contains(body, "peer.message") || !strings.Contains(body, "agent.attention") {
		t.Errorf("without the permission: %s", body)
	}
	off := startEvents(t, func(c *config.Config) { c.Tools.Mailbox, c.Tools.Agents = false, false })
	if _, body := off.event(t, true, goodToken, "events/list", nil); !strings.Contains(body, `"events":[]`) {
		t.Errorf("without the mailbox: %s", body)
	}
	if status, body := h.event(t, true, goodToken, "events/poll", nil); status != http.StatusNotFound || rpcErrorOf(t, body).Error.Code != -32601 {
		t.Errorf("a method that is not offered: %d %s", status, body)
	}
}

func TestRevokedClientIsToldNothing(t *testing.T) {
	h := startEvents(t)
	receiver := newSink(t)
	for _, id := range []string{"a", "b"} {
		h.call(t, goodToken, "register_peer", map[string]any{"peerId": id, "kind": "chat"})
	}
	h.event(t, true, goodToken, "events/subscribe", subscription(receiver.URL+"/a", "b"))
	h.event(t, true, otherToken, "events/subscribe", subscription(receiver.URL+"/b", "b"))
	if _, err := h.clients.Revoke(t.Context(), "client-a"); err != nil {
		t.Fatal(err)
	}
	h.call(t, otherToken, "send_peer_message", map[string]any{"messageId": firstID, "fromPeerId": "a", "toPeerId": "b", "text": "x"})
	within(t, "the other client's callback", receiver.got)
	if _, err := h.clients.SetPermissions(t.Context(), "client-b", nil, principal.Set{principal.Mailbox}); err != nil {
		t.Fatal(err)
	}
	s, err := h.events.Status(t.Context())
	if err != nil || s.Subscriptions != 1 || len(receiver.got) != 0 {
		t.Errorf("%+v, %v, %d callbacks", s, err, len(receiver.got))
	}
	out, err := h.mailbox.SendPeerMessage(t.Context(), principal.Principal{Owner: principal.SharedOwner, ClientID: "client-b", Permissions: principal.Full()},
		mailbox.SendPeerMessageIn{MessageID: "b0bd3f0e-08d7-4bf6-9764-58e8ef83f85c", FromPeerID: "a", ToPeerID: "b", Text: "x"})
	if err != nil || out.Delivery.Path != mailbox.None || !strings.Contains(out.Delivery.Reason, "no longer allows") {
		t.Errorf("to a client that is denied: %+v, %v", out.Delivery, err)
	}
}

func TestStatusCountsEvents(t *testing.T) {
	h := startEvents(t, func(c *config.Config) {
		c.PeerWakeTargets = []config.WakeTarget{{Owner: principal.SharedOwner, PeerID: "grok", Generation: 1, RoutineID: "r", CredentialFile: "/nowhere/key.json", Scheme: "bearer"}}
	})
	receiver := newSink(t)
	h.call(t, goodToken, "register_peer", map[string]any{"peerId": "b", "kind": "chat"})
	h.event(t, true, goodToken, "events/subscribe", subscription(receiver.URL, "b"))
	s, err := h.Status(t.Context())
	if err != nil || s.Events.Subscriptions != 1 || s.Events.Targets != 1 {
		t.Errorf("%+v, %v", s.Events, err)
	}
	names := []string{}
	for _, w := range s.Warnings {
		names = append(names, w.Name)
	}
	for _, want := range []string{"loopback_receivers_allowed", "wake_target_waiting"} {
		if !slices.Contains(names, want) {
			t.Errorf("no %s in %v", want, names)
		}
	}
}
