package agents

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/agents/paseo/paseotest"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// stored reads a dispatch as it is stored.
func (r *rig) stored(requestID string) row {
	r.t.Helper()
	row, _, err := r.s.read(r.t.Context(), byKey, r.who.Owner, here, requestID)
	if err != nil {
		r.t.Fatal(err)
	}
	return row
}

// appears waits until a prompt was seen in a timeline.
func (r *rig) appears(requestID string) row {
	r.t.Helper()
	eventually(r.t, "the prompt in the timeline", func() bool { return r.stored(requestID).epoch != "" })
	return r.stored(requestID)
}

func (r *rig) exec(query string, args ...any) {
	r.t.Helper()
	err := store.Exec(r.t.Context(), r.store, func(tx *store.Tx) error {
		_, err := tx.Exec(query, args...)
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// crashedAt dispatches a prompt during which the daemon dies, so that its receipt
// is unknown, and brings the daemon back.
func (r *rig) crashedAt(stage paseotest.Stage, in SendAgentPromptIn) {
	r.t.Helper()
	before := r.clients[here].Status().Generation
	r.daemon[here].Order(paseotest.Fault{Request: "send_agent_message_request", Stage: stage, Act: paseotest.Crash})
	receipt, err := r.s.SendAgentPrompt(r.t.Context(), r.who, in)
	if err != nil || receipt.State != Unknown && receipt.State != Submitted {
		r.t.Fatalf("%+v, %v", receipt, err)
	}
	if err := r.daemon[here].Restart(); err != nil {
		r.t.Fatal(err)
	}
	eventually(r.t, "the connection", func() bool {
		return r.clients[here].Status().Generation > before && r.clients[here].Status().State == paseo.Up
	})
	// As if the prompt had not come by before the daemon died.
	r.exec(`UPDATE dispatches SET state = 'unknown', epoch = '', turn_id = '', lost = '', closed_at = NULL WHERE request_id = ?`, in.RequestID)
}

// TestAskingAgainTakesNothingBack: a prompt that may have run stays unknown when it
// is given again under its key and that attempt fails on the way.
func TestAskingAgainTakesNothingBack(t *testing.T) {
	r := started(t, paseotest.V10)
	agentID, _ := r.idle()
	in := r.sendIn("doubt", agentID, "sleep 30")
	in.SessionMode = "default"
	r.crashedAt(paseotest.Done, in)
	r.daemon[here].Order(paseotest.Fault{Request: "set_agent_mode_request", Act: paseotest.Refuse, Error: "no such mode"})
	if receipt, err := r.s.SendAgentPrompt(t.Context(), r.who, in); err != nil || receipt.State != Unknown || receipt.Error == nil {
		t.Errorf("refused on the way: %+v, %v", receipt, err)
	}
	r.daemon[here].Order(paseotest.Fault{Request: "set_agent_mode_request", Act: paseotest.Cut})
	if receipt, err := r.s.SendAgentPrompt(t.Context(), r.who, in); err != nil || receipt.State != Unknown {
		t.Errorf("cut off on the way: %+v, %v", receipt, err)
	}
	if n := r.ran("doubt"); n != 1 {
		t.Errorf("it ran %d times", n)
	}
}

// TestAKeyWithOtherTextIsNoRefusal: a route that was given to a dispatch of unknown
// outcome changes the text of its prompt. That the daemon then knows the key with
// other content says that it got there.
func TestAKeyWithOtherTextIsNoRefusal(t *testing.T) {
	r := newRig(t, paseotest.V10)
	r.o.PeerAgent = func(string) string { return "/state/bin/peer-agent" }
	r.start()
	agentID, _ := r.idle()
	in := r.sendIn("doubt", agentID, "sleep 30")
	r.crashedAt(paseotest.Completed, in)
	r.subs.subscribe(r.stored("doubt").workspaceID, "chat")
	if _, err := r.s.WatchDispatchRequest(t.Context(), r.who, WatchDispatchRequestIn{OnHost{here}, "doubt", "chat"}); err != nil {
		t.Fatal(err)
	}
	if receipt, err := r.s.SendAgentPrompt(t.Context(), r.who, in); err != nil || receipt.State == Rejected || receipt.State == NotSent || r.ran("doubt") != 1 {
		t.Errorf("%+v, %v; it ran %d times", receipt, err, r.ran("doubt"))
	}
}

// TestReplayedRowsAreNotLive: what a provider sends again after a restart is
// streamed like news, without ids and in another epoch.
func TestReplayedRowsAreNotLive(t *testing.T) {
	r := started(t, paseotest.V05)
	f := r.s.followers[here]
	agentID := r.create("seen", "sleep 30")
	before := r.appears("seen")
	replay := paseo.RowAdded{AgentID: agentID, Epoch: "after", Seq: 1, Item: paseo.Item{Type: "user_message", Text: marker("seen") + "\nsleep 30"}}
	if err := f.rowAdded(replay); err != nil {
		t.Fatal(err)
	}
	if now := r.stored("seen"); now.epoch != before.epoch || now.markerSeq != before.markerSeq || now.turnID != before.turnID {
		t.Errorf("%+v became %+v", before, now)
	}
	r.exec(`UPDATE dispatches SET epoch = '', turn_id = '', marker_seq = NULL`)
	if err := f.rowAdded(replay); err != nil {
		t.Fatal(err)
	}
	if now := r.stored("seen"); now.epoch == "after" {
		t.Errorf("taken for live: %+v", now)
	}
}

// TestSeenBeforeItsAnswerWasLost: what was in the live timeline is known to be with
// the daemon, in whatever order that comes to light.
func TestSeenBeforeItsAnswerWasLost(t *testing.T) {
	r := started(t, paseotest.V05)
	r.create("seen", "sleep 30")
	row := r.appears("seen")
	r.exec(`UPDATE dispatches SET state = 'unknown'`)
	if err := r.s.followers[here].seen(row, row.turnID, row.epoch, row.markerSeq); err != nil {
		t.Fatal(err)
	}
	if now := r.stored("seen"); now.state != Submitted {
		t.Errorf("%+v", now)
	}
}

// TestAnEndIsNotLost: the daemon's word about an end, which came while the agent was
// looked at, counts more than that look.
func TestAnEndIsNotLost(t *testing.T) {
	r := started(t, paseotest.V05)
	agentID := r.create("ended", "sleep 30")
	row, f := r.appears("ended"), r.s.followers[here]
	if err := f.ended(row, turnCompleted, ""); err != nil {
		t.Fatal(err)
	}
	if err := f.lose(t.Context(), row, reasonNotLoaded, turn{}); err != nil {
		t.Fatal(err)
	}
	if out := r.wait("ended", agentID); text(out.TerminalKind) != turnCompleted || r.stored("ended").lost != "" {
		t.Errorf("%s", asJSON(t, out))
	}
}

// TestAnErrorOfBefore is not taken for the end of a run that has not begun.
func TestAnErrorOfBefore(t *testing.T) {
	r := started(t, paseotest.V05)
	agentID := r.create("new", "sleep 30")
	row := r.appears("new")
	v, err := r.s.followers[here].idle(t.Context(), paseo.Agent{ID: agentID, Status: paseo.AgentError, Turn: paseo.TurnNone}, row, turn{found: true, epoch: row.epoch}, view{})
	if err != nil || v.reason != reasonNoEnd || r.stored("new").closedAt != 0 {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestAnotherDaemonHasNoReceipts: what an accepted daemon was never given is not
// asked of it under its key.
func TestAnotherDaemonHasNoReceipts(t *testing.T) {
	r := started(t, paseotest.V10)
	r.create("doubt", "hello")
	r.exec(`UPDATE dispatches SET state = 'unknown', keyed = 1, closed_at = NULL, agent_id = ''`)
	r.clients[here].AcceptIdentity("another")
	eventually(t, "another daemon", func() bool { return r.clients[here].Status().Found != nil })
	if out, err := r.s.AcceptIdentity(t.Context(), here); err != nil || !out.Accepted {
		t.Fatalf("%+v, %v", out, err)
	}
	eventually(t, "the connection", func() bool { _, ok := r.clients[here].Info(); return ok })
	if r.s.mayGive(r.stored("doubt")) {
		t.Error("it would be given again")
	}
}

// TestADispatchWithoutItsResult: one that another gateway made can be read.
func TestADispatchWithoutItsResult(t *testing.T) {
	r := started(t, paseotest.V10)
	agentID := r.create("old", "hello")
	r.wait("old", agentID)
	r.exec(`DELETE FROM dispatch_results`)
	if out := r.result("old"); out.Status != "idle" || out.ReadStatus != partialResult || out.LastMessage != nil {
		t.Errorf("%s", asJSON(t, out))
	}
}

// TestAgentsOfAnotherOwner do not exist for this one, in whatever tool.
func TestAgentsOfAnotherOwner(t *testing.T) {
	r := started(t, paseotest.V10)
	agentID, _ := r.idle()
	r.send("ask", agentID, "perm")
	r.wait("ask", agentID)
	permission := r.onlyPermission(r.who)
	other := principal.Principal{Owner: "local-owner:b", ClientID: "b", Permissions: principal.Full()}
	ctx, at := t.Context(), AgentIn{OnHost{here}, strings.ToUpper(agentID)}
	for name, err := range map[string]error{
		"status":     second(r.s.GetAgentStatus(ctx, other, at)),
		"cancel":     second(r.s.CancelAgent(ctx, other, at)),
		"activity":   second(r.s.GetAgentActivity(ctx, other, GetAgentActivityIn{OnHost: at.OnHost, AgentID: at.AgentID})),
		"timeline":   second(r.s.GetAgentResult(ctx, other, GetAgentResultIn{OnHost: at.OnHost, AgentID: at.AgentID})),
		"update":     second(r.s.UpdateAgent(ctx, other, UpdateAgentIn{OnHost: at.OnHost, AgentID: at.AgentID, Name: "mine"})),
		"permission": second(r.s.RespondToPermission(ctx, other, RespondToPermissionIn{at.OnHost, at.AgentID, permission, []byte(`{"behavior":"allow"}`)})),
		"prompt":     second(r.s.SendAgentPrompt(ctx, other, r.sendIn("theirs", agentID, "x"))),
	} {
		if none := second(r.s.GetAgentStatus(ctx, other, AgentIn{OnHost{here}, uuid.NewString()})); kindOf(err) != "agent_not_found" || err.Error() != none.Error() {
			t.Errorf("%s: %v; of none: %v", name, err, none)
		}
	}
	if out, err := r.s.ListAgents(ctx, other, ListAgentsIn{OnHost: OnHost{here}}); err != nil || len(out.Agents) != 0 {
		t.Errorf("%+v, %v", out, err)
	}
	if out, err := r.s.ListPendingPermissions(ctx, other, OnHost{here}); err != nil || len(out.Permissions) != 0 {
		t.Errorf("%+v, %v", out, err)
	}
	if _, err := r.s.GetAgentStatus(ctx, r.who, at); err != nil {
		t.Errorf("its own, in capitals: %v", err)
	}
}

func (r *rig) onlyPermission(who principal.Principal) string {
	r.t.Helper()
	out, err := r.s.ListPendingPermissions(r.t.Context(), who, OnHost{here})
	if err != nil || len(out.Permissions) != 1 {
		r.t.Fatalf("%+v, %v", out, err)
	}
	a, err := r.clients[here].FetchAgent(r.t.Context(), out.Permissions[0].AgentID)
	if err != nil {
		r.t.Fatal(err)
	}
	return a.PendingPermissions[0].ID
}

// TestAnAnswerAllowsOnce: it can't switch the asking off.
func TestAnAnswerAllowsOnce(t *testing.T) {
	r := started(t, paseotest.V10)
	agentID, _ := r.idle()
	r.send("ask", agentID, "perm")
	r.wait("ask", agentID)
	permission := r.onlyPermission(r.who)
	for response, want := range map[string]string{
		`{"behavior":"allow","updatedPermissions":[{"type":"setMode","mode":"bypassPermissions","destination":"session"}]}`: "auto_accept_refused",
		`{"behavior":"allow","updatedPermissions":[{"type":"setMode","mode":"acceptEdits"}]}`:                               "auto_accept_refused",
		`{"behavior":"allow","selectedActionId":"allow_all"}`:                                                               "auto_accept_refused",
		`{"behavior":"allow","updatedPermissions":["x"]}`:                                                                   "invalid_arguments",
	} {
		if _, err := r.s.RespondToPermission(t.Context(), r.who, RespondToPermissionIn{OnHost{here}, agentID, permission, []byte(response)}); kindOf(err) != want {
			t.Errorf("%s: %v", response, err)
		}
	}
	fine := `{"behavior":"allow","updatedPermissions":[{"type":"addRules","rules":[{"toolName":"Bash","ruleContent":"make autorun"}]}]}`
	if out, err := r.s.RespondToPermission(t.Context(), r.who, RespondToPermissionIn{OnHost{here}, agentID, permission, []byte(fine)}); err != nil || out.State != Submitted {
		t.Errorf("%+v, %v", out, err)
	}
}

// TestNamesAreNoPathsAndNoOptions of what the daemon gives to git.
func TestNamesAreNoPathsAndNoOptions(t *testing.T) {
	for name, in := range map[string]CreateWorkspaceIn{
		"a path":           {WorktreeSlug: "../../elsewhere"},
		"the parent":       {WorktreeSlug: ".."},
		"an option":        {BaseBranch: "--upload-pack=x"},
		"a branch that is": {Mode: "checkout-branch", Branch: "-f"},
	} {
		in.Isolation, in.Path = "worktree", "/x"
		if _, err := checkWorkspace(in); kindOf(err) != "invalid_arguments" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestMailOfTwoPeers of one agent is told in two prompts.
func TestMailOfTwoPeers(t *testing.T) {
	r := started(t, paseotest.V10)
	agentID, _ := r.idle()
	r.send("busy", agentID, "sleep 1.5")
	r.running(agentID)
	r.mail(agentID, "a")
	err := store.Exec(t.Context(), r.store, func(tx *store.Tx) error {
		_, err := r.s.QueueMail(tx, NativeMail{Owner: r.who.Owner, MessageID: "b", FromPeerID: "chat", PeerID: "tester", Generation: 1, HostID: here, AgentID: agentID})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "both", func() bool { return r.delivery("a").State == "submitted" && r.delivery("b").State == "submitted" })
	if told := r.mailPrompts(); len(told) != 2 || !strings.Contains(told[0], "as peer builder") || strings.Contains(told[0], "message b") || !strings.Contains(told[1], "as peer tester") {
		t.Errorf("%q", told)
	}
}

// TestHistoryCostsNothing: what is read at each event and at each dispatch looks at
// what is open, however much has ended.
func TestHistoryCostsNothing(t *testing.T) {
	r := started(t, paseotest.V10)
	for query, args := range map[string]int{selectRow + byOpenAgent: 2, selectRow + byAgent: 2, selectRow + byLostCreation: 1, wantedAgents: 3} {
		plan := ""
		err := store.Read(t.Context(), r.store, func(q *store.Reader) error {
			return q.Query(func(sc store.Scanner) error {
				var id, parent, unused int
				var detail string
				err := sc.Scan(&id, &parent, &unused, &detail)
				plan += detail + "\n"
				return err
			}, "EXPLAIN QUERY PLAN "+query, []any{here, 1, 1}[:args]...)
		})
		if err != nil || !strings.Contains(plan, "dispatches_open") || strings.Contains(plan, "dispatches_agent") {
			t.Errorf("%s\n%s, %v", query, plan, err)
		}
	}
}

// TestACancelledRunIsTheOlderOne: a daemon without turn ids writes a prompt down and
// then cancels the run that it replaces.
func TestACancelledRunIsTheOlderOne(t *testing.T) {
	r := started(t, paseotest.V01)
	f := r.s.followers[here]
	agentID := r.create("a", "sleep 30")
	r.appears("a")
	r.exec(`INSERT INTO dispatches (owner, host_id, request_id, client_id, tool, fingerprint, content, state, stage, agent_id, prompt_id, submitted_at, updated_at)
		SELECT owner, host_id, 'b', client_id, tool, fingerprint, content, state, stage, agent_id, 'prompt-b', submitted_at, updated_at FROM dispatches WHERE request_id = 'a'`)
	row := paseo.RowAdded{AgentID: agentID, Epoch: r.stored("a").epoch, Seq: 9, Item: paseo.Item{Type: "user_message", MessageID: "prompt-b"}}
	for n, promptID := range []string{r.stored("a").promptID, "prompt-b"} { // the first may have come before the agent was followed
		row.Seq, row.Item.MessageID = int64(n+9), promptID
		if err := f.rowAdded(row); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.turnChanged(paseo.TurnChanged{AgentID: agentID, Phase: paseo.TurnCanceled}); err != nil {
		t.Fatal(err)
	}
	if a, b := r.stored("a"), r.stored("b"); a.terminalKind != turnCanceled || b.terminalKind != "" {
		t.Errorf("a %q, b %q", a.terminalKind, b.terminalKind)
	}
}

// TestAFailureIsNoRefusal: a daemon that failed while it worked on a prompt may have
// given it to the agent.
func TestAFailureIsNoRefusal(t *testing.T) {
	for version, want := range map[string]State{paseotest.V05: Unknown, paseotest.V10: Submitted} {
		r := started(t, version)
		agentID, _ := r.idle()
		in := r.sendIn("failed", agentID, "hello")
		r.daemon[here].Order(paseotest.Fault{Request: "send_agent_message_request", Act: paseotest.Refuse, Error: "something broke"})
		if receipt, err := r.s.SendAgentPrompt(t.Context(), r.who, in); err != nil || receipt.State != Unknown || receipt.Error.Code != "outcome_unknown" {
			t.Errorf("%s: %+v, %v", version, receipt, err)
		}
		if receipt, err := r.s.SendAgentPrompt(t.Context(), r.who, in); err != nil || receipt.State != want {
			t.Errorf("%s: %+v, %v", version, receipt, err)
		}
	}
	if m := receiptOf(row{tool: createWorkspace, state: Unknown}).Message; strings.Contains(m, "The gateway asks") {
		t.Errorf("nobody asks for a workspace: %s", m)
	}
}

// TestAnUnreadableTimelineStopsNobody: the agent can be prompted and its timeline
// asked for although a dispatch before can't be settled.
func TestAnUnreadableTimelineStopsNobody(t *testing.T) {
	r := newRig(t, paseotest.V05)
	var unreadable atomic.Bool
	r.alter = func(d Daemon) Daemon {
		return reader{d, func(ctx context.Context, q paseo.TimelineQuery, d Daemon) (paseo.TimelinePage, error) {
			if unreadable.Load() {
				return paseo.TimelinePage{}, &paseo.Rejected{Message: "too much"}
			}
			return d.Timeline(ctx, q)
		}}
	}
	r.start()
	agentID, _ := r.idle()
	unreadable.Store(true)
	r.exec(`UPDATE dispatches SET closed_at = NULL, terminal_kind = ''`)
	if _, err := r.s.GetAgentResult(t.Context(), r.who, GetAgentResultIn{OnHost: OnHost{here}, AgentID: agentID}); kindOf(err) != "timeline_unreadable" {
		t.Errorf("%v", err)
	}
	r.send("next", agentID, "hello")
}

func TestTextsOfDaemons(t *testing.T) {
	for in, want := range map[string]string{
		"Model anthropic/claude-x is not known": "Model anthropic/claude-x is not known",
		"no /home/me/secret here":               "no <path> here",
		"cwd=/home/me":                          "cwd=<path>",
		`open C:\Users\me\x: no`:                "open <path>: no",
		"in ~/My Docs/secret/x":                 "in <path> Docs<path>",
		"/etc/x and\nanthropic/claude":          "<path> and anthropic<path>",
		"and / or":                              "and / or",
	} {
		if got := shownText(in, 100); got != want {
			t.Errorf("%q became %q", in, got)
		}
	}
}

// TestSeenWhileItWasGiven: what came by in the live timeline before its answer was
// lost is not unknown.
func TestSeenWhileItWasGiven(t *testing.T) {
	r := started(t, paseotest.V05)
	r.create("seen", "sleep 30")
	row := r.appears("seen")
	receipt, err := r.s.settle(row, outcome{state: Unknown, err: OutcomeUnknown.New("The answer was lost.")})
	if err != nil || receipt.state != Submitted || r.receipt("seen").Error != nil {
		t.Errorf("%+v, %v", receipt, err)
	}
}

// TestAnAgentThatChangedHands is its present owner's alone, whoever prompted it last.
func TestAnAgentThatChangedHands(t *testing.T) {
	r := newRig(t, paseotest.V10)
	record := &record{}
	r.o.Agents = record
	r.start()
	agentID, _ := r.idle()
	record.owner = "local-owner:b"
	other := principal.Principal{Owner: "local-owner:b", ClientID: "b", Permissions: principal.Full()}
	if _, err := r.s.GetAgentStatus(t.Context(), r.who, AgentIn{OnHost{here}, agentID}); kindOf(err) != "agent_not_found" {
		t.Errorf("the owner of before: %v", err)
	}
	if receipt, err := r.s.SendAgentPrompt(t.Context(), other, r.sendIn("theirs", agentID, "hello")); err != nil || receipt.State != Submitted {
		t.Errorf("%+v, %v", receipt, err)
	}
}

type record struct {
	unrecorded
	owner string
}

func (r *record) Owner(store.Querier, string, string) (string, error) { return r.owner, nil }
