package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"agentrelay/internal/agents/paseo/paseotest"
	"agentrelay/internal/channel"
	"agentrelay/internal/config"
	"agentrelay/internal/hosts/local"
	"agentrelay/internal/mailbox"
)

// crew is a gateway with a daemon.
type crew struct {
	*harness
	t      *testing.T
	daemon *paseotest.Daemon
	root   string
}

func startCrew(t *testing.T, version string, change ...func(*config.Config)) *crew {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	d := paseotest.Start(t, paseotest.Options{Version: version})
	h := startEvents(t, append(change, func(c *config.Config) {
		c.AllowedRoots, c.UpstreamURL = []string{root}, "http://"+d.Addr().String()+"/mcp/agents"
	})...)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { h.serveDispatch(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	if err := h.dispatch.agents.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := &crew{h, t, d, root}
	c.eventually("the daemon", func() bool { return h.dispatch.available(local.ID()) })
	return c
}

func (c *crew) eventually(what string, ok func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("%s did not come", what)
		}
	}
}

// ask calls a tool that must not fail.
func (c *crew) ask(name string, args map[string]any) map[string]any {
	c.t.Helper()
	res := c.call(c.t, goodToken, name, args)
	var out map[string]any
	if err := json.Unmarshal(res.Structured, &out); err != nil || res.IsError {
		c.t.Fatalf("%s: %s, %v", name, res.Structured, err)
	}
	return out
}

func (c *crew) workspace() string {
	c.t.Helper()
	return c.ask("create_workspace", map[string]any{"isolation": "local", "path": c.root})["workspaceId"].(string)
}

// dispatch creates an agent and waits for the end of its first prompt.
func (c *crew) create(requestID, workspaceID, prompt string) (agentID string) {
	c.t.Helper()
	receipt := c.ask("create_agent", map[string]any{"requestId": requestID, "workspaceId": workspaceID, "title": "A test", "provider": "fake/echo", "initialPrompt": prompt})
	if receipt["state"] != "submitted" {
		c.t.Fatalf("%v", receipt)
	}
	agentID = receipt["agentId"].(string)
	c.ask("wait_for_agent_result", map[string]any{"requestId": requestID, "agentId": agentID, "timeoutMs": 20000})
	return agentID
}

// TestEveryAgentTool is called once and does what its schema says.
func TestEveryAgentTool(t *testing.T) {
	c := startCrew(t, paseotest.V10)
	workspaceID := c.workspace()
	agentID := c.create("first", workspaceID, "hello")
	c.ask("send_agent_prompt", map[string]any{"requestId": "ask", "agentId": agentID, "prompt": "perm"})
	asked := c.ask("wait_for_agent_result", map[string]any{"requestId": "ask", "agentId": agentID, "timeoutMs": 20000})
	if asked["status"] != "permission" {
		t.Fatalf("%v", asked)
	}
	permission := asked["pendingPermissions"].([]any)[0].(map[string]any)["id"].(string)
	called := map[string]bool{"create_workspace": true, "create_agent": true, "send_agent_prompt": true, "wait_for_agent_result": true}
	for _, one := range []struct {
		tool, says string
		args       map[string]any
	}{
		{"list_projects", c.root, nil},
		{"list_workspaces", workspaceID, map[string]any{"limit": 5}},
		{"get_agent_status", `"pendingPermissions":[{`, map[string]any{"agentId": agentID}},
		{"list_agents", agentID, map[string]any{"statuses": []string{"running"}, "cwd": c.root, "hostId": "local"}},
		{"list_profiles", `"profiles"`, nil},
		{"list_providers", `"fake"`, nil},
		{"list_models", `"echo"`, map[string]any{"provider": "fake"}},
		{"inspect_provider", `"features"`, map[string]any{"provider": "fake", "cwd": c.root}},
		{"get_agent_activity", `"content"`, map[string]any{"agentId": agentID}},
		{"list_pending_permissions", permission, nil},
		{"respond_to_permission", `"submitted"`, map[string]any{"agentId": agentID, "requestId": permission, "response": map[string]any{"behavior": "allow"}}},
		{"get_request_result", "allowed", map[string]any{"requestId": "ask", "waitMs": 20000}},
		{"get_dispatch_request", `"state":"submitted"`, map[string]any{"requestId": "ask"}},
		{"get_agent_result", `"entries":[{`, map[string]any{"agentId": agentID, "limit": 3}},
		{"update_agent", `"success":true`, map[string]any{"agentId": agentID, "name": "Renamed", "labels": map[string]any{"a": "b"}, "settings": map[string]any{"model": nil}}},
		{"cancel_agent", `"success":false`, map[string]any{"agentId": agentID}},
		{"list_notification_routes", `"routes":[]`, nil},
	} {
		res := c.call(t, goodToken, one.tool, one.args)
		if res.IsError || !strings.Contains(string(res.Structured), one.says) || !strings.Contains(string(res.Structured), `"hostId":"`+local.ID()+`"`) {
			t.Errorf("%s: %s", one.tool, res.Structured)
		}
		called[one.tool] = true
	}
	for _, one := range []struct {
		tool, code string
		args       map[string]any
	}{
		{"watch_dispatch_request", "no_active_route", map[string]any{"requestId": "ask", "notificationRouteId": "x"}},
		{"get_agent_message", "unknown_agent_message", map[string]any{"messageId": uuid.NewString()}},
		{"get_agent_status", "unknown_host", map[string]any{"agentId": agentID, "hostId": "nope"}},
		{"update_agent", "invalid_arguments", map[string]any{"agentId": agentID, "labels": map[string]any{"a": 1}}},
		{"create_agent", "key_conflict", map[string]any{"requestId": "first", "workspaceId": workspaceID, "title": "B", "provider": "fake/echo", "initialPrompt": "x"}},
	} {
		res := c.call(t, goodToken, one.tool, one.args)
		if e := res.failure(t); e.Code != one.code || e.Hint == "" {
			t.Errorf("%s: %s", one.tool, res.Structured)
		}
		called[one.tool] = true
	}
	for _, each := range agentTools(c.dispatch) {
		if !called[each.Name] {
			t.Errorf("%s was not called", each.Name)
		}
	}
	var actions []string
	for _, e := range c.entries(t, 100) {
		actions = append(actions, e.Action+" "+e.Outcome)
	}
	for _, want := range []string{"workspace.create ok", "agent.create ok", "agent.prompt ok", "agent.permission ok", "agent.update ok", "agent.cancel ok", "agent.create key_conflict", "tool.refuse unknown_host"} {
		if !slices.Contains(actions, want) {
			t.Errorf("%q is not on record: %v", want, actions)
		}
	}
	if log := c.log.String(); strings.Contains(log, "allowed") || strings.Contains(log, "hello") {
		t.Error("the log has what agents were told or said")
	}
}

// TestAChatAndANativeAgent: mail to a busy agent is told when it is idle, and the
// agent answers and acknowledges in its own name.
func TestAChatAndANativeAgent(t *testing.T) {
	c := startCrew(t, paseotest.V05)
	agentID := c.create("first", c.workspace(), "hello")
	c.ask("register_peer", map[string]any{"peerId": "chat", "kind": "chat"})
	peer := c.ask("register_peer", map[string]any{"peerId": "builder", "kind": "local", "agentId": agentID})
	if n := peer["peer"].(map[string]any)["notification"].(map[string]any); n["path"] != "native" {
		t.Errorf("%v", n)
	}
	c.ask("send_agent_prompt", map[string]any{"requestId": "busy", "agentId": agentID, "prompt": "sleep 0.5"})
	id := uuid.NewString()
	sent := c.ask("send_peer_message", map[string]any{"messageId": id, "fromPeerId": "chat", "toPeerId": "builder", "text": "Please look."})
	if d := sent["delivery"].(map[string]any); d["path"] != "native" || d["state"] != "queued" {
		t.Errorf("%v", d)
	}
	state := func() any {
		return c.ask("get_peer_message", map[string]any{"messageId": id})["delivery"].(map[string]any)["state"]
	}
	c.eventually("the prompt", func() bool { return state() == "submitted" })
	prompts, err := c.daemon.Prompts()
	if err != nil || len(prompts) != 3 || !strings.Contains(prompts[2].Text, id) || strings.Contains(prompts[2].Text, "Please look.") {
		t.Errorf("%+v, %v", prompts, err)
	}
	who := channel.Caller{HostID: local.ID(), AgentID: agentID, Owner: "local-owner:shared"}.Principal()
	own, me := "builder", &mailbox.Agent{HostID: local.ID(), AgentID: agentID}
	read, err := c.mailbox.GetPeerMessage(t.Context(), who, mailbox.GetPeerMessageIn{MessageID: id, PeerID: &own, Agent: me})
	if err != nil || read.Message.Text != "Please look." {
		t.Fatalf("%+v, %v", read, err)
	}
	if _, err := c.mailbox.SendPeerMessage(t.Context(), who, mailbox.SendPeerMessageIn{MessageID: uuid.NewString(), FromPeerID: own, ToPeerID: "chat", Text: "Looked.", InReplyTo: &id}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.mailbox.AckPeerMessage(t.Context(), who, mailbox.AckPeerMessageIn{MessageID: id, PeerID: own, Agent: me}); err != nil {
		t.Fatal(err)
	}
	inbox := c.ask("list_peer_messages", map[string]any{"peerId": "chat"})
	if n := len(inbox["messages"].([]any)); n != 1 {
		t.Errorf("%v", inbox)
	}
	waiting := uuid.NewString()
	c.daemon.Kill()
	c.ask("send_peer_message", map[string]any{"messageId": waiting, "fromPeerId": "chat", "toPeerId": "builder", "text": "More."})
	c.ask("stop_peer", map[string]any{"peerId": "builder"})
	if d := c.ask("get_peer_message", map[string]any{"messageId": waiting})["delivery"].(map[string]any); d["state"] != "cancelled" || d["path"] != "native" {
		t.Errorf("%v", d)
	}
}

// TestAttentionReachesItsSubscriber: an event for each thing that happened, also
// for what happened before the subscription was renewed.
func TestAttentionReachesItsSubscriber(t *testing.T) {
	c := startCrew(t, paseotest.V10)
	receiver := newSink(t)
	workspaceID := c.workspace()
	params := map[string]any{
		"name": "agent.attention", "arguments": map[string]any{"workspaceId": workspaceID, "routeId": "chat-1"},
		"delivery": map[string]any{"mode": "webhook", "url": receiver.URL, "secret": eventSecret},
	}
	subscribe := func(method string) {
		t.Helper()
		if status, body := c.event(t, true, goodToken, method, params); status != 200 {
			t.Fatalf("%d %s", status, body)
		}
	}
	type data struct {
		Kind, RequestID, AgentID, RouteID, MessageID, Summary string
		AcceptancePassed                                      *bool
	}
	next := func() data {
		t.Helper()
		select {
		case got := <-receiver.got:
			var e struct{ Data data }
			if err := json.Unmarshal([]byte(got.body), &e); err != nil {
				t.Fatal(err)
			}
			return e.Data
		case <-time.After(10 * time.Second):
			t.Fatal("no event came")
		}
		return data{}
	}
	subscribe("events/subscribe")
	agentID := c.create("one", workspaceID, "hello")
	if d := next(); d.Kind != "result" || d.RequestID != "one" || d.AgentID != agentID || d.RouteID != "chat-1" || !strings.Contains(d.Summary, "hello") {
		t.Errorf("%+v", d)
	}
	c.ask("send_agent_prompt", map[string]any{"requestId": "two", "agentId": agentID, "prompt": "sleep 0.3"})
	message := channel.MessageIn{RequestID: "two", MessageID: uuid.NewString(), Kind: "message", Text: "half of it"}
	answered, err := chats{c.dispatch.agents, c.store}.Message(t.Context(), channel.Caller{HostID: local.ID(), AgentID: agentID, Owner: "local-owner:shared"}, message)
	if err != nil || fmt.Sprint(answered) != fmt.Sprint(map[string]string{"messageId": message.MessageID, "status": "accepted"}) {
		t.Errorf("%v, %v", answered, err)
	}
	if d := next(); d.Kind != "message" || d.MessageID != message.MessageID {
		t.Errorf("%+v", d)
	}
	read := c.ask("get_agent_message", map[string]any{"messageId": message.MessageID})
	if read["text"] != "half of it" || read["emitted"] != true {
		t.Errorf("%v", read)
	}
	if d := next(); d.Kind != "result" || d.RequestID != "two" {
		t.Errorf("%+v", d)
	}
	c.ask("send_agent_prompt", map[string]any{"requestId": "three", "agentId": agentID, "prompt": "sleep 0.3"})
	subscribe("events/unsubscribe")
	c.ask("wait_for_agent_result", map[string]any{"requestId": "three", "agentId": agentID, "timeoutMs": 20000})
	subscribe("events/subscribe")
	if d := next(); d.Kind != "result" || d.RequestID != "three" {
		t.Errorf("what was owed: %+v", d)
	}
	select {
	case got := <-receiver.got:
		t.Errorf("one too many: %s", got.body)
	case <-time.After(200 * time.Millisecond):
	}
}

func TestAnotherDaemonIsAskedNothing(t *testing.T) {
	c := startCrew(t, paseotest.V10)
	workspaceID := c.workspace()
	c.create("one", workspaceID, "hello")
	c.daemon.Terminate()
	if err := c.daemon.SetServerID("srv_another"); err != nil {
		t.Fatal(err)
	}
	if err := c.daemon.Restart(); err != nil {
		t.Fatal(err)
	}
	code := func() string {
		res := c.call(t, goodToken, "list_agents", nil)
		if !res.IsError {
			return ""
		}
		return res.failure(t).Code
	}
	c.eventually("the refusal", func() bool { return code() == "daemon_identity_changed" })
	if out := c.ask("get_request_result", map[string]any{"requestId": "one"}); out["savedResult"] != true {
		t.Errorf("%v", out)
	}
	out, err := ownersHosts{c.Gateway}.AcceptIdentity(t.Context(), "local")
	if err != nil || !out.Accepted || out.Found != "srv_another" {
		t.Errorf("%+v, %v", out, err)
	}
	c.eventually("the new daemon", func() bool { return code() == "" })
	if out, err = (ownersHosts{c.Gateway}).AcceptIdentity(t.Context(), local.ID()); err != nil || out.Accepted {
		t.Errorf("%+v, %v", out, err)
	}
}
