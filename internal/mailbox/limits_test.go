package mailbox_test

import (
	"strings"
	"testing"
	"time"

	"agentrelay/internal/mailbox"
)

func TestBudgetsOfAnHour(t *testing.T) {
	b := newBox(t, mailbox.Options{Limits: mailbox.Limits{PairPerHour: 3, OwnerPerHour: 5}})
	b.register("a", "b", "c")
	start := b.clock.now()
	limited := func(from, to, limit string, reset time.Time) {
		t.Helper()
		_, err := b.SendPeerMessage(t.Context(), b.who, sendIn(from, to, "x"))
		f := refused(t, err, mailbox.RateLimited)
		at := mailbox.Time{Time: reset}.String()
		if !strings.Contains(f.Message, limit) || !strings.Contains(f.Message, at) || !strings.Contains(f.Hint, at) || !f.Retryable {
			t.Errorf("the refusal %+v does not name %s and %s", f, limit, at)
		}
	}
	b.send("a", "b", "1")
	b.clock.advance(10 * time.Minute)
	repeat := sendIn("b", "a", "2")
	for range 5 {
		must(b.SendPeerMessage(t.Context(), b.who, repeat))(t)
	}
	b.send("a", "b", "3")
	for range 5 { // refusals use nothing up
		limited("a", "b", "pairPerHour", start.Add(time.Hour))
		limited("b", "a", "pairPerHour", start.Add(time.Hour))
	}
	b.send("a", "c", "4")
	b.send("c", "b", "5")
	limited("c", "b", "ownerPerHour", start.Add(time.Hour))
	b.as("local-owner:other").register("a", "b")
	b.as("local-owner:other").send("a", "b", "another owner's budget")

	dir := b.store.Dir()
	b.store.Close()
	b.store = openStore(t, dir, b.clock)
	defer b.store.Close()
	b.Service = mailbox.New(mailbox.Options{Store: b.store, Limits: mailbox.Limits{PairPerHour: 3, OwnerPerHour: 5}, Now: b.clock.now})
	limited("a", "b", "pairPerHour", start.Add(time.Hour))

	b.clock.advance(50*time.Minute - time.Millisecond)
	limited("a", "b", "pairPerHour", start.Add(time.Hour))
	b.clock.advance(time.Millisecond)
	for range 3 { // at the reset time the whole budget is there
		b.send("a", "b", "again")
	}
	limited("a", "b", "pairPerHour", b.clock.now().Add(time.Hour))

	b.clock.advance(-48 * time.Hour) // a wrong clock set right locks nobody out
	b.send("a", "b", "after the clock was set back")
}

func TestBudgetsAreOffAtZero(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	b.register("a", "b")
	for range 700 {
		b.send("a", "b", "x")
	}
	if got := b.peer("b").UnprocessedCount; got != 700 {
		t.Errorf("%d arrived", got)
	}
}
