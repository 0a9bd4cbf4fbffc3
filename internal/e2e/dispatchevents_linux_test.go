package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"agentrelay/internal/agents"
	"agentrelay/internal/e2e/rig"
	"agentrelay/internal/mailbox"
)

const callbackSecret = "whsec_QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo="

// called is what a callback or a wake-up says.
type called struct {
	Name string // of the event; "" is a wake-up
	Data told
	told // of a wake-up
}

// told is what an event says: ids, and for agent.attention what has happened.
type told struct {
	EventID, MessageID, PeerID, Kind, RequestID, AgentID, RouteID, Summary string
	TerminalKind                                                           *string
	ReadyForReply                                                          bool
	AcceptancePassed                                                       *bool
}

// receiver takes callbacks over TLS, and wake-ups under /wake.
type receiver struct {
	t *testing.T
	*httptest.Server
	authority string // what a gateway has to trust
	got       chan called
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	verifier, err := standardwebhooks.NewWebhook(callbackSecret)
	if err != nil {
		t.Fatal(err)
	}
	r := &receiver{t: t, got: make(chan called, 100)}
	r.Server, r.authority = tlsSource(t, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		if q.URL.Path != "/wake" && err == nil {
			err = verifier.Verify(body, q.Header)
		}
		if err == nil && strings.Contains(string(body), `"type":"verification"`) {
			_, _ = w.Write(body) // it holds the challenge
			return
		}
		var c called
		if err == nil {
			err = json.Unmarshal(body, &c)
		}
		if err != nil {
			t.Errorf("a callback with %q: %v", body, err)
		}
		r.got <- c
	}))
	return r
}

// trusted has the gateway of a home call the receiver.
func (r *receiver) trusted(home *rig.Home) {
	home.Configure("safedial", object{"allowLoopback": true})
	home.Env = append(home.Env, "SSL_CERT_FILE="+r.authority)
}

func (r *receiver) next() called {
	r.t.Helper()
	select {
	case c := <-r.got:
		return c
	case <-time.After(30 * time.Second):
		r.t.Fatal("no callback came")
	}
	return called{}
}

// attention is the next event, which must be of an agent.
func (r *receiver) attention() told {
	r.t.Helper()
	c := r.next()
	if c.Name != "agent.attention" || c.Data.AcceptancePassed != nil {
		r.t.Errorf("the event is %+v", c)
	}
	return c.Data
}

// silent checks that nothing more came.
func (r *receiver) silent() {
	r.t.Helper()
	select {
	case c := <-r.got:
		r.t.Errorf("one too many: %+v", c)
	case <-time.After(300 * time.Millisecond):
	}
}

// subscribe has a client called for an event.
func (r *receiver) subscribe(c *rig.Client, event string, arguments object) {
	r.t.Helper()
	body, err := json.Marshal(object{"jsonrpc": "2.0", "id": 1, "method": "events/subscribe", "params": object{
		"name": event, "arguments": arguments, "delivery": object{"mode": "webhook", "url": r.URL + "/hook", "secret": callbackSecret},
	}})
	if err != nil {
		r.t.Fatal(err)
	}
	q, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, c.MCPURL, bytes.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	q.Header = http.Header{"Authorization": {"Bearer " + c.Token.AccessToken}, "Content-Type": {"application/json"}, "Accept": {"application/json"}, "Mcp-Protocol-Version": {"2025-11-25"}}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(q)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct{ Result, Error json.RawMessage }
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Error != nil || answer.Result == nil {
		r.t.Fatalf("subscribing to %s: %s, %v", event, answer.Error, err)
	}
}

// TestEventsOneWayAndAWebhookTheOther: one peer is told of its mail by MCP Events,
// the other by the webhook of its routine; each reads the very message.
func TestEventsOneWayAndAWebhookTheOther(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	h := rig.NewHome(t, binary)
	r.trusted(h)
	credential := filepath.Join(h.Dir, "wake.json")
	if err := os.WriteFile(credential, []byte(`{"url":"`+r.URL+`/wake","token":"key"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	h.Configure("peerWakeTargets", []object{{"owner": "local-owner:shared", "peerId": "grok", "generation": 1, "routineId": "mail", "credentialFile": credential}})
	h.Serve()
	sessions := map[string]chat{}
	for _, peer := range []string{"dot", "grok"} {
		client := h.Authorize(peer)
		s, err := client.Connect(t.Context(), peer, client.Token.AccessToken)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		sessions[peer] = chat{t, s}
		sessions[peer].call("register_peer", object{"peerId": peer, "kind": "chat"})
		if peer == "dot" {
			r.subscribe(client, "peer.message", object{"peerId": "dot"})
		}
	}
	var last *string
	for _, step := range []struct {
		from, to, text string
		path           mailbox.Path
	}{{"grok", "dot", "Is the heron built?", mailbox.Events}, {"dot", "grok", "It stands.", mailbox.Webhook}} {
		var sent mailbox.SendPeerMessageOut
		in := mailbox.SendPeerMessageIn{MessageID: uuid.NewString(), FromPeerID: step.from, ToPeerID: step.to, Text: step.text, InReplyTo: last}
		if err := sessions[step.from].Call(t.Context(), "send_peer_message", in, &sent); err != nil || sent.Delivery.Path != step.path {
			t.Fatalf("%+v, %v", sent, err)
		}
		c := r.next()
		if step.path == mailbox.Events && c.Name == "peer.message" {
			c.told = c.Data
		}
		if c.MessageID != in.MessageID || c.PeerID != step.to {
			t.Errorf("%s is told %+v", step.to, c)
		}
		var read mailbox.GetPeerMessageOut
		if err := sessions[step.to].Call(t.Context(), "get_peer_message", object{"messageId": c.MessageID, "peerId": step.to}, &read); err != nil || read.Message.Text != step.text {
			t.Errorf("%s reads %+v, %v", step.to, read, err)
		}
		sessions[step.to].call("ack_peer_message", object{"messageId": c.MessageID, "peerId": step.to})
		if got := sessions[step.from].call("get_peer_message", object{"messageId": c.MessageID}); got["message"].(object)["state"] != "processed" {
			t.Errorf("afterwards %s sees %v", step.from, got)
		}
		last = &in.MessageID
	}
	r.silent()
}

// TestAnAgentIsFollowed: a chat dispatches, hears of what happens on a route of
// its own, each thing once, answers what it is asked, and ends a run.
func TestAnAgentIsFollowed(t *testing.T) {
	onVersions(t, func(t *testing.T, version string) {
		r := newReceiver(t)
		c := newCrew(t, version, r.trusted)
		r.subscribe(c.client, "agent.attention", object{"workspaceId": c.place, "routeId": "chat-1"})
		if routes := c.call("list_notification_routes", nil)["routes"].([]any); len(routes) != 1 || routes[0].(object)["routeId"] != "chat-1" {
			t.Errorf("the routes are %v", routes)
		}
		agentID := c.create("one", "hello")
		if e := r.attention(); e.Kind != "result" || e.RequestID != "one" || e.AgentID != agentID || e.RouteID != "chat-1" || !strings.Contains(e.Summary, "hello") {
			t.Errorf("of the result the chat hears %+v", e)
		}
		c.asks(r, agentID)
		c.permits(r, agentID)

		c.dispatch("send_agent_prompt", prompting("endless", agentID, "sleep 60"))
		c.running(agentID)
		if refused := c.refused("send_agent_prompt", prompting("second", agentID, "hello")); !strings.Contains(refused, "agent_busy") {
			t.Errorf("a second prompt: %s", refused)
		}
		if out := c.call("cancel_agent", object{"agentId": agentID}); out["success"] != true {
			t.Errorf("canceling: %v", out)
		}
		if out := c.wait("endless", agentID); out.Status != "canceled" || *out.TerminalKind != "turn_canceled" || out.AcceptancePassed != nil {
			t.Errorf("a canceled run: %+v", out)
		}
		if e := r.attention(); e.Kind != "canceled" || e.RequestID != "endless" {
			t.Errorf("of its end the chat hears %+v", e)
		}
		if out := c.call("cancel_agent", object{"agentId": agentID}); out["success"] != false {
			t.Errorf("canceling what is idle: %v", out)
		}

		quiet := prompting("quiet", agentID, "hello again")
		quiet["notify"] = false
		c.dispatch("send_agent_prompt", quiet)
		if out := c.wait("quiet", agentID); !out.SavedResult {
			t.Errorf("%+v", out)
		}
		r.silent()
		c.call("watch_dispatch_request", object{"requestId": "quiet", "notificationRouteId": "chat-1"})
		if e := r.attention(); e.Kind != "result" || e.RequestID != "quiet" || !strings.Contains(e.Summary, "hello again") {
			t.Errorf("of what is watched later the chat hears %+v", e)
		}
		r.silent()
		if n := len(c.daemon.prompts()); n != 6 { // one, asks, its answer, permits, endless, quiet
			t.Errorf("%d prompts ran", n)
		}
		if log := c.gateway.Output(); strings.Contains(log, "hello") || strings.Contains(log, "heron") {
			t.Error("the log has what agents were told or said")
		}
	})
}

// asks has an agent report, and ask something and end its turn; the question
// stands for the result, and is answered once.
func (c *crew) asks(r *receiver, agentID string) {
	t, agent := c.t, c.agentOf(agentID)
	t.Helper()
	c.dispatch("send_agent_prompt", prompting("asks", agentID, "sleep 4"))
	c.running(agentID)
	asked := uuid.NewString()
	for _, step := range []struct{ kind, id, text string }{{"message", uuid.NewString(), "Half of it stands."}, {"needs_input", asked, "Which heron?"}} {
		send := []string{"message", "--request-id", "asks", "--kind", step.kind, "--message-id", step.id, "--text", step.text}
		if out := agent.ok("", send...); out["status"] != "accepted" {
			t.Errorf("the agent is told %v", out)
		}
		if out := agent.ok("", send...); out["status"] != "duplicate" {
			t.Errorf("repeated: %v", out)
		}
		if step.kind == "message" {
			if e := r.attention(); e.Kind != "message" || e.MessageID != step.id || e.ReadyForReply {
				t.Errorf("of a message the chat hears %+v", e)
			}
		}
		if got := c.call("get_agent_message", object{"messageId": step.id}); got["text"] != step.text || got["kind"] != step.kind || got["agentId"] != agentID {
			t.Errorf("the chat reads %v", got)
		}
	}
	if out := c.wait("asks", agentID); !strings.Contains(said(out), "slept") {
		t.Errorf("the run that asked ended as %+v", out)
	}
	if e := r.attention(); e.Kind != "needs_input" || e.MessageID != asked || !e.ReadyForReply {
		t.Errorf("of a question the chat hears %+v", e)
	}
	answer := prompting("answer", agentID, "The grey one.")
	answer["replyToMessageId"] = asked
	c.dispatch("send_agent_prompt", answer)
	if out := c.wait("answer", agentID); !strings.Contains(said(out), "The grey one.") {
		t.Errorf("the answer ran as %+v", out)
	}
	if e := r.attention(); e.Kind != "result" || e.RequestID != "answer" {
		t.Errorf("of the answer's end the chat hears %+v", e)
	}
	answer["requestId"] = "answer-again"
	if again := c.settled("send_agent_prompt", answer); !again.ReplyAlreadySubmitted || again.RequestID != "answer" {
		t.Errorf("the same reply under another requestId: %s", brief(again))
	}
}

// permits has an agent ask for a permission, which is answered once.
func (c *crew) permits(r *receiver, agentID string) {
	t := c.t
	t.Helper()
	c.dispatch("send_agent_prompt", prompting("permits", agentID, "perm"))
	out := c.wait("permits", agentID)
	if out.Status != "permission" || len(out.Pending) != 1 || out.SavedResult {
		t.Fatalf("an agent that asks: %+v", out)
	}
	var asked struct{ ID string }
	if err := json.Unmarshal(out.Pending[0], &asked); err != nil {
		t.Fatal(err)
	}
	if e := r.attention(); e.Kind != "permission" || e.RequestID != "permits" {
		t.Errorf("of a permission the chat hears %+v", e)
	}
	pending := c.call("list_pending_permissions", nil)["permissions"].([]any)
	if len(pending) != 1 || pending[0].(object)["agentId"] != agentID || pending[0].(object)["request"].(object)["id"] != asked.ID {
		t.Errorf("pending are %v", pending)
	}
	if refused := c.refused("send_agent_prompt", prompting("over-it", agentID, "hello")); !strings.Contains(refused, "permission_pending") {
		t.Errorf("a prompt over a question: %s", refused)
	}
	respond := func(behavior string) object {
		return object{"agentId": agentID, "requestId": asked.ID, "response": object{"behavior": behavior}}
	}
	if out := c.call("respond_to_permission", respond("allow")); out["state"] != string(agents.Submitted) || out["duplicate"] != false {
		t.Errorf("allowed: %v", out)
	}
	if out := c.wait("permits", agentID); !strings.Contains(said(out), "allowed") {
		t.Errorf("with its permission it ended as %+v", out)
	}
	if e := r.attention(); e.Kind != "result" || e.RequestID != "permits" {
		t.Errorf("of its end the chat hears %+v", e)
	}
	if out := c.call("respond_to_permission", respond("allow")); out["duplicate"] != true {
		t.Errorf("repeated: %v", out)
	}
	if refused := c.refused("respond_to_permission", respond("deny")); !strings.Contains(refused, "key_conflict") {
		t.Errorf("another answer: %s", refused)
	}
}
