package ssh

import (
	"context"
	"sync"
	"time"

	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/ssh/target"
)

// Host is one machine. Its methods may be called from anywhere at any time.
type Host struct {
	opts           Options
	at             target.Target
	bad            error // why the target can't be read; nothing is tried then
	listeners      []func(hosts.Status)
	resolveTimeout time.Duration
	wake           chan struct{} // try now
	ended          chan struct{} // closed when run has ended

	mu         sync.Mutex
	status     hosts.Status
	downSince  time.Time     // since when it can't be reached; zero when it can
	changed    chan struct{} // closed when status changes
	link       *Link         // while Up or Degraded
	generation uint64
	stop       context.CancelFunc // of run; nil before Start
	closed     bool
}

// New returns a host that is Down. It starts nothing and reads nothing; a target
// that can't be read is the reason that Status gives.
func New(o Options) *Host {
	h := &Host{opts: o.withDefaults(), resolveTimeout: resolveTimeout, wake: make(chan struct{}, 1), ended: make(chan struct{}), changed: make(chan struct{})}
	now := h.opts.Now()
	h.status = hosts.Status{State: hosts.Down, Since: now, CheckedAt: now, Reason: "The gateway has not tried to reach it yet."}
	h.downSince = now
	if h.at, h.bad = target.Parse(o.Target); h.bad != nil {
		h.status.Reason = "Its target in the config " + h.bad.Error() + "."
		h.closed = true
	}
	return h
}

// Start connects, and keeps the host connected until Close or the end of ctx. It
// returns at once; what comes of it is seen in Status, OnChange and Link. Further
// calls do nothing.
func (h *Host) Start(ctx context.Context) {
	h.mu.Lock()
	if h.closed || h.stop != nil {
		h.mu.Unlock()
		return
	}
	ctx, h.stop = context.WithCancel(ctx)
	h.mu.Unlock()
	h.set(hosts.Connecting, "The gateway is connecting to it for the first time.", nil)
	go h.run(ctx)
}

// Close ends the connection and all that runs over it, and waits for that. It
// may be called without Start, and more than once. Afterwards the host is Down.
func (h *Host) Close() error {
	h.mu.Lock()
	h.closed = true
	stop := h.stop
	h.mu.Unlock()
	if stop != nil {
		stop()
		<-h.ended
	}
	return nil
}

// Status is what is known now. It asks nobody and never waits. Its Worker is
// nil: that is known to others.
func (h *Host) Status() hosts.Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.status
}

// Link is the live connection. While one is being made for the first time, or
// anew after a loss, it waits, at most as long as ctx; a host that is Down refuses
// at once. The refusal is [hosts.Unavailable] and says why, and since when; the
// error of ctx is in its chain when it was that which ended the wait. A link that
// is Degraded is returned: it may yet answer.
func (h *Host) Link(ctx context.Context) (*Link, error) {
	for {
		h.mu.Lock()
		status, link, changed := h.status, h.link, h.changed
		h.mu.Unlock()
		if link != nil {
			return link, nil
		}
		refusal := hosts.Unavailable.Newf("Host %s can't be reached (%s since %s). %s", h.opts.HostID, status.State, status.Since.UTC().Format("2006-01-02T15:04:05.000Z"), status.Reason)
		if status.State == hosts.Down {
			return nil, refusal
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, refusal.Because(ctx.Err())
		}
	}
}

// Wake has a host that waits for its next attempt try now, and one that is
// connected be asked whether it still answers. It doesn't wait for that. A host
// whose key has changed or is revoked is tried only if known_hosts has come to
// accept that key, by [Host.Trust] in this process or another.
func (h *Host) Wake() {
	select {
	case h.wake <- struct{}{}:
	default: // it is woken already
	}
}

// OnChange has f called after each change of State or Reason with the status it
// changed to, one call at a time and in order. f must not block. It must be
// called before Start.
func (h *Host) OnChange(f func(hosts.Status)) { h.listeners = append(h.listeners, f) }

// DaemonAddress is where the agent daemon listens on the host, as the target
// says: "tcp" and 127.0.0.1:port, or "unix" and a path. It is for [Link.Dial].
func (h *Host) DaemonAddress() (network, address string) { return h.at.DaemonAddress() }

// set records what is known now and tells the listeners. Only run calls it, and
// Start before it.
func (h *Host) set(state hosts.State, reason string, link *Link) {
	h.mu.Lock()
	old, now := h.status, h.opts.Now()
	s := hosts.Status{State: state, Reason: plain(reason), Since: old.Since, CheckedAt: now}
	if state != old.State {
		s.Since = now
	}
	switch state {
	case hosts.Connecting:
		s.CheckedAt = old.CheckedAt
	case hosts.Up, hosts.Degraded:
		h.downSince = time.Time{}
	case hosts.Down: // an attempt that failed does not make it younger
		if h.downSince.IsZero() {
			h.downSince = now
		}
		s.Since = h.downSince
	}
	h.status, h.link = s, link
	differs := s.State != old.State || s.Reason != old.Reason
	if differs {
		close(h.changed)
		h.changed = make(chan struct{})
	}
	h.mu.Unlock()
	if !differs {
		return
	}
	h.opts.Log.Info("host state", "host", h.opts.HostID, "state", string(s.State), "reason", s.Reason)
	for _, f := range h.listeners {
		f(s)
	}
}

// run keeps the host connected.
func (h *Host) run(ctx context.Context) {
	defer close(h.ended)
	failed := 0
	for ctx.Err() == nil {
		var final func() bool
		link, err := h.connect(ctx)
		if err == nil {
			begun := time.Now()
			lost := h.serve(ctx, link)
			if time.Since(begun) >= h.opts.Held {
				failed = 0
			}
			if ctx.Err() == nil {
				h.set(hosts.Connecting, lost+" It is being connected to anew.", nil)
			}
		} else if ctx.Err() == nil {
			f := asFailure(err, "name")
			final = f.final
			h.opts.Log.Debug("host attempt", "host", h.opts.HostID, "failed", failed+1, "error", err)
			h.set(hosts.Down, f.reason, nil)
		}
		if h.pause(ctx, failed, final) {
			h.set(hosts.Connecting, h.Status().Reason, nil)
		}
		failed++
	}
	h.set(hosts.Down, "The gateway has stopped reaching for it.", nil)
}

// pause waits before the next attempt: a random part of a time that doubles with
// each that failed, or until it is woken, which it reports. With final it does not
// end by time, and not by being woken while final holds.
func (h *Host) pause(ctx context.Context, failed int, final func() bool) (woken bool) {
	longest := h.opts.BackoffMin << min(failed, 16)
	if longest > h.opts.BackoffMax || longest <= 0 {
		longest = h.opts.BackoffMax
	}
	timer := time.NewTimer(time.Duration(h.opts.Rand() * float64(longest)))
	defer timer.Stop()
	due := timer.C
	if final != nil {
		due = nil
	}
	for {
		select {
		case <-due:
			return false
		case <-ctx.Done():
			return false
		case <-h.wake:
			if final == nil || !final() {
				return true
			}
		}
	}
}

// connect makes the next link.
func (h *Host) connect(ctx context.Context) (*Link, error) {
	way, err := h.route(ctx, spec{h.at.User, h.at.Host, h.at.Port}, 0)
	if err != nil {
		return nil, err
	}
	p, err := h.walk(ctx, way, false)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	h.generation++
	generation := h.generation
	h.mu.Unlock()
	return newLink(p, h.opts.HostID, generation), nil
}

// serve is the life of a link: it asks the host now and then whether it still
// answers, and returns why the link is gone, in one sentence.
func (h *Host) serve(ctx context.Context, l *Link) string {
	defer func() { <-l.ended }()
	interval, most := h.keepalive(l.passage.to)
	h.set(hosts.Up, "", l)
	var answer chan struct{} // nil while nothing is asked
	for missed := 0; ; {
		select {
		case <-ctx.Done():
			l.drop("The gateway has closed the connection.")
			return ""
		case <-l.done:
			return l.reason
		case <-answer: // late
			answer, missed = nil, 0
			h.set(hosts.Up, "", l)
			continue
		case <-h.wake:
		case <-time.After(interval):
		}
		if answer == nil {
			answer = l.ping()
		}
		asked := time.Now()
		select {
		case <-ctx.Done():
			continue
		case <-l.done:
			continue
		case <-answer:
			answer = nil
		case <-time.After(h.opts.KeepaliveTimeout):
		}
		// A link that is busy may be late with its answer: whatever it brings will do.
		if answer == nil || l.passage.last.since(asked) {
			missed = 0
			h.set(hosts.Up, "", l)
			continue
		}
		if missed++; missed >= most {
			l.drop("The host stopped answering, and the connection was given up.")
			continue
		}
		h.set(hosts.Degraded, "The host has stopped answering; the connection is not given up yet.", l)
	}
}

// keepalive is how often the host is asked, and how often in vain.
func (h *Host) keepalive(s *settings) (interval time.Duration, most int) {
	interval, most = h.opts.KeepaliveInterval, h.opts.KeepaliveCount
	if s.aliveInterval > 0 {
		interval = min(interval, s.aliveInterval)
		if s.aliveCount > 0 {
			most = min(most, s.aliveCount)
		}
	}
	return interval, most
}

// ping asks the host whether it is there; the channel is closed when it answers.
func (l *Link) ping() chan struct{} {
	answer := make(chan struct{})
	go func() {
		if _, _, err := l.client.SendRequest("keepalive@openssh.com", true, nil); err == nil {
			close(answer) // yes or no, it is an answer
		}
	}()
	return answer
}
