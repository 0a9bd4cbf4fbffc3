package migrate

import (
	"fmt"
	"slices"

	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// peer is a peer whose id several owners use.
type peer struct {
	id          int64
	owner, name string
	stopped     bool
	bound       bool // something still wakes it
	seen        int64
}

// live reports whether a peer has to keep its id: somebody may write to it, or
// something still belongs to it.
func (p peer) live() bool { return !p.stopped || p.bound }

const samePeers = `SELECT p.id, p.owner, p.peer_id, p.stopped_at IS NOT NULL, p.last_seen_at,
		EXISTS (SELECT 1 FROM event_subscriptions s WHERE s.owner = p.owner AND s.name = 'peer.message' AND s.arguments = '{"peerId":"' || p.peer_id || '"}' AND s.ended_at IS NULL)
		OR EXISTS (SELECT 1 FROM event_wake_targets w WHERE w.owner = p.owner AND w.peer_id = p.peer_id AND w.disabled_at IS NULL)
	FROM mailbox_peers p WHERE p.peer_id IN (SELECT peer_id FROM mailbox_peers GROUP BY peer_id HAVING count(*) > 1) ORDER BY p.peer_id, p.owner`

// peers settles ids that several owners use: the one that is alive keeps it, of
// stopped ones the one that was seen last, and the others get another id. Two that are
// alive are a conflict.
func (m *shared) peers() error {
	m.renamed = map[[2]string]string{}
	groups := map[string][]peer{}
	var names []string
	err := m.tx.Query(func(s store.Scanner) error {
		var p peer
		if err := s.Scan(&p.id, &p.owner, &p.name, &p.stopped, &p.seen, &p.bound); err != nil {
			return err
		}
		if groups[p.name] == nil {
			names = append(names, p.name)
		}
		groups[p.name] = append(groups[p.name], p)
		return nil
	}, samePeers)
	if err != nil {
		return fmt.Errorf("comparing peers: %w", err)
	}
	for _, name := range names {
		group := groups[name]
		// The first keeps the id.
		slices.SortStableFunc(group, func(a, b peer) int {
			switch {
			case a.live() != b.live() && a.live(), a.live() == b.live() && a.seen > b.seen:
				return -1
			case a.live() == b.live() && a.seen == b.seen:
				return 0
			}
			return 1
		})
		if group[1].live() {
			m.conflict(peerConflict(group))
			continue
		}
		for _, p := range group[1:] {
			if err := m.archivePeer(p); err != nil {
				return err
			}
		}
	}
	return m.agentsOnce()
}

func peerConflict(group []peer) Conflict {
	c := Conflict{What: "peer", Name: group[0].name, Why: "More than one of them is in use."}
	for _, p := range group {
		if p.live() {
			c.Owners = append(c.Owners, p.owner)
		}
	}
	last := c.Owners[len(c.Owners)-1]
	c.Next = fmt.Sprintf("Stop all but one, for example with: gateway peers stop %s --owner %s", c.Name, last)
	return c
}

// archivePeer gives a stopped peer another id, wherever the id stands.
func (m *shared) archivePeer(p peer) error {
	to := archived(p.name, p.owner)
	m.renamed[[2]string{p.owner, p.name}] = to
	m.report.Renamed = append(m.report.Renamed, Renamed{"peer", p.owner, p.name, to})
	statements := []struct{ table, set string }{
		{`mailbox_peers`, `SET peer_id = ?3 WHERE owner = ?1 AND peer_id = ?2`},
		{`events`, `SET peer_id = ?3 WHERE owner = ?1 AND peer_id = ?2`},
		{`event_wake_targets`, `SET peer_id = ?3 WHERE owner = ?1 AND peer_id = ?2`},
		{`event_subscriptions`, `SET arguments = '{"peerId":"' || ?3 || '"}' WHERE owner = ?1 AND name = 'peer.message' AND arguments = '{"peerId":"' || ?2 || '"}'`},
		{`native_deliveries`, `SET peer_id = ?3 WHERE owner = ?1 AND peer_id = ?2`},
		{`native_deliveries`, `SET from_peer = ?3 WHERE owner = ?1 AND from_peer = ?2`},
	}
	for _, s := range statements {
		if _, err := m.tx.Exec(`UPDATE `+s.table+` `+s.set, p.owner, p.name, to); err != nil {
			return fmt.Errorf("giving a stopped peer another id: %w", err)
		}
	}
	return nil
}

// agentsOnce finds agents that two owners have as a peer.
func (m *shared) agentsOnce() error {
	err := m.tx.Query(func(s store.Scanner) error {
		var host, agent string
		if err := s.Scan(&host, &agent); err != nil {
			return err
		}
		m.conflict(Conflict{What: "agent", Name: host + "/" + agent, Why: "Several peers in use are this agent.", Next: "Stop all but one: gateway peers list --all shows them, gateway peers stop ends one."})
		return nil
	}, `SELECT host_id, agent_id FROM mailbox_peers WHERE kind = 'local' AND stopped_at IS NULL GROUP BY host_id, agent_id HAVING count(*) > 1`)
	if err != nil {
		return fmt.Errorf("comparing the agents of peers: %w", err)
	}
	return nil
}

// subscriptions settles those that are the same but for their owner: the newer one
// stays, and what was on its way to the other goes to it.
func (m *shared) subscriptions() error {
	type subscription struct {
		id, owner, key string
	}
	var all []subscription
	err := m.tx.Query(func(s store.Scanner) error {
		var x subscription
		err := s.Scan(&x.id, &x.owner, &x.key)
		all = append(all, x)
		return err
	}, `SELECT id, owner, receiver || ' ' || name || ' ' || arguments FROM event_subscriptions s
		WHERE (SELECT count(*) FROM event_subscriptions o WHERE o.receiver = s.receiver AND o.name = s.name AND o.arguments = s.arguments) > 1
		ORDER BY receiver, name, arguments, ended_at IS NOT NULL, refreshed_at DESC, owner = ? DESC, id`, principal.SharedOwner)
	if err != nil {
		return fmt.Errorf("comparing subscriptions: %w", err)
	}
	stays := map[string]string{}
	for _, x := range all {
		into, other := stays[x.key]
		if !other {
			stays[x.key] = x.id
			continue
		}
		m.report.Merged = append(m.report.Merged, Merged{x.id, x.owner, into})
		for _, statement := range []string{
			`UPDATE event_deliveries SET subscription = ?2 WHERE subscription = ?1`,
			`DELETE FROM event_subscriptions WHERE id = ?1 AND ?2 <> ''`,
		} {
			if _, err := m.tx.Exec(statement, x.id, into); err != nil {
				return fmt.Errorf("making two subscriptions one: %w", err)
			}
		}
	}
	return nil
}
