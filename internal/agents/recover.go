package agents

import (
	"context"
	"errors"
	"slices"
	"time"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/store"
)

// lookFirst looks at an agent that is followed before something makes the daemon
// load it: that turns the record of a run which a restart has ended into an idle
// agent, and nothing shows any more that its outcome is unknown.
func (s *Service) lookFirst(ctx context.Context, _ Daemon, hostID, agentID string) error {
	f := s.followers[hostID]
	if f == nil || f.d == nil {
		return nil
	}
	rows, err := f.open(ctx, byOpenAgent, agentID)
	if err != nil || len(rows) == 0 {
		return err
	}
	err = f.lookNow(ctx, agentID)
	var no *paseo.Rejected
	if errors.As(err, &no) {
		return nil // the snapshot was taken, and the daemon has loaded the agent: nothing more can be hidden
	}
	return refusal(ctx, err, hostID, false)
}

// askFor asks the daemon for a dispatch of unknown outcome; it reports whether the
// daemon could be asked.
func (s *Service) askFor(ctx context.Context, r row) bool {
	f := s.followers[r.hostID]
	if f == nil || f.d == nil || r.tool == createWorkspace {
		return false
	}
	if _, connected := f.d.Info(); !connected {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if r.agentID == "" {
		return f.findCreation(ctx, r) == nil
	}
	return f.lookNow(ctx, r.agentID) == nil
}

// findCreated looks for agents that may have been created.
func (f *follower) findCreated(ctx context.Context) {
	var rows []row
	err := store.Read(ctx, f.s.store, func(q *store.Reader) (err error) {
		rows, err = list(q, byLostCreation, f.hostID)
		return err
	})
	for _, r := range rows {
		if err == nil {
			err = f.findCreation(ctx, r)
		}
	}
	if err != nil && f.s.life.Err() == nil {
		f.s.log.Info("agents of unknown outcome could not be asked for", "host", f.hostID, "error", err)
	}
}

// findCreation looks for the agent that carries the label of a dispatch.
func (f *follower) findCreation(ctx context.Context, r row) error {
	page, err := f.d.FetchAgents(ctx, paseo.AgentQuery{Labels: map[string]string{dispatchLabel: r.promptID}, IncludeArchived: true, Limit: 2})
	if err != nil {
		return err
	}
	// A daemon that does not know the filter answers with anybody.
	agents := slices.DeleteFunc(page.Agents, func(a paseo.Agent) bool { return a.Labels[dispatchLabel] != r.promptID })
	if len(agents) != 1 {
		return f.expire(ctx, r)
	}
	a := agents[0]
	_, err = store.Write(ctx, f.s.store, func(tx *store.Tx) (struct{}, error) {
		now, _, err := find(tx, byID, r.id)
		if err != nil || now.state != Unknown || now.agentID != "" {
			return struct{}{}, err
		}
		now.agentID = a.ID
		// With a key the prompt comes in a second call, and that was never made.
		out := outcome{state: Submitted, answer: createdAnswer(a)}
		if now.keyed {
			out = outcome{state: NotSent, err: HostUnavailable.New("The agent was created, and the gateway stopped before it gave it the prompt.").
				WithHint("Repeat the call with the same requestId: the same agent is given the prompt.")}
		}
		now.errCode, now.errMessage, now.errHint = "", "", ""
		_, err = f.s.settleIn(tx, now, out)
		return struct{}{}, err
	})
	if err == nil {
		f.refresh()
	}
	return err
}

// expire ends the search for a dispatch that nobody finds.
func (f *follower) expire(ctx context.Context, r row) error {
	if f.s.now().UnixMilli()-r.submittedAt < giveUpAfter.Milliseconds() {
		return nil
	}
	return f.lose(ctx, r, reasonExpired, turn{})
}
