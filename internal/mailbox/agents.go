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

// Bound reports whether a peer is of kind local and bound to this agent, active
// or not; found is false when this owner has none of that id.
func (Lookup) Bound(q store.Querier, owner, peerID, hostID, agentID string) (bound, found bool, err error) {
	p, found, err := findPeer(q, owner, peerID)
	return found && p.kind == Local && p.hostID == hostID && p.agentID == agentID, found, err
}
