package paseotest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// request is one message of a client that wants an answer.
type request struct {
	ctx  context.Context
	s    *session
	p    *process
	kind string
	id   string
	raw  json.RawMessage
}

// rpcError is answered as rpc_error.
type rpcError struct{ code, text, requestID string }

func (e *rpcError) Error() string { return e.text }

// handler does a request and returns the type and payload of its answer. since is
// the first level that has it.
type handler struct {
	since level
	do    func(*request) (string, members, error)
}

func handlers() map[string]handler {
	return map[string]handler{
		"fetch_agents_request":                    {old, (*request).fetchAgents},
		"fetch_agent_request":                     {old, (*request).fetchAgent},
		"create_agent_request":                    {old, (*request).createAgent},
		"send_agent_message_request":              {old, (*request).sendMessage},
		"wait_for_finish_request":                 {old, (*request).waitForFinish},
		"fetch_agent_timeline_request":            {old, (*request).timeline},
		"agent_permission_response":               {old, (*request).permission},
		"cancel_agent_request":                    {old, (*request).cancelAgent},
		"archive_agent_request":                   {old, (*request).archiveAgent},
		"update_agent_request":                    {old, (*request).updateAgent},
		"set_agent_mode_request":                  {old, (*request).setAgent},
		"set_agent_model_request":                 {old, (*request).setAgent},
		"set_agent_thinking_request":              {old, (*request).setAgent},
		"set_agent_feature_request":               {old, (*request).setAgent},
		"list_available_providers_request":        {old, (*request).availableProviders},
		"get_providers_snapshot_request":          {old, (*request).providersSnapshot},
		"list_provider_models_request":            {old, (*request).providerModels},
		"fetch_workspaces_request":                {old, (*request).fetchWorkspaces},
		"workspace.create.request":                {middle, (*request).createWorkspace},
		"project.list.request":                    {middle, (*request).listProjects},
		"daemon.get_status.request":               {middle, (*request).daemonStatus},
		"agent.timeline.set_subscription.request": {middle, (*request).setTimelines},
	}
}

// serve does the request and answers it.
func (r *request) serve() {
	kind, payload, err := r.do()
	if errors.Is(err, errNoAnswer) {
		return
	}
	var failed *rpcError
	if errors.As(err, &failed) {
		id := r.id
		if failed.requestID != "" {
			id = failed.requestID
		}
		kind, payload = "rpc_error", members{"requestId": id, "requestType": r.kind, "error": failed.text, "code": failed.code}
	} else if err != nil {
		kind, payload = "rpc_error", members{"requestId": r.id, "requestType": r.kind, "error": err.Error(), "code": "handler_error"}
	}
	if kind == "" {
		return
	}
	if kind != "rpc_error" {
		payload["requestId"] = r.id
		if r.strike(Completed) != nil {
			return
		}
	}
	r.s.push(kind, payload)
}

func (r *request) do() (string, members, error) {
	h, known := handlers()[r.kind]
	if !known || r.p.level < h.since || r.id == "" {
		return "", nil, r.unknown()
	}
	if err := r.strike(Received); err != nil {
		return "", nil, err
	}
	return h.do(r)
}

func (r *request) strike(stage Stage) error { return r.p.strike(r.s, r.kind, stage) }

// unknown is the answer to unknown requests and to bad arguments alike.
func (r *request) unknown() error {
	return &rpcError{code: "unknown_schema", text: r.p.level.unknownRequest(r.p.d.o.Version)}
}

// decode reads the arguments.
func (r *request) decode(v any) error {
	if json.Unmarshal(r.raw, v) != nil {
		return r.unknown()
	}
	return nil
}

// agent resolves an agent that the session sees. Callers hold p.mu.
func (r *request) agent(key string) (*agent, error) {
	a := r.p.find(r.s, key)
	if a == nil {
		return nil, &rpcError{code: "handler_error", text: "Agent not found: " + key}
	}
	return a, nil
}

func (r *request) fetchAgents() (string, members, error) {
	var q struct {
		Filter struct {
			Labels          map[string]string `json:"labels"`
			Statuses        []string          `json:"statuses"`
			IncludeArchived bool              `json:"includeArchived"`
		} `json:"filter"`
		Page struct {
			Limit  *int   `json:"limit"`
			Cursor string `json:"cursor"`
		} `json:"page"`
		Subscribe *struct {
			SubscriptionID string `json:"subscriptionId"`
		} `json:"subscribe"`
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
	var found []*agent
	for _, a := range r.p.agents {
		if r.s.sees(a) && (q.Filter.IncludeArchived || a.rec.ArchivedAt == "") && labelled(a, q.Filter.Labels) &&
			(len(q.Filter.Statuses) == 0 || slices.Contains(q.Filter.Statuses, a.rec.Status)) {
			found = append(found, a)
		}
	}
	slices.SortFunc(found, func(a, b *agent) int {
		if a.rec.UpdatedAt != b.rec.UpdatedAt {
			if a.rec.UpdatedAt > b.rec.UpdatedAt {
				return -1
			}
			return 1
		}
		if a.rec.ID < b.rec.ID {
			return -1
		}
		return 1
	})
	from, _ := strconv.Atoi(q.Page.Cursor)
	from = min(max(from, 0), len(found))
	to := min(from+limit, len(found))
	entries := []members{}
	for _, a := range found[from:to] {
		entries = append(entries, members{"agent": r.p.snapshot(a), "project": nil})
	}
	info := members{"nextCursor": nil, "prevCursor": nil, "hasMore": to < len(found)}
	if to < len(found) {
		info["nextCursor"] = strconv.Itoa(to)
	}
	var subscription any
	if q.Subscribe != nil {
		subscription = q.Subscribe.SubscriptionID
		r.s.mu.Lock()
		r.s.listed = true
		r.s.mu.Unlock()
	}
	return "fetch_agents_response", members{"subscriptionId": subscription, "entries": entries, "pageInfo": info}, nil
}

func labelled(a *agent, labels map[string]string) bool {
	for key, value := range labels {
		if a.rec.Labels[key] != value {
			return false
		}
	}
	return true
}

func (r *request) fetchAgent() (string, members, error) {
	var q struct {
		AgentID string `json:"agentId"`
	}
	if err := r.decode(&q); err != nil {
		return "", nil, err
	}
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	a := r.p.find(r.s, q.AgentID)
	if a == nil {
		return "fetch_agent_response", members{"agent": nil, "project": nil, "error": "Agent not found: " + q.AgentID}, nil
	}
	return "fetch_agent_response", members{"agent": r.p.snapshot(a), "project": nil, "error": nil}, nil
}

// waitForFinish answers when the agent is not running. Of an agent that isn't
// loaded it tells what the record says, which may be wrong.
func (r *request) waitForFinish() (string, members, error) {
	var q struct {
		AgentID   string `json:"agentId"`
		TimeoutMS *int64 `json:"timeoutMs"`
	}
	if err := r.decode(&q); err != nil || q.TimeoutMS != nil && *q.TimeoutMS <= 0 {
		return "", nil, r.unknown()
	}
	var late <-chan time.Time
	if q.TimeoutMS != nil {
		timer := time.NewTimer(time.Duration(*q.TimeoutMS) * time.Millisecond)
		defer timer.Stop()
		late = timer.C
	}
	for {
		r.p.mu.Lock()
		a := r.p.find(r.s, q.AgentID)
		if a == nil {
			hidden := r.p.find(nil, q.AgentID)
			r.p.mu.Unlock()
			if hidden == nil {
				return "", nil, &rpcError{code: "handler_error", text: "Agent not found: " + q.AgentID}
			}
			return "wait_for_finish_response", members{"status": "error", "final": nil, "error": "Agent " + q.AgentID + " disappeared while waiting", "lastMessage": nil}, nil
		}
		payload, changed := r.p.finished(a), a.changed
		r.p.mu.Unlock()
		if payload != nil {
			return "wait_for_finish_response", payload, nil
		}
		select {
		case <-changed:
		case <-late:
			r.p.mu.Lock()
			defer r.p.mu.Unlock()
			return "wait_for_finish_response", members{"status": "timeout", "final": r.p.snapshot(a), "error": nil, "lastMessage": orNull(a.lastMessage())}, nil
		case <-r.ctx.Done():
			return "", nil, errNoAnswer
		}
	}
}

// finished is the answer to a wait, nil while there is none.
func (p *process) finished(a *agent) members {
	out := members{"final": p.snapshot(a), "error": nil, "lastMessage": nil}
	if !a.loaded {
		out["status"] = "idle"
		if a.rec.Attention == "permission" {
			out["status"] = "permission"
		} else if a.rec.Status == "error" {
			out["status"], out["error"] = "error", orNull(a.rec.LastError)
		}
		return out
	}
	out["lastMessage"] = orNull(a.lastMessage())
	switch {
	case len(a.pending) > 0:
		out["status"] = "permission"
	case a.rec.Status == "running" || a.rec.Status == "initializing":
		return nil
	case a.rec.Status == "error":
		out["status"], out["error"], out["lastMessage"] = "error", orNull(a.rec.LastError), "[System Error] "+a.rec.LastError
	default:
		out["status"] = "idle"
	}
	return out
}

func (r *request) timeline() (string, members, error) {
	var q timelineRequest
	if err := r.decode(&q); err != nil {
		return "", nil, err
	}
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	a, err := r.agent(q.AgentID)
	if err != nil {
		return "", nil, err
	}
	return "fetch_agent_timeline_response", r.p.page(a, q), nil
}

// permission answers one. Old daemons say nothing to an id they don't know.
func (r *request) permission() (string, members, error) {
	var q struct {
		AgentID  string  `json:"agentId"`
		Response members `json:"response"`
	}
	if err := r.decode(&q); err != nil {
		return "", nil, err
	}
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	a := r.p.agents[q.AgentID]
	if a != nil {
		for n, one := range a.pending {
			if one.id != r.id {
				continue
			}
			a.pending = slices.Delete(a.pending, n, n+1)
			a.rec.Attention, a.rec.AttentionAt = "", ""
			r.p.resolved(a, one.id, q.Response)
			r.p.changedAgent(a)
			one.answer <- q.Response
			return "", nil, nil
		}
	}
	if r.p.level == old {
		return "", nil, nil
	}
	return "", nil, &rpcError{code: "handler_error", text: fmt.Sprintf("No pending permission request with id '%s'", r.id), requestID: r.id}
}

func (r *request) setTimelines() (string, members, error) {
	var q struct {
		AgentIDs []string `json:"agentIds"`
	}
	if err := r.decode(&q); err != nil || q.AgentIDs == nil {
		return "", nil, r.unknown()
	}
	set := map[string]bool{}
	for _, id := range q.AgentIDs {
		set[id] = true
	}
	r.p.mu.Lock() // so that no event falls between
	defer r.p.mu.Unlock()
	r.s.mu.Lock()
	r.s.watched = set
	r.s.mu.Unlock()
	return "agent.timeline.set_subscription.response", members{"agentIds": q.AgentIDs}, nil
}

func (r *request) daemonStatus() (string, members, error) {
	return "daemon.get_status.response", members{
		"serverId": r.p.id, "version": r.p.d.o.Version, "pid": r.p.pid, "nodePath": "/usr/bin/node",
		"startedAt": r.p.since.UTC().Format(time.RFC3339Nano), "listen": r.p.listen, "relay": nil, "providers": []members{},
	}, nil
}
