package agents

import (
	"encoding/json"
	"time"

	"agentrelay/internal/agents/paseo"
)

// Time is an instant that JSON shows as RFC 3339 in UTC with milliseconds.
type Time struct{ time.Time }

const timeLayout = "2006-01-02T15:04:05.000Z"

// MarshalJSON implements [json.Marshaler].
func (t Time) MarshalJSON() ([]byte, error) { return json.Marshal(t.String()) }

// UnmarshalJSON reads what [Time.MarshalJSON] writes.
func (t *Time) UnmarshalJSON(b []byte) error { return t.Time.UnmarshalJSON(b) }

// String is the JSON form without quotes.
func (t Time) String() string { return t.UTC().Format(timeLayout) }

// at makes a Time of database milliseconds; 0, which a NULL is read as, is the
// zero Time.
func at(ms int64) Time {
	if ms == 0 {
		return Time{}
	}
	return Time{time.UnixMilli(ms).UTC()}
}

// Limits of arguments. Lengths are in code points.
const (
	MaxPrompt     = 1_000_000
	MaxTitle      = 60
	MaxLabels     = 32
	MaxLabel      = 256
	MaxID         = 256
	MaxPath       = 4096
	MaxMessage    = 8192 // of an agent to the chat that dispatched it
	MaxLimit      = 200
	DefaultLimit  = 50
	DefaultWaitMs = 10_000
	MinTimeoutMs  = 1000
	MaxWaitMs     = 20_000
	maxSummary    = 2000
)

// State is how far a dispatch is known to have come.
type State string

// The states of a receipt. None of them says that a task was done.
const (
	Submitting State = "submitting" // on its way to the daemon
	Submitted  State = "submitted"  // the daemon has it
	Rejected   State = "rejected"   // the daemon said no
	NotSent    State = "not_sent"   // it surely never reached the daemon
	Unknown    State = "unknown"    // it may have run
)

// In what follows HostID is the canonical id of the host. A pointer is an
// argument whose absence differs from its empty value.

// OnHost is an argument list that only says where.
type OnHost struct {
	HostID string `json:"hostId,omitempty"`
}

// On sets the host.
func (o *OnHost) On(hostID string) { o.HostID = hostID }

// Host is the canonical id of the host.
func (o OnHost) Host() string { return o.HostID }

// AgentIn names an agent by its full id.
type AgentIn struct {
	OnHost
	AgentID string `json:"agentId"`
}

// RequestIn names a dispatch by its key.
type RequestIn struct {
	OnHost
	RequestID string `json:"requestId"`
}

// Scope says what a list was filtered by.
type Scope struct {
	Scope            string `json:"scope"` // always allowedRoots
	FilteringApplied bool   `json:"filteringApplied"`
	HostID           string `json:"hostId"`
}

func scopeOf(hostID string) Scope { return Scope{"allowedRoots", true, hostID} }

// Project is a project of a daemon.
type Project struct {
	ProjectID string `json:"projectId"`
	Name      string `json:"name"`
	Kind      string `json:"kind,omitempty"`
	Path      string `json:"path"`
	HostID    string `json:"hostId"`
}

// ListProjectsOut is the answer of list_projects.
type ListProjectsOut struct {
	Projects []Project `json:"projects"`
	Scope
}

// Workspace is a place in which agents work.
type Workspace struct {
	WorkspaceID string `json:"workspaceId"`
	ProjectID   string `json:"projectId,omitempty"`
	CWD         string `json:"cwd,omitempty"`
	Kind        string `json:"kind,omitempty"`
	Name        string `json:"name,omitempty"`
	Title       string `json:"title,omitempty"`
	Status      string `json:"status,omitempty"`
	HostID      string `json:"hostId"`
}

// ListWorkspacesIn is the arguments of list_workspaces.
type ListWorkspacesIn struct {
	OnHost
	ProjectID string  `json:"projectId,omitempty"`
	Limit     *int    `json:"limit,omitempty"` // 1..200, nil is 50
	Cursor    *string `json:"cursor,omitempty"`
}

// ListWorkspacesOut is the answer of list_workspaces.
type ListWorkspacesOut struct {
	Workspaces []Workspace `json:"workspaces"`
	NextCursor string      `json:"nextCursor,omitempty"`
	Scope
}

// CreateWorkspaceIn is the arguments of create_workspace.
type CreateWorkspaceIn struct {
	OnHost
	RequestID    *string `json:"requestId,omitempty"`
	Isolation    string  `json:"isolation"` // local or worktree
	Path         string  `json:"path"`
	ProjectID    string  `json:"projectId,omitempty"`
	Title        string  `json:"title,omitempty"`
	Mode         string  `json:"mode,omitempty"` // branch-off, checkout-branch or checkout-pr
	WorktreeSlug string  `json:"worktreeSlug,omitempty"`
	BranchName   string  `json:"branchName,omitempty"`
	BaseBranch   string  `json:"baseBranch,omitempty"`
	Branch       string  `json:"branch,omitempty"`
	PRNumber     int     `json:"prNumber,omitempty"`
	Forge        string  `json:"forge,omitempty"`
}

// CreateWorkspaceOut is the answer of create_workspace. With a requestId it also
// has what a [Receipt] has.
type CreateWorkspaceOut struct {
	Workspace
	Isolation string `json:"isolation,omitempty"`
	// InsideRoots is false for a worktree that the daemon put where agents may not
	// be given work; its cwd is then left out.
	InsideRoots *bool         `json:"insideRoots,omitempty"`
	RequestID   string        `json:"requestId,omitempty"`
	State       State         `json:"state,omitempty"`
	Duplicate   bool          `json:"duplicate"`
	Message     string        `json:"message,omitempty"`
	Error       *ReceiptError `json:"error,omitempty"`
}

// Settings is how an agent is to run.
type Settings struct {
	ModeID           string         `json:"modeId,omitempty"`
	ThinkingOptionID string         `json:"thinkingOptionId,omitempty"`
	Features         map[string]any `json:"features,omitempty"`
}

// CreateAgentIn is the arguments of create_agent.
type CreateAgentIn struct {
	OnHost
	RequestID           string         `json:"requestId"`
	WorkspaceID         string         `json:"workspaceId"`
	Title               string         `json:"title"`
	Provider            string         `json:"provider"` // provider/model
	InitialPrompt       string         `json:"initialPrompt"`
	Labels              map[string]any `json:"labels,omitempty"` // strings
	Settings            Settings       `json:"settings,omitzero"`
	NotificationRouteID *string        `json:"notificationRouteId,omitempty"`
	Notify              *bool          `json:"notify,omitempty"` // nil is true
}

// SendAgentPromptIn is the arguments of send_agent_prompt.
type SendAgentPromptIn struct {
	OnHost
	RequestID           string  `json:"requestId"`
	AgentID             string  `json:"agentId"`
	Prompt              string  `json:"prompt"`
	SessionMode         string  `json:"sessionMode,omitempty"`
	Interrupt           bool    `json:"interrupt,omitempty"` // replace a run
	ReplyToMessageID    *string `json:"replyToMessageId,omitempty"`
	NotificationRouteID *string `json:"notificationRouteId,omitempty"`
	Notify              *bool   `json:"notify,omitempty"` // nil is true
}

// ReceiptError says why a dispatch did not happen.
type ReceiptError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// Receipt is what is known of a dispatch: of its way to the agent, not of the
// task.
type Receipt struct {
	Found                 bool            `json:"found"`
	RequestID             string          `json:"requestId,omitempty"`
	Tool                  string          `json:"tool,omitempty"`
	State                 State           `json:"state,omitempty"`
	AgentID               string          `json:"agentId,omitempty"`
	WorkspaceID           string          `json:"workspaceId,omitempty"`
	NotificationRouteID   string          `json:"notificationRouteId,omitempty"`
	SubmittedAt           Time            `json:"submittedAt,omitzero"`
	UpdatedAt             Time            `json:"updatedAt,omitzero"`
	UpstreamResult        json.RawMessage `json:"upstreamResult,omitempty"`
	Duplicate             bool            `json:"duplicate"`
	ReplyAlreadySubmitted bool            `json:"replyAlreadySubmitted,omitempty"`
	Message               string          `json:"message,omitempty"`
	Error                 *ReceiptError   `json:"error,omitempty"`
	CompletionConfirmed   bool            `json:"completionConfirmed"` // always false
	HostID                string          `json:"hostId"`
}

// AgentInfo is an agent in a list.
type AgentInfo struct {
	ID                string            `json:"id"`
	Title             string            `json:"title"`
	Provider          string            `json:"provider"`
	Model             string            `json:"model,omitempty"`
	Status            paseo.AgentStatus `json:"status"` // idle is not success
	CWD               string            `json:"cwd"`
	WorkspaceID       string            `json:"workspaceId,omitempty"`
	Labels            map[string]string `json:"labels"`
	CurrentModeID     string            `json:"currentModeId,omitempty"`
	RequestID         string            `json:"requestId,omitempty"` // of the dispatch that created it
	PendingCount      int               `json:"pendingPermissionCount"`
	RequiresAttention bool              `json:"requiresAttention"`
	AttentionReason   string            `json:"attentionReason,omitempty"`
	LastError         string            `json:"lastError,omitempty"`
	CreatedAt         string            `json:"createdAt,omitempty"` // these four by the daemon's clock
	UpdatedAt         string            `json:"updatedAt,omitempty"`
	LastUserMessageAt string            `json:"lastUserMessageAt,omitempty"`
	ArchivedAt        string            `json:"archivedAt,omitempty"`
	HostID            string            `json:"hostId"`
}

// ListAgentsIn is the arguments of list_agents.
type ListAgentsIn struct {
	OnHost
	IncludeArchived bool                `json:"includeArchived,omitempty"`
	CWD             string              `json:"cwd,omitempty"`
	SinceHours      int                 `json:"sinceHours,omitempty"` // 1..720, before the newest change
	Statuses        []paseo.AgentStatus `json:"statuses,omitempty"`
	Limit           *int                `json:"limit,omitempty"` // 1..200, nil is 50
	Cursor          *string             `json:"cursor,omitempty"`
}

// ListAgentsOut is the answer of list_agents, latest change first.
type ListAgentsOut struct {
	Agents     []AgentInfo `json:"agents"`
	NextCursor string      `json:"nextCursor,omitempty"`
	Scope
}

// ActiveTurn is the run in progress.
type ActiveTurn struct {
	TurnID    string `json:"turnId"`
	StartedAt string `json:"startedAt,omitempty"`
}

// Snapshot is an agent in full.
type Snapshot struct {
	AgentInfo
	// Turn is active, none, or absent: the daemon has not loaded the agent, or is
	// too old to say. Absent does not mean that a run has ended.
	Turn               paseo.TurnState   `json:"turn"`
	ActiveTurn         *ActiveTurn       `json:"activeTurn"` // null unless turn is active
	PendingPermissions []json.RawMessage `json:"pendingPermissions"`
}

// GetAgentStatusOut is the answer of get_agent_status.
type GetAgentStatusOut struct {
	Status   paseo.AgentStatus `json:"status"`
	Snapshot Snapshot          `json:"snapshot"`
	HostID   string            `json:"hostId"`
}

// CancelAgentOut is the answer of cancel_agent.
type CancelAgentOut struct {
	AgentID string `json:"agentId"`
	Success bool   `json:"success"` // there was a run, and the daemon took the request to end it
	HostID  string `json:"hostId"`
}

// UpdateAgentIn is the arguments of update_agent.
type UpdateAgentIn struct {
	OnHost
	AgentID  string         `json:"agentId"`
	Name     string         `json:"name,omitempty"`
	Labels   map[string]any `json:"labels,omitempty"` // strings, merged into those there are
	Settings struct {
		ModeID           string          `json:"modeId,omitempty"`
		Model            json.RawMessage `json:"model,omitempty"` // a string, or null for the provider's default
		ThinkingOptionID json.RawMessage `json:"thinkingOptionId,omitempty"`
		Features         map[string]any  `json:"features,omitempty"`
	} `json:"settings,omitzero"`
}

// UpdateAgentOut is the answer of update_agent.
type UpdateAgentOut struct {
	AgentID string `json:"agentId"`
	Success bool   `json:"success"`
	HostID  string `json:"hostId"`
}

// ListProfilesOut is the answer of list_profiles.
type ListProfilesOut struct {
	Profiles []any  `json:"profiles"`
	HostID   string `json:"hostId"`
}

// Provider is a kind of agent.
type Provider struct {
	ID          string `json:"id"`
	Label       string `json:"label,omitempty"`
	Description string `json:"description,omitempty"`
	Enabled     bool   `json:"enabled"`
	Status      string `json:"status,omitempty"`
	Error       string `json:"error,omitempty"`
	Modes       []any  `json:"modes"`
}

// ListProvidersOut is the answer of list_providers.
type ListProvidersOut struct {
	Providers []Provider `json:"providers"`
	HostID    string     `json:"hostId"`
}

// ListModelsIn is the arguments of list_models.
type ListModelsIn struct {
	OnHost
	Provider string `json:"provider"`
}

// ListModelsOut is the answer of list_models.
type ListModelsOut struct {
	Provider string `json:"provider"`
	Models   []any  `json:"models"`
	HostID   string `json:"hostId"`
}

// InspectProviderIn is the arguments of inspect_provider.
type InspectProviderIn struct {
	OnHost
	Provider string         `json:"provider"`
	CWD      string         `json:"cwd"`
	Settings map[string]any `json:"settings,omitempty"`
}

// GetAgentActivityIn is the arguments of get_agent_activity.
type GetAgentActivityIn struct {
	OnHost
	AgentID string `json:"agentId"`
	Limit   int    `json:"limit,omitempty"`
}

// GetAgentActivityOut is the answer of get_agent_activity.
type GetAgentActivityOut struct {
	AgentID       string `json:"agentId"`
	UpdateCount   int    `json:"updateCount"`
	CurrentModeID string `json:"currentModeId,omitempty"`
	Content       string `json:"content"`
	Truncated     bool   `json:"truncated,omitempty"` // the beginning was left out
	HostID        string `json:"hostId"`
}

// PendingPermission is a question that an agent asks.
type PendingPermission struct {
	AgentID string            `json:"agentId"`
	Status  paseo.AgentStatus `json:"status"`
	Request json.RawMessage   `json:"request"`
	HostID  string            `json:"hostId"`
}

// ListPendingPermissionsOut is the answer of list_pending_permissions.
type ListPendingPermissionsOut struct {
	Permissions []PendingPermission `json:"permissions"`
	Scope
}

// RespondToPermissionIn is the arguments of respond_to_permission.
type RespondToPermissionIn struct {
	OnHost
	AgentID   string          `json:"agentId"`
	RequestID string          `json:"requestId"` // the permission's id
	Response  json.RawMessage `json:"response"`
}

// RespondToPermissionOut is the answer of respond_to_permission.
type RespondToPermissionOut struct {
	AgentID   string `json:"agentId"`
	RequestID string `json:"requestId"`
	Behavior  string `json:"behavior"`
	State     State  `json:"state"` // submitted, or unknown
	Duplicate bool   `json:"duplicate"`
	Message   string `json:"message,omitempty"`
	HostID    string `json:"hostId"`
}
