package paseo_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/agents/paseo/paseotest"
)

// suite is what every daemon must show, the double of each version as well as a
// real one. Its provider answers prompts as the fakes do: an echo, "sleep N",
// "tool", "perm" and "fail".
type suite struct {
	*follower
	t        *testing.T
	provider string
	model    string
	cwd      string
	seen     int
}

func TestSuiteOnDoubles(t *testing.T) {
	for _, version := range paseotest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			d := paseotest.Start(t, paseotest.Options{Version: version, Password: "open-sesame"})
			o := quick(d)
			o.Password = func() (string, error) { return "open-sesame", nil }
			runSuite(t, o, "fake", "echo", t.TempDir())
		})
	}
}

// TestSuiteOnRealDaemon runs against a daemon that is already listening at
// AGENTRELAY_TEST_PASEO_URL (http://host:port, or unix:///path), with _PASSWORD,
// _PROVIDER (provider/model, default fake/echo) and _CWD (default a temporary
// directory). It makes agents there, and archives them.
func TestSuiteOnRealDaemon(t *testing.T) {
	address := os.Getenv("AGENTRELAY_TEST_PASEO_URL")
	if address == "" {
		t.Skip("AGENTRELAY_TEST_PASEO_URL is not set: no real daemon to test against")
	}
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	network, where := "tcp", u.Host
	if u.Scheme == "unix" {
		network, where = "unix", u.Path
	}
	o := paseo.Options{
		HostID:   "real",
		Dial:     func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, network, where) },
		Password: func() (string, error) { return os.Getenv("AGENTRELAY_TEST_PASEO_PASSWORD"), nil },
	}
	name := os.Getenv("AGENTRELAY_TEST_PASEO_PROVIDER")
	if name == "" {
		name = "fake/echo"
	}
	provider, model, _ := strings.Cut(name, "/")
	cwd := os.Getenv("AGENTRELAY_TEST_PASEO_CWD")
	if cwd == "" {
		cwd = t.TempDir()
	}
	runSuite(t, o, provider, model, cwd)
}

func runSuite(t *testing.T, o paseo.Options, provider, model, cwd string) {
	f := connected(t, o)
	for _, one := range []struct {
		name string
		do   func(*suite)
	}{
		{"introduces itself", (*suite).introduction},
		{"keeps labels and finds by them", (*suite).labels},
		{"knows agents by full id only", (*suite).fullIDs},
		{"runs a prompt to its end", (*suite).wholeTurn},
		{"pages through a timeline", (*suite).pages},
		{"calls a stale cursor stale", (*suite).staleCursor},
		{"tells a cancelled turn from a completed one", (*suite).cancelled},
		{"replaces a run by the next prompt", (*suite).replaced},
		{"asks for permission and takes the answer", (*suite).permissions},
		{"loses a pending permission to a prompt", (*suite).promptOverPermission},
		{"reports a failed turn", (*suite).failed},
		{"ends a wait in time", (*suite).waitTimeout},
		{"merges a tool's rows", (*suite).tools},
		{"takes a prompt of 300000 characters", (*suite).largePrompt},
		{"hides archived agents and revives them", (*suite).archived},
		{"refuses what can't be", (*suite).refusals},
		{"lists providers and models", (*suite).providers},
		{"makes workspaces where it can", (*suite).workspaces},
		{"offers profiles and inspection where it can", (*suite).overMCP},
		{"runs a key once where it has receipts", (*suite).receipts},
		{"tells its process where it can", (*suite).process},
	} {
		t.Run(one.name, func(t *testing.T) {
			f.t = t
			one.do(&suite{follower: f, t: t, provider: provider, model: model, cwd: cwd})
		})
	}
}

func (s *suite) ctx() context.Context { return within(s.t, patience) }

func (s *suite) ok(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// agent makes an idle, watched agent that is archived when the test ends.
func (s *suite) agent(labels map[string]string) paseo.Agent {
	s.t.Helper()
	s.seen++
	a, err := s.CreateAgent(s.ctx(), paseo.NewAgent{
		Provider: s.provider, Model: s.model, CWD: s.cwd, Title: fmt.Sprintf("suite %d %d", time.Now().UnixNano(), s.seen), Labels: labels,
	})
	s.ok(err)
	s.t.Cleanup(func() { _ = s.ArchiveAgent(context.Background(), a.ID) })
	s.ok(s.Watch(s.ctx(), []string{a.ID}))
	return a
}

func (s *suite) send(id, text string) string {
	s.t.Helper()
	s.seen++
	messageID := fmt.Sprintf("m-%d-%d", time.Now().UnixNano(), s.seen)
	s.ok(s.SendMessage(s.ctx(), paseo.Prompt{AgentID: id, Text: text, MessageID: messageID}))
	return messageID
}

func (s *suite) tail(id string) paseo.TimelinePage {
	s.t.Helper()
	page, err := s.Timeline(s.ctx(), paseo.TimelineQuery{AgentID: id})
	s.ok(err)
	return page
}

// texts joins the texts of one type of row.
func texts(page paseo.TimelinePage, kind string) string {
	var out []string
	for _, e := range page.Entries {
		if e.Item.Type == kind {
			out = append(out, e.Item.Text)
		}
	}
	return strings.Join(out, "|")
}

func (s *suite) introduction() {
	info, ok := s.Info()
	if !ok || info.ServerID == "" || info.Version == "" {
		s.t.Fatalf("info = %+v, %v", info, ok)
	}
	status := s.Status()
	if status.State != paseo.Up || status.Code != "" || status.Info.ServerID != info.ServerID {
		s.t.Fatalf("status = %+v", status)
	}
}

func (s *suite) labels() {
	mark := fmt.Sprint(time.Now().UnixNano())
	a := s.agent(map[string]string{"suite-mark": mark})
	s.ok(s.UpdateAgent(s.ctx(), paseo.AgentChange{AgentID: a.ID, Name: "renamed " + mark, Labels: map[string]string{"second": "2"}}))
	page, err := s.FetchAgents(s.ctx(), paseo.AgentQuery{Labels: map[string]string{"suite-mark": mark}})
	s.ok(err)
	if len(page.Agents) != 1 || page.Agents[0].ID != a.ID {
		s.t.Fatalf("found %d agents by label", len(page.Agents))
	}
	found := page.Agents[0]
	if found.Labels["suite-mark"] != mark || found.Labels["second"] != "2" || found.Title != "renamed "+mark {
		s.t.Fatalf("labels %v, title %q", found.Labels, found.Title)
	}
	if found.Turn == paseo.TurnActive {
		s.t.Fatal("an agent without a prompt has a turn")
	}
}

func (s *suite) fullIDs() {
	a := s.agent(nil)
	got, err := s.FetchAgent(s.ctx(), a.ID)
	s.ok(err)
	if got.ID != a.ID || got.CWD == "" || len(got.Raw) == 0 {
		s.t.Fatalf("agent = %+v", got)
	}
	for _, key := range []string{a.ID[:len(a.ID)-3], a.Title, "no-such-agent"} {
		if _, err := s.FetchAgent(s.ctx(), key); !paseo.RejectedAs(err, paseo.CodeAgentNotFound) {
			s.t.Errorf("%q: %v", key, err)
		}
	}
}

func (s *suite) wholeTurn() {
	a := s.agent(nil)
	info, _ := s.Info()
	messageID := s.send(a.ID, "hello from the suite")
	started := s.turn(a.ID, paseo.TurnStarted)
	done := s.turn(a.ID, paseo.TurnCompleted)
	if started.TurnID != done.TurnID || (started.TurnID != "") != info.TurnIDs() {
		s.t.Fatalf("turn %q started, %q completed", started.TurnID, done.TurnID)
	}
	finish, err := s.WaitForFinish(s.ctx(), a.ID, patience)
	s.ok(err)
	if finish.Status != "idle" || finish.Final == nil || finish.Final.Status != paseo.AgentIdle || !strings.Contains(finish.LastMessage, "hello from the suite") {
		s.t.Fatalf("finish = %+v", finish)
	}
	page := s.tail(a.ID)
	users := slices.DeleteFunc(slices.Clone(page.Entries), func(e paseo.Entry) bool { return e.Item.Type != "user_message" })
	if len(users) != 1 || users[0].Item.MessageID != messageID || users[0].TurnID != started.TurnID || page.Entries[0].SeqStart < 1 {
		s.t.Fatalf("user rows %+v", users)
	}
	if info.TurnIDs() && users[0].Item.ClientMessageID != messageID {
		s.t.Fatalf("client message id %q", users[0].Item.ClientMessageID)
	}
	if !strings.Contains(texts(page, "assistant_message"), "hello from the suite") || page.EndCursor == nil {
		s.t.Fatalf("page = %+v", page)
	}
}

func (s *suite) pages() {
	a := s.agent(nil)
	for n := range 3 {
		s.send(a.ID, fmt.Sprintf("round %d", n))
		s.turn(a.ID, paseo.TurnCompleted)
	}
	all := s.tail(a.ID)
	last, err := s.Timeline(s.ctx(), paseo.TimelineQuery{AgentID: a.ID, Limit: 2})
	s.ok(err)
	if len(last.Entries) != 2 || !last.HasOlder || last.HasNewer || last.Epoch != all.Epoch {
		s.t.Fatalf("tail of 2 = %+v", last)
	}
	older, err := s.Timeline(s.ctx(), paseo.TimelineQuery{AgentID: a.ID, Direction: paseo.Before, Cursor: last.StartCursor, Limit: 2})
	s.ok(err)
	if len(older.Entries) != 2 || older.EndCursor.Seq >= last.StartCursor.Seq || !older.HasNewer {
		s.t.Fatalf("before = %+v", older)
	}
	newer, err := s.Timeline(s.ctx(), paseo.TimelineQuery{AgentID: a.ID, Direction: paseo.After, Cursor: older.EndCursor, Limit: 200})
	s.ok(err)
	if len(newer.Entries) != 2 || newer.StartCursor.Seq <= older.EndCursor.Seq || newer.Gap || newer.Reset {
		s.t.Fatalf("after = %+v", newer)
	}
	canonical, err := s.Timeline(s.ctx(), paseo.TimelineQuery{AgentID: a.ID, Canonical: true})
	s.ok(err)
	if len(canonical.Entries) < len(all.Entries) || canonical.Projection != "canonical" {
		s.t.Fatalf("%d canonical rows for %d projected", len(canonical.Entries), len(all.Entries))
	}
}

func (s *suite) staleCursor() {
	a := s.agent(nil)
	s.send(a.ID, "something")
	s.turn(a.ID, paseo.TurnCompleted)
	page, err := s.Timeline(s.ctx(), paseo.TimelineQuery{AgentID: a.ID, Direction: paseo.After, Cursor: &paseo.Cursor{Epoch: "no-such-epoch", Seq: 1}})
	s.ok(err)
	if !page.Reset || !page.StaleCursor || page.Epoch == "no-such-epoch" || len(page.Entries) == 0 {
		s.t.Fatalf("page = %+v", page)
	}
}

func (s *suite) cancelled() {
	a := s.agent(nil)
	s.send(a.ID, "sleep 30")
	started := s.turn(a.ID, paseo.TurnStarted)
	s.ok(s.CancelAgent(s.ctx(), a.ID))
	if e := s.turn(a.ID, paseo.TurnCanceled); e.TurnID != started.TurnID {
		s.t.Fatalf("turn %q was cancelled, %q had started", e.TurnID, started.TurnID)
	}
	finish, err := s.WaitForFinish(s.ctx(), a.ID, patience)
	s.ok(err)
	if finish.Status != "idle" {
		s.t.Fatalf("finish = %+v", finish)
	}
	s.ok(s.CancelAgent(s.ctx(), a.ID)) // of nothing
}

func (s *suite) replaced() {
	a := s.agent(nil)
	s.send(a.ID, "sleep 30")
	first := s.turn(a.ID, paseo.TurnStarted)
	s.send(a.ID, "the second prompt")
	if e := s.turn(a.ID, paseo.TurnCanceled); e.TurnID != first.TurnID {
		s.t.Fatalf("turn %q ended, %q was running", e.TurnID, first.TurnID)
	}
	done := s.turn(a.ID, paseo.TurnCompleted)
	if info, _ := s.Info(); info.TurnIDs() && done.TurnID == first.TurnID {
		s.t.Fatal("two prompts have one turn id")
	}
}

// ask brings an agent to a pending permission.
func (s *suite) ask() (paseo.Agent, paseo.Permission) {
	s.t.Helper()
	a := s.agent(nil)
	s.send(a.ID, "perm")
	asked := s.until("a permission", func(e paseo.Event) bool {
		p, ok := e.(paseo.PermissionRequested)
		return ok && p.AgentID == a.ID
	}).(paseo.PermissionRequested)
	return a, asked.Permission
}

func (s *suite) permissions() {
	a, p := s.ask()
	now, err := s.FetchAgent(s.ctx(), a.ID)
	s.ok(err)
	if now.Status != paseo.AgentRunning || len(now.PendingPermissions) != 1 || now.PendingPermissions[0].ID != p.ID || len(p.Raw) == 0 {
		s.t.Fatalf("agent = %+v", now)
	}
	finish, err := s.WaitForFinish(s.ctx(), a.ID, patience)
	s.ok(err)
	if finish.Status != "permission" {
		s.t.Fatalf("finish = %+v", finish)
	}
	allow := paseo.PermissionAnswer{AgentID: a.ID, PermissionID: p.ID, Response: json.RawMessage(`{"behavior":"allow"}`)}
	s.ok(s.RespondPermission(s.ctx(), allow))
	s.until("the resolution", func(e paseo.Event) bool {
		r, ok := e.(paseo.PermissionResolved)
		return ok && r.AgentID == a.ID && r.PermissionID == p.ID && r.Behavior == "allow"
	})
	s.turn(a.ID, paseo.TurnCompleted)
	if err := s.RespondPermission(s.ctx(), allow); !paseo.RejectedAs(err, paseo.CodePermissionNotPending) {
		s.t.Fatalf("answering twice: %v", err)
	}
}

func (s *suite) promptOverPermission() {
	a, p := s.ask()
	s.send(a.ID, "never mind")
	s.until("the end of the permission", func(e paseo.Event) bool {
		r, ok := e.(paseo.PermissionResolved)
		return ok && r.AgentID == a.ID && r.PermissionID == p.ID
	})
	s.turn(a.ID, paseo.TurnCompleted)
}

func (s *suite) failed() {
	a := s.agent(nil)
	s.send(a.ID, "fail")
	if e := s.turn(a.ID, paseo.TurnFailed); e.Reason == "" {
		s.t.Fatalf("event = %+v", e)
	}
	finish, err := s.WaitForFinish(s.ctx(), a.ID, patience)
	s.ok(err)
	if finish.Status != "error" || finish.Final == nil || finish.Final.LastError == "" {
		s.t.Fatalf("finish = %+v", finish)
	}
	s.send(a.ID, "still there?")
	s.turn(a.ID, paseo.TurnCompleted)
}

func (s *suite) waitTimeout() {
	a := s.agent(nil)
	s.send(a.ID, "sleep 30")
	s.turn(a.ID, paseo.TurnStarted)
	finish, err := s.WaitForFinish(s.ctx(), a.ID, 150*time.Millisecond)
	s.ok(err)
	if finish.Status != "timeout" || finish.Final == nil || finish.Final.Status != paseo.AgentRunning {
		s.t.Fatalf("finish = %+v", finish)
	}
	if info, _ := s.Info(); info.TurnIDs() && (finish.Final.Turn != paseo.TurnActive || finish.Final.TurnID == "") {
		s.t.Fatalf("turn of a running agent: %s %q", finish.Final.Turn, finish.Final.TurnID)
	}
	finish, err = s.WaitForFinish(within(s.t, 800*time.Millisecond), a.ID, 0) // the deadline is the daemon's too
	s.ok(err)
	if finish.Status != "timeout" {
		s.t.Fatalf("finish = %+v", finish)
	}
}

func (s *suite) tools() {
	a := s.agent(nil)
	s.send(a.ID, "tool")
	s.turn(a.ID, paseo.TurnCompleted)
	for _, e := range s.tail(a.ID).Entries {
		if e.Item.Type != "tool_call" {
			continue
		}
		if e.Item.CallID == "" || e.Item.Status != "completed" || e.SeqEnd <= e.SeqStart || len(e.Raw) == 0 {
			s.t.Fatalf("tool row = %+v", e.Item)
		}
		return
	}
	s.t.Fatal("no tool row")
}

func (s *suite) largePrompt() {
	a := s.agent(nil)
	s.send(a.ID, strings.Repeat("long ", 60000)+"end")
	s.turn(a.ID, paseo.TurnCompleted)
	if got := texts(s.tail(a.ID), "user_message"); len(got) != 300003 {
		s.t.Fatalf("%d characters came back", len(got))
	}
}

func (s *suite) archived() {
	mark := map[string]string{"suite-archived": fmt.Sprint(time.Now().UnixNano())}
	a := s.agent(mark)
	s.send(a.ID, "before")
	s.turn(a.ID, paseo.TurnCompleted)
	epoch := s.tail(a.ID).Epoch
	s.ok(s.ArchiveAgent(s.ctx(), a.ID))
	page, err := s.FetchAgents(s.ctx(), paseo.AgentQuery{Labels: mark})
	s.ok(err)
	if len(page.Agents) != 0 {
		s.t.Fatal("an archived agent is listed")
	}
	page, err = s.FetchAgents(s.ctx(), paseo.AgentQuery{Labels: mark, IncludeArchived: true})
	s.ok(err)
	if len(page.Agents) != 1 || page.Agents[0].ArchivedAt == "" || page.Agents[0].Status != paseo.AgentClosed || page.Agents[0].Turn != paseo.TurnAbsent {
		s.t.Fatalf("archived = %+v", page.Agents)
	}
	s.send(a.ID, "after")
	s.turn(a.ID, paseo.TurnCompleted)
	now, err := s.FetchAgent(s.ctx(), a.ID)
	s.ok(err)
	if now.ArchivedAt != "" || s.tail(a.ID).Epoch == epoch {
		s.t.Fatalf("revived: archivedAt %q, old epoch", now.ArchivedAt)
	}
}
