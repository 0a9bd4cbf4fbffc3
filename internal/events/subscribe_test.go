package events_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"agentrelay/internal/events"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
	"agentrelay/internal/safedial"
	"agentrelay/internal/sealing"
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

func TestChallengeIsSigned(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		out := b.subscribe("dot")
		r := b.world.got(true)[0]
		if !r.signedWith(t, secretOf(1)) || r.header.Get("X-Mcp-Subscription-Id") != out.ID ||
			!strings.HasPrefix(r.header.Get("Webhook-Id"), "msg_verification_") || r.member("type") != "verification" {
			t.Errorf("the challenge is %+v", r)
		}
	})
}

func TestChallengeFailures(t *testing.T) {
	wrong := func(r request) answer { return answer{body: `{"challenge":"` + strings.Repeat("x", 43) + `"}`} }
	for _, tt := range []struct {
		name   string
		verify func(request) answer
		reason string
	}{
		{"404", always(404), "http_4xx"},
		{"500", always(500), "http_5xx"},
		{"redirect", always(302), "http_4xx"},
		{"another challenge", wrong, "challenge_failed"},
		{"no body", always(204), "challenge_failed"},
		{"no JSON", func(request) answer { return answer{body: "<html>"} }, "challenge_failed"},
		{"a huge answer", func(r request) answer {
			return answer{body: `{"pad":"` + strings.Repeat("x", 20<<10) + `",` + echo(r).body[1:]}
		}, "challenge_failed"},
		{"the right answer with 500", func(r request) answer { a := echo(r); a.status = 500; return a }, "http_5xx"},
		{"silence", func(request) answer { return answer{after: time.Hour} }, "timeout"},
		{"refused", func(request) answer { return answer{err: errors.New("refused")} }, "connection_refused"},
		{"private by DNS", func(request) answer { return answer{err: &safedial.RefusedError{Reason: "the name is private"}} }, "connection_refused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, events.Options{}, func(b *box) {
				b.world.verify = tt.verify
				start := time.Now()
				_, err := b.Subscribe(context.Background(), b.who, subscribeTo("dot"))
				r := refused(t, err, events.CallbackFailed)
				if r.Data["reason"] != tt.reason {
					t.Errorf("reason %v, want %s", r.Data["reason"], tt.reason)
				}
				if took := time.Since(start); took > 11*time.Second {
					t.Errorf("it took %s", took)
				}
				if n := b.status().Subscriptions; n != 0 || len(b.audited()) != 0 {
					t.Errorf("%d subscriptions were stored", n)
				}
			})
		})
	}
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

func TestSecretForms(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		for _, n := range []int{24, 32, 48, 64} {
			raw := bytes.Repeat([]byte{0xfb}, n)
			padded := "whsec_" + base64.StdEncoding.EncodeToString(raw)
			bare := "whsec_" + base64.RawStdEncoding.EncodeToString(raw)
			for form, secret := range map[string]string{"padded": padded, "bare": bare} {
				b.subscribe("dot", func(in *events.SubscribeIn) {
					in.Secret, in.URL = secret, fmt.Sprintf("https://callback.example/%d/%s", n, form)
				})
				got := b.world.got(true)
				if r := got[len(got)-1]; !r.signedWith(t, padded) {
					t.Errorf("%d bytes, %s: not signed with the secret", n, form)
				}
			}
		}
	})
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

func TestRotation(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		rotate := func(to byte) {
			b.subscribe("dot", func(in *events.SubscribeIn) { in.Secret = secretOf(to) })
		}
		signed := func(by ...byte) {
			t.Helper()
			b.send("dot")
			b.settled()
			got := b.world.deliveries()
			r := got[len(got)-1]
			for _, s := range []byte{1, 2, 3} {
				if r.signedWith(t, secretOf(s)) != slices.Contains(by, s) {
					t.Errorf("signed with secret %d: %v, want those of %v", s, !slices.Contains(by, s), by)
				}
			}
			if n := len(strings.Fields(r.header.Get("Webhook-Signature"))); n != len(by) {
				t.Errorf("%d signatures, want %d", n, len(by))
			}
		}
		rotate(1)
		signed(1)
		rotate(2)
		signed(1, 2)
		b.restart()
		signed(1, 2)
		time.Sleep(30 * time.Minute)
		rotate(2) // a refresh with the same secret does not prolong the old one's life
		signed(1, 2)
		time.Sleep(31 * time.Minute)
		signed(2)
		rotate(3)
		signed(2, 3)
		b.unsubscribe("dot")
		rotate(1)
		signed(1) // the secret of an ended subscription signs nothing
	})
}

func TestSecretIsSealed(t *testing.T) {
	secret := bytes.Repeat([]byte("sealed?!"), 4)
	inBubble(t, events.Options{}, func(b *box) {
		b.subscribe("dot", func(in *events.SubscribeIn) { in.Secret = "whsec_" + base64.StdEncoding.EncodeToString(secret) })
		b.stop()
		raw, err := os.ReadFile(filepath.Join(b.dir, store.FileName))
		if err != nil {
			t.Fatal(err)
		}
		for _, form := range [][]byte{secret, []byte(base64.StdEncoding.EncodeToString(secret))[:20]} {
			if bytes.Contains(raw, form) {
				t.Error("the secret is readable in the database")
			}
		}
		b.start()
	})
}

func TestLostKey(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		b.subscribe("dot")
		b.stop()
		path := filepath.Join(b.dir, sealing.FileName)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		s, err := store.Open(context.Background(), store.Options{Dir: b.dir})
		if err != nil {
			t.Fatal(err)
		}
		_, err = events.OpenKey(context.Background(), s)
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "forget-secrets") {
			t.Errorf("a missing key: %v", err)
		}
		if n, err := events.ForgetSecrets(context.Background(), s); err != nil || n != 1 {
			t.Errorf("forgot %d, %v", n, err)
		}
		s.Close()
		b.start()
		if n := b.notification("dot"); n.Path != events.PathNone || !strings.Contains(n.Reason, "subscribe again") {
			t.Errorf("notification %+v", n)
		}
		id := b.send("dot")
		b.subscribe("dot")
		if (b.delivery(id) != events.Delivery{}) {
			t.Error("a delivery is recorded")
		}
	})
}

func TestForeignKeyEndsTheSubscription(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		b.subscribe("dot")
		b.stop()
		if err := os.Remove(filepath.Join(b.dir, sealing.FileName)); err != nil {
			t.Fatal(err)
		}
		if _, err := sealing.LoadOrCreate(b.dir); err != nil {
			t.Fatal(err)
		}
		b.start()
		id := b.send("dot")
		time.Sleep(time.Minute)
		if d := b.wantState(id, events.Cancelled, 1); !strings.Contains(d.Reason, "subscribe again") {
			t.Errorf("reason %q", d.Reason)
		}
		if n := len(b.world.deliveries()); n != 0 {
			t.Error("an unsigned delivery was sent")
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

func TestHostsAreNotKnockedAtForEver(t *testing.T) {
	inBubble(t, events.Options{ChallengesPerMinute: 6}, func(b *box) {
		b.world.verify = always(500)
		var limited int
		for i := range 70 {
			in := subscribeTo("dot")
			in.URL += strings.Repeat("x", i)
			_, err := b.Subscribe(context.Background(), b.who, in)
			if errors.Is(err, events.TooFast) {
				if r := refused(t, err, events.TooFast); r.Data["retryAfterMs"].(int64) <= 0 {
					t.Errorf("data %v", r.Data)
				}
				limited++
			}
		}
		if limited < 5 || limited > 10 {
			t.Errorf("%d of 70 challenges were refused", limited)
		}
		b.world.verify = nil
		b.subscribe("dot", func(in *events.SubscribeIn) { in.URL = "https://other.example/" })
		time.Sleep(time.Minute)
		b.subscribe("dot", func(in *events.SubscribeIn) { in.URL += "&later" })
	})
}

func TestVerificationIsRepeatedAfterADay(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		for range 3 {
			b.subscribe("dot")
			time.Sleep(20 * time.Hour)
		}
		if n := len(b.world.got(true)); n != 2 {
			t.Errorf("%d challenges in 40 hours, want 2", n)
		}
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

func TestAttention(t *testing.T) {
	o := events.Options{ResolveHost: func(id string) (string, error) {
		switch id {
		case "", "mac", "local":
			return "local", nil
		case "wsl":
			return "wsl", nil
		}
		return "", errors.New("no such host")
	}}
	inBubble(t, o, func(b *box) {
		publish := func(host, subject string) events.Published {
			t.Helper()
			out, err := store.Write(context.Background(), b.store, func(tx *store.Tx) (events.Published, error) {
				return b.PublishAttention(tx, events.Attention{
					Owner: b.who.Owner, Subject: subject, Kind: "result", RequestID: "req-1", AgentID: "agent-1", WorkspaceID: "wks", RouteID: "route",
					HostID: host, Summary: strings.Repeat("é", 3000), ReadyForReply: true,
				})
			})
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		if out := publish("", "req-1:result"); out.Receivers != 0 || out.Duplicate {
			t.Errorf("nobody subscribed: %+v", out)
		}
		subscribe := func(arguments string) string {
			return b.subscribe("dot", func(in *events.SubscribeIn) {
				in.Name, in.Arguments = events.AgentAttention, json.RawMessage(arguments)
			}).ID
		}
		local := subscribe(`{"workspaceId":"wks","routeId":"route"}`)
		if subscribe(`{"routeId":"route","hostId":"mac","workspaceId":"wks"}`) != local {
			t.Error("the local host has two subscriptions")
		}
		if subscribe(`{"workspaceId":"wks","routeId":"route","hostId":"wsl"}`) == local {
			t.Error("two hosts share a subscription")
		}
		if out := publish("", "req-1:result"); out.Receivers != 1 || out.Duplicate {
			t.Errorf("what nobody got is a duplicate: %+v", out)
		}
		if out := publish("local", "req-1:result"); !out.Duplicate || out.Receivers != 1 {
			t.Errorf("published twice: %+v", out)
		}
		if out := publish("wsl", "req-1:result"); out.Receivers != 1 || out.Duplicate {
			t.Errorf("another host's request of the same id: %+v", out)
		}
		b.settled()
		got := b.world.deliveries()
		if len(got) != 2 {
			t.Fatalf("%d deliveries, want 2", len(got))
		}
		for i, host := range []any{nil, "wsl"} {
			data := got[i].member("data").(map[string]any)
			if _, ok := data["acceptancePassed"]; !ok || data["acceptancePassed"] != nil || data["hostId"] != host || len([]rune(data["summary"].(string))) != 2000 {
				t.Errorf("data %v", data)
			}
		}
		_, err := b.Subscribe(context.Background(), b.who, events.SubscribeIn{Name: events.AgentAttention, Mode: "webhook", URL: callbackURL, Secret: secretOf(1),
			Arguments: json.RawMessage(`{"workspaceId":"wks","routeId":"route","hostId":"nowhere"}`)})
		refused(t, err, fault.InvalidArguments)
	})
}

// TestDefinitionsAreSchemas checks what events/list promises: both schemas of
// each event are there and name every member that is sent.
func TestDefinitionsAreSchemas(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		for _, d := range b.List(b.who) {
			if d.Name == "" || d.Description == "" || !slices.Equal(d.Delivery, []string{"webhook"}) {
				t.Errorf("definition %+v", d)
			}
			for _, raw := range []json.RawMessage{d.InputSchema, d.PayloadSchema} {
				var schema struct {
					Type                 string
					AdditionalProperties *bool
					Required             []string
					Properties           map[string]struct{ Description string }
				}
				if err := json.Unmarshal(raw, &schema); err != nil {
					t.Fatal(err)
				}
				if schema.Type != "object" || schema.AdditionalProperties == nil || *schema.AdditionalProperties {
					t.Errorf("%s: the schema is %s", d.Name, raw)
				}
				for name, p := range schema.Properties {
					if p.Description == "" {
						t.Errorf("%s: %s is not described", d.Name, name)
					}
				}
				for _, name := range schema.Required {
					if _, ok := schema.Properties[name]; !ok {
						t.Errorf("%s: %s is required and not described", d.Name, name)
					}
				}
			}
		}
	})
}

func TestOnlyWhatIsOfferedIsThere(t *testing.T) {
	inBubble(t, events.Options{Offer: []string{events.PeerMessage}}, func(b *box) {
		if list := b.List(b.who); len(list) != 1 || list[0].Name != events.PeerMessage {
			t.Errorf("listed: %v", list)
		}
		in := subscribeTo("dot")
		in.Name, in.Arguments = events.AgentAttention, json.RawMessage(`{"workspaceId":"w","routeId":"r"}`)
		_, err := b.Subscribe(context.Background(), b.who, in)
		refused(t, err, events.UnknownEvent)
	})
}

func TestNumbers(t *testing.T) {
	for _, k := range append(events.Kinds(), fault.InvalidArguments, fault.NotPermitted, fault.Internal) {
		a, b := events.Sketch.Number(k), events.SEP.Number(k)
		standard := k.Code == fault.InvalidArguments.Code || k.Code == fault.Internal.Code || k.Code == events.UnknownDelivery.Code || k.Code == events.NotResendable.Code
		if a == 0 || b == 0 || (a == b) != standard {
			t.Errorf("%s is %d and %d", k.Code, a, b)
		}
	}
	if events.Sketch.Number(events.CallbackFailed) != -32015 || events.SEP.Number(events.CallbackFailed) != -32027 {
		t.Error("a failed callback has another number than ChatGPT knows")
	}
}

func TestArgumentOrderDoesNotMatter(t *testing.T) {
	names := []string{"workspaceId", "routeId", "hostId"}
	values := map[string]string{"workspaceId": `"w\u00e9"`, "routeId": `"r"`, "hostId": `"local"`}
	dir := t.TempDir() + "/state"
	synctest.Test(t, func(t *testing.T) {
		b := newBox(t, dir, events.Options{})
		defer b.stop()
		var id string
		for seed := range 6 {
			order := rapid.Permutation(names).Example(seed)
			var members []string
			for _, n := range order {
				members = append(members, `"`+n+`" : `+values[n])
			}
			got := b.subscribe("dot", func(in *events.SubscribeIn) {
				in.Name, in.Arguments = events.AgentAttention, json.RawMessage("{"+strings.Join(members, " , ")+"}")
			}).ID
			if id != "" && got != id {
				t.Errorf("%v gives another id", order)
			}
			id = got
		}
	})
}
