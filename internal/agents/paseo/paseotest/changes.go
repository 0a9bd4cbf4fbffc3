package paseotest

import (
	"errors"
	"maps"
	"os"
	"unicode/utf8"
)

type createRequest struct {
	Config struct {
		Provider string         `json:"provider"`
		CWD      string         `json:"cwd"`
		Model    string         `json:"model"`
		ModeID   string         `json:"modeId"`
		Title    string         `json:"title"`
		Thinking string         `json:"thinkingOptionId"`
		Features map[string]any `json:"featureValues"`
	} `json:"config"`
	WorkspaceID     string            `json:"workspaceId"`
	InitialPrompt   string            `json:"initialPrompt"`
	ClientMessageID string            `json:"clientMessageId"`
	Labels          map[string]string `json:"labels"`
	IdempotencyKey  string            `json:"idempotencyKey"`
}

// createFailed is the daemon's answer to a create that it refuses.
func createFailed(text string) (string, members, error) {
	return "status", members{"status": "agent_create_failed", "error": text, "errorCode": "unknown"}, nil
}

func (r *request) createAgent() (string, members, error) {
	var q createRequest
	if err := r.decode(&q); err != nil {
		return "", nil, err
	}
	if utf8.RuneCountInString(q.Config.Title) > 200 || q.Config.Provider == "" || utf8.RuneCountInString(q.IdempotencyKey) > 512 {
		return "", nil, r.unknown()
	}
	keyed := r.p.level >= newest && q.IdempotencyKey != ""
	if keyed && q.InitialPrompt != "" {
		return createFailed("idempotencyKey can't be used with initialPrompt")
	}
	agentID, name := newUUID(), "create-"+print(q.IdempotencyKey)
	if keyed {
		id, answered, err := r.createReceipt(name, q, agentID)
		if err != nil || answered != nil {
			return refusedAs(err, "status", members{"status": "agent_created", "agentId": id, "agent": answered}, createFailed)
		}
	}
	if err := r.strike(Journalled); err != nil {
		return refusedAs(err, "", nil, createFailed)
	}
	r.p.mu.Lock()
	a, refused := r.p.newAgent(q, agentID)
	if refused != "" {
		r.p.mu.Unlock()
		if keyed {
			r.p.d.store.drop("receipts", name) // nothing came of it
		}
		return createFailed(refused)
	}
	if q.InitialPrompt != "" {
		r.p.prompt(a, q.InitialPrompt, q.ClientMessageID)
	}
	made := r.p.snapshot(a)
	r.p.mu.Unlock()
	if err := r.strike(Done); err != nil {
		return refusedAs(err, "", nil, createFailed)
	}
	if keyed {
		r.p.d.store.put("receipts", name, receipt{print(q), "completed", agentID})
	}
	return "status", members{"status": "agent_created", "agentId": agentID, "agent": made}, nil
}

// refusedAs answers an ordered refusal the way this request is refused.
func refusedAs(err error, kind string, payload members, refuse func(string) (string, members, error)) (string, members, error) {
	var ordered *refusal
	if errors.As(err, &ordered) {
		return refuse(ordered.text)
	}
	return kind, payload, err
}

// createReceipt journals a create, or finds what became of the first with its
// key: the agent, or an error.
func (r *request) createReceipt(name string, q createRequest, agentID string) (id string, made members, err error) {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	known, ok := r.p.d.store.receipt(name)
	switch {
	case !ok:
		r.p.put("receipts", name, receipt{print(q), "pending", agentID})
		return "", nil, nil
	case known.Print != print(q):
		return "", nil, &refusal{"agent_request_key_conflict"}
	}
	a := r.p.agents[known.AgentID]
	if a == nil {
		return "", nil, &refusal{"agent_request_outcome_unknown"}
	}
	r.p.put("receipts", name, receipt{known.Print, "completed", known.AgentID})
	return a.rec.ID, r.p.snapshot(a), nil
}

// put writes a file, unless the process is dead.
func (p *process) put(kind, name string, v any) {
	if !p.dead {
		p.d.store.put(kind, name, v)
	}
}

// newAgent makes an agent; refused says why not. Callers hold p.mu.
func (p *process) newAgent(q createRequest, id string) (a *agent, refused string) {
	provider, known := findProvider(q.Config.Provider)
	switch {
	case !known:
		return nil, "Unknown provider '" + q.Config.Provider + "'. Configured providers: claude, fake, fake-replay"
	case !provider.enabled:
		return nil, "Provider '" + q.Config.Provider + "' is disabled"
	case p.level >= middle && q.Config.ModeID != "" && q.Config.ModeID != "default" && q.Config.ModeID != "plan":
		return nil, "Invalid mode '" + q.Config.ModeID + "' for provider '" + q.Config.Provider + "'"
	}
	cwd, place := q.Config.CWD, ""
	if p.level >= middle && q.WorkspaceID != "" {
		w, ok := p.workspaces[q.WorkspaceID]
		if !ok {
			return nil, "Workspace " + q.WorkspaceID + " not found"
		}
		cwd, place = w.Directory, w.ID
	}
	if info, err := os.Stat(cwd); err != nil || !info.IsDir() {
		return nil, "Working directory does not exist: " + cwd
	}
	if p.level >= middle && place == "" {
		place = p.newWorkspace(cwd, "directory", "", "", "").ID
	}
	title := q.Config.Title
	if title == "" && q.InitialPrompt != "" {
		title = string([]rune(q.InitialPrompt)[:min(40, utf8.RuneCountInString(q.InitialPrompt))])
	}
	mode := q.Config.ModeID
	if mode == "" {
		mode = "default"
	}
	a = newAgent(record{
		ID: id, Provider: q.Config.Provider, Model: q.Config.Model, CWD: cwd, WorkspaceID: place, Title: title,
		Labels: q.Labels, ModeID: mode, Thinking: q.Config.Thinking, Features: q.Config.Features,
		Status: "idle", CreatedAt: stamp(), UpdatedAt: stamp(),
	})
	p.agents[id] = a
	p.load(a)
	return a, ""
}

func (r *request) sendMessage() (string, members, error) {
	var q struct {
		AgentID   string `json:"agentId"`
		Text      string `json:"text"`
		MessageID string `json:"messageId"`
		Behavior  string `json:"activeTurnBehavior"`
	}
	if err := r.decode(&q); err != nil {
		return "", nil, err
	}
	answer := func(refused string) (string, members, error) {
		return "send_agent_message_response", members{"agentId": q.AgentID, "accepted": refused == "", "error": orNull(refused)}, nil
	}
	r.p.mu.Lock()
	a := r.p.find(r.s, q.AgentID)
	r.p.mu.Unlock()
	if a == nil {
		return answer("Agent not found: " + q.AgentID)
	}
	keyed := r.p.level >= newest && q.MessageID != ""
	name, fingerprint := "send-"+print(a.rec.ID, q.MessageID), print(q.Text, q.Behavior)
	if keyed {
		done, refused := r.sendReceipt(name, fingerprint)
		if done || refused != "" {
			return answer(refused)
		}
	}
	if err := r.strike(Journalled); err != nil {
		var ordered *refusal
		if errors.As(err, &ordered) && ordered.text == "agent_request_not_accepted" {
			r.p.d.store.drop("receipts", name)
		}
		return refusedAs(err, "", nil, answer)
	}
	r.p.mu.Lock()
	dead := r.p.dead
	r.p.prompt(a, q.Text, q.MessageID)
	r.p.mu.Unlock()
	if dead {
		return "", nil, errNoAnswer
	}
	if err := r.strike(Done); err != nil {
		return refusedAs(err, "", nil, answer)
	}
	if keyed {
		r.p.mu.Lock()
		r.p.put("receipts", name, receipt{fingerprint, "completed", a.rec.ID})
		r.p.mu.Unlock()
	}
	return answer("")
}

// sendReceipt journals a message, or tells what became of the first with its id.
func (r *request) sendReceipt(name, fingerprint string) (done bool, refused string) {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	known, ok := r.p.d.store.receipt(name)
	switch {
	case !ok:
		r.p.put("receipts", name, receipt{fingerprint, "pending", ""})
		return false, ""
	case known.Print != fingerprint:
		return false, "agent_request_key_conflict"
	case known.State == "completed":
		return true, ""
	}
	return false, "agent_request_outcome_unknown"
}

func (r *request) cancelAgent() (string, members, error) {
	var q struct {
		AgentID string `json:"agentId"`
	}
	if err := r.decode(&q); err != nil {
		return "", nil, err
	}
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	a, err := r.agent(q.AgentID)
	if err != nil {
		return "", nil, err
	}
	if a.turn != nil {
		r.p.finish(a, members{"type": "turn_canceled", "reason": "canceled by the user"}, "idle", "finished")
	}
	return "cancel_agent_response", members{"agentId": a.rec.ID, "agent": r.p.snapshot(a)}, nil
}

// archiveAgent closes an agent; its timeline is gone.
func (r *request) archiveAgent() (string, members, error) {
	var q struct {
		AgentID string `json:"agentId"`
	}
	if err := r.decode(&q); err != nil {
		return "", nil, err
	}
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	a, err := r.agent(q.AgentID)
	if err != nil {
		return "", nil, err
	}
	r.p.unload(a)
	a.rec.ArchivedAt = stamp()
	r.p.changedAgent(a)
	return "agent_archived", members{"agentId": a.rec.ID, "archivedAt": a.rec.ArchivedAt}, nil
}

// unload ends an agent's provider; a prompt revives it.
func (p *process) unload(a *agent) {
	if a.turn != nil {
		p.endTurn(a, members{"type": "turn_canceled", "reason": "closed"})
	}
	a.loaded, a.rec.Status, a.wrecked = false, "closed", false
	a.rows, a.epoch = nil, ""
}

func (r *request) updateAgent() (string, members, error) {
	var q struct {
		AgentID string            `json:"agentId"`
		Name    string            `json:"name"`
		Labels  map[string]string `json:"labels"`
	}
	if err := r.decode(&q); err != nil {
		return "", nil, err
	}
	return r.change("update_agent_response", q.AgentID, func(a *agent) {
		if q.Name != "" {
			a.rec.Title = q.Name
		}
		maps.Copy(a.rec.Labels, q.Labels)
	})
}

// setAgent is the four requests that set one thing; none checks what it is given.
func (r *request) setAgent() (string, members, error) {
	var q struct {
		AgentID   string  `json:"agentId"`
		ModeID    *string `json:"modeId"`
		ModelID   *string `json:"modelId"`
		Thinking  *string `json:"thinkingOptionId"`
		FeatureID string  `json:"featureId"`
		Value     any     `json:"value"`
	}
	if err := r.decode(&q); err != nil {
		return "", nil, err
	}
	text := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	answers := map[string]string{
		"set_agent_mode_request": "set_agent_mode_response", "set_agent_model_request": "set_agent_model_response",
		"set_agent_thinking_request": "set_agent_thinking_response", "set_agent_feature_request": "set_agent_feature_response",
	}
	return r.change(answers[r.kind], q.AgentID, func(a *agent) {
		switch r.kind {
		case "set_agent_mode_request":
			a.rec.ModeID = text(q.ModeID)
		case "set_agent_model_request":
			a.rec.Model = text(q.ModelID)
		case "set_agent_thinking_request":
			a.rec.Thinking = text(q.Thinking)
		default:
			if a.rec.Features == nil {
				a.rec.Features = map[string]any{}
			}
			a.rec.Features[q.FeatureID] = q.Value
		}
	})
}

func (r *request) change(kind, agentID string, do func(*agent)) (string, members, error) {
	refused := ""
	r.p.mu.Lock()
	if a := r.p.find(r.s, agentID); a != nil {
		do(a)
		r.p.changedAgent(a)
	} else {
		refused = "Agent not found: " + agentID
	}
	r.p.mu.Unlock()
	if err := r.strike(Done); err != nil {
		return refusedAs(err, "", nil, func(text string) (string, members, error) {
			return kind, members{"agentId": agentID, "accepted": false, "error": text}, nil
		})
	}
	return kind, members{"agentId": agentID, "accepted": refused == "", "error": orNull(refused)}, nil
}
