package agents

import (
	"context"
	"fmt"
	"strings"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
	"agentrelay/internal/shellquote"
	"agentrelay/internal/store"
)

// marker is the first line of every dispatched prompt: the only key that survives
// whatever becomes of an agent's timeline.
func marker(requestID string) string { return "[Local Agents requestId: " + requestID + "]" }

// CreateAgent makes an agent in an active workspace and gives it its first
// prompt, once for a requestId.
//
// Refusals that use no requestId up: invalid_arguments, key_conflict,
// reserved_label, auto_accept_refused, workspace_not_found, path_not_allowed,
// no_active_route, ambiguous_route, host_unavailable. What goes wrong later
// stands in the receipt.
func (s *Service) CreateAgent(ctx context.Context, who principal.Principal, in CreateAgentIn) (Receipt, error) {
	provider, model, err := checkCreate(in)
	if err != nil {
		return Receipt{}, err
	}
	labels, err := checkLabels(in.Labels)
	if err != nil {
		return Receipt{}, err
	}
	if err := s.checkApproval(in.Settings.ModeID, in.Settings.Features); err != nil {
		return Receipt{}, err
	}
	print, err := fingerprint(createAgent, map[string]any{
		"workspaceId": in.WorkspaceID, "title": in.Title, "provider": in.Provider, "initialPrompt": in.InitialPrompt, "labels": labels,
		"settings": in.Settings, "notificationRouteId": in.NotificationRouteID, "notify": in.Notify == nil || *in.Notify,
	})
	if err != nil {
		return Receipt{}, err
	}
	promptID, err := newUUID(s.rand)
	if err != nil {
		return Receipt{}, err
	}
	p := plan{
		row: row{
			hostID: in.HostID, requestID: in.RequestID, tool: createAgent, fingerprint: print, content: []byte{},
			workspaceID: in.WorkspaceID, promptID: promptID,
		},
		route: in.NotificationRouteID, quiet: in.Notify != nil && !*in.Notify,
		admit: s.admitCreate,
	}
	p.give = func(ctx context.Context, d Daemon, r *row) outcome {
		for name, value := range map[string]string{requestLabel: r.requestID, dispatchLabel: r.promptID} {
			labels[name] = value
		}
		workspaceID := r.workspaceID
		if strings.HasPrefix(workspaceID, "/") { // of a daemon without workspaces
			workspaceID = ""
		}
		return s.giveAgent(ctx, d, r, paseo.NewAgent{
			Provider: provider, Model: model, CWD: r.cwd, WorkspaceID: workspaceID, Title: in.Title, ModeID: in.Settings.ModeID,
			ThinkingOptionID: in.Settings.ThinkingOptionID, Features: in.Settings.Features, Labels: labels,
			Prompt: s.promptText(*r, in.InitialPrompt), ClientMessageID: r.promptID,
		})
	}
	return s.dispatch(ctx, who, p)
}

func checkCreate(in CreateAgentIn) (provider, model string, err error) {
	provider, model, ok := strings.Cut(in.Provider, "/")
	if !ok || provider == "" || model == "" {
		return "", "", fault.InvalidArguments.New("provider must be provider/model, such as claude/sonnet; list_providers and list_models show them")
	}
	for _, err := range []error{
		checkRequestID("requestId", in.RequestID), checkText("title", in.Title, 1, MaxTitle), checkPrompt("initialPrompt", in.InitialPrompt),
		checkText("workspaceId", in.WorkspaceID, 1, 128), checkText("provider", in.Provider, 1, MaxID), checkRoute(in.NotificationRouteID),
	} {
		if err != nil {
			return "", "", err
		}
	}
	return provider, model, nil
}

func checkRoute(id *string) error {
	if id == nil {
		return nil
	}
	return checkRequestID("notificationRouteId", *id)
}

// admitCreate finds the workspace and refuses one outside the roots. For a daemon
// that has no workspaces yet, the absolute path of a directory stands for one.
func (s *Service) admitCreate(ctx context.Context, d Daemon, p *plan) (err error) {
	if info, connected := d.Info(); connected && !info.Workspaces() {
		if !strings.HasPrefix(p.workspaceID, "/") {
			return WorkspaceNotFound.New("This daemon is too old for workspaces.").WithHint("Give the absolute path of a directory as workspaceId.")
		}
		p.cwd, err = s.within(ctx, p.hostID, p.workspaceID)
		p.workspaceID = p.cwd
		return err
	}
	for q := (paseo.WorkspaceQuery{}); ; {
		page, err := d.ListWorkspaces(ctx, q)
		if err != nil {
			return refusal(ctx, err, p.hostID, false)
		}
		for _, w := range page.Workspaces {
			if w.ID == p.workspaceID {
				p.cwd, err = s.within(ctx, p.hostID, w.Directory)
				return err
			}
		}
		if q.Cursor = page.NextCursor; q.Cursor == "" {
			return WorkspaceNotFound.New("The daemon has no active workspace of this id.")
		}
	}
}

// giveAgent creates an agent. A daemon with durable receipts is given the prompt
// in a second call; for it both can be repeated safely.
func (s *Service) giveAgent(ctx context.Context, d Daemon, r *row, n paseo.NewAgent) outcome {
	prompt := n.Prompt
	info, _ := d.Info()
	if info.RequestReceipts() {
		n.IdempotencyKey, n.Prompt, n.ClientMessageID = r.promptID, "", ""
	} else if r.keyed {
		return unkeyed()
	}
	if r.agentID == "" {
		if err := s.noteStep(ctx, r, creating, n.IdempotencyKey != ""); err != nil {
			return outcome{state: NotSent, err: fault.From(err)}
		}
		a, err := d.CreateAgent(ctx, n)
		s.crash("created")
		if err != nil {
			return outcomeOf(err, r.hostID)
		}
		r.agentID = a.ID
		if n.IdempotencyKey == "" {
			return outcome{state: Submitted, answer: createdAnswer(a)}
		}
		s.follow(ctx, *r)
	}
	if err := s.noteStep(ctx, r, prompting, n.IdempotencyKey != ""); err != nil {
		return outcome{state: NotSent, err: fault.From(err)}
	}
	s.crash("prompting")
	out := outcomeOf(d.SendMessage(ctx, paseo.Prompt{AgentID: r.agentID, Text: prompt, MessageID: r.promptID}), r.hostID)
	out.answer = map[string]string{"agentId": r.agentID}
	return out
}

// unkeyed is the outcome of what was given under a key before, while the daemon
// takes none: without it, it could be done twice.
func unkeyed() outcome {
	return outcome{state: NotSent, err: HostUnavailable.New("The agent daemon is not connected, or takes no keys any more.")}
}

func createdAnswer(a paseo.Agent) map[string]string {
	return map[string]string{"agentId": a.ID, "status": string(a.Status), "workspaceId": a.WorkspaceID}
}

// noteStep stores what is about to be given to the daemon, if that is not on disk
// already.
func (s *Service) noteStep(ctx context.Context, r *row, stage string, keyed bool) error {
	if r.stage == stage && r.keyed == keyed {
		return nil
	}
	r.stage, r.keyed = stage, keyed
	return store.Exec(ctx, s.store, func(tx *store.Tx) error {
		if r.agentID != "" {
			if err := s.agents.Record(tx, r.owner, r.hostID, r.agentID); err != nil {
				return err
			}
		}
		return set(tx, r.id, "stage", stage, "keyed", keyed, "agent_id", r.agentID)
	})
}

// promptText is a prompt as the agent gets it.
func (s *Service) promptText(r row, prompt string) string {
	text := marker(r.requestID) + "\n" + prompt
	program := s.peerAgent(r.hostID)
	if r.routeID == "" || program == "" {
		return text
	}
	return text + fmt.Sprintf("\n\n[How to reach whoever sent this: run %s message --request-id %s --kind message --text \"...\" to report on the way. To ask something, use --kind needs_input and then end your turn; an answer comes as a new prompt. It answers that the message is stored, no more. Put no credentials into it.]", shellquote.Word(program), r.requestID)
}
