package agents

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/callerid"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// readBudget bounds what one read asks of a daemon and of its host.
const readBudget = 15 * time.Second

// maxPages is how many pages of a daemon one list looks through for what is
// inside the roots.
const maxPages = 25

func checkRequestID(name, id string) error {
	if !callerid.Valid(id) {
		return fault.InvalidArguments.New(name + " " + callerid.Rule)
	}
	return nil
}

func checkLimit(limit *int, standard int) (int, error) {
	if limit == nil {
		return standard, nil
	}
	if *limit < 1 || *limit > MaxLimit {
		return 0, fault.InvalidArguments.Newf("limit must be 1 to %d", MaxLimit)
	}
	return *limit, nil
}

// within refuses a directory outside the roots of its host, and returns its
// canonical path.
func (s *Service) within(ctx context.Context, hostID, path string) (string, error) {
	places, err := s.roots.Resolve(ctx, hostID, []string{path})
	if err != nil {
		return "", err
	}
	switch {
	case places[0].Path == "":
		return "", PathNotAllowed.New("The directory is outside allowedRoots of this host, or is none.")
	case !places[0].Directory:
		return "", PathNotAllowed.New("There is no such directory on this host.")
	}
	return places[0].Path, nil
}

// inside asks once for many agents or workspaces which of them lie inside the
// roots; the result has their canonical paths, "" for those outside.
func (s *Service) inside(ctx context.Context, hostID string, paths []string) ([]string, error) {
	if len(paths) == 0 {
		return nil, nil
	}
	places, err := s.roots.Resolve(ctx, hostID, paths)
	if err != nil {
		return nil, err
	}
	out := make([]string, len(paths))
	for i, p := range places {
		out[i] = p.Path
	}
	return out, nil
}

// agentOf reads an agent by its full id; one outside the roots, and one that works
// for another owner, do not exist for callers. Its CWD is canonical.
func (s *Service) agentOf(ctx context.Context, owner string, d Daemon, hostID, agentID string) (paseo.Agent, error) {
	if agentID == "" || len(agentID) > MaxID {
		return paseo.Agent{}, fault.InvalidArguments.Newf("agentId must have 1 to %d characters", MaxID)
	}
	a, err := d.FetchAgent(ctx, agentID)
	if err != nil && !paseo.RejectedAs(err, paseo.CodeAgentNotFound) {
		return paseo.Agent{}, refusal(ctx, err, hostID, false)
	}
	var shown []paseo.Agent
	if err == nil {
		if shown, err = s.shownAgents(ctx, owner, hostID, []paseo.Agent{a}); err != nil {
			return paseo.Agent{}, err
		}
	}
	if len(shown) == 0 {
		return paseo.Agent{}, AgentNotFound.New("No agent of this id works for this client inside allowedRoots of this host.")
	}
	return shown[0], nil
}

// reading is a daemon, and the time that a read of it may take.
func (s *Service) reading(ctx context.Context, hostID string) (Daemon, context.Context, context.CancelFunc, error) {
	d, err := s.daemons.Daemon(hostID)
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readBudget)
	return d, ctx, cancel, nil
}

// ListProjects lists the daemon's projects inside the roots.
func (s *Service) ListProjects(ctx context.Context, _ principal.Principal, in OnHost) (ListProjectsOut, error) {
	d, ctx, cancel, err := s.reading(ctx, in.HostID)
	if err != nil {
		return ListProjectsOut{}, err
	}
	defer cancel()
	all, err := d.ListProjects(ctx)
	if err != nil {
		return ListProjectsOut{}, refusal(ctx, err, in.HostID, false)
	}
	roots := make([]string, len(all))
	for i, p := range all {
		roots[i] = p.Root
	}
	paths, err := s.inside(ctx, in.HostID, roots)
	out := ListProjectsOut{Projects: []Project{}, Scope: scopeOf(in.HostID)}
	for i, path := range paths {
		if p := all[i]; path != "" {
			out.Projects = append(out.Projects, Project{p.ID, p.Name, p.Kind, path, in.HostID})
		}
	}
	return out, err
}

func workspaceOf(w paseo.Workspace, cwd, hostID string) Workspace {
	return Workspace{w.ID, w.ProjectID, cwd, w.Kind, w.Name, w.Title, w.Status, hostID}
}

// ListWorkspaces lists the active workspaces inside the roots.
func (s *Service) ListWorkspaces(ctx context.Context, _ principal.Principal, in ListWorkspacesIn) (ListWorkspacesOut, error) {
	limit, err := checkLimit(in.Limit, DefaultLimit)
	if err != nil {
		return ListWorkspacesOut{}, err
	}
	d, ctx, cancel, err := s.reading(ctx, in.HostID)
	if err != nil {
		return ListWorkspacesOut{}, err
	}
	defer cancel()
	out := ListWorkspacesOut{Workspaces: []Workspace{}, Scope: scopeOf(in.HostID)}
	q := paseo.WorkspaceQuery{ProjectID: in.ProjectID, Cursor: deref(in.Cursor)}
	for range maxPages {
		q.Limit = limit - len(out.Workspaces)
		page, err := d.ListWorkspaces(ctx, q)
		if err != nil {
			return ListWorkspacesOut{}, listRefusal(ctx, err, in.HostID, in.Cursor)
		}
		dirs := make([]string, len(page.Workspaces))
		for i, w := range page.Workspaces {
			dirs[i] = w.Directory
		}
		paths, err := s.inside(ctx, in.HostID, dirs)
		if err != nil {
			return ListWorkspacesOut{}, err
		}
		for i, path := range paths {
			if path != "" {
				out.Workspaces = append(out.Workspaces, workspaceOf(page.Workspaces[i], path, in.HostID))
			}
		}
		q.Cursor, out.NextCursor = page.NextCursor, page.NextCursor
		if page.NextCursor == "" || len(out.Workspaces) >= limit {
			break
		}
	}
	return out, nil
}

// listRefusal is the refusal of a page: a cursor that the daemon does not take is
// the caller's.
func listRefusal(ctx context.Context, err error, hostID string, cursor *string) error {
	var rejected *paseo.Rejected
	if cursor != nil && errors.As(err, &rejected) {
		return fault.InvalidCursor.New("cursor is none that this daemon gave, or it has forgotten it.").Because(err)
	}
	return refusal(ctx, err, hostID, false)
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// listCursor continues a list of agents.
type listCursor struct {
	Daemon string `json:"d"`
	Newest string `json:"n"` // the latest change of the whole list, by the daemon's clock
}

func (c listCursor) String() string {
	raw, err := json.Marshal(c)
	if err != nil {
		panic(err) // strings always encode
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}

func readListCursor(s *string) (c listCursor, err error) {
	if s == nil {
		return c, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(*s)
	if err != nil || json.Unmarshal(raw, &c) != nil || c.Daemon == "" {
		return c, fault.InvalidCursor.New("cursor is none that list_agents gave.")
	}
	return c, nil
}

// ListAgents lists the agents inside the roots, latest change first. Those that
// are outside take no place of those inside.
func (s *Service) ListAgents(ctx context.Context, who principal.Principal, in ListAgentsIn) (ListAgentsOut, error) {
	limit, err := checkLimit(in.Limit, DefaultLimit)
	if err != nil {
		return ListAgentsOut{}, err
	}
	cursor, err := readListCursor(in.Cursor)
	if err != nil {
		return ListAgentsOut{}, err
	}
	d, ctx, cancel, err := s.reading(ctx, in.HostID)
	if err != nil {
		return ListAgentsOut{}, err
	}
	defer cancel()
	below := ""
	if in.CWD != "" {
		if below, err = s.within(ctx, in.HostID, in.CWD); err != nil {
			return ListAgentsOut{}, err
		}
	}
	out := ListAgentsOut{Agents: []AgentInfo{}, Scope: scopeOf(in.HostID)}
	q := paseo.AgentQuery{Statuses: in.Statuses, IncludeArchived: in.IncludeArchived, Cursor: cursor.Daemon}
	for range maxPages {
		q.Limit = limit - len(out.Agents)
		page, err := d.FetchAgents(ctx, q)
		if err != nil {
			return ListAgentsOut{}, listRefusal(ctx, err, in.HostID, in.Cursor)
		}
		more, err := s.shownAgents(ctx, who.Owner, in.HostID, page.Agents)
		if err != nil {
			return ListAgentsOut{}, err
		}
		for _, a := range page.Agents {
			cursor.Newest = max(cursor.Newest, a.UpdatedAt)
		}
		for _, a := range more {
			if (below == "" || isBelow(a.CWD, below)) && recent(a.UpdatedAt, cursor.Newest, in.SinceHours) {
				out.Agents = append(out.Agents, infoOf(a, in.HostID))
			}
		}
		q.Cursor, cursor.Daemon, out.NextCursor = page.NextCursor, page.NextCursor, ""
		if page.NextCursor == "" {
			break
		}
		out.NextCursor = cursor.String()
		if len(out.Agents) >= limit {
			break
		}
	}
	return out, nil
}

// shownAgents keeps the agents inside the roots that work for this owner or for
// nobody, with canonical directories.
func (s *Service) shownAgents(ctx context.Context, owner, hostID string, all []paseo.Agent) (kept []paseo.Agent, err error) {
	dirs := make([]string, len(all))
	for i, a := range all {
		dirs[i] = a.CWD
	}
	paths, err := s.inside(ctx, hostID, dirs)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	err = store.Read(ctx, s.store, func(q *store.Reader) error {
		for i, a := range all {
			if a.CWD = paths[i]; a.CWD == "" {
				continue
			}
			others, err := s.isOthers(q, owner, hostID, a.ID)
			if err != nil {
				return err
			}
			if !others {
				kept = append(kept, a)
			}
		}
		return nil
	})
	return kept, err
}

// isOthers reports whether an agent is another owner's: by the record, else by its
// latest prompt.
func (s *Service) isOthers(q store.Querier, owner, hostID, agentID string) (bool, error) {
	last, err := s.agents.Owner(q, hostID, agentID)
	if err != nil {
		return false, fmt.Errorf("asking whose an agent is: %w", err)
	}
	if last != "" {
		return last != owner, nil
	}
	err = q.QueryRow(`SELECT owner FROM dispatches WHERE host_id = ? AND agent_id = ? ORDER BY id DESC LIMIT 1`, hostID, agentID).Scan(&last)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading whose an agent is: %w", err)
	}
	return last != owner, nil
}

// recent compares two times of one daemon.
func recent(updatedAt, newest string, hours int) bool {
	if hours == 0 {
		return true
	}
	a, errA := time.Parse(time.RFC3339, updatedAt)
	b, errB := time.Parse(time.RFC3339, newest)
	return errA != nil || errB != nil || b.Sub(a) <= time.Duration(hours)*time.Hour
}

// isBelow reports whether a clean path is root or lies below it.
func isBelow(path, root string) bool {
	return path == root || strings.HasPrefix(path, strings.TrimSuffix(root, "/")+"/")
}

// The labels that say which dispatch created an agent.
const (
	requestLabel  = "agentRelayRequestId"
	dispatchLabel = "agentRelayDispatch" // a UUID of the dispatch: requestIds are an owner's own
	formerLabel   = "dotRequestId"       // of the gateway before this one
)

func infoOf(a paseo.Agent, hostID string) AgentInfo {
	request := a.Labels[requestLabel]
	if request == "" {
		request = a.Labels[formerLabel]
	}
	return AgentInfo{
		ID: a.ID, Title: a.Title, Provider: a.Provider, Model: a.Model, Status: a.Status, CWD: a.CWD, WorkspaceID: a.WorkspaceID,
		Labels: a.Labels, CurrentModeID: a.ModeID, RequestID: request, PendingCount: len(a.PendingPermissions),
		RequiresAttention: a.RequiresAttention, AttentionReason: a.AttentionReason, LastError: shownText(a.LastError, 1000),
		CreatedAt: a.CreatedAt, UpdatedAt: a.UpdatedAt, LastUserMessageAt: a.LastUserMessageAt, ArchivedAt: a.ArchivedAt, HostID: hostID,
	}
}

func permissionsOf(a paseo.Agent) []json.RawMessage {
	out := []json.RawMessage{}
	for _, p := range a.PendingPermissions {
		out = append(out, p.Raw)
	}
	return out
}

// GetAgentStatus reads one agent; it loads nothing.
func (s *Service) GetAgentStatus(ctx context.Context, who principal.Principal, in AgentIn) (GetAgentStatusOut, error) {
	in.AgentID = lowerUUID(in.AgentID)
	d, ctx, cancel, err := s.reading(ctx, in.HostID)
	if err != nil {
		return GetAgentStatusOut{}, err
	}
	defer cancel()
	a, err := s.agentOf(ctx, who.Owner, d, in.HostID, in.AgentID)
	if err != nil {
		return GetAgentStatusOut{}, err
	}
	snap := Snapshot{AgentInfo: infoOf(a, in.HostID), Turn: a.Turn, PendingPermissions: permissionsOf(a)}
	if a.Turn == paseo.TurnActive {
		snap.ActiveTurn = &ActiveTurn{a.TurnID, a.TurnStartedAt}
	}
	return GetAgentStatusOut{a.Status, snap, in.HostID}, nil
}

// maxActivity is how much of an agent's activity is answered, in bytes.
const maxActivity = 256 << 10

// GetAgentActivity reads the daemon's own summary of what an agent did. It makes
// the daemon load the agent.
func (s *Service) GetAgentActivity(ctx context.Context, who principal.Principal, in GetAgentActivityIn) (GetAgentActivityOut, error) {
	in.AgentID = lowerUUID(in.AgentID)
	d, ctx, cancel, err := s.reading(ctx, in.HostID)
	if err != nil {
		return GetAgentActivityOut{}, err
	}
	defer cancel()
	if _, err := s.agentOf(ctx, who.Owner, d, in.HostID, in.AgentID); err != nil {
		return GetAgentActivityOut{}, err
	}
	if err := s.lookFirst(ctx, d, in.HostID, in.AgentID); err != nil {
		return GetAgentActivityOut{}, err
	}
	a, err := d.AgentActivity(ctx, in.AgentID, in.Limit)
	if err != nil {
		return GetAgentActivityOut{}, refusal(ctx, err, in.HostID, false)
	}
	out := GetAgentActivityOut{AgentID: in.AgentID, UpdateCount: a.Updates, CurrentModeID: a.ModeID, Content: a.Content, HostID: in.HostID}
	if n := len(a.Content); n > maxActivity {
		out.Content, out.Truncated = strings.ToValidUTF8(a.Content[n-maxActivity:], ""), true
	}
	return out, nil
}

// ListPendingPermissions lists what agents inside the roots ask.
func (s *Service) ListPendingPermissions(ctx context.Context, who principal.Principal, in OnHost) (ListPendingPermissionsOut, error) {
	d, ctx, cancel, err := s.reading(ctx, in.HostID)
	if err != nil {
		return ListPendingPermissionsOut{}, err
	}
	defer cancel()
	out := ListPendingPermissionsOut{Permissions: []PendingPermission{}, Scope: scopeOf(in.HostID)}
	for q := (paseo.AgentQuery{}); ; {
		page, err := d.FetchAgents(ctx, q)
		if err != nil {
			return ListPendingPermissionsOut{}, refusal(ctx, err, in.HostID, false)
		}
		asking := slices.DeleteFunc(page.Agents, func(a paseo.Agent) bool { return len(a.PendingPermissions) == 0 })
		if asking, err = s.shownAgents(ctx, who.Owner, in.HostID, asking); err != nil {
			return ListPendingPermissionsOut{}, err
		}
		for _, a := range asking {
			for _, p := range a.PendingPermissions {
				out.Permissions = append(out.Permissions, PendingPermission{a.ID, a.Status, p.Raw, in.HostID})
			}
		}
		if q.Cursor = page.NextCursor; q.Cursor == "" {
			return out, nil
		}
	}
}
