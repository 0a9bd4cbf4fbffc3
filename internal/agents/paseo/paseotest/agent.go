package paseotest

import (
	"strings"
)

// builtin providers are what clients without a version see.
var builtin = map[string]bool{"claude": true, "codex": true, "opencode": true}

// agent is a record and what this process knows beyond it. p.mu guards it.
type agent struct {
	rec     record
	loaded  bool
	epoch   string
	rows    []row
	nextSeq int64
	turn    *turn
	pending []*permission
	wrecked bool            // the provider's process is gone; the next prompt hangs
	used    map[string]bool // message ids since loading
	changed chan struct{}   // closed and replaced when the status may have changed
}

type turn struct {
	id        string
	startedAt string
	cancel    func()
}

type permission struct {
	id     string
	raw    members
	answer chan members
}

func newAgent(r record) *agent {
	if r.Labels == nil {
		r.Labels = map[string]string{}
	}
	return &agent{rec: r, used: map[string]bool{}, changed: make(chan struct{})}
}

// load makes a provider session for an agent that has none: what was running or
// closed becomes idle, the epoch is new, and there are only the rows that the
// provider sends again.
func (p *process) load(a *agent) {
	if a.loaded {
		return
	}
	a.loaded, a.rec.Status = true, "idle"
	a.epoch, a.rows, a.nextSeq = newID("epoch_"), nil, 1
	a.used, a.wrecked = map[string]bool{}, false
	for _, item := range replayed(a.rec.SessionHistory) {
		p.addRow(a, "", item)
	}
	p.changedAgent(a)
}

// replayed is what a provider sends again: without ids and turns, and with
// neighbouring user messages run together.
func replayed(history []historyItem) []members {
	var out []members
	for n, h := range history {
		if h.User && n > 0 && history[n-1].User {
			last := out[len(out)-1]
			last["text"] = last["text"].(string) + h.Text
			continue
		}
		kind := "assistant_message"
		if h.User {
			kind = "user_message"
		}
		out = append(out, members{"type": kind, "text": h.Text})
	}
	return out
}

// snapshot is an agent as the wire has it.
func (p *process) snapshot(a *agent) members {
	r := a.rec
	requests := []members{}
	for _, one := range a.pending {
		requests = append(requests, one.raw)
	}
	out := members{
		"id": r.ID, "provider": r.Provider, "cwd": r.CWD, "model": orNull(r.Model), "status": r.Status,
		"title": orNull(r.Title), "labels": r.Labels, "currentModeId": orNull(r.ModeID), "availableModes": modes(),
		"pendingPermissions": requests, "persistence": nil, "capabilities": members{"supportsStreaming": true},
		"requiresAttention": r.Attention != "", "attentionReason": orNull(r.Attention), "attentionTimestamp": orNull(r.AttentionAt),
		"createdAt": r.CreatedAt, "updatedAt": r.UpdatedAt, "lastUserMessageAt": orNull(r.LastUserAt), "archivedAt": orNull(r.ArchivedAt),
		"thinkingOptionId": orNull(r.Thinking),
	}
	if r.LastError != "" {
		out["lastError"] = r.LastError
	}
	if p.level == old {
		return out
	}
	out["workspaceId"] = r.WorkspaceID
	if a.loaded {
		out["activeTurn"] = nil // the key is missing for agents that aren't loaded
		if a.turn != nil {
			out["activeTurn"] = members{"turnId": a.turn.id, "startedAt": a.turn.startedAt}
		}
	}
	return out
}

func modes() []members {
	return []members{
		{"id": "default", "label": "Default", "description": "Asks before it acts"},
		{"id": "plan", "label": "Plan"}, // without a description
	}
}

// changedAgent saves an agent, tells the lists, and wakes those who wait for it.
func (p *process) changedAgent(a *agent) {
	a.rec.UpdatedAt = stamp()
	p.save(a)
	close(a.changed)
	a.changed = make(chan struct{})
	p.broadcast("agent_update", members{"kind": "upsert", "agent": p.snapshot(a), "project": nil}, func(s *session) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.listed && s.sees(a)
	})
}

// sees reports whether the session is shown this agent at all.
func (s *session) sees(a *agent) bool { return s.custom || builtin[a.rec.Provider] }

// stream tells an agent's event to those who get its stream.
func (p *process) stream(a *agent, event members, extra members) {
	event["provider"] = a.rec.Provider
	payload := members{"agentId": a.rec.ID, "event": event, "timestamp": stamp()}
	for key, value := range extra {
		payload[key] = value
	}
	p.broadcast("agent_stream", payload, func(s *session) bool { return s.watches(a.rec.ID) })
}

// turnEvent is an event of the present turn.
func (p *process) turnEvent(a *agent, t *turn, event members) {
	if p.level >= middle {
		event["turnId"] = t.id
	}
	p.stream(a, event, nil)
}

// attend asks for attention, in the stream and, for those who have none, by itself.
func (p *process) attend(a *agent, reason string) {
	a.rec.Attention, a.rec.AttentionAt = reason, stamp()
	p.stream(a, members{"type": "attention_required", "reason": reason, "timestamp": a.rec.AttentionAt, "shouldNotify": true}, nil)
	p.broadcast("agent_attention_required", members{"agentId": a.rec.ID, "reason": reason, "shouldNotify": true}, func(s *session) bool { return s.selective })
}

// find resolves an id, a unique prefix of one, or an exact title.
func (p *process) find(s *session, key string) *agent {
	var byPrefix, byTitle []*agent
	for id, a := range p.agents {
		switch {
		case s != nil && !s.sees(a):
		case id == key:
			return a
		case key != "" && strings.HasPrefix(id, key):
			byPrefix = append(byPrefix, a)
		case a.rec.Title == key:
			byTitle = append(byTitle, a)
		}
	}
	if len(byPrefix) == 1 {
		return byPrefix[0]
	}
	if len(byTitle) == 1 {
		return byTitle[0]
	}
	return nil
}
