package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"agentrelay/internal/agents"
	"agentrelay/internal/agents/paseo/paseotest"
	"agentrelay/internal/e2e/rig"
)

const (
	askCreate = "create_agent_request"
	askPrompt = "send_agent_message_request"
)

// dawdle is how long the daemon takes where the gateway is to be killed.
const dawdle = 100 * time.Millisecond

// killPoints are where a request is when something is killed.
var killPoints = []struct {
	request string
	stage   paseotest.Stage // "" is any instant around the call
}{
	{askCreate, paseotest.Received}, {askCreate, paseotest.Journalled}, {askCreate, paseotest.Done}, {askCreate, paseotest.Completed}, {askCreate, ""},
	{askPrompt, paseotest.Received}, {askPrompt, paseotest.Journalled}, {askPrompt, paseotest.Done}, {askPrompt, paseotest.Completed}, {askPrompt, ""},
}

// dispatched is a call that dispatches, and its answer if one came.
type dispatched struct {
	tool     string
	in       object
	answered *agents.Receipt
	// unprompted says that the daemon may have died with the agent, which is what
	// was asked for, and before its prompt.
	unprompted bool
}

func (a *dispatched) id() string { return a.in["requestId"].(string) }

// truth repeats a call until nothing changes any more, and compares what its
// receipt says with what the agents were given. tells reports whether the daemon
// can tell what became of it, given how often it ran.
func (c *crew) truth(what string, a *dispatched, tells func(ran int) bool) int {
	c.t.Helper()
	var r agents.Receipt
	n, deadline := 0, time.Now().Add(30*time.Second)
	for open := true; open && time.Now().Before(deadline); {
		r, n = c.settled(a.tool, a.in), c.daemon.ran(a.id())
		open = r.State == agents.NotSent || r.State == agents.Unknown && tells(n)
	}
	// What stays unknown is that for ever, and may be true of either.
	if n > 1 || r.State != agents.Unknown && r.State != agents.Submitted || r.State == agents.Submitted && n == 0 && !a.unprompted || r.State == agents.Unknown && tells(n) {
		c.t.Errorf("%s: it ran %d times, and the receipt says %s", what, n, brief(r))
	}
	if was := a.answered; was != nil && was.State == agents.Submitted && (r.State != agents.Submitted || r.AgentID != was.AgentID) {
		c.t.Errorf("%s: answered with %s, afterwards %s", what, brief(*was), brief(r))
	}
	again := c.settled(a.tool, a.in)
	if !again.Duplicate || again.State != r.State || again.AgentID != r.AgentID || c.daemon.ran(a.id()) != n {
		c.t.Errorf("%s: the receipt is %s, a repeat is answered %s; it ran %d times, then %d", what, brief(r), brief(again), n, c.daemon.ran(a.id()))
	}
	return n
}

func brief(r agents.Receipt) string {
	out := fmt.Sprintf("%s, agent %q, duplicate %v", r.State, r.AgentID, r.Duplicate)
	if r.Error != nil {
		out += fmt.Sprintf(" (%s: %s)", r.Error.Code, r.Error.Message)
	}
	return out
}

// TestDispatchWhileTheDaemonIsKilled: at whatever point, a prompt runs once at
// most, and its receipt ends as it was.
func TestDispatchWhileTheDaemonIsKilled(t *testing.T) {
	onVersions(t, func(t *testing.T, version string) {
		c := newCrew(t, version, nil)
		for i, point := range killPoints {
			what := fmt.Sprintf("%s, killed at %q", point.request, point.stage)
			a := &dispatched{tool: "create_agent", in: c.creation(fmt.Sprint("killed-", i), "hello")}
			if point.request == askPrompt {
				a = &dispatched{tool: "send_agent_prompt", in: prompting(fmt.Sprint("killed-", i), c.create(fmt.Sprint("before-", i), "hi"), "hello")}
			}
			a.unprompted = point.request == askCreate && point.stage == ""
			done := make(chan struct{})
			if point.stage != "" {
				c.daemon.order(paseotest.Fault{Request: point.request, Stage: point.stage, Act: paseotest.Crash})
			}
			go func() {
				defer close(done)
				var r agents.Receipt
				if c.Call(t.Context(), a.tool, a.in, &r) == nil {
					a.answered = &r
				}
			}()
			if point.stage == "" {
				time.Sleep(rand.N(20 * time.Millisecond))
				c.daemon.kill()
			}
			<-c.daemon.ended
			c.back()
			<-done
			n := c.truth(what, a, func(ran int) bool { return tells(version, point.request, point.stage, ran) })
			if out := (agents.Result{}); n == 1 {
				eventually(t, "what became of "+what, func() bool {
					return c.Call(t.Context(), "get_request_result", object{"requestId": a.id(), "waitMs": 5000}, &out) == nil && (out.SavedResult || out.Status == "unmatched")
				})
				if heard := said(out); out.Status != "idle" && out.Status != "result_available" && out.Status != "unknown" && out.Status != "unmatched" || heard != "" && !strings.Contains(heard, "hello") {
					t.Errorf("%s: the result is %+v", what, out)
				}
			}
		}
	})
}

// tells reports whether a daemon that was killed can tell of a request: one that
// keeps no receipts has lost what only a timeline showed, and one that does can't
// tell how far it came in the middle.
func tells(version, request string, stage paseotest.Stage, ran int) bool {
	if version == paseotest.V10 {
		return stage != "" && stage != paseotest.Journalled && (request != askPrompt || stage != paseotest.Done)
	}
	return ran == 1 && request == askCreate
}

// TestDispatchWhileTheGatewayIsKilled does the same to the gateway, again and
// again while several callers are at work. The daemon lives, so what ran is found.
func TestDispatchWhileTheGatewayIsKilled(t *testing.T) {
	onVersions(t, func(t *testing.T, version string) {
		c := newCrew(t, version, nil)
		c.gateway.Kill()
		var mu sync.Mutex
		var fresh []*dispatched
		note := func(a *dispatched) *dispatched {
			mu.Lock()
			defer mu.Unlock()
			fresh = append(fresh, a)
			return a
		}
		total, unanswered := 0, 0
		rig.Crash{
			Home: c.home, Rounds: len(killPoints), Longest: 200 * time.Millisecond,
			Work: func(ctx context.Context, round int) {
				if p := killPoints[round]; p.stage != "" { // where kills are likelier to fall
					for range 2 {
						c.daemon.order(paseotest.Fault{Request: p.request, Stage: p.stage, Act: paseotest.Delay, Delay: dawdle})
					}
				}
				var wg sync.WaitGroup
				for worker := range 3 {
					wg.Go(func() { c.work(ctx, fmt.Sprintf("%d-%d", round, worker), note) })
				}
				wg.Wait()
			},
			Check: func(round int) {
				time.Sleep(dawdle) // what the daemon was asked is done
				c.connect()
				for _, a := range fresh {
					total++
					if a.answered == nil {
						unanswered++
					}
					c.truth(fmt.Sprintf("round %d, %s", round, a.id()), a, func(ran int) bool { return ran == 1 || version == paseotest.V10 })
				}
				fresh = nil
			},
		}.Run(t)
		t.Logf("%d dispatches, %d of them without an answer", total, unanswered)
		if unanswered < len(killPoints)/2 {
			t.Error("too little was under way for the test to show anything")
		}
	})
}

// work creates an agent and prompts it until an answer does not come.
func (c *crew) work(ctx context.Context, name string, note func(*dispatched) *dispatched) {
	s, err := c.client.Connect(ctx, "worker", c.client.Token.AccessToken)
	if err != nil {
		return // killed before it began
	}
	defer s.Close()
	do := func(tool string, in object) (agentID string, ok bool) {
		a := note(&dispatched{tool: tool, in: in})
		for {
			var r agents.Receipt
			err := s.Call(ctx, tool, in, &r)
			if err == nil {
				a.answered = &r
				return r.AgentID, r.State == agents.Submitted
			}
			if ctx.Err() != nil || !strings.Contains(err.Error(), "host_unavailable") {
				return "", false
			}
		}
	}
	agentID, ok := do("create_agent", c.creation("made-"+name, "hello"))
	last := "made-" + name
	for n := 0; ok && ctx.Err() == nil; n++ {
		if s.Call(ctx, "wait_for_agent_result", object{"requestId": last, "agentId": agentID, "timeoutMs": 20000}, nil) != nil {
			return
		}
		last = fmt.Sprintf("asked-%s-%d", name, n)
		_, ok = do("send_agent_prompt", prompting(last, agentID, "hello"))
	}
}
