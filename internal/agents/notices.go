package agents

import (
	"fmt"

	"agentrelay/internal/store"
)

// The kinds of notices.
const (
	messageNotice    = "message"
	needsInputNotice = "needs_input"
	resultNotice     = "result"
	errorNotice      = "error"
	permissionNotice = "permission"
	canceledNotice   = "canceled"
)

// notice is something that whoever dispatched is told once.
type notice struct {
	key          string // what it is about, once for a dispatch
	kind         string
	messageID    string
	summary      string
	ready        bool
	terminalKind string
}

// notify stores a notice in the transaction of what it reports, and publishes it
// if somebody is there to be told. A notice that is stored already is not stored
// again.
func (s *Service) notify(tx *store.Tx, r row, n notice) error {
	n.summary = firstRunes(n.summary, maxSummary)
	added, err := tx.Exec(`INSERT INTO dispatch_notices (dispatch, source_key, kind, message_id, summary, ready, terminal_kind, created_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`, r.id, n.key, n.kind, n.messageID, n.summary, n.ready, n.terminalKind, tx.Now().UnixMilli())
	if err != nil {
		return fmt.Errorf("storing a notice: %w", err)
	}
	if added == 0 || r.routeID == "" {
		return nil
	}
	return s.publish(tx, r, n)
}

// publish gives a stored notice to the subscribers of its route. Without one it
// stays owed.
func (s *Service) publish(tx *store.Tx, r row, n notice) error {
	told, err := s.events.PublishAttention(tx, Attention{
		Owner: r.owner, Subject: n.key, Kind: n.kind, RequestID: r.requestID, AgentID: r.agentID, WorkspaceID: r.workspaceID, RouteID: r.routeID,
		HostID: r.hostID, TurnID: pointer(r.turnID), MessageID: n.messageID, Summary: n.summary, ReadyForReply: n.ready, TerminalKind: pointer(n.terminalKind),
	})
	if err != nil {
		return fmt.Errorf("publishing a notice: %w", err)
	}
	if !told {
		return nil
	}
	_, err = tx.Exec(`UPDATE dispatch_notices SET published_at = ? WHERE dispatch = ? AND source_key = ?`, tx.Now().UnixMilli(), r.id, n.key)
	return err
}

func pointer(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// Renewed publishes what was owed to a route, in the transaction in which
// somebody subscribes to it.
func (s *Service) Renewed(tx *store.Tx, owner, hostID, workspaceID, routeID string) error {
	return s.publishOwed(tx, `d.owner = ? AND d.host_id = ? AND d.workspace_id = ? AND d.route_id = ?`, owner, hostID, workspaceID, routeID)
}

// publishOwed publishes the notices of the dispatches d that nobody was told of
// yet, oldest first.
func (s *Service) publishOwed(tx *store.Tx, which string, args ...any) error {
	type owed struct {
		dispatch int64
		notice
	}
	var all []owed
	err := tx.Query(func(sc store.Scanner) error {
		var o owed
		err := sc.Scan(&o.dispatch, &o.key, &o.kind, &o.messageID, &o.summary, &o.ready, &o.terminalKind)
		all = append(all, o)
		return err
	}, `SELECT n.dispatch, n.source_key, n.kind, n.message_id, n.summary, n.ready, n.terminal_kind FROM dispatches d JOIN dispatch_notices n ON n.dispatch = d.id
		WHERE `+which+` AND d.route_id <> '' AND n.published_at IS NULL AND n.moot = 0 ORDER BY n.id`, args...)
	if err != nil {
		return fmt.Errorf("reading what is owed: %w", err)
	}
	for _, o := range all {
		r, _, err := find(tx, byID, o.dispatch)
		if err == nil {
			err = s.publish(tx, r, o.notice)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mootAll marks the permissions of a dispatch that nobody was told of as over.
func mootAll(tx *store.Tx, r row) error {
	_, err := tx.Exec(`UPDATE dispatch_notices SET moot = 1 WHERE dispatch = ? AND kind = 'permission' AND published_at IS NULL`, r.id)
	if err != nil {
		return fmt.Errorf("withdrawing notices: %w", err)
	}
	return nil
}

// moot marks a notice that nobody was told of as over.
func moot(tx *store.Tx, hostID, agentID, key string) error {
	_, err := tx.Exec(`UPDATE dispatch_notices SET moot = 1 WHERE source_key = ? AND published_at IS NULL
		AND dispatch IN (SELECT id FROM dispatches WHERE host_id = ? AND agent_id = ?)`, key, hostID, agentID)
	if err != nil {
		return fmt.Errorf("withdrawing a notice: %w", err)
	}
	return nil
}

// permissionKey names the notice of a permission.
func permissionKey(r row, permissionID string) string {
	return r.requestID + ":permission:" + permissionID
}

// emitHeld releases the questions that an agent asked before it ended its turn.
func (s *Service) emitHeld(tx *store.Tx, r row) (asked bool, err error) {
	var held []messageRow
	err = tx.Query(func(sc store.Scanner) error {
		var m messageRow
		err := sc.Scan(&m.messageID, &m.text)
		held = append(held, m)
		return err
	}, `SELECT message_id, text FROM agent_messages WHERE dispatch = ? AND kind = 'needs_input' AND held = 1 ORDER BY id`, r.id)
	if err != nil {
		return false, fmt.Errorf("reading what an agent asked: %w", err)
	}
	for _, m := range held {
		n := notice{key: "message:" + m.messageID, kind: needsInputNotice, messageID: m.messageID, summary: m.text, ready: true, terminalKind: r.terminalKind}
		if err := s.notify(tx, r, n); err != nil {
			return false, err
		}
	}
	_, err = tx.Exec(`UPDATE agent_messages SET held = 0 WHERE dispatch = ? AND held = 1`, r.id)
	return len(held) > 0, err
}
