package agents

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"time"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/keylock"
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
	looks keylock.Locks[string] // of agents

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
	// "-" when it has none; "" when unknown.
	last string
	// running is the prompt in the live timeline whose turn has not ended, and
	// replaced the one before it whose turn had not either; "" is none.
	running, replaced string
	// sent is, for each dispatch, the connection over which its prompt was given.
	sent map[int64]uint64
	// held is what keeps its mail; "" is nothing.
	held string
	// due is when it is looked at again without being told to; zero is never.
	due time.Time
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
			st.last, st.running, st.replaced = "", "", ""
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
	last := cmp.Or(e.Item.ClientMessageID, e.Item.MessageID, "-") // a prompt about mail has an id of ours too
	info, _ := f.d.Info()
	at := turn{epoch: e.Epoch, marker: paseo.Entry{Item: e.Item, TurnID: e.TurnID}}
	for _, r := range rows {
		id, mark := isPrompt(at.marker, r)
		given := r.epoch == "" && r.state == Submitting && !info.TurnIDs()
		if !id && !mark || !given && !f.live(r, at, info.TurnIDs()) {
			continue
		}
		last = r.promptID
		if err := f.seen(r, e.TurnID, e.Epoch, e.Seq); err != nil {
			return err
		}
	}
	f.mu.Lock()
	st := f.state(e.AgentID)
	st.last = last
	if st.running != last {
		st.replaced, st.running = st.running, last
	}
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
		known := now.epoch != "" && (now.epoch != epoch || now.turnID == turnID && now.state != Unknown)
		if err != nil || now.closedAt != 0 || known {
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
	prompt := f.endedPrompt(e.AgentID, kind)
	for _, r := range rows {
		mine := r.turnID != "" && r.turnID == e.TurnID || e.TurnID == "" && prompt == r.promptID
		if mine && r.terminalKind == "" {
			return f.ended(r, kind, strings.TrimSpace(e.Reason))
		}
	}
	return nil
}

// endedPrompt returns the prompt whose turn has ended, for daemons without turn
// ids. A daemon may write a prompt down before it cancels the run that it replaces.
func (f *follower) endedPrompt(agentID, kind string) (promptID string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := f.agents[agentID]
	if st == nil {
		return ""
	}
	if kind == turnCanceled && st.replaced != "" {
		promptID, st.replaced = st.replaced, ""
		return promptID
	}
	promptID, st.running, st.replaced = st.running, "", ""
	return promptID
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

// lookAfter looks at an agent when d has passed, unless that is due before.
func (f *follower) lookAfter(agentID string, d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	st, due := f.state(agentID), time.Now().Add(d)
	if !st.due.IsZero() && st.due.Before(due) {
		return
	}
	st.due = due
	f.s.work(func() {
		select {
		case <-time.After(d):
		case <-f.s.life.Done():
			return
		}
		f.mu.Lock()
		if st.due.Equal(due) {
			st.due = time.Time{}
		}
		f.mu.Unlock()
		f.look(agentID)
	})
}
