package agents

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/store"
)

// lookNow reads an agent, and with it what has become of its open dispatches. The
// snapshot comes first, for it makes the daemon load nothing.
func (f *follower) lookNow(ctx context.Context, agentID string) error {
	release, err := f.looks.Acquire(ctx, agentID)
	if err != nil {
		return err
	}
	defer release()
	rows, err := f.open(ctx, byOpenAgent, agentID)
	if err != nil || len(rows) == 0 {
		return err
	}
	pass := f.begin()
	var a paseo.Agent
	_, connected := f.d.Info()
	if connected {
		a, err = f.d.FetchAgent(ctx, agentID)
	}
	gone := paseo.RejectedAs(err, paseo.CodeAgentNotFound)
	if !connected || err != nil && !gone { // it is looked at again with the next connection
		for _, r := range rows {
			f.note(r, view{status: "timeout", reason: reasonDisconnected, pass: pass})
		}
		return err
	}
	for _, r := range rows {
		v := view{}
		if gone {
			err = f.lose(ctx, r, reasonGone, turn{})
		} else {
			v, err = f.examine(ctx, a, r)
		}
		if v.status != "" {
			v.pass = pass
			f.note(r, v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// begin numbers a look.
func (f *follower) begin() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.passes++
	return f.passes
}

// note keeps what was seen of a dispatch for those who wait.
func (f *follower) note(r row, v view) {
	f.mu.Lock()
	f.views[r.id] = v
	f.mu.Unlock()
	f.s.news.tell(r.name())
}

// viewOf returns what a look that began after another one has seen of a dispatch.
func (f *follower) viewOf(r row, after uint64) (v view, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v, ok = f.views[r.id]
	return v, ok && v.pass > after && r.terminalKind == ""
}

// begun is the number of the latest look.
func (f *follower) begun() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.passes
}

// examine finds out what a snapshot, and the timeline where it is needed, say of
// one dispatch. The view is empty when that is in the database now.
func (f *follower) examine(ctx context.Context, a paseo.Agent, r row) (view, error) {
	info, _ := f.d.Info()
	modern := info.TurnIDs()
	fresh := f.s.now().UnixMilli()-r.submittedAt < settling.Milliseconds()
	switch {
	case r.terminalKind != "":
		return f.readEnd(ctx, r, modern)
	case a.Status == paseo.AgentInitializing:
		return view{status: "running", reason: reasonNoEnd, agent: &a}, nil
	case modern && a.Turn == paseo.TurnAbsent && r.state == Unknown && r.keyed:
		// The daemon's own receipt still tells, once the caller asks again.
		return view{status: "timeout", reason: reasonNoMarker, agent: &a}, f.expire(ctx, r)
	case modern && a.Turn == paseo.TurnAbsent && fresh && f.justPrompted(a.ID):
		f.lookAfter(a.ID, settling)
		return view{status: "timeout", reason: reasonNoEnd, agent: &a}, nil
	case modern && a.Turn == paseo.TurnAbsent:
		return f.absent(ctx, a, r)
	case a.Turn == paseo.TurnActive && r.turnID != "" && a.TurnID == r.turnID:
		return f.running(ctx, a, r)
	}
	t, err := f.search(ctx, r)
	if err != nil {
		return view{status: "timeout", reason: readReason(err), agent: &a}, err
	}
	if !t.found {
		return f.notFound(ctx, a, r, t)
	}
	return f.found(ctx, a, r, t, modern)
}

// absent is examine for an agent that the daemon has not loaded. How its run ended
// is lost; that it had the prompt may show in what its provider sends again, for
// which a closed one is not opened.
func (f *follower) absent(ctx context.Context, a paseo.Agent, r row) (view, error) {
	var t turn
	if r.state == Unknown && (a.Status == paseo.AgentRunning || a.Status == paseo.AgentIdle) {
		var err error
		if t, err = f.search(ctx, r); err != nil {
			return view{status: "timeout", reason: readReason(err), agent: &a}, err
		}
	}
	return view{}, f.lose(ctx, r, absentReason(a), t)
}

// absentReason is why a record that no process stands behind says nothing.
func absentReason(a paseo.Agent) string {
	if a.ArchivedAt != "" {
		return reasonClosed
	}
	return reasonNotLoaded
}

func readReason(err error) string {
	var rejected *paseo.Rejected
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return reasonBudget
	case errors.As(err, &rejected):
		return reasonReadFailed
	}
	return reasonDisconnected
}

// running notes that the turn of a dispatch is under way, and tells of what the
// agent asks in it.
func (f *follower) running(ctx context.Context, a paseo.Agent, r row) (view, error) {
	f.shown(a.ID)
	v := view{status: "running", matched: true, turnID: r.turnID, agent: &a}
	if len(a.PendingPermissions) > 0 {
		v.status = "permission"
		err := store.Exec(ctx, f.s.store, func(tx *store.Tx) error {
			for _, p := range a.PendingPermissions {
				n := notice{key: permissionKey(r, p.ID), kind: permissionNotice, summary: permissionSummary(p)}
				if err := f.s.notify(tx, r, n); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return v, err
		}
	}
	return v, nil
}

func permissionSummary(p paseo.Permission) string {
	for _, text := range []string{p.Title, p.Description, p.Name} {
		if text != "" {
			return "The agent asks for a permission: " + shownText(text, 500)
		}
	}
	return "The agent asks for a permission."
}

// notFound is examine for a timeline without the prompt.
func (f *follower) notFound(ctx context.Context, a paseo.Agent, r row, t turn) (view, error) {
	quiet := f.s.now().UnixMilli()-r.submittedAt > 4*settling.Milliseconds()
	switch {
	case t.reason == reasonNoMarker && r.epoch != "" && t.epoch != r.epoch:
		return view{}, f.lose(ctx, r, reasonDiscontinuity, turn{})
	case t.reason == reasonNoMarker && r.state == Submitted && quiet && a.Turn != paseo.TurnActive && a.Status != paseo.AgentRunning:
		// The daemon took it and has nothing of it: its timeline was lost.
		return view{}, f.lose(ctx, r, reasonNoMarker, turn{})
	case r.state == Unknown:
		if err := f.expire(ctx, r); err != nil {
			return view{}, err
		}
	case !quiet:
		f.lookAfter(a.ID, 4*settling)
	}
	v := view{status: "timeout", reason: t.reason, agent: &a}
	if a.Status == paseo.AgentError {
		v.status, v.reason = "error", reasonUnattributed
	} else if a.Turn == paseo.TurnActive || a.Status == paseo.AgentRunning {
		v.status = "running"
	}
	return v, nil
}

// live reports whether a timeline is the one in which the prompt ran. Rows that a
// provider replayed after a restart have neither the epoch nor ids nor a turn.
func (f *follower) live(r row, t turn, modern bool) bool {
	if r.epoch != "" {
		return r.epoch == t.epoch
	}
	if byID, _ := isPrompt(t.marker, r); byID || t.marker.TurnID != "" {
		return true
	}
	now := f.d.Status().Generation
	f.mu.Lock()
	defer f.mu.Unlock()
	st := f.agents[r.agentID]
	return !modern && st != nil && st.sent[r.id] != 0 && st.sent[r.id] == now
}

// found is examine for a timeline that has the prompt.
func (f *follower) found(ctx context.Context, a paseo.Agent, r row, t turn, modern bool) (view, error) {
	if !f.live(r, t, modern) {
		return view{}, f.lose(ctx, r, reasonDiscontinuity, t)
	}
	if err := f.seen(r, t.marker.TurnID, t.epoch, t.marker.SeqEnd); err != nil {
		return view{}, err
	}
	began := f.appeared(r)
	r.state, r.epoch = Submitted, t.epoch
	if t.marker.TurnID != "" {
		r.turnID = t.marker.TurnID
	}
	v := view{status: "timeout", matched: true, turnID: r.turnID, agent: &a}
	// An end that came since the snapshot is the better word; and a snapshot from
	// before the prompt appeared is none.
	if now, _, err := f.s.read(ctx, byID, r.id); err != nil || now.terminalKind != "" || began {
		v.reason = reasonReading
		f.look(a.ID)
		return v, err
	}
	active := a.Turn == paseo.TurnActive || a.Turn == paseo.TurnAbsent && a.Status == paseo.AgentRunning
	switch {
	case t.reason == reasonAmbiguous:
		v.reason = t.reason
		return v, nil
	case active && !t.newer && (a.TurnID == "" || a.TurnID == r.turnID):
		return f.running(ctx, a, r)
	case t.newer:
		return view{}, f.lose(ctx, r, reasonNewer, t)
	case active:
		v.reason = reasonOtherTurn
		return v, nil
	case a.Status == paseo.AgentClosed:
		return view{}, f.lose(ctx, r, reasonClosed, t)
	}
	return f.idle(ctx, a, r, t, v)
}

// appeared notes that the prompt of a dispatch stands in the timeline, and reports
// whether that is news.
func (f *follower) appeared(r row) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := f.agents[r.agentID]
	if st == nil || st.promptID != r.promptID {
		return false
	}
	st.promptID = ""
	return true
}

// idle stores the result of a dispatch whose agent was seen idle after its turn,
// if nothing moves.
func (f *follower) idle(ctx context.Context, a paseo.Agent, r row, t turn, v view) (view, error) {
	kind := observedIdle
	if a.Status == paseo.AgentError {
		kind = observedError
	}
	wordless := len(t.rows) == 0 || kind == observedIdle && t.lastMessage() == nil
	if quiet := time.Duration(f.s.now().UnixMilli()-r.updatedAt) * time.Millisecond; wordless && quiet < settling {
		// Without a word of the agent it may not have begun, and an error be of before.
		f.lookAfter(a.ID, settling-max(quiet, 0))
		v.reason = reasonNoEnd
		return v, nil
	}
	tail, err := f.d.Timeline(ctx, paseo.TimelineQuery{AgentID: r.agentID, Limit: 1})
	if err != nil {
		v.reason = readReason(err)
		return v, err
	}
	again, err := f.d.FetchAgent(ctx, r.agentID)
	if err != nil {
		return v, err
	}
	same := tail.Epoch == t.epoch && (tail.EndCursor == nil) == (t.latest == nil) && (tail.EndCursor == nil || tail.EndCursor.Seq == t.latest.Seq)
	if !same || again.Status != a.Status || again.Turn != a.Turn || f.justReplaced(r) {
		f.lookAfter(a.ID, time.Second)
		v.reason = reasonTailMoved
		return v, nil
	}
	return view{}, f.save(ctx, r, kind, t)
}

// justReplaced reports whether another prompt of ours was accepted since.
func (f *follower) justReplaced(r row) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := f.agents[r.agentID]
	return st != nil && st.promptID != "" && st.promptID != r.promptID && f.s.now().Sub(st.prompted) < settling
}

// readEnd reads the result of a turn whose end is known. What can't be read any
// more is left out.
func (f *follower) readEnd(ctx context.Context, r row, modern bool) (view, error) {
	t, err := f.search(ctx, r)
	var rejected *paseo.Rejected
	if err != nil && !errors.As(err, &rejected) {
		return view{status: "timeout", reason: readReason(err), matched: true, turnID: r.turnID}, err
	}
	switch {
	case err != nil:
		t = turn{reason: reasonReadFailed}
	case !t.found:
		t = turn{reason: t.reason}
	case !f.live(r, t, modern):
		t = turn{reason: reasonDiscontinuity}
	}
	return view{}, f.save(ctx, r, r.terminalKind, t)
}

// save stores a result and tells of it, once.
func (f *follower) save(ctx context.Context, r row, kind string, t turn) error {
	raw, summary, err := savedResult(r, t)
	if err != nil {
		return err
	}
	return f.close(ctx, r, raw, func(tx *store.Tx, now row) error {
		pairs := []any{"state", Submitted}
		if now.terminalKind == "" {
			now.terminalKind, now.terminalAt = kind, tx.Now().UnixMilli()
			pairs = append(pairs, "terminal_kind", kind, "terminal_at", now.terminalAt)
		}
		if err := set(tx, r.id, pairs...); err != nil {
			return err
		}
		n := notice{summary: summary, terminalKind: now.terminalKind, ready: true}
		switch now.terminalKind {
		case turnFailed, observedError:
			n.kind = errorNotice
			if now.terminalText != "" {
				n.summary = now.terminalText
			}
		case turnCanceled:
			n.kind = canceledNotice
		default:
			n.kind = resultNotice
		}
		asked, err := f.s.emitHeld(tx, now)
		if err != nil || asked && n.kind == resultNotice {
			return err // the question stands for the result
		}
		n.key = r.requestID + ":" + n.kind
		return f.s.notify(tx, now, n)
	})
}

// lostSummary says to a chat that it will not hear how a run ended.
const lostSummary = "The outcome of this request is unknown: the daemon does not know any more how it ended. Look at what the agent did before you go on."

// lose ends the search for the outcome of a dispatch that nothing can tell any
// more, and says so.
func (f *follower) lose(ctx context.Context, r row, reason string, t turn) error {
	if t.reason == "" {
		t.reason = reason
	}
	raw, _, err := savedResult(r, t)
	if err != nil {
		return err
	}
	if r.terminalKind != "" {
		return f.save(ctx, r, r.terminalKind, t)
	}
	err = f.close(ctx, r, raw, func(tx *store.Tx, now row) error {
		if now.terminalKind != "" {
			return errEnded
		}
		if now.state == Unknown && t.found {
			now.state = Submitted
		}
		if err := set(tx, r.id, "lost", reason, "state", now.state); err != nil {
			return err
		}
		if _, err := f.s.emitHeld(tx, now); err != nil {
			return err
		}
		return f.s.notify(tx, now, notice{key: r.requestID + ":" + errorNotice, kind: errorNotice, summary: lostSummary})
	})
	if errors.Is(err, errEnded) {
		f.look(r.agentID)
		return nil
	}
	return err
}

// errEnded keeps a dispatch from being called lost whose end was stored meanwhile.
var errEnded = errors.New("the run has ended")

// close ends the following of a dispatch in one transaction with its result.
func (f *follower) close(ctx context.Context, r row, result []byte, more func(tx *store.Tx, now row) error) error {
	err := store.Exec(ctx, f.s.store, func(tx *store.Tx) error {
		now, ok, err := find(tx, byID, r.id)
		if err != nil || !ok || now.closedAt != 0 || now.state == Submitting || now.state == NotSent {
			return err
		}
		if r.turnID != "" {
			now.turnID = r.turnID
		}
		_, err = tx.Exec(`INSERT INTO dispatch_results (dispatch, result, saved_at) VALUES (?, ?, ?) ON CONFLICT (dispatch) DO UPDATE SET result = excluded.result, saved_at = excluded.saved_at`,
			r.id, result, tx.Now().UnixMilli())
		if err != nil {
			return fmt.Errorf("storing a result: %w", err)
		}
		tx.AfterCommit(func() { f.s.news.tell(r.name()) })
		if err := set(tx, r.id, "closed_at", tx.Now().UnixMilli()); err != nil {
			return err
		}
		if err := mootAll(tx, now); err != nil {
			return err
		}
		return more(tx, now)
	})
	if err != nil {
		return err
	}
	f.mu.Lock()
	delete(f.views, r.id)
	if st := f.agents[r.agentID]; st != nil {
		delete(st.sent, r.id)
		if st.promptID == r.promptID {
			st.promptID = ""
		}
	}
	f.mu.Unlock()
	f.refresh()
	return nil
}

// pendingOf lists what an agent asks, as it said it.
func (v view) pendingOf() []paseo.Permission {
	if v.agent == nil {
		return nil
	}
	return slices.Clone(v.agent.PendingPermissions)
}
