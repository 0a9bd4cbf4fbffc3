package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"agentrelay/internal/fault"
	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/worker/wire"
)

// Client is the Direct tools of another machine, and that machine as the
// directory knows it. It is safe for concurrent use.
type Client struct {
	o       Options
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	work    sync.WaitGroup
	bulk    chan struct{} // places for channels of whole files
	pending pending

	mu       sync.Mutex
	current  *session
	attempt  *attempt        // to start a worker, under way
	failure  *fault.Error    // why the last attempt failed; nil after one that didn't
	failedAt time.Time       // of failure
	next     time.Time       // no attempt before
	delay    time.Duration   // the last one
	worker   *hosts.Worker   // the last one seen
	news     chan struct{}   // closed when the connection or the worker changes
	stalled  *hosts.Status   // the connection does not answer
	reads    context.Context // ends when the connection stops answering
	endReads context.CancelCauseFunc
	closed   bool
}

var (
	_ hosts.Host      = (*Client)(nil)
	_ hosts.Workspace = (*Client)(nil)
)

const (
	// The wait before a worker that does not stay is started again doubles
	// between these.
	defaultMinDelay, defaultMaxDelay = 500 * time.Millisecond, 30 * time.Second
	// held is how long a worker must have lived for the wait to start again.
	held = time.Minute
	// maxBulk is how many whole files are under way at once. OpenSSH allows ten
	// sessions on a connection, of which the worker is one.
	maxBulk = 6
	// defaultStallTimeout is how long a worker may send or take nothing of a whole
	// file, and for how long it may put one in its place when it has it all. The file
	// holds space and a turn here until then.
	defaultStallTimeout = 2 * time.Minute
	// closeTimeout is how long a worker may take to end by itself.
	closeTimeout = 5 * time.Second
)

// New returns the client of a host. It starts nothing. [Client.Close] must be
// called.
func New(o Options) *Client {
	if o.StartTimeout == 0 {
		o.StartTimeout = 50 * time.Second
	}
	if o.SettleTimeout == 0 {
		o.SettleTimeout = 30 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Version == "" {
		o.Version = wire.ProgramVersion()
	}
	if o.protocol == 0 {
		o.protocol = wire.Protocol
	}
	if o.stallTimeout == 0 {
		o.stallTimeout = defaultStallTimeout
	}
	if o.maxDelay == 0 {
		o.minDelay, o.maxDelay = defaultMinDelay, defaultMaxDelay
	}
	o.Log = o.Log.With("host", o.ID)
	o.Settings.HostID = o.ID
	c := &Client{o: o, bulk: make(chan struct{}, maxBulk), news: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.reads, c.endReads = context.WithCancelCause(c.ctx)
	return c
}

// Close ends the worker, when it has finished what it changes, and everything
// that waits for it. Commands go on.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	s := c.current
	c.mu.Unlock()
	if s != nil {
		s.retire(closeTimeout)
	}
	c.cancel()
	c.work.Wait()
}

// Renew has the next call start the worker anew, as after an installation. The
// present one ends when it has finished what it changes.
func (c *Client) Renew() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next, c.delay = time.Time{}, 0
	s := c.current
	if s == nil || c.closed {
		return
	}
	c.current = nil
	s.renewed = true
	c.work.Go(func() { s.retire(closeTimeout) })
}

// LinkChanged tells the client what became of the connection: it is for OnChange
// of package ssh. It does not block.
func (c *Client) LinkChanged(now hosts.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stalled = nil
	if now.State == hosts.Degraded {
		c.stalled = &now
		c.endReads(errStalled)
	}
	if now.State == hosts.Up {
		if c.reads.Err() != nil && !c.closed {
			c.reads, c.endReads = context.WithCancelCause(c.ctx)
		}
		c.next = time.Time{} // another connection, another attempt
	}
	c.tell()
}

// errStalled is why reads end on a connection that does not answer.
var errStalled = errors.New("the connection has stopped answering")

// tell wakes those who wait for a change. c.mu is held.
func (c *Client) tell() {
	close(c.news)
	c.news = make(chan struct{})
}

// ID implements [hosts.Host].
func (c *Client) ID() string { return c.o.ID }

// Name implements [hosts.Host].
func (c *Client) Name() string { return c.o.Name }

// Transport implements [hosts.Host].
func (c *Client) Transport() string { return "ssh" }

// DirectConfigured implements [hosts.Host].
func (c *Client) DirectConfigured() bool { return len(c.o.Settings.Projects) > 0 }

// Status implements [hosts.Host]. The state is that of the connection; of a host
// that is up, Reason says why its projects can't be used.
func (c *Client) Status() hosts.Status {
	s := c.o.Links.Status()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.worker != nil {
		w := *c.worker
		s.Worker = &w
	}
	if s.State == hosts.Up && c.failure != nil && c.DirectConfigured() {
		s.Reason = c.failure.Message
	}
	return s
}

// impatience is how old a failure must be for a probe to try again before it is
// time.
const impatience = time.Second

// Probe implements [hosts.Host]: it has the worker started, if there is anything
// for it to do.
func (c *Client) Probe(ctx context.Context) hosts.Status {
	if c.DirectConfigured() {
		c.mu.Lock()
		if c.o.Now().Sub(c.failedAt) > impatience {
			c.next = time.Time{}
		}
		c.mu.Unlock()
		_, _ = c.session(ctx) // the status says why not
	}
	return c.Status()
}

// At implements [hosts.Host]. A host without projects needs no worker to say so.
func (c *Client) At(ctx context.Context) (hosts.Workspace, error) {
	if !c.DirectConfigured() {
		return c, nil
	}
	if _, err := c.session(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// attempt to start a worker.
type attempt struct {
	done chan struct{} // closed when it has ended
	s    *session
	err  error
}

// session returns the worker, which it has started if there is none. It waits
// within ctx.
func (c *Client) session(ctx context.Context) (*session, error) {
	c.mu.Lock()
	switch {
	case c.closed:
		c.mu.Unlock()
		return nil, hosts.Unavailable.New("The gateway is stopping.")
	case c.stalled != nil:
		status := *c.stalled
		c.mu.Unlock()
		return nil, c.away(status)
	case c.current != nil && c.current.live():
		defer c.mu.Unlock()
		return c.current, nil
	case c.failure != nil && c.o.Now().Before(c.next):
		defer c.mu.Unlock()
		return nil, c.failure
	}
	a := c.attempt
	if a == nil {
		a = &attempt{done: make(chan struct{})}
		c.attempt = a
		c.work.Go(func() { c.try(a) })
	}
	c.mu.Unlock()
	select {
	case <-a.done:
		return a.s, a.err
	case <-ctx.Done():
		return nil, c.away(c.o.Links.Status()).Because(ctx.Err())
	}
}

// try starts a worker.
func (c *Client) try(a *attempt) {
	ctx, cancel := context.WithTimeout(c.ctx, c.o.StartTimeout)
	defer cancel()
	link, err := c.o.Links.Link(ctx)
	var s *session
	if err == nil {
		s, err = c.start(ctx, link)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(a.done)
	c.attempt = nil
	if err != nil {
		a.err = err
		if link != nil {
			c.failed(err)
		}
		c.tell()
		return
	}
	a.s, c.current, c.failure = s, s, nil
	c.worker = &s.worker
	c.tell()
	c.work.Go(func() { c.keep(s) })
}

// failed notes that the worker can't be used over a connection that can. c.mu is
// held.
func (c *Client) failed(err error) {
	c.failure = fault.From(err)
	c.failedAt = c.o.Now()
	c.delay = min(max(2*c.delay, c.o.minDelay), c.o.maxDelay)
	c.next = c.failedAt.Add(c.delay)
	c.o.Log.Warn("the worker can't be used", "error", err, "again", c.delay)
}

// keep waits for the end of a worker.
func (c *Client) keep(s *session) {
	began := c.o.Now()
	s.wait()
	c.mu.Lock()
	if c.current == s {
		c.current = nil
	}
	c.mu.Unlock()
	reason := s.reason()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.o.Now().Sub(began) > held {
		c.delay = 0
	}
	switch {
	case c.closed, s.renewed:
	case reason == nil:
		c.o.Log.Info("the worker's connection was lost")
	case c.current == nil && c.attempt == nil:
		c.failed(reason)
		if c.delay == c.o.minDelay {
			c.next = time.Time{} // it stayed until now
		}
	default:
		c.o.Log.Warn("the worker ended and was started again", "error", reason)
	}
	c.tell()
}

// away refuses what needs a host that isn't there.
func (c *Client) away(s hosts.Status) *fault.Error {
	switch {
	case s.State == hosts.Up:
		return hosts.Unavailable.Newf("The worker on %s does not answer in time.", c.o.Name)
	case s.State == hosts.Connecting:
		return hosts.Unavailable.Newf("%s is being connected to, since %s.%s", c.o.Name, stamp(s.Since), spaced(s.Reason))
	case s.State == hosts.Degraded:
		return hosts.Unavailable.Newf("%s has stopped answering, since %s.%s", c.o.Name, stamp(s.Since), spaced(s.Reason))
	}
	return hosts.Unavailable.Newf("%s can't be reached since %s.%s", c.o.Name, stamp(s.Since), spaced(s.Reason))
}

func spaced(reason string) string {
	if reason == "" {
		return ""
	}
	return " " + reason
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
