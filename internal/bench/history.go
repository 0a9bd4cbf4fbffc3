package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"agentrelay/internal/mailbox"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// short is the history that a long one is compared with.
const short = 1000

// waiting is how much of a history is unprocessed: the end of it.
const waiting = 400

// fillStep is how many messages are stored in one transaction.
const fillStep = 50_000

// fillMessages stores messages as a long use would have left them: threads of
// eight between the two peers, with texts of 110 characters, processed but for
// the last ones. Message n begins a thread when n is 1, 9, 17 and so on.
const fillMessages = `
WITH RECURSIVE n(id) AS (SELECT ?1 UNION ALL SELECT id + 1 FROM n WHERE id < ?2),
     m(id, first, hop, uuid) AS (SELECT id, id - (id - 1) % 8, 1 + (id - 1) % 8, lower(hex(randomblob(16))) FROM n)
INSERT INTO mailbox_messages (id, owner, message_id, fingerprint, from_peer, to_peer, recipient_generation, thread, hop, in_reply_to,
	created_at, read_at, processed_at, delivery_path, delivery_reason, text_length)
SELECT id, ?3, substr(uuid, 1, 8) || '-' || substr(uuid, 9, 4) || '-4' || substr(uuid, 14, 3) || '-8' || substr(uuid, 18, 3) || '-' || substr(uuid, 21), randomblob(32),
	1 + (hop - 1) % 2, 1 + hop % 2, 1, first, hop, CASE WHEN hop > 1 THEN id - 1 END,
	?4 + id, CASE WHEN id <= ?5 THEN ?4 + id END, CASE WHEN id <= ?5 THEN ?4 + id END, 'none', '', 110
FROM m`

const fillTexts = `INSERT INTO mailbox_texts (id, summary, rest) SELECT id, CAST(printf('%0110d', id) AS BLOB), x'' FROM mailbox_messages WHERE id BETWEEN ?1 AND ?2`

const fillCounts = `UPDATE mailbox_peers SET unprocessed = n, unprocessed_now = n
	FROM (SELECT to_peer, count(*) AS n FROM mailbox_messages WHERE processed_at IS NULL GROUP BY to_peer) WHERE to_peer = mailbox_peers.id`

// fill stores a history of n messages.
func (b *box) fill(ctx context.Context, n int) error {
	begun := time.Now().UnixMilli() - int64(n)
	for first := 1; first <= n; first += fillStep {
		last := min(first+fillStep-1, n)
		err := store.Exec(ctx, b.store, func(tx *store.Tx) error {
			if _, err := tx.Exec(fillMessages, first, last, principal.SharedOwner, begun, n-waiting); err != nil {
				return err
			}
			_, err := tx.Exec(fillTexts, first, last)
			return err
		})
		if err != nil {
			return fmt.Errorf("storing a history: %w", err)
		}
	}
	return store.Exec(ctx, b.store, func(tx *store.Tx) error {
		_, err := tx.Exec(fillCounts)
		return err
	})
}

// places are arguments of list_peer_messages that lie anywhere in a history.
type places struct {
	cursors, threads []string
}

// places walks the whole inbox once, and so also checks that it has what was
// stored.
func (b *box) places(ctx context.Context, n int) (places, error) {
	var p places
	found := 0
	in := mailbox.ListPeerMessagesIn{PeerID: "b", IncludeProcessed: true, Limit: new(mailbox.MaxLimit)}
	for {
		page, err := b.ListPeerMessages(ctx, b.who, in)
		if err != nil {
			return p, err
		}
		found += len(page.Messages)
		p.threads = append(p.threads, page.Messages[0].ThreadID)
		if page.NextCursor == "" {
			break
		}
		p.cursors = append(p.cursors, page.NextCursor)
		in.Cursor = &page.NextCursor
	}
	if found != n/2 {
		return p, fmt.Errorf("the inbox has %d messages of %d", found, n/2)
	}
	p.cursors = p.cursors[:len(p.cursors)-1] // what follows the last one can be less than a page
	return p, nil
}

// pages reads count pages and returns the seconds that one took.
func (b *box) pages(ctx context.Context, count, want int, args func() mailbox.ListPeerMessagesIn) side {
	return func() (float64, error) {
		begun := time.Now()
		for range count {
			page, err := b.ListPeerMessages(ctx, b.who, args())
			if err != nil {
				return 0, err
			}
			if len(page.Messages) != want {
				return 0, fmt.Errorf("a page has %d messages, not %d", len(page.Messages), want)
			}
		}
		return time.Since(begun).Seconds() / float64(count), nil
	}
}

// views are the lists, with how many messages a page of each has.
var views = []struct {
	name string
	want int
	args func(places) mailbox.ListPeerMessagesIn
}{
	{"unprocessed mail", mailbox.DefaultLimit, func(places) mailbox.ListPeerMessagesIn { return mailbox.ListPeerMessagesIn{PeerID: "b"} }},
	{"whole inbox, anywhere", mailbox.DefaultLimit, func(p places) mailbox.ListPeerMessagesIn {
		return mailbox.ListPeerMessagesIn{PeerID: "b", IncludeProcessed: true, Cursor: &p.cursors[rand.IntN(len(p.cursors))]}
	}},
	{"thread, anywhere", 8, func(p places) mailbox.ListPeerMessagesIn {
		return mailbox.ListPeerMessagesIn{PeerID: "b", ThreadID: &p.threads[rand.IntN(len(p.threads))]}
	}},
}

// longHistory compares pages of a long history with those of a short one.
func longHistory(ctx context.Context, b *bench) ([]row, error) {
	var boxes [2]*box
	var at [2]places
	for i, n := range []int{short, b.history} {
		var err error
		if boxes[i], err = openBox(ctx, b.dir); err != nil {
			return nil, err
		}
		defer boxes[i].close()
		if err := boxes[i].fill(ctx, n); err != nil {
			return nil, err
		}
		if at[i], err = boxes[i].places(ctx, n); err != nil {
			return nil, err
		}
	}
	var rows []row
	for _, v := range views {
		read := func(i int) side {
			return boxes[i].pages(ctx, b.pages, v.want, func() mailbox.ListPeerMessagesIn { return v.args(at[i]) })
		}
		s, err := inTurns(b.rounds, read(0), read(1))
		if err != nil {
			return nil, err
		}
		ratio := s.ratio(1, 0)
		rows = append(rows, ratioed(fmt.Sprintf("page of %s, %d messages stored", v.name, b.history), micro(s.median(1)),
			fmt.Sprintf("%d stored: %s", short, micro(s.median(0))), ratio).atMost(ratio, 1.5, "1.5 times"))
	}
	return rows, nil
}
