package paseo

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"
)

// Run keeps the connection until ctx ends, and returns when all of its goroutines
// have. It is called once. Calls then end as [NotSent], and subscriptions with
// [ErrClosed] when they are empty.
func (c *Client) Run(ctx context.Context) {
	defer c.stop()
	for failures := 0; ctx.Err() == nil; failures++ {
		c.note(func(s *Status) {
			if s.Code != NotTried {
				s.Code, s.Reason = Unreachable, "Connecting to the daemon."
			}
			s.State, s.Found = Connecting, nil
		})
		began := time.Now()
		cn, t := c.connect(ctx)
		if t == nil {
			t = c.live(ctx, cn)
		}
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > c.o.BackoffMax {
			failures = 0
		}
		c.logTrouble(t)
		c.note(func(s *Status) { s.State, s.Code, s.Reason = Down, t.code, t.reason })
		c.pause(ctx, t.code, failures)
	}
}

// logTrouble writes a line for each new kind of failure, not for each attempt.
func (c *Client) logTrouble(t *trouble) {
	if c.logged == t.code {
		return
	}
	c.logged = t.code
	c.o.Log.Warn("no connection to the agent daemon", slog.String("host", c.o.HostID), slog.String("code", string(t.code)), slog.Any("cause", t.cause))
}

// live publishes a connection and serves it to its end.
func (c *Client) live(ctx context.Context, cn *conn) *trouble {
	c.mu.Lock()
	c.status.Generation++
	cn.generation = c.status.Generation
	c.mu.Unlock()
	c.publish(Connected{cn.generation, cn.info}, 0)
	c.note(func(s *Status) {
		c.conn = cn
		s.State, s.Code, s.Reason, s.Info = Up, "", "", &cn.info
	})
	c.logged = ""
	c.o.Log.Info("connected to the agent daemon", slog.String("host", c.o.HostID), slog.String("version", cn.info.Version))
	t := cn.serve(ctx)
	c.note(func(s *Status) {
		c.conn = nil
		s.State, s.Code, s.Reason = Down, t.code, t.reason
	})
	c.publish(Disconnected{cn.generation, t.code, t.reason}, 0)
	return t
}

// note changes the status and wakes those who wait for that.
func (c *Client) note(change func(*Status)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.status.State
	change(&c.status)
	c.status.CheckedAt = c.o.Now()
	if c.status.State != before {
		c.status.Since = c.status.CheckedAt
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

// setSilent and setAlive move a connection between Up and Degraded.
func (c *Client) setSilent(cn *conn) {
	c.mu.Lock()
	silent := c.conn == cn && c.status.State == Up
	c.mu.Unlock()
	if silent {
		c.note(func(s *Status) {
			s.State, s.Code, s.Reason = Degraded, NoAnswer, "The daemon has not answered for a while."
		})
	}
}

func (c *Client) setAlive(cn *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != cn {
		return
	}
	if c.status.State == Degraded {
		c.status.State, c.status.Code, c.status.Reason, c.status.Since = Up, "", "", c.o.Now()
	}
}

// pause waits between two attempts: with full jitter, less when somebody asks,
// and for another daemon than the pinned one until it is accepted.
func (c *Client) pause(ctx context.Context, code Code, failures int) {
	longest := c.o.BackoffMin << min(failures, 16)
	if longest > c.o.BackoffMax || longest <= 0 {
		longest = c.o.BackoffMax
	}
	timer := time.NewTimer(time.Duration(c.o.Rand() * float64(longest)))
	defer timer.Stop()
	elapsed := timer.C
	if code == IdentityDiffers {
		elapsed = nil
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-elapsed:
			return
		case <-c.nudge:
			if code != IdentityDiffers || c.accepted() {
				return
			}
		}
	}
}

// accepted reports whether the daemon that answered is no longer refused.
func (c *Client) accepted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := c.status.Found
	return c.pinned == "" || found == nil || found.ServerID == c.pinned
}

// stop ends everything that waits for this client.
func (c *Client) stop() {
	c.note(func(s *Status) { s.State, s.Code, s.Reason = Down, Stopped, "The gateway is stopping." })
	c.mu.Lock()
	c.closed = true
	subs := slices.Collect(maps.Keys(c.subs))
	c.mu.Unlock()
	for _, s := range subs {
		s.end(false)
	}
}

// Watch sets the agents whose turns and timeline rows are wanted, in place of
// those before; the set is kept over reconnections. When it returns nil, the
// events of these agents come from now on, or, without a connection, from the
// next Restored on; when it fails, the set is kept all the same, and is in force
// after the next Restored. Read an agent's timeline after Watch, not before.
func (c *Client) Watch(ctx context.Context, agentIDs []string) error {
	c.watching.Lock()
	defer c.watching.Unlock()
	set := make(map[string]bool, len(agentIDs))
	for _, id := range agentIDs {
		set[id] = true
	}
	c.mu.Lock()
	c.watched = set
	cn := c.conn
	c.mu.Unlock()
	if cn == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.o.CallTimeout)
	defer cancel()
	return cn.watch(ctx, set)
}

func (c *Client) isWatched(agentID string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.watched[agentID]
}

// watch tells the daemon whom to stream. Old daemons stream everybody.
func (cn *conn) watch(ctx context.Context, set map[string]bool) error {
	if !cn.info.SelectiveTimeline() {
		return nil
	}
	ids := slices.AppendSeq([]string{}, maps.Keys(set))
	slices.Sort(ids)
	_, err := cn.call(ctx, "agent.timeline.set_subscription.request", fields{"agentIds": ids})
	return err
}

// resync puts the subscriptions of a new connection in force and says so.
func (cn *conn) resync(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, cn.c.o.CallTimeout)
	defer cancel()
	process := cn.compareProcess(ctx)
	errWatch := cn.rewatch(ctx)
	// One row is enough: what is wanted is the subscription to agent_update.
	_, errList := cn.call(ctx, "fetch_agents_request", fields{
		"filter": fields{"includeArchived": true}, "page": fields{"limit": 1},
		"subscribe": fields{"subscriptionId": cn.c.o.ClientID},
	})
	err := errors.Join(errWatch, errList)
	var no *Rejected
	if err != nil && !errors.As(err, &no) {
		cn.end(&trouble{NoAnswer, "The daemon did not put the subscriptions in force.", err})
		return
	}
	cn.c.publish(Discontinuity{Reason: Restored, Process: process}, 0)
	if err != nil {
		cn.c.o.Log.Warn("the agent daemon refused a subscription", slog.String("host", cn.c.o.HostID), slog.Any("cause", err))
		cn.c.publish(Discontinuity{Reason: SubscriptionError}, 0)
	}
}

func (cn *conn) rewatch(ctx context.Context) error {
	cn.c.watching.Lock()
	defer cn.c.watching.Unlock()
	cn.c.mu.Lock()
	set := cn.c.watched
	cn.c.mu.Unlock()
	return cn.watch(ctx, set)
}

// compareProcess asks for the daemon's process, where it tells, and compares it
// with the one before.
func (cn *conn) compareProcess(ctx context.Context) ProcessChange {
	if !cn.info.StatusRPC() {
		return ProcessUnknown
	}
	payload, err := cn.call(ctx, "daemon.get_status.request", nil)
	if err != nil {
		return ProcessUnknown
	}
	now, err := decodeDaemonStatus(payload)
	if err != nil || now.PID == 0 {
		return ProcessUnknown
	}
	cn.c.mu.Lock()
	before := cn.c.process
	cn.c.process = &now
	cn.c.mu.Unlock()
	switch {
	case before == nil:
		return ProcessUnknown
	case before.PID == now.PID && before.StartedAt == now.StartedAt:
		return ProcessSame
	}
	return ProcessChanged
}
