package events_test

import (
	"net/http"
	"testing"
	"time"

	"agentrelay/internal/events"
)

func TestRetryAfter(t *testing.T) {
	for _, tt := range []struct {
		value string
		want  time.Duration
	}{
		{"60", time.Minute}, {"1", 5 * time.Second}, {"86400", time.Hour}, {"99999999999999999999", time.Hour},
		{"-5", 5 * time.Second}, {"soon", 5 * time.Second}, {"date", 90 * time.Second},
	} {
		t.Run(tt.value, func(t *testing.T) {
			inBubble(t, events.Options{}, func(b *box) {
				b.subscribe("dot")
				b.world.set(func(r request) answer {
					value := tt.value
					if value == "date" {
						value = r.at.Add(90 * time.Second).UTC().Format(http.TimeFormat)
					}
					return answer{status: 429, header: http.Header{"Retry-After": {value}}}
				})
				b.send("dot")
				b.settled()
				b.world.set(nil)
				b.send("dot")
				time.Sleep(2 * time.Hour)
				got := b.world.deliveries()
				if len(got) != 3 {
					t.Fatalf("%d attempts, want 3", len(got))
				}
				// The second message is new, and waits only if the receiver asked.
				second := got[1].at.Sub(got[0].at)
				if retried := got[2].at.Sub(got[0].at); (retried - tt.want).Abs() > time.Second {
					t.Errorf("the retry came after %s, want %s", retried, tt.want)
				}
				if asked := tt.want != 5*time.Second; asked && (second-tt.want).Abs() > time.Second || !asked && second > time.Second+10*time.Millisecond {
					t.Errorf("the next message went after %s", second)
				}
			})
		})
	}
}

func TestStormIsBroken(t *testing.T) {
	const queued = 10_000
	inBubble(t, events.Options{}, func(b *box) {
		b.subscribe("dot")
		b.world.set(always(503))
		b.queueMany("dot", queued)
		time.Sleep(time.Minute)
		if n := len(b.world.deliveries()); n > 20 || n < 5 {
			t.Errorf("%d requests in the first minute, want at most 20", n)
		}
		before := len(b.world.deliveries())
		time.Sleep(10 * time.Minute)
		if n := len(b.world.deliveries()) - before; n < 18 || n > 22 {
			t.Errorf("%d probes in ten minutes, want one every 30 seconds", n)
		}
		if st := b.status(); st.Waiting != queued || st.Dead != 0 {
			t.Errorf("%d wait and %d are dead, want all waiting", st.Waiting, st.Dead)
		}
		if w := b.status().Warnings; len(w) != 1 || w[0].Code != "receiver_failing" {
			t.Errorf("warnings: %+v", w)
		}
		// A restart is no reason for another storm.
		b.restart()
		before = len(b.world.deliveries())
		time.Sleep(time.Minute)
		if n := len(b.world.deliveries()) - before; n > 3 {
			t.Errorf("%d requests in the first minute after a restart", n)
		}
		// The receiver is back: what waited flows, one at a time.
		before = len(b.world.deliveries())
		b.world.set(func(request) answer {
			if len(b.world.deliveries())-before > 100 {
				return answer{after: time.Hour}
			}
			return answer{}
		})
		time.Sleep(35 * time.Second)
		if n := len(b.world.deliveries()) - before; n < 100 || b.world.most != 1 {
			t.Errorf("after the recovery %d requests, %d at once", n, b.world.most)
		}
	})
}

func TestStuckReceiverDelaysNobodyElse(t *testing.T) {
	inBubble(t, events.Options{Workers: 2}, func(b *box) {
		b.subscribe("dot")
		b.subscribe("grok", func(in *events.SubscribeIn) { in.URL = "https://callback.example/other" })
		b.world.set(func(r request) answer {
			if r.url == callbackURL {
				return answer{after: time.Hour}
			}
			return answer{}
		})
		for range 50 {
			b.send("dot")
		}
		for range 20 {
			sent := time.Now()
			id := b.send("grok")
			b.settled()
			if took := time.Since(sent); took > 100*time.Millisecond {
				t.Errorf("the other receiver waited %s", took)
			}
			b.wantState(id, events.CallbackAccepted, 1)
			time.Sleep(time.Second)
		}
	})
}

// TestARestartIsNoProbe: a gateway that ends while it probes a failing receiver
// does not probe at once when it starts again.
func TestARestartIsNoProbe(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		b.subscribe("dot")
		b.world.set(always(503))
		b.queueMany("dot", 20)
		time.Sleep(15 * time.Second)
		b.world.set(func(request) answer { return answer{after: time.Hour} })
		time.Sleep(16 * time.Second) // a probe began
		before := len(b.world.deliveries())
		b.restart()
		time.Sleep(25 * time.Second)
		if n := len(b.world.deliveries()) - before; n != 0 {
			t.Errorf("%d attempts within 30 seconds of the last", n)
		}
		time.Sleep(10 * time.Second)
		if n := len(b.world.deliveries()) - before; n != 1 {
			t.Errorf("%d probes afterwards, want 1", n)
		}
	})
}
