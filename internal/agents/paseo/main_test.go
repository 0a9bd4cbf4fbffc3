package paseo_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/agents/paseo/paseotest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come.
const patience = 20 * time.Second

// quick are options of a client that reconnects fast.
func quick(d *paseotest.Daemon) paseo.Options {
	return paseo.Options{
		HostID: "test", Dial: d.Dial,
		BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond, ConnectWait: 5 * time.Second,
	}
}

// follower is a running client with everything it was told.
type follower struct {
	*paseo.Client
	t   testing.TB
	sub *paseo.Subscription
}

// run starts a client that ends with the test.
func run(t testing.TB, o paseo.Options) *follower {
	t.Helper()
	c := paseo.New(o)
	f := &follower{c, t, c.Subscribe()}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done; f.sub.Close() })
	return f
}

// connected is run, and waits until the subscriptions are in force.
func connected(t testing.TB, o paseo.Options) *follower {
	t.Helper()
	f := run(t, o)
	f.restored()
	return f
}

// within is a context for a call that must not hang.
func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// until reads events up to the first that is wanted.
func (f *follower) until(what string, want func(paseo.Event) bool) paseo.Event {
	f.t.Helper()
	ctx := within(f.t, patience)
	for {
		e, err := f.sub.Next(ctx)
		if err != nil {
			f.t.Fatalf("waiting for %s: %v", what, err)
		}
		if want(e) {
			return e
		}
	}
}

func (f *follower) restored() paseo.Discontinuity {
	f.t.Helper()
	return f.discontinuity(paseo.Restored)
}

func (f *follower) discontinuity(reason paseo.DiscontinuityReason) paseo.Discontinuity {
	f.t.Helper()
	return f.until(string(reason), func(e paseo.Event) bool {
		d, ok := e.(paseo.Discontinuity)
		return ok && d.Reason == reason
	}).(paseo.Discontinuity)
}

// turn waits for a phase of a turn of an agent.
func (f *follower) turn(agentID string, phase paseo.TurnPhase) paseo.TurnChanged {
	f.t.Helper()
	return f.until("turn "+string(phase), func(e paseo.Event) bool {
		c, ok := e.(paseo.TurnChanged)
		return ok && c.AgentID == agentID && c.Phase == phase
	}).(paseo.TurnChanged)
}

// state waits for a state of the client.
func (f *follower) state(want paseo.State, code paseo.Code) paseo.Status {
	f.t.Helper()
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		if s := f.Status(); s.State == want && s.Code == code {
			return s
		}
		time.Sleep(2 * time.Millisecond)
	}
	f.t.Fatalf("state is %+v, want %s %s", f.Status(), want, code)
	return paseo.Status{}
}
