package paseotest

import (
	"errors"
	"slices"
	"time"
)

// Stage is a point in the life of a request.
type Stage string

// The stages, in order. Journalled and Done lie between a receipt's two states
// where the version has receipts.
const (
	Received   Stage = "received"   // nothing is done
	Journalled Stage = "journalled" // a receipt may be pending; nothing else is done
	Done       Stage = "done"       // the effect is there; a receipt may still be pending
	Completed  Stage = "completed"  // all is done, the answer is not sent
)

// Act is what happens there.
type Act string

// The acts.
const (
	Silence Act = "silence" // stop here and never answer
	Cut     Act = "cut"     // stop here and break the connection
	Crash   Act = "crash"   // the daemon dies here, as by SIGKILL
	Delay   Act = "delay"   // wait, then go on
	Refuse  Act = "refuse"  // stop here and answer with Error
)

// Fault is something to go wrong once.
type Fault struct {
	// Request is the type of the request that it strikes, "" any.
	Request string `json:"request"`
	// Stage is where; Received by default.
	Stage Stage `json:"stage"`
	Act   Act   `json:"act"`
	// Skip lets so many requests pass first.
	Skip int `json:"skip"`
	// Delay is for Delay, Error for Refuse.
	Delay time.Duration `json:"delay"`
	Error string        `json:"error"`
}

// Order adds a fault to those that wait for their request.
func (d *Daemon) Order(f Fault) {
	if f.Stage == "" {
		f.Stage = Received
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = append(d.faults, f)
}

// CutAfter breaks every present connection after so many more frames were sent
// over it.
func (d *Daemon) CutAfter(frames int) {
	d.mu.Lock()
	p := d.proc
	d.mu.Unlock()
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.sessions {
		s.cutAfter(frames)
	}
}

// errNoAnswer ends a request that is never answered.
var errNoAnswer = errors.New("no answer")

// refusal is an ordered refusal.
type refusal struct{ text string }

func (r *refusal) Error() string { return r.text }

// strike lets the fault that is due here happen.
func (p *process) strike(s *session, kind string, stage Stage) error {
	f, due := p.d.takeFault(kind, stage)
	if !due {
		return nil
	}
	switch f.Act {
	case Delay:
		select {
		case <-time.After(f.Delay):
			return nil // also when the client is gone by then
		case <-p.ctx.Done():
		}
	case Cut:
		s.breakOff()
	case Crash:
		p.d.crash(p)
	case Refuse:
		return &refusal{f.Error}
	}
	return errNoAnswer
}

func (d *Daemon) takeFault(kind string, stage Stage) (Fault, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for n := range d.faults {
		f := &d.faults[n]
		if f.Stage != stage || f.Request != "" && f.Request != kind {
			continue
		}
		if f.Skip > 0 {
			f.Skip--
			continue
		}
		taken := *f
		d.faults = slices.Delete(d.faults, n, n+1)
		return taken, true
	}
	return Fault{}, false
}

// struck reports whether a fault waits for this type, so that a slow one can be
// kept from holding up the session.
func (d *Daemon) struck(kind string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.ContainsFunc(d.faults, func(f Fault) bool { return f.Request == "" || f.Request == kind })
}
