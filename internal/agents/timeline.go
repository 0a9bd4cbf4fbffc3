package agents

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
)

// maxOutput is the most bytes of one stored result and of one answered page.
const maxOutput = 1 << 20

// The bounds of one search for a prompt in a timeline.
const (
	searchPages   = 64
	searchEntries = 4000
)

// The reasons why a run is not known to have ended, or its result not whole.
const (
	reasonNoAgent       = "agent_submission_unknown"
	reasonDiscontinuity = "timeline_discontinuity"
	reasonAmbiguous     = "ambiguous_request_marker"
	reasonNoMarker      = "request_marker_not_found"
	reasonShared        = "shared_turn"
	reasonMismatch      = "request_turn_mismatch"
	reasonWindow        = "history_window_exceeded"
	reasonCursor        = "cursor_did_not_advance"
	reasonReadFailed    = "timeline_read_failed_or_output_limit"
	reasonOutput        = "result_output_limit"
	reasonBudget        = "call_budget_exhausted"
	reasonReading       = "result_read_in_progress"
	reasonStopping      = "gateway_stopping"
	reasonNewer         = "newer_turn_present"
	reasonOtherTurn     = "different_active_turn"
	reasonTailMoved     = "tail_changed_during_read"
	reasonNoEnd         = "no_matched_end_state"
	reasonDisconnected  = "wait_disconnected"
	reasonRejected      = "dispatch_rejected"
	reasonNotSent       = "dispatch_not_sent"
	reasonAgentError    = "agent_error"
	reasonUnattributed  = "agent_error_unattributed"
	reasonTurnUnmatched = "turn_not_matched"
	reasonNotLoaded     = "daemon_restarted"
	reasonClosed        = "agent_closed"
	reasonGone          = "agent_not_found"
	reasonExpired       = "not_resolved_in_time"
)

// turn is what a timeline shows of the run of one prompt.
type turn struct {
	found    bool
	reason   string // why it was not found, or is not whole; a word
	marker   paseo.Entry
	rows     []paseo.Entry // of the agent, after the prompt, in this turn
	omitted  int           // rows that were left out, the oldest
	newer    bool          // another prompt came after it
	epoch    string
	latest   *paseo.Cursor // the end of the timeline
	complete bool          // everything from the prompt to the end was read
}

// isPrompt reports whether an entry is the prompt of a dispatch: by its id where
// the daemon keeps it, else by the first line.
func isPrompt(e paseo.Entry, r row) (byID, byMarker bool) {
	if e.Item.Type != "user_message" {
		return false, false
	}
	byID = e.Item.ClientMessageID == r.promptID || e.Item.MessageID == r.promptID
	first, _, _ := strings.Cut(strings.TrimSpace(e.Item.Text), "\n")
	return byID, strings.TrimSpace(first) == marker(r.requestID)
}

// search reads a timeline from its end back to the prompt of a dispatch. Its
// error is one of the daemon's; everything else is in the turn.
func (f *follower) search(ctx context.Context, r row) (turn, error) {
	t := turn{}
	var entries []paseo.Entry // newest page first
	q := paseo.TimelineQuery{AgentID: r.agentID, Limit: MaxLimit}
	for pages := 0; ; pages++ {
		page, err := f.page(ctx, &q)
		if err != nil {
			return t, err
		}
		switch {
		case page.AgentID != "" && page.AgentID != r.agentID, page.Gap, q.Cursor != nil && (page.Reset || page.StaleCursor || page.Epoch != t.epoch):
			t.reason = reasonDiscontinuity
			return t, nil
		case q.Cursor != nil && page.StartCursor != nil && page.StartCursor.Seq >= q.Cursor.Seq:
			t.reason = reasonCursor
			return t, nil
		}
		if q.Cursor == nil {
			t.epoch, t.latest = page.Epoch, page.EndCursor
		}
		entries = append(page.Entries, entries...)
		if done := t.match(entries, r, page.HasOlder); done {
			return t, nil
		}
		if page.StartCursor == nil || pages >= searchPages || len(entries) >= searchEntries {
			if !t.found {
				t.reason = reasonWindow
			}
			return t, nil
		}
		q.Direction, q.Cursor = paseo.Before, page.StartCursor
	}
}

// page reads one page, smaller when the daemon can't give a large one.
func (f *follower) page(ctx context.Context, q *paseo.TimelineQuery) (paseo.TimelinePage, error) {
	for {
		page, err := f.d.Timeline(ctx, *q)
		var no *paseo.Rejected
		if err == nil || q.Limit == 1 || !errors.As(err, &no) || no.Code == paseo.CodeAgentNotFound {
			return page, err
		}
		q.Limit /= 2
	}
}

// match looks for the prompt in what was read so far; done says that reading on
// would change nothing.
func (t *turn) match(entries []paseo.Entry, r row, older bool) (done bool) {
	at, ids, markers := -1, 0, 0
	for i, e := range entries {
		id, mark := isPrompt(e, r)
		if id {
			ids++
		}
		if mark {
			markers++
		}
		if id || mark && ids == 0 {
			at = i
		}
	}
	switch {
	case at < 0:
		t.reason = reasonNoMarker
		return !older
	case ids > 1 || ids == 0 && markers > 1:
		t.reason = reasonAmbiguous
		return true
	case ids == 0 && older && r.epoch == "":
		// Another with the same first line may stand before it: read it all.
		t.take(entries, at)
		return false
	}
	t.take(entries, at)
	return true
}

// take splits what follows the prompt into its turn and what came later.
func (t *turn) take(entries []paseo.Entry, at int) {
	t.found, t.reason, t.complete = true, "", true
	t.marker, t.rows, t.newer, t.omitted = entries[at], nil, false, 0
	id := t.marker.TurnID
	for _, e := range entries[at+1:] {
		user := e.Item.Type == "user_message"
		switch {
		case id != "" && e.TurnID != "" && e.TurnID != id, id == "" && user:
			t.newer = true
		case t.newer && id == "":
		case user:
			t.reason = reasonShared
		case e.Item.Type == "assistant_message" || e.Item.Type == "tool_call" || e.Item.Type == "error":
			t.rows = append(t.rows, e)
		}
	}
}

// lastMessage is the last text of the agent in the turn.
func (t turn) lastMessage() *string {
	for i := len(t.rows) - 1; i >= 0; i-- {
		if t.rows[i].Item.Type == "assistant_message" {
			return &t.rows[i].Item.Text
		}
	}
	return nil
}

func (t turn) cursorOf(e paseo.Entry) *paseo.Cursor {
	if e.SeqEnd == 0 {
		return nil
	}
	return &paseo.Cursor{Epoch: t.epoch, Seq: e.SeqEnd}
}

// GetAgentResult reads one page of an agent's timeline from the daemon. It makes
// the daemon load the agent.
func (s *Service) GetAgentResult(ctx context.Context, who principal.Principal, in GetAgentResultIn) (TimelinePage, error) {
	in.AgentID = lowerUUID(in.AgentID)
	limit, err := checkLimit(in.Limit, DefaultLimit)
	if err != nil {
		return TimelinePage{}, err
	}
	if in.Direction == "" {
		in.Direction = paseo.Tail
	}
	if (in.Direction == paseo.Tail) != (in.Cursor == nil) {
		return TimelinePage{}, fault.InvalidArguments.New("before and after require a cursor, and tail takes none")
	}
	d, ctx, cancel, err := s.reading(ctx, in.HostID)
	if err != nil {
		return TimelinePage{}, err
	}
	defer cancel()
	if _, err := s.agentOf(ctx, who.Owner, d, in.HostID, in.AgentID); err != nil {
		return TimelinePage{}, err
	}
	if err := s.lookFirst(ctx, d, in.HostID, in.AgentID); err != nil {
		return TimelinePage{}, err
	}
	page, err := d.Timeline(ctx, paseo.TimelineQuery{AgentID: in.AgentID, Direction: in.Direction, Cursor: in.Cursor, Limit: limit})
	var rejected *paseo.Rejected
	if errors.As(err, &rejected) && rejected.Code != paseo.CodeAgentNotFound {
		return TimelinePage{}, TimelineUnreadable.New("The daemon did not give this page.").Because(err)
	}
	if err != nil {
		return TimelinePage{}, refusal(ctx, err, in.HostID, false)
	}
	out := TimelinePage{
		AgentID: in.AgentID, Direction: in.Direction, Projection: page.Projection, Epoch: page.Epoch, Gap: page.Gap, Reset: page.Reset, StaleCursor: page.StaleCursor,
		StartCursor: page.StartCursor, EndCursor: page.EndCursor, HasOlder: page.HasOlder, HasNewer: page.HasNewer,
		FetchedAt: Time{s.now()}, RequestedLimit: limit, Source: "paseo-daemon-projected-timeline", OutputLimitBytes: maxOutput, HostID: in.HostID,
	}
	if page.Agent != nil {
		out.Status = page.Agent.Status
	}
	out.fit(page.Entries)
	return out, nil
}

// fit puts as many rows into a page as an answer takes, from the end that the
// caller asked for, and moves the cursors to what is there.
func (p *TimelinePage) fit(entries []paseo.Entry) {
	p.Entries = []json.RawMessage{}
	size := 0
	forward := p.Direction == paseo.After
	kept := 0
	for i := range entries {
		e := entries[len(entries)-1-i]
		if forward {
			e = entries[i]
		}
		if size += len(e.Raw) + 1; size > maxOutput-4096 && kept > 0 {
			break
		}
		kept++
	}
	cut := entries[len(entries)-kept:]
	if forward {
		cut = entries[:kept]
	}
	for _, e := range cut {
		p.Entries = append(p.Entries, slimmed(e.Raw))
	}
	if p.GatewayTruncated = kept < len(entries); !p.GatewayTruncated {
		return
	}
	if forward {
		p.EndCursor, p.HasNewer = &paseo.Cursor{Epoch: p.Epoch, Seq: cut[kept-1].SeqEnd}, true
	} else {
		p.StartCursor, p.HasOlder = &paseo.Cursor{Epoch: p.Epoch, Seq: cut[0].SeqStart}, true
	}
}

// slimmed is a row that fits into an answer: of one that does not, only what it
// is.
func slimmed(raw json.RawMessage) json.RawMessage {
	if len(raw) <= maxOutput-4096 {
		return raw
	}
	var e struct {
		Timestamp string `json:"timestamp,omitempty"`
		TurnID    string `json:"turnId,omitempty"`
		SeqStart  int64  `json:"seqStart"`
		SeqEnd    int64  `json:"seqEnd"`
		Item      struct {
			Type   string `json:"type"`
			Name   string `json:"name,omitempty"`
			Status string `json:"status,omitempty"`
			Text   string `json:"text,omitempty"`
		} `json:"item"`
		Truncated bool `json:"gatewayTruncated"`
	}
	if json.Unmarshal(raw, &e) != nil {
		return json.RawMessage(`{"gatewayTruncated":true}`)
	}
	e.Item.Text, e.Truncated = firstRunes(e.Item.Text, 100_000), true
	slim, err := json.Marshal(e)
	if err != nil {
		return json.RawMessage(`{"gatewayTruncated":true}`)
	}
	return slim
}
