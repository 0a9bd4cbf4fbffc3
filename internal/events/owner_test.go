package events_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"agentrelay/internal/events"
	"agentrelay/internal/fault"
	"agentrelay/internal/store"
)

func TestSubscriptionsAreListed(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		list := func(in events.SubscriptionsIn) events.SubscriptionsOut {
			t.Helper()
			out, err := b.Subscriptions(context.Background(), in)
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		if out := list(events.SubscriptionsIn{}); len(out.Subscriptions) != 0 {
			t.Errorf("listed: %+v", out)
		}
		b.subscribe("dot")
		b.subscribe("grok", func(in *events.SubscribeIn) { in.TTL = new(time.Minute) })
		b.subscribe("chat")
		b.unsubscribe("chat")
		b.world.set(always(500))
		b.send("dot")
		time.Sleep(2 * time.Minute)
		out := list(events.SubscriptionsIn{})
		if len(out.Subscriptions) != 1 {
			t.Fatalf("active: %+v", out)
		}
		s := out.Subscriptions[0]
		if s.State != "active" || s.Receiver != "https://callback.example" || s.Reason != "http_500" || s.FailedSince.IsZero() || s.Waiting != 1 ||
			string(s.Arguments) != `{"peerId":"dot"}` || s.ClientID != "client-1" {
			t.Errorf("listed: %+v", s)
		}
		var states []string
		in := events.SubscriptionsIn{IncludeEnded: true, Page: events.Page{Limit: new(1)}}
		for {
			out := list(in)
			for _, s := range out.Subscriptions {
				states = append(states, s.State+" "+s.Reason)
			}
			if out.NextCursor == "" {
				break
			}
			in.Cursor = &out.NextCursor
		}
		if !slices.Equal(states, []string{"active http_500", "expired ", "ended unsubscribed"}) {
			t.Errorf("states: %q", states)
		}
		for _, page := range []events.Page{{Limit: new(0)}, {Limit: new(201)}, {Cursor: new("x")}} {
			_, err := b.Subscriptions(context.Background(), events.SubscriptionsIn{Page: page})
			wantInvalid(t, err)
			_, err = b.Deliveries(context.Background(), events.DeliveriesIn{Page: page})
			wantInvalid(t, err)
		}
	})
}

func wantInvalid(t *testing.T, err error) {
	t.Helper()
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != fault.InvalidArguments.Code {
		t.Errorf("got %v, want invalid_arguments", err)
	}
}

func TestDeliveriesHavePages(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		b.subscribe("dot")
		var sent, got []string
		for range 5 {
			sent = append(sent, b.send("dot"))
		}
		b.settled()
		in := events.DeliveriesIn{Page: events.Page{Limit: new(2)}}
		for pages := 0; ; pages++ {
			out, err := b.Deliveries(context.Background(), in)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range out.Deliveries {
				got = append(got, d.Subject)
			}
			if out.NextCursor == "" {
				if pages != 2 {
					t.Errorf("%d pages", pages+1)
				}
				break
			}
			in.Cursor = &out.NextCursor
		}
		if slices.Reverse(got); !slices.Equal(sent, got) {
			t.Errorf("listed %v, sent %v", got, sent)
		}
		if out, _ := b.Deliveries(context.Background(), events.DeliveriesIn{Owner: "local-owner:other"}); len(out.Deliveries) != 0 {
			t.Error("another owner's deliveries are listed")
		}
	})
}

func TestWarnings(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		codes := func() (list []string) {
			for _, w := range b.status().Warnings {
				list = append(list, w.Code)
			}
			return list
		}
		b.subscribe("dot", func(in *events.SubscribeIn) { in.TTL = new(100 * time.Minute) })
		b.subscribe("grok")
		id, other := b.send("dot"), b.send("dot")
		b.settled()
		if c := codes(); len(c) != 0 {
			t.Errorf("at once: %v", c)
		}
		time.Sleep(61 * time.Minute)
		if w := b.wantWarning("mail_unread"); !strings.Contains(w.Text, "dot accepted 2 messages") {
			t.Errorf("warning %q", w.Text)
		}
		b.peers.read[id], b.peers.read[other] = true, true
		if c := codes(); len(c) != 0 {
			t.Errorf("after reading: %v", c)
		}
		time.Sleep(30 * time.Minute)
		b.wantWarning("subscription_expires")
		time.Sleep(time.Hour)
		b.wantWarning("subscription_expired")
		if n := b.notification("dot"); n.Path != events.PathNone || !strings.Contains(n.Reason, "expired") {
			t.Errorf("notification %+v", n)
		}
		b.subscribe("dot", func(in *events.SubscribeIn) { in.URL += "&new" }) // another receiver serves it
		if c := codes(); len(c) != 0 {
			t.Errorf("after a new subscription: %v", c)
		}
		time.Sleep(27*24*time.Hour + 12*time.Hour)
		if c := codes(); !slices.Equal(c, []string{"subscription_expires", "subscription_expires"}) {
			t.Errorf("near the end of the month: %v", c)
		}
	})
}

func TestSweep(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		sweep := func(age time.Duration) (n int64) {
			t.Helper()
			n, err := store.Write(context.Background(), b.store, func(tx *store.Tx) (int64, error) { return events.Sweep(tx, tx.Now().Add(-age)) })
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		b.subscribe("dot", func(in *events.SubscribeIn) { in.TTL = new(time.Hour) })
		b.subscribe("grok", func(in *events.SubscribeIn) { in.URL = "https://stuck.example/" })
		b.world.set(func(r request) answer {
			if r.url == callbackURL {
				return answer{}
			}
			return answer{status: 429, header: map[string][]string{"Retry-After": {"3600"}}}
		})
		old, waiting := b.send("dot"), b.send("grok")
		time.Sleep(100 * time.Minute)
		if n := sweep(2 * time.Hour); n != 0 {
			t.Errorf("%d events were too old", n)
		}
		b.wantState(old, events.CallbackAccepted, 1)
		b.read(func(q *store.Reader) error {
			var secrets int
			err := q.QueryRow(`SELECT count(*) FROM event_subscriptions WHERE expires_at <= ? AND length(secret) > 0`, time.Now().UnixMilli()).Scan(&secrets)
			if secrets != 0 {
				t.Errorf("%d expired subscriptions keep their secret", secrets)
			}
			return err
		})
		if n := sweep(time.Minute); n != 1 {
			t.Errorf("%d events were removed, want 1", n)
		}
		if (b.delivery(old) != events.Delivery{}) {
			t.Error("the old delivery is still there")
		}
		b.wantState(waiting, events.Queued, 2)
		out, err := b.Subscriptions(context.Background(), events.SubscriptionsIn{IncludeEnded: true})
		if err != nil || len(out.Subscriptions) != 1 || out.Subscriptions[0].State != "active" {
			t.Errorf("left: %+v, %v", out, err)
		}
	})
}

// dice is chance that several goroutines can use.
type dice struct {
	mu sync.Mutex
	r  *rand.Rand
}

func (d *dice) IntN(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.r.IntN(n)
}

func (d *dice) Float64() float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.r.Float64()
}

// TestAnyWeather sends through receivers that answer at random, with restarts,
// and checks what must hold whatever happens.
func TestAnyWeather(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := &dice{r: rand.New(rand.NewPCG(seed, 1))}
			targets := []events.Target{wakes("grok", credentials(t, "key"), events.Bearer)}
			inBubble(t, events.Options{Targets: targets, Jitter: random.Float64}, func(b *box) { weather(t, b, random) })
		})
	}
}

func weather(t *testing.T, b *box, random *dice) {
	b.subscribe("dot")
	b.world.connects = true
	statuses := []int{200, 200, 204, 301, 400, 413, 429, 500, 503, 504}
	b.world.set(func(request) answer {
		a := answer{status: statuses[random.IntN(len(statuses))], after: time.Duration(random.IntN(3000)) * time.Millisecond}
		switch random.IntN(12) {
		case 0:
			a.after = time.Hour
		case 1:
			a.err = errors.New("broken")
		}
		return a
	})
	var ids []string
	for range 40 {
		ids = append(ids, b.send([]string{"dot", "grok"}[random.IntN(2)]))
		time.Sleep(time.Duration(random.IntN(20_000)) * time.Millisecond)
		if random.IntN(8) == 0 {
			b.restart()
		}
	}
	time.Sleep(24 * time.Hour)
	b.settled()

	perEvent := map[string][]request{}
	for _, r := range b.world.deliveries() {
		id, _ := r.member("eventId").(string)
		perEvent[id] = append(perEvent[id], r)
	}
	if b.world.most != 1 {
		t.Errorf("%d requests at once at one receiver", b.world.most)
	}
	listed, err := b.Deliveries(context.Background(), events.DeliveriesIn{Page: events.Page{Limit: new(200)}})
	if err != nil || len(listed.Deliveries) != len(ids) {
		t.Fatalf("%d deliveries of %d messages, %v", len(listed.Deliveries), len(ids), err)
	}
	for _, d := range listed.Deliveries {
		posts := perEvent[d.EventID]
		most := 5
		if d.Path == events.PathWebhook {
			most = 1
		}
		if len(d.Attempts) != len(posts) || len(posts) < 1 || len(posts) > most {
			t.Errorf("%s: %d attempts are recorded and %d were made, at most %d may be", d.Path, len(d.Attempts), len(posts), most)
		}
		for i, r := range posts {
			if r.body != posts[0].body {
				t.Error("the attempts of one event differ")
			}
			if i > 0 && r.at.Sub(posts[i-1].at) < 4*time.Second {
				t.Errorf("two attempts of one event are %s apart", r.at.Sub(posts[i-1].at))
			}
		}
		last := d.Attempts[len(d.Attempts)-1].Outcome
		acceptedState := d.State == events.CallbackAccepted || d.State == events.WebhookAccepted
		if acceptedState != (last == "accepted") || d.State == events.Queued || d.State == events.Submitting {
			t.Errorf("%s after %+v", d.State, d.Attempts)
		}
	}
}
