package paseo

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
)

// AgentQuery asks for a page of agents.
type AgentQuery struct {
	// Labels that an agent must have, all of them, exactly.
	Labels map[string]string
	// Statuses, none of which filters nothing.
	Statuses        []AgentStatus
	IncludeArchived bool
	// Limit is 1 to 200; 0 is 200. Cursor is the NextCursor of the page before.
	Limit  int
	Cursor string
}

// AgentPage is a page of agents, newest change first.
type AgentPage struct {
	Agents     []Agent
	NextCursor string // "" on the last page
}

// FetchAgents reads a page of agents. It loads none of them.
func (c *Client) FetchAgents(ctx context.Context, q AgentQuery) (AgentPage, error) {
	filter := fields{"includeArchived": q.IncludeArchived}
	if len(q.Labels) > 0 {
		filter["labels"] = q.Labels
	}
	if len(q.Statuses) > 0 {
		filter["statuses"] = q.Statuses
	}
	page, err := pageOf(q.Limit, q.Cursor)
	if err != nil {
		return AgentPage{}, err
	}
	payload, err := c.call(ctx, "fetch_agents_request", fields{
		"filter": filter, "page": page, "sort": []fields{{"key": "updated_at", "direction": "desc"}},
	})
	if err != nil {
		return AgentPage{}, err
	}
	entries, next, err := decodeEntries(payload, "list of agents")
	if err != nil {
		return AgentPage{}, err
	}
	out := AgentPage{NextCursor: next, Agents: make([]Agent, 0, len(entries))}
	for _, raw := range entries {
		var entry struct {
			Agent json.RawMessage `json:"agent"`
		}
		if json.Unmarshal(raw, &entry) != nil {
			continue
		}
		if agent, ok := decodeAgent(entry.Agent); ok {
			out.Agents = append(out.Agents, agent)
		}
	}
	return out, nil
}

// FetchAgent reads one agent by its full id; it does not load it. The daemon
// would accept a prefix or a title too, this does not: such an answer, like
// none, is [Rejected] with CodeAgentNotFound.
func (c *Client) FetchAgent(ctx context.Context, id string) (Agent, error) {
	payload, err := c.call(ctx, "fetch_agent_request", fields{"agentId": id})
	if err != nil {
		return Agent{}, notFoundAs(err)
	}
	var w struct {
		Agent json.RawMessage `json:"agent"`
		Error text            `json:"error"`
	}
	if json.Unmarshal(payload, &w) != nil {
		return Agent{}, unreadable("agent")
	}
	agent, ok := decodeAgent(w.Agent)
	if !ok || agent.ID != id {
		return Agent{}, &Rejected{Message: string(w.Error), Code: CodeAgentNotFound}
	}
	return agent, nil
}

// NewAgent is an agent to create.
type NewAgent struct {
	Provider string
	Model    string // "" is the provider's default; unknown ones are accepted by the daemon
	CWD      string // ignored by the daemon when WorkspaceID is set
	// WorkspaceID needs ServerInfo.Workspaces.
	WorkspaceID string
	// Title should be set: without one daemons ask a provider to invent one.
	Title            string
	ModeID           string
	ThinkingOptionID string
	Features         map[string]any
	Labels           map[string]string
	// Prompt is the first prompt; none makes an idle agent.
	Prompt string
	// ClientMessageID is the first prompt's id.
	ClientMessageID string
	// IdempotencyKey (1 to 512 characters) makes a repeat answer the same agent,
	// over restarts of the daemon. It needs ServerInfo.RequestReceipts, else the
	// call is [Unsupported], and no Prompt: send that with [Client.SendMessage].
	IdempotencyKey string
}

// CreateAgent makes an agent. A repeat without IdempotencyKey makes another one.
func (c *Client) CreateAgent(ctx context.Context, a NewAgent) (Agent, error) {
	if err := c.checkKey(ctx, a.IdempotencyKey, ServerInfo.RequestReceipts, "agentRequestReceipts"); err != nil {
		return Agent{}, err
	}
	if a.IdempotencyKey != "" && a.Prompt != "" {
		return Agent{}, refuse("An agent created with a key takes its prompt in a second call.")
	}
	config := fields{
		"provider": a.Provider, "cwd": a.CWD, "model": omitZero(a.Model), "modeId": omitZero(a.ModeID),
		"title": omitZero(a.Title), "thinkingOptionId": omitZero(a.ThinkingOptionID),
	}
	if len(a.Features) > 0 {
		config["featureValues"] = a.Features
	}
	labels := a.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	payload, err := c.call(ctx, "create_agent_request", fields{
		"config": config, "labels": labels, "workspaceId": omitZero(a.WorkspaceID), "initialPrompt": omitZero(a.Prompt),
		"clientMessageId": omitZero(a.ClientMessageID), "idempotencyKey": omitZero(a.IdempotencyKey),
	})
	if err != nil {
		return Agent{}, err
	}
	var w struct {
		Status    text            `json:"status"`
		Agent     json.RawMessage `json:"agent"`
		AgentID   text            `json:"agentId"`
		Error     text            `json:"error"`
		ErrorCode text            `json:"errorCode"`
	}
	if json.Unmarshal(payload, &w) != nil {
		return Agent{}, unreadable("created agent")
	}
	if w.Status == "agent_create_failed" {
		return Agent{}, rejected(string(w.Error), string(w.ErrorCode))
	}
	if agent, ok := decodeAgent(w.Agent); ok {
		return agent, nil
	}
	if w.AgentID != "" {
		return Agent{ID: string(w.AgentID), Labels: map[string]string{}, Turn: TurnAbsent}, nil
	}
	return Agent{}, unreadable("created agent")
}

// Prompt is a prompt for an agent.
type Prompt struct {
	AgentID string // full id
	Text    string
	// MessageID names the prompt. With ServerInfo.RequestReceipts it runs once per
	// agent, over restarts. Without, it must never be used twice: the daemon would
	// run it again and hide the second message.
	MessageID string
	// Steer asks for the text to be added to the running turn where the provider
	// can; else it replaces the run, as every prompt to a running agent does.
	Steer bool
}

// SendMessage gives an agent a prompt; nil means that the daemon accepted it. It
// replaces a run in progress, cancels a pending permission, and revives a closed
// or archived agent: look first.
func (c *Client) SendMessage(ctx context.Context, p Prompt) error {
	request := fields{"agentId": p.AgentID, "text": p.Text, "messageId": omitZero(p.MessageID)}
	if p.Steer {
		request["activeTurnBehavior"] = "steer"
	}
	return c.act(ctx, "send_agent_message_request", request)
}

// CancelAgent stops the run in progress; none is no error. The agent ends idle,
// with attention "finished", as if it had completed: only its TurnChanged event
// tells.
func (c *Client) CancelAgent(ctx context.Context, id string) error {
	_, err := c.call(ctx, "cancel_agent_request", fields{"agentId": id})
	return notFoundAs(err)
}

// ArchiveAgent closes an agent and drops its timeline.
func (c *Client) ArchiveAgent(ctx context.Context, id string) error {
	_, err := c.call(ctx, "archive_agent_request", fields{"agentId": id})
	return notFoundAs(err)
}

// AgentActivity is the daemon's curated text of an agent's recent doings, over
// MCP. It loads the agent, as [Client.Timeline] does.
type AgentActivity struct {
	AgentID string
	Updates int
	ModeID  string
	Content string
	// Raw is the whole answer.
	Raw json.RawMessage
}

// AgentActivity reads it; limit 0 is the daemon's default.
func (c *Client) AgentActivity(ctx context.Context, id string, limit int) (AgentActivity, error) {
	raw, err := c.callMCP(ctx, "get_agent_activity", fields{"agentId": id, "limit": omitZero(limit)})
	if err != nil {
		return AgentActivity{}, notFoundAs(err)
	}
	var w struct {
		AgentID text         `json:"agentId"`
		Updates lenient[int] `json:"updateCount"`
		ModeID  text         `json:"currentModeId"`
		Content text         `json:"content"`
	}
	if json.Unmarshal(raw, &w) != nil {
		return AgentActivity{}, unreadable("agent activity")
	}
	return AgentActivity{AgentID: string(w.AgentID), Updates: w.Updates.v, ModeID: string(w.ModeID), Content: string(w.Content), Raw: raw}, nil
}

// notFoundAs gives the daemon's several texts for an unknown agent one code.
func notFoundAs(err error) error {
	var r *Rejected
	if !errors.As(err, &r) || r.Code == CodeAgentNotFound {
		return err
	}
	m := strings.TrimSpace(r.Message)
	if strings.Contains(m, "Agent not found") || strings.HasPrefix(m, "Agent ") && strings.HasSuffix(m, " not found") {
		return &Rejected{Message: r.Message, Code: CodeAgentNotFound, Applied: r.Applied}
	}
	return err
}
