package events_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"agentrelay/internal/events"
	"agentrelay/internal/safedial"
)

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

// TestPortsOfAHostAreNotTriedOneByOne: the limit is the host's, on whatever port.
func TestPortsOfAHostAreNotTriedOneByOne(t *testing.T) {
	inBubble(t, events.Options{ChallengesPerMinute: 6}, func(b *box) {
		b.world.verify = always(500)
		limited := 0
		for i := range 70 {
			in := subscribeTo("dot")
			in.URL = fmt.Sprintf("https://%s:%d/", []string{"stranger.example", "Stranger.Example."}[i%2], 1000+i)
			if _, err := b.Subscribe(context.Background(), b.who, in); errors.Is(err, events.TooFast) {
				limited++
			}
		}
		if limited < 5 || limited > 10 {
			t.Errorf("%d of 70 challenges were refused", limited)
		}
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
