package mailbox

import (
	"context"
	"fmt"
	"math"
	"strings"

	"agentrelay/internal/store"
)

// OwnerPeer is a peer as the owner's commands show it.
type OwnerPeer struct {
	Owner string `json:"owner"`
	Peer
}

// AllPeersIn selects peers for [Service.AllPeers].
type AllPeersIn struct {
	Owner          string // "" is every owner
	IncludeStopped bool
	Limit          *int // 1..200, nil is 50
	Cursor         *string
}

// AllPeersOut is a page of peers, ordered by owner and peerId in byte order.
type AllPeersOut struct {
	Peers      []OwnerPeer `json:"peers"`
	NextCursor string      `json:"nextCursor,omitempty"`
}

const peersOfOwners = selectPeer + `WHERE (owner, peer_id) > (?1, ?2) AND (?3 = '' OR owner = ?3) AND (?4 OR stopped_at IS NULL)
	ORDER BY owner, peer_id LIMIT ?5`

// AllPeers answers a page of the directories of one owner or of all. It is for
// the owner's own command line: callers of tools get [Service.ListPeers].
func (s *Service) AllPeers(ctx context.Context, in AllPeersIn) (AllPeersOut, error) {
	limit, err := checkLimit(in.Limit)
	if err != nil {
		return AllPeersOut{}, err
	}
	list := scope{"all_peers", in.Owner, fmt.Sprint(in.IncludeStopped)}
	key, err := list.key(in.Cursor)
	if err != nil {
		return AllPeersOut{}, err
	}
	owner, peerID := in.Owner, ""
	if key != "" {
		owner, peerID, _ = strings.Cut(key, "\x00")
	}
	out := AllPeersOut{Peers: []OwnerPeer{}}
	err = store.Read(ctx, s.store, func(r *store.Reader) error {
		rows, err := peerRows(r, peersOfOwners, owner, peerID, in.Owner, in.IncludeStopped, limit+1)
		if err != nil {
			return err
		}
		if len(rows) > limit {
			rows = rows[:limit]
			out.NextCursor = list.cursor(rows[limit-1].owner + "\x00" + rows[limit-1].peerID)
		}
		for _, row := range rows {
			p, err := s.peer(r, row)
			if err != nil {
				return err
			}
			out.Peers = append(out.Peers, OwnerPeer{row.owner, p})
		}
		return nil
	})
	return out, err
}

// OwnerMessage is a message as the owner's commands show it: who, to whom, when
// and in which state, and not a word of its text.
type OwnerMessage struct {
	Owner               string `json:"owner"`
	MessageID           string `json:"messageId"`
	FromPeerID          string `json:"fromPeerId"`
	ToPeerID            string `json:"toPeerId"`
	TextLength          int    `json:"textLength"` // code points, of a purged text too
	InReplyTo           string `json:"inReplyTo,omitempty"`
	ThreadID            string `json:"threadId"`
	Hop                 int    `json:"hop"`
	CreatedAt           Time   `json:"createdAt"`
	State               State  `json:"state"`
	ProcessedAt         Time   `json:"processedAt,omitzero"`
	ReadAt              Time   `json:"readAt,omitzero"`
	PurgedAt            Time   `json:"purgedAt,omitzero"`
	RecipientGeneration int64  `json:"recipientGeneration"`
}

// AllMessagesIn selects messages for [Service.AllMessages]. Empty fields select
// everything.
type AllMessagesIn struct {
	Owner  string
	PeerID string // sender or recipient
	State  State  // Unprocessed or Processed
	Limit  *int   // 1..200, nil is 50
	Cursor *string
}

// AllMessagesOut is a page of messages, newest first.
type AllMessagesOut struct {
	Messages   []OwnerMessage `json:"messages"`
	NextCursor string         `json:"nextCursor,omitempty"`
}

// scanRows is how many messages one transaction of an owner's command looks at.
// Rare filters walk the whole history in such steps instead of costing every
// send an index.
const scanRows = 1000

const messagesBackwards = `SELECT m.id, m.owner, m.message_id, f.peer_id, t.peer_id, m.text_length, coalesce(r.message_id, ''), h.message_id, m.hop,
	m.created_at, coalesce(m.processed_at, 0), coalesce(m.read_at, 0), coalesce(m.purged_at, 0), m.recipient_generation` +
	messageJoins + `WHERE m.id < ? ORDER BY m.id DESC LIMIT ?`

type ownerRow struct {
	OwnerMessage
	id int64
}

// AllMessages answers a page of message metadata of one owner or of all, purged
// messages included. It is for the owner's own command line.
func (s *Service) AllMessages(ctx context.Context, in AllMessagesIn) (AllMessagesOut, error) {
	limit, err := checkLimit(in.Limit)
	if err != nil {
		return AllMessagesOut{}, err
	}
	if in.State != "" && in.State != Unprocessed && in.State != Processed {
		return AllMessagesOut{}, invalid("state", "must be unprocessed or processed")
	}
	list := scope{"all_messages", in.Owner, in.PeerID, string(in.State)}
	before, err := list.id(in.Cursor)
	if err != nil {
		return AllMessagesOut{}, err
	}
	if before == 0 {
		before = math.MaxInt64
	}
	out := AllMessagesOut{Messages: []OwnerMessage{}}
	var last int64
	for {
		rows, err := s.messagesBefore(ctx, before)
		if err != nil {
			return AllMessagesOut{}, err
		}
		for _, m := range rows {
			if !in.selects(m.OwnerMessage) {
				continue
			}
			if len(out.Messages) == limit {
				out.NextCursor = list.cursorAt(last)
				return out, nil
			}
			last = m.id
			out.Messages = append(out.Messages, m.OwnerMessage)
		}
		if len(rows) < scanRows {
			return out, nil
		}
		before = rows[len(rows)-1].id
	}
}

// messagesBefore reads the scanRows messages before a row, newest first.
func (s *Service) messagesBefore(ctx context.Context, before int64) ([]ownerRow, error) {
	var rows []ownerRow
	err := store.Read(ctx, s.store, func(r *store.Reader) error {
		return r.Query(func(row store.Scanner) error {
			var m ownerRow
			var created, processed, read, purged int64
			err := row.Scan(&m.id, &m.Owner, &m.MessageID, &m.FromPeerID, &m.ToPeerID, &m.TextLength, &m.InReplyTo, &m.ThreadID, &m.Hop,
				&created, &processed, &read, &purged, &m.RecipientGeneration)
			m.CreatedAt, m.ProcessedAt, m.ReadAt, m.PurgedAt, m.State = at(created), at(processed), at(read), at(purged), stateOf(processed)
			rows = append(rows, m)
			return err
		}, messagesBackwards, before, scanRows)
	})
	if err != nil {
		return nil, fmt.Errorf("listing messages: %w", err)
	}
	return rows, nil
}

func (in AllMessagesIn) selects(m OwnerMessage) bool {
	return (in.Owner == "" || in.Owner == m.Owner) &&
		(in.PeerID == "" || in.PeerID == m.FromPeerID || in.PeerID == m.ToPeerID) &&
		(in.State == "" || in.State == m.State)
}
