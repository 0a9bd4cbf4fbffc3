package mailbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentrelay/internal/fault"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/principal"
)

func TestTheOwnerSeesAllDirectories(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	o := b.as("local-owner:https://client.example/metadata?" + strings.Repeat("x", 500))
	b.register("a", "b", "c")
	o.register("a", "z")
	b.stop("b")
	all := func(in mailbox.AllPeersIn) (got []string) {
		for {
			out := must(b.AllPeers(t.Context(), in))(t)
			for _, p := range out.Peers {
				got = append(got, p.Owner[:13]+" "+p.PeerID+" "+string(p.State))
			}
			if out.NextCursor == "" {
				return got
			}
			in.Cursor = &out.NextCursor
		}
	}
	for _, limit := range []int{1, 2, 50} {
		want := []string{"local-owner:h a active", "local-owner:h z active", "local-owner:s a active", "local-owner:s b stopped", "local-owner:s c active"}
		if got := all(mailbox.AllPeersIn{IncludeStopped: true, Limit: &limit}); !slices.Equal(got, want) {
			t.Errorf("by %d: %v", limit, got)
		}
		if got := all(mailbox.AllPeersIn{Owner: o.who.Owner, Limit: &limit}); !slices.Equal(got, want[:2]) {
			t.Errorf("one owner's by %d: %v", limit, got)
		}
		if got := all(mailbox.AllPeersIn{Limit: &limit}); !slices.Equal(got, slices.Delete(slices.Clone(want), 3, 4)) {
			t.Errorf("active by %d: %v", limit, got)
		}
	}
	if out := must(b.StopPeer(t.Context(), principal.Owner(o.who.Owner), mailbox.StopPeerIn{PeerID: "z"}))(t); out.Peer.State != mailbox.Stopped {
		t.Errorf("the owner's stop answers %+v", out)
	}
}

func TestTheOwnerListsMessagesWithoutTheirText(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	o := b.as("local-owner:other")
	b.register("a", "b", "c")
	o.register("a", "b")
	one := b.send("a", "b", "confidential").Message.MessageID
	two := b.send("b", "a", "confidential", one).Message.MessageID
	three := b.send("a", "c", "confidential").Message.MessageID
	four := o.send("a", "b", "confidential").Message.MessageID
	b.ack(one, "b")

	shared := principal.SharedOwner
	for _, c := range []struct {
		in   mailbox.AllMessagesIn
		want []string
	}{
		{mailbox.AllMessagesIn{}, []string{four, three, two, one}},
		{mailbox.AllMessagesIn{Owner: shared}, []string{three, two, one}},
		{mailbox.AllMessagesIn{Owner: shared, PeerID: "b"}, []string{two, one}},
		{mailbox.AllMessagesIn{PeerID: "c"}, []string{three}},
		{mailbox.AllMessagesIn{State: mailbox.Processed}, []string{one}},
		{mailbox.AllMessagesIn{State: mailbox.Unprocessed, PeerID: "a", Owner: shared}, []string{three, two}},
		{mailbox.AllMessagesIn{Owner: "nobody"}, nil},
	} {
		for limit := 1; limit < 5; limit++ {
			var got []string
			in := c.in
			in.Limit = &limit
			for {
				out := must(b.AllMessages(t.Context(), in))(t)
				for _, m := range out.Messages {
					got = append(got, m.MessageID)
					if strings.Contains(fmt.Sprintf("%+v", m), "confidential") || m.TextLength != 12 {
						t.Errorf("the owner's list shows %+v", m)
					}
				}
				if out.NextCursor == "" {
					break
				}
				in.Cursor = &out.NextCursor
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%+v by %d lists %v, want %v", c.in, limit, got, c.want)
			}
		}
	}
	_, err := b.AllMessages(t.Context(), mailbox.AllMessagesIn{State: "active"})
	refused(t, err, fault.InvalidArguments)
	_, err = b.AllMessages(t.Context(), mailbox.AllMessagesIn{Cursor: new("x")})
	refused(t, err, mailbox.InvalidCursor)
}

func TestOwnerScansGoPastOneStep(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	b.register("a", "b", "c")
	first := b.send("a", "c", "the oldest").Message.MessageID
	fill(t, b.store, "a", "b", mailbox.ScanRows+10)
	got := must(b.AllMessages(t.Context(), mailbox.AllMessagesIn{PeerID: "c"}))(t)
	if len(got.Messages) != 1 || got.Messages[0].MessageID != first {
		t.Errorf("got %+v", got)
	}
	b.clock.advance(time.Hour)
	out := must(b.Purge(t.Context(), mailbox.PurgeIn{Before: b.clock.now(), IncludeUnprocessed: true}))(t)
	if want := int64(mailbox.ScanRows + 11); out.Purged != want || b.peer("b").UnprocessedCount != 0 {
		t.Errorf("purged %d of %d, %d still counted", out.Purged, want, b.peer("b").UnprocessedCount)
	}
}

func TestPurgeRemovesOldProcessedTextAndKeepsTheRules(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	b.register("a", "b")
	secret := "the-text-that-has-to-go " + strings.Repeat("𝛑 long tail ", 500)
	root := sendIn("a", "b", secret)
	must(b.SendPeerMessage(t.Context(), b.who, root))(t)
	reply := b.send("b", "a", secret, root.MessageID).Message
	b.ack(root.MessageID, "b")
	b.ack(reply.MessageID, "a")
	waiting := b.send("a", "b", "nobody has seen this").Message.MessageID
	b.clock.advance(time.Hour)
	cut := b.clock.now()
	young := b.send("a", "b", "young").Message.MessageID
	b.ack(young, "b")

	in := mailbox.PurgeIn{Owner: principal.SharedOwner, Before: cut, DryRun: true}
	want := mailbox.PurgeOut{Purged: 2, KeptUnprocessed: 1}
	if got := must(b.Purge(t.Context(), in))(t); got != want {
		t.Errorf("the dry run says %+v, want %+v", got, want)
	}
	if got := b.get(root.MessageID).Message.Text; got != secret {
		t.Error("the dry run removed text")
	}
	if got := must(b.Purge(t.Context(), mailbox.PurgeIn{Owner: "local-owner:other", Before: cut}))(t); got != (mailbox.PurgeOut{}) {
		t.Errorf("another owner's purge took %+v", got)
	}
	in.DryRun = false
	if got := must(b.Purge(t.Context(), in))(t); got != want {
		t.Errorf("purged %+v, want %+v", got, want)
	}
	if got := must(b.Purge(t.Context(), in))(t); got != (mailbox.PurgeOut{KeptUnprocessed: 1}) {
		t.Errorf("a second purge took %+v", got)
	}
	if got := b.audited()[0]; got != "message.purge " {
		t.Errorf("audited %q", got)
	}

	_, err := b.SendPeerMessage(t.Context(), b.who, root)
	refused(t, err, mailbox.MessagePurged)
	other := root
	other.Text = "something else"
	_, err = b.SendPeerMessage(t.Context(), b.who, other)
	refused(t, err, fault.KeyConflict)
	_, err = b.GetPeerMessage(t.Context(), b.who, mailbox.GetPeerMessageIn{MessageID: root.MessageID, PeerID: new("b")})
	refused(t, err, mailbox.MessagePurged)
	_, err = b.AckPeerMessage(t.Context(), b.who, mailbox.AckPeerMessageIn{MessageID: root.MessageID, PeerID: "b"})
	refused(t, err, mailbox.MessagePurged)
	second := sendIn("b", "a", "a second answer")
	second.InReplyTo = &root.MessageID
	_, err = b.SendPeerMessage(t.Context(), b.who, second)
	refused(t, err, mailbox.AlreadyReplied)
	third := b.send("a", "b", "an answer to a purged one", reply.MessageID).Message
	if third.Hop != 3 || third.ThreadID != root.MessageID {
		t.Errorf("the thread goes on as %+v", third)
	}
	if got := idsOf(b.list(mailbox.ListPeerMessagesIn{PeerID: "b", ThreadID: &root.MessageID}).Messages); !slices.Equal(got, []string{third.MessageID}) {
		t.Errorf("the thread shows %v", got)
	}
	if got := idsOf(b.list(mailbox.ListPeerMessagesIn{PeerID: "b", IncludeProcessed: true}).Messages); !slices.Equal(got, []string{waiting, young, third.MessageID}) {
		t.Errorf("history shows %v", got)
	}

	in.IncludeUnprocessed = true
	if got := must(b.Purge(t.Context(), in))(t); got != (mailbox.PurgeOut{Purged: 1}) {
		t.Errorf("with unprocessed ones purged %+v", got)
	}
	if got := b.list(mailbox.ListPeerMessagesIn{PeerID: "b"}); got.UnprocessedCount != 1 || len(got.Messages) != 1 {
		t.Errorf("the inbox after it: %+v", got)
	}
	_, err = b.Purge(t.Context(), mailbox.PurgeIn{})
	refused(t, err, fault.InvalidArguments)

	b.Close()
	b.store.Close()
	raw := must(os.ReadFile(filepath.Join(b.store.Dir(), "gateway.db")))(t)
	for _, gone := range []string{"the-text-that-has-to-go", "𝛑 long tail", "nobody has seen this"} {
		if bytes.Contains(raw, []byte(gone)) {
			t.Errorf("the database file still holds %q", gone)
		}
	}
}

func TestAPurgeThatIsStoppedSaysWhatItDid(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	b.register("a", "b")
	b.ack(b.send("a", "b", "x").Message.MessageID, "b")
	b.clock.advance(time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if out, err := b.Purge(ctx, mailbox.PurgeIn{Before: b.clock.now()}); !errors.Is(err, context.Canceled) || out.Purged != 0 {
		t.Errorf("got %+v, %v", out, err)
	}
}
