package paseo_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"agentrelay/internal/agents/paseo"
)

func (s *suite) refusals() {
	var no *paseo.Rejected
	if _, err := s.CreateAgent(s.ctx(), paseo.NewAgent{Provider: "no-such-provider", CWD: s.cwd, Title: "x"}); !errors.As(err, &no) || no.Message == "" {
		s.t.Errorf("unknown provider: %v", err)
	}
	if _, err := s.CreateAgent(s.ctx(), paseo.NewAgent{Provider: s.provider, Model: s.model, CWD: s.cwd + "/no/such/directory", Title: "x"}); !errors.As(err, &no) {
		s.t.Errorf("missing directory: %v", err)
	}
	const nobody = "00000000-0000-4000-8000-000000000000"
	if err := s.SendMessage(s.ctx(), paseo.Prompt{AgentID: nobody, Text: "x"}); !paseo.RejectedAs(err, paseo.CodeAgentNotFound) {
		s.t.Errorf("prompt to nobody: %v", err)
	}
	if _, err := s.Timeline(s.ctx(), paseo.TimelineQuery{AgentID: nobody}); !paseo.RejectedAs(err, paseo.CodeAgentNotFound) {
		s.t.Errorf("timeline of nobody: %v", err)
	}
	if err := s.UpdateAgent(s.ctx(), paseo.AgentChange{AgentID: nobody, Name: "x"}); !paseo.RejectedAs(err, paseo.CodeAgentNotFound) {
		s.t.Errorf("update of nobody: %v", err)
	}
}

func (s *suite) providers() {
	list, err := s.ListProviders(s.ctx(), s.cwd)
	s.ok(err)
	if !slices.ContainsFunc(list, func(p paseo.Provider) bool { return p.ID == s.provider && p.Enabled && p.Label != "" }) {
		s.t.Fatalf("providers = %+v", list)
	}
	models, err := s.ListModels(s.ctx(), s.provider, s.cwd)
	s.ok(err)
	if !slices.ContainsFunc(models, func(m paseo.Model) bool { return m.ID == s.model }) {
		s.t.Fatalf("models = %+v", models)
	}
	if _, err := s.ListModels(s.ctx(), "no-such-provider", s.cwd); err == nil {
		s.t.Fatal("models of an unknown provider")
	}
}

func (s *suite) workspaces() {
	info, _ := s.Info()
	if !info.Workspaces() {
		var old *paseo.Unsupported
		if _, err := s.CreateWorkspace(s.ctx(), paseo.NewWorkspace{Path: s.cwd}); !errors.As(err, &old) || old.Version != info.Version {
			s.t.Fatalf("create workspace: %v", err)
		}
		return
	}
	title := fmt.Sprint("suite ", time.Now().UnixNano())
	w, err := s.CreateWorkspace(s.ctx(), paseo.NewWorkspace{Path: s.cwd, Title: title})
	s.ok(err)
	if w.ID == "" || w.Directory == "" || w.ProjectID == "" {
		s.t.Fatalf("workspace = %+v", w)
	}
	page, err := s.ListWorkspaces(s.ctx(), paseo.WorkspaceQuery{ProjectID: w.ProjectID})
	s.ok(err)
	if !slices.ContainsFunc(page.Workspaces, func(x paseo.Workspace) bool { return x.ID == w.ID }) {
		s.t.Fatal("the new workspace is not listed")
	}
	projects, err := s.ListProjects(s.ctx())
	s.ok(err)
	if !slices.ContainsFunc(projects, func(p paseo.Project) bool { return p.ID == w.ProjectID && p.Root != "" }) {
		s.t.Fatalf("projects = %+v", projects)
	}
	a, err := s.CreateAgent(s.ctx(), paseo.NewAgent{Provider: s.provider, Model: s.model, CWD: s.cwd, WorkspaceID: w.ID, Title: title})
	s.ok(err)
	s.t.Cleanup(func() { _ = s.ArchiveAgent(context.Background(), a.ID) })
	if a.WorkspaceID != w.ID || a.CWD != w.Directory {
		s.t.Fatalf("agent in %q at %q", a.WorkspaceID, a.CWD)
	}
	var no *paseo.Rejected
	if _, err := s.CreateWorkspace(s.ctx(), paseo.NewWorkspace{Path: s.cwd + "/no/such/directory"}); !errors.As(err, &no) {
		s.t.Fatalf("workspace of nothing: %v", err)
	}
}

func (s *suite) overMCP() {
	a := s.agent(nil)
	s.send(a.ID, "curated")
	s.turn(a.ID, paseo.TurnCompleted)
	got, err := s.AgentActivity(s.ctx(), a.ID, 10)
	s.ok(err)
	if !strings.Contains(got.Content, "curated") || got.AgentID != a.ID {
		s.t.Fatalf("activity = %+v", got)
	}
	if _, err := s.AgentActivity(s.ctx(), "no-such-agent", 10); !paseo.RejectedAs(err, paseo.CodeAgentNotFound) {
		s.t.Fatalf("activity of nobody: %v", err)
	}
	info, _ := s.Info()
	var old *paseo.Unsupported
	_, err = s.ListProfiles(s.ctx())
	if (err == nil) != info.Profiles() || err != nil && !errors.As(err, &old) {
		s.t.Fatalf("profiles: %v", err)
	}
	raw, err := s.InspectProvider(s.ctx(), paseo.ProviderInspection{Provider: s.provider, CWD: s.cwd})
	if info.Workspaces() && (err != nil || !json.Valid(raw)) || !info.Workspaces() && !errors.As(err, &old) {
		s.t.Fatalf("inspect: %v", err)
	}
}

func (s *suite) receipts() {
	info, _ := s.Info()
	key := fmt.Sprint("suite-", time.Now().UnixNano())
	wanted := paseo.NewAgent{Provider: s.provider, Model: s.model, CWD: s.cwd, Title: key, IdempotencyKey: key}
	first, err := s.CreateAgent(s.ctx(), wanted)
	if !info.RequestReceipts() {
		var old *paseo.Unsupported
		if !errors.As(err, &old) {
			s.t.Fatalf("a key that would be ignored was sent: %v", err)
		}
		return
	}
	s.ok(err)
	s.t.Cleanup(func() { _ = s.ArchiveAgent(context.Background(), first.ID) })
	again, err := s.CreateAgent(s.ctx(), wanted)
	s.ok(err)
	if again.ID != first.ID {
		s.t.Fatal("one key made two agents")
	}
	wanted.Title = "another"
	if _, err := s.CreateAgent(s.ctx(), wanted); !paseo.RejectedAs(err, paseo.CodeKeyConflict) {
		s.t.Fatalf("same key, other agent: %v", err)
	}
	s.ok(s.Watch(s.ctx(), []string{first.ID}))
	prompt := paseo.Prompt{AgentID: first.ID, Text: "once", MessageID: key + "-m"}
	for range 3 {
		s.ok(s.SendMessage(s.ctx(), prompt))
	}
	s.turn(first.ID, paseo.TurnCompleted)
	if got := texts(s.tail(first.ID), "user_message"); got != "once" {
		s.t.Fatalf("user rows %q", got)
	}
	prompt.Text = "twice"
	if err := s.SendMessage(s.ctx(), prompt); !paseo.RejectedAs(err, paseo.CodeKeyConflict) {
		s.t.Fatalf("same id, other text: %v", err)
	}
}

func (s *suite) process() {
	info, _ := s.Info()
	status, err := s.DaemonStatus(s.ctx())
	var old *paseo.Unsupported
	if !info.StatusRPC() {
		if !errors.As(err, &old) {
			s.t.Fatal(err)
		}
		return
	}
	s.ok(err)
	if status.PID == 0 || status.ServerID != info.ServerID {
		s.t.Fatalf("status = %+v", status)
	}
}
