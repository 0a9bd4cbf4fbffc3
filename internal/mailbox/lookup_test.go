package mailbox_test

import (
	"testing"

	"agentrelay/internal/mailbox"
	"agentrelay/internal/store"
)

func TestLookup(t *testing.T) {
	b := newBox(t, mailbox.Options{})
	var look mailbox.Lookup
	read := func(f func(q *store.Reader) error) {
		t.Helper()
		if err := store.Read(t.Context(), b.store, f); err != nil {
			t.Fatal(err)
		}
	}
	peer := func(owner, id string, generation int64, active, found bool) {
		t.Helper()
		read(func(q *store.Reader) error {
			g, a, f, err := look.Peer(q, owner, id)
			if g != generation || a != active || f != found {
				t.Errorf("%s is generation %d, active %v, found %v", id, g, a, f)
			}
			return err
		})
	}
	seq := func(want int64) {
		t.Helper()
		read(func(q *store.Reader) error {
			got, err := look.LastSeq(q)
			if got != want {
				t.Errorf("the newest message is %d, want %d", got, want)
			}
			return err
		})
	}
	unread := func(id string, want bool) {
		t.Helper()
		read(func(q *store.Reader) error {
			got, err := look.Unread(q, b.who.Owner, id)
			if got != want {
				t.Errorf("unread is %v, want %v", got, want)
			}
			return err
		})
	}
	seq(0)
	peer(b.who.Owner, "a", 0, false, false)
	b.register("a", "b")
	peer(b.who.Owner, "a", 1, true, true)
	peer("local-owner:other", "a", 0, false, false)
	first, second := b.send("b", "a", "one").Message.MessageID, b.send("b", "a", "two").Message.MessageID
	seq(2)
	unread(first, true)
	b.get(first)
	unread(first, true) // somebody looked, not the recipient
	b.get(first, "a")
	unread(first, false)
	b.ack(second, "a")
	unread(second, false)
	unread("00000000-0000-4000-8000-000000000000", false)
	b.stop("a")
	peer(b.who.Owner, "a", 1, false, true)
	b.register("a")
	peer(b.who.Owner, "a", 2, true, true)
}
