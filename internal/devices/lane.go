package devices

import (
	"slices"
	"time"

	"agentrelay/internal/devices/wire"
)

// call is an open call in its lane. Its fields below the line are guarded by the
// mutex of the service.
type call struct {
	id, device, tool, agent, reason, argsHash string
	args                                      []byte

	sent     bool // it was, perhaps only in part, written to some link
	sentOn   *link
	deadline time.Time
	phase    string
	over     bool
}

// lane is the queue of one device. Its goroutine lives while there are open calls.
type lane struct {
	device string
	calls  []*call // the first is in flight once it is sent
	wake   chan struct{}
}

func (l *lane) nudge() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// enqueue puts an open call into the lane of its device.
func (s *Service) enqueue(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return // the next process reads it from the store
	}
	l := s.lanes[c.device]
	if l == nil {
		l = &lane{device: c.device, wake: make(chan struct{}, 1)}
		s.lanes[c.device] = l
		s.wg.Add(1)
		go s.runLane(l)
	}
	l.calls = append(l.calls, c)
	l.nudge()
}

// ended is called once the end of a call is stored.
func (s *Service) ended(id, device string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.watches[id]; w != nil && !w.over {
		w.over = true
		close(w.done)
	}
	l := s.lanes[device]
	if l == nil {
		return
	}
	for _, c := range l.calls {
		if c.id == id {
			c.over = true
		}
	}
	l.nudge()
}

// step is what a lane does next.
type step struct {
	send, expire *call
	on           *link
	until        time.Time // wait until then at most
	stop         bool
}

// next decides it.
func (s *Service) next(l *lane) step {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.calls = slices.DeleteFunc(l.calls, func(c *call) bool { return c.over })
	if len(l.calls) == 0 {
		delete(s.lanes, l.device)
		return step{stop: true}
	}
	now := s.now()
	first := slices.MinFunc(l.calls, func(a, b *call) int { return a.deadline.Compare(b.deadline) })
	if !now.Before(first.deadline) {
		return step{expire: first}
	}
	c, link := l.calls[0], s.links[l.device]
	if link != nil && c.sentOn != link {
		if !c.sent || link.resume {
			return step{send: c, on: link}
		}
		c.sentOn = link // it may have been run: this device is not asked twice
	}
	return step{until: first.deadline}
}

func (s *Service) runLane(l *lane) {
	defer s.wg.Done()
	for s.ctx.Err() == nil {
		step := s.next(l)
		switch {
		case step.stop:
			return
		case step.send != nil:
			s.send(step.send, step.on)
		case step.expire != nil:
			s.expire(step.expire)
		default:
			timer := time.NewTimer(step.until.Sub(s.now()))
			select {
			case <-l.wake:
			case <-timer.C:
			case <-s.ctx.Done():
			}
			timer.Stop()
		}
	}
}

// retryStore is the pause after trouble of the store.
const retryStore = 500 * time.Millisecond

func (s *Service) pause(err error, what string, c *call) {
	if s.ctx.Err() != nil {
		return
	}
	s.log.Error(what, "call", c.id, "device", c.device, "error", err)
	select {
	case <-time.After(retryStore):
	case <-s.ctx.Done():
	}
}

// send sends a call for the first time, or again.
func (s *Service) send(c *call, on *link) {
	again := c.sent
	if !again {
		deadline := s.now().Add(s.times.Budget)
		won, err := s.markSent(s.ctx, c.id, deadline)
		if err != nil {
			s.pause(err, "a call of a device could not be marked as sent and is tried again", c)
			return
		}
		s.mu.Lock()
		c.sent, c.deadline, c.over = true, deadline, c.over || !won
		s.mu.Unlock()
		if !won {
			return
		}
	}
	s.mu.Lock()
	c.sentOn, c.phase = on, "sent"
	s.mu.Unlock()
	on.sendCall(c, again)
}

// frame is the call as it is sent now.
func (s *Service) frame(c *call, again bool) wire.Frame {
	return wire.Frame{
		Type: wire.Call, ID: wire.ID(c.id), Ref: c.id, Tool: c.tool, Args: c.args, Reason: c.reason, Agent: c.agent,
		DeadlineMs: max(1, c.deadline.Sub(s.now()).Milliseconds()), ArgsSHA256: c.argsHash, Resent: again,
	}
}

// expire ends a call whose time is over, and tells its device.
func (s *Service) expire(c *call) {
	s.mu.Lock()
	link := s.links[c.device]
	code := TimedOut.Code
	switch {
	case link == nil && c.sent:
		code = Lost.Code
	case link == nil:
		code = NotConnected.Code
	}
	s.mu.Unlock()
	won, err := s.end(s.ctx, c.id, c.device, ending{code: code})
	if err != nil {
		s.pause(err, "a call of a device could not be ended and is tried again", c)
		return
	}
	s.mu.Lock()
	c.over = true
	s.mu.Unlock()
	if won && link != nil && c.sent {
		link.deny(c.id, wire.WhyTimeout)
	}
}

// withdraw ends a call because its caller left.
func (s *Service) withdraw(id, device string) {
	if !s.begin() {
		return
	}
	defer s.wg.Done()
	won, err := s.end(s.ctx, id, device, ending{code: Cancelled.Code})
	if err != nil {
		s.log.Error("a call of a device could not be withdrawn", "call", id, "device", device, "error", err)
		return
	}
	s.mu.Lock()
	link := s.links[device]
	s.mu.Unlock()
	if won && link != nil {
		link.deny(id, wire.WhyCancelled)
	}
}

// progress notes where a device says that its call stands.
func (s *Service) progress(device, id, phase string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lanes[device]
	if l == nil || (phase != wire.PhaseApproval && phase != wire.PhaseRunning) {
		return
	}
	for _, c := range l.calls {
		if c.id == id && c.sent {
			c.phase = phase
		}
	}
}

// inFlight is the id of the call that a device was sent and has not answered.
func (s *Service) inFlight(device string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.lanes[device]; l != nil && len(l.calls) > 0 && l.calls[0].sent && !l.calls[0].over {
		return l.calls[0].id
	}
	return ""
}
