package mailbox

import (
	"fmt"

	"agentrelay/internal/store"
)

// AgentPeer is a peer of kind local as its agent's channel needs it.
type AgentPeer struct {
	PeerID     string `json:"peerId"`
	Generation int64  `json:"generation"`
	State      State  `json:"state"`
}

// Agent is a native agent that calls. It is set by the channel that serves it, nil
// for every other caller, and no argument of a tool. An agent acts in the name of
// peers that are bound to it, and is shown nothing that was sent to an earlier
// generation of one, in pages and counts neither. That is decided in the
// transaction of the call, and again for each page that a call has waited for.
//
// Refusals: not_own_peer.
type Agent struct {
	HostID, AgentID string // canonical
}

// has reports whether a peer is the agent's, active or not.
func (a Agent) has(p peerRow) bool {
	return p.kind == Local && p.hostID == a.HostID && p.agentID == a.AgentID
}

// ownPeer is knownPeer for a caller that acts in the peer's name.
func ownPeer(q store.Querier, agent *Agent, owner, peerID, argument string) (peerRow, error) {
	if agent == nil {
		return knownPeer(q, owner, peerID, argument)
	}
	p, found, err := findPeer(q, owner, peerID)
	if err == nil && !(found && agent.has(p)) {
		err = NotOwnPeer.Newf("%s names no peer of this agent.", argument)
	}
	return p, err
}

// OfAgent lists the peers that are bound to an agent, the active one first, then
// those that were stopped last. The host id is canonical.
func (Lookup) OfAgent(q store.Querier, owner, hostID, agentID string) ([]AgentPeer, error) {
	peers := []AgentPeer{}
	err := q.Query(func(row store.Scanner) error {
		p := AgentPeer{State: Active}
		var stopped bool
		if err := row.Scan(&p.PeerID, &p.Generation, &stopped); err != nil {
			return err
		}
		if stopped {
			p.State = Stopped
		}
		peers = append(peers, p)
		return nil
	}, `SELECT peer_id, generation, stopped_at IS NOT NULL FROM mailbox_peers WHERE owner = ? AND kind = 'local' AND host_id = ? AND agent_id = ?
		ORDER BY stopped_at IS NOT NULL, stopped_at DESC, peer_id`, owner, hostID, agentID)
	if err != nil {
		return nil, fmt.Errorf("listing the peers of an agent: %w", err)
	}
	return peers, nil
}
