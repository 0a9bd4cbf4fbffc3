package mailbox_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrelay/internal/mailbox"
	"agentrelay/internal/store"
)

// waker is a wake-up domain as the mailbox sees one.
type waker struct {
	delivery     mailbox.Delivery
	notification mailbox.Notification
	fail         error
	sent         []mailbox.Mail
	ended        []mailbox.PeerRef
}

func (w *waker) Sent(_ *store.Tx, m mailbox.Mail) (mailbox.Delivery, error) {
	w.sent = append(w.sent, m)
	return w.delivery, w.fail
}

func (w *waker) Ended(_ *store.Tx, p mailbox.PeerRef) error {
	w.ended = append(w.ended, p)
	return w.fail
}

func (w *waker) Notification(store.Querier, mailbox.PeerRef) (mailbox.Notification, error) {
	return w.notification, nil
}

func (w *waker) Delivery(store.Querier, string, string) (mailbox.Delivery, error) {
	return w.delivery, nil
}

func TestWakeUpsAreOneWithTheMessage(t *testing.T) {
	w := &waker{}
	b := newBox(t, mailbox.Options{Wake: w})
	b.register("a", "b")

	w.fail = errUndone
	in := sendIn("a", "b", "x")
	if _, err := b.SendPeerMessage(t.Context(), b.who, in); err == nil || len(b.inbox("b")) != 0 {
		t.Fatalf("a message whose wake-up could not be stored was stored: %v", err)
	}
	w.fail, w.sent = nil, nil

	w.delivery = mailbox.Delivery{Path: mailbox.Events, State: mailbox.Queued}
	w.notification = mailbox.Notification{Path: mailbox.Events, ExpiresAt: mailbox.Time{Time: b.clock.now().Add(time.Hour)}}
	out := must(b.SendPeerMessage(t.Context(), b.who, in))(t)
	if out.Delivery != w.delivery {
		t.Errorf("send answers %+v", out.Delivery)
	}
	ref := mailbox.PeerRef{Owner: b.who.Owner, PeerID: "b", Kind: mailbox.Chat, Generation: 1}
	if diff := cmp.Diff([]mailbox.Mail{{Seq: 1, MessageID: in.MessageID, FromPeerID: "a", To: ref, CreatedAt: out.Message.CreatedAt}}, w.sent); diff != "" {
		t.Error("the wake-up was asked with (-want +got):\n", diff)
	}
	w.delivery = mailbox.Delivery{Path: mailbox.Events, State: mailbox.CallbackAccepted, Attempts: 2, LastAttemptAt: out.Message.CreatedAt}
	if got := b.get(in.MessageID).Delivery; got != w.delivery {
		t.Errorf("get answers %+v, want the present state", got)
	}
	if got := must(b.SendPeerMessage(t.Context(), b.who, in))(t); got.Delivery != w.delivery || !got.Duplicate || len(w.sent) != 1 {
		t.Errorf("a repeat answers %+v and asked for %d wake-ups", got, len(w.sent))
	}
	if got := b.peer("b").Notification; got != w.notification {
		t.Errorf("the directory shows %+v", got)
	}
	w.delivery = mailbox.Delivery{}
	if got := b.get(in.MessageID).Delivery; got.Path != mailbox.Events || got.State != mailbox.Unknown || got.Reason == "" {
		t.Errorf("with its record gone the delivery is %+v", got)
	}

	w.delivery = mailbox.Delivery{Path: mailbox.None, Reason: "The subscription ended an hour ago."}
	unwoken := b.send("a", "b", "y")
	want := mailbox.Delivery{Path: mailbox.None, State: mailbox.DeliveryNone, Reason: "The subscription ended an hour ago."}
	w.delivery = mailbox.Delivery{Path: mailbox.Events, State: mailbox.Queued}
	if got := b.get(unwoken.Message.MessageID).Delivery; got != want || unwoken.Delivery != want {
		t.Errorf("a message that woke nobody has %+v, then %+v", unwoken.Delivery, got)
	}

	b.stop("b")
	b.stop("b")
	if diff := cmp.Diff([]mailbox.PeerRef{ref}, w.ended); diff != "" {
		t.Error("ended (-want +got):\n", diff)
	}
	if got := b.peer("b").Notification; got.Path != mailbox.None || !strings.Contains(got.Reason, "stopped") {
		t.Errorf("a stopped peer shows %+v", got)
	}
}
