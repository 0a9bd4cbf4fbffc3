package mailbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"agentrelay/internal/fault"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/principal"
)

// The model is the mailbox as maps and slices: what tools.md says, without a
// database, an index or a counter.
type modelPeer struct {
	generation int64
	stopped    bool
}

type modelMessage struct {
	in                      mailbox.SendPeerMessageIn
	generation              int64
	root                    *modelMessage
	hop                     int
	reply                   *modelMessage
	sent, read, done, purge int64 // milliseconds, 0 is not yet
}

type modelBudget struct{ started, used int64 }

type model struct {
	limits   mailbox.Limits
	peers    map[string]*modelPeer
	messages []*modelMessage // in order of arrival
	budgets  map[string]modelBudget
}

var allowed = fault.Kind{Code: "ok"}

func (m *model) find(id string) *modelMessage {
	for _, x := range m.messages {
		if x.in.MessageID == id {
			return x
		}
	}
	return nil
}

// sender says whether a peer can take part in sending.
func (m *model) sender(id string) fault.Kind {
	switch p := m.peers[id]; {
	case p == nil:
		return mailbox.UnknownPeer
	case p.stopped:
		return mailbox.PeerStopped
	}
	return allowed
}

func (m *model) send(in mailbox.SendPeerMessageIn, now int64) (_ fault.Kind, duplicate bool) {
	if in.FromPeerID == in.ToPeerID {
		return mailbox.SelfMessage, false
	}
	if x := m.find(in.MessageID); x != nil {
		switch {
		case !cmp.Equal(x.in, in):
			return fault.KeyConflict, false
		case x.purge != 0:
			return mailbox.MessagePurged, false
		}
		return allowed, true
	}
	for _, id := range []string{in.FromPeerID, in.ToPeerID} {
		if k := m.sender(id); k != allowed {
			return k, false
		}
	}
	x := &modelMessage{in: in, generation: m.peers[in.ToPeerID].generation, hop: 1, sent: now}
	x.root = x
	if in.InReplyTo != nil {
		o := m.find(*in.InReplyTo)
		switch {
		case o == nil:
			return mailbox.UnknownMessage, false
		case o.in.FromPeerID != in.ToPeerID || o.in.ToPeerID != in.FromPeerID:
			return mailbox.ReplyMismatch, false
		case o.reply != nil:
			return mailbox.AlreadyReplied, false
		case o.hop == 8:
			return mailbox.HopLimit, false
		}
		if !m.spend(in, now) {
			return mailbox.RateLimited, false
		}
		x.root, x.hop, o.reply = o.root, o.hop+1, x
	} else if !m.spend(in, now) {
		return mailbox.RateLimited, false
	}
	m.messages = append(m.messages, x)
	return allowed, false
}

func (m *model) spend(in mailbox.SendPeerMessageIn, now int64) bool {
	pair := []string{in.FromPeerID, in.ToPeerID}
	slices.Sort(pair)
	next := map[string]modelBudget{}
	for key, limit := range map[string]int{fmt.Sprint(pair): m.limits.PairPerHour, "owner": m.limits.OwnerPerHour} {
		b := m.budgets[key]
		if b.used == 0 || now-b.started >= time.Hour.Milliseconds() {
			b = modelBudget{started: now}
		}
		b.used++
		if b.used > int64(limit) {
			return false
		}
		next[key] = b
	}
	for key, b := range next {
		m.budgets[key] = b
	}
	return true
}

// view says which messages a list holds.
func (m *model) view(in func(*modelMessage) bool) []string {
	ids := []string{}
	for _, x := range m.messages {
		if x.purge == 0 && in(x) {
			ids = append(ids, x.in.MessageID)
		}
	}
	return ids
}

// subject is the mailbox under test beside its model.
type subject struct {
	*model
	*box
	t *rapid.T
}

func (s *subject) now() int64 { return s.clock.now().UnixMilli() }

func (s *subject) verdict(call string, err error, want fault.Kind) bool {
	s.t.Helper()
	got := allowed
	if err != nil {
		var f *fault.Error
		if !errors.As(err, &f) {
			s.t.Fatalf("%s: %v", call, err)
		}
		got = f.Kind
	}
	if got.Code != want.Code {
		s.t.Fatalf("%s: got %s (%v), want %s", call, got.Code, err, want.Code)
	}
	return err == nil
}

// seldom is true one time in four.
var seldom = rapid.Map(rapid.IntRange(0, 3), func(n int) bool { return n == 3 })

var modelPeers = rapid.SampledFrom([]string{"a", "b", "c", "d"})

// someMessage draws a stored message, or nil.
func (s *subject) someMessage() *modelMessage {
	if len(s.messages) == 0 {
		return nil
	}
	return rapid.SampledFrom(s.messages).Draw(s.t, "message")
}

func (s *subject) register(t *rapid.T) {
	id := modelPeers.Draw(t, "peer")
	out, err := s.RegisterPeer(context.Background(), s.who, mailbox.RegisterPeerIn{PeerID: id, Kind: mailbox.Local, AgentID: &id})
	s.verdict("register", err, allowed)
	p := s.model.peers[id]
	if out.Created != (p == nil) {
		t.Fatalf("register %s: created %t", id, out.Created)
	}
	switch {
	case p == nil:
		s.model.peers[id] = &modelPeer{generation: 1}
	case p.stopped:
		p.stopped, p.generation = false, p.generation+1
	}
}

func (s *subject) stop(t *rapid.T) {
	if !seldom.Draw(t, "really") {
		return
	}
	id := modelPeers.Draw(t, "peer")
	out, err := s.StopPeer(context.Background(), s.who, mailbox.StopPeerIn{PeerID: id})
	p := s.model.peers[id]
	if p == nil {
		s.verdict("stop", err, mailbox.UnknownPeer)
		return
	}
	s.verdict("stop", err, allowed)
	if out.AlreadyStopped != p.stopped {
		t.Fatalf("stop %s: already %t", id, out.AlreadyStopped)
	}
	p.stopped = true
}

// send draws a new message, an answer, a repeat or a misuse of a key.
func (s *subject) send(t *rapid.T) {
	pair := rapid.SampledFrom([]string{"ab", "ba", "ab", "ba", "ac", "cb", "dd"}).Draw(t, "pair")
	in := sendIn(pair[:1], pair[1:], rapid.StringN(1, 300, -1).Draw(t, "text"))
	if x := s.someMessage(); x != nil {
		switch rapid.SampledFrom([]string{"new", "answer", "answer", "answer", "wrong answer", "repeat", "misuse"}).Draw(t, "how") {
		case "answer":
			x = s.messages[len(s.messages)-1]
			in.FromPeerID, in.ToPeerID, in.InReplyTo = x.in.ToPeerID, x.in.FromPeerID, &x.in.MessageID
		case "wrong answer":
			in.InReplyTo = &x.in.MessageID
		case "repeat":
			in = x.in
		case "misuse":
			in.MessageID = x.in.MessageID
		}
	}
	want, duplicate := s.model.send(in, s.now())
	out, err := s.SendPeerMessage(context.Background(), s.who, in)
	if s.verdict("send", err, want) && (out.Duplicate != duplicate || out.Message.Text != in.Text) {
		t.Fatalf("send %+v: %+v", in, out)
	}
}

func (s *subject) read(t *rapid.T) {
	x := s.someMessage()
	if x == nil {
		return
	}
	in := mailbox.GetPeerMessageIn{MessageID: x.in.MessageID}
	want := allowed
	if rapid.Bool().Draw(t, "names itself") {
		id := modelPeers.Draw(t, "reader")
		in.PeerID = &id
		switch {
		case s.model.peers[id] == nil:
			want = mailbox.UnknownPeer
		case x.purge != 0:
		case id == x.in.ToPeerID:
			if x.read == 0 {
				x.read = s.now()
			}
		case id != x.in.FromPeerID:
			want = mailbox.NotRecipient
		}
	}
	if want == allowed && x.purge != 0 {
		want = mailbox.MessagePurged
	}
	out, err := s.GetPeerMessage(context.Background(), s.who, in)
	if s.verdict("get", err, want) {
		s.same("get", out.Message, out.ReplyMessageID, x)
	}
}

func (s *subject) ack(t *rapid.T) {
	x := s.someMessage()
	if x == nil {
		return
	}
	id := rapid.SampledFrom([]string{x.in.ToPeerID, x.in.ToPeerID, x.in.ToPeerID, "a", "b"}).Draw(t, "reader")
	want := allowed
	switch {
	case s.model.peers[id] == nil:
		want = mailbox.UnknownPeer
	case x.purge != 0:
		want = mailbox.MessagePurged
	case id != x.in.ToPeerID:
		want = mailbox.NotRecipient
	}
	out, err := s.AckPeerMessage(context.Background(), s.who, mailbox.AckPeerMessageIn{MessageID: x.in.MessageID, PeerID: id})
	if !s.verdict("ack", err, want) {
		return
	}
	if out.AlreadyProcessed != (x.done != 0) {
		t.Fatalf("ack: already %t", out.AlreadyProcessed)
	}
	if x.done == 0 {
		x.done = s.now()
	}
}

func (s *subject) purge(t *rapid.T) {
	if !seldom.Draw(t, "really") {
		return
	}
	in := mailbox.PurgeIn{
		Owner: s.who.Owner, IncludeUnprocessed: rapid.Bool().Draw(t, "unprocessed too"),
		Before: s.clock.now().Add(-time.Duration(rapid.IntRange(0, 120).Draw(t, "minutes")) * time.Minute),
	}
	var want mailbox.PurgeOut
	for _, x := range s.messages {
		switch {
		case x.purge != 0 || x.sent >= in.Before.UnixMilli():
		case x.done != 0 || in.IncludeUnprocessed:
			want.Purged++
			x.purge = s.now()
		default:
			want.KeptUnprocessed++
		}
	}
	got, err := s.Purge(context.Background(), in)
	if s.verdict("purge", err, allowed); got != want {
		t.Fatalf("purge %+v: %+v, want %+v", in, got, want)
	}
}

// same compares a message with its model.
func (s *subject) same(call string, got mailbox.Message, reply string, x *modelMessage) {
	s.t.Helper()
	want := mailbox.Message{
		MessageID: x.in.MessageID, FromPeerID: x.in.FromPeerID, ToPeerID: x.in.ToPeerID, Text: x.in.Text, ThreadID: x.root.in.MessageID, Hop: x.hop,
		CreatedAt: instant(x.sent), State: mailbox.Unprocessed, ProcessedAt: instant(x.done), ReadAt: instant(x.read), RecipientGeneration: x.generation,
	}
	if x.in.InReplyTo != nil {
		want.InReplyTo = *x.in.InReplyTo
	}
	if x.done != 0 {
		want.State = mailbox.Processed
	}
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Fatal(call, " (-want +got):\n", diff)
	}
	if wantReply := x.reply; (reply != "") != (wantReply != nil) || (wantReply != nil && wantReply.in.MessageID != reply) {
		s.t.Fatalf("%s: the reply is %q", call, reply)
	}
}

func instant(ms int64) mailbox.Time {
	if ms == 0 {
		return mailbox.Time{}
	}
	return mailbox.Time{Time: time.UnixMilli(ms).UTC()}
}

// view reads all pages of a list and compares entries, order and count.
func (s *subject) view(in mailbox.ListPeerMessagesIn, want []string, unprocessed int) {
	s.t.Helper()
	in.Limit = new(rapid.SampledFrom([]int{2, 200}).Draw(s.t, "limit"))
	got := []string{}
	for {
		page, err := s.ListPeerMessages(context.Background(), s.who, in)
		s.verdict("list", err, allowed)
		if page.UnprocessedCount != int64(unprocessed) {
			s.t.Fatalf("%+v counts %d, want %d", in, page.UnprocessedCount, unprocessed)
		}
		for _, e := range page.Messages {
			got = append(got, e.MessageID)
			if x := s.find(e.MessageID); e.ReadAt != instant(x.read) || e.ProcessedAt != instant(x.done) || e.Hop != x.hop || e.ThreadID != x.root.in.MessageID || e.TextLength != len([]rune(x.in.Text)) {
				s.t.Fatalf("%+v lists %+v", in, e)
			}
		}
		if page.NextCursor == "" {
			break
		}
		in.Cursor = &page.NextCursor
	}
	if !slices.Equal(got, want) {
		s.t.Fatalf("%+v lists %v, want %v", in, got, want)
	}
}

// agree checks that the directory, a list, a thread and a message drawn at random
// tell the same story as the model.
func (s *subject) agree(t *rapid.T) {
	out, err := s.ListPeers(context.Background(), s.who, mailbox.ListPeersIn{IncludeStopped: true})
	s.verdict("list_peers", err, allowed)
	if len(out.Peers) != len(s.model.peers) {
		t.Fatalf("the directory holds %d peers, want %d", len(out.Peers), len(s.model.peers))
	}
	for _, p := range out.Peers {
		m := s.model.peers[p.PeerID]
		waiting := s.model.view(func(x *modelMessage) bool { return x.in.ToPeerID == p.PeerID && x.done == 0 })
		if p.Generation != m.generation || (p.State == mailbox.Stopped) != m.stopped || p.UnprocessedCount != int64(len(waiting)) {
			t.Fatalf("the directory shows %+v, the model %+v with %d unprocessed", p, *m, len(waiting))
		}
	}
	s.agreeList(rapid.SampledFrom(out.Peers).Draw(t, "peer").PeerID, rapid.SampledFrom([]string{"unprocessed", "all", "own"}).Draw(t, "list"))
	if x := s.someMessage(); x != nil {
		s.agreeMessage(x)
	}
}

func (s *subject) agreeList(peer, which string) {
	to := func(x *modelMessage) bool { return x.in.ToPeerID == peer }
	waiting := s.model.view(func(x *modelMessage) bool { return to(x) && x.done == 0 })
	own := s.model.view(func(x *modelMessage) bool {
		return to(x) && x.done == 0 && x.generation == s.model.peers[peer].generation
	})
	switch which {
	case "unprocessed":
		s.view(mailbox.ListPeerMessagesIn{PeerID: peer}, waiting, len(waiting))
	case "all":
		s.view(mailbox.ListPeerMessagesIn{PeerID: peer, IncludeProcessed: true}, s.model.view(to), len(waiting))
	case "own":
		s.view(mailbox.ListPeerMessagesIn{PeerID: peer, Agent: &mailbox.Agent{HostID: "local", AgentID: peer}}, own, len(own))
	}
}

func (s *subject) agreeMessage(x *modelMessage) {
	waiting := s.model.view(func(y *modelMessage) bool { return y.in.ToPeerID == x.in.ToPeerID && y.done == 0 })
	thread := s.model.view(func(y *modelMessage) bool { return y.root == x.root })
	s.view(mailbox.ListPeerMessagesIn{PeerID: x.in.ToPeerID, ThreadID: &x.root.in.MessageID}, thread, len(waiting))
	out, err := s.GetPeerMessage(context.Background(), s.who, mailbox.GetPeerMessageIn{MessageID: x.in.MessageID})
	if x.purge != 0 {
		s.verdict("get", err, mailbox.MessagePurged)
	} else if s.verdict("get", err, allowed) {
		s.same("get", out.Message, out.ReplyMessageID, x)
	}
}

// checksUnderRace is how many random histories run with the race detector, which
// makes SQLite tenfold slower and finds nothing in a test of one goroutine.
const checksUnderRace = 10

func TestTheMailboxIsItsModel(t *testing.T) {
	limits := mailbox.Limits{PairPerHour: 12, OwnerPerHour: 25}
	b := newBox(t, mailbox.Options{Limits: limits, Agents: everyAgent{}})
	var owners atomic.Int64
	rapid.Check(t, func(t *rapid.T) {
		n := owners.Add(1)
		if raced && n > checksUnderRace {
			return
		}
		c := *b
		c.who = principal.Principal{Owner: fmt.Sprint("local-owner:", n), ClientID: "client"}
		s := &subject{&model{limits: limits, peers: map[string]*modelPeer{}, budgets: map[string]modelBudget{}}, &c, t}
		for _, id := range []string{"a", "b"} {
			must(c.RegisterPeer(context.Background(), c.who, mailbox.RegisterPeerIn{PeerID: id, Kind: mailbox.Local, AgentID: &id}))(c.t)
			s.model.peers[id] = &modelPeer{generation: 1}
		}
		t.Repeat(map[string]func(*rapid.T){
			"register": s.register,
			"stop":     s.stop,
			"send":     s.send,
			"send 2":   s.send,
			"send 3":   s.send,
			"send 4":   s.send,
			"read":     s.read,
			"ack":      s.ack,
			"purge":    s.purge,
			"advance": func(t *rapid.T) {
				s.clock.advance(time.Duration(rapid.IntRange(0, 40*60*1000).Draw(t, "milliseconds")) * time.Millisecond)
			},
			"": s.agree,
		})
	})
}
