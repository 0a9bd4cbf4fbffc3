package mailbox

import (
	"context"
	"fmt"
	"strings"
	"time"

	"agentrelay/internal/audit"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// registration is the checked arguments of register_peer.
type registration struct {
	peerID          string
	kind            Kind
	displayName     string // '' when left out
	hostID, agentID string // '' unless local
}

func (s *Service) checkRegistration(in RegisterPeerIn) (registration, error) {
	r := registration{peerID: in.PeerID, kind: in.Kind}
	if err := checkID("peerId", in.PeerID); err != nil {
		return r, err
	}
	if in.DisplayName != nil {
		if err := checkDisplayName(*in.DisplayName); err != nil {
			return r, err
		}
		r.displayName = *in.DisplayName
	}
	switch in.Kind {
	case Chat, Dot:
		if in.HostID != nil || in.AgentID != nil {
			return r, invalid("hostId and agentId", "are only for kind local")
		}
		return r, nil
	case Local:
		if in.AgentID == nil {
			return r, invalid("agentId", "is required for kind local")
		}
	default:
		return r, invalid("kind", "must be chat, dot or local")
	}
	if err := checkID("agentId", *in.AgentID); err != nil {
		return r, err
	}
	r.agentID = *in.AgentID
	if isUUID(r.agentID) {
		r.agentID = strings.ToLower(r.agentID)
	}
	var err error
	r.hostID, err = s.resolveHost(in.HostID)
	return r, err
}

func (p peerRow) boundAs(r registration) bool {
	return p.kind == r.kind && p.hostID == r.hostID && p.agentID == r.agentID
}

// RegisterPeer adds a peer, answers the one that is there, stores its new
// displayName (leaving it out keeps the old one), or makes a stopped one active
// again with the next generation, then under any kind and binding. An agent can
// be at most one active peer of its owner.
//
// Refusals: invalid_arguments, unknown_host, peer_conflict, peer_limit,
// agent_not_owned.
func (s *Service) RegisterPeer(ctx context.Context, who principal.Principal, in RegisterPeerIn) (RegisterPeerOut, error) {
	r, err := s.checkRegistration(in)
	if err != nil {
		return RegisterPeerOut{}, err
	}
	return store.Write(ctx, s.store, func(tx *store.Tx) (RegisterPeerOut, error) {
		p, found, err := findPeer(tx, who.Owner, r.peerID)
		if err != nil {
			return RegisterPeerOut{}, err
		}
		switch {
		case !found:
			err = s.createPeer(tx, who, r)
		case in.Agent != nil && !in.Agent.has(p):
			err = NotOwnPeer.New("This peerId is or was another's, and mail for that one may still come.").WithHint("Register under another peerId.")
		case p.stopped():
			err = s.restartPeer(tx, who, p, r)
		case p.boundAs(r):
			err = renamePeer(tx, who, p, r.displayName)
		default:
			err = PeerConflict.Newf("This peerId is an active %s peer with another kind or binding.", p.kind)
		}
		if err != nil {
			return RegisterPeerOut{}, err
		}
		if p, _, err = findPeer(tx, who.Owner, r.peerID); err != nil {
			return RegisterPeerOut{}, err
		}
		peer, err := s.peer(tx, p)
		return RegisterPeerOut{Peer: peer, Created: !found}, err
	})
}

func (s *Service) createPeer(tx *store.Tx, who principal.Principal, r registration) error {
	var n int
	if err := tx.QueryRow(`SELECT count(*) FROM mailbox_peers WHERE owner = ?`, who.Owner).Scan(&n); err != nil {
		return fmt.Errorf("counting peers: %w", err)
	}
	if n >= MaxPeersPerOwner {
		return PeerLimit.Newf("This owner has had %d peer ids, stopped ones included; that is the most there can be.", n)
	}
	if err := s.checkBinding(tx, who.Owner, r); err != nil {
		return err
	}
	now := tx.Now().UnixMilli()
	_, err := tx.Exec(`INSERT INTO mailbox_peers (owner, peer_id, kind, display_name, host_id, agent_id, generation, generation_from, created_at, last_seen_at)
		VALUES (?, ?, ?, ?, ?, ?, 1, 0, ?, ?)`, who.Owner, r.peerID, r.kind, r.displayName, r.hostID, r.agentID, now, now)
	if err != nil {
		return fmt.Errorf("storing a peer: %w", err)
	}
	return recordRegistration(tx, who, r.peerID, 1)
}

// restartPeer begins the next generation of a stopped peer.
func (s *Service) restartPeer(tx *store.Tx, who principal.Principal, p peerRow, r registration) error {
	if err := s.checkBinding(tx, who.Owner, r); err != nil {
		return err
	}
	if r.displayName == "" {
		r.displayName = p.displayName
	}
	_, err := tx.Exec(`UPDATE mailbox_peers SET kind = ?, display_name = ?, host_id = ?, agent_id = ?, generation = generation + 1,
		generation_from = (SELECT coalesce(max(id), 0) FROM mailbox_messages), unprocessed_now = 0, last_seen_at = ?, stopped_at = NULL WHERE id = ?`,
		r.kind, r.displayName, r.hostID, r.agentID, tx.Now().UnixMilli(), p.id)
	if err != nil {
		return fmt.Errorf("restarting a peer: %w", err)
	}
	return recordRegistration(tx, who, p.peerID, p.generation+1)
}

// renamePeer is the registration of a peer that is already there.
func renamePeer(tx *store.Tx, who principal.Principal, p peerRow, displayName string) error {
	if err := seen(tx, p); err != nil {
		return err
	}
	if displayName == "" || displayName == p.displayName {
		return nil
	}
	if _, err := tx.Exec(`UPDATE mailbox_peers SET display_name = ? WHERE id = ?`, displayName, p.id); err != nil {
		return fmt.Errorf("renaming a peer: %w", err)
	}
	return recordRegistration(tx, who, p.peerID, p.generation)
}

func recordRegistration(tx *store.Tx, who principal.Principal, peerID string, generation int64) error {
	return audit.Record(tx, who, "peer.register", peerID, audit.OK, "generation", generation)
}

// checkBinding refuses an agent that is not the owner's, or is another active
// peer already: it could not tell which mail is its own.
func (s *Service) checkBinding(tx *store.Tx, owner string, r registration) error {
	if r.kind != Local {
		return nil
	}
	owned, err := s.agents.OwnsAgent(tx, owner, r.hostID, r.agentID)
	if err != nil {
		return fmt.Errorf("asking who dispatched an agent: %w", err)
	}
	if !owned {
		return AgentNotOwned.Newf("agentId names no agent that this owner dispatched on host %s.", r.hostID)
	}
	return tx.Query(func(row store.Scanner) error {
		var other string
		if err := row.Scan(&other); err != nil {
			return err
		}
		return PeerConflict.Newf("This agent is the active peer %s already.", other).
			WithHint("Use that peerId for the agent, or stop_peer it first.")
	}, peerOfAgent, owner, r.hostID, r.agentID)
}

const peerOfAgent = `SELECT peer_id FROM mailbox_peers WHERE owner = ? AND host_id = ? AND agent_id = ? AND kind = 'local' AND stopped_at IS NULL`

// StopPeer ends the present generation of a peer: nothing can be sent to or
// from it until it is registered again. Its mail stays and can be read and
// acknowledged. Stopping a stopped peer changes nothing.
//
// Refusals: invalid_arguments, unknown_peer.
func (s *Service) StopPeer(ctx context.Context, who principal.Principal, in StopPeerIn) (StopPeerOut, error) {
	if err := checkID("peerId", in.PeerID); err != nil {
		return StopPeerOut{}, err
	}
	return store.Write(ctx, s.store, func(tx *store.Tx) (StopPeerOut, error) {
		p, err := ownPeer(tx, in.Agent, who.Owner, in.PeerID, "peerId")
		if err != nil {
			return StopPeerOut{}, err
		}
		already := p.stopped()
		if !already {
			if err := s.endGeneration(tx, who, &p); err != nil {
				return StopPeerOut{}, err
			}
		}
		peer, err := s.peer(tx, p)
		return StopPeerOut{Peer: peer, AlreadyStopped: already}, err
	})
}

func (s *Service) endGeneration(tx *store.Tx, who principal.Principal, p *peerRow) error {
	p.stoppedAt = tx.Now().UnixMilli()
	if _, err := tx.Exec(`UPDATE mailbox_peers SET stopped_at = ? WHERE id = ?`, p.stoppedAt, p.id); err != nil {
		return fmt.Errorf("stopping a peer: %w", err)
	}
	if err := s.wake.Ended(tx, p.ref()); err != nil {
		return fmt.Errorf("cancelling the wake-ups of a peer: %w", err)
	}
	return audit.Record(tx, who, "peer.stop", p.peerID, audit.OK, "generation", p.generation)
}

const (
	listActivePeers = selectPeer + `WHERE owner = ? AND peer_id > ? AND stopped_at IS NULL ORDER BY peer_id LIMIT ?`
	listEveryPeer   = selectPeer + `WHERE owner = ? AND peer_id > ? ORDER BY peer_id LIMIT ?`
)

// ListPeers answers a page of the owner's directory, by default only active
// peers.
//
// Refusals: invalid_arguments, invalid_cursor.
func (s *Service) ListPeers(ctx context.Context, who principal.Principal, in ListPeersIn) (ListPeersOut, error) {
	limit, err := checkLimit(in.Limit)
	if err != nil {
		return ListPeersOut{}, err
	}
	list := scope{"list_peers", who.Owner, fmt.Sprint(in.IncludeStopped)}
	after, err := list.key(in.Cursor)
	if err != nil {
		return ListPeersOut{}, err
	}
	query := listActivePeers
	if in.IncludeStopped {
		query = listEveryPeer
	}
	out := ListPeersOut{Peers: []Peer{}}
	err = store.Read(ctx, s.store, func(r *store.Reader) error {
		rows, err := peerRows(r, query, who.Owner, after, limit+1)
		if err != nil {
			return err
		}
		if len(rows) > limit {
			rows = rows[:limit]
			out.NextCursor = list.cursor(rows[limit-1].peerID)
		}
		for _, row := range rows {
			p, err := s.peer(r, row)
			if err != nil {
				return err
			}
			out.Peers = append(out.Peers, p)
		}
		return nil
	})
	return out, err
}

func peerRows(q store.Querier, query string, args ...any) ([]peerRow, error) {
	var rows []peerRow
	err := q.Query(func(row store.Scanner) error {
		p, err := scanPeer(row)
		rows = append(rows, p)
		return err
	}, query, args...)
	if err != nil {
		return nil, fmt.Errorf("listing peers: %w", err)
	}
	return rows, nil
}

// seenEvery is how exact lastSeenAt is, and so how often reading writes.
const seenEvery = time.Minute

// seenLately reports whether lastSeenAt is exact enough. A time to come, left by
// a clock that was set back, is not.
func (p peerRow) seenLately(now time.Time) bool {
	age := now.UnixMilli() - p.lastSeenAt
	return age >= 0 && age < seenEvery.Milliseconds()
}

// seen notes that something was done in the name of a peer.
func seen(tx *store.Tx, p peerRow) error {
	if p.seenLately(tx.Now()) {
		return nil
	}
	if _, err := tx.Exec(`UPDATE mailbox_peers SET last_seen_at = ? WHERE id = ?`, tx.Now().UnixMilli(), p.id); err != nil {
		return fmt.Errorf("noting that a peer was seen: %w", err)
	}
	return nil
}

// sawReader is seen for a call that otherwise only reads. The read is already
// answered, so a failure is for the log, and a stalled disk holds it up for a
// second at most.
func (s *Service) sawReader(ctx context.Context, p peerRow) {
	if p.seenLately(s.now()) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := store.Exec(ctx, s.store, func(tx *store.Tx) error { return seen(tx, p) }); err != nil {
		s.log.Warn("when a peer was last seen could not be stored", "error", err)
	}
}
