package agents

import (
	"context"
	"encoding/json"
	"time"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/store"
)

// Daemon is one host's agent daemon. A [paseo.Client] is one; its errors are
// those of package paseo.
type Daemon interface {
	Info() (paseo.ServerInfo, bool)
	Status() paseo.Status
	Subscribe() *paseo.Subscription
	Watch(ctx context.Context, agentIDs []string) error
	AcceptIdentity(serverID string)

	FetchAgents(context.Context, paseo.AgentQuery) (paseo.AgentPage, error)
	FetchAgent(ctx context.Context, id string) (paseo.Agent, error)
	CreateAgent(context.Context, paseo.NewAgent) (paseo.Agent, error)
	SendMessage(context.Context, paseo.Prompt) error
	CancelAgent(ctx context.Context, id string) error
	UpdateAgent(context.Context, paseo.AgentChange) error
	RespondPermission(context.Context, paseo.PermissionAnswer) error
	AgentActivity(ctx context.Context, id string, limit int) (paseo.AgentActivity, error)
	Timeline(context.Context, paseo.TimelineQuery) (paseo.TimelinePage, error)

	ListProjects(context.Context) ([]paseo.Project, error)
	ListWorkspaces(context.Context, paseo.WorkspaceQuery) (paseo.WorkspacePage, error)
	CreateWorkspace(context.Context, paseo.NewWorkspace) (paseo.Workspace, error)
	ListProviders(ctx context.Context, cwd string) ([]paseo.Provider, error)
	ListModels(ctx context.Context, provider, cwd string) ([]paseo.Model, error)
	ListProfiles(context.Context) ([]json.RawMessage, error)
	InspectProvider(context.Context, paseo.ProviderInspection) (json.RawMessage, error)
}

var _ Daemon = (*paseo.Client)(nil)

// Daemons are the daemons of the configured hosts, by canonical id.
type Daemons interface {
	// HostIDs lists the hosts that have a daemon, the local one first.
	HostIDs() []string
	// Daemon returns the daemon of a host; its refusal, as host_unavailable, says
	// why there is none.
	Daemon(hostID string) (Daemon, error)
}

// Place is a directory as its host sees it.
type Place struct {
	// Path is canonical, with every link resolved; "" when it is outside the roots.
	Path string
	// Directory reports whether it is a directory now. A place inside the roots
	// whose directory is gone still has a Path.
	Directory bool
}

// Roots is the path policy of the hosts.
type Roots interface {
	// Resolve returns a place for each path, in their order, as the host finds it
	// within ctx. It is an error when the host can't be asked: nothing is allowed
	// then.
	Resolve(ctx context.Context, hostID string, paths []string) ([]Place, error)
}

// Events is what tells a chat of an agent.
type Events interface {
	// PublishAttention stores an occasion for the subscriptions of its route, in
	// the transaction of what it reports. told is false when nobody subscribes:
	// then nothing is stored, and the occasion is still owed.
	PublishAttention(tx *store.Tx, a Attention) (told bool, err error)
	// Routes lists the live subscriptions of an owner to agent.attention.
	Routes(q store.Querier, owner string) ([]Route, error)
}

// Attention is one occasion for agent.attention.
type Attention struct {
	Owner         string
	Subject       string // once for ever, for an owner and host
	Kind          string
	RequestID     string
	AgentID       string
	WorkspaceID   string
	RouteID       string
	HostID        string
	TurnID        *string
	MessageID     string
	Summary       string
	ReadyForReply bool
	TerminalKind  *string
}

// Route is a live subscription to agent.attention.
type Route struct {
	SubscriptionID string
	WorkspaceID    string
	RouteID        string
	HostID         string
	ExpiresAt      time.Time
}

// Agents keeps whose agent is whose, and what agents show to come back to the
// gateway.
type Agents interface {
	// Record notes, in the transaction of a dispatch, that an owner works with an
	// agent. It refuses when the agent is another owner's.
	Record(tx *store.Tx, owner, hostID, agentID string) error
	// Owner returns whose an agent is; "" is that it is not known.
	Owner(q store.Querier, hostID, agentID string) (string, error)
	// Issue puts what the agent needs to reach the gateway onto its host.
	Issue(ctx context.Context, hostID, agentID string) error
}

// Mailbox is what this package asks of the mailbox.
type Mailbox interface {
	// Unread reports whether a message still waits for its recipient.
	Unread(q store.Querier, owner, messageID string) (bool, error)
}
