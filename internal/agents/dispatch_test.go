package agents

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/agents/paseo/paseotest"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

func TestDispatchToTheEnd(t *testing.T) {
	versions(t, func(t *testing.T, version string) {
		r := started(t, version)
		in := r.createIn("first", "hello there")
		receipt, err := r.s.CreateAgent(t.Context(), r.who, in)
		if err != nil || receipt.State != Submitted || receipt.Duplicate || receipt.CompletionConfirmed {
			t.Fatalf("%+v, %v", receipt, err)
		}
		out := r.wait("first", receipt.AgentID)
		if out.Status != "idle" && out.Status != "result_available" || !strings.Contains(text(out.LastMessage), "hello there") || !out.RequestMatched || !out.SavedResult || out.AcceptancePassed != nil || out.TaskOutcome != "unknown" {
			t.Errorf("%s", asJSON(t, out))
		}
		if (out.TurnID != "") != (version != paseotest.V01) {
			t.Errorf("turn id %q", out.TurnID)
		}
		again, err := r.s.CreateAgent(t.Context(), r.who, in)
		if err != nil || !again.Duplicate || again.AgentID != receipt.AgentID || again.State != Submitted {
			t.Errorf("a repeat: %+v, %v", again, err)
		}
		in.InitialPrompt = "something else"
		if _, err := r.s.CreateAgent(t.Context(), r.who, in); kindOf(err) != "key_conflict" {
			t.Errorf("other arguments: %v", err)
		}
		r.send("second", receipt.AgentID, "next")
		if out := r.wait("second", receipt.AgentID); !strings.Contains(text(out.LastMessage), "next") {
			t.Errorf("%s", asJSON(t, out))
		}
		if old := r.result("first"); !strings.Contains(text(old.LastMessage), "hello there") {
			t.Errorf("the first result moved: %s", asJSON(t, old))
		}
		r.daemon[here].Kill()
		r.again()
		if old := r.result("first"); !strings.Contains(text(old.LastMessage), "hello there") || !old.SavedResult {
			t.Errorf("offline: %s", asJSON(t, old))
		}
		if n := r.ran("first") + r.ran("second"); n != 2 {
			t.Errorf("%d prompts ran", n)
		}
	})
}

func TestAHundredAtOnceAreOne(t *testing.T) {
	r := started(t, paseotest.V10)
	in := r.createIn("same", "sleep 0.2")
	var wg sync.WaitGroup
	answers := make([]Receipt, 100)
	for i := range answers {
		wg.Go(func() {
			var err error
			if answers[i], err = r.s.CreateAgent(t.Context(), r.who, in); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	first := 0
	for _, a := range answers {
		if !a.Duplicate {
			first++
		}
		if a.AgentID == "" || a.AgentID != answers[0].AgentID {
			t.Fatalf("%+v", a)
		}
	}
	if first != 1 || r.ran("same") != 1 || r.daemon[here].Asked("create_agent_request") != 1 {
		t.Errorf("%d were first, %d ran", first, r.ran("same"))
	}
}

// TestCrashAtEachStep ends the process at each step of a dispatch. Whatever
// happens then, its prompt runs at most once, and its receipt ends as it was.
func TestCrashAtEachStep(t *testing.T) {
	versions(t, func(t *testing.T, version string) {
		for _, step := range []string{"admitted", "stored", "created", "prompting", "given", "settled"} {
			t.Run(step, func(t *testing.T) {
				r := newRig(t, version)
				var once sync.Once
				r.o.crash = func(at string) {
					if at == step {
						once.Do(func() { runtime.Goexit() })
					}
				}
				r.start()
				in := r.createIn("crashed", "hello")
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				_, err := r.s.CreateAgent(ctx, r.who, in)
				cancel()
				if err == nil && step == "created" && version != paseotest.V10 {
					t.Fatal("it did not crash")
				}
				r.again()
				before := r.receipt("crashed")
				ranBefore := r.ran("crashed")
				if before.State == Submitted && ranBefore != 1 || before.State == NotSent && ranBefore != 0 {
					t.Errorf("the receipt says %s, and it ran %d times", before.State, ranBefore)
				}
				receipt, err := r.s.CreateAgent(t.Context(), r.who, in)
				if err != nil {
					t.Fatal(err)
				}
				if n := r.ran("crashed"); receipt.State != Submitted || n != 1 {
					t.Errorf("it ran %d times; after a repeat: %+v", n, receipt)
				}
				if out := r.wait("crashed", receipt.AgentID); !strings.Contains(text(out.LastMessage), "hello") {
					t.Errorf("%s", asJSON(t, out))
				}
			})
		}
	})
}

// TestDaemonTrouble has the daemon fail at each point of a request. A prompt runs
// at most once, and the receipt ends true.
func TestDaemonTrouble(t *testing.T) {
	versions(t, func(t *testing.T, version string) {
		for _, kind := range []string{"create_agent_request", "send_agent_message_request"} {
			for _, stage := range []paseotest.Stage{paseotest.Received, paseotest.Journalled, paseotest.Done, paseotest.Completed} {
				for _, act := range []paseotest.Act{paseotest.Cut, paseotest.Crash} {
					t.Run(fmt.Sprintf("%s %s %s", kind, stage, act), func(t *testing.T) { daemonTrouble(t, version, paseotest.Fault{Request: kind, Stage: stage, Act: act}) })
				}
			}
		}
	})
}

func daemonTrouble(t *testing.T, version string, f paseotest.Fault) {
	r := started(t, version)
	d := r.daemon[here]
	var do func() (Receipt, error)
	if f.Request == "create_agent_request" {
		in := r.createIn("odd", "hello")
		do = func() (Receipt, error) { return r.s.CreateAgent(t.Context(), r.who, in) }
	} else {
		agentID := r.create("before", "hi")
		r.wait("before", agentID)
		in := r.sendIn("odd", agentID, "hello")
		do = func() (Receipt, error) { return r.s.SendAgentPrompt(t.Context(), r.who, in) }
	}
	d.Order(f)
	receipt, err := do()
	if err != nil {
		t.Fatal(err)
	}
	if !d.Running() {
		if err := d.Restart(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the connection", func() bool { _, ok := r.clients[here].Info(); return ok })
	tells := version == paseotest.V10 && (f.Stage == paseotest.Received || f.Stage == paseotest.Completed)
	eventually(t, "a repeat", func() bool {
		again, err := do()
		if err == nil {
			receipt = again
		}
		return err == nil && (receipt.State == Submitted || version != paseotest.V10 || receipt.State == Unknown && !tells)
	})
	n := r.ran("odd")
	eventually(t, "a receipt that is true", func() bool {
		receipt = r.receipt("odd")
		return receipt.State != Unknown || n == 0 || f.Act == paseotest.Crash
	})
	if n > 1 {
		t.Errorf("it ran %d times", n)
	}
	switch receipt.State {
	case Submitted:
		if n != 1 {
			t.Errorf("submitted, and it ran %d times", n)
		}
	case NotSent, Rejected:
		if n != 0 {
			t.Errorf("%s, and it ran %d times", receipt.State, n)
		}
	case Unknown: // true as long as nothing can tell
		if tells {
			t.Errorf("the daemon's own receipt tells")
		}
	default:
		t.Errorf("%+v", receipt)
	}
}

func TestNothingIsSentToADaemonThatIsDown(t *testing.T) {
	r := started(t, paseotest.V10)
	in := r.createIn("later", "hello")
	agentID := r.create("there", "hi")
	r.wait("there", agentID)
	r.daemon[here].Kill()
	eventually(t, "the loss", func() bool { _, ok := r.clients[here].Info(); return !ok })
	for _, err := range []error{
		second(r.s.CreateAgent(t.Context(), r.who, in)),
		second(r.s.SendAgentPrompt(t.Context(), r.who, r.sendIn("also-later", agentID, "x"))),
		second(r.s.ListAgents(t.Context(), r.who, ListAgentsIn{OnHost: OnHost{here}})),
		second(r.s.GetAgentStatus(t.Context(), r.who, AgentIn{OnHost{here}, agentID})),
	} {
		if kindOf(err) != "host_unavailable" {
			t.Errorf("%v", err)
		}
	}
	if receipt := r.receipt("later"); receipt.Found {
		t.Errorf("the key was used up: %+v", receipt)
	}
	if err := r.daemon[here].Restart(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the connection", func() bool { _, ok := r.clients[here].Info(); return ok })
	if receipt, err := r.s.CreateAgent(t.Context(), r.who, in); err != nil || receipt.State != Submitted || receipt.Duplicate {
		t.Errorf("%+v, %v", receipt, err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestRefusedByTheDaemon(t *testing.T) {
	r := started(t, paseotest.V05)
	in := r.createIn("refused", "hello")
	in.Provider = "nobody/x"
	receipt, err := r.s.CreateAgent(t.Context(), r.who, in)
	if err != nil || receipt.State != Rejected || receipt.Error == nil || receipt.Error.Code != "daemon_refused" {
		t.Fatalf("%+v, %v", receipt, err)
	}
	if again, err := r.s.CreateAgent(t.Context(), r.who, in); err != nil || again.State != Rejected || !again.Duplicate || r.daemon[here].Asked("create_agent_request") != 1 {
		t.Errorf("%+v, %v", again, err)
	}
	if out := r.result("refused"); out.Status != "error" || out.Reason != reasonRejected {
		t.Errorf("%+v", out)
	}
}

func TestPromptsDisturbNobody(t *testing.T) {
	versions(t, func(t *testing.T, version string) {
		r := started(t, version)
		agentID := r.create("work", "sleep 30")
		r.running(agentID)
		if _, err := r.s.SendAgentPrompt(t.Context(), r.who, r.sendIn("too-soon", agentID, "hello")); kindOf(err) != "agent_busy" {
			t.Errorf("a busy agent: %v", err)
		}
		in := r.sendIn("urgent", agentID, "perm")
		in.Interrupt = true
		if receipt, err := r.s.SendAgentPrompt(t.Context(), r.who, in); err != nil || receipt.State != Submitted {
			t.Fatalf("%+v, %v", receipt, err)
		}
		if out := r.wait("work", agentID); out.Status != "canceled" && out.Status != "unknown" {
			t.Errorf("a replaced run: %s", asJSON(t, out))
		}
		out := r.wait("urgent", agentID)
		if out.Status != "permission" || len(out.Pending) != 1 {
			t.Fatalf("%s", asJSON(t, out))
		}
		in = r.sendIn("over-it", agentID, "hello")
		in.Interrupt = true
		if _, err := r.s.SendAgentPrompt(t.Context(), r.who, in); kindOf(err) != "permission_pending" {
			t.Errorf("a waiting agent: %v", err)
		}
		asked, err := r.s.ListPendingPermissions(t.Context(), r.who, OnHost{here})
		if err != nil || len(asked.Permissions) != 1 {
			t.Fatalf("%+v, %v", asked, err)
		}
		a, err := r.clients[here].FetchAgent(t.Context(), agentID)
		if err != nil {
			t.Fatal(err)
		}
		answer := RespondToPermissionIn{OnHost{here}, agentID, a.PendingPermissions[0].ID, []byte(`{"behavior":"allow"}`)}
		given, err := r.s.RespondToPermission(t.Context(), r.who, answer)
		if err != nil || given.State != Submitted || given.Duplicate {
			t.Fatalf("%+v, %v", given, err)
		}
		if given, err = r.s.RespondToPermission(t.Context(), r.who, answer); err != nil || !given.Duplicate {
			t.Errorf("%+v, %v", given, err)
		}
		answer.Response = []byte(`{"behavior":"deny"}`)
		if _, err := r.s.RespondToPermission(t.Context(), r.who, answer); kindOf(err) != "key_conflict" {
			t.Errorf("another answer: %v", err)
		}
		answer.RequestID = "never-asked"
		if _, err := r.s.RespondToPermission(t.Context(), r.who, answer); kindOf(err) != "permission_not_pending" {
			t.Errorf("no question: %v", err)
		}
		if out := r.wait("urgent", agentID); !strings.Contains(text(out.LastMessage), "allowed") {
			t.Errorf("%s", asJSON(t, out))
		}
	})
}

func TestPolicy(t *testing.T) {
	r := started(t, paseotest.V10)
	in := r.createIn("x", "hello")
	for name, c := range map[string]struct {
		change func(*CreateAgentIn)
		want   string
	}{
		"reserved label": {func(in *CreateAgentIn) { in.Labels = map[string]any{"AgentRelayRequestId": "y"} }, "reserved_label"},
		"former label":   {func(in *CreateAgentIn) { in.Labels = map[string]any{"dotRequestId": "y"} }, "reserved_label"},
		"auto accept":    {func(in *CreateAgentIn) { in.Settings.Features = map[string]any{"auto_accept": true} }, "auto_accept_refused"},
		"auto approve": {func(in *CreateAgentIn) {
			in.Settings.Features = map[string]any{"x": map[string]any{"autoApprove": "on"}}
		}, "auto_accept_refused"},
		"bypass mode":     {func(in *CreateAgentIn) { in.Settings.ModeID = "bypassPermissions" }, "auto_accept_refused"},
		"no workspace":    {func(in *CreateAgentIn) { in.WorkspaceID = "nope" }, "workspace_not_found"},
		"no model":        {func(in *CreateAgentIn) { in.Provider = "fake" }, "invalid_arguments"},
		"a blank prompt":  {func(in *CreateAgentIn) { in.InitialPrompt = " \n" }, "invalid_arguments"},
		"a long title":    {func(in *CreateAgentIn) { in.Title = strings.Repeat("ü", 61) }, "invalid_arguments"},
		"no active route": {func(in *CreateAgentIn) { id := "gone"; in.NotificationRouteID = &id }, "no_active_route"},
	} {
		call := in
		c.change(&call)
		if _, err := r.s.CreateAgent(t.Context(), r.who, call); kindOf(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	if r.daemon[here].Asked("create_agent_request") != 0 || r.receipt("x").Found {
		t.Error("something was sent, or the key was used up")
	}
	off := in
	off.Settings.Features = map[string]any{"auto_accept": false}
	if receipt, err := r.s.CreateAgent(t.Context(), r.who, off); err != nil || receipt.State != Submitted {
		t.Errorf("a feature that is off: %+v, %v", receipt, err)
	}
}

// TestOutsideTheRoots: what lies there is neither used nor shown.
func TestOutsideTheRoots(t *testing.T) {
	r := started(t, paseotest.V10)
	r.create("x", "hello")
	outside := t.TempDir()
	link := filepath.Join(r.root, "link")
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{outside, link, filepath.Join(r.root, "gone"), "relative", r.root + "-sibling"} {
		if _, err := r.s.CreateWorkspace(t.Context(), r.who, CreateWorkspaceIn{OnHost: OnHost{here}, Isolation: "local", Path: path}); kindOf(err) != "path_not_allowed" {
			t.Errorf("%s: %v", path, err)
		}
	}
	w, err := r.clients[here].CreateWorkspace(t.Context(), paseo.NewWorkspace{Path: outside})
	if err != nil {
		t.Fatal(err)
	}
	hidden, err := r.clients[here].CreateAgent(t.Context(), paseo.NewAgent{Provider: "fake", Model: "echo", WorkspaceID: w.ID, Title: "hidden", Prompt: "perm"})
	if err != nil {
		t.Fatal(err)
	}
	list, err := r.s.ListAgents(t.Context(), r.who, ListAgentsIn{OnHost: OnHost{here}})
	spaces, err2 := r.s.ListWorkspaces(t.Context(), r.who, ListWorkspacesIn{OnHost: OnHost{here}})
	asked, err3 := r.s.ListPendingPermissions(t.Context(), r.who, OnHost{here})
	if all := asJSON(t, []any{list, spaces, asked}); err != nil || err2 != nil || err3 != nil || strings.Contains(all, hidden.ID) || strings.Contains(all, outside) || len(list.Agents) != 1 || !list.FilteringApplied || list.Scope.Scope != "allowedRoots" {
		t.Errorf("%s, %v %v %v", all, err, err2, err3)
	}
	for _, id := range []string{hidden.ID, list.Agents[0].ID[:8], list.Agents[0].Title, ""} {
		if _, err := r.s.GetAgentStatus(t.Context(), r.who, AgentIn{OnHost{here}, id}); kindOf(err) != "agent_not_found" && kindOf(err) != "invalid_arguments" {
			t.Errorf("%q: %v", id, err)
		}
	}
}

func TestUpdateAgent(t *testing.T) {
	r := started(t, paseotest.V10)
	agentID := r.create("x", "hello")
	change := UpdateAgentIn{OnHost: OnHost{here}, AgentID: agentID, Labels: map[string]any{"agentRelayDispatch": "stolen"}}
	if _, err := r.s.UpdateAgent(t.Context(), r.who, change); kindOf(err) != "reserved_label" {
		t.Errorf("a reserved label later: %v", err)
	}
	change = UpdateAgentIn{OnHost: OnHost{here}, AgentID: agentID, Name: "renamed", Labels: map[string]any{"team": "a"}}
	if _, err := r.s.UpdateAgent(t.Context(), r.who, change); err != nil {
		t.Error(err)
	}
	st, err := r.s.GetAgentStatus(t.Context(), r.who, AgentIn{OnHost{here}, agentID})
	if err != nil || st.Snapshot.Title != "renamed" || st.Snapshot.Labels["team"] != "a" || st.Snapshot.RequestID != "x" {
		t.Errorf("%+v, %v", st, err)
	}
}

func TestPromptsAreNotStored(t *testing.T) {
	r := started(t, paseotest.V10)
	agentID := r.create("secret", "the-eagle-lands\nsleep 0")
	if out := r.wait("secret", agentID); text(out.LastMessage) != "slept 0" {
		t.Fatalf("%s", asJSON(t, out))
	}
	r.halt()
	raw, err := os.ReadFile(filepath.Join(r.dir, store.FileName))
	wal, _ := os.ReadFile(filepath.Join(r.dir, store.FileName+"-wal"))
	if err != nil || strings.Contains(string(raw)+string(wal), "the-eagle-lands") {
		t.Error("a prompt is in the database", err)
	}
}

func TestWorkspacesUnderAKey(t *testing.T) {
	for _, version := range []string{paseotest.V05, paseotest.V10} {
		r := started(t, version)
		key := "space"
		in := CreateWorkspaceIn{OnHost: OnHost{here}, RequestID: &key, Isolation: "local", Path: r.root}
		first, err := r.s.CreateWorkspace(t.Context(), r.who, in)
		if err != nil || first.State != Submitted || first.WorkspaceID == "" || first.Duplicate || first.CWD != r.root {
			t.Fatalf("%+v, %v", first, err)
		}
		again, err := r.s.CreateWorkspace(t.Context(), r.who, in)
		if err != nil || again.WorkspaceID != first.WorkspaceID || !again.Duplicate {
			t.Errorf("%+v, %v", again, err)
		}
		in.Title = "other"
		if _, err := r.s.CreateWorkspace(t.Context(), r.who, in); kindOf(err) != "key_conflict" {
			t.Errorf("%v", err)
		}
	}
}

func TestTwoHostsWithTheSameIDs(t *testing.T) {
	r := newRig(t, paseotest.V10, here, "far")
	r.start()
	ids := map[string]string{}
	for _, host := range r.hosts {
		in := CreateAgentIn{OnHost: OnHost{host}, RequestID: "same", WorkspaceID: r.workspace(host), Title: host, Provider: "fake/echo", InitialPrompt: "on " + host}
		receipt, err := r.s.CreateAgent(t.Context(), r.who, in)
		if err != nil || receipt.HostID != host || receipt.Duplicate {
			t.Fatalf("%+v, %v", receipt, err)
		}
		ids[host] = receipt.AgentID
	}
	for _, host := range r.hosts {
		ms := 5000
		out, err := r.s.WaitForAgentResult(t.Context(), r.who, WaitForAgentResultIn{OnHost: OnHost{host}, RequestID: "same", AgentID: ids[host], TimeoutMs: &ms})
		if err != nil || !strings.Contains(text(out.LastMessage), "on "+host) || out.HostID != host {
			t.Errorf("%s, %v", asJSON(t, out), err)
		}
	}
	r.daemon["far"].Kill()
	eventually(t, "the loss", func() bool { _, ok := r.clients["far"].Info(); return !ok })
	if _, err := r.s.GetAgentStatus(t.Context(), r.who, AgentIn{OnHost{"far"}, ids["far"]}); kindOf(err) != "host_unavailable" {
		t.Errorf("%v", err)
	}
	if _, err := r.s.GetAgentStatus(t.Context(), r.who, AgentIn{OnHost{here}, ids[here]}); err != nil {
		t.Error(err)
	}
	if out, err := r.s.GetRequestResult(t.Context(), r.who, GetRequestResultIn{OnHost: OnHost{"far"}, RequestID: "same"}); err != nil || !out.SavedResult {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestOwnersDoNotMeet(t *testing.T) {
	r := started(t, paseotest.V10)
	agentID := r.create("mine", "hello")
	r.wait("mine", agentID)
	other := principal.Principal{Owner: "local-owner:b", ClientID: "b", Permissions: principal.Full()}
	if receipt, err := r.s.GetDispatchRequest(t.Context(), other, RequestIn{OnHost{here}, "mine"}); err != nil || receipt.Found {
		t.Errorf("%+v, %v", receipt, err)
	}
	if _, err := r.s.GetRequestResult(t.Context(), other, GetRequestResultIn{OnHost: OnHost{here}, RequestID: "mine"}); kindOf(err) != "unknown_dispatch" {
		t.Errorf("%v", err)
	}
	if _, err := r.s.SendAgentPrompt(t.Context(), other, r.sendIn("theirs", agentID, "x")); kindOf(err) != "agent_not_found" {
		t.Errorf("%v", err)
	}
}
