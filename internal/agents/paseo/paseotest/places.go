package paseotest

import (
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// provider is a configured provider.
type provider struct {
	id, label string
	enabled   bool
}

func providers() []provider {
	return []provider{{"claude", "Claude", false}, {"fake", "Fake", true}, {"fake-replay", "Fake that replays", true}}
}

func findProvider(id string) (provider, bool) {
	for _, p := range providers() {
		if p.id == id {
			return p, true
		}
	}
	return provider{}, false
}

// shown are the providers that the session sees.
func (s *session) shown() []provider {
	return slices.DeleteFunc(providers(), func(p provider) bool { return !s.custom && !builtin[p.id] })
}

func (r *request) availableProviders() (string, members, error) {
	list := []members{}
	for _, p := range r.s.shown() {
		if p.enabled || r.p.level == old {
			list = append(list, members{"provider": p.id, "available": p.enabled, "error": nil})
		}
	}
	return "list_available_providers_response", members{"providers": list, "error": nil, "fetchedAt": stamp()}, nil
}

func (r *request) providersSnapshot() (string, members, error) {
	list := []members{}
	for _, p := range r.s.shown() {
		list = append(list, snapshotEntry(p))
	}
	return "get_providers_snapshot_response", members{"entries": list, "generatedAt": stamp()}, nil
}

func snapshotEntry(p provider) members {
	entry := members{"provider": p.id, "label": p.label, "description": "A provider of tests", "enabled": p.enabled, "status": "unavailable"}
	if p.enabled {
		entry["status"], entry["modes"], entry["models"] = "ready", modes(), models(p.id)
	}
	return entry
}

func models(provider string) []members {
	return []members{
		{"provider": provider, "id": "echo", "label": "Echo", "isDefault": true, "thinkingOptions": []members{{"id": "low", "label": "Low"}}},
		{"provider": provider, "id": "other", "label": "Other"},
	}
}

func (r *request) providerModels() (string, members, error) {
	var q struct {
		Provider string `json:"provider"`
	}
	if err := r.decode(&q); err != nil {
		return "", nil, err
	}
	payload := members{"provider": q.Provider, "fetchedAt": stamp(), "error": nil}
	switch p, known := findProvider(q.Provider); {
	case !known:
		payload["error"] = "Provider " + q.Provider + " is not configured"
	case !p.enabled:
		payload["error"] = "Provider '" + q.Provider + "' is disabled"
	default:
		payload["models"] = models(q.Provider)
	}
	return "list_provider_models_response", payload, nil
}

func (w workspace) wire() members {
	return members{
		"id": w.ID, "projectId": w.ProjectID, "projectDisplayName": filepath.Base(w.Root), "projectRootPath": w.Root,
		"workspaceDirectory": w.Directory, "projectKind": "non_git", "workspaceKind": w.Kind, "name": filepath.Base(w.Directory),
		"title": orNull(w.Title), "status": "done", "activityAt": nil, "archivingAt": nil, "scripts": []members{},
	}
}

// newWorkspace records a workspace. Callers hold p.mu.
func (p *process) newWorkspace(directory, kind, title, key, fingerprint string) workspace {
	root := directory
	w := workspace{
		ID: newID("wks_"), ProjectID: "prj_" + print(root)[:16], Directory: directory, Root: root,
		Kind: kind, Title: title, Key: key, Print: fingerprint,
	}
	p.workspaces[w.ID] = w
	p.put("workspaces", w.ID, w)
	return w
}

func (p *process) sortedWorkspaces() []workspace {
	return slices.SortedFunc(maps.Values(p.workspaces), func(a, b workspace) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
}

func (r *request) fetchWorkspaces() (string, members, error) {
	var q struct {
		Filter struct {
			ProjectID string `json:"projectId"`
		} `json:"filter"`
		Page struct {
			Limit  *int   `json:"limit"`
			Cursor string `json:"cursor"`
		} `json:"page"`
	}
	if err := r.decode(&q); err != nil {
		return "", nil, err
	}
	limit := 200
	if q.Page.Limit != nil {
		limit = *q.Page.Limit
	}
	if limit < 1 || limit > 200 {
		return "", nil, r.unknown()
	}
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	found := slices.DeleteFunc(r.p.sortedWorkspaces(), func(w workspace) bool {
		return q.Filter.ProjectID != "" && w.ProjectID != q.Filter.ProjectID
	})
	from, _ := strconv.Atoi(q.Page.Cursor)
	from = min(max(from, 0), len(found))
	to := min(from+limit, len(found))
	entries := []members{}
	for _, w := range found[from:to] {
		entries = append(entries, w.wire())
	}
	info := members{"nextCursor": nil, "prevCursor": nil, "hasMore": to < len(found)}
	if to < len(found) {
		info["nextCursor"] = strconv.Itoa(to)
	}
	return "fetch_workspaces_response", members{"subscriptionId": nil, "entries": entries, "pageInfo": info}, nil
}

func (r *request) createWorkspace() (string, members, error) {
	var q struct {
		Source struct {
			Kind      string `json:"kind"`
			Path      string `json:"path"`
			CWD       string `json:"cwd"`
			ProjectID string `json:"projectId"`
			Slug      string `json:"worktreeSlug"`
		} `json:"source"`
		Title string `json:"title"`
		Key   string `json:"idempotencyKey"`
	}
	if err := r.decode(&q); err != nil || q.Source.Kind != "directory" && q.Source.Kind != "worktree" {
		return "", nil, r.unknown()
	}
	const kind = "workspace.create.response"
	refused := func(text, code string) (string, members, error) {
		return kind, members{"workspace": nil, "setupTerminalId": nil, "error": text, "errorCode": code}, nil
	}
	if r.p.level < newest {
		q.Key = ""
	}
	if err := r.strike(Journalled); err != nil {
		return "", nil, err
	}
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	fingerprint := print(q)
	for _, w := range r.p.workspaces {
		if q.Key != "" && w.Key == q.Key {
			if w.Print != fingerprint {
				return refused("agent_request_key_conflict", "conflict")
			}
			return kind, members{"workspace": w.wire(), "setupTerminalId": nil, "error": nil}, nil
		}
	}
	path := q.Source.Path
	if q.Source.Kind == "worktree" {
		path = q.Source.CWD
	}
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return refused("Directory not found: "+path, "directory_not_found")
	}
	shape := "directory"
	if q.Source.Kind == "worktree" {
		if _, err := os.Stat(filepath.Join(path, ".git")); err != nil {
			return refused("Not a git repository", "not_git_repo")
		}
		shape = "worktree"
		path = r.p.d.store.worktree(q.Source.Slug)
	}
	w := r.p.newWorkspace(path, shape, q.Title, q.Key, fingerprint)
	return kind, members{"workspace": w.wire(), "setupTerminalId": nil, "error": nil}, nil
}

// worktree makes a directory; a slug that is taken gets a number.
func (s store) worktree(slug string) string {
	if slug == "" {
		slug = newID("wt-")
	}
	for n := 0; ; n++ {
		name := slug
		if n > 0 {
			name = fmt.Sprintf("%s-%d", slug, n)
		}
		path := filepath.Join(s.dir, "worktrees", name)
		if err := os.Mkdir(path, 0o700); err == nil || !os.IsExist(err) {
			return path
		}
	}
}

func (r *request) listProjects() (string, members, error) {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	list, seen := []members{}, map[string]bool{}
	for _, w := range r.p.sortedWorkspaces() {
		if seen[w.ProjectID] {
			continue
		}
		seen[w.ProjectID] = true
		list = append(list, members{"projectId": w.ProjectID, "projectDisplayName": filepath.Base(w.Root), "projectRootPath": w.Root, "projectKind": "non_git"})
	}
	return "project.list.response", members{"projects": list}, nil
}
