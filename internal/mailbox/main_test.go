package mailbox_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"agentrelay/internal/audit"
	"agentrelay/internal/fault"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errUndone = errors.New("undone")

// clock is a time that only the test moves.
type clock struct{ ms atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.ms.Store(time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC).UnixMilli())
	return c
}

func (c *clock) now() time.Time          { return time.UnixMilli(c.ms.Load()) }
func (c *clock) advance(d time.Duration) { c.ms.Add(d.Milliseconds()) }

// box is a mailbox over a real store, with a caller.
type box struct {
	*mailbox.Service
	t     testing.TB
	store *store.Store
	clock *clock
	who   principal.Principal
}

func openStore(t testing.TB, dir string, c *clock) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Dir: dir, Now: c.now})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// newBox opens a store in a new directory; o.Store and o.Now are set by it.
func newBox(t testing.TB, o mailbox.Options) *box {
	t.Helper()
	c := newClock()
	b := &box{t: t, clock: c, store: openStore(t, t.TempDir()+"/state", c), who: principal.Principal{Owner: principal.SharedOwner, ClientID: "client-1", Permissions: principal.Full()}}
	o.Store, o.Now = b.store, c.now
	b.Service = mailbox.New(o)
	t.Cleanup(func() {
		b.Close()
		b.store.Close()
	})
	return b
}

// as is the same mailbox with another caller.
func (b *box) as(owner string) *box {
	c := *b
	c.who = principal.Principal{Owner: owner, ClientID: "client-2"}
	return &c
}

// register adds chat peers.
func (b *box) register(ids ...string) {
	b.t.Helper()
	for _, id := range ids {
		must(b.RegisterPeer(b.t.Context(), b.who, mailbox.RegisterPeerIn{PeerID: id, Kind: mailbox.Chat}))(b.t)
	}
}

// everyAgent is an owner of all agents there could be.
type everyAgent struct{}

func (everyAgent) HostIDs() []string { return nil }

func (everyAgent) OwnsAgent(store.Querier, string, string, string) (bool, error) { return true, nil }

// registerAgent adds a peer that is bound to the agent of the same id.
func (b *box) registerAgent(id string) *mailbox.Agent {
	b.t.Helper()
	out := must(b.RegisterPeer(b.t.Context(), b.who, mailbox.RegisterPeerIn{PeerID: id, Kind: mailbox.Local, AgentID: &id}))(b.t)
	return &mailbox.Agent{HostID: out.Peer.HostID, AgentID: out.Peer.AgentID}
}

func (b *box) send(from, to, text string, inReplyTo ...string) mailbox.SendPeerMessageOut {
	b.t.Helper()
	in := mailbox.SendPeerMessageIn{MessageID: uuid.NewString(), FromPeerID: from, ToPeerID: to, Text: text}
	if len(inReplyTo) > 0 {
		in.InReplyTo = &inReplyTo[0]
	}
	return must(b.SendPeerMessage(b.t.Context(), b.who, in))(b.t)
}

func (b *box) list(in mailbox.ListPeerMessagesIn) mailbox.ListPeerMessagesOut {
	b.t.Helper()
	return must(b.ListPeerMessages(b.t.Context(), b.who, in))(b.t)
}

func (b *box) inbox(peer string) []mailbox.Entry {
	b.t.Helper()
	return b.list(mailbox.ListPeerMessagesIn{PeerID: peer}).Messages
}

func (b *box) get(id string, peer ...string) mailbox.GetPeerMessageOut {
	b.t.Helper()
	in := mailbox.GetPeerMessageIn{MessageID: id}
	if len(peer) > 0 {
		in.PeerID = &peer[0]
	}
	return must(b.GetPeerMessage(b.t.Context(), b.who, in))(b.t)
}

func (b *box) ack(id, peer string) mailbox.AckPeerMessageOut {
	b.t.Helper()
	return must(b.AckPeerMessage(b.t.Context(), b.who, mailbox.AckPeerMessageIn{MessageID: id, PeerID: peer}))(b.t)
}

func (b *box) stop(peer string) mailbox.StopPeerOut {
	b.t.Helper()
	return must(b.StopPeer(b.t.Context(), b.who, mailbox.StopPeerIn{PeerID: peer}))(b.t)
}

// peer is the directory's entry of an id, stopped or not.
func (b *box) peer(id string) mailbox.Peer {
	b.t.Helper()
	out := must(b.ListPeers(b.t.Context(), b.who, mailbox.ListPeersIn{IncludeStopped: true, Limit: new(200)}))(b.t)
	for _, p := range out.Peers {
		if p.PeerID == id {
			return p
		}
	}
	b.t.Fatalf("no peer %s in %v", id, out.Peers)
	return mailbox.Peer{}
}

// audited lists the audit log, newest first, as action and subject.
func (b *box) audited() []string {
	b.t.Helper()
	var lines []string
	err := store.Read(b.t.Context(), b.store, func(r *store.Reader) error {
		entries, err := audit.Last(r, 1000)
		for _, e := range entries {
			lines = append(lines, e.Action+" "+e.Subject)
		}
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return lines
}

// must fails the test on an error and returns the answer.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// refused checks the kind of a refusal and that it says what and what next.
func refused(t testing.TB, err error, want fault.Kind) *fault.Error {
	t.Helper()
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != want.Code {
		t.Fatalf("got %v, want the refusal %s", err, want.Code)
	}
	if f.Message == "" || f.Hint == "" {
		t.Errorf("the refusal %+v has no message or no hint", f)
	}
	return f
}

// agents is a directory with one host more and the agents named
// "owner host agent".
type agents map[string]bool

func (agents) HostIDs() []string { return []string{"builder"} }

func (a agents) OwnsAgent(_ store.Querier, owner, host, agent string) (bool, error) {
	return a[fmt.Sprintf("%s %s %s", owner, host, agent)], nil
}
