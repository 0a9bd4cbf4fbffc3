package events_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"agentrelay/internal/events"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
	"agentrelay/internal/safedial"
	"agentrelay/internal/store"
)

func TestSubscribeIsAnUpsert(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		start := time.Now()
		first := b.subscribe("dot")
		if !strings.HasPrefix(first.ID, "sub_") || len(first.ID) != 36 {
			t.Errorf("the id is %q", first.ID)
		}
		if want := start.Add(30 * 24 * time.Hour); first.RefreshBefore.Sub(want).Abs() > time.Second || first.Cursor != nil || first.Truncated {
			t.Errorf("%+v, want expiry at %s", first, want)
		}
		time.Sleep(time.Hour)
		second := b.subscribe("dot")
		if second.ID != first.ID || second.RefreshBefore.Sub(first.RefreshBefore.Time) < time.Hour {
			t.Errorf("a refresh gave %+v after %+v", second, first)
		}
		b.restart()
		b.who.ClientID = "client-2"
		if third := b.subscribe("dot"); third.ID != first.ID {
			t.Error("another id after a restart and a new registration")
		}
		if n := len(b.world.got(true)); n != 1 {
			t.Errorf("%d challenges, want 1 in a day", n)
		}
		others := []events.SubscribeOut{
			b.subscribe("grok"),
			b.subscribe("dot", func(in *events.SubscribeIn) { in.URL += "&x=1" }),
		}
		b.unsubscribe("dot")
		if again := b.subscribe("dot"); again.ID != first.ID {
			t.Error("another id after an unsubscribe")
		}
		for _, o := range others {
			if o.ID == first.ID {
				t.Error("two subscriptions have one id")
			}
		}
		if log := b.audited(); !slices.Contains(log, "event.subscribe") || !slices.Contains(log, "event.end") {
			t.Errorf("audited: %v", log)
		}
	})
}

func TestConcurrentSubscribesAreOne(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		b.world.verify = func(r request) answer {
			a := echo(r)
			a.after = 2 * time.Second
			return a
		}
		ids := make([]string, 20)
		var wg sync.WaitGroup
		for i := range ids {
			wg.Go(func() { ids[i] = b.subscribe("dot").ID })
		}
		wg.Wait()
		if slices.Sort(ids); len(slices.Compact(ids)) != 1 {
			t.Errorf("ids: %v", ids)
		}
		if n := len(b.world.got(true)); n != 1 {
			t.Errorf("%d challenges, want 1", n)
		}
		b.send("dot")
		b.settled()
		if n := len(b.world.deliveries()); n != 1 {
			t.Errorf("%d deliveries, want 1", n)
		}
	})
}

func TestSubscribeRefusals(t *testing.T) {
	refuseAll := events.Options{CheckURL: func(u string) error {
		if strings.Contains(u, "127.0.0.1") {
			return &safedial.RefusedError{Reason: "the address is not on the public internet"}
		}
		return nil
	}}
	secret := func(s string) func(*events.SubscribeIn) { return func(in *events.SubscribeIn) { in.Secret = s } }
	arguments := func(s string) func(*events.SubscribeIn) {
		return func(in *events.SubscribeIn) { in.Arguments = json.RawMessage(s) }
	}
	encoded := func(n int) string { return base64.StdEncoding.EncodeToString(make([]byte, n)) }
	for _, tt := range []struct {
		name   string
		change func(*events.SubscribeIn)
		want   fault.Kind
		data   map[string]any
	}{
		{"no name", func(in *events.SubscribeIn) { in.Name = "" }, fault.InvalidArguments, nil},
		{"unknown name", func(in *events.SubscribeIn) { in.Name = "peer.gone" }, events.UnknownEvent, map[string]any{"kind": "event"}},
		{"no mode", func(in *events.SubscribeIn) { in.Mode = "" }, fault.InvalidArguments, nil},
		{"poll", func(in *events.SubscribeIn) { in.Mode = "poll" }, events.Unsupported, map[string]any{"feature": "deliveryMode", "value": "poll"}},
		{"no arguments", arguments(``), fault.InvalidArguments, nil},
		{"empty arguments", arguments(`{}`), fault.InvalidArguments, nil},
		{"array arguments", arguments(`[]`), fault.InvalidArguments, nil},
		{"numeric peer", arguments(`{"peerId":1}`), fault.InvalidArguments, nil},
		{"null peer", arguments(`{"peerId":null}`), fault.InvalidArguments, nil},
		{"bad peer id", arguments(`{"peerId":"a b"}`), fault.InvalidArguments, nil},
		{"further argument", arguments(`{"peerId":"dot","x":1}`), fault.InvalidArguments, nil},
		{"unknown peer", arguments(`{"peerId":"nobody"}`), events.UnknownSubject, map[string]any{"kind": "peer"}},
		{"no secret", secret(""), fault.InvalidArguments, nil},
		{"no prefix", secret(encoded(32)), fault.InvalidArguments, nil},
		{"empty secret", secret("whsec_"), fault.InvalidArguments, nil},
		{"23 bytes", secret("whsec_" + encoded(23)), fault.InvalidArguments, nil},
		{"65 bytes", secret("whsec_" + encoded(65)), fault.InvalidArguments, nil},
		{"url-safe", secret("whsec_" + strings.Repeat("-_", 22)), fault.InvalidArguments, nil},
		{"garbage", secret("whsec_" + strings.Repeat("!", 44)), fault.InvalidArguments, nil},
		{"line breaks", secret("whsec_" + encoded(32)[:20] + "\n" + encoded(32)[20:]), fault.InvalidArguments, nil},
		{"loose bits", secret("whsec_" + encoded(32)[:42] + "B="), fault.InvalidArguments, nil},
		{"no url", func(in *events.SubscribeIn) { in.URL = "" }, fault.InvalidArguments, nil},
		{"relative url", func(in *events.SubscribeIn) { in.URL = "/hook" }, fault.InvalidArguments, nil},
		{"long url", func(in *events.SubscribeIn) { in.URL = "https://a.example/" + strings.Repeat("x", 2048) }, fault.InvalidArguments, nil},
		{"refused url", func(in *events.SubscribeIn) { in.URL = "https://127.0.0.1/" }, fault.InvalidArguments, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, refuseAll, func(b *box) {
				in := subscribeTo("dot")
				tt.change(&in)
				_, err := b.Subscribe(context.Background(), b.who, in)
				r := refused(t, err, tt.want)
				for name, value := range tt.data {
					if r.Data[name] != value {
						t.Errorf("data is %v, want %v", r.Data, tt.data)
					}
				}
				if len(in.Secret) > 8 && strings.Contains(err.Error(), in.Secret) {
					t.Error("the refusal repeats the secret")
				}
				if len(b.world.requests) != 0 {
					t.Error("something was sent")
				}
			})
		})
	}
}

func TestTTL(t *testing.T) {
	day := 24 * time.Hour
	for _, tt := range []struct {
		params string
		ttl    events.TTL
		want   time.Duration
	}{
		{``, events.TTL{}, 30 * day},
		{`,"ttlMs":null`, events.TTL{}, 30 * day},
		{`,"ttlMs":null`, events.TTL{Default: day}, 7 * day},
		{`,"ttlMs":null`, events.TTL{Default: day, Max: 2 * day}, 2 * day},
		{`,"ttlMs":3600000`, events.TTL{}, time.Hour},
		{`,"ttlMs":3.6e6`, events.TTL{}, time.Hour},
		{`,"ttlMs":1`, events.TTL{}, time.Minute},
		{`,"ttlMs":0`, events.TTL{}, time.Minute},
		{`,"ttlMs":-5`, events.TTL{Min: time.Hour}, time.Hour},
		{`,"ttlMs":1e300`, events.TTL{}, 365 * day},
		{`,"ttlMs":99999999999999`, events.TTL{Max: 10 * day}, 10 * day},
	} {
		t.Run(tt.params, func(t *testing.T) {
			inBubble(t, events.Options{TTL: tt.ttl}, func(b *box) {
				in, err := events.ReadSubscribe(json.RawMessage(`{"name":"peer.message","arguments":{"peerId":"dot"},"cursor":null,"maxAgeMs":5,
					"delivery":{"mode":"webhook","url":"https://callback.example/","secret":"` + secretOf(1) + `"}` + tt.params + `}`))
				if err != nil {
					t.Fatal(err)
				}
				out, err := b.Subscribe(context.Background(), b.who, in)
				if err != nil {
					t.Fatal(err)
				}
				if got := time.Until(out.RefreshBefore.Time); (got - tt.want).Abs() > time.Second {
					t.Errorf("granted %s, want %s", got, tt.want)
				}
			})
		})
	}
}

func TestUnreadableParameters(t *testing.T) {
	for _, raw := range []string{
		``, `null1`, `[]`, `"x"`, `{"name":1}`, `{"delivery":[]}`, `{"delivery":{"url":1}}`, `{"delivery":{"secret":{}}}`,
		`{"name":"peer.message","ttlMs":"1h"}`, `{"ttlMs":1.5}`, `{"ttlMs":[]}`,
	} {
		_, err := events.ReadSubscribe(json.RawMessage(raw))
		refused(t, err, fault.InvalidArguments)
	}
	for _, raw := range []string{`[]`, `{"cursor":1}`, `{"cursor":"x"}`} {
		refused(t, events.CheckList(json.RawMessage(raw)), fault.InvalidArguments)
	}
	for _, raw := range []string{``, `{}`, `null`, `{"cursor":null}`, `{"cursor":"","_meta":{}}`} {
		if err := events.CheckList(json.RawMessage(raw)); err != nil {
			t.Error(err)
		}
	}
	for _, raw := range []string{``, `[]`, `{"name":[]}`, `{"delivery":"x"}`} {
		_, err := events.ReadUnsubscribe(json.RawMessage(raw))
		refused(t, err, fault.InvalidArguments)
	}
}

func FuzzReadSubscribe(f *testing.F) {
	f.Add(`{"name":"peer.message","arguments":{"peerId":"dot"},"delivery":{"mode":"webhook","url":"https://a.example/","secret":"` + secretOf(1) + `"},"ttlMs":null}`)
	f.Add(`{"ttlMs":-1e308}`)
	f.Fuzz(func(t *testing.T, raw string) {
		in, err := events.ReadSubscribe(json.RawMessage(raw))
		if err != nil {
			refused(t, err, fault.InvalidArguments)
		} else if in.TTL != nil && *in.TTL < 0 {
			t.Errorf("ttl %s", *in.TTL)
		}
	})
}

func TestPermissions(t *testing.T) {
	allowed := true
	var mu sync.Mutex
	o := events.Options{Allowed: func(_ store.Querier, clientID string, p principal.Permission) (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		return allowed && clientID == "client-1" && p == principal.Mailbox, nil
	}}
	inBubble(t, o, func(b *box) {
		set := func(v bool) {
			mu.Lock()
			defer mu.Unlock()
			allowed = v
		}
		if n := len(b.List(b.who)); n != 2 {
			t.Errorf("%d events are listed, want 2", n)
		}
		b.who.Permissions = principal.Full().Without(principal.Mailbox)
		if list := b.List(b.who); len(list) != 1 || list[0].Name != events.AgentAttention {
			t.Errorf("listed: %v", list)
		}
		_, err := b.Subscribe(context.Background(), b.who, subscribeTo("dot"))
		if r := refused(t, err, fault.NotPermitted); !strings.Contains(r.Fault.Hint, "gateway clients allow client-1 mailbox") {
			t.Errorf("hint %q", r.Fault.Hint)
		}
		b.who.Permissions = principal.Full()
		b.subscribe("dot")
		b.world.set(always(500))
		waiting := b.send("dot")
		time.Sleep(time.Second)
		set(false)
		if n := b.notification("dot"); n.Path != events.PathNone || n.Reason == "" {
			t.Errorf("notification %+v", n)
		}
		if d := b.sendAs("while-denied", "dot"); d.Path != events.PathNone {
			t.Errorf("path %s", d.Path)
		}
		b.world.set(nil)
		time.Sleep(time.Minute)
		b.wantState(waiting, events.Cancelled, 1)
		_, err = b.Subscribe(context.Background(), b.who, subscribeTo("dot"))
		refused(t, err, fault.NotPermitted)
		set(true)
		again := b.send("dot")
		b.settled()
		b.wantState(again, events.CallbackAccepted, 1)
	})
}

func TestQuota(t *testing.T) {
	inBubble(t, events.Options{MaxSubscriptions: 2}, func(b *box) {
		b.subscribe("dot")
		b.subscribe("grok", func(in *events.SubscribeIn) { in.TTL = new(time.Minute) })
		challenges := len(b.world.got(true))
		_, err := b.Subscribe(context.Background(), b.who, subscribeTo("chat"))
		if r := refused(t, err, events.TooMany); r.Data["limit"] != "subscriptions" || r.Data["max"] != 2 {
			t.Errorf("data %v", r.Data)
		}
		if len(b.world.got(true)) != challenges {
			t.Error("a refused request was challenged")
		}
		b.subscribe("dot") // a refresh needs no room
		time.Sleep(2 * time.Minute)
		b.subscribe("chat") // the expired one does not count
		b.who.Owner = "local-owner:other"
		b.peers.peers["dot"] = events.Peer{Owner: "local-owner:other", PeerID: "dot", Generation: 1}
		b.subscribe("dot") // another owner has room of its own
	})
}

func TestAnEndBeatsASubscribeUnderWay(t *testing.T) {
	for name, end := range map[string]func(b *box){
		"unsubscribed": func(b *box) { b.unsubscribe("dot") },
		"revoked": func(b *box) {
			if err := store.Exec(context.Background(), b.store, func(tx *store.Tx) error { return b.EndClient(tx, "client-1") }); err != nil {
				b.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, events.Options{}, func(b *box) {
				b.world.verify = func(r request) answer {
					a := echo(r)
					a.after = 5 * time.Second
					return a
				}
				result := make(chan error)
				go func() {
					_, err := b.Subscribe(context.Background(), b.who, subscribeTo("dot"))
					result <- err
				}()
				time.Sleep(time.Second)
				end(b)
				r := refused(t, <-result, events.Withdrawn)
				if r.Data["kind"] != "subscription" || b.status().Subscriptions != 0 {
					t.Errorf("%v; %d subscriptions", r.Data, b.status().Subscriptions)
				}
			})
		})
	}
}

func TestClientThatLeavesSubscribesNothing(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		b.world.verify = func(request) answer { return answer{after: time.Hour} }
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		start := time.Now()
		_, err := b.Subscribe(ctx, b.who, subscribeTo("dot"))
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 2*time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
		if b.status().Subscriptions != 0 {
			t.Error("it was subscribed")
		}
	})
}

func TestAnotherOwnersSubscriptionIsAnother(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		first := b.subscribe("dot")
		shared := b.who
		b.who.Owner = "local-owner:other"
		b.peers.peers["dot"] = events.Peer{Owner: b.who.Owner, PeerID: "dot", Generation: 1}
		second := b.subscribe("dot")
		if first.ID == second.ID {
			t.Error("two owners share a subscription")
		}
		if n := len(b.world.got(true)); n != 2 {
			t.Errorf("%d challenges, want one for each owner", n)
		}
		b.unsubscribe("dot")
		b.who = shared
		b.peers.peers["dot"] = events.Peer{Owner: b.who.Owner, PeerID: "dot", Generation: 1}
		id := b.send("dot")
		b.settled()
		b.wantState(id, events.CallbackAccepted, 1)
	})
}
