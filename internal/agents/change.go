package agents

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// notFound gives a query without a row the refusal that it means.
func notFound(err error, refusal error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return refusal
	}
	if err != nil {
		return fmt.Errorf("reading: %w", err)
	}
	return nil
}

// CancelAgent ends the run of an agent, if it has one.
func (s *Service) CancelAgent(ctx context.Context, who principal.Principal, in AgentIn) (CancelAgentOut, error) {
	in.AgentID = lowerUUID(in.AgentID)
	d, ctx, cancel, err := s.reading(ctx, in.HostID)
	if err != nil {
		return CancelAgentOut{}, err
	}
	defer cancel()
	a, err := s.agentOf(ctx, who.Owner, d, in.HostID, in.AgentID)
	if err != nil {
		return CancelAgentOut{}, err
	}
	info, _ := d.Info()
	out := CancelAgentOut{AgentID: in.AgentID, Success: s.busy(in.HostID, a, info.TurnIDs()), HostID: in.HostID}
	if err := d.CancelAgent(ctx, in.AgentID); err != nil {
		return CancelAgentOut{}, refusal(ctx, err, in.HostID, true)
	}
	return out, nil
}

// optional reads a string that may be null, which is the provider's default; nil
// is absent.
func optional(name string, raw json.RawMessage) (*string, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var v *string
	if err := json.Unmarshal(raw, &v); err != nil || v != nil && (*v == "" || len(*v) > MaxID) {
		return nil, fault.InvalidArguments.Newf("%s must be null or a string of 1 to %d characters", name, MaxID)
	}
	if v == nil {
		v = new(string)
	}
	return v, nil
}

// UpdateAgent changes the name, labels and settings of an agent. Repeating it is
// harmless.
func (s *Service) UpdateAgent(ctx context.Context, who principal.Principal, in UpdateAgentIn) (UpdateAgentOut, error) {
	in.AgentID = lowerUUID(in.AgentID)
	labels, err := checkLabels(in.Labels)
	if err != nil {
		return UpdateAgentOut{}, err
	}
	if err := checkText("name", in.Name, 0, MaxTitle); err != nil {
		return UpdateAgentOut{}, err
	}
	if err := s.checkApproval(in.Settings.ModeID, in.Settings.Features); err != nil {
		return UpdateAgentOut{}, err
	}
	change := paseo.AgentChange{AgentID: in.AgentID, Name: in.Name, Labels: labels, ModeID: in.Settings.ModeID, Features: in.Settings.Features}
	var errThinking error
	change.Model, err = optional("settings.model", in.Settings.Model)
	change.ThinkingOptionID, errThinking = optional("settings.thinkingOptionId", in.Settings.ThinkingOptionID)
	if err := errors.Join(err, errThinking); err != nil {
		return UpdateAgentOut{}, err
	}
	d, ctx, cancel, err := s.reading(ctx, in.HostID)
	if err != nil {
		return UpdateAgentOut{}, err
	}
	defer cancel()
	if _, err := s.agentOf(ctx, who.Owner, d, in.HostID, in.AgentID); err != nil {
		return UpdateAgentOut{}, err
	}
	if err := d.UpdateAgent(ctx, change); err != nil {
		return UpdateAgentOut{}, refusal(ctx, err, in.HostID, true)
	}
	return UpdateAgentOut{in.AgentID, true, in.HostID}, nil
}

// answer is a checked answer to a permission.
type answer struct {
	RespondToPermissionIn
	behavior    string
	response    json.RawMessage
	fingerprint []byte
}

func checkAnswer(in RespondToPermissionIn) (answer, error) {
	a := answer{RespondToPermissionIn: in}
	var fields map[string]any
	if err := json.Unmarshal(in.Response, &fields); err != nil {
		return a, fault.InvalidArguments.New("response must be an object")
	}
	a.behavior, _ = fields["behavior"].(string)
	allowed := map[string][]string{"allow": {"message", "interrupt"}, "deny": {"updatedInput", "updatedPermissions"}}
	wrong, ok := allowed[a.behavior]
	if !ok {
		return a, fault.InvalidArguments.New("response.behavior must be allow or deny")
	}
	for _, name := range wrong {
		if _, has := fields[name]; has {
			return a, fault.InvalidArguments.Newf("response.%s does not go with behavior %s", name, a.behavior)
		}
	}
	var err error
	if a.response, err = json.Marshal(fields); err != nil {
		return a, fmt.Errorf("writing an answer: %w", err)
	}
	a.fingerprint, err = fingerprint("respond_to_permission", fields)
	return a, err
}

// checkAnswerApproval refuses an answer that sets a mode, or chooses an action, by
// which the agent needs no more answers.
func (s *Service) checkAnswerApproval(a answer) error {
	var r struct {
		Action  string `json:"selectedActionId"`
		Updates []struct {
			Mode string `json:"mode"`
		} `json:"updatedPermissions"`
	}
	if json.Unmarshal(a.response, &r) != nil {
		return fault.InvalidArguments.New("response has a member of another type than its schema says")
	}
	modes := []string{r.Action}
	for _, u := range r.Updates {
		modes = append(modes, u.Mode)
	}
	for _, mode := range modes {
		if err := s.checkApproval(mode, nil); err != nil {
			return err
		}
	}
	return nil
}

// RespondToPermission answers a question that an agent asks, once: the same
// answer again is a duplicate, another one a key_conflict.
func (s *Service) RespondToPermission(ctx context.Context, who principal.Principal, in RespondToPermissionIn) (RespondToPermissionOut, error) {
	in.AgentID = lowerUUID(in.AgentID)
	a, err := checkAnswer(in)
	if err == nil {
		err = s.checkAnswerApproval(a)
	}
	if err != nil {
		return RespondToPermissionOut{}, err
	}
	release, err := s.keys.Acquire(ctx, "permission\x00"+in.HostID+"\x00"+in.AgentID+"\x00"+in.RequestID)
	if err != nil {
		return RespondToPermissionOut{}, err
	}
	defer release()
	stored, found, err := s.answered(ctx, who, a)
	if err != nil || found && stored.State != Unknown {
		return stored, err
	}
	d, ctx, cancel, err := s.reading(ctx, in.HostID)
	if err != nil {
		return RespondToPermissionOut{}, err
	}
	defer cancel()
	agent, err := s.agentOf(ctx, who.Owner, d, in.HostID, in.AgentID)
	if err != nil {
		return RespondToPermissionOut{}, err
	}
	if !asks(agent, in.RequestID) {
		if found {
			stored.Message = "The agent does not ask any more. Whether that is by this answer is not known."
			return stored, nil
		}
		return RespondToPermissionOut{}, PermissionGone.New("The agent does not ask for this permission, or no longer.")
	}
	if err := s.storeAnswer(ctx, who, a, Submitting); err != nil {
		return RespondToPermissionOut{}, err
	}
	sending, stop := context.WithTimeout(context.WithoutCancel(ctx), readBudget)
	defer stop()
	out := RespondToPermissionOut{AgentID: in.AgentID, RequestID: in.RequestID, Behavior: a.behavior, State: Submitted, HostID: in.HostID}
	err = d.RespondPermission(sending, paseo.PermissionAnswer{AgentID: in.AgentID, PermissionID: in.RequestID, Response: a.response})
	switch {
	case paseo.MaybeHappened(err):
		out.State, out.Message = Unknown, "The daemon did not confirm it. Repeat the same call: it is answered again only if the agent still asks."
	case err != nil:
		if forget := s.forgetAnswer(a); forget != nil {
			return RespondToPermissionOut{}, forget
		}
		return RespondToPermissionOut{}, refusal(ctx, err, in.HostID, true)
	}
	return out, s.storeAnswer(sending, who, a, out.State)
}

func asks(a paseo.Agent, permissionID string) bool {
	for _, p := range a.PendingPermissions {
		if p.ID == permissionID {
			return true
		}
	}
	return false
}

// answered returns the answer that a permission has been given already.
func (s *Service) answered(ctx context.Context, who principal.Principal, a answer) (out RespondToPermissionOut, found bool, err error) {
	var owner string
	var print []byte
	err = store.Read(ctx, s.store, func(q *store.Reader) error {
		return q.QueryRow(`SELECT owner, fingerprint, behavior, state FROM permission_answers WHERE host_id = ? AND agent_id = ? AND permission_id = ?`,
			a.HostID, a.AgentID, a.RequestID).Scan(&owner, &print, &out.Behavior, &out.State)
	})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return out, false, nil
	case err != nil:
		return out, false, fmt.Errorf("reading an answer: %w", err)
	case owner != who.Owner || !bytes.Equal(print, a.fingerprint):
		return out, false, fault.KeyConflict.New("This permission was given another answer already.").WithHint("It is answered once. list_pending_permissions shows what is asked now.")
	}
	if out.State == Submitting {
		out.State = Unknown
	}
	out.AgentID, out.RequestID, out.Duplicate, out.HostID = a.AgentID, a.RequestID, true, a.HostID
	return out, true, nil
}

func (s *Service) storeAnswer(ctx context.Context, who principal.Principal, a answer, state State) error {
	return store.Exec(ctx, s.store, func(tx *store.Tx) error {
		_, err := tx.Exec(`INSERT INTO permission_answers (host_id, agent_id, permission_id, owner, client_id, fingerprint, behavior, state, answered_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (host_id, agent_id, permission_id) DO UPDATE SET state = excluded.state`,
			a.HostID, a.AgentID, a.RequestID, who.Owner, who.ClientID, a.fingerprint, a.behavior, state, tx.Now().UnixMilli())
		if err != nil {
			return fmt.Errorf("storing an answer: %w", err)
		}
		return nil
	})
}

// forgetAnswer removes an answer that surely was not given.
func (s *Service) forgetAnswer(a answer) error {
	return store.Exec(context.Background(), s.store, func(tx *store.Tx) error {
		_, err := tx.Exec(`DELETE FROM permission_answers WHERE host_id = ? AND agent_id = ? AND permission_id = ?`, a.HostID, a.AgentID, a.RequestID)
		return err
	})
}
