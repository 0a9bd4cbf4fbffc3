package paseo

import (
	"encoding/json"
	"slices"
)

// message is what comes in a session envelope; type is that of the message.
type message struct {
	kind    string
	payload json.RawMessage
}

// decodeFrame reads one frame. The payload is a copy, so the frame's bytes can be
// used again. session is false for frames outside a session, like pong.
func decodeFrame(data []byte) (m message, session bool) {
	var envelope struct {
		Type    text                 `json:"type"`
		Message lenient[messageWire] `json:"message"`
	}
	if json.Unmarshal(data, &envelope) != nil {
		return message{}, false
	}
	if envelope.Type != "session" {
		return message{kind: string(envelope.Type)}, false
	}
	return message{string(envelope.Message.v.Type), envelope.Message.v.Payload}, true
}

type messageWire struct {
	Type    text            `json:"type"`
	Payload json.RawMessage `json:"payload"`
}

// handle routes one frame: news to the subscribers, answers to their calls.
// What it can't read it passes over.
func (cn *conn) handle(data []byte) {
	m, session := decodeFrame(data)
	if !session {
		return
	}
	size := len(data)
	switch m.kind {
	case "agent_stream":
		cn.stream(m.payload, size)
		return
	case "agent_update":
		if e, ok := decodeUpdate(m.payload); ok {
			cn.c.publish(e, size)
		}
		return
	case "agent_permission_request":
		if e, ok := decodeAsked(m.payload); ok {
			cn.c.publish(e, size)
		}
		return
	case "agent_permission_resolved":
		if e, ok := decodeResolved(m.payload); ok {
			cn.c.publish(e, size)
			cn.settle(e.AgentID, e.PermissionID, answer{payload: m.payload})
		}
		return
	case "agent_attention_required":
		// Others hear of it in the stream.
		if e, ok := decodeAttention(m.payload); ok && cn.info.SelectiveTimeline() {
			cn.c.publish(e, size)
		}
		return
	case "agent.timeline.replacement":
		cn.replaced(m.payload)
		return
	case "rpc_error":
		id, err := asRPCError(m.payload)
		cn.deliver(id, answer{err: err})
		cn.settle("", id, answer{err: err})
		return
	}
	var w struct {
		RequestID text `json:"requestId"`
	}
	if json.Unmarshal(m.payload, &w) == nil && w.RequestID != "" {
		cn.deliver(string(w.RequestID), answer{payload: m.payload})
	}
}

// replaced notes that a timeline was replaced as a whole.
func (cn *conn) replaced(payload []byte) {
	var w struct {
		AgentID text `json:"agentId"`
	}
	if json.Unmarshal(payload, &w) == nil && w.AgentID != "" {
		delete(cn.rows, string(w.AgentID))
		cn.c.publish(Discontinuity{AgentID: string(w.AgentID), Reason: Replacement}, 0)
	}
}

type streamWire struct {
	AgentID   text           `json:"agentId"`
	Timestamp text           `json:"timestamp"`
	Seq       lenient[int64] `json:"seq"`
	Epoch     text           `json:"epoch"`
	TurnID    text           `json:"turnId"`
	Event     lenient[struct {
		Type   text            `json:"type"`
		TurnID text            `json:"turnId"`
		Item   json.RawMessage `json:"item"`
		Error  text            `json:"error"`
		Reason text            `json:"reason"`
		Code   text            `json:"code"`
	}] `json:"event"`
}

// stream takes an agent_stream message: turns and rows of watched agents.
func (cn *conn) stream(payload []byte, size int) {
	e, ok := decodeStream(payload)
	if !ok {
		return
	}
	switch e := e.(type) {
	case AttentionRequired:
		if !cn.info.SelectiveTimeline() {
			cn.c.publish(e, size)
		}
	case TurnChanged:
		if cn.c.isWatched(e.AgentID) {
			cn.c.publish(e, size)
		}
	case RowAdded:
		if !cn.c.isWatched(e.AgentID) {
			return
		}
		if reason := cn.rows.next(e); reason != "" {
			cn.c.publish(Discontinuity{AgentID: e.AgentID, Reason: reason}, 0)
		}
		cn.c.publish(e, size)
	}
}

var turnPhases = map[text]TurnPhase{
	"turn_started": TurnStarted, "turn_completed": TurnCompleted, "turn_failed": TurnFailed, "turn_canceled": TurnCanceled,
}

// decodeStream reads an agent_stream message. Permissions are left out of it:
// every version sends those as messages of their own too.
func decodeStream(payload []byte) (Event, bool) {
	var w streamWire
	if json.Unmarshal(payload, &w) != nil || w.AgentID == "" {
		return nil, false
	}
	agent, event := string(w.AgentID), w.Event.v
	turn := event.TurnID
	if turn == "" {
		turn = w.TurnID
	}
	if phase, ok := turnPhases[event.Type]; ok {
		reason := event.Reason
		if reason == "" {
			reason = event.Error
		}
		return TurnChanged{AgentID: agent, Phase: phase, TurnID: string(turn), Reason: string(reason), Code: string(event.Code), Timestamp: string(w.Timestamp)}, true
	}
	switch event.Type {
	case "timeline":
		if len(event.Item) == 0 {
			return nil, false
		}
		return RowAdded{
			AgentID: agent, Epoch: string(w.Epoch), Seq: w.Seq.v, TurnID: string(turn),
			Timestamp: string(w.Timestamp), Item: decodeItem(event.Item),
		}, true
	case "attention_required":
		return AttentionRequired{AgentID: agent, Reason: string(event.Reason), Timestamp: string(w.Timestamp)}, true
	}
	return nil, false
}

func decodeUpdate(payload []byte) (AgentUpdated, bool) {
	var w struct {
		Kind    text            `json:"kind"`
		Agent   json.RawMessage `json:"agent"`
		AgentID text            `json:"agentId"`
	}
	if json.Unmarshal(payload, &w) != nil {
		return AgentUpdated{}, false
	}
	if w.Kind == "remove" {
		return AgentUpdated{Agent: Agent{ID: string(w.AgentID), Turn: TurnAbsent}, Removed: true}, w.AgentID != ""
	}
	agent, ok := decodeAgent(w.Agent)
	return AgentUpdated{Agent: agent}, ok
}

func decodeAsked(payload []byte) (PermissionRequested, bool) {
	var w struct {
		AgentID text            `json:"agentId"`
		Request json.RawMessage `json:"request"`
	}
	if json.Unmarshal(payload, &w) != nil || w.AgentID == "" {
		return PermissionRequested{}, false
	}
	permission, ok := decodePermission(w.Request)
	return PermissionRequested{string(w.AgentID), permission}, ok
}

func decodeResolved(payload []byte) (PermissionResolved, bool) {
	var w struct {
		AgentID    text            `json:"agentId"`
		RequestID  text            `json:"requestId"`
		Resolution json.RawMessage `json:"resolution"`
	}
	if json.Unmarshal(payload, &w) != nil || w.AgentID == "" || w.RequestID == "" {
		return PermissionResolved{}, false
	}
	var resolution struct {
		Behavior text `json:"behavior"`
	}
	_ = json.Unmarshal(w.Resolution, &resolution)
	return PermissionResolved{string(w.AgentID), string(w.RequestID), string(resolution.Behavior), slices.Clone(w.Resolution)}, true
}

func decodeAttention(payload []byte) (AttentionRequired, bool) {
	var w struct {
		AgentID   text `json:"agentId"`
		Reason    text `json:"reason"`
		Timestamp text `json:"timestamp"`
	}
	if json.Unmarshal(payload, &w) != nil || w.AgentID == "" {
		return AttentionRequired{}, false
	}
	return AttentionRequired{string(w.AgentID), string(w.Reason), string(w.Timestamp)}, true
}

// rowTracker knows the last row of each watched agent on this connection.
type rowTracker map[string]Cursor

// next notes a row, and says what is wrong with its place; "" is nothing. Rows
// without an epoch have no place.
func (t rowTracker) next(row RowAdded) DiscontinuityReason {
	if row.Epoch == "" {
		return ""
	}
	last, known := t[row.AgentID]
	t[row.AgentID] = Cursor{row.Epoch, row.Seq}
	switch {
	case !known:
		return ""
	case last.Epoch != row.Epoch:
		return EpochChanged
	case row.Seq <= last.Seq:
		return SequenceReset
	case row.Seq > last.Seq+1:
		return SequenceGap
	}
	return ""
}
