package paseo

import (
	"encoding/json"
	"slices"
)

// AgentStatus is an agent's state in the daemon's words. Values unknown to this
// package are passed on as they are.
type AgentStatus string

// The states. None of them says that a task succeeded; and a record that was
// running when the daemon died still says so (see [TurnAbsent]).
const (
	AgentInitializing AgentStatus = "initializing"
	AgentIdle         AgentStatus = "idle"
	AgentRunning      AgentStatus = "running"
	AgentError        AgentStatus = "error"
	AgentClosed       AgentStatus = "closed"
)

// TurnState is what a snapshot says of a turn in progress.
type TurnState string

// The turn states. Absent means that the daemon has not loaded the agent (it is
// closed, archived, or known from disk after a restart), or is too old to say
// (ServerInfo.TurnIDs): it must never be read as done.
const (
	TurnAbsent TurnState = "absent"
	TurnNone   TurnState = "none"
	TurnActive TurnState = "active"
)

// Agent is a snapshot of an agent. Times are as the daemon wrote them, by its
// clock.
type Agent struct {
	ID          string
	Provider    string
	Model       string
	CWD         string
	WorkspaceID string // "" before 0.5
	Title       string
	Status      AgentStatus
	Labels      map[string]string // never nil
	ModeID      string
	LastError   string

	Turn          TurnState
	TurnID        string // with TurnActive
	TurnStartedAt string // with TurnActive

	PendingPermissions []Permission

	RequiresAttention  bool
	AttentionReason    string // finished, error, permission or ""
	AttentionTimestamp string

	CreatedAt, UpdatedAt, LastUserMessageAt string
	ArchivedAt                              string // "" when not archived

	// ProviderUnavailable: its provider is no longer configured; prompts fail.
	ProviderUnavailable bool

	// Raw is the snapshot as the daemon sent it.
	Raw json.RawMessage
}

// Permission is a question an agent waits for an answer to.
type Permission struct {
	ID       string
	Provider string
	Name     string
	// Kind is tool, plan, question, mode or other.
	Kind        string
	Title       string
	Description string
	// Raw is the whole request as the daemon sent it: input, detail, suggestions, actions.
	Raw json.RawMessage
}

type agentWire struct {
	ID                  text                       `json:"id"`
	Provider            text                       `json:"provider"`
	Model               text                       `json:"model"`
	CWD                 text                       `json:"cwd"`
	WorkspaceID         text                       `json:"workspaceId"`
	Title               text                       `json:"title"`
	Status              text                       `json:"status"`
	Labels              lenient[map[string]any]    `json:"labels"`
	ModeID              text                       `json:"currentModeId"`
	LastError           text                       `json:"lastError"`
	ActiveTurn          json.RawMessage            `json:"activeTurn"`
	PendingPermissions  lenient[[]json.RawMessage] `json:"pendingPermissions"`
	RequiresAttention   lenient[bool]              `json:"requiresAttention"`
	AttentionReason     text                       `json:"attentionReason"`
	AttentionTimestamp  text                       `json:"attentionTimestamp"`
	CreatedAt           text                       `json:"createdAt"`
	UpdatedAt           text                       `json:"updatedAt"`
	LastUserMessageAt   text                       `json:"lastUserMessageAt"`
	ArchivedAt          text                       `json:"archivedAt"`
	ProviderUnavailable lenient[bool]              `json:"providerUnavailable"`
}

// decodeAgent reads a snapshot; ok is false for null and for what has no id.
func decodeAgent(raw json.RawMessage) (a Agent, ok bool) {
	var w agentWire
	if len(raw) == 0 || json.Unmarshal(raw, &w) != nil || w.ID == "" {
		return Agent{}, false
	}
	a = Agent{
		ID: string(w.ID), Provider: string(w.Provider), Model: string(w.Model), CWD: string(w.CWD),
		WorkspaceID: string(w.WorkspaceID), Title: string(w.Title), Status: AgentStatus(w.Status),
		Labels: w.Labels.strings(), ModeID: string(w.ModeID), LastError: string(w.LastError),
		RequiresAttention: w.RequiresAttention.v, AttentionReason: string(w.AttentionReason),
		AttentionTimestamp: string(w.AttentionTimestamp),
		CreatedAt:          string(w.CreatedAt), UpdatedAt: string(w.UpdatedAt),
		LastUserMessageAt: string(w.LastUserMessageAt), ArchivedAt: string(w.ArchivedAt),
		ProviderUnavailable: w.ProviderUnavailable.v,
		Raw:                 slices.Clone(raw),
	}
	a.Turn, a.TurnID, a.TurnStartedAt = decodeTurn(w.ActiveTurn)
	for _, p := range w.PendingPermissions.v {
		if permission, ok := decodePermission(p); ok {
			a.PendingPermissions = append(a.PendingPermissions, permission)
		}
	}
	return a, true
}

// decodeTurn tells a null activeTurn, which is knowledge, from a missing one.
func decodeTurn(raw json.RawMessage) (state TurnState, id, startedAt string) {
	switch {
	case len(raw) == 0:
		return TurnAbsent, "", ""
	case string(raw) == "null":
		return TurnNone, "", ""
	}
	var w struct {
		TurnID    text `json:"turnId"`
		StartedAt text `json:"startedAt"`
	}
	if json.Unmarshal(raw, &w) != nil {
		return TurnAbsent, "", ""
	}
	return TurnActive, string(w.TurnID), string(w.StartedAt)
}

func decodePermission(raw json.RawMessage) (p Permission, ok bool) {
	var w struct {
		ID          text `json:"id"`
		Provider    text `json:"provider"`
		Name        text `json:"name"`
		Kind        text `json:"kind"`
		Title       text `json:"title"`
		Description text `json:"description"`
	}
	if json.Unmarshal(raw, &w) != nil || w.ID == "" {
		return Permission{}, false
	}
	return Permission{
		ID: string(w.ID), Provider: string(w.Provider), Name: string(w.Name), Kind: string(w.Kind),
		Title: string(w.Title), Description: string(w.Description), Raw: slices.Clone(raw),
	}, true
}
