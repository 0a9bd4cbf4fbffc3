package mailbox_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrelay/internal/fault"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/store"
)

func TestListRefusesWhatBreaksARule(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	b.register("a", "b")
	for range 3 {
		b.send("a", "b", "x")
	}
	cursor := b.list(mailbox.ListPeerMessagesIn{PeerID: "b", Limit: new(1)}).NextCursor
	ofPeers := must(b.ListPeers(t.Context(), b.who, mailbox.ListPeersIn{Limit: new(1)}))(t).NextCursor
	o := b.as("local-owner:other")
	o.register("a", "b")
	o.send("a", "b", "x")
	o.send("a", "b", "x")
	foreign := o.list(mailbox.ListPeerMessagesIn{PeerID: "b", Limit: new(1)}).NextCursor

	for _, c := range []struct {
		name string
		in   mailbox.ListPeerMessagesIn
		want fault.Kind
	}{
		{"no peer", mailbox.ListPeerMessagesIn{}, fault.InvalidArguments},
		{"an unknown peer", mailbox.ListPeerMessagesIn{PeerID: "nobody"}, mailbox.UnknownPeer},
		{"limit 0", mailbox.ListPeerMessagesIn{PeerID: "b", Limit: new(0)}, fault.InvalidArguments},
		{"limit 201", mailbox.ListPeerMessagesIn{PeerID: "b", Limit: new(201)}, fault.InvalidArguments},
		{"waitMs -1", mailbox.ListPeerMessagesIn{PeerID: "b", WaitMs: new(-1)}, fault.InvalidArguments},
		{"waitMs 20001", mailbox.ListPeerMessagesIn{PeerID: "b", WaitMs: new(20001)}, fault.InvalidArguments},
		{"a threadId that is no UUID", mailbox.ListPeerMessagesIn{PeerID: "b", ThreadID: new("1")}, fault.InvalidArguments},
		{"an empty cursor", mailbox.ListPeerMessagesIn{PeerID: "b", Cursor: new("")}, mailbox.InvalidCursor},
		{"a cursor in other letters", mailbox.ListPeerMessagesIn{PeerID: "b", Cursor: new("%%%")}, mailbox.InvalidCursor},
		{"a cursor cut short", mailbox.ListPeerMessagesIn{PeerID: "b", Cursor: new(cursor[:len(cursor)-2])}, mailbox.InvalidCursor},
		{"a cursor with more", mailbox.ListPeerMessagesIn{PeerID: "b", Cursor: new(cursor + "AAAA")}, mailbox.InvalidCursor},
		{"a huge cursor", mailbox.ListPeerMessagesIn{PeerID: "b", Cursor: new(strings.Repeat("A", 1<<20))}, mailbox.InvalidCursor},
		{"a cursor of another peer", mailbox.ListPeerMessagesIn{PeerID: "a", Cursor: &cursor}, mailbox.InvalidCursor},
		{"a cursor of another view", mailbox.ListPeerMessagesIn{PeerID: "b", Cursor: &cursor, IncludeProcessed: true}, mailbox.InvalidCursor},
		{"a cursor of list_peers", mailbox.ListPeerMessagesIn{PeerID: "b", Cursor: &ofPeers}, mailbox.InvalidCursor},
		{"a cursor of another owner", mailbox.ListPeerMessagesIn{PeerID: "b", Cursor: &foreign}, mailbox.InvalidCursor},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := b.ListPeerMessages(t.Context(), b.who, c.in)
			refused(t, err, c.want)
		})
	}
	for _, in := range []mailbox.ListPeersIn{{Cursor: new("")}, {Cursor: &cursor}, {Cursor: &ofPeers, IncludeStopped: true}} {
		_, err := b.ListPeers(t.Context(), b.who, in)
		refused(t, err, mailbox.InvalidCursor)
	}
	_, err := b.ListPeers(t.Context(), b.who, mailbox.ListPeersIn{Limit: new(201)})
	refused(t, err, fault.InvalidArguments)
	if got := b.list(mailbox.ListPeerMessagesIn{PeerID: "b", Cursor: &cursor, Limit: new(200)}); len(got.Messages) != 2 {
		t.Errorf("the cursor with another limit gives %d messages", len(got.Messages))
	}
}

func TestPagesHoldEachMessageOnceWhileTheInboxChanges(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	b.register("a", "b")
	var want []string
	for i := range 120 {
		want = append(want, b.send("a", "b", fmt.Sprint(i)).Message.MessageID)
	}
	var got []string
	in := mailbox.ListPeerMessagesIn{PeerID: "b"}
	for {
		page := b.list(in)
		if page.UnprocessedCount != int64(120-len(got)) {
			t.Errorf("%d unprocessed after %d were acknowledged", page.UnprocessedCount, len(got))
		}
		for _, e := range page.Messages {
			got = append(got, e.MessageID)
			b.ack(e.MessageID, "b")
		}
		if page.NextCursor == "" {
			break
		}
		in.Cursor = &page.NextCursor
	}
	if !slices.Equal(got, want) {
		t.Errorf("the pages hold %d messages, want 120 in order of arrival", len(got))
	}
	if page := b.list(mailbox.ListPeerMessagesIn{PeerID: "b", IncludeProcessed: true, Limit: new(200)}); !slices.Equal(idsOf(page.Messages), want) {
		t.Errorf("history holds %d messages", len(page.Messages))
	}
}

// follow makes the call that a list answer names, as a model would, and returns
// the list answer it ends with; it is nil when the call waits for mail.
func (b *box) follow(n mailbox.Next, acked *[]string) *mailbox.ListPeerMessagesOut {
	b.t.Helper()
	a := n.Arguments
	if n.Tool == "get_peer_message" {
		got := b.get(a.MessageID, a.PeerID)
		*acked = append(*acked, got.Message.Text)
		b.ack(a.MessageID, a.PeerID)
		return new(b.list(mailbox.ListPeerMessagesIn{PeerID: a.PeerID}))
	}
	if n.Tool != "list_peer_messages" {
		b.t.Fatalf("next names %s", n.Tool)
	}
	if a.WaitMs != 0 {
		return nil
	}
	in := mailbox.ListPeerMessagesIn{PeerID: a.PeerID, IncludeProcessed: a.IncludeProcessed}
	if a.ThreadID != "" {
		in.ThreadID = &a.ThreadID
	}
	if a.Cursor != "" {
		in.Cursor = &a.Cursor
	}
	if a.Limit != 0 {
		in.Limit = &a.Limit
	}
	return new(b.list(in))
}

func TestFollowingNextHandlesEverything(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	b.register("a", "b", "c")
	old := b.send("a", "b", "processed long ago").Message
	b.ack(old.MessageID, "b")
	var want []string
	for i := range 7 {
		want = append(want, fmt.Sprint("message ", i))
		b.send([]string{"a", "c"}[i%2], "b", want[i])
	}
	for _, start := range []mailbox.ListPeerMessagesIn{
		{PeerID: "b"}, {PeerID: "b", Limit: new(2)}, {PeerID: "b", IncludeProcessed: true, Limit: new(1)}, {PeerID: "b", ThreadID: &old.MessageID},
	} {
		var got []string
		calls := 0
		for page := new(b.list(start)); page != nil; page = b.follow(page.Next, &got) {
			if calls++; calls > 30 {
				t.Fatalf("next goes round in circles from %+v", start)
			}
		}
		if start.Limit == nil && start.ThreadID == nil && !slices.Equal(got, want) {
			t.Errorf("handled %v, want %v", got, want)
		}
		if b.peer("b").UnprocessedCount != 0 {
			t.Errorf("following next from %+v left %d messages", start, b.peer("b").UnprocessedCount)
		}
		for i := range 7 {
			b.send([]string{"a", "c"}[i%2], "b", want[i])
		}
	}
}

func TestNextSaysWhenAMessageWasReadBefore(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	b.register("a", "b")
	id := b.send("a", "b", "x").Message.MessageID
	fresh := b.list(mailbox.ListPeerMessagesIn{PeerID: "b"}).Next
	b.get(id, "b")
	read := b.list(mailbox.ListPeerMessagesIn{PeerID: "b"}).Next
	if fresh.Arguments != read.Arguments || fresh.Why == read.Why || !strings.Contains(read.Why, "ack_peer_message") {
		t.Errorf("before %+v, after %+v", fresh, read)
	}
}

// wait calls list with waitMs in the background and returns its answer.
func (b *box) wait(ctx context.Context, in mailbox.ListPeerMessagesIn) func() (mailbox.ListPeerMessagesOut, error) {
	type answer struct {
		out mailbox.ListPeerMessagesOut
		err error
	}
	done := make(chan answer, 1)
	if in.WaitMs == nil {
		in.WaitMs = new(mailbox.MaxWaitMs)
	}
	go func() {
		out, err := b.ListPeerMessages(ctx, b.who, in)
		done <- answer{out, err}
	}()
	return func() (mailbox.ListPeerMessagesOut, error) {
		select {
		case a := <-done:
			return a.out, a.err
		case <-time.After(10 * time.Second):
			b.t.Fatal("the wait did not end")
			panic("unreachable")
		}
	}
}

func (b *box) untilWaiting(n int) {
	b.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); b.Waiting() != n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("%d calls wait, want %d", b.Waiting(), n)
		}
	}
}

func TestAWaitEndsWithTheNextMessage(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	b.register("a", "b", "c")
	first := b.wait(t.Context(), mailbox.ListPeerMessagesIn{PeerID: "b"})
	second := b.wait(t.Context(), mailbox.ListPeerMessagesIn{PeerID: "b"})
	b.untilWaiting(2)
	b.send("b", "a", "not for it")
	b.send("a", "c", "nor this")
	b.untilWaiting(2)
	id := b.send("a", "b", "news").Message.MessageID
	for _, end := range []func() (mailbox.ListPeerMessagesOut, error){first, second} {
		out, err := end()
		if err != nil || !slices.Equal(idsOf(out.Messages), []string{id}) || out.UnprocessedCount != 1 {
			t.Errorf("got %+v, %v", out, err)
		}
	}
	out, err := b.wait(t.Context(), mailbox.ListPeerMessagesIn{PeerID: "b"})()
	if err != nil || len(out.Messages) != 1 {
		t.Errorf("a wait with mail in the inbox: %+v, %v", out, err)
	}
	b.untilWaiting(0)
}

func TestAWaitOnAThreadSeesBothDirections(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	b.register("a", "b")
	root := b.send("a", "b", "1").Message.MessageID
	second := b.send("b", "a", "2", root).Message.MessageID
	b.clock.advance(time.Hour)
	must(b.Purge(t.Context(), mailbox.PurgeIn{Before: b.clock.now(), IncludeUnprocessed: true}))(t)
	end := b.wait(t.Context(), mailbox.ListPeerMessagesIn{PeerID: "a", ThreadID: &root})
	b.untilWaiting(1)
	third := b.send("a", "b", "3", second).Message.MessageID
	if out, err := end(); err != nil || !slices.Equal(idsOf(out.Messages), []string{third}) {
		t.Errorf("got %+v, %v", out, err)
	}
}

func TestNoMessageSlipsPastAWait(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	b.register("a", "b")
	for range 100 {
		end := b.wait(t.Context(), mailbox.ListPeerMessagesIn{PeerID: "b"})
		id := b.send("a", "b", "x").Message.MessageID
		out, err := end()
		if err != nil || !slices.Equal(idsOf(out.Messages), []string{id}) {
			t.Fatalf("got %+v, %v", out, err)
		}
		b.ack(id, "b")
	}
}

func TestAWaitEndsWithItsTimeItsCallerAndTheService(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	b.register("a", "b")
	start := time.Now()
	out, err := b.wait(t.Context(), mailbox.ListPeerMessagesIn{PeerID: "b", WaitMs: new(50)})()
	if took := time.Since(start); err != nil || len(out.Messages) != 0 || out.Next.Tool == "" || took < 50*time.Millisecond {
		t.Errorf("after %s: %+v, %v", took, out, err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	end := b.wait(ctx, mailbox.ListPeerMessagesIn{PeerID: "b"})
	b.untilWaiting(1)
	cancel()
	if _, err := end(); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled wait answers %v", err)
	}

	end = b.wait(t.Context(), mailbox.ListPeerMessagesIn{PeerID: "b"})
	b.untilWaiting(1)
	b.Close()
	b.Close()
	if out, err := end(); err != nil || out.Messages == nil || out.Next.Tool == "" {
		t.Errorf("at shutdown a wait answers %+v, %v", out, err)
	}
	if out, err := b.wait(t.Context(), mailbox.ListPeerMessagesIn{PeerID: "b"})(); err != nil || len(out.Messages) != 0 {
		t.Errorf("after shutdown a wait answers %+v, %v", out, err)
	}
}

func TestWaitsHoldNoReaderAndAreBounded(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	peers := make([]string, 20)
	for i := range peers {
		peers[i] = fmt.Sprint("p", i)
	}
	b.register(peers...)
	var ends []func() (mailbox.ListPeerMessagesOut, error)
	for _, p := range peers[:4] {
		for range mailbox.MaxWaitsPerPeer {
			ends = append(ends, b.wait(t.Context(), mailbox.ListPeerMessagesIn{PeerID: p}))
		}
	}
	b.untilWaiting(4 * mailbox.MaxWaitsPerPeer)
	_, err := b.wait(t.Context(), mailbox.ListPeerMessagesIn{PeerID: "p0"})()
	refused(t, err, mailbox.TooManyWaits)
	if got := b.list(mailbox.ListPeerMessagesIn{PeerID: "p0"}); len(got.Messages) != 0 { // 64 waits, 8 readers
		t.Errorf("got %+v", got)
	}
	for _, p := range peers[:4] {
		b.send("p19", p, "x")
	}
	for _, end := range ends {
		if out, err := end(); err != nil || len(out.Messages) != 1 {
			t.Errorf("got %+v, %v", out, err)
		}
	}
	b.untilWaiting(0)
}

func TestPlansNeitherScanNorSort(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	for name, query := range mailbox.Queries {
		var plan []string
		err := store.Exec(t.Context(), b.store, func(tx *store.Tx) error {
			plan = nil
			return tx.Query(func(row store.Scanner) error {
				var id, parent, unused int
				var detail string
				err := row.Scan(&id, &parent, &unused, &detail)
				plan = append(plan, detail)
				return err
			}, "EXPLAIN QUERY PLAN "+query, make([]any, placeholders(query))...)
		})
		if err != nil {
			t.Fatal(name, err)
		}
		if len(plan) == 0 && name != "budget" {
			t.Errorf("%s has no plan", name)
		}
		for _, step := range plan {
			if strings.Contains(step, "SCAN ") || strings.Contains(step, "TEMP B-TREE") || strings.Contains(step, "AUTOMATIC") {
				t.Errorf("%s costs more than its page:\n%s", name, strings.Join(plan, "\n"))
			}
		}
	}
}

// placeholders counts the parameters of a query that has either ? or ?1 to ?5.
func placeholders(query string) int {
	for n := 5; n > 0; n-- {
		if strings.Contains(query, fmt.Sprint("?", n)) {
			return n
		}
	}
	return strings.Count(query, "?")
}

func TestReadersAndWritersDoNotDisturbEachOther(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	b.register("a", "b")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				in := sendIn("a", "b", "x")
				if _, err := b.SendPeerMessage(t.Context(), b.who, in); err != nil {
					t.Error(err)
				}
				if _, err := b.AckPeerMessage(t.Context(), b.who, mailbox.AckPeerMessageIn{MessageID: in.MessageID, PeerID: "b"}); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for range 20 {
				page, err := b.ListPeerMessages(t.Context(), b.who, mailbox.ListPeerMessagesIn{PeerID: "b"})
				if err != nil || int64(len(page.Messages)) != page.UnprocessedCount {
					t.Errorf("a page of %d with a count of %d, %v", len(page.Messages), page.UnprocessedCount, err)
				}
			}
		})
	}
	wg.Wait()
	if got := b.peer("b").UnprocessedCount; got != 0 {
		t.Errorf("%d left", got)
	}
}

func FuzzCursor(f *testing.F) {
	b := newBox(f, mailbox.Options{})
	b.register("a", "b")
	for range 3 {
		b.send("a", "b", "x")
	}
	f.Add(b.list(mailbox.ListPeerMessagesIn{PeerID: "b", Limit: new(1)}).NextCursor)
	f.Add(base64.RawURLEncoding.EncodeToString([]byte("\x01aaaaaaaa\x05")))
	f.Add("")
	all := idsOf(b.inbox("b"))
	f.Fuzz(func(t *testing.T, cursor string) {
		page, err := b.ListPeerMessages(t.Context(), b.who, mailbox.ListPeerMessagesIn{PeerID: "b", Cursor: &cursor})
		if err != nil {
			refused(t, err, mailbox.InvalidCursor)
			return
		}
		if got := idsOf(page.Messages); !slices.Equal(got, all[len(all)-len(got):]) {
			t.Errorf("the page is %v of %v", got, all)
		}
	})
}

func FuzzSend(f *testing.F) {
	b := newBox(f, mailbox.Options{})
	b.register("a", "b")
	f.Add(newID(), "a", "b", "text", "")
	f.Add(strings.ToUpper(newID()), "b", "a", "\x00\ufeff", newID())
	f.Add("{"+newID()+"}", "a ", "a", strings.Repeat("é", 300), "urn:uuid:x")
	f.Fuzz(func(t *testing.T, id, from, to, text, inReplyTo string) {
		in := mailbox.SendPeerMessageIn{MessageID: id, FromPeerID: from, ToPeerID: to, Text: text}
		if inReplyTo != "" {
			in.InReplyTo = &inReplyTo
		}
		out, err := b.SendPeerMessage(t.Context(), b.who, in)
		if err != nil {
			var known *fault.Error
			if !errors.As(err, &known) {
				t.Fatalf("%#v: %v", in, err)
			}
			return
		}
		if out.Message.Text != text || out.Message.MessageID != strings.ToLower(id) {
			t.Fatalf("%#v is stored as %+v", in, out.Message)
		}
		again := must(b.SendPeerMessage(t.Context(), b.who, in))(t)
		out.Duplicate = true
		if diff := cmp.Diff(out, again); diff != "" {
			t.Fatal("a repeat differs:\n", diff)
		}
	})
}
