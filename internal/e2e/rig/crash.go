package rig

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"
)

// Crash kills a gateway with SIGKILL while it is at work, again and again. What
// the work was told, and what must be true of it afterwards, is the caller's.
type Crash struct {
	Home *Home
	// Rounds is how often the gateway is killed.
	Rounds int
	// Longest bounds the time from the start of the work to the kill, which
	// falls on a random instant before.
	Longest time.Duration
	// Work uses the gateway until ctx ends. A call whose answer did not come may
	// have been done or not; ctx ends only when the gateway is dead, so that no
	// call fails for another reason.
	Work func(ctx context.Context, round int)
	// Check looks at the gateway that was started after the kill.
	Check func(round int)
}

// Run does the rounds, or as many as it takes to fail the test.
func (c Crash) Run(t testing.TB) {
	t.Helper()
	g := c.Home.Serve()
	for round := 0; round < c.Rounds && !t.Failed(); round++ {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.Work(ctx, round)
		}()
		after := rand.N(c.Longest)
		time.Sleep(after)
		g.Kill()
		cancel()
		<-done
		g = c.Home.Serve()
		c.Check(round)
		if t.Failed() {
			t.Logf("this was round %d, killed after %v", round, after)
		}
	}
}
