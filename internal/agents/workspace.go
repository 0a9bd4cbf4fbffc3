package agents

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
)

// CreateWorkspace makes a workspace of a directory, or of a new worktree of the
// repository there. With a requestId it does so once; without, each call makes
// another one.
//
// Refusals that use no requestId up: invalid_arguments, key_conflict,
// path_not_allowed, host_unavailable. With a requestId, what goes wrong later
// stands in the answer.
func (s *Service) CreateWorkspace(ctx context.Context, who principal.Principal, in CreateWorkspaceIn) (CreateWorkspaceOut, error) {
	n, err := checkWorkspace(in)
	if err != nil {
		return CreateWorkspaceOut{}, err
	}
	if in.RequestID == nil {
		return s.createWorkspaceOnce(ctx, in, n)
	}
	print, err := fingerprint(createWorkspace, map[string]any{"isolation": in.Isolation, "workspace": n})
	if err != nil {
		return CreateWorkspaceOut{}, err
	}
	promptID, err := newUUID(s.rand)
	if err != nil {
		return CreateWorkspaceOut{}, err
	}
	p := plan{
		row: row{
			hostID: in.HostID, requestID: *in.RequestID, tool: createWorkspace, fingerprint: print, content: []byte{}, promptID: promptID,
		},
		quiet: true,
		admit: func(ctx context.Context, d Daemon, p *plan) (err error) {
			p.cwd, err = s.admitWorkspace(ctx, d, in)
			return err
		},
	}
	p.give = func(ctx context.Context, d Daemon, r *row) outcome { return s.giveWorkspace(ctx, d, r, in, n) }
	receipt, err := s.dispatch(ctx, who, p)
	if err != nil {
		return CreateWorkspaceOut{}, err
	}
	out := CreateWorkspaceOut{Isolation: in.Isolation}
	if len(receipt.UpstreamResult) > 0 {
		if err := json.Unmarshal(receipt.UpstreamResult, &out); err != nil {
			return out, fmt.Errorf("reading a stored workspace: %w", err)
		}
	}
	out.HostID, out.RequestID, out.State, out.Duplicate, out.Error = in.HostID, receipt.RequestID, receipt.State, receipt.Duplicate, receipt.Error
	if out.Message == "" {
		out.Message = receipt.Message
	}
	return out, nil
}

func checkWorkspace(in CreateWorkspaceIn) (paseo.NewWorkspace, error) {
	n := paseo.NewWorkspace{Path: in.Path, ProjectID: in.ProjectID, Title: in.Title}
	errs := []error{
		checkText("path", in.Path, 1, MaxPath), checkText("title", in.Title, 0, 200), checkText("projectId", in.ProjectID, 0, MaxID),
		checkText("worktreeSlug", in.WorktreeSlug, 0, MaxID), checkText("branchName", in.BranchName, 0, MaxID),
		checkText("baseBranch", in.BaseBranch, 0, MaxID), checkText("branch", in.Branch, 0, MaxID), checkText("forge", in.Forge, 0, 64),
	}
	if in.RequestID != nil {
		errs = append(errs, checkRequestID("requestId", *in.RequestID))
	}
	for _, err := range errs {
		if err != nil {
			return n, err
		}
	}
	if strings.ContainsAny(in.WorktreeSlug, `/\`) || strings.HasPrefix(in.WorktreeSlug, ".") {
		return n, fault.InvalidArguments.New("worktreeSlug must be a name, not a path")
	}
	for _, name := range []string{in.BranchName, in.BaseBranch, in.Branch} {
		if strings.HasPrefix(name, "-") {
			return n, fault.InvalidArguments.New("a branch must not begin with -")
		}
	}
	worktree := in.Mode != "" || in.WorktreeSlug != "" || in.BranchName != "" || in.BaseBranch != "" || in.Branch != "" || in.PRNumber != 0 || in.Forge != ""
	if in.Isolation == "local" {
		if worktree {
			return n, fault.InvalidArguments.New("mode, worktreeSlug, branchName, baseBranch, branch, prNumber and forge are for isolation worktree only")
		}
		return n, nil
	}
	if in.Isolation != "worktree" {
		return n, fault.InvalidArguments.New("isolation must be local or worktree")
	}
	mode := in.Mode
	if mode == "" {
		mode = "branch-off"
	}
	n.Worktree = &paseo.Worktree{
		Mode: mode, Slug: in.WorktreeSlug, BranchName: in.BranchName, BaseBranch: in.BaseBranch, Branch: in.Branch, PRNumber: in.PRNumber, Forge: in.Forge,
	}
	switch {
	case mode != "branch-off" && mode != "checkout-branch" && mode != "checkout-pr":
		return n, fault.InvalidArguments.New("mode must be branch-off, checkout-branch or checkout-pr")
	case mode == "checkout-branch" && in.Branch == "":
		return n, fault.InvalidArguments.New("branch is needed with mode checkout-branch")
	case mode == "checkout-pr" && in.PRNumber == 0:
		return n, fault.InvalidArguments.New("prNumber is needed with mode checkout-pr")
	case mode != "branch-off" && (in.BranchName != "" || in.BaseBranch != ""), mode != "checkout-branch" && in.Branch != "", mode != "checkout-pr" && (in.PRNumber != 0 || in.Forge != ""):
		return n, fault.InvalidArguments.New("branchName and baseBranch go with mode branch-off, branch with checkout-branch, prNumber and forge with checkout-pr")
	}
	return n, nil
}

// admitWorkspace returns the canonical directory, and refuses a project that is
// elsewhere.
func (s *Service) admitWorkspace(ctx context.Context, d Daemon, in CreateWorkspaceIn) (string, error) {
	path, err := s.within(ctx, in.HostID, in.Path)
	if err != nil || in.ProjectID == "" {
		return path, err
	}
	projects, err := d.ListProjects(ctx)
	if err != nil {
		return "", refusal(ctx, err, in.HostID, false)
	}
	for _, p := range projects {
		if p.ID == in.ProjectID {
			_, err := s.within(ctx, in.HostID, p.Root)
			return path, err
		}
	}
	return "", PathNotAllowed.New("projectId names no project inside allowedRoots.").WithHint("list_projects shows the projects.")
}

func (s *Service) giveWorkspace(ctx context.Context, d Daemon, r *row, in CreateWorkspaceIn, n paseo.NewWorkspace) outcome {
	n.Path = r.cwd
	if info, _ := d.Info(); info.WorkspaceReceipts() {
		n.IdempotencyKey = r.promptID
	} else if r.keyed {
		return unkeyed()
	}
	if err := s.noteStep(ctx, r, creating, n.IdempotencyKey != ""); err != nil {
		return outcome{state: NotSent, err: fault.From(err)}
	}
	w, err := d.CreateWorkspace(ctx, n)
	if err != nil {
		return outcomeOf(err, r.hostID)
	}
	r.workspaceID = w.ID
	return outcome{state: Submitted, answer: s.madeWorkspace(ctx, in, w)}
}

// madeWorkspace is a new workspace as callers see it. A worktree can lie where
// the daemon likes.
func (s *Service) madeWorkspace(ctx context.Context, in CreateWorkspaceIn, w paseo.Workspace) CreateWorkspaceOut {
	out := CreateWorkspaceOut{Workspace: workspaceOf(w, "", in.HostID), Isolation: in.Isolation}
	paths, err := s.inside(ctx, in.HostID, []string{w.Directory})
	if err != nil {
		return out // where it lies is seen when it is used
	}
	out.CWD = paths[0]
	is := paths[0] != ""
	if out.InsideRoots = &is; !is {
		out.Message = "The workspace exists, but the daemon put its directory outside allowedRoots, so no agent can be created in it. The owner can add the daemon's directory of worktrees to allowedRoots."
	}
	return out
}

func (s *Service) createWorkspaceOnce(ctx context.Context, in CreateWorkspaceIn, n paseo.NewWorkspace) (CreateWorkspaceOut, error) {
	d, err := s.daemons.Daemon(in.HostID)
	if err != nil {
		return CreateWorkspaceOut{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, sendBudget)
	defer cancel()
	if n.Path, err = s.admitWorkspace(ctx, d, in); err != nil {
		return CreateWorkspaceOut{}, err
	}
	w, err := d.CreateWorkspace(ctx, n)
	if err != nil {
		return CreateWorkspaceOut{}, refusal(ctx, err, in.HostID, true)
	}
	return s.madeWorkspace(ctx, in, w), nil
}
