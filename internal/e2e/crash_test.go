package e2e

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"agentrelay/internal/client"
	"agentrelay/internal/e2e/rig"
	"agentrelay/internal/mailbox"
)

// letter is one message of the model: what was asked, and what was answered.
type letter struct {
	ask mailbox.SendPeerMessageIn
	// answer is what the gateway said it stored; nil while the outcome is
	// unknown, because the answer did not come.
	answer  *mailbox.Message
	replied bool // a reply was at least asked for
	ack     fate
}

// fate is what is known of an acknowledgement.
type fate int

const (
	unasked fate = iota
	asked        // the answer did not come
	done
)

// ledger is what the clients know: the model that the gateway must agree with
// after a crash.
type ledger struct {
	mu      sync.Mutex
	letters map[string]*letter
	fresh   []*letter // since the last check
}

// ask notes a call before it is made.
func (l *ledger) ask(in mailbox.SendPeerMessageIn) *letter {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &letter{ask: in}
	l.letters[in.MessageID] = m
	l.fresh = append(l.fresh, m)
	return m
}

func (l *ledger) note(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

// pick returns a letter to peer that was stored and fits, and marks it with
// take before anybody else can pick it.
func (l *ledger) pick(peer string, fits func(*letter) bool, take func(*letter)) *letter {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.fresh {
		if m.ask.ToPeerID == peer && m.answer != nil && fits(m) {
			take(m)
			return m
		}
	}
	return nil
}

// correspondent is one client and its peer.
type correspondent struct {
	t      *testing.T
	client *rig.Client
	peer   string
	others []string
	ledger *ledger
}

// lost reports whether a call ended without an answer; any other error fails the
// test.
func (c *correspondent) lost(what string, err error) bool {
	var refused *client.ToolError
	if errors.As(err, &refused) && !refused.Retryable {
		c.t.Errorf("%s: %s was refused: %v", c.peer, what, err)
	}
	return err != nil
}

// work sends, replies and acknowledges until an answer does not come.
func (c *correspondent) work(ctx context.Context) {
	session, err := c.client.Connect(ctx, c.peer, c.client.Token.AccessToken)
	if err != nil {
		return // killed before it began
	}
	defer session.Close()
	for ctx.Err() == nil {
		ok := true
		switch n := rand.IntN(10); {
		case n == 0:
			ok = c.acknowledge(ctx, session)
		case n <= 2:
			ok = c.reply(ctx, session)
		default:
			ok = c.send(ctx, session, c.others[rand.IntN(len(c.others))], nil)
		}
		if !ok {
			return
		}
	}
}

func (c *correspondent) send(ctx context.Context, s *client.Session, to string, inReplyTo *string) bool {
	id := uuid.NewString()
	in := mailbox.SendPeerMessageIn{MessageID: id, FromPeerID: c.peer, ToPeerID: to, Text: "text of " + id, InReplyTo: inReplyTo}
	m := c.ledger.ask(in)
	var out mailbox.SendPeerMessageOut
	if c.lost("a message", s.Call(ctx, "send_peer_message", in, &out)) {
		return false
	}
	if out.Duplicate {
		c.t.Errorf("the new message %s is called a duplicate", id)
	}
	c.ledger.note(func() { m.answer = &out.Message })
	return true
}

func (c *correspondent) reply(ctx context.Context, s *client.Session) bool {
	m := c.ledger.pick(c.peer, func(m *letter) bool { return !m.replied && m.answer.Hop < 8 }, func(m *letter) { m.replied = true })
	if m == nil {
		return true
	}
	return c.send(ctx, s, m.ask.FromPeerID, &m.ask.MessageID)
}

func (c *correspondent) acknowledge(ctx context.Context, s *client.Session) bool {
	m := c.ledger.pick(c.peer, func(m *letter) bool { return m.ack == unasked }, func(m *letter) { m.ack = asked })
	if m == nil {
		return true
	}
	if c.lost("an acknowledgement", s.Call(ctx, "ack_peer_message", mailbox.AckPeerMessageIn{MessageID: m.ask.MessageID, PeerID: c.peer}, nil)) {
		return false
	}
	c.ledger.note(func() { m.ack = done })
	return true
}

// kept is a message without what changes during its life.
func kept(m mailbox.Message) mailbox.Message {
	m.State, m.ProcessedAt, m.ReadAt = "", mailbox.Time{}, mailbox.Time{}
	return m
}

// check repeats and reads what the round asked for, and sees that the gateway
// agrees with what it had answered.
func (l *ledger) check(t *testing.T, s *client.Session) {
	for _, m := range l.fresh {
		id := m.ask.MessageID
		var again mailbox.SendPeerMessageOut
		if err := s.Call(t.Context(), "send_peer_message", m.ask, &again); err != nil {
			t.Errorf("the repeat of %s: %v", id, err)
			continue
		}
		if m.answer != nil && (!again.Duplicate || kept(again.Message) != kept(*m.answer)) {
			t.Errorf("message %s was acknowledged as\n%+v, and its repeat (duplicate %v) answers\n%+v", id, *m.answer, again.Duplicate, again.Message)
		}
		m.answer = &again.Message
		var read mailbox.GetPeerMessageOut
		if err := s.Call(t.Context(), "get_peer_message", mailbox.GetPeerMessageIn{MessageID: id}, &read); err != nil {
			t.Errorf("reading %s: %v", id, err)
			continue
		}
		if kept(read.Message) != kept(again.Message) || read.Message.Text != m.ask.Text {
			t.Errorf("message %s reads %+v, its repeat %+v", id, read.Message, again.Message)
		}
		processed := read.Message.State == mailbox.Processed
		if m.ack == done && !processed || m.ack == unasked && processed {
			t.Errorf("message %s: acknowledgement %d (0 unasked, 2 done), state %s", id, m.ack, read.Message.State)
		}
		if m.ack == asked && processed {
			m.ack = done
		} else if m.ack == asked {
			m.ack = unasked
		}
	}
	l.fresh = nil
}

// checkLists sees that every message is in its inbox once, and counted.
func (l *ledger) checkLists(t *testing.T, s *client.Session, peers []string) {
	for _, peer := range peers {
		want, waiting := map[string]int{}, int64(0)
		for id, m := range l.letters {
			if m.ask.ToPeerID == peer {
				want[id] = 1
				if m.ack != done {
					waiting++
				}
			}
		}
		got, limit := map[string]int{}, mailbox.MaxLimit
		in := mailbox.ListPeerMessagesIn{PeerID: peer, IncludeProcessed: true, Limit: &limit}
		for more := true; more; {
			var page mailbox.ListPeerMessagesOut
			if err := s.Call(t.Context(), "list_peer_messages", in, &page); err != nil {
				t.Fatalf("listing the mail of %s: %v", peer, err)
			}
			for _, e := range page.Messages {
				got[e.MessageID]++
			}
			if page.UnprocessedCount != waiting {
				t.Errorf("%s has %d unprocessed messages, the count says %d", peer, waiting, page.UnprocessedCount)
			}
			in.Cursor, more = &page.NextCursor, page.NextCursor != ""
		}
		if !maps.Equal(got, want) {
			for _, id := range slices.Collect(maps.Keys(want)) {
				if got[id] != 1 {
					t.Errorf("message %s is %d times in the inbox of %s", id, got[id], peer)
				}
			}
			t.Errorf("the inbox of %s has %d messages, want %d", peer, len(got), len(want))
		}
	}
}

// Whatever instant the gateway is killed at: what it acknowledged is there after
// the restart, nothing is there twice, and the repeat of any call answers what
// the first one would have.
func TestKillDuringSends(t *testing.T) {
	home := rig.NewHome(t, binary)
	home.Configure("mailbox", object{"limits": object{"pairPerHour": 0, "ownerPerHour": 0}})
	setUp := home.Serve()
	peers := []string{"north", "east", "south", "west"}
	book := &ledger{letters: map[string]*letter{}}
	var people []*correspondent
	for i, peer := range peers {
		c := home.Authorize(peer)
		people = append(people, &correspondent{t, c, peer, slices.Delete(slices.Clone(peers), i, i+1), book})
		session, err := c.Connect(t.Context(), peer, c.Token.AccessToken)
		if err != nil {
			t.Fatal(err)
		}
		if err := session.Call(t.Context(), "register_peer", mailbox.RegisterPeerIn{PeerID: peer, Kind: mailbox.Chat}, nil); err != nil {
			t.Fatal(err)
		}
		session.Close()
	}
	setUp.Kill()

	rounds, acknowledged, unknown := crashRounds(t), 0, 0
	rig.Crash{
		Home: home, Rounds: rounds, Longest: 400 * time.Millisecond,
		Work: func(ctx context.Context, round int) {
			var wg sync.WaitGroup
			for _, c := range people {
				for range 4 { // each client has several calls under way
					wg.Go(func() { c.work(ctx) })
				}
			}
			wg.Wait()
		},
		Check: func(round int) {
			for _, m := range book.fresh {
				if m.answer != nil {
					acknowledged++
				} else {
					unknown++
				}
			}
			session, err := people[0].client.Connect(t.Context(), "checker", people[0].client.Token.AccessToken)
			if err != nil {
				t.Fatal(err)
			}
			defer session.Close()
			book.check(t, session)
			if round%20 == 19 || round == rounds-1 {
				book.checkLists(t, session, peers)
			}
		},
	}.Run(t)
	t.Logf("%d rounds: %d messages acknowledged, %d with unknown outcome", rounds, acknowledged, unknown)
	if acknowledged < rounds || unknown == 0 {
		t.Errorf("too little was under way for the test to show anything")
	}
}
