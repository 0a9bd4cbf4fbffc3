package agents

import (
	"context"
	"fmt"
	"slices"

	"agentrelay/internal/store"
)

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
	release, err := f.looks.Acquire(ctx, "\x00watch")
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

// wantedAgents is the agents of a host with something to follow, newest first.
const wantedAgents = `SELECT agent_id FROM (
	SELECT agent_id, max(id) AS newest FROM dispatches WHERE host_id = ?1 AND closed_at IS NULL AND agent_id <> '' GROUP BY agent_id
	UNION ALL SELECT DISTINCT agent_id, 0 FROM native_deliveries WHERE host_id = ?1 AND prompt IS NULL AND cancelled = ''
	UNION ALL SELECT agent_id, 0 FROM native_prompts WHERE host_id = ?1 AND state = 'unknown' AND submitted_at > ?3
	) GROUP BY agent_id ORDER BY max(newest) DESC LIMIT ?2`

// wanted lists the agents that somebody waits for, or did a moment ago; the newest
// if they are too many.
func (f *follower) wanted(ctx context.Context) (ids []string, err error) {
	err = store.Read(ctx, f.s.store, func(q *store.Reader) error {
		return q.Query(func(sc store.Scanner) error {
			var id string
			err := sc.Scan(&id)
			ids = append(ids, id)
			return err
		}, wantedAgents, f.hostID, maxFollowed, f.s.now().Add(-giveUpAfter).UnixMilli())
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
		if _, kept := slices.BinarySearch(keep, id); !kept && !st.looking && st.due.IsZero() && (st.promptID == "" || f.s.now().Sub(st.prompted) > settling) {
			delete(f.agents, id)
		}
	}
}
