package agents

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"agentrelay/internal/agents/paseo/paseotest"
)

// TestAtMostOnceWhateverHappens lets callers repeat their dispatches while the
// gateway and the daemon die at random. No prompt runs twice, and no receipt says
// what isn't so.
func TestAtMostOnceWhateverHappens(t *testing.T) {
	steps := []string{"admitted", "stored", "created", "prompting", "given", "settled"}
	stages := []paseotest.Stage{paseotest.Received, paseotest.Journalled, paseotest.Done, paseotest.Completed}
	for _, version := range paseotest.Versions() {
		t.Run(version, func(t *testing.T) {
			round := 0
			rapid.Check(t, func(rt *rapid.T) {
				if round++; round > 12 { // each takes a second
					return
				}
				r := newRig(t, version)
				crash := newCrash()
				r.o.crash = crash.at
				r.start()
				in := r.createIn("key", "hello")
				for range rapid.IntRange(1, 4).Draw(rt, "tries") {
					switch rapid.IntRange(0, 2).Draw(rt, "what fails") {
					case 0:
						crash.plan(rapid.SampledFrom(steps).Draw(rt, "step"))
					case 1:
						r.daemon[here].Order(paseotest.Fault{
							Request: rapid.SampledFrom([]string{"create_agent_request", "send_agent_message_request"}).Draw(rt, "request"),
							Stage:   rapid.SampledFrom(stages).Draw(rt, "stage"),
							Act:     rapid.SampledFrom([]paseotest.Act{paseotest.Cut, paseotest.Crash}).Draw(rt, "act"),
						})
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					_, _ = r.s.CreateAgent(ctx, r.who, in)
					cancel()
					if !r.daemon[here].Running() {
						if err := r.daemon[here].Restart(); err != nil {
							rt.Fatal(err)
						}
					}
					if rapid.Bool().Draw(rt, "restart the gateway") || crash.happened() {
						r.halt()
						r.o.crash = crash.at
						r.start()
					}
					eventually(t, "the connection", func() bool { _, ok := r.clients[here].Info(); return ok })
				}
				receipt, n := r.receipt("key"), r.ran("key")
				switch {
				case n > 1:
					rt.Fatalf("it ran %d times", n)
				case receipt.State == Submitted && n != 1, (receipt.State == NotSent || receipt.State == Rejected || !receipt.Found) && n != 0:
					rt.Fatalf("it ran %d times, and the receipt says %q", n, receipt.State)
				}
				r.halt()
				r.daemon[here].Terminate()
			})
		})
	}
}

// crash ends the goroutine that comes to a planned step.
type crash struct {
	mu   sync.Mutex
	step string
	did  bool
}

func newCrash() *crash { return &crash{} }

func (c *crash) plan(step string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.step = step
}

func (c *crash) at(step string) {
	c.mu.Lock()
	now := c.step == step
	if now {
		c.step, c.did = "", true
	}
	c.mu.Unlock()
	if now {
		runtime.Goexit()
	}
}

func (c *crash) happened() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	did := c.did
	c.did, c.step = false, ""
	return did
}
