package agents

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"agentrelay/internal/agents/paseo/paseotest"
	"agentrelay/internal/store"
)

// idle is an agent that has done something in a workspace with the given routes.
func (r *rig) idle(routes ...string) (agentID, workspaceID string) {
	r.t.Helper()
	in := r.createIn("warm-up", "hello")
	if _, err := r.s.CreateAgent(r.t.Context(), r.who, in); err != nil {
		r.t.Fatal(err)
	}
	agentID = r.receipt("warm-up").AgentID
	r.wait("warm-up", agentID)
	for _, id := range routes {
		r.subs.subscribe(r.receipt("warm-up").WorkspaceID, id)
	}
	return agentID, r.receipt("warm-up").WorkspaceID
}

func TestPermissionsAreToldOnce(t *testing.T) {
	versions(t, func(t *testing.T, version string) {
		r := started(t, version)
		agentID, _ := r.idle("chat")
		r.send("ask", agentID, "perm")
		if out := r.wait("ask", agentID); out.Status != "permission" || out.NotificationMode != "subscribed_events" {
			t.Fatalf("%s", asJSON(t, out))
		}
		for range 3 {
			r.wait("ask", agentID)
		}
		a, err := r.clients[here].FetchAgent(t.Context(), agentID)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.s.RespondToPermission(t.Context(), r.who, RespondToPermissionIn{OnHost{here}, agentID, a.PendingPermissions[0].ID, []byte(`{"behavior":"deny","message":"no"}`)}); err != nil {
			t.Fatal(err)
		}
		if out := r.wait("ask", agentID); !out.SavedResult {
			t.Errorf("%s", asJSON(t, out))
		}
		r.tells("ask", "permission", "result")
	})
}

// TestWhatHappenedWhileNobodySubscribed is told when somebody does, once.
func TestWhatHappenedWhileNobodySubscribed(t *testing.T) {
	r := started(t, paseotest.V10)
	agentID, workspaceID := r.idle("chat")
	r.send("job", agentID, "perm")
	r.wait("job", agentID)
	r.subs.lapse()
	a, err := r.clients[here].FetchAgent(t.Context(), agentID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.s.RespondToPermission(t.Context(), r.who, RespondToPermissionIn{OnHost{here}, agentID, a.PendingPermissions[0].ID, []byte(`{"behavior":"allow"}`)}); err != nil {
		t.Fatal(err)
	}
	if out := r.wait("job", agentID); !out.SavedResult || out.NotificationMode != "explicit_read" {
		t.Errorf("%s", asJSON(t, out))
	}
	// A permission that nobody was told of, and that is over, is not told late.
	r.send("silent", agentID, "perm")
	r.wait("silent", agentID)
	if a, err = r.clients[here].FetchAgent(t.Context(), agentID); err != nil {
		t.Fatal(err)
	}
	if _, err := r.s.RespondToPermission(t.Context(), r.who, RespondToPermissionIn{OnHost{here}, agentID, a.PendingPermissions[0].ID, []byte(`{"behavior":"allow"}`)}); err != nil {
		t.Fatal(err)
	}
	r.wait("silent", agentID)
	r.again()
	r.subs.subscribe(workspaceID, "chat")
	for range 2 {
		if err := store.Exec(t.Context(), r.store, func(tx *store.Tx) error { return r.s.Renewed(tx, r.who.Owner, here, workspaceID, "chat") }); err != nil {
			t.Fatal(err)
		}
	}
	r.tells("job", "permission", "result")
	for range 2 {
		out, err := r.s.WatchDispatchRequest(t.Context(), r.who, WatchDispatchRequestIn{OnHost{here}, "silent", "chat"})
		if err != nil || out.Status != "bound" || out.SubscriptionID != "sub_chat" {
			t.Errorf("%+v, %v", out, err)
		}
	}
	r.tells("silent", "result")
}

func TestRoutes(t *testing.T) {
	r := started(t, paseotest.V10)
	agentID, workspaceID := r.idle("one")
	route := func(requestID string, change func(*SendAgentPromptIn)) string {
		t.Helper()
		in := r.sendIn(requestID, agentID, "hello")
		change(&in)
		receipt, err := r.s.SendAgentPrompt(t.Context(), r.who, in)
		if err != nil {
			return kindOf(err)
		}
		r.wait(requestID, agentID)
		return receipt.NotificationRouteID
	}
	two := "two"
	no := false
	for _, c := range []struct {
		name, want string
		change     func(*SendAgentPromptIn)
	}{
		{"the only one", "one", func(*SendAgentPromptIn) {}},
		{"none wanted", "", func(in *SendAgentPromptIn) { in.Notify = &no }},
		{"not active", "no_active_route", func(in *SendAgentPromptIn) { in.NotificationRouteID = &two }},
	} {
		if got := route("a-"+strings.ReplaceAll(c.name, " ", "-"), c.change); got != c.want {
			t.Errorf("%s: %q", c.name, got)
		}
	}
	r.subs.subscribe(workspaceID, two)
	if got := route("several", func(*SendAgentPromptIn) {}); got != "ambiguous_route" {
		t.Errorf("several routes and none before: %q", got)
	}
	if got := route("named", func(in *SendAgentPromptIn) { in.NotificationRouteID = &two }); got != two {
		t.Errorf("named: %q", got)
	}
	if got := route("inherited", func(*SendAgentPromptIn) {}); got != two {
		t.Errorf("inherited: %q", got)
	}
	r.subs.lapse()
	if got := route("lapsed", func(*SendAgentPromptIn) {}); got != "" {
		t.Errorf("an inherited route that lapsed: %q", got)
	}
	r.subs.subscribe(workspaceID, "three")
	watch := func(requestID, routeID string) string {
		_, err := r.s.WatchDispatchRequest(t.Context(), r.who, WatchDispatchRequestIn{OnHost{here}, requestID, routeID})
		return kindOf(err)
	}
	for _, c := range [][3]string{
		{"named", "three", ""}, {"named", "two", "no_active_route"}, {"nothing", "three", "unknown_dispatch"},
	} {
		if got := watch(c[0], c[1]); got != c[2] {
			t.Errorf("%v: %q", c, got)
		}
	}
	r.subs.subscribe(workspaceID, two)
	if got := watch("named", two); got != "route_bound" {
		t.Errorf("another route: %q", got)
	}
	list, err := r.s.ListNotificationRoutes(t.Context(), r.who, ListNotificationRoutesIn{OnHost: OnHost{here}, WorkspaceID: workspaceID})
	if err != nil || len(list.Routes) != 2 || list.Routes[0].RouteID != "three" {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestMessagesOfAgents(t *testing.T) {
	r := started(t, paseotest.V10)
	agentID, _ := r.idle("chat")
	r.send("job", agentID, "sleep 1")
	r.running(agentID)
	first, question := uuid.NewString(), uuid.NewString()
	accept := func(requestID, messageID, kind, text string) string {
		t.Helper()
		duplicate, err := r.s.AcceptAgentMessage(t.Context(), r.who.Owner, here, agentID, requestID, messageID, kind, text)
		if duplicate {
			return "duplicate"
		}
		return kindOf(err)
	}
	for _, c := range [][5]string{
		{"job", first, "message", "on it", ""},
		{"job", strings.ToUpper(first), "message", "on it", "duplicate"},
		{"job", first, "message", "other", "key_conflict"},
		{"job", question, "needs_input", "Which one?", ""},
		{"other", uuid.NewString(), "message", "x", "request_not_authorized"},
		{"job", "no-uuid", "message", "x", "invalid_arguments"},
		{"job", uuid.NewString(), "result", "x", "invalid_arguments"},
		{"job", uuid.NewString(), "message", strings.Repeat("ü", MaxMessage+1), "invalid_arguments"},
	} {
		if got := accept(c[0], c[1], c[2], c[3]); got != c[4] {
			t.Errorf("%.40v: %q", c, got)
		}
	}
	if _, err := r.s.AcceptAgentMessage(t.Context(), "local-owner:other", here, agentID, "job", uuid.NewString(), "message", "x"); kindOf(err) != "request_not_authorized" {
		t.Errorf("an agent that is another owner's by now: %v", err)
	}
	if _, err := r.s.AcceptAgentMessage(t.Context(), r.who.Owner, here, uuid.NewString(), "job", uuid.NewString(), "message", "x"); kindOf(err) != "request_not_authorized" {
		t.Errorf("another agent: %v", err)
	}
	r.tells("job", "message")
	reply := r.sendIn("reply", agentID, "sleep 0")
	reply.ReplyToMessageID = &question
	if _, err := r.s.SendAgentPrompt(t.Context(), r.who, reply); kindOf(err) != "agent_busy" {
		t.Errorf("a reply too soon: %v", err)
	}
	r.wait("job", agentID)
	r.tells("job", "message", "needs_input")
	m, err := r.s.GetAgentMessage(t.Context(), r.who, GetAgentMessageIn{OnHost{here}, question})
	if err != nil || m.Text != "Which one?" || !m.Emitted || m.RequestID != "job" || m.ReplyRequestID != nil || m.AgentID != agentID {
		t.Errorf("%+v, %v", m, err)
	}
	receipt, err := r.s.SendAgentPrompt(t.Context(), r.who, reply)
	if err != nil || receipt.State != Submitted || receipt.NotificationRouteID != "chat" {
		t.Fatalf("%+v, %v", receipt, err)
	}
	again := reply
	again.RequestID = "reply-again"
	if same, err := r.s.SendAgentPrompt(t.Context(), r.who, again); err != nil || same.RequestID != "reply" || !same.Duplicate || !same.ReplyAlreadySubmitted {
		t.Errorf("%+v, %v", same, err)
	}
	r.wait("reply", agentID)
	again.RequestID, again.Prompt = "reply-other", "something else"
	if _, err := r.s.SendAgentPrompt(t.Context(), r.who, again); kindOf(err) != "agent_already_replied" {
		t.Errorf("%v", err)
	}
	if m, err = r.s.GetAgentMessage(t.Context(), r.who, GetAgentMessageIn{OnHost{here}, question}); err != nil || m.ReplyRequestID == nil || *m.ReplyRequestID != "reply" {
		t.Errorf("%+v, %v", m, err)
	}
	if n := r.ran("reply") + r.ran("reply-again") + r.ran("reply-other"); n != 1 {
		t.Errorf("%d replies ran", n)
	}
	if got := accept("job", uuid.NewString(), "needs_input", "One more?"); got != "" {
		t.Errorf("after the end: %q", got)
	}
	r.tells("job", "message", "needs_input", "needs_input")
	if _, err := r.s.GetAgentMessage(t.Context(), r.who, GetAgentMessageIn{OnHost{here}, uuid.NewString()}); kindOf(err) != "unknown_agent_message" {
		t.Errorf("%v", err)
	}
}

// TestAnAgentFasterThanItsReceipt may write before the gateway knows its id.
func TestAnAgentFasterThanItsReceipt(t *testing.T) {
	r := started(t, paseotest.V05)
	in := r.createIn("quick", "sleep 1")
	r.daemon[here].Order(paseotest.Fault{Request: "create_agent_request", Stage: paseotest.Completed, Act: paseotest.Delay, Delay: 300e6})
	done := make(chan error, 1)
	go func() {
		_, err := r.s.CreateAgent(t.Context(), r.who, in)
		done <- err
	}()
	agentID := ""
	eventually(t, "the agent", func() bool {
		list, err := r.s.ListAgents(t.Context(), r.who, ListAgentsIn{OnHost: OnHost{here}})
		if err == nil && len(list.Agents) == 1 {
			agentID = list.Agents[0].ID
		}
		return agentID != ""
	})
	if _, err := r.s.AcceptAgentMessage(t.Context(), r.who.Owner, here, agentID, "quick", uuid.NewString(), "message", "started"); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestMailForAgents(t *testing.T) {
	versions(t, func(t *testing.T, version string) {
		r := newRig(t, version)
		r.o.PeerAgent = func(string) string { return "/state/bin/peer-agent" }
		r.start()
		agentID, _ := r.idle()
		r.send("busy", agentID, "sleep 1.5")
		r.running(agentID)
		for i := range 3 {
			r.mail(agentID, fmt.Sprint("m", i))
		}
		if d := r.delivery("m0"); d.State != "queued" || d.Attempts != 0 {
			t.Errorf("%+v", d)
		}
		eventually(t, "the prompt", func() bool { return r.delivery("m2").State == "submitted" })
		told := r.mailPrompts()
		if len(told) != 1 || !strings.Contains(told[0], "message m0 from peer chat") || !strings.Contains(told[0], "message m2") || !strings.Contains(told[0], "/state/bin/peer-agent read MESSAGE_ID") {
			t.Errorf("%q", told)
		}
		if d := r.delivery("m0"); d.State != "submitted" || d.Attempts != 1 || d.LastAttemptAt.IsZero() {
			t.Errorf("%+v", d)
		}
		if out := r.result("busy"); text(out.LastMessage) != "slept 1.5" || out.Status == "unknown" {
			t.Errorf("mail hid the result: %s", asJSON(t, out))
		}
		r.again()
		if told := r.mailPrompts(); len(told) != 1 {
			t.Errorf("%q", told)
		}
	})
}

// mail queues a message for an agent.
func (r *rig) mail(agentID, messageID string) {
	r.t.Helper()
	err := store.Exec(r.t.Context(), r.store, func(tx *store.Tx) error {
		_, err := r.s.QueueMail(tx, NativeMail{Owner: r.who.Owner, MessageID: messageID, FromPeerID: "chat", PeerID: "builder", Generation: 1, HostID: here, AgentID: agentID})
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) delivery(messageID string) (d NativeDelivery) {
	r.t.Helper()
	err := store.Read(r.t.Context(), r.store, func(q *store.Reader) (err error) {
		d, _, err = MailDelivery(q, r.who.Owner, messageID)
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.s.Explain(&d)
	return d
}

// mailPrompts lists the prompts about mail that ran.
func (r *rig) mailPrompts() (texts []string) {
	r.t.Helper()
	prompts, err := r.daemon[here].Prompts()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, p := range prompts {
		if strings.HasPrefix(p.Text, "[Agent Relay mail: ") {
			texts = append(texts, p.Text)
		}
	}
	return texts
}

// TestMailWaits for what a prompt would disturb, and is not sent twice.
func TestMailWaits(t *testing.T) {
	r := started(t, paseotest.V10)
	agentID, _ := r.idle()
	r.send("ask", agentID, "perm")
	r.wait("ask", agentID)
	r.mail(agentID, "a")
	eventually(t, "a reason", func() bool { return strings.Contains(r.delivery("a").Reason, "permission") })
	r.mail(agentID, "b")
	if err := store.Exec(t.Context(), r.store, func(tx *store.Tx) error { return CancelMail(tx, r.who.Owner, "builder", 1) }); err != nil {
		t.Fatal(err)
	}
	if d := r.delivery("b"); d.State != "cancelled" {
		t.Errorf("%+v", d)
	}
	r.daemon[here].Order(paseotest.Fault{Request: "send_agent_message_request", Stage: paseotest.Completed, Act: paseotest.Cut})
	r.mail(agentID, "c")
	if _, err := r.s.CancelAgent(t.Context(), r.who, AgentIn{OnHost{here}, agentID}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "an outcome that is found out", func() bool { return r.delivery("c").State == "submitted" })
	r.daemon[here].Order(paseotest.Fault{Request: "send_agent_message_request", Stage: paseotest.Received, Act: paseotest.Cut})
	r.mail(agentID, "d")
	eventually(t, "an outcome that is not known", func() bool { return r.delivery("d").State == "unknown" })
	r.again()
	r.mail(agentID, "e")
	eventually(t, "the next mail", func() bool { return r.delivery("e").State == "submitted" })
	if d := r.delivery("d"); d.State != "unknown" || len(r.mailPrompts()) != 2 {
		t.Errorf("%+v %q", d, r.mailPrompts())
	}
}

func TestMailIsNotToldWhenItWasRead(t *testing.T) {
	r := newRig(t, paseotest.V10)
	r.o.Mailbox = readAlready{}
	r.start()
	agentID, _ := r.idle()
	r.mail(agentID, "a")
	eventually(t, "an end", func() bool { return r.delivery("a").State == "cancelled" })
	if len(r.mailPrompts()) != 0 {
		t.Errorf("%q", r.mailPrompts())
	}
}

type readAlready struct{}

func (readAlready) Unread(store.Querier, string, string) (bool, error) { return false, nil }

func TestMailOfAHostThatIsAway(t *testing.T) {
	r := started(t, paseotest.V10)
	agentID, _ := r.idle()
	r.daemon[here].Kill()
	eventually(t, "the loss", func() bool { _, ok := r.clients[here].Info(); return !ok })
	r.mail(agentID, "a")
	if d := r.delivery("a"); d.State != "queued" || d.Reason == "" {
		t.Errorf("%+v", d)
	}
	if err := r.daemon[here].Restart(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the mail", func() bool { return r.delivery("a").State == "submitted" })
}

func TestLocalRoots(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	root, outside := makeDir(t, base+"/root"), makeDir(t, base+"/outside")
	makeDir(t, root+"/in/deep")
	makeDir(t, base+"/root-sibling")
	for _, pair := range [][2]string{{outside, root + "/escape"}, {root + "/in", base + "/enter"}, {root + "/nowhere", root + "/dangling"}} {
		if out, err := exec.Command("ln", "-s", pair[0], pair[1]).CombinedOutput(); err != nil {
			t.Fatalf("%s %v", out, err)
		}
	}
	if out, err := exec.Command("touch", root+"/file").CombinedOutput(); err != nil {
		t.Fatalf("%s %v", out, err)
	}
	policy := NewLocalRoots([]string{base + "/gone", root + "/file", root})
	for path, want := range map[string]Place{
		root: {root, true}, root + "/in/deep": {root + "/in/deep", true}, root + "/in/../in": {root + "/in", true}, base + "/enter/deep": {root + "/in/deep", true},
		root + "/removed/tree": {root + "/removed/tree", false}, base + "/enter/removed": {root + "/in/removed", false}, root + "/file": {root + "/file", false},
		root + "-sibling": {}, root + "/escape": {}, root + "/escape/x": {}, root + "/dangling": {}, root + "/dangling/x": {}, outside: {}, "relative": {}, "": {},
		root + "/in/../../outside": {}, root + "/a\x00b": {}, "/": {}, root + "/file/x": {},
	} {
		got, err := policy.Resolve(t.Context(), here, []string{path})
		if err != nil || got[0] != want {
			t.Errorf("%q: %+v, %v", path, got, err)
		}
	}
	if got, err := NewLocalRoots([]string{base + "/gone"}).Resolve(t.Context(), here, []string{root}); err != nil || got[0].Path != "" {
		t.Errorf("no root: %+v, %v", got, err)
	}
}
