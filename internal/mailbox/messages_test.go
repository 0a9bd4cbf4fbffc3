package mailbox_test

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"agentrelay/internal/fault"
	"agentrelay/internal/mailbox"
)

func newID() string { return uuid.NewString() }

func sendIn(from, to, text string) mailbox.SendPeerMessageIn {
	return mailbox.SendPeerMessageIn{MessageID: newID(), FromPeerID: from, ToPeerID: to, Text: text}
}

func idsOf(entries []mailbox.Entry) []string {
	ids := []string{}
	for _, e := range entries {
		ids = append(ids, e.MessageID)
	}
	return ids
}

func TestSendRefusesWhatBreaksARule(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	b.register("a", "b", "c", "gone")
	b.stop("gone")
	first := b.send("a", "b", "first").Message
	answered := b.send("a", "b", "answered").Message
	answer := b.send("b", "a", "the answer", answered.MessageID).Message
	audits := len(b.audited())

	for _, c := range []struct {
		name   string
		change func(*mailbox.SendPeerMessageIn)
		want   fault.Kind
		says   string
	}{
		{"no messageId", func(in *mailbox.SendPeerMessageIn) { in.MessageID = "" }, fault.InvalidArguments, "messageId"},
		{"a messageId in braces", func(in *mailbox.SendPeerMessageIn) { in.MessageID = "{" + in.MessageID + "}" }, fault.InvalidArguments, "messageId"},
		{"a messageId without dashes", func(in *mailbox.SendPeerMessageIn) { in.MessageID = strings.ReplaceAll(in.MessageID, "-", "") }, fault.InvalidArguments, "messageId"},
		{"a messageId that is no UUID", func(in *mailbox.SendPeerMessageIn) { in.MessageID = strings.Repeat("g", 36) }, fault.InvalidArguments, "messageId"},
		{"a malformed sender", func(in *mailbox.SendPeerMessageIn) { in.FromPeerID = "a b" }, fault.InvalidArguments, "fromPeerId"},
		{"a malformed recipient", func(in *mailbox.SendPeerMessageIn) { in.ToPeerID = "" }, fault.InvalidArguments, "toPeerId"},
		{"no text", func(in *mailbox.SendPeerMessageIn) { in.Text = "" }, fault.InvalidArguments, "1 to 8192"},
		{"a text of 8193", func(in *mailbox.SendPeerMessageIn) { in.Text = strings.Repeat("é", 8193) }, fault.InvalidArguments, "8193"},
		{"a text that is not UTF-8", func(in *mailbox.SendPeerMessageIn) { in.Text = "a\xc3" }, fault.InvalidArguments, "UTF-8"},
		{"a text with half a surrogate pair", func(in *mailbox.SendPeerMessageIn) { in.Text = "a\xed\xa0\x80" }, fault.InvalidArguments, "UTF-8"},
		{"a malformed inReplyTo", func(in *mailbox.SendPeerMessageIn) { in.InReplyTo = new("") }, fault.InvalidArguments, "inReplyTo"},
		{"to itself", func(in *mailbox.SendPeerMessageIn) { in.ToPeerID = "a" }, mailbox.SelfMessage, "same"},
		{"from nobody", func(in *mailbox.SendPeerMessageIn) { in.FromPeerID = "nobody" }, mailbox.UnknownPeer, "fromPeerId"},
		{"to nobody", func(in *mailbox.SendPeerMessageIn) { in.ToPeerID = "B" }, mailbox.UnknownPeer, "toPeerId"},
		{"from a stopped peer", func(in *mailbox.SendPeerMessageIn) { in.FromPeerID = "gone" }, mailbox.PeerStopped, "fromPeerId"},
		{"to a stopped peer", func(in *mailbox.SendPeerMessageIn) { in.ToPeerID = "gone" }, mailbox.PeerStopped, "toPeerId"},
		{"an answer to nothing", func(in *mailbox.SendPeerMessageIn) { in.InReplyTo = new(newID()) }, mailbox.UnknownMessage, "inReplyTo"},
		{"an answer to its own message", func(in *mailbox.SendPeerMessageIn) { in.InReplyTo = &first.MessageID }, mailbox.ReplyMismatch, "from a to b"},
		{"an answer to a third peer", func(in *mailbox.SendPeerMessageIn) {
			in.FromPeerID, in.ToPeerID, in.InReplyTo = "b", "c", &first.MessageID
		}, mailbox.ReplyMismatch, "from a to b"},
		{"an answer by a third peer", func(in *mailbox.SendPeerMessageIn) {
			in.FromPeerID, in.ToPeerID, in.InReplyTo = "c", "a", &first.MessageID
		}, mailbox.ReplyMismatch, "from a to b"},
		{"a second answer", func(in *mailbox.SendPeerMessageIn) {
			in.FromPeerID, in.ToPeerID, in.InReplyTo = "b", "a", &answered.MessageID
		}, mailbox.AlreadyReplied, answer.MessageID},
		{"a used messageId with another text", func(in *mailbox.SendPeerMessageIn) { in.MessageID = first.MessageID }, fault.KeyConflict, "another text."},
		{"the messageId of an answer without inReplyTo", func(in *mailbox.SendPeerMessageIn) {
			in.MessageID, in.FromPeerID, in.ToPeerID, in.Text = answer.MessageID, "b", "a", "the answer"
		}, fault.KeyConflict, "another inReplyTo."},
		{"a used messageId with all else", func(in *mailbox.SendPeerMessageIn) {
			in.MessageID, in.FromPeerID, in.ToPeerID, in.InReplyTo = first.MessageID, "b", "a", &first.MessageID
		}, fault.KeyConflict, "another fromPeerId, toPeerId, inReplyTo, text."},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := sendIn("a", "b", "secret text of a refused message")
			c.change(&in)
			_, err := b.SendPeerMessage(t.Context(), b.who, in)
			f := refused(t, err, c.want)
			if !strings.Contains(f.Message, c.says) {
				t.Errorf("the message %q does not say %q", f.Message, c.says)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("%q shows the text", err)
			}
		})
	}
	if got := len(b.inbox("b")); got != 2 {
		t.Errorf("the refusals left %d messages, want the 2 from before", got)
	}
	if got := b.audited()[:len(b.audited())-audits]; len(got) != 0 {
		t.Errorf("the refusals were audited here: %v", got)
	}
}

func TestTextComesBackByteEqual(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	b.register("a", "b")
	for name, text := range map[string]string{
		"one character":        "x",
		"a space":              " ",
		"NUL":                  "before\x00after",
		"line ends":            "a\r\nb\rc\n",
		"a BOM":                "\ufeffx",
		"not normalised":       "e\u0301 é",
		"a replacement":        "\ufffd",
		"a noncharacter":       "\uffff",
		"8192 of four bytes":   strings.Repeat("𝛑", 8192),
		"200":                  strings.Repeat("é", 200),
		"201":                  strings.Repeat("é", 201),
		"looks like SQL":       "'; DROP TABLE mailbox_messages; --",
		"200 ends in a family": strings.Repeat("x", 199) + "👩‍👩‍👧",
	} {
		t.Run(name, func(t *testing.T) {
			sent := b.send("a", "b", text)
			got := b.get(sent.Message.MessageID).Message.Text
			if sent.Message.Text != text || got != text {
				t.Errorf("sent %q, answered %q, read %q", text, sent.Message.Text, got)
			}
			entries := b.inbox("b")
			e := entries[len(entries)-1]
			want := string([]rune(text)[:min(200, utf8.RuneCountInString(text))])
			if e.Summary != want || e.TextLength != utf8.RuneCountInString(text) {
				t.Errorf("the summary is %q of %d", e.Summary, e.TextLength)
			}
			b.ack(sent.Message.MessageID, "b")
		})
	}
}

func TestOneExchangeFromBothSides(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	b.register("a", "b")
	in := sendIn("a", "b", "hello")
	in.MessageID = strings.ToUpper(in.MessageID)
	sent := must(b.SendPeerMessage(t.Context(), b.who, in))(t)
	id := strings.ToLower(in.MessageID)
	now := mailbox.Time{Time: b.clock.now().UTC()}
	want := mailbox.Message{MessageID: id, FromPeerID: "a", ToPeerID: "b", Text: "hello", ThreadID: id, Hop: 1, CreatedAt: now, State: mailbox.Unprocessed, RecipientGeneration: 1}
	delivery := mailbox.Delivery{Path: mailbox.None, State: mailbox.DeliveryNone, Reason: "No wake-up is set up for this peer; it reads its mail when it checks."}
	if diff := cmp.Diff(mailbox.SendPeerMessageOut{Message: want, Delivery: delivery}, sent); diff != "" {
		t.Error("send (-want +got):\n", diff)
	}

	entry := mailbox.Entry{MessageID: id, FromPeerID: "a", ToPeerID: "b", Summary: "hello", TextLength: 5, ThreadID: id, Hop: 1, CreatedAt: now, State: mailbox.Unprocessed, RecipientGeneration: 1}
	listed := b.list(mailbox.ListPeerMessagesIn{PeerID: "b"})
	wantList := mailbox.ListPeerMessagesOut{Messages: []mailbox.Entry{entry}, UnprocessedCount: 1, Next: listed.Next}
	if diff := cmp.Diff(wantList, listed); diff != "" {
		t.Error("list (-want +got):\n", diff)
	}
	if got := b.inbox("a"); len(got) != 0 {
		t.Errorf("the sender's inbox holds %v", got)
	}

	b.clock.advance(time.Second)
	for _, reader := range [][]string{{}, {"a"}} {
		if got := b.get(strings.ToUpper(id), reader...); !got.Message.ReadAt.IsZero() {
			t.Errorf("a read by %v counts as the recipient's", reader)
		}
	}
	want.ReadAt = mailbox.Time{Time: b.clock.now().UTC()}
	if diff := cmp.Diff(mailbox.GetPeerMessageOut{Message: want, Delivery: delivery}, b.get(id, "b")); diff != "" {
		t.Error("get (-want +got):\n", diff)
	}
	b.clock.advance(time.Second)
	if got := b.get(id, "b").Message.ReadAt; got != want.ReadAt {
		t.Errorf("a second read moved readAt to %s", got)
	}

	reply := b.send("b", "a", "hi", strings.ToUpper(id))
	if m := reply.Message; m.InReplyTo != id || m.ThreadID != id || m.Hop != 2 {
		t.Errorf("the reply is %+v", m)
	}
	if got := b.get(id); got.ReplyMessageID != reply.Message.MessageID || got.Message.State != mailbox.Unprocessed {
		t.Errorf("the message after its reply: %+v", got)
	}

	acked := must(b.AckPeerMessage(t.Context(), b.who, mailbox.AckPeerMessageIn{MessageID: strings.ToUpper(id), PeerID: "b"}))(t)
	want.State, want.ProcessedAt = mailbox.Processed, mailbox.Time{Time: b.clock.now().UTC()}
	if diff := cmp.Diff(mailbox.AckPeerMessageOut{Message: want}, acked); diff != "" {
		t.Error("ack (-want +got):\n", diff)
	}
	b.clock.advance(time.Second)
	if diff := cmp.Diff(mailbox.AckPeerMessageOut{Message: want, AlreadyProcessed: true}, b.ack(id, "b")); diff != "" {
		t.Error("ack again (-want +got):\n", diff)
	}
	if got := b.peer("b").UnprocessedCount; got != 0 {
		t.Errorf("%d unprocessed after one ack twice", got)
	}

	audited := []string{"message.ack " + id, "message.send " + reply.Message.MessageID, "message.send " + id, "peer.register b", "peer.register a"}
	if diff := cmp.Diff(audited, b.audited()); diff != "" {
		t.Error("audited (-want +got):\n", diff)
	}
}

func TestOnlyTheRecipientReadsAndAcknowledgesInItsName(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	b.register("a", "b", "c")
	id := b.send("a", "b", "x").Message.MessageID
	ack := func(id, peer string) error {
		_, err := b.AckPeerMessage(t.Context(), b.who, mailbox.AckPeerMessageIn{MessageID: id, PeerID: peer})
		return err
	}
	get := func(id, peer string) error {
		_, err := b.GetPeerMessage(t.Context(), b.who, mailbox.GetPeerMessageIn{MessageID: id, PeerID: &peer})
		return err
	}
	refused(t, ack(id, "a"), mailbox.NotRecipient)
	refused(t, ack(id, "c"), mailbox.NotRecipient)
	refused(t, get(id, "c"), mailbox.NotRecipient)
	for _, call := range []func(id, peer string) error{ack, get} {
		refused(t, call(id, "nobody"), mailbox.UnknownPeer)
		refused(t, call(newID(), "b"), mailbox.UnknownMessage)
		refused(t, call("x", "b"), fault.InvalidArguments)
		refused(t, call(id, "b b"), fault.InvalidArguments)
	}
	if e := b.inbox("b"); len(e) != 1 || !e[0].ReadAt.IsZero() {
		t.Errorf("the refusals changed the inbox: %+v", e)
	}
}

func TestAThreadHasEightHops(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	b.register("a", "b")
	from, to := "a", "b"
	last := b.send(from, to, "hop 1").Message
	thread, want := last.ThreadID, []string{last.MessageID}
	for hop := 2; hop <= 8; hop++ {
		from, to = to, from
		last = b.send(from, to, "again", last.MessageID).Message
		if last.Hop != hop || last.ThreadID != thread {
			t.Fatalf("hop %d is %+v", hop, last)
		}
		want = append(want, last.MessageID)
	}
	in := sendIn(to, from, "hop 9")
	in.InReplyTo = &last.MessageID
	_, err := b.SendPeerMessage(t.Context(), b.who, in)
	refused(t, err, mailbox.HopLimit)

	b.ack(want[0], "b")
	for _, peer := range []string{"a", "b"} {
		var got []string
		list := mailbox.ListPeerMessagesIn{PeerID: peer, ThreadID: new(strings.ToUpper(thread)), Limit: new(3)}
		for {
			page := b.list(list)
			got = append(got, idsOf(page.Messages)...)
			if page.NextCursor == "" {
				break
			}
			list.Cursor = &page.NextCursor
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s sees the thread as %v, want %v", peer, got, want)
		}
	}
	_, err = b.ListPeerMessages(t.Context(), b.who, mailbox.ListPeerMessagesIn{PeerID: "a", ThreadID: &want[3]})
	if f := refused(t, err, mailbox.UnknownMessage); !strings.Contains(f.Hint, thread) {
		t.Errorf("the hint %q does not name the thread", f.Hint)
	}
	b.register("c")
	_, err = b.ListPeerMessages(t.Context(), b.who, mailbox.ListPeerMessagesIn{PeerID: "c", ThreadID: &thread})
	refused(t, err, mailbox.UnknownMessage)
	_, err = b.ListPeerMessages(t.Context(), b.who, mailbox.ListPeerMessagesIn{PeerID: "a", ThreadID: new(newID())})
	refused(t, err, mailbox.UnknownMessage)
}

func TestARepeatAnswersTheSameMessageForEver(t *testing.T) {
	b := newBox(t, mailbox.Options{Limits: mailbox.Limits{PairPerHour: 2, OwnerPerHour: 2}})
	b.register("a", "b")
	root := sendIn("a", "b", "root")
	must(b.SendPeerMessage(t.Context(), b.who, root))(t)
	reply := sendIn("b", "a", "reply")
	reply.InReplyTo = &root.MessageID
	must(b.SendPeerMessage(t.Context(), b.who, reply))(t)
	b.ack(root.MessageID, "b")
	b.stop("a")
	b.stop("b")
	b.clock.advance(10 * time.Minute)

	dir := b.store.Dir()
	b.store.Close()
	b.store = openStore(t, dir, b.clock)
	defer b.store.Close()
	b.Service = mailbox.New(mailbox.Options{Store: b.store, Limits: mailbox.Limits{PairPerHour: 2}, Now: b.clock.now})

	for _, in := range []mailbox.SendPeerMessageIn{root, reply} {
		in.MessageID = strings.ToUpper(in.MessageID)
		if in.InReplyTo != nil {
			in.InReplyTo = new(strings.ToUpper(*in.InReplyTo))
		}
		got := must(b.SendPeerMessage(t.Context(), b.who, in))(t)
		want := b.get(in.MessageID)
		if diff := cmp.Diff(mailbox.SendPeerMessageOut{Message: want.Message, Delivery: want.Delivery, Duplicate: true}, got); diff != "" {
			t.Error("repeat (-want +got):\n", diff)
		}
	}
	if got := b.get(root.MessageID).Message.State; got != mailbox.Processed {
		t.Errorf("the state after the restart is %s", got)
	}
	if got := b.audited(); len(got) != 7 {
		t.Errorf("audited %v, want no line for a repeat", got)
	}
}

func TestAHundredIdenticalSendsAreOneMessage(t *testing.T) {
	b := newBox(t, mailbox.Options{Limits: mailbox.Limits{PairPerHour: 1}})
	b.register("a", "b")
	in := sendIn("a", "b", "once")
	answers := make([]mailbox.SendPeerMessageOut, 100)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			out, err := b.SendPeerMessage(t.Context(), b.who, in)
			if err != nil {
				t.Error(err)
			}
			answers[i] = out
		})
	}
	wg.Wait()
	first := 0
	for _, a := range answers {
		if !a.Duplicate {
			first++
		}
		a.Duplicate = answers[0].Duplicate
		if diff := cmp.Diff(answers[0], a); diff != "" {
			t.Fatal("two answers differ:\n", diff)
		}
	}
	if first != 1 || len(b.inbox("b")) != 1 || b.peer("b").UnprocessedCount != 1 {
		t.Errorf("%d first answers, %d messages, %d counted", first, len(b.inbox("b")), b.peer("b").UnprocessedCount)
	}
}

func TestOneOfManyRepliesWins(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	b.register("a", "b")
	root := b.send("a", "b", "who answers?").Message.MessageID
	var won sync.Map
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			in := sendIn("b", "a", "me")
			in.InReplyTo = &root
			_, err := b.SendPeerMessage(t.Context(), b.who, in)
			if err == nil {
				won.Store(in.MessageID, true)
				return
			}
			refused(t, err, mailbox.AlreadyReplied)
		})
	}
	wg.Wait()
	var winners []string
	won.Range(func(k, _ any) bool { winners = append(winners, k.(string)); return true })
	if len(winners) != 1 || b.get(root).ReplyMessageID != winners[0] || len(b.inbox("a")) != 1 {
		t.Errorf("winners %v, stored %s, inbox %v", winners, b.get(root).ReplyMessageID, idsOf(b.inbox("a")))
	}
}

func TestAnswersHaveTheNamesOfTheContract(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	b.register("a", "b")
	id := "00000000-0000-4000-8000-00000000000a"
	in := mailbox.SendPeerMessageIn{MessageID: id, FromPeerID: "a", ToPeerID: "b", Text: "hello"}
	const at = `"2026-03-01T09:00:00.000Z"`
	const head = `"messageId":"` + "00000000-0000-4000-8000-00000000000a" + `","fromPeerId":"a","toPeerId":"b",`
	const tail = `"threadId":"00000000-0000-4000-8000-00000000000a","hop":1,"createdAt":` + at + `,"state":"unprocessed"`
	const delivery = `"delivery":{"path":"none","state":"none","attempts":0,"reason":"No wake-up is set up for this peer; it reads its mail when it checks."}`
	for _, c := range []struct {
		name   string
		answer any
		want   string
	}{
		{"send", must(b.SendPeerMessage(t.Context(), b.who, in))(t),
			`{"message":{` + head + `"text":"hello",` + tail + `,"recipientGeneration":1},` + delivery + `,"duplicate":false}`},
		{"list", b.list(mailbox.ListPeerMessagesIn{PeerID: "b"}),
			`{"messages":[{` + head + `"summary":"hello","textLength":5,` + tail + `,"recipientGeneration":1}],"unprocessedCount":1,` +
				`"next":{"tool":"get_peer_message","arguments":{"peerId":"b","messageId":"` + id + `"},"why":"Read the oldest unprocessed message of this page. It stays unprocessed until you have handled it and call ack_peer_message with these arguments."}}`},
		{"list of none", b.list(mailbox.ListPeerMessagesIn{PeerID: "a"}),
			`{"messages":[],"unprocessedCount":0,"next":{"tool":"list_peer_messages","arguments":{"peerId":"a","waitMs":20000},` +
				`"why":"No mail waits: nothing to do now. Make this call, which ends when mail arrives or after 20 seconds, only if you expect an answer."}}`},
		{"get", b.get(id, "b"),
			`{"message":{` + head + `"text":"hello",` + tail + `,"readAt":` + at + `,"recipientGeneration":1},` + delivery + `}`},
		{"ack", b.ack(id, "b"),
			`{"message":{` + head + `"text":"hello",` + strings.Replace(tail, "unprocessed", "processed", 1) + `,"processedAt":` + at + `,"readAt":` + at + `,"recipientGeneration":1},"alreadyProcessed":false}`},
	} {
		if got := string(must(json.Marshal(c.answer))(t)); got != c.want {
			t.Errorf("%s answers\n%s\nwant\n%s", c.name, got, c.want)
		}
	}
}
