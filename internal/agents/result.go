package agents

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// saved is a stored result.
type saved struct {
	RequestMatched bool              `json:"requestMatched"`
	UserMessageID  string            `json:"userMessageId,omitempty"`
	LastMessage    *string           `json:"lastMessage"`
	Entries        []json.RawMessage `json:"entries"`
	EntriesOmitted int               `json:"entriesOmitted,omitempty"`
	ReadStatus     string            `json:"resultReadStatus"`
	Reason         string            `json:"reason,omitempty"`
	MarkerCursor   *paseo.Cursor     `json:"markerCursor,omitempty"`
	EndCursor      *paseo.Cursor     `json:"endCursor,omitempty"`
	LatestCursor   *paseo.Cursor     `json:"latestCursor,omitempty"`
}

const (
	wholeResult   = "complete"
	partialResult = "needs_pagination"
	maxText       = 256 << 10 // bytes of a last message that is stored
)

// savedResult is what is stored of a turn, at most [maxOutput] bytes of JSON: the
// newest rows, if they are too many.
func savedResult(r row, t turn) (raw []byte, summary string, err error) {
	v := saved{RequestMatched: t.found, Entries: []json.RawMessage{}, ReadStatus: wholeResult, Reason: t.reason, LatestCursor: t.latest}
	if !t.found {
		v.ReadStatus = partialResult
	}
	if r.epoch != "" && r.markerSeq != 0 {
		v.MarkerCursor = &paseo.Cursor{Epoch: r.epoch, Seq: r.markerSeq}
	}
	if t.found {
		v.UserMessageID, v.MarkerCursor = t.marker.Item.MessageID, t.cursorOf(t.marker)
	}
	size := 4096
	if last := t.lastMessage(); last != nil {
		text := *last
		if len(text) > maxText {
			text = firstBytes(text, maxText)
			v.Reason, v.ReadStatus = reasonOutput, partialResult
		}
		v.LastMessage, summary = &text, text
		size += 2 * len(text)
	}
	kept := len(t.rows)
	for kept > 0 {
		if size += len(t.rows[kept-1].Raw) + 1; size > maxOutput {
			break
		}
		kept--
	}
	for _, e := range t.rows[kept:] {
		v.Entries = append(v.Entries, e.Raw)
	}
	if v.EntriesOmitted = kept; kept > 0 {
		v.Reason, v.ReadStatus = reasonOutput, partialResult
	}
	if n := len(t.rows); n > 0 {
		v.EndCursor = t.cursorOf(t.rows[n-1])
	}
	if raw, err = json.Marshal(v); err == nil && len(raw) > maxOutput {
		v.Entries, v.EntriesOmitted, v.LastMessage = []json.RawMessage{}, len(t.rows), nil
		v.Reason, v.ReadStatus = reasonOutput, partialResult
		raw, err = json.Marshal(v)
	}
	if err != nil {
		return nil, "", fmt.Errorf("writing a result: %w", err)
	}
	return raw, summary, nil
}

// firstBytes is the beginning of s, without cutting a character.
func firstBytes(s string, most int) string {
	for most > 0 && s[most]&0xc0 == 0x80 {
		most--
	}
	return s[:most]
}

// base is what every answer about the result of a dispatch has.
func (s *Service) base(q store.Querier, r row) (Result, error) {
	out := Result{
		RequestID: r.requestID, AgentID: r.agentID, WorkspaceID: r.workspaceID, ReceiptState: r.state, TurnID: r.turnID, TerminalKind: pointer(r.terminalKind),
		TerminalAt: at(r.terminalAt), Entries: []json.RawMessage{}, RetrySafe: true, NotificationMode: "explicit_read", TaskOutcome: "unknown", TurnOutcome: "unknown",
		HostID: r.hostID,
	}
	if r.routeID == "" {
		return out, nil
	}
	live, err := s.routesOf(q, r.owner, r.hostID, r.workspaceID)
	if _, ok := withID(live, r.routeID); ok {
		out.AutomaticWakeSupported, out.NotificationMode = true, "subscribed_events"
	}
	return out, err
}

// known is the answer about a dispatch that the database alone can give; ok is
// false while its run is followed.
func (s *Service) known(ctx context.Context, id int64, limit int) (r row, out Result, ok bool, err error) {
	err = store.Read(ctx, s.store, func(q *store.Reader) error {
		if r, _, err = find(q, byID, id); err != nil {
			return err
		}
		if out, err = s.base(q, r); err != nil {
			return err
		}
		switch {
		case r.state == Rejected, r.state == NotSent:
			no := false
			out.Status, out.Reason, out.Message, out.TerminalSeen, ok = "error", reasonRejected, r.errMessage, &no, true
			if r.state == NotSent {
				out.Reason, out.Message = reasonNotSent, sendAgain
			}
			return nil
		case r.closedAt == 0:
			return nil
		}
		ok = true
		return s.addSaved(q, r, &out, limit)
	})
	return r, out, ok, err
}

// addSaved puts the stored result of a dispatch into an answer.
func (s *Service) addSaved(q store.Querier, r row, out *Result, limit int) error {
	// What another gateway dispatched came without its result.
	raw := []byte(`{"entries":[],"resultReadStatus":"` + partialResult + `"}`)
	err := q.QueryRow(`SELECT result FROM dispatch_results WHERE dispatch = ?`, r.id).Scan(&raw)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("reading a result: %w", err)
	}
	var v saved
	if err := json.Unmarshal(raw, &v); err != nil {
		return fmt.Errorf("reading a stored result: %w", err)
	}
	if n := len(v.Entries) - limit; n > 0 {
		v.Entries, v.EntriesOmitted = v.Entries[n:], v.EntriesOmitted+n
	}
	out.RequestMatched, out.UserMessageID, out.LastMessage, out.Entries, out.EntriesOmitted = v.RequestMatched, v.UserMessageID, v.LastMessage, v.Entries, v.EntriesOmitted
	out.ReadStatus, out.Reason, out.MarkerCursor, out.EndCursor, out.LatestCursor, out.SavedResult = v.ReadStatus, v.Reason, v.MarkerCursor, v.EndCursor, v.LatestCursor, true
	yes := true
	switch r.terminalKind {
	case turnCompleted:
		out.Status, out.TerminalSeen = "idle", &yes
	case observedIdle:
		out.Status = "result_available"
	case turnFailed, observedError:
		out.Status, out.TerminalSeen, out.Message = "error", &yes, r.terminalText
		if out.Reason == "" {
			out.Reason = reasonAgentError
		}
	case turnCanceled:
		out.Status, out.TerminalSeen, out.Message = "canceled", &yes, r.terminalText
	default:
		out.Status, out.Reason, out.Message = "unknown", r.lost, lostSummary
	}
	return nil
}

// await answers about a dispatch as soon as there is something to answer, at the
// latest when the budget is over. It is woken by what the daemon says.
func (s *Service) await(ctx context.Context, id int64, limit int, budget time.Duration, enough func(view) bool) (row, Result, view, error) {
	deadline := time.NewTimer(budget)
	defer deadline.Stop()
	looked, since := false, uint64(0)
	for {
		changed, stop := s.news.follow(row{id: id}.name())
		r, out, ok, err := s.known(ctx, id, limit)
		if err != nil || ok {
			stop()
			return r, out, view{}, err
		}
		f := s.followers[r.hostID]
		v := view{status: "timeout", reason: reasonNoAgent}
		switch {
		case f == nil || f.d == nil:
			stop()
			return r, out, view{status: "timeout", reason: reasonDisconnected}, nil
		case r.agentID != "":
			if !looked {
				since = f.begun()
			}
			if v, ok = f.viewOf(r, since); !ok {
				v = view{status: "timeout", reason: reasonReading, matched: r.terminalKind != "", turnID: r.turnID}
			}
			if !looked {
				f.watchFor(r.agentID)
			}
		case !looked:
			s.work(func() { s.askFor(s.life, r) })
		}
		if looked && ok && enough(v) {
			stop()
			return r, out, v, nil
		}
		looked = true
		select {
		case <-changed:
			stop()
			continue
		case <-deadline.C:
			v.reason = firstOf(v.reason, reasonBudget)
		case <-s.life.Done():
			v.reason = reasonStopping
		case <-ctx.Done():
			stop()
			return r, out, v, ctx.Err()
		}
		stop()
		return r, out, v, nil
	}
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// watchFor looks at an agent that somebody waits for, whether or not it is
// followed by push.
func (f *follower) watchFor(agentID string) {
	f.mu.Lock()
	f.state(agentID)
	f.mu.Unlock()
	f.look(agentID)
}

// withView adds to an answer what was last seen of a run without an end.
func withView(out *Result, v view, limit int) {
	out.Status, out.Reason, out.RequestMatched = v.status, v.reason, v.matched
	if v.turnID != "" {
		out.TurnID = v.turnID
	}
	if v.agent != nil {
		out.AgentStatus = v.agent.Status
	}
	for i, p := range v.pendingOf() {
		if i < limit && v.status == "permission" {
			out.Pending = append(out.Pending, p.Raw)
		}
	}
}

// WaitForAgentResult waits until the run of a prompt has ended or needs somebody,
// at most for the caller's budget. Nothing is cancelled when it is over.
//
// Refusals: invalid_arguments, unknown_dispatch, agent_mismatch, host_unavailable.
func (s *Service) WaitForAgentResult(ctx context.Context, who principal.Principal, in WaitForAgentResultIn) (Result, error) {
	in.AgentID = lowerUUID(in.AgentID)
	limit, err := checkLimit(in.Limit, 100)
	if err != nil {
		return Result{}, err
	}
	budget := DefaultWaitMs
	if in.TimeoutMs != nil {
		budget = *in.TimeoutMs
	}
	if budget < MinTimeoutMs || budget > MaxWaitMs {
		return Result{}, fault.InvalidArguments.Newf("timeoutMs must be %d to %d", MinTimeoutMs, MaxWaitMs)
	}
	r, err := s.dispatched(ctx, who, in.HostID, in.RequestID)
	if err != nil {
		return Result{}, err
	}
	if r.agentID != "" && r.agentID != in.AgentID {
		return Result{}, AgentMismatch.New("The request went to a different agent.")
	}
	if err := s.reachable(r); err != nil {
		return Result{}, err
	}
	r, out, v, err := s.await(ctx, r.id, limit, time.Duration(budget)*time.Millisecond, func(v view) bool {
		return v.status == "permission" || v.status == "error"
	})
	if err != nil {
		return Result{}, err
	}
	if r.agentID != "" && r.agentID != in.AgentID {
		return Result{}, AgentMismatch.New("The request went to a different agent.")
	}
	if out.Status == "" {
		withView(&out, v, limit)
		out.WaitTimedOut = v.status != "permission" && v.status != "error"
		if out.WaitTimedOut && out.Status == "running" && out.Reason != reasonStopping {
			out.Reason = reasonBudget
		}
	}
	if in.TurnID != "" && out.TurnID != in.TurnID {
		out = Result{
			RequestID: out.RequestID, AgentID: out.AgentID, WorkspaceID: out.WorkspaceID, ReceiptState: out.ReceiptState, TurnID: out.TurnID, Status: "timeout",
			Reason: reasonTurnUnmatched, Entries: []json.RawMessage{}, RetrySafe: true, NotificationMode: out.NotificationMode,
			AutomaticWakeSupported: out.AutomaticWakeSupported, TaskOutcome: "unknown", TurnOutcome: "unknown", HostID: out.HostID,
		}
	}
	return out, nil
}

// reachable refuses a wait for a dispatch whose daemon can't be asked now, unless
// all that there is to know is in the database.
func (s *Service) reachable(r row) error {
	if r.closedAt != 0 || r.state == Rejected || r.state == NotSent {
		return nil
	}
	d, err := s.daemons.Daemon(r.hostID)
	if err != nil {
		return err
	}
	if st := d.Status(); st.State == paseo.Down {
		return HostUnavailable.Newf("The agent daemon of host %s can't be asked: %s", r.hostID, st.Reason)
	}
	return nil
}

// dispatched finds a dispatch that has a result.
func (s *Service) dispatched(ctx context.Context, who principal.Principal, hostID, requestID string) (row, error) {
	if err := checkRequestID("requestId", requestID); err != nil {
		return row{}, err
	}
	r, ok, err := s.read(ctx, byKey, who.Owner, hostID, requestID)
	if err == nil && (!ok || r.tool == createWorkspace) {
		err = UnknownDispatch.New("No dispatch of this owner on this host has this requestId.")
	}
	return r, err
}

// GetRequestResult answers the stored result of a dispatch, which needs no host.
// Without one it says what keeps it.
//
// Refusals: invalid_arguments, unknown_dispatch, host_unavailable.
func (s *Service) GetRequestResult(ctx context.Context, who principal.Principal, in GetRequestResultIn) (Result, error) {
	if in.WaitMs < 0 || in.WaitMs > MaxWaitMs {
		return Result{}, fault.InvalidArguments.Newf("waitMs must be 0 to %d", MaxWaitMs)
	}
	r, err := s.dispatched(ctx, who, in.HostID, in.RequestID)
	if err != nil {
		return Result{}, err
	}
	if err := s.reachable(r); err != nil {
		return Result{}, err
	}
	const all = 1 << 30
	// Without a wait it is still looked at once, as long as a read takes.
	budget := max(time.Duration(in.WaitMs)*time.Millisecond, 2*time.Second)
	patient := in.WaitMs > 0
	_, out, v, err := s.await(ctx, r.id, all, budget, func(v view) bool { return !patient || v.status == "permission" })
	if err != nil || out.Status != "" {
		return out, err
	}
	withView(&out, v, all)
	out.Status = "unmatched"
	if v.matched || v.reason == reasonReading || v.status == "permission" {
		out.Status = "pending"
	}
	if out.ReadStatus == "" && v.matched {
		out.ReadStatus = partialResult
	}
	return out, nil
}
