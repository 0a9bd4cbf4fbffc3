package paseo

import (
	"context"
	"encoding/json"
	"time"
)

// Finish is the daemon's answer to a wait.
type Finish struct {
	// Status is idle, error, permission or timeout. Idle is a lie for an agent that
	// is not loaded: look at Final.Status and Final.Turn. It also speaks of the
	// agent, not of one prompt.
	Status string
	// Final is the snapshot at the end; nil if the daemon sent none.
	Final *Agent
	Error string
	// LastMessage is what the daemon remembers, of whatever turn.
	LastMessage string
}

// waitSlack is left of a caller's deadline for the daemon's own timeout answer.
const waitSlack = 250 * time.Millisecond

// WaitForFinish waits at the daemon until the agent is not running, at most for
// timeout and until ctx's deadline; 0 is no timeout. It loads nothing.
func (c *Client) WaitForFinish(ctx context.Context, id string, timeout time.Duration) (Finish, error) {
	cn, err := c.ready(ctx)
	if err != nil {
		return Finish{}, err
	}
	// The daemon is always told when to give up, else every abandoned wait would
	// stay with it until the agent finishes.
	if deadline, bounded := ctx.Deadline(); bounded {
		left := max(time.Until(deadline)-waitSlack, time.Millisecond)
		if timeout == 0 || left < timeout {
			timeout = left
		}
	}
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout+c.o.CallTimeout)
		defer cancel()
	}
	payload, err := cn.call(ctx, "wait_for_finish_request", fields{"agentId": id, "timeoutMs": omitZero(timeout.Milliseconds())})
	if err != nil {
		return Finish{}, notFoundAs(err)
	}
	return decodeFinish(payload)
}

func decodeFinish(payload []byte) (Finish, error) {
	var w struct {
		Status      text            `json:"status"`
		Final       json.RawMessage `json:"final"`
		Error       text            `json:"error"`
		LastMessage text            `json:"lastMessage"`
	}
	if json.Unmarshal(payload, &w) != nil || w.Status == "" {
		return Finish{}, unreadable("end of a wait")
	}
	f := Finish{Status: string(w.Status), Error: string(w.Error), LastMessage: string(w.LastMessage)}
	if agent, ok := decodeAgent(w.Final); ok {
		f.Final = &agent
	}
	return f, nil
}

// PermissionAnswer answers a permission.
type PermissionAnswer struct {
	AgentID      string
	PermissionID string
	// Response is the daemon's union as JSON: {"behavior":"allow", …} or
	// {"behavior":"deny", …}.
	Response json.RawMessage
}

// RespondPermission answers a pending permission and returns when the daemon has
// announced it as resolved so. A permission that isn't pending, or that somebody
// else answered otherwise, is [Rejected] with CodePermissionNotPending.
func (c *Client) RespondPermission(ctx context.Context, a PermissionAnswer) error {
	var response struct{ Behavior string }
	if json.Unmarshal(a.Response, &response) != nil || response.Behavior != "allow" && response.Behavior != "deny" {
		return refuse("A response has behavior allow or deny.")
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.o.CallTimeout)
		defer cancel()
	}
	cn, err := c.ready(ctx)
	if err != nil {
		return err
	}
	got := cn.listen(a.AgentID, a.PermissionID)
	defer cn.forget(a.PermissionID, got)
	// Old daemons say nothing to an answer nobody asked for, so look first; and
	// listen before looking, so as to hear of an answer that comes between.
	agent, err := c.FetchAgent(ctx, a.AgentID)
	if MaybeHappened(err) {
		return &NotSent{Reason: "The daemon did not say whether the permission is still pending.", cause: err}
	}
	if err != nil {
		return err
	}
	if !pending(agent, a.PermissionID) || len(got) > 0 {
		return &Rejected{Message: "No pending permission request with that id.", Code: CodePermissionNotPending}
	}
	return cn.respond(ctx, a, response.Behavior, got)
}

func pending(a Agent, permissionID string) bool {
	for _, p := range a.PendingPermissions {
		if p.ID == permissionID {
			return true
		}
	}
	return false
}
