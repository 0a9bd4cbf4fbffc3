package mailbox_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrelay/internal/fault"
	"agentrelay/internal/mailbox"
)

func TestRegisterRefusesWhatBreaksARule(t *testing.T) {
	b := newBox(t, mailbox.Options{Agents: agents{"local-owner:shared local agent-1": true}})
	for _, c := range []struct {
		name string
		in   mailbox.RegisterPeerIn
		want fault.Kind
		says string
	}{
		{"no id", mailbox.RegisterPeerIn{Kind: mailbox.Chat}, fault.InvalidArguments, "peerId"},
		{"an id that starts with a dot", mailbox.RegisterPeerIn{PeerID: ".a", Kind: mailbox.Chat}, fault.InvalidArguments, "peerId"},
		{"an id with a space", mailbox.RegisterPeerIn{PeerID: "a b", Kind: mailbox.Chat}, fault.InvalidArguments, "peerId"},
		{"an id with a line end", mailbox.RegisterPeerIn{PeerID: "a\n", Kind: mailbox.Chat}, fault.InvalidArguments, "peerId"},
		{"an id of 129", mailbox.RegisterPeerIn{PeerID: strings.Repeat("a", 129), Kind: mailbox.Chat}, fault.InvalidArguments, "peerId"},
		{"an id that is not ASCII", mailbox.RegisterPeerIn{PeerID: "é", Kind: mailbox.Chat}, fault.InvalidArguments, "peerId"},
		{"no kind", mailbox.RegisterPeerIn{PeerID: "a"}, fault.InvalidArguments, "kind"},
		{"another kind", mailbox.RegisterPeerIn{PeerID: "a", Kind: "bot"}, fault.InvalidArguments, "kind"},
		{"an empty name", mailbox.RegisterPeerIn{PeerID: "a", Kind: mailbox.Chat, DisplayName: new("")}, fault.InvalidArguments, "displayName"},
		{"a blank name", mailbox.RegisterPeerIn{PeerID: "a", Kind: mailbox.Chat, DisplayName: new("  ")}, fault.InvalidArguments, "displayName"},
		{"a name of 101", mailbox.RegisterPeerIn{PeerID: "a", Kind: mailbox.Chat, DisplayName: new(strings.Repeat("é", 101))}, fault.InvalidArguments, "101"},
		{"a name that is not UTF-8", mailbox.RegisterPeerIn{PeerID: "a", Kind: mailbox.Chat, DisplayName: new("a\xff")}, fault.InvalidArguments, "UTF-8"},
		{"a name with an escape", mailbox.RegisterPeerIn{PeerID: "a", Kind: mailbox.Chat, DisplayName: new("a\x1b[2J")}, fault.InvalidArguments, "control"},
		{"a chat with an agent", mailbox.RegisterPeerIn{PeerID: "a", Kind: mailbox.Chat, AgentID: new("agent-1")}, fault.InvalidArguments, "local"},
		{"a dot with a host", mailbox.RegisterPeerIn{PeerID: "a", Kind: mailbox.Dot, HostID: new("local")}, fault.InvalidArguments, "local"},
		{"a local without agent", mailbox.RegisterPeerIn{PeerID: "a", Kind: mailbox.Local}, fault.InvalidArguments, "agentId"},
		{"a local with a path for an agent", mailbox.RegisterPeerIn{PeerID: "a", Kind: mailbox.Local, AgentID: new("../a")}, fault.InvalidArguments, "agentId"},
		{"an unknown host", mailbox.RegisterPeerIn{PeerID: "a", Kind: mailbox.Local, AgentID: new("agent-1"), HostID: new("moon")}, fault.UnknownHost, "local, builder"},
		{"somebody's agent", mailbox.RegisterPeerIn{PeerID: "a", Kind: mailbox.Local, AgentID: new("agent-2")}, mailbox.AgentNotOwned, "local"},
		{"an agent of another host", mailbox.RegisterPeerIn{PeerID: "a", Kind: mailbox.Local, AgentID: new("agent-1"), HostID: new("builder")}, mailbox.AgentNotOwned, "builder"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := b.RegisterPeer(t.Context(), b.who, c.in)
			if f := refused(t, err, c.want); !strings.Contains(f.Message, c.says) {
				t.Errorf("the message %q does not say %q", f.Message, c.says)
			}
		})
	}
	if got := must(b.ListPeers(t.Context(), b.who, mailbox.ListPeersIn{IncludeStopped: true}))(t); len(got.Peers) != 0 {
		t.Errorf("a refused registration left %v", got.Peers)
	}
	if got := b.audited(); len(got) != 0 {
		t.Errorf("a refused registration was audited: %v", got)
	}
}

func TestRegisterAgainIsTheSamePeer(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	in := mailbox.RegisterPeerIn{PeerID: "chat-main", Kind: mailbox.Chat, DisplayName: new("Main chat ✉️")}
	first := must(b.RegisterPeer(t.Context(), b.who, in))(t)
	want := mailbox.Peer{
		PeerID: "chat-main", Kind: mailbox.Chat, DisplayName: "Main chat ✉️", Generation: 1, State: mailbox.Active,
		CreatedAt: mailbox.Time{Time: b.clock.now().UTC()}, LastSeenAt: mailbox.Time{Time: b.clock.now().UTC()},
		Notification: mailbox.Notification{Path: mailbox.None, Reason: "No wake-up is set up for this peer; it reads its mail when it checks."},
	}
	if diff := cmp.Diff(mailbox.RegisterPeerOut{Peer: want, Created: true}, first); diff != "" {
		t.Error("the first registration (-want +got):\n", diff)
	}
	in.DisplayName = nil
	if diff := cmp.Diff(mailbox.RegisterPeerOut{Peer: want}, must(b.RegisterPeer(t.Context(), b.who, in))(t)); diff != "" {
		t.Error("without a displayName (-want +got):\n", diff)
	}
	in.DisplayName, want.DisplayName = new("Renamed"), "Renamed"
	if diff := cmp.Diff(mailbox.RegisterPeerOut{Peer: want}, must(b.RegisterPeer(t.Context(), b.who, in))(t)); diff != "" {
		t.Error("with another displayName (-want +got):\n", diff)
	}
	if diff := cmp.Diff([]string{"peer.register chat-main", "peer.register chat-main"}, b.audited()); diff != "" {
		t.Error("audited: what changed something, and no more (-want +got):\n", diff)
	}
}

func TestAPeerKeepsItsKindAndBindingWhileActive(t *testing.T) {
	uuid := "AAAAAAAA-0000-4000-8000-00000000000b"
	lower := strings.ToLower(uuid)
	b := newBox(t, mailbox.Options{LocalHostID: "mac", Agents: agents{
		"local-owner:shared mac agent-1": true, "local-owner:shared builder agent-1": true, "local-owner:shared mac " + lower: true,
	}})
	local := func(id, agent string, host ...string) (mailbox.RegisterPeerOut, error) {
		in := mailbox.RegisterPeerIn{PeerID: id, Kind: mailbox.Local, AgentID: &agent}
		if len(host) > 0 {
			in.HostID = &host[0]
		}
		return b.RegisterPeer(t.Context(), b.who, in)
	}
	first := must(local("worker", "agent-1"))(t)
	if first.Peer.HostID != "mac" || first.Peer.AgentID != "agent-1" {
		t.Errorf("bound to %+v", first.Peer)
	}
	for _, host := range []string{"local", "mac"} {
		if again := must(local("worker", "agent-1", host))(t); again.Created {
			t.Errorf("host %s is another peer", host)
		}
	}
	_, err := local("worker", "agent-1", "builder")
	refused(t, err, mailbox.PeerConflict)
	_, err = b.RegisterPeer(t.Context(), b.who, mailbox.RegisterPeerIn{PeerID: "worker", Kind: mailbox.Chat})
	refused(t, err, mailbox.PeerConflict)
	_, err = local("other-name", "agent-1")
	if f := refused(t, err, mailbox.PeerConflict); !strings.Contains(f.Message, "worker") {
		t.Errorf("%q does not name the peer that the agent is", f.Message)
	}
	if got := must(local("by-uuid", uuid))(t); got.Peer.AgentID != lower {
		t.Errorf("the agent's UUID is stored as %s", got.Peer.AgentID)
	}
	if again := must(local("by-uuid", lower))(t); again.Created {
		t.Error("the same UUID in lower case is another binding")
	}

	b.stop("worker")
	moved := must(local("worker", "agent-1", "builder"))(t)
	if moved.Peer.HostID != "builder" || moved.Peer.Generation != 2 || moved.Created {
		t.Errorf("a stopped peer registered elsewhere is %+v", moved)
	}
	if got := must(local("other-name", "agent-1"))(t); !got.Created {
		t.Error("the agent that no active peer is can't be registered")
	}
}

func TestStopAndRegisterBeginsAGeneration(t *testing.T) {
	b := newBox(t, mailbox.Options{Agents: everyAgent{}})
	b.register("a")
	me := b.registerAgent("b")
	old := b.send("a", "b", "for the first generation")
	stopped := b.stop("b")
	if stopped.AlreadyStopped || stopped.Peer.State != mailbox.Stopped || stopped.Peer.Notification.Path != mailbox.None {
		t.Errorf("stopped: %+v", stopped)
	}
	if again := b.stop("b"); !again.AlreadyStopped || again.Peer.State != mailbox.Stopped {
		t.Errorf("stopped twice: %+v", again)
	}
	for _, c := range [][2]string{{"a", "b"}, {"b", "a"}} {
		_, err := b.SendPeerMessage(t.Context(), b.who, sendIn(c[0], c[1], "x"))
		refused(t, err, mailbox.PeerStopped)
	}
	if got := b.get(old.Message.MessageID, "b").Message; got.ReadAt.IsZero() {
		t.Error("a stopped peer can't read its mail")
	}
	b.registerAgent("b")
	if p := b.peer("b"); p.Generation != 2 || p.State != mailbox.Active || p.UnprocessedCount != 1 {
		t.Errorf("registered again: %+v", p)
	}
	fresh := b.send("a", "b", "for the second")
	if fresh.Message.RecipientGeneration != 2 {
		t.Errorf("sent to generation %d", fresh.Message.RecipientGeneration)
	}

	all := b.list(mailbox.ListPeerMessagesIn{PeerID: "b"})
	if got := idsOf(all.Messages); !slices.Equal(got, []string{old.Message.MessageID, fresh.Message.MessageID}) || all.UnprocessedCount != 2 {
		t.Errorf("the inbox is %v (%d)", got, all.UnprocessedCount)
	}
	for _, in := range []mailbox.ListPeerMessagesIn{{}, {IncludeProcessed: true}, {ThreadID: &fresh.Message.ThreadID}} {
		in.PeerID, in.Agent = "b", me
		own := b.list(in)
		if got := idsOf(own.Messages); !slices.Equal(got, []string{fresh.Message.MessageID}) || own.UnprocessedCount != 1 {
			t.Errorf("the native agent sees %v (%d) with %+v", got, own.UnprocessedCount, in)
		}
	}
	_, err := b.GetPeerMessage(t.Context(), b.who, mailbox.GetPeerMessageIn{MessageID: old.Message.MessageID, PeerID: new("b"), Agent: me})
	refused(t, err, mailbox.UnknownMessage)
	_, err = b.AckPeerMessage(t.Context(), b.who, mailbox.AckPeerMessageIn{MessageID: old.Message.MessageID, PeerID: "b", Agent: me})
	refused(t, err, mailbox.UnknownMessage)
	answer := sendIn("b", "a", "x")
	answer.InReplyTo, answer.Agent = &old.Message.MessageID, me
	_, err = b.SendPeerMessage(t.Context(), b.who, answer)
	refused(t, err, mailbox.UnknownMessage)

	b.ack(old.Message.MessageID, "b")
	if got := b.list(mailbox.ListPeerMessagesIn{PeerID: "b", Agent: me}); got.UnprocessedCount != 1 {
		t.Errorf("old mail counted for this generation: %d", got.UnprocessedCount)
	}
	b.ack(fresh.Message.MessageID, "b")
	if got := b.list(mailbox.ListPeerMessagesIn{PeerID: "b", Agent: me}); got.UnprocessedCount != 0 {
		t.Errorf("%d of this generation left", got.UnprocessedCount)
	}
}

// TestAnAgentHasItsOwnPeers: what names another's peer is refused, and so is a page
// that was waited for while the peer became another's.
func TestAnAgentHasItsOwnPeers(t *testing.T) {
	b := newBox(t, mailbox.Options{Agents: everyAgent{}})
	b.register("chat")
	me := b.registerAgent("mine")
	b.registerAgent("theirs")
	stored := b.send("theirs", "chat", "x").Message
	for _, id := range []string{"chat", "theirs", "nobody"} {
		_, err := b.ListPeerMessages(t.Context(), b.who, mailbox.ListPeerMessagesIn{PeerID: id, Agent: me})
		refused(t, err, mailbox.NotOwnPeer)
		_, err = b.GetPeerMessage(t.Context(), b.who, mailbox.GetPeerMessageIn{MessageID: stored.MessageID, PeerID: &id, Agent: me})
		refused(t, err, mailbox.NotOwnPeer)
		_, err = b.AckPeerMessage(t.Context(), b.who, mailbox.AckPeerMessageIn{MessageID: stored.MessageID, PeerID: id, Agent: me})
		refused(t, err, mailbox.NotOwnPeer)
		_, err = b.StopPeer(t.Context(), b.who, mailbox.StopPeerIn{PeerID: id, Agent: me})
		refused(t, err, mailbox.NotOwnPeer)
		in := sendIn(id, "mine", "x")
		in.Agent = me
		_, err = b.SendPeerMessage(t.Context(), b.who, in)
		refused(t, err, mailbox.NotOwnPeer)
	}
	repeat := mailbox.SendPeerMessageIn{MessageID: stored.MessageID, FromPeerID: "theirs", ToPeerID: "chat", Text: "x", Agent: me}
	_, err := b.SendPeerMessage(t.Context(), b.who, repeat)
	refused(t, err, mailbox.NotOwnPeer)
	b.stop("theirs")
	_, err = b.RegisterPeer(t.Context(), b.who, mailbox.RegisterPeerIn{PeerID: "theirs", Kind: mailbox.Local, AgentID: new("mine"), Agent: me})
	refused(t, err, mailbox.NotOwnPeer)

	waited := make(chan error, 1)
	go func() {
		_, err := b.ListPeerMessages(t.Context(), b.who, mailbox.ListPeerMessagesIn{PeerID: "mine", WaitMs: new(20000), Agent: me})
		waited <- err
	}()
	b.stop("mine")
	b.register("mine")
	b.send("chat", "mine", "for the chat alone")
	refused(t, <-waited, mailbox.NotOwnPeer)
}

func TestAnOwnerHas512PeersForEver(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	for i := range mailbox.MaxPeersPerOwner {
		b.register(fmt.Sprintf("p%03d", i))
	}
	b.stop("p000")
	_, err := b.RegisterPeer(t.Context(), b.who, mailbox.RegisterPeerIn{PeerID: "one-more", Kind: mailbox.Chat})
	refused(t, err, mailbox.PeerLimit)
	b.register("p000", "p001")
	b.as("local-owner:other").register("one-more")

	var got []string
	in := mailbox.ListPeersIn{Limit: new(200)}
	for pages := 1; ; pages++ {
		out := must(b.ListPeers(t.Context(), b.who, in))(t)
		for _, p := range out.Peers {
			got = append(got, p.PeerID)
		}
		if out.NextCursor == "" {
			if pages != 3 {
				t.Errorf("%d pages", pages)
			}
			break
		}
		in.Cursor = &out.NextCursor
	}
	if len(got) != 512 || !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != 512 {
		t.Errorf("the pages hold %d peers, sorted %t", len(got), slices.IsSorted(got))
	}
}

func TestListPeersHidesStoppedOnesUnlessAsked(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	b.register("c", "a", "b")
	b.stop("b")
	names := func(in mailbox.ListPeersIn) (ids []string) {
		for _, p := range must(b.ListPeers(t.Context(), b.who, in))(t).Peers {
			ids = append(ids, p.PeerID)
		}
		return ids
	}
	if got := names(mailbox.ListPeersIn{}); !slices.Equal(got, []string{"a", "c"}) {
		t.Error(got)
	}
	if got := names(mailbox.ListPeersIn{IncludeStopped: true}); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Error(got)
	}
}

func TestOwnersDoNotSeeEachOther(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	b.register("a", "b")
	sent := b.send("a", "b", "private")
	o := b.as("local-owner:other")
	id := sent.Message.MessageID
	o.register("b", "c")

	if got := must(o.ListPeers(t.Context(), o.who, mailbox.ListPeersIn{}))(t); len(got.Peers) != 2 {
		t.Errorf("the other owner sees %v", got.Peers)
	}
	if got := o.list(mailbox.ListPeerMessagesIn{PeerID: "b", IncludeProcessed: true}); len(got.Messages) != 0 {
		t.Errorf("the other owner lists %v", got.Messages)
	}
	_, err := o.GetPeerMessage(t.Context(), o.who, mailbox.GetPeerMessageIn{MessageID: id})
	refused(t, err, mailbox.UnknownMessage)
	_, err = o.AckPeerMessage(t.Context(), o.who, mailbox.AckPeerMessageIn{MessageID: id, PeerID: "b"})
	refused(t, err, mailbox.UnknownMessage)
	_, err = o.ListPeerMessages(t.Context(), o.who, mailbox.ListPeerMessagesIn{PeerID: "b", ThreadID: &id})
	refused(t, err, mailbox.UnknownMessage)
	_, err = o.SendPeerMessage(t.Context(), o.who, mailbox.SendPeerMessageIn{MessageID: newID(), FromPeerID: "b", ToPeerID: "c", Text: "x", InReplyTo: &id})
	refused(t, err, mailbox.UnknownMessage)
	_, err = o.StopPeer(t.Context(), o.who, mailbox.StopPeerIn{PeerID: "a"})
	refused(t, err, mailbox.UnknownPeer)
	if got := must(o.SendPeerMessage(t.Context(), o.who, mailbox.SendPeerMessageIn{MessageID: id, FromPeerID: "b", ToPeerID: "c", Text: "mine"}))(t); got.Duplicate {
		t.Error("a messageId of another owner counts as a repeat")
	}
}

func TestLastSeenIsToTheMinuteAndReadingWritesNoMore(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	b.register("a", "b")
	start := b.clock.now().UTC()
	sent := b.send("a", "b", "x")
	b.get(sent.Message.MessageID, "b")

	step := func(name, peer string, want time.Time, do func()) {
		t.Helper()
		do()
		if got := b.peer(peer).LastSeenAt; !got.Equal(want) {
			t.Errorf("after %s %s was seen at %s, want %s", name, peer, got, mailbox.Time{Time: want})
		}
	}
	b.clock.advance(59 * time.Second)
	step("a list within the minute", "b", start, func() { b.inbox("b") })
	b.clock.advance(time.Second)
	step("a list after it", "b", start.Add(time.Minute), func() { b.inbox("b") })
	step("a list of another peer", "a", start, func() {})
	b.clock.advance(time.Minute)
	step("a read without peerId", "b", start.Add(time.Minute), func() { b.get(sent.Message.MessageID) })
	step("a second read with peerId", "b", start.Add(2*time.Minute), func() { b.get(sent.Message.MessageID, "b") })
	step("a read by the sender", "a", start.Add(2*time.Minute), func() { b.get(sent.Message.MessageID, "a") })
	b.clock.advance(time.Minute)
	step("an acknowledgement", "b", start.Add(3*time.Minute), func() { b.ack(sent.Message.MessageID, "b") })
	step("a send", "a", start.Add(3*time.Minute), func() { b.send("a", "b", "y") })
	b.clock.advance(time.Minute)
	step("a registration", "a", start.Add(4*time.Minute), func() { b.register("a") })
}

func TestTimesAreMillisecondsUTC(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	b.clock.advance(7 * time.Millisecond)
	b.register("a")
	raw := must(json.Marshal(b.peer("a")))(t)
	want := `{"peerId":"a","kind":"chat","generation":1,"state":"active","createdAt":"2026-03-01T09:00:00.007Z","lastSeenAt":"2026-03-01T09:00:00.007Z",` +
		`"unprocessedCount":0,"notification":{"path":"none","reason":"No wake-up is set up for this peer; it reads its mail when it checks."}}`
	if string(raw) != want {
		t.Errorf("got  %s\nwant %s", raw, want)
	}
}
