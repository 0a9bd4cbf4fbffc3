package paseo

import (
	"context"
	"encoding/json"
	"slices"
)

// Project is a directory the daemon knows.
type Project struct {
	ID, Name, Root, Kind string
	Raw                  json.RawMessage
}

// ListProjects reads all projects. Daemons without the request are [Unsupported].
func (c *Client) ListProjects(ctx context.Context) ([]Project, error) {
	payload, err := c.call(ctx, "project.list.request", nil)
	if err != nil {
		return nil, c.unsupportedAs(err, "list_projects")
	}
	var w struct {
		Projects lenient[[]json.RawMessage] `json:"projects"`
		Error    text                       `json:"error"`
	}
	if json.Unmarshal(payload, &w) != nil || !w.Projects.set && w.Error == "" {
		return nil, unreadable("list of projects")
	}
	if w.Error != "" {
		return nil, rejected(string(w.Error), "")
	}
	out := make([]Project, 0, len(w.Projects.v))
	for _, raw := range w.Projects.v {
		var p struct {
			ID   text `json:"projectId"`
			Name text `json:"projectDisplayName"`
			Root text `json:"projectRootPath"`
			Kind text `json:"projectKind"`
		}
		if json.Unmarshal(raw, &p) == nil && p.ID != "" {
			out = append(out, Project{string(p.ID), string(p.Name), string(p.Root), string(p.Kind), slices.Clone(raw)})
		}
	}
	return out, nil
}

// Workspace is a place agents work in.
type Workspace struct {
	ID        string
	ProjectID string
	// Directory is where its agents run, Root the project's directory.
	Directory, Root string
	Kind            string // directory, local_checkout or worktree
	Name, Title     string
	// Status is needs_input, failed, running, attention or done.
	Status string
	Raw    json.RawMessage
}

// WorkspaceQuery asks for a page of active workspaces.
type WorkspaceQuery struct {
	ProjectID string // "" is all
	Limit     int    // 1 to 200; 0 is 200
	Cursor    string // NextCursor of the page before
}

// WorkspacePage is a page of workspaces.
type WorkspacePage struct {
	Workspaces []Workspace
	NextCursor string // "" on the last page
}

// ListWorkspaces reads a page of workspaces.
func (c *Client) ListWorkspaces(ctx context.Context, q WorkspaceQuery) (WorkspacePage, error) {
	page, err := pageOf(q.Limit, q.Cursor)
	if err != nil {
		return WorkspacePage{}, err
	}
	request := fields{"page": page}
	if q.ProjectID != "" {
		request["filter"] = fields{"projectId": q.ProjectID}
	}
	payload, err := c.call(ctx, "fetch_workspaces_request", request)
	if err != nil {
		return WorkspacePage{}, c.unsupportedAs(err, "list_workspaces")
	}
	entries, next, err := decodeEntries(payload, "list of workspaces")
	if err != nil {
		return WorkspacePage{}, err
	}
	out := WorkspacePage{NextCursor: next, Workspaces: make([]Workspace, 0, len(entries))}
	for _, raw := range entries {
		if w, ok := decodeWorkspace(raw); ok {
			out.Workspaces = append(out.Workspaces, w)
		}
	}
	return out, nil
}

// NewWorkspace is a workspace to create: of the directory Path, or with Worktree
// a new worktree of the repository there.
type NewWorkspace struct {
	Path      string
	ProjectID string
	Title     string
	Worktree  *Worktree
	// IdempotencyKey (1 to 512 characters) makes a repeat answer the same
	// workspace. It needs ServerInfo.WorkspaceReceipts, else the call is [Unsupported].
	IdempotencyKey string
}

// Worktree says which worktree. Mode is branch-off, checkout-branch or
// checkout-pr; the fields of the others must be empty.
type Worktree struct {
	Mode string
	// Slug names the directory; a name in use gets a number.
	Slug string
	// BranchName is the new branch of branch-off, BaseBranch what it starts from.
	BranchName, BaseBranch string
	// Branch is what checkout-branch checks out.
	Branch string
	// PRNumber and Forge ("" is the daemon's guess) are what checkout-pr checks out.
	PRNumber int
	Forge    string
}

// CreateWorkspace makes a workspace; two calls without a key make two. Daemons
// before ServerInfo.Workspaces are [Unsupported].
func (c *Client) CreateWorkspace(ctx context.Context, n NewWorkspace) (Workspace, error) {
	if err := c.checkFeature(ctx, ServerInfo.Workspaces, "create_workspace"); err != nil {
		return Workspace{}, err
	}
	if err := c.checkKey(ctx, n.IdempotencyKey, ServerInfo.WorkspaceReceipts, "workspaceRequestReceipts"); err != nil {
		return Workspace{}, err
	}
	source, err := workspaceSource(n)
	if err != nil {
		return Workspace{}, err
	}
	payload, err := c.call(ctx, "workspace.create.request", fields{
		"source": source, "title": omitZero(n.Title), "idempotencyKey": omitZero(n.IdempotencyKey),
	})
	if err != nil {
		return Workspace{}, err
	}
	var w struct {
		Workspace json.RawMessage `json:"workspace"`
		Error     text            `json:"error"`
		ErrorCode text            `json:"errorCode"`
	}
	if json.Unmarshal(payload, &w) != nil {
		return Workspace{}, unreadable("created workspace")
	}
	if w.Error != "" {
		return Workspace{}, rejected(string(w.Error), string(w.ErrorCode))
	}
	workspace, ok := decodeWorkspace(w.Workspace)
	if !ok {
		return Workspace{}, unreadable("created workspace")
	}
	return workspace, nil
}

// workspaceSource is the daemon's source union for n.
func workspaceSource(n NewWorkspace) (fields, error) {
	if n.Worktree == nil {
		return fields{"kind": "directory", "path": n.Path, "projectId": omitZero(n.ProjectID)}, nil
	}
	t := n.Worktree
	source := fields{
		"kind": "worktree", "cwd": omitZero(n.Path), "projectId": omitZero(n.ProjectID), "worktreeSlug": omitZero(t.Slug),
	}
	switch t.Mode {
	case "branch-off", "":
		source["action"] = "branch-off"
		source["branchName"] = omitZero(t.BranchName)
		source["baseBranch"] = omitZero(t.BaseBranch)
		source["refName"] = omitZero(t.BaseBranch)
	case "checkout-branch":
		source["action"] = "checkout"
		source["refName"] = t.Branch
	case "checkout-pr":
		source["action"] = "checkout"
		source["checkoutSource"] = fields{"kind": "change_request", "number": t.PRNumber}
		if t.Forge != "" {
			source["checkoutSource"] = fields{"kind": "change_request", "number": t.PRNumber, "forge": t.Forge}
		}
	default:
		return nil, refuse("A worktree's mode is branch-off, checkout-branch or checkout-pr.")
	}
	return source, nil
}

func decodeWorkspace(raw json.RawMessage) (Workspace, bool) {
	var w struct {
		ID        text `json:"id"`
		ProjectID text `json:"projectId"`
		Directory text `json:"workspaceDirectory"`
		Root      text `json:"projectRootPath"`
		Kind      text `json:"workspaceKind"`
		Name      text `json:"name"`
		Title     text `json:"title"`
		Status    text `json:"status"`
	}
	if len(raw) == 0 || json.Unmarshal(raw, &w) != nil || w.ID == "" {
		return Workspace{}, false
	}
	if w.Directory == "" {
		w.Directory = w.Root
	}
	return Workspace{
		ID: string(w.ID), ProjectID: string(w.ProjectID), Directory: string(w.Directory), Root: string(w.Root),
		Kind: string(w.Kind), Name: string(w.Name), Title: string(w.Title), Status: string(w.Status), Raw: slices.Clone(raw),
	}, true
}
