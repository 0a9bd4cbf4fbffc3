package agents

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// acceptWait is how long a message waits for the receipt of the prompt that made
// its agent: agents can be faster than the daemon's answer.
const acceptWait = 5 * time.Second

// AcceptAgentMessage stores what an agent writes to the chat that dispatched it.
// The caller has made sure that it is this agent, and whose it is now: what it was
// given when it was another owner's does not count. It is stored whether or not
// anybody is subscribed; needs_input is told when the agent is idle. duplicate
// reports that this messageId was stored before, with the same content.
//
// Refusals: invalid_arguments, key_conflict, request_not_authorized.
func (s *Service) AcceptAgentMessage(ctx context.Context, owner, hostID, agentID, requestID, messageID, kind, text string) (duplicate bool, err error) {
	if err := checkRequestID("requestId", requestID); err != nil {
		return false, err
	}
	if messageID, err = checkUUID("messageId", messageID); err != nil {
		return false, err
	}
	if kind != messageNotice && kind != needsInputNotice {
		return false, fault.InvalidArguments.New("kind must be message or needs_input")
	}
	if n := utf8.RuneCountInString(text); n < 1 || n > MaxMessage || !utf8.ValidString(text) {
		return false, fault.InvalidArguments.Newf("text must have 1 to %d characters", MaxMessage)
	}
	agentID = lowerUUID(agentID)
	r, err := s.dispatchOfAgent(ctx, owner, hostID, agentID, requestID)
	if err != nil {
		return false, err
	}
	duplicate, err = store.Write(ctx, s.store, func(tx *store.Tx) (bool, error) { return s.acceptMessage(tx, r.id, messageID, kind, text) })
	if err == nil && kind == needsInputNotice {
		if f := s.followers[hostID]; f != nil {
			f.look(agentID)
		}
	}
	return duplicate, err
}

// dispatchOfAgent finds the dispatch that an agent names. One whose agent is not
// known yet may become known in a moment.
func (s *Service) dispatchOfAgent(ctx context.Context, owner, hostID, agentID, requestID string) (row, error) {
	ctx, cancel := context.WithTimeout(ctx, acceptWait)
	defer cancel()
	no := NotAuthorized.New("This agent was given no prompt with this requestId.")
	for {
		var found, pending row
		err := store.Read(ctx, s.store, func(q *store.Reader) error {
			rows, err := list(q, `WHERE owner = ? AND host_id = ? AND agent_id = ? AND request_id = ? AND state NOT IN ('rejected', 'not_sent') ORDER BY id DESC LIMIT 1`, owner, hostID, agentID, requestID)
			if err == nil && len(rows) == 0 {
				rows, err = list(q, `WHERE owner = ? AND host_id = ? AND closed_at IS NULL AND agent_id = '' AND request_id = ? AND tool = 'create_agent' AND state IN ('submitting', 'unknown') ORDER BY id DESC LIMIT 1`, owner, hostID, requestID)
			}
			for _, r := range rows {
				if found = r; r.agentID == "" {
					found, pending = row{}, r
				}
			}
			return err
		})
		if err != nil || found.id != 0 {
			return found, err
		}
		if pending.id == 0 {
			return row{}, no
		}
		changed, stop := s.news.follow(pending.name())
		if pending.state == Unknown {
			s.askFor(ctx, pending)
		}
		select {
		case <-changed:
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			stop()
			return row{}, no
		}
		stop()
	}
}

func (s *Service) acceptMessage(tx *store.Tx, dispatch int64, messageID, kind, text string) (duplicate bool, err error) {
	r, _, err := find(tx, byID, dispatch)
	if err != nil {
		return false, err
	}
	switch m, err := findMessage(tx, r.owner, r.hostID, messageID); {
	case err == nil && m.dispatch == r.id && m.kind == kind && m.text == text:
		return true, nil
	case err == nil:
		return false, fault.KeyConflict.New("messageId was used for another message.").WithHint("Give this message a new UUID.")
	case !errors.Is(err, sql.ErrNoRows):
		return false, fmt.Errorf("reading an agent's message: %w", err)
	}
	running := kind == needsInputNotice && r.closedAt == 0
	_, err = tx.Exec(`INSERT INTO agent_messages (owner, host_id, message_id, dispatch, kind, text, held, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
		r.owner, r.hostID, messageID, r.id, kind, []byte(text), running, tx.Now().UnixMilli())
	if err != nil {
		return false, fmt.Errorf("storing an agent's message: %w", err)
	}
	if running {
		return false, nil
	}
	n := notice{key: "message:" + messageID, kind: kind, messageID: messageID, summary: text}
	if kind == needsInputNotice {
		n.ready, n.terminalKind = true, r.terminalKind
	}
	return false, s.notify(tx, r, n)
}

// GetAgentMessage reads a message that an agent wrote; it asks no host.
func (s *Service) GetAgentMessage(ctx context.Context, who principal.Principal, in GetAgentMessageIn) (AgentMessage, error) {
	id, err := checkUUID("messageId", in.MessageID)
	if err != nil {
		return AgentMessage{}, err
	}
	var out AgentMessage
	err = store.Read(ctx, s.store, func(q *store.Reader) error {
		m, err := findMessage(q, who.Owner, in.HostID, id)
		if err != nil {
			return notFound(err, UnknownMessage.New("No agent of this host wrote this message to this owner."))
		}
		r, _, err := find(q, byID, m.dispatch)
		if err != nil {
			return err
		}
		out = AgentMessage{
			MessageID: m.messageID, RequestID: r.requestID, AgentID: r.agentID, Kind: m.kind, Text: m.text, CreatedAt: at(m.createdAt),
			WorkspaceID: r.workspaceID, RouteID: r.routeID, TurnID: pointer(r.turnID), Source: "local-agent-message", HostID: in.HostID,
		}
		if err := q.QueryRow(`SELECT count(*) > 0 FROM dispatch_notices WHERE dispatch = ? AND source_key = ? AND published_at IS NOT NULL`,
			r.id, "message:"+m.messageID).Scan(&out.Emitted); err != nil {
			return fmt.Errorf("reading a notice: %w", err)
		}
		if m.reply == 0 {
			return nil
		}
		reply, _, err := find(q, byID, m.reply)
		out.ReplyRequestID = &reply.requestID
		return err
	})
	return out, err
}
