package events_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentrelay/internal/events"
	"agentrelay/internal/store"
)

func TestMessageIsDeliveredSigned(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		sub := b.subscribe("dot")
		b.world.set(func(request) answer { return answer{after: time.Second} })
		id := b.send("dot")
		b.settled()
		b.wantState(id, events.Submitting, 1)
		time.Sleep(time.Second)
		b.settled()
		b.wantState(id, events.CallbackAccepted, 1)

		got := b.world.deliveries()
		if len(got) != 1 {
			t.Fatalf("%d deliveries, want 1", len(got))
		}
		r := got[0]
		if !r.signedWith(t, secretOf(1)) || r.signedWith(t, secretOf(2)) {
			t.Error("the signature is not that of the secret")
		}
		want := map[string]string{"Content-Type": "application/json", "Webhook-Id": r.member("eventId").(string), "X-Mcp-Subscription-Id": sub.ID}
		for name, value := range want {
			if r.header.Get(name) != value {
				t.Errorf("%s is %q, want %q", name, r.header.Get(name), value)
			}
		}
		data := r.member("data").(map[string]any)
		if len(data) != 4 || data["messageId"] != id || data["peerId"] != "dot" || data["generation"] != 1.0 || data["eventId"] != r.member("eventId") {
			t.Errorf("the data is %v", data)
		}
		if cursor, ok := r.member("cursor").(string); ok || r.member("type") != nil || r.member("name") != events.PeerMessage {
			t.Errorf("cursor %q, body %s", cursor, r.body)
		}
		if _, err := time.Parse(time.RFC3339, r.member("timestamp").(string)); err != nil {
			t.Error(err)
		}
	})
}

// TestRetries checks the whole schedule: its moments, that every attempt has the
// same id and bytes and a fresh signature, and what becomes of the event.
func TestRetries(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer answer
		jitter float64
		delays []time.Duration
	}{
		{"500", answer{status: 500}, 0.5, []time.Duration{5 * time.Second, 30 * time.Second, 2 * time.Minute, 8 * time.Minute}},
		{"404, early", answer{status: 404}, 0, []time.Duration{4 * time.Second, 24 * time.Second, 96 * time.Second, 384 * time.Second}},
		{"redirect, late", answer{status: 307, header: http.Header{"Location": {"https://elsewhere.example/"}}}, 0.999999999, []time.Duration{6 * time.Second, 36 * time.Second, 144 * time.Second, 576 * time.Second}},
		{"refused connection", answer{err: errors.New("refused")}, 0.5, []time.Duration{5 * time.Second, 30 * time.Second, 2 * time.Minute, 8 * time.Minute}},
		{"no answer", answer{after: time.Hour}, 0.5, []time.Duration{15 * time.Second, 40 * time.Second, 130 * time.Second, 490 * time.Second}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, events.Options{Jitter: func() float64 { return tt.jitter }}, func(b *box) {
				b.subscribe("dot")
				b.world.set(func(request) answer { return tt.answer })
				start := time.Now()
				id := b.send("dot")
				time.Sleep(time.Hour)
				b.settled()
				got := b.world.deliveries()
				if len(got) != 5 {
					t.Fatalf("%d attempts, want 5", len(got))
				}
				due := start
				for i, r := range got {
					if i > 0 {
						due = got[i-1].at.Add(tt.delays[i-1])
					}
					if off := r.at.Sub(due).Abs(); off > 10*time.Millisecond {
						t.Errorf("attempt %d is %s off its moment", i+1, off)
					}
					if r.body != got[0].body || r.header.Get("Webhook-Id") != got[0].header.Get("Webhook-Id") {
						t.Errorf("attempt %d has other bytes or another id", i+1)
					}
					if stamp := r.header.Get("Webhook-Timestamp"); stamp != strconv.FormatInt(r.at.Unix(), 10) {
						t.Errorf("attempt %d at %d says it is %s", i+1, r.at.Unix(), stamp)
					}
				}
				if d := b.wantState(id, events.Failed, 5); d.Reason == "" || d.LastAttemptAt.IsZero() {
					t.Errorf("the delivery explains nothing: %+v", d)
				}
				listed := b.listed()
				if len(listed) != 1 || len(listed[0].Attempts) != 5 || listed[0].State != events.Failed {
					t.Errorf("listed: %+v", listed)
				}
			})
		})
	}
}

func TestRecoveryOnTheSchedule(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		b.subscribe("dot")
		b.world.set(always(503))
		id := b.send("dot")
		time.Sleep(6 * time.Second)
		if d := b.wantState(id, events.Queued, 2); !strings.Contains(d.Reason, "503") || !strings.Contains(d.Reason, "next attempt") {
			t.Errorf("reason %q", d.Reason)
		}
		if n := b.notification("dot"); n.Path != events.PathEvents || !strings.Contains(n.Reason, "503") {
			t.Errorf("notification %+v", n)
		}
		b.world.set(nil)
		time.Sleep(time.Minute)
		b.wantState(id, events.CallbackAccepted, 3)
		if n := b.notification("dot"); n.Reason != "" {
			t.Errorf("after the recovery: %+v", n)
		}
	})
}

func TestFinalAnswers(t *testing.T) {
	t.Run("410 ends the subscription", func(t *testing.T) {
		inBubble(t, events.Options{}, func(b *box) {
			b.subscribe("dot")
			b.world.set(func(request) answer { return answer{status: 410, after: time.Second} })
			first, second := b.send("dot"), b.send("dot")
			time.Sleep(time.Hour)
			if n := len(b.world.deliveries()); n != 1 {
				t.Errorf("%d attempts, want 1", n)
			}
			b.wantState(first, events.Cancelled, 1)
			b.wantState(second, events.Cancelled, 0)
			if n := b.notification("dot"); n.Path != events.PathNone || n.Reason == "" {
				t.Errorf("notification %+v", n)
			}
			if d := b.sendAs("third", "dot"); d.Path != events.PathNone {
				t.Errorf("a message after the end goes by %s", d.Path)
			}
			// Its client subscribes again: the callback is verified anew, and what
			// was missed is sent.
			b.world.set(nil)
			b.subscribe("dot")
			time.Sleep(time.Minute)
			b.wantState(first, events.CallbackAccepted, 2)
			b.wantState(second, events.CallbackAccepted, 1)
			if n := len(b.world.got(true)); n != 2 {
				t.Errorf("%d challenges, want 2", n)
			}
		})
	})
	t.Run("413 ends the event", func(t *testing.T) {
		inBubble(t, events.Options{}, func(b *box) {
			b.subscribe("dot")
			b.world.set(always(413))
			first := b.send("dot")
			time.Sleep(time.Hour)
			b.wantState(first, events.Failed, 1)
			b.world.set(nil)
			second := b.send("dot")
			b.settled()
			b.wantState(second, events.CallbackAccepted, 1)
		})
	})
}

func TestNothingStoredForNobodyIsDelivered(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		if d := b.sendAs("early", "dot"); d.Path != events.PathNone || d.State != "" {
			t.Errorf("without a subscription: %+v", d)
		}
		b.subscribe("dot", func(in *events.SubscribeIn) { in.TTL = new(time.Minute) })
		time.Sleep(2 * time.Minute)
		if d := b.sendAs("late", "dot"); d.Path != events.PathNone {
			t.Errorf("after the expiry: %+v", d)
		}
		b.subscribe("dot")
		time.Sleep(time.Minute)
		if n := len(b.world.deliveries()); n != 0 {
			t.Errorf("%d deliveries of mail that nobody was subscribed for", n)
		}
		if (b.delivery("early") != events.Delivery{}) || (b.delivery("late") != events.Delivery{}) {
			t.Error("a delivery is recorded")
		}
	})
}

func TestExpiryCancelsAndARefreshResumes(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		b.subscribe("dot", func(in *events.SubscribeIn) { in.TTL = new(time.Minute) })
		b.world.set(always(500))
		id := b.send("dot")
		time.Sleep(10 * time.Minute)
		b.wantState(id, events.Cancelled, 3)
		b.world.set(nil)
		b.subscribe("dot")
		time.Sleep(time.Second)
		b.wantState(id, events.CallbackAccepted, 4)
	})
}

func TestRefreshResumesAFailingReceiver(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		b.subscribe("dot")
		b.world.set(always(500))
		for range 6 {
			b.send("dot")
		}
		time.Sleep(time.Second)
		b.world.set(nil)
		out := b.subscribe("dot")
		if s := out.DeliveryStatus; !s.Active || s.LastError == nil || *s.LastError != "http_5xx" || s.FailedSince == nil {
			t.Errorf("the status of a failing receiver is %+v", s)
		}
		time.Sleep(6 * time.Second) // the first five retry on their schedule
		for _, d := range b.listed() {
			if d.State != events.CallbackAccepted {
				t.Errorf("%s is %s", d.Subject, d.State)
			}
		}
		out = b.subscribe("dot")
		if s := out.DeliveryStatus; s.LastError != nil || s.LastDeliveryAt == nil {
			t.Errorf("the status of a working receiver is %+v", s)
		}
	})
}

func TestInterruptedAttemptCountsAndIsRepeated(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		b.subscribe("dot")
		b.world.set(func(request) answer { return answer{after: time.Hour} })
		id := b.send("dot")
		time.Sleep(time.Second)
		b.restart()
		b.wantState(id, events.Queued, 1)
		b.world.set(nil)
		time.Sleep(time.Minute)
		b.wantState(id, events.CallbackAccepted, 2)
		got := b.world.deliveries()
		if len(got) != 2 || got[0].body != got[1].body || got[0].header.Get("Webhook-Id") != got[1].header.Get("Webhook-Id") {
			t.Errorf("the attempts differ: %+v", got)
		}
		if attempts := b.listed()[0].Attempts; attempts[0].Outcome != "interrupted" || attempts[1].Outcome != "accepted" {
			t.Errorf("attempts: %+v", attempts)
		}
	})
}

// TestCrashBetweenClaimAndAnswer looks at a database as a killed gateway leaves
// it.
func TestCrashBetweenClaimAndAnswer(t *testing.T) {
	for _, tries := range []int{1, 5} {
		inBubble(t, events.Options{}, func(b *box) {
			b.subscribe("dot")
			b.world.set(always(500))
			id := b.send("dot")
			time.Sleep(time.Second)
			err := store.Exec(context.Background(), b.store, func(tx *store.Tx) error {
				_, err := tx.Exec(`UPDATE event_deliveries SET state = 'submitting', tries = ?`, tries)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			b.world.set(nil)
			b.restart()
			time.Sleep(time.Minute)
			if tries == 5 {
				if d := b.wantState(id, events.Unknown, 1); d.Reason == "" {
					t.Error("an unknown outcome without a reason")
				}
				return
			}
			b.wantState(id, events.CallbackAccepted, 2)
		})
	}
}

func TestSeveralSubscriptions(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		b.subscribe("dot")
		b.subscribe("dot", func(in *events.SubscribeIn) { in.URL = "https://second.example/" })
		b.world.set(func(r request) answer {
			if r.url == callbackURL {
				return answer{status: 500}
			}
			return answer{}
		})
		id := b.send("dot")
		time.Sleep(time.Hour)
		b.wantState(id, events.CallbackAccepted, 6)
		ids := []string{}
		for _, r := range b.world.deliveries() {
			ids = append(ids, r.header.Get("Webhook-Id"))
		}
		if slices.Sort(ids); len(slices.Compact(ids)) != 1 {
			t.Errorf("one event has several ids: %v", ids)
		}
	})
}

func TestUnsubscribe(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		b.subscribe("dot")
		b.world.set(func(request) answer { return answer{after: 5 * time.Second} })
		flying, waiting := b.send("dot"), b.send("dot")
		time.Sleep(time.Second)
		start := time.Now()
		if !b.unsubscribe("dot") {
			t.Error("there was nothing to unsubscribe")
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("it took %s", took)
		}
		before := len(b.world.deliveries())
		b.world.set(nil)
		time.Sleep(time.Hour)
		if n := len(b.world.deliveries()) - before; n != 0 {
			t.Errorf("%d attempts after the end", n)
		}
		b.wantState(flying, events.Cancelled, 1)
		b.wantState(waiting, events.Cancelled, 0)
		if b.unsubscribe("dot") {
			t.Error("it was unsubscribed twice")
		}
		b.restart()
		time.Sleep(time.Hour)
		if n := len(b.world.deliveries()) - before; n != 0 {
			t.Errorf("%d attempts after a restart", n)
		}
		// A new subscription does not bring back what its client had cancelled.
		b.subscribe("dot")
		time.Sleep(time.Minute)
		b.wantState(waiting, events.Cancelled, 0)
	})
}

func TestRevokedClientGetsNothing(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		b.subscribe("dot")
		b.world.set(always(500))
		id := b.send("dot")
		time.Sleep(time.Second)
		if err := store.Exec(context.Background(), b.store, func(tx *store.Tx) error { return b.EndClient(tx, "client-1") }); err != nil {
			t.Fatal(err)
		}
		b.world.set(nil)
		time.Sleep(time.Hour)
		b.wantState(id, events.Cancelled, 1)
		if d := b.sendAs("next", "dot"); d.Path != events.PathNone {
			t.Errorf("a message after the revocation goes by %s", d.Path)
		}
		if log := b.audited(); !slices.Equal(log, []string{"event.subscribe", "event.end"}) {
			t.Errorf("audited: %v", log)
		}
	})
}

func TestOtherClientsKeepTheirs(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		b.subscribe("dot")
		b.who.ClientID = "client-2" // the same chat, registered anew
		b.subscribe("dot")
		if err := store.Exec(context.Background(), b.store, func(tx *store.Tx) error { return b.EndClient(tx, "client-1") }); err != nil {
			t.Fatal(err)
		}
		id := b.send("dot")
		b.settled()
		b.wantState(id, events.CallbackAccepted, 1)
	})
}

func TestStoppedPeerCancels(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		b.subscribe("dot")
		b.world.set(always(500))
		id := b.send("dot")
		time.Sleep(time.Second)
		b.stopPeer("dot")
		b.world.set(nil)
		time.Sleep(time.Hour)
		b.wantState(id, events.Cancelled, 1)
		b.register("dot")
		again := b.send("dot")
		b.settled()
		b.wantState(again, events.CallbackAccepted, 1) // the subscription follows the id
		var data struct{ Data struct{ Generation int } }
		got := b.world.deliveries()
		if err := json.Unmarshal([]byte(got[len(got)-1].body), &data); err != nil || data.Data.Generation != 2 {
			t.Errorf("generation %d, %v", data.Data.Generation, err)
		}
	})
}

func TestResend(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		b.subscribe("dot")
		b.world.set(always(500))
		id := b.send("dot")
		b.settled()
		eventID := b.listed()[0].EventID
		_, err := b.Resend(context.Background(), eventID)
		refused(t, err, events.NotResendable)
		time.Sleep(time.Hour)
		dead, err := b.Deliveries(context.Background(), events.DeliveriesIn{Dead: true})
		if err != nil || len(dead.Deliveries) != 1 {
			t.Fatalf("dead letters: %+v, %v", dead, err)
		}
		b.world.set(nil)
		if out, err := b.Resend(context.Background(), eventID); err != nil || out.Resent != 1 {
			t.Fatalf("%+v, %v", out, err)
		}
		b.settled()
		b.wantState(id, events.CallbackAccepted, 6)
		got := b.world.deliveries()
		if got[5].body != got[0].body || got[5].header.Get("Webhook-Id") != eventID {
			t.Error("it was sent again under another id or with other bytes")
		}
		_, err = b.Resend(context.Background(), eventID)
		refused(t, err, events.NotResendable)
		_, err = b.Resend(context.Background(), "evt_none")
		refused(t, err, events.UnknownDelivery)
		if log := b.audited(); !slices.Equal(log, []string{"event.subscribe", "event.resend"}) {
			t.Errorf("audited: %v", log)
		}
	})
}
