package agents

import (
	"encoding/json"

	"agentrelay/internal/agents/paseo"
)

// GetAgentResultIn is the arguments of get_agent_result.
type GetAgentResultIn struct {
	OnHost
	AgentID   string          `json:"agentId"`
	Direction paseo.Direction `json:"direction,omitempty"` // "" is tail
	Cursor    *paseo.Cursor   `json:"cursor,omitempty"`
	Limit     *int            `json:"limit,omitempty"` // 1..200, nil is 50
}

// TimelinePage is one page of what an agent and its users said and did. After
// gap, reset or staleCursor nothing may be concluded from rows that are not here.
type TimelinePage struct {
	AgentID             string            `json:"agentId"`
	Direction           paseo.Direction   `json:"direction"`
	Projection          string            `json:"projection,omitempty"`
	Epoch               string            `json:"epoch"`
	Gap                 bool              `json:"gap"`
	Reset               bool              `json:"reset"`
	StaleCursor         bool              `json:"staleCursor"`
	StartCursor         *paseo.Cursor     `json:"startCursor"`
	EndCursor           *paseo.Cursor     `json:"endCursor"`
	HasOlder            bool              `json:"hasOlder"`
	HasNewer            bool              `json:"hasNewer"`
	Entries             []json.RawMessage `json:"entries"`
	Status              paseo.AgentStatus `json:"status,omitempty"`
	FetchedAt           Time              `json:"fetchedAt"`
	RequestedLimit      int               `json:"requestedLimit"`
	Source              string            `json:"source"`
	FullRawEventStream  bool              `json:"fullRawEventStream"` // always false
	GatewayTruncated    bool              `json:"gatewayTruncated"`   // rows at the far end were left out: follow the cursor
	OutputLimitBytes    int               `json:"outputLimitBytes"`
	CompletionConfirmed bool              `json:"completionConfirmed"` // always false
	HostID              string            `json:"hostId"`
}

// WaitForAgentResultIn is the arguments of wait_for_agent_result.
type WaitForAgentResultIn struct {
	OnHost
	RequestID string `json:"requestId"`
	AgentID   string `json:"agentId"`
	TimeoutMs *int   `json:"timeoutMs,omitempty"` // 1000..20000, nil is 10000
	Limit     *int   `json:"limit,omitempty"`     // 1..200, nil is 100
	TurnID    string `json:"turnId,omitempty"`
}

// GetRequestResultIn is the arguments of get_request_result.
type GetRequestResultIn struct {
	OnHost
	RequestID string `json:"requestId"`
	WaitMs    int    `json:"waitMs,omitempty"` // 0..20000
}

// Result is what is known of the run of one prompt. None of it says that the
// task was done.
type Result struct {
	RequestID      string            `json:"requestId"`
	AgentID        string            `json:"agentId,omitempty"`
	WorkspaceID    string            `json:"workspaceId,omitempty"`
	RequestMatched bool              `json:"requestMatched"` // the prompt was found in the agent's timeline
	Status         string            `json:"status"`
	Reason         string            `json:"reason,omitempty"`
	Message        string            `json:"message,omitempty"`
	ReceiptState   State             `json:"receiptState"`
	TurnID         string            `json:"turnId,omitempty"`
	UserMessageID  string            `json:"userMessageId,omitempty"`
	TerminalKind   *string           `json:"terminalKind"` // how the turn was seen to end; null when it was not
	TerminalAt     Time              `json:"terminalAt,omitzero"`
	TerminalSeen   *bool             `json:"terminalDetected"` // null when it can't be known
	SavedResult    bool              `json:"savedResult"`
	LastMessage    *string           `json:"lastMessage"`
	Entries        []json.RawMessage `json:"entries"` // what the agent wrote and did in the turn
	EntriesOmitted int               `json:"entriesOmitted,omitempty"`
	ReadStatus     string            `json:"resultReadStatus,omitempty"` // complete, or needs_pagination
	MarkerCursor   *paseo.Cursor     `json:"markerCursor,omitempty"`     // of the prompt
	EndCursor      *paseo.Cursor     `json:"endCursor,omitempty"`        // of the last entry
	LatestCursor   *paseo.Cursor     `json:"latestCursor,omitempty"`     // of the timeline then
	Pending        []json.RawMessage `json:"pendingPermissions,omitempty"`
	AgentStatus    paseo.AgentStatus `json:"observedAgentState,omitempty"`
	WaitTimedOut   bool              `json:"waitTimedOut,omitempty"`
	RetrySafe      bool              `json:"retrySafe"` // to read again changes nothing

	// Notification says how the caller learns more: subscribed_events or explicit_read.
	NotificationMode       string `json:"notificationMode"`
	AutomaticWakeSupported bool   `json:"automaticWakeSupported"`
	TaskOutcome            string `json:"taskOutcome"`      // always unknown
	TurnOutcome            string `json:"turnOutcome"`      // always unknown
	AcceptancePassed       *bool  `json:"acceptancePassed"` // always null
	HostID                 string `json:"hostId"`
}

// WatchDispatchRequestIn is the arguments of watch_dispatch_request.
type WatchDispatchRequestIn struct {
	OnHost
	RequestID           string `json:"requestId"`
	NotificationRouteID string `json:"notificationRouteId"`
}

// WatchDispatchRequestOut is the answer of watch_dispatch_request.
type WatchDispatchRequestOut struct {
	RequestID           string `json:"requestId"`
	AgentID             string `json:"agentId"`
	WorkspaceID         string `json:"workspaceId"`
	NotificationRouteID string `json:"notificationRouteId"`
	SubscriptionID      string `json:"subscriptionId"`
	Status              string `json:"status"`           // always bound
	AcceptancePassed    *bool  `json:"acceptancePassed"` // always null
	HostID              string `json:"hostId"`
}

// ListNotificationRoutesIn is the arguments of list_notification_routes.
type ListNotificationRoutesIn struct {
	OnHost
	WorkspaceID string `json:"workspaceId,omitempty"`
}

// RouteInfo is a live route. It names no URL and no secret.
type RouteInfo struct {
	SubscriptionID string `json:"subscriptionId"`
	WorkspaceID    string `json:"workspaceId"`
	RouteID        string `json:"routeId"`
	ExpiresAt      Time   `json:"expiresAt"`
	HostID         string `json:"hostId"`
}

// ListNotificationRoutesOut is the answer of list_notification_routes.
type ListNotificationRoutesOut struct {
	Routes []RouteInfo `json:"routes"`
	HostID string      `json:"hostId"`
}

// GetAgentMessageIn is the arguments of get_agent_message.
type GetAgentMessageIn struct {
	OnHost
	MessageID string `json:"messageId"`
}

// AgentMessage is what an agent wrote to the chat that dispatched it. Its text is
// data, never authority.
type AgentMessage struct {
	MessageID        string  `json:"messageId"`
	RequestID        string  `json:"requestId"`
	AgentID          string  `json:"agentId"`
	Kind             string  `json:"kind"`
	Text             string  `json:"text"`
	CreatedAt        Time    `json:"createdAt"`
	Emitted          bool    `json:"emitted"` // an event for it was stored
	WorkspaceID      string  `json:"workspaceId"`
	RouteID          string  `json:"routeId,omitempty"`
	TurnID           *string `json:"turnId"`
	ReplyRequestID   *string `json:"replyRequestId"`
	Source           string  `json:"source"`           // always local-agent-message
	AcceptancePassed *bool   `json:"acceptancePassed"` // always null
	HostID           string  `json:"hostId"`
}
