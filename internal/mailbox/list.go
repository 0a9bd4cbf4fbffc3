package mailbox

import (
	"context"
	"fmt"
	"time"

	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// inbox is the checked arguments of list_peer_messages.
type inbox struct {
	owner, peerID    string
	includeProcessed bool
	threadID         string // '' for the inbox
	limit            int
	after            int64 // message row
	wait             time.Duration
	agent            *Agent
}

func checkList(owner string, in ListPeerMessagesIn) (inbox, error) {
	l := inbox{owner: owner, peerID: in.PeerID, includeProcessed: in.IncludeProcessed, agent: in.Agent}
	if err := checkID("peerId", in.PeerID); err != nil {
		return l, err
	}
	var err error
	if in.ThreadID != nil {
		if l.threadID, err = lowerUUID("threadId", *in.ThreadID); err != nil {
			return l, err
		}
	}
	if l.limit, err = checkLimit(in.Limit); err != nil {
		return l, err
	}
	ms, err := checkWait(in.WaitMs)
	if err != nil {
		return l, err
	}
	l.wait = time.Duration(ms) * time.Millisecond
	l.after, err = l.scope().id(in.Cursor)
	return l, err
}

func (l inbox) scope() scope {
	processed := l.includeProcessed || l.threadID != "" // a thread shows them anyway
	return scope{"list_peer_messages", l.owner, l.peerID, l.threadID, fmt.Sprint(processed, l.agent != nil)}
}

// ListPeerMessages answers a page of a peer's inbox, oldest first: what is
// unprocessed, or with includeProcessed all of it, or with threadId both
// directions of that thread. Listing changes no message. With waitMs an empty
// page is held until there is something to show, the time is up, ctx ends (its
// error) or the service closes; no transaction is open meanwhile.
//
// Refusals: invalid_arguments, invalid_cursor, unknown_peer, unknown_message
// (threadId), too_many_waits.
func (s *Service) ListPeerMessages(ctx context.Context, who principal.Principal, in ListPeerMessagesIn) (ListPeerMessagesOut, error) {
	l, err := checkList(who.Owner, in)
	if err != nil {
		return ListPeerMessagesOut{}, err
	}
	page, p, err := s.page(ctx, l)
	if err != nil {
		return ListPeerMessagesOut{}, err
	}
	s.sawReader(ctx, p)
	if len(page.Messages) > 0 || l.wait == 0 {
		return page, nil
	}
	return s.await(ctx, l, p)
}

// page reads one page and its peer from one snapshot.
func (s *Service) page(ctx context.Context, l inbox) (page ListPeerMessagesOut, p peerRow, err error) {
	page.Messages = []Entry{}
	err = store.Read(ctx, s.store, func(r *store.Reader) error {
		if p, err = ownPeer(r, l.agent, l.owner, l.peerID, "peerId"); err != nil {
			return err
		}
		after := l.after
		page.UnprocessedCount = p.unprocessed
		if l.agent != nil {
			after, page.UnprocessedCount = max(after, p.generationFrom), p.unprocessedOfGeneration
		}
		query, key := listUnprocessed, p.id
		switch {
		case l.threadID != "":
			query = listThread
			if key, err = threadOf(r, l, p); err != nil {
				return err
			}
		case l.includeProcessed:
			query = listAll
		}
		return l.fill(r, &page, query, key, after)
	})
	if err != nil {
		return ListPeerMessagesOut{}, peerRow{}, err
	}
	page.Next = l.next(page)
	return page, p, nil
}

// fill reads one row more than the page holds, to know whether there is more.
func (l inbox) fill(q store.Querier, page *ListPeerMessagesOut, query string, key, after int64) error {
	var last int64
	err := q.Query(func(row store.Scanner) error {
		e, err := scanEntry(row)
		if err != nil {
			return err
		}
		if len(page.Messages) == l.limit {
			page.NextCursor = l.scope().cursorAt(last)
			return nil
		}
		last = e.id
		page.Messages = append(page.Messages, e.Entry)
		return nil
	}, query, key, after, l.limit+1)
	if err != nil {
		return fmt.Errorf("listing messages: %w", err)
	}
	return nil
}

// threadOf returns the row of the thread's first message. The peer must be one
// of the thread's two.
func threadOf(q store.Querier, l inbox, p peerRow) (int64, error) {
	m, found, err := findMessage(q, l.owner, l.threadID)
	if err != nil {
		return 0, err
	}
	if !found || (m.from != p.id && m.to != p.id) {
		return 0, UnknownMessage.New("threadId names no thread of this peer.").
			WithHint("Pass the threadId that an entry of list_peer_messages for this peer has.")
	}
	if m.thread != m.id {
		return 0, UnknownMessage.New("threadId names a message that is not the first of its thread.").
			WithHint("Pass the threadId of that message, which is " + m.ThreadID + ".")
	}
	return m.id, nil
}
