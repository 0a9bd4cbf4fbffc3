package paseotest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// prompt starts a turn. It revives what is closed or archived, replaces a run in
// progress, and cancels its permission. Callers hold p.mu.
func (p *process) prompt(a *agent, text, messageID string) {
	if p.dead {
		return
	}
	text = strings.TrimSpace(text)
	a.rec.ArchivedAt = ""
	p.load(a)
	if a.turn != nil {
		p.endTurn(a, members{"type": "turn_canceled", "reason": "replaced by a new prompt"})
	}
	p.d.store.note(Prompt{a.rec.ID, messageID, text}) // before anybody hears of it: a kill must not make it uncounted
	ctx, cancel := context.WithCancel(p.ctx)
	t := &turn{id: newID("turn_"), startedAt: stamp(), cancel: cancel}
	a.turn = t
	a.rec.Status, a.rec.LastError, a.rec.Attention, a.rec.AttentionAt = "running", "", "", ""
	a.rec.LastUserAt = stamp()
	p.turnEvent(a, t, members{"type": "turn_started"})
	item := members{"type": "user_message", "text": text}
	if messageID != "" {
		item["messageId"] = messageID
		if p.level >= middle {
			item["clientMessageId"] = messageID
		}
	}
	// A message id that was used before costs the row, not the run.
	if messageID == "" || !a.used[messageID] {
		p.addRow(a, t.id, item)
	}
	a.used[messageID] = true
	if replays(a.rec.Provider) {
		a.rec.SessionHistory = append(a.rec.SessionHistory, historyItem{User: true, Text: text})
	}
	p.changedAgent(a)
	run := &run{p: p, a: a, t: t, ctx: ctx}
	wrecked := a.wrecked
	p.running.Go(func() {
		defer cancel()
		if wrecked {
			<-ctx.Done() // no provider process is left to answer
			return
		}
		run.do(text)
	})
}

// replays reports whether a provider sends its history again when it is loaded.
func replays(provider string) bool { return provider == "fake-replay" }

// endTurn ends the turn in progress with an event; what the status becomes is the
// caller's. Permissions end with it.
func (p *process) endTurn(a *agent, event members) {
	t := a.turn
	a.turn = nil
	t.cancel()
	for _, one := range a.pending {
		p.resolved(a, one.id, members{"behavior": "deny", "message": "canceled", "interrupt": true})
	}
	a.pending = nil
	p.turnEvent(a, t, event)
}

// finish ends the turn and leaves the agent in a status that wants attention.
func (p *process) finish(a *agent, event members, status, attention string) {
	p.endTurn(a, event)
	a.rec.Status = status
	p.attend(a, attention)
	p.changedAgent(a)
}

func (p *process) resolved(a *agent, permissionID string, resolution members) {
	p.broadcast("agent_permission_resolved", members{"agentId": a.rec.ID, "requestId": permissionID, "resolution": resolution}, func(s *session) bool { return s.sees(a) })
	p.stream(a, members{"type": "permission_resolved", "requestId": permissionID, "resolution": resolution}, nil)
}

// run is a fake provider at work on one prompt.
type run struct {
	p   *process
	a   *agent
	t   *turn
	ctx context.Context
}

// now does something to the agent, unless the turn is over.
func (r *run) now(do func()) bool {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	if r.a.turn != r.t || r.p.dead {
		return false
	}
	do()
	return true
}

func (r *run) row(item members) bool {
	return r.now(func() {
		r.p.addRow(r.a, r.t.id, item)
		if text, ok := item["text"].(string); ok && item["type"] == "assistant_message" && replays(r.a.rec.Provider) {
			r.a.rec.SessionHistory = append(r.a.rec.SessionHistory, historyItem{Text: text})
			r.p.save(r.a)
		}
	})
}

func (r *run) say(text string) bool {
	item := members{"type": "assistant_message", "text": text}
	if r.p.level >= middle {
		item["messageId"] = newID("msg_")
	}
	return r.row(item)
}

func (r *run) sleep(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-r.ctx.Done():
		return false
	}
}

func (r *run) complete() {
	r.now(func() {
		r.p.finish(r.a, members{"type": "turn_completed", "usage": members{"inputTokens": 1}}, "idle", "finished")
	})
}

func (r *run) fail(message string, wrecked bool) {
	r.now(func() {
		r.a.wrecked = wrecked
		r.a.rec.LastError = message
		event := members{"type": "turn_failed", "error": message}
		if r.p.level >= middle {
			event["code"] = "provider_error"
		}
		r.p.finish(r.a, event, "error", "error")
	})
}

// ask puts a permission and waits for its answer; ok is false if the turn ended.
func (r *run) ask(raw members) (answer members, ok bool) {
	one := &permission{id: newID("perm_"), raw: raw, answer: make(chan members, 1)}
	raw["id"], raw["provider"] = one.id, "acp"
	asked := r.now(func() {
		r.a.pending = append(r.a.pending, one)
		r.p.broadcast("agent_permission_request", members{"agentId": r.a.rec.ID, "request": raw}, func(s *session) bool { return s.sees(r.a) })
		r.p.stream(r.a, members{"type": "permission_requested", "request": raw}, nil)
		r.p.changedAgent(r.a)
		r.p.attend(r.a, "permission")
	})
	if !asked {
		return nil, false
	}
	select {
	case answer := <-one.answer:
		return answer, true
	case <-r.ctx.Done():
		return nil, false
	}
}

// command is the last line of a prompt that is not in brackets, as remarks of a
// gateway are.
func command(text string) string {
	lines := strings.Split(text, "\n")
	for _, line := range slices.Backward(lines) {
		if line != "" && line[0] != '[' {
			return line
		}
	}
	return ""
}

// do runs the [command] of a prompt: sleep N (seconds), tool,
// bigtool, think, stream N D (N chunks, D apart), perm, perm-exec, plan, ask,
// fail, crash, silent. Everything else is answered with an echo.
func (r *run) do(text string) {
	words := strings.Fields(command(text))
	name := ""
	if len(words) > 0 {
		name = words[0]
	}
	ok := true
	switch name {
	case "sleep":
		seconds, err := strconv.ParseFloat(strings.Join(words[1:], ""), 64)
		ok = err == nil && r.sleep(time.Duration(seconds*float64(time.Second))) && r.say("slept "+words[1])
	case "tool":
		ok = r.tool("ran the tool")
	case "bigtool":
		ok = r.tool(strings.Repeat("x", 65536)) // what is left of more
	case "think":
		ok = r.row(members{"type": "reasoning", "text": "let me "}) && r.row(members{"type": "reasoning", "text": "think"}) && r.say("thought about it")
	case "stream":
		ok = r.chunks(words[1:])
	case "perm", "perm-exec", "plan", "ask":
		ok = r.permission(name)
	case "fail":
		r.fail("the provider failed as asked", false)
		return
	case "crash":
		r.fail("ACP agent exited unexpectedly (3)", true)
		return
	case "silent":
	default:
		ok = r.say("echo: ") && r.say(text)
	}
	if ok {
		r.complete()
	}
}

func (r *run) tool(output string) bool {
	call := newID("call_")
	item := func(status string) members {
		return members{"type": "tool_call", "callId": call, "name": "shell", "status": status, "error": nil, "detail": members{"type": "shell", "command": "true"}}
	}
	done := item("completed")
	done["detail"] = members{"type": "shell", "command": "true", "output": output, "exitCode": 0}
	return r.row(item("running")) && r.row(done) && r.say("used a tool")
}

func (r *run) chunks(words []string) bool {
	count, pause := 10, 10*time.Millisecond
	if len(words) > 0 {
		count, _ = strconv.Atoi(words[0])
	}
	if len(words) > 1 {
		pause, _ = time.ParseDuration(words[1])
	}
	for n := range count {
		if !r.say(fmt.Sprintf("chunk %d ", n)) || !r.sleep(pause) {
			return false
		}
	}
	return true
}

func (r *run) permission(name string) bool {
	raw := members{"name": "write_file", "kind": "other", "title": "May I?", "input": members{"path": "a.txt"}}
	switch name {
	case "perm-exec": // a detail with fields left out
		raw = members{"name": "shell", "kind": "tool", "title": "Run it?", "detail": members{"type": "shell", "command": "true"}}
	case "plan":
		raw = members{"name": "plan", "kind": "plan", "title": "The plan", "actions": []members{{"id": "go", "label": "Go", "behavior": "allow"}}}
	case "ask":
		raw = members{"name": "question", "kind": "question", "title": "Which one?", "input": members{"question": "Which one?"}}
	}
	answer, ok := r.ask(raw)
	if !ok {
		return false
	}
	if answer["behavior"] == "allow" {
		return r.say("allowed")
	}
	return r.say("denied")
}
