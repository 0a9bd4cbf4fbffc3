package agents

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// SendAgentPrompt gives an agent a prompt, once for a requestId. A running agent
// is busy unless Interrupt is set, for the daemon replaces its run; one that asks
// for a permission is not prompted, for that would cancel the question.
//
// Refusals that use no requestId up: invalid_arguments, key_conflict,
// agent_not_found, agent_busy, permission_pending, auto_accept_refused,
// reply_mismatch, already_replied, unknown_agent_message, no_active_route,
// ambiguous_route, host_unavailable. What goes wrong later stands in the receipt.
func (s *Service) SendAgentPrompt(ctx context.Context, who principal.Principal, in SendAgentPromptIn) (Receipt, error) {
	in.AgentID = lowerUUID(in.AgentID)
	replyTo, err := checkSend(in)
	if err != nil {
		return Receipt{}, err
	}
	if err := s.checkApproval(in.SessionMode, nil); err != nil {
		return Receipt{}, err
	}
	print, err := fingerprint(sendAgentPrompt, map[string]any{
		"agentId": in.AgentID, "prompt": in.Prompt, "sessionMode": in.SessionMode, "interrupt": in.Interrupt, "replyToMessageId": replyTo,
		"notificationRouteId": in.NotificationRouteID, "notify": in.Notify == nil || *in.Notify,
	})
	if err != nil {
		return Receipt{}, err
	}
	content := []byte{}
	if replyTo != "" {
		if content, err = fingerprint("reply", map[string]any{"agentId": in.AgentID, "prompt": in.Prompt, "replyToMessageId": replyTo}); err != nil {
			return Receipt{}, err
		}
	}
	promptID, err := newUUID(s.rand)
	if err != nil {
		return Receipt{}, err
	}
	p := plan{
		row: row{
			hostID: in.HostID, requestID: in.RequestID, tool: sendAgentPrompt, fingerprint: print, content: content,
			agentID: in.AgentID, promptID: promptID,
		},
		replyTo: replyTo, route: in.NotificationRouteID, quiet: in.Notify != nil && !*in.Notify,
		lock: in.HostID + "\x00" + in.AgentID,
	}
	p.admit = func(ctx context.Context, d Daemon, p *plan) error { return s.admitPrompt(ctx, d, p, in.Interrupt) }
	p.give = func(ctx context.Context, d Daemon, r *row) outcome { return s.givePrompt(ctx, d, r, in) }
	return s.dispatch(ctx, who, p)
}

func checkSend(in SendAgentPromptIn) (replyTo string, err error) {
	for _, err := range []error{
		checkRequestID("requestId", in.RequestID), checkText("agentId", in.AgentID, 1, MaxID), checkPrompt("prompt", in.Prompt),
		checkText("sessionMode", in.SessionMode, 0, MaxID), checkRoute(in.NotificationRouteID),
	} {
		if err != nil {
			return "", err
		}
	}
	if in.ReplyToMessageID == nil {
		return "", nil
	}
	if in.Interrupt {
		return "", fault.InvalidArguments.New("interrupt can't be used with replyToMessageId: a reply waits until the agent has ended its turn")
	}
	return checkUUID("replyToMessageId", *in.ReplyToMessageID)
}

// admitPrompt refuses an agent that a prompt would disturb.
func (s *Service) admitPrompt(ctx context.Context, d Daemon, p *plan, interrupt bool) error {
	if err := s.lookFirst(ctx, d, p.hostID, p.agentID); err != nil {
		return err
	}
	a, err := s.agentOf(ctx, p.owner, d, p.hostID, p.agentID)
	if err != nil {
		return err
	}
	if p.cwd, p.workspaceID = a.CWD, a.WorkspaceID; p.workspaceID == "" {
		p.workspaceID = a.CWD // of a daemon without workspaces
	}
	if len(a.PendingPermissions) > 0 && !s.promptOverPermission {
		return PermissionPending.New("The agent waits for a permission.")
	}
	info, _ := d.Info()
	if s.busy(p.hostID, a, info.TurnIDs()) && !interrupt {
		e := AgentBusy.New("The agent is running.")
		if p.replyTo != "" {
			e = e.WithHint("A reply waits until the agent has ended its turn: wait_for_agent_result, then repeat the call.")
		}
		return e
	}
	return nil
}

// busy reports whether a prompt would replace a run. A record that says running
// although the daemon has not loaded the agent is what a crash has left, not a run.
func (s *Service) busy(hostID string, a paseo.Agent, turnIDs bool) bool {
	if f := s.followers[hostID]; f != nil && f.justPrompted(a.ID) {
		return true
	}
	if a.Status == paseo.AgentInitializing || a.Turn == paseo.TurnActive {
		return true
	}
	return a.Status == paseo.AgentRunning && (!turnIDs || a.Turn != paseo.TurnAbsent)
}

func (s *Service) givePrompt(ctx context.Context, d Daemon, r *row, in SendAgentPromptIn) outcome {
	info, _ := d.Info()
	if r.keyed && !info.RequestReceipts() {
		return unkeyed()
	}
	if err := s.noteStep(ctx, r, prompting, info.RequestReceipts()); err != nil {
		return outcome{state: NotSent, err: fault.From(err)}
	}
	if in.SessionMode != "" {
		if err := d.UpdateAgent(ctx, paseo.AgentChange{AgentID: r.agentID, ModeID: in.SessionMode}); err != nil {
			var no *paseo.Rejected
			if errors.As(err, &no) {
				return outcome{state: Rejected, err: rejection(no)}
			}
			out := outcomeOf(err, r.hostID)
			out.state = NotSent // the mode may be set, but the prompt was surely not sent
			return out
		}
	}
	s.crash("prompting")
	out := outcomeOf(d.SendMessage(ctx, paseo.Prompt{AgentID: r.agentID, Text: s.promptText(*r, in.Prompt), MessageID: r.promptID}), r.hostID)
	if out.state == Submitted {
		out.answer = map[string]any{"agentId": r.agentID, "accepted": true}
	}
	return out
}

// messageRow is a message of an agent to the chat that dispatched it.
type messageRow struct {
	id, dispatch int64
	messageID    string
	kind, text   string
	held         bool
	createdAt    int64
	reply        int64 // 0 is none
}

func findMessage(q store.Querier, owner, hostID, messageID string) (m messageRow, err error) {
	err = q.QueryRow(`SELECT id, dispatch, message_id, kind, text, held, created_at, coalesce(reply, 0) FROM agent_messages WHERE owner = ? AND host_id = ? AND message_id = ?`,
		owner, hostID, messageID).Scan(&m.id, &m.dispatch, &m.messageID, &m.kind, &m.text, &m.held, &m.createdAt, &m.reply)
	return m, err
}

// repliedTo returns a message and the dispatch that answers it, if there is one
// that may have been sent.
func repliedTo(q store.Querier, p plan) (m messageRow, reply row, replied bool, err error) {
	if m, err = findMessage(q, p.owner, p.hostID, p.replyTo); err != nil {
		return m, row{}, false, notFound(err, UnknownMessage.New("No agent of this host wrote this message to this owner."))
	}
	source, _, err := find(q, byID, m.dispatch)
	if err != nil {
		return m, row{}, false, err
	}
	if source.agentID != p.agentID {
		return m, row{}, false, ReplyMismatch.New("Another agent wrote this message.")
	}
	if m.reply == 0 {
		return m, row{}, false, nil
	}
	reply, _, err = find(q, byID, m.reply)
	return m, reply, reply.state != Rejected && reply.state != NotSent, err
}

// replied finds the reply that a message has already: the same content is the
// same reply under whatever requestId.
func (s *Service) replied(ctx context.Context, p plan) (original row, found bool, err error) {
	err = store.Read(ctx, s.store, func(q *store.Reader) error {
		_, reply, replied, err := repliedTo(q, p)
		if err != nil || !replied {
			return err
		}
		if !bytes.Equal(reply.content, p.content) {
			return AlreadyReplied.Newf("The message was answered by requestId %s.", reply.requestID)
		}
		original, found = reply, true
		return nil
	})
	return original, found, err
}

// replyReceipt answers the dispatch that a message was answered by; none is the
// empty one of a refusal.
func replyReceipt(original row) Receipt {
	if original.id == 0 {
		return Receipt{}
	}
	receipt := repeated(original)
	receipt.ReplyAlreadySubmitted = true
	return receipt
}

// claimReply makes r the one reply to its message, in the transaction of its
// receipt.
func (s *Service) claimReply(tx *store.Tx, p plan, r row) error {
	if p.replyTo == "" {
		return nil
	}
	m, reply, replied, err := repliedTo(tx, p)
	if err != nil {
		return err
	}
	if replied && reply.id != r.id {
		return AlreadyReplied.Newf("The message was answered by requestId %s.", reply.requestID)
	}
	if _, err := tx.Exec(`UPDATE agent_messages SET reply = ? WHERE id = ?`, r.id, m.id); err != nil {
		return fmt.Errorf("claiming a reply: %w", err)
	}
	return nil
}
