package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/agents/paseo/paseotest"
)

const (
	// crewSize agents are known, of which crewBusy are at work, and crewWaiting
	// calls wait for these.
	crewSize, crewBusy, crewWaiting = 100, 20, 50
	// crewEvents is over how many events of agents memory must stay flat.
	crewEvents = 10_000
	// crewGrown is how much more memory after them counts as growth, in bytes.
	// Between two collections a busy gateway's moves by about this much.
	crewGrown = 4e6
	// sampling is the pause between two looks at the memory of a busy gateway.
	sampling = 100 * time.Millisecond
)

// crew is a gateway whose daemon, in this process, has many agents.
type crew struct {
	*workspace
	daemon *paseotest.Daemon
	agents []string
}

// dispatched measures what a crowd of agents at work costs who asks for one.
func dispatched(ctx context.Context, b *bench) ([]row, error) {
	c, err := newCrew(ctx, b)
	if err != nil {
		return nil, err
	}
	defer c.daemon.Terminate()
	defer c.close()
	alone, err := c.ask(b)
	if err != nil {
		return nil, err
	}
	stop, err := c.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	among, err := c.ask(b)
	if err != nil {
		return nil, err
	}
	connections := c.daemon.Opened()
	grown, err := c.grows(ctx)
	if err != nil {
		return nil, err
	}
	return []row{
		row{
			name:     fmt.Sprintf("get_agent_status among %d agents, %d at work, %d calls waiting, p99", crewSize, crewBusy, crewWaiting),
			measured: milli(among), against: "all idle, nobody waiting: " + milli(alone),
		}.atMost(among, 50e-3, "50 ms"),
		row{name: "connections to their daemon", measured: fmt.Sprint(connections)}.atMost(float64(connections), 1, "1"),
		row{name: fmt.Sprintf("RSS growth by %d events of theirs", crewEvents), measured: megabytes(grown)}.atMost(grown, crewGrown, megabytes(crewGrown)),
	}, nil
}

func newCrew(ctx context.Context, b *bench) (*crew, error) {
	h, err := newHome(b.gateway, b.dir)
	if err != nil {
		return nil, err
	}
	c := &crew{workspace: &workspace{home: h, dir: filepath.Join(h.dir, "project")}}
	state := filepath.Join(h.dir, "daemon")
	if err := errors.Join(os.Mkdir(c.dir, 0o755), os.Mkdir(state, 0o700)); err != nil {
		return nil, err
	}
	if c.daemon, err = paseotest.New(paseotest.Options{Dir: state}); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	if err := c.daemon.Serve(l); err != nil {
		return nil, err
	}
	err = h.configure(map[string]any{"allowedRoots": []string{c.dir}, "upstreamUrl": "http://" + l.Addr().String()})
	if err == nil {
		c.program, err = h.serve()
	}
	if err != nil {
		c.daemon.Terminate()
		return nil, err
	}
	if err = c.connect(ctx); err == nil {
		err = c.hire(ctx)
	}
	if err != nil {
		c.program.stop()
		c.daemon.Terminate()
		return nil, err
	}
	return c, nil
}

// hire makes the agents, and waits until each has done its first prompt.
func (c *crew) hire(ctx context.Context) error {
	var place struct{ WorkspaceID string }
	if err := c.session.Call(ctx, "create_workspace", map[string]any{"isolation": "local", "path": c.dir}, &place); err != nil {
		return err
	}
	for i := range crewSize {
		id := fmt.Sprint("agent-", i)
		var made struct{ AgentID string }
		err := c.session.Call(ctx, "create_agent", map[string]any{
			"requestId": id, "workspaceId": place.WorkspaceID, "title": "Bench", "provider": "fake/echo", "initialPrompt": sentence,
		}, &made)
		if err == nil {
			err = c.session.Call(ctx, "wait_for_agent_result", map[string]any{"requestId": id, "agentId": made.AgentID, "timeoutMs": 20000}, nil)
		}
		if err != nil {
			return err
		}
		c.agents = append(c.agents, made.AgentID)
	}
	return nil
}

// ask is p99 of the status of one agent after the other, in seconds.
func (c *crew) ask(b *bench) (float64, error) {
	one, err := gather(c.home.mcp, 1)
	if err != nil {
		return 0, err
	}
	defer one.close()
	turn := 0
	times, err := one.calls(b.rounds*b.calls, func(int) []byte {
		turn++
		return c.home.mcp.request("get_agent_status", map[string]any{"agentId": c.agents[turn%crewSize]})
	})
	return percentile(seconds(times), 99), err
}

// begin puts some of the agents to work, a thousand events a second, and has
// clients wait for them until stop.
func (c *crew) begin(ctx context.Context) (stop func(), err error) {
	for i, agentID := range c.agents[:crewBusy] {
		err := c.session.Call(ctx, "send_agent_prompt", map[string]any{"requestId": fmt.Sprint("busy-", i), "agentId": agentID, "prompt": "stream 1000000 20ms"}, nil)
		if err != nil {
			return nil, err
		}
	}
	waiting, err := gather(c.home.mcp, crewWaiting)
	if err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	for i, w := range waiting {
		wait := c.home.mcp.request("wait_for_agent_result", map[string]any{"requestId": fmt.Sprint("busy-", i%crewBusy), "agentId": c.agents[i%crewBusy], "timeoutMs": 20000})
		wg.Go(func() {
			for w.call(wait) == nil {
			}
		})
	}
	return func() {
		waiting.close()
		wg.Wait()
	}, nil
}

// grows is how much more memory the gateway takes, at its most, while the second
// thousands of events come than while the first do.
func (c *crew) grows(ctx context.Context) (float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	// Somebody else counts: to read a page costs the more, the longer a run is.
	other := paseo.New(paseo.Options{Dial: c.daemon.Dial})
	running.Go(func() { other.Run(ctx) })
	events := other.Subscribe()
	defer events.Close()
	if err := other.Watch(ctx, c.agents[:crewBusy]); err != nil {
		return 0, err
	}
	var most [2]float64
	for i := range most {
		looked := time.Time{}
		for come := 0; come < crewEvents; {
			e, err := events.Next(ctx)
			if err != nil {
				return 0, err
			}
			if _, ok := e.(paseo.RowAdded); ok {
				come++
			}
			if time.Since(looked) < sampling {
				continue
			}
			looked = time.Now()
			rss, err := c.program.rss()
			if err != nil {
				return 0, err
			}
			most[i] = max(most[i], rss)
		}
	}
	return most[1] - most[0], nil
}
