package agents

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/store"
)

const (
	// lookBudget bounds one look at an agent.
	lookBudget = 30 * time.Second
	// looksAtOnce is how many agents of a host are looked at at the same time.
	looksAtOnce = 4
	// settling is how long after a prompt was accepted its run may not show yet.
	settling = 15 * time.Second
	// giveUpAfter is when what is still unknown is asked for no more.
	giveUpAfter = 7 * 24 * time.Hour
	// lingering is how long an agent is still followed after its last prompt: most
	// agents are prompted again.
	lingering = 10 * time.Minute
	// maxFollowed is how many agents of a host are followed by push; the rest are
	// looked at when they are asked for and at each connection.
	maxFollowed = 2000
)

// follower follows the agents of one host that somebody waits for: it learns from
// the daemon's events that something happened, and looks at the agent then.
type follower struct {
	s      *Service
	hostID string
	d      Daemon // nil until start

	dirty chan struct{} // holds a token when the set of agents may have changed
	slots chan struct{}
	looks locks // of agents

	mu     sync.Mutex
	passes uint64 // looks that were begun
	agents map[string]*agentState
	views  map[int64]view // of dispatches
	// watched are the agents that the daemon streams, sorted; linger is when those
	// were last prompted that may be followed without a dispatch.
	watched []string
	linger  map[string]time.Time
}

// agentState is what is known of a followed agent from events alone.
type agentState struct {
	// promptID is our prompt that was accepted at prompted and whose run has not
	// shown yet.
	promptID string
	prompted time.Time
	// last is the prompt that stands last in the live timeline: its message id, or
	// "-" when it is none of ours; "" when unknown.
	last string
	// sent is, for each dispatch, the connection over which its prompt was given.
	sent map[int64]uint64
	// held is what keeps its mail; "" is nothing.
	held string
	// again says that something happened while the agent was being looked at.
	again, looking bool
}

// view is what was last seen of a dispatch without a result.
type view struct {
	status  string // running, permission, error, timeout
	reason  string
	matched bool
	turnID  string
	agent   *paseo.Agent
	pass    uint64 // the look that saw it
}

func newFollower(s *Service, hostID string) *follower {
	return &follower{
		s: s, hostID: hostID, dirty: make(chan struct{}, 1), slots: make(chan struct{}, looksAtOnce),
		agents: map[string]*agentState{}, views: map[int64]view{}, linger: map[string]time.Time{},
	}
}

// start begins to follow. A host without a daemon is not followed.
func (f *follower) start(context.Context) error {
	d, err := f.s.daemons.Daemon(f.hostID)
	if err != nil {
		f.s.log.Warn("the agents of a host are not followed", "host", f.hostID, "error", err)
		return nil
	}
	f.d = d
	sub := d.Subscribe()
	f.s.work(func() {
		defer sub.Close()
		for {
			e, err := sub.Next(f.s.life)
			if err != nil {
				return
			}
			if err := f.handle(e); err != nil && f.s.life.Err() == nil {
				f.s.log.Error("an event of an agent daemon could not be stored; its agent is looked at again", "host", f.hostID, "error", err)
			}
		}
	})
	f.s.work(f.keepWatch)
	f.resync()
	return nil
}

// state returns what is known of an agent, to be used under f.mu.
func (f *follower) state(agentID string) *agentState {
	st := f.agents[agentID]
	if st == nil {
		st = &agentState{sent: map[int64]uint64{}}
		f.agents[agentID] = st
	}
	return st
}

// sent notes that a dispatch has just been given to the daemon over a connection.
func (f *follower) sent(r row, generation uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := f.state(r.agentID)
	st.sent[r.id] = generation
	if r.state == Submitted && st.last != r.promptID {
		st.promptID, st.prompted = r.promptID, f.s.now()
	}
}

// justPrompted reports whether an agent has been given a prompt of ours whose run
// has not shown yet.
func (f *follower) justPrompted(agentID string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := f.agents[agentID]
	return st != nil && st.promptID != "" && f.s.now().Sub(st.prompted) < settling
}

// shown notes that a run has begun.
func (f *follower) shown(agentID string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if st := f.agents[agentID]; st != nil {
		st.promptID = ""
	}
}

// handle takes one event. What it stores is of the daemon's own words; everything
// else is a hint to look.
func (f *follower) handle(e paseo.Event) error {
	switch e := e.(type) {
	case paseo.Discontinuity:
		f.lost(e.AgentID)
		if e.AgentID == "" {
			f.resync()
		} else {
			f.look(e.AgentID)
		}
	case paseo.AgentUpdated:
		f.updated(e)
	case paseo.RowAdded:
		return f.rowAdded(e)
	case paseo.TurnChanged:
		return f.turnChanged(e)
	case paseo.PermissionRequested:
		f.look(e.AgentID)
	case paseo.PermissionResolved:
		f.look(e.AgentID)
		return f.permissionResolved(e)
	case paseo.AttentionRequired:
		f.look(e.AgentID)
	}
	return nil
}

// lost forgets the order of what was seen live; "" is of all agents.
func (f *follower) lost(agentID string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, st := range f.agents {
		if agentID == "" || id == agentID {
			st.last = ""
		}
	}
}

func (f *follower) updated(e paseo.AgentUpdated) {
	f.mu.Lock()
	st := f.agents[e.Agent.ID]
	f.mu.Unlock()
	if st == nil {
		return
	}
	if e.Agent.Status == paseo.AgentRunning || e.Agent.Turn == paseo.TurnActive {
		f.shown(e.Agent.ID)
		if len(e.Agent.PendingPermissions) == 0 {
			return
		}
	}
	f.look(e.Agent.ID)
}

// rowAdded ties a prompt that appears in the live timeline to its dispatch.
func (f *follower) rowAdded(e paseo.RowAdded) error {
	if e.Item.Type != "user_message" {
		return nil
	}
	rows, err := f.open(f.s.life, byAgent, e.AgentID)
	if err != nil {
		return err
	}
	last := "-"
	for _, r := range rows {
		if id, mark := isPrompt(paseo.Entry{Item: e.Item}, r); id || mark {
			last = r.promptID
			if err := f.seen(r, e.TurnID, e.Epoch, e.Seq); err != nil {
				return err
			}
		}
	}
	f.mu.Lock()
	st := f.state(e.AgentID)
	st.last = last
	if id := st.promptID; id == last || id == e.Item.ClientMessageID || id == e.Item.MessageID {
		st.promptID = ""
	}
	f.mu.Unlock()
	return nil
}

// seen stores where the prompt of a dispatch was found in the live timeline, and
// with it that the daemon has the dispatch.
func (f *follower) seen(r row, turnID, epoch string, seq int64) error {
	return store.Exec(f.s.life, f.s.store, func(tx *store.Tx) error {
		now, _, err := find(tx, byID, r.id)
		if err != nil || now.closedAt != 0 || now.epoch != "" && now.turnID == turnID {
			return err
		}
		pairs := []any{"epoch", epoch, "marker_seq", seq}
		if turnID != "" {
			pairs = append(pairs, "turn_id", turnID)
		}
		if now.state == Unknown {
			pairs = append(pairs, "state", Submitted)
		}
		tx.AfterCommit(func() { f.s.news.tell(r.name()) })
		return set(tx, r.id, pairs...)
	})
}

var endings = map[paseo.TurnPhase]string{paseo.TurnCompleted: turnCompleted, paseo.TurnFailed: turnFailed, paseo.TurnCanceled: turnCanceled}

// turnChanged stores the end of a turn with the dispatch whose turn it is, before
// anything else is asked: it is said once.
func (f *follower) turnChanged(e paseo.TurnChanged) error {
	kind, ended := endings[e.Phase]
	if !ended {
		f.shown(e.AgentID)
		return nil
	}
	defer f.look(e.AgentID)
	rows, err := f.open(f.s.life, byAgent, e.AgentID)
	if err != nil {
		return err
	}
	f.mu.Lock()
	last := ""
	if st := f.agents[e.AgentID]; st != nil {
		last = st.last
	}
	f.mu.Unlock()
	for _, r := range rows {
		mine := r.turnID != "" && r.turnID == e.TurnID || e.TurnID == "" && last == r.promptID
		if mine && r.terminalKind == "" {
			return f.ended(r, kind, strings.TrimSpace(e.Reason))
		}
	}
	return nil
}

func (f *follower) ended(r row, kind, text string) error {
	return store.Exec(f.s.life, f.s.store, func(tx *store.Tx) error {
		tx.AfterCommit(func() { f.s.news.tell(r.name()) })
		return set(tx, r.id, "terminal_kind", kind, "terminal_at", tx.Now().UnixMilli(), "terminal_text", shownText(text, maxSummary))
	})
}

// permissionResolved withdraws what nobody was told of yet.
func (f *follower) permissionResolved(e paseo.PermissionResolved) error {
	rows, err := f.open(f.s.life, byAgent, e.AgentID)
	if err != nil || len(rows) == 0 {
		return err
	}
	return store.Exec(f.s.life, f.s.store, func(tx *store.Tx) error {
		for _, r := range rows {
			if err := moot(tx, f.hostID, e.AgentID, permissionKey(r, e.PermissionID)); err != nil {
				return err
			}
		}
		return nil
	})
}

// open lists the dispatches of an agent that are followed, by [byOpenAgent] or
// [byAgent].
func (f *follower) open(ctx context.Context, which, agentID string) (rows []row, err error) {
	err = store.Read(ctx, f.s.store, func(q *store.Reader) error {
		rows, err = list(q, which, f.hostID, agentID)
		return err
	})
	return rows, err
}

// refresh has the set of followed agents read anew.
func (f *follower) refresh() {
	select {
	case f.dirty <- struct{}{}:
	default:
	}
}

// keepWatch tells the daemon whose events are wanted, whenever that changes.
func (f *follower) keepWatch() {
	for {
		select {
		case <-f.dirty:
		case <-f.s.life.Done():
			return
		}
		f.rewatch(f.s.life)
	}
}

// rewatch reads whose events are wanted and has the daemon stream those.
func (f *follower) rewatch(ctx context.Context) {
	release, err := f.looks.acquire(ctx, "\x00watch")
	if err != nil {
		return
	}
	defer release()
	ids, err := f.wanted(ctx)
	if err != nil {
		if f.s.life.Err() == nil {
			f.s.log.Error("the agents to follow could not be read", "host", f.hostID, "error", err)
		}
		return
	}
	f.mu.Lock()
	watched := f.watched
	f.watched = ids
	f.mu.Unlock()
	if slices.Equal(ids, watched) {
		return
	}
	if err := f.d.Watch(ctx, ids); err != nil && f.s.life.Err() == nil {
		f.s.log.Warn("an agent daemon does not stream its agents", "host", f.hostID, "error", err)
	}
	for _, id := range ids {
		if !slices.Contains(watched, id) {
			f.look(id)
		}
	}
	f.forget(ids)
}

// prepare has the events of an agent streamed before it is given a prompt, so that
// none of its run is missed.
func (f *follower) prepare(ctx context.Context, agentID string) {
	f.mu.Lock()
	f.linger[agentID] = f.s.now()
	_, watched := slices.BinarySearch(f.watched, agentID)
	f.mu.Unlock()
	if f.d != nil && !watched {
		f.rewatch(ctx)
	}
}

// wanted lists the agents that somebody waits for, or did a moment ago; the newest
// if they are too many.
func (f *follower) wanted(ctx context.Context) (ids []string, err error) {
	err = store.Read(ctx, f.s.store, func(q *store.Reader) error {
		return q.Query(func(sc store.Scanner) error {
			var id string
			err := sc.Scan(&id)
			ids = append(ids, id)
			return err
		}, `SELECT agent_id FROM (
			SELECT agent_id, max(id) AS newest FROM dispatches WHERE host_id = ?1 AND closed_at IS NULL AND agent_id <> '' GROUP BY agent_id
			UNION ALL SELECT DISTINCT agent_id, 0 FROM native_deliveries WHERE host_id = ?1 AND prompt IS NULL AND cancelled = ''
			UNION ALL SELECT agent_id, 0 FROM native_prompts WHERE host_id = ?1 AND state = 'unknown'
			) GROUP BY agent_id ORDER BY max(newest) DESC LIMIT ?2`, f.hostID, maxFollowed)
	})
	if err != nil {
		return nil, fmt.Errorf("listing agents to follow: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, since := range f.linger {
		switch {
		case f.s.now().Sub(since) > lingering || len(f.linger) > maxFollowed:
			delete(f.linger, id)
		default:
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	for _, id := range ids {
		f.state(id)
	}
	return ids, nil
}

// forget drops what is known of agents that nobody waits for.
func (f *follower) forget(keep []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, st := range f.agents {
		if _, kept := slices.BinarySearch(keep, id); !kept && !st.looking && (st.promptID == "" || f.s.now().Sub(st.prompted) > settling) {
			delete(f.agents, id)
		}
	}
}

// resync looks at everything: events may have been missed.
func (f *follower) resync() {
	f.refresh()
	f.s.work(func() {
		ctx, cancel := context.WithTimeout(f.s.life, lookBudget)
		defer cancel()
		f.findCreated(ctx)
		ids, err := f.wanted(ctx)
		if err != nil {
			return
		}
		for _, id := range ids {
			f.look(id)
		}
	})
}

// look has an agent looked at soon. Hints that come while it is being looked at
// make one more look.
func (f *follower) look(agentID string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := f.agents[agentID]
	if st == nil || f.d == nil {
		return
	}
	if st.again = true; st.looking {
		return
	}
	st.looking = f.s.work(func() { f.keepLooking(agentID, st) })
}

func (f *follower) keepLooking(agentID string, st *agentState) {
	for {
		f.mu.Lock()
		if st.looking = st.again && f.s.life.Err() == nil; !st.looking {
			f.mu.Unlock()
			return
		}
		st.again = false
		f.mu.Unlock()
		select {
		case f.slots <- struct{}{}:
		case <-f.s.life.Done():
			continue
		}
		ctx, cancel := context.WithTimeout(f.s.life, lookBudget)
		err := f.lookNow(ctx, agentID)
		if err == nil {
			err = f.deliver(ctx, agentID)
		}
		if err != nil && f.s.life.Err() == nil {
			f.s.log.Info("an agent could not be looked at", "host", f.hostID, "agent", agentID, "error", err)
		}
		cancel()
		<-f.slots
	}
}

// lookAfter looks at an agent when d has passed.
func (f *follower) lookAfter(agentID string, d time.Duration) {
	f.s.work(func() {
		select {
		case <-time.After(d):
			f.look(agentID)
		case <-f.s.life.Done():
		}
	})
}

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
	var lost *paseo.Lost
	if errors.As(err, &lost) {
		return refusal(ctx, err, hostID, false)
	}
	return err
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
