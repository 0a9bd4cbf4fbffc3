package mailbox

import (
	"database/sql"
	"errors"
	"fmt"

	"agentrelay/internal/store"
)

// peerRow is a row of mailbox_peers.
type peerRow struct {
	id                      int64
	owner, peerID           string
	kind                    Kind
	displayName             string
	hostID, agentID         string
	generation              int64
	generationFrom          int64 // mail of this generation has a greater message row id
	createdAt, lastSeenAt   int64
	stoppedAt               int64
	unprocessed             int64
	unprocessedOfGeneration int64
}

const selectPeer = `SELECT id, owner, peer_id, kind, display_name, host_id, agent_id, generation, generation_from,
	created_at, last_seen_at, coalesce(stopped_at, 0), unprocessed, unprocessed_now FROM mailbox_peers `

const peerByID = selectPeer + `WHERE owner = ? AND peer_id = ?`

func scanPeer(row store.Scanner) (peerRow, error) {
	var p peerRow
	err := row.Scan(&p.id, &p.owner, &p.peerID, &p.kind, &p.displayName, &p.hostID, &p.agentID, &p.generation, &p.generationFrom,
		&p.createdAt, &p.lastSeenAt, &p.stoppedAt, &p.unprocessed, &p.unprocessedOfGeneration)
	return p, err
}

// findPeer reads a peer; found is false when this owner has none of that id.
func findPeer(q store.Querier, owner, peerID string) (p peerRow, found bool, err error) {
	p, err = scanPeer(q.QueryRow(peerByID, owner, peerID))
	if errors.Is(err, sql.ErrNoRows) {
		return peerRow{}, false, nil
	}
	if err != nil {
		return peerRow{}, false, fmt.Errorf("reading a peer: %w", err)
	}
	return p, true, nil
}

// knownPeer is findPeer for a peer that must exist; argument is its name in the
// refusal.
func knownPeer(q store.Querier, owner, peerID, argument string) (peerRow, error) {
	p, found, err := findPeer(q, owner, peerID)
	if err == nil && !found {
		err = UnknownPeer.Newf("%s names no peer of this owner.", argument)
	}
	return p, err
}

// activePeer is knownPeer for a peer that takes part in sending.
func activePeer(q store.Querier, owner, peerID, argument string) (peerRow, error) {
	p, err := knownPeer(q, owner, peerID, argument)
	if err == nil && p.stopped() {
		err = PeerStopped.Newf("%s names a peer that was stopped at %s.", argument, at(p.stoppedAt))
	}
	return p, err
}

func (p peerRow) stopped() bool { return p.stoppedAt != 0 }

func (p peerRow) ref() PeerRef {
	return PeerRef{Owner: p.owner, PeerID: p.peerID, Kind: p.kind, Generation: p.generation, HostID: p.hostID, AgentID: p.agentID}
}

// peer is the row as callers see it, with its notification measured now.
func (s *Service) peer(q store.Querier, p peerRow) (Peer, error) {
	n, err := s.notification(q, p)
	if err != nil {
		return Peer{}, fmt.Errorf("asking what wakes a peer: %w", err)
	}
	out := Peer{
		PeerID: p.peerID, Kind: p.kind, DisplayName: p.displayName, Generation: p.generation, State: Active,
		HostID: p.hostID, AgentID: p.agentID, CreatedAt: at(p.createdAt), LastSeenAt: at(p.lastSeenAt),
		UnprocessedCount: p.unprocessed, Notification: n,
	}
	if p.stopped() {
		out.State = Stopped
	}
	return out, nil
}

// messageRow is a row of mailbox_messages with the ids of what it points to.
type messageRow struct {
	Message
	id             int64
	owner          string
	fingerprint    []byte
	from, to       int64 // peer rows
	thread         int64 // message row
	purgedAt       int64
	path           Path
	pathReason     string
	replyMessageID string
}

// The joins are CROSS JOINs so that the planner keeps their order: messages
// first, in the order of an index, then single rows by key.
const messageJoins = ` FROM mailbox_messages m
	CROSS JOIN mailbox_peers f ON f.id = m.from_peer
	CROSS JOIN mailbox_peers t ON t.id = m.to_peer
	CROSS JOIN mailbox_messages h ON h.id = m.thread
	LEFT JOIN mailbox_messages r ON r.id = m.in_reply_to `

const messageByKey = `SELECT m.message_id, f.peer_id, t.peer_id, x.summary, x.rest, coalesce(r.message_id, ''), h.message_id, m.hop,
	m.created_at, coalesce(m.processed_at, 0), coalesce(m.read_at, 0), m.recipient_generation,
	m.id, m.owner, m.fingerprint, m.from_peer, m.to_peer, m.thread, coalesce(m.purged_at, 0), m.delivery_path, m.delivery_reason,
	coalesce((SELECT a.message_id FROM mailbox_messages a WHERE a.in_reply_to = m.id), '')` +
	messageJoins + `LEFT JOIN mailbox_texts x ON x.id = m.id WHERE m.owner = ? AND m.message_id = ?`

// findMessage reads a message, purged or not; found is false when this owner has
// none of that id.
func findMessage(q store.Querier, owner, messageID string) (m messageRow, found bool, err error) {
	var summary, rest []byte
	var created, processed, read int64
	err = q.QueryRow(messageByKey, owner, messageID).Scan(
		&m.MessageID, &m.FromPeerID, &m.ToPeerID, &summary, &rest, &m.InReplyTo, &m.ThreadID, &m.Hop,
		&created, &processed, &read, &m.RecipientGeneration,
		&m.id, &m.owner, &m.fingerprint, &m.from, &m.to, &m.thread, &m.purgedAt, &m.path, &m.pathReason, &m.replyMessageID)
	if errors.Is(err, sql.ErrNoRows) {
		return messageRow{}, false, nil
	}
	if err != nil {
		return messageRow{}, false, fmt.Errorf("reading a message: %w", err)
	}
	m.Text = string(summary) + string(rest)
	m.CreatedAt, m.ProcessedAt, m.ReadAt, m.State = at(created), at(processed), at(read), stateOf(processed)
	return m, true, nil
}

// knownMessage is findMessage for a message that must exist with its text.
func knownMessage(q store.Querier, owner, messageID string) (messageRow, error) {
	m, found, err := findMessage(q, owner, messageID)
	if err != nil {
		return messageRow{}, err
	}
	if !found {
		return messageRow{}, UnknownMessage.New("messageId names no message of this owner.")
	}
	return m, m.notPurged()
}

// notPurged refuses a message whose text is gone.
func (m messageRow) notPurged() error {
	if m.purgedAt == 0 {
		return nil
	}
	return MessagePurged.Newf("The message of this messageId was purged at %s.", at(m.purgedAt))
}

func stateOf(processedAt int64) State {
	if processedAt == 0 {
		return Unprocessed
	}
	return Processed
}

const selectEntry = `SELECT m.id, m.message_id, f.peer_id, t.peer_id, x.summary, m.text_length, coalesce(r.message_id, ''), h.message_id, m.hop,
	m.created_at, coalesce(m.processed_at, 0), coalesce(m.read_at, 0), m.recipient_generation` +
	messageJoins + `JOIN mailbox_texts x ON x.id = m.id `

// The three lists. Each reads its own index in the order of the row ids.
const (
	listUnprocessed = selectEntry + `WHERE m.to_peer = ? AND m.processed_at IS NULL AND m.purged_at IS NULL AND m.id > ? ORDER BY m.id LIMIT ?`
	listAll         = selectEntry + `WHERE m.to_peer = ? AND m.purged_at IS NULL AND m.id > ? ORDER BY m.id LIMIT ?`
	listThread      = selectEntry + `WHERE m.thread = ? AND m.purged_at IS NULL AND m.id > ? ORDER BY m.id LIMIT ?`
)

type entryRow struct {
	Entry
	id int64
}

func scanEntry(row store.Scanner) (entryRow, error) {
	var e entryRow
	var summary []byte
	var created, processed, read int64
	err := row.Scan(&e.id, &e.MessageID, &e.FromPeerID, &e.ToPeerID, &summary, &e.TextLength, &e.InReplyTo, &e.ThreadID, &e.Hop,
		&created, &processed, &read, &e.RecipientGeneration)
	e.Summary = string(summary)
	e.CreatedAt, e.ProcessedAt, e.ReadAt, e.State = at(created), at(processed), at(read), stateOf(processed)
	return e, err
}
