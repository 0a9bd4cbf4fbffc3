package device

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"agentrelay/internal/device/approval"
	"agentrelay/internal/device/plugins"
	"agentrelay/internal/devices/wire"
	"agentrelay/internal/direct/commands/process"
)

const (
	// minRun is the least time that a tool gets: with less left of the budget a call
	// isn't begun.
	minRun = 5 * time.Second
	// minAsk is the least time that a human is given: nobody reads faster.
	minAsk = time.Second
	// answerTime is kept of the budget for the result's way back.
	answerTime = time.Second
	// maxOpen bounds the calls that are open at a time. A relay sends one after the
	// other.
	maxOpen = 16
	// comeBack is how long a relay that is there again has to send an open call again,
	// before it is taken for gone.
	comeBack = 10 * time.Second
)

// call is one call that has not ended.
type call struct {
	frame    wire.Frame
	args     json.RawMessage
	print    string // what was asked, as a hash
	tool     *plugins.Tool
	set      *plugins.Set
	approval *approval.Approval
	ctx      context.Context
	cancel   context.CancelCauseFunc
	begun    time.Time
	deadline time.Time // of the budget

	// Under the device's lock:
	phase string
	until time.Time
	link  *link // over which it came last
}

// onCall takes a call that came over l. It may have come before.
func (d *Device) onCall(l *link, f wire.Frame) {
	args, err := wire.Canonical(f.Args)
	hash := wire.HashArgs(args)
	print := hash + ":" + f.Tool
	if err != nil || f.ArgsSHA256 != "" && f.ArgsSHA256 != hash {
		l.send(result(f.Ref, false, "the arguments are not those that the relay named; nothing was run"))
		return
	}
	if former, known := d.o.Journal.Find(f.Ref); known && former.Print != print {
		l.send(result(f.Ref, false, "this call has the id of another one; nothing was run"))
		return
	} else if known && former.Ended {
		if former.Result == nil {
			l.send(result(f.Ref, false, "this call ended before, and its result was acknowledged; nothing was run"))
			return
		}
		l.sendRaw(former.Result)
		return
	}
	d.mu.Lock()
	if c := d.calls[f.Ref]; c != nil {
		same := c.print == print
		if same {
			c.link = l
			d.turn()
		}
		phase := c.phase
		d.mu.Unlock()
		if !same {
			l.send(result(f.Ref, false, "this call has the id of another one; nothing was run"))
			return
		}
		l.progress(f.Ref, phase)
		return
	}
	if len(d.calls) >= maxOpen || d.revoked.Load() {
		d.mu.Unlock()
		l.send(result(f.Ref, false, "the device is busy; nothing was run"))
		return
	}
	c := d.newCall(l, f, args, print)
	d.calls[f.Ref] = c
	d.turn()
	d.work.Go(func() { d.serve(c) })
	d.mu.Unlock()
}

func (d *Device) newCall(l *link, f wire.Frame, args json.RawMessage, print string) *call {
	budget := wire.CallBudget
	if f.DeadlineMs > 0 {
		budget = min(budget, time.Duration(f.DeadlineMs)*time.Millisecond)
	}
	c := &call{frame: f, args: args, print: print, set: d.set, tool: d.set.Find(f.Tool), begun: d.o.Now(), link: l}
	c.deadline = c.begun.Add(budget)
	c.until = c.deadline
	c.ctx, c.cancel = context.WithCancelCause(d.running)
	q := approval.Question{Device: d.o.Identity.Device, Tool: f.Tool, Agent: f.Agent, Reason: f.Reason, Args: args}
	if c.tool != nil {
		q.Hint, q.Requires, q.Digest = c.tool.Hint, c.tool.Requires, c.tool.Digest
	}
	c.approval = approval.New(q)
	return c
}

// left is what is left of the budget. When the machine slept, only the wall clock
// knows; when the wall clock was set back, only the monotonic one.
func (d *Device) left(c *call) time.Duration {
	now := d.o.Now()
	return min(c.deadline.Sub(now), c.deadline.Round(0).Sub(now.Round(0)))
}

// askTime is how long a question may stand, so that an answer in the last moment
// leaves time to run.
func askTime(policy, left time.Duration) time.Duration { return min(policy, left-minRun) }

// runTime is how long a tool may run, so that its result still arrives in time.
func runTime(tool, left time.Duration) time.Duration { return min(tool, left-answerTime) }

// serve takes a call to its end.
func (d *Device) serve(c *call) {
	defer c.cancel(nil)
	f := d.outcome(c)
	raw, err := wire.Encode(f)
	if err != nil {
		f = result(f.Ref, false, "the result is too large for a frame")
		raw, _ = wire.Encode(f) // a short frame has no error
	}
	if raw, err = d.o.Journal.End(f.Ref, c.print, raw); err != nil {
		d.o.Log.Error("a result could not be kept", "error", err)
	}
	d.mu.Lock()
	delete(d.calls, f.Ref)
	l := d.link
	d.turn()
	d.mu.Unlock()
	if l == nil || raw == nil {
		return // it is sent when the link is back
	}
	l.newResult(f.Ref, raw)
}

// outcome is the result of a call: what it may not do, what it did.
func (d *Device) outcome(c *call) wire.Frame {
	ref := c.frame.Ref
	if c.tool == nil {
		return result(ref, false, fmt.Sprintf("device %s has no tool %s", d.o.Identity.Device, said(c.frame.Tool)))
	}
	if err := c.tool.Check(c.args); err != nil {
		return result(ref, false, err.Error())
	}
	o := d.decide(c)
	d.o.Log.Info("a call was decided", "ref", said(ref), "tool", c.tool.Name, "decision", o.State.String(), "why", o.Why)
	if o.State != approval.Allowed {
		f := result(ref, false, o.State.String()+": "+o.Why)
		f.Denied, f.Why = true, o.Why
		return f
	}
	if why := d.stillWanted(c); why != "" {
		f := result(ref, false, "nothing was run: "+why)
		f.Denied, f.Why = true, why
		return f
	}
	if o.Always {
		if err := d.o.Policy.Allow(d.o.Identity.Device, c.tool.Name); err != nil {
			d.o.Log.Error("the tool could not be allowed for good", "tool", c.tool.Name, "error", err)
		}
	}
	if err := d.o.Journal.Begin(ref, c.print); err != nil {
		d.o.Log.Error("a call could not be recorded, so it was not run", "error", err)
		return result(ref, false, "the device could not record the call, so nothing was run")
	}
	return d.run(c)
}

// decide asks for a decision, unless there is a rule.
func (d *Device) decide(c *call) approval.Outcome {
	p, err := d.o.Policy.Read()
	if err != nil {
		d.o.Log.Warn("the policy allows nothing", "error", err)
	}
	if d.o.Yolo || d.o.Allow[c.tool.Name] || p.Allows(d.o.Identity.Device, c.tool.Name) {
		o, _ := c.approval.Allow(c.approval.Question.Hash(), false)
		return o
	}
	within := askTime(p.Timeout, d.left(c))
	if within < minAsk {
		o, _ := c.approval.Decide(approval.Outcome{State: approval.Expired, Why: "too little time was left to ask"})
		return o
	}
	d.phase(c, wire.PhaseApproval, d.o.Now().Add(within))
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	asked, answered := make(chan struct{}), make(chan error, 1)
	d.work.Go(func() {
		defer close(asked)
		answered <- d.o.Sink.Ask(ctx, c.approval)
	})
	// A short tick instead of one timer: the machine may sleep meanwhile.
	tick := time.NewTicker(min(time.Second, within/10))
	defer tick.Stop()
	for until := d.o.Now().Add(within); ; {
		select {
		case <-c.approval.Done():
			cancel()
			<-asked // the screen is free for the next question
			return c.approval.Outcome()
		case err := <-answered:
			if err != nil {
				d.o.Log.Error("nobody can be asked", "error", err)
				c.approval.Decide(approval.Outcome{State: approval.Denied, Why: NoHuman})
			}
		case <-tick.C:
			now := d.o.Now()
			if !now.Before(until) || !now.Round(0).Before(until.Round(0)) {
				c.approval.Decide(approval.Outcome{State: approval.Expired, Why: fmt.Sprintf("no answer within %v", within.Round(time.Second))})
			}
			if d.abandoned(c) {
				c.approval.Decide(approval.Outcome{State: approval.Withdrawn, Why: "the relay no longer has this call"})
			}
		}
	}
}

// abandoned reports whether the relay is back for some time, and has not sent the
// call again.
func (d *Device) abandoned(c *call) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.link != nil && d.link != c.link && d.o.Now().Sub(d.link.ready) > comeBack
}

// stillWanted waits until the relay is known to want the call: while the link is
// down, it may have been cancelled. What comes back is why not, or "".
func (d *Device) stillWanted(c *call) string {
	for {
		d.mu.Lock()
		turned, current := d.turned, d.link != nil && d.link == c.link
		changed := d.set != c.set && (d.set.Find(c.tool.Name) == nil || d.set.Find(c.tool.Name).Digest != c.tool.Digest)
		d.mu.Unlock()
		left := d.left(c)
		switch {
		case c.ctx.Err() != nil:
			return context.Cause(c.ctx).Error()
		case d.revoked.Load():
			return "the device was revoked"
		case left < minRun:
			return "too little time was left to run it"
		case changed:
			return "the plugin was changed or removed meanwhile"
		case current:
			return ""
		case d.abandoned(c):
			return "the relay no longer has this call"
		}
		wait := time.NewTimer(min(left-minRun+time.Millisecond, time.Second))
		select {
		case <-turned:
		case <-c.ctx.Done():
		case <-wait.C:
		}
		wait.Stop()
	}
}

// run runs a call that is allowed and recorded.
func (d *Device) run(c *call) wire.Frame {
	limit := runTime(c.tool.Timeout, d.left(c))
	d.phase(c, wire.PhaseRunning, d.o.Now().Add(limit))
	res := c.set.Run(c.ctx, c.tool, plugins.Call{
		Ref: c.frame.Ref, Args: c.args, Jail: d.o.Jail, Timeout: limit,
		Started: func(pid int) {
			if p, err := process.Find(pid); err == nil {
				if err := d.o.Journal.Started(c.frame.Ref, pid, p.Start); err != nil {
					d.o.Log.Warn("the process of a call could not be recorded", "error", err)
				}
			}
		},
	})
	res = d.o.Root.Bound(c.tool.Name, res)
	f := result(c.frame.Ref, res.OK, res.Output)
	f.Summary, f.Spilled = res.Summary, res.Spilled
	if f.Summary == "" {
		f.Summary = summary(c)
	}
	d.o.Log.Info("a call has ended", "ref", said(c.frame.Ref), "tool", c.tool.Name, "ok", res.OK, "bytes", len(res.Output), "spilled", res.Spilled)
	return f
}

// summary is the argument that the manifest names, as one line.
func summary(c *call) string {
	var args map[string]json.RawMessage
	if c.tool.Hint == "" || json.Unmarshal(c.args, &args) != nil {
		return ""
	}
	var text string
	if json.Unmarshal(args[c.tool.Hint], &text) != nil {
		text = string(args[c.tool.Hint])
	}
	return plugins.OneLine(text)
}

func (d *Device) phase(c *call, phase string, until time.Time) {
	d.mu.Lock()
	c.phase, c.until = phase, until
	l := c.link
	d.mu.Unlock()
	l.progress(c.frame.Ref, phase)
}

func result(ref string, ok bool, output string) wire.Frame {
	return wire.Frame{Type: wire.ToolResult, Ref: ref, OK: &ok, Output: output}
}

// onDeny ends a call that its caller no longer wants: a question is withdrawn, a
// program killed.
func (d *Device) onDeny(f wire.Frame) {
	d.mu.Lock()
	c := d.calls[f.Ref]
	d.mu.Unlock()
	if c == nil {
		return
	}
	why := "the caller is gone"
	if f.Why != "" {
		why += " (" + said(f.Why) + ")"
	}
	c.end(why)
}

// end withdraws the question, or kills what runs.
func (c *call) end(why string) {
	c.approval.Decide(approval.Outcome{State: approval.Withdrawn, Why: why})
	c.cancel(errors.New(why))
}

// endAll ends every call, and lets none begin that isn't begun.
func (d *Device) endAll(why string) {
	d.mu.Lock()
	all := make([]*call, 0, len(d.calls))
	for _, c := range d.calls {
		all = append(all, c)
	}
	d.mu.Unlock()
	for _, c := range all {
		c.end(why)
	}
}

// settleFormer says of calls that a former process had begun that they can't have a
// result, and kills what is left of them.
func (d *Device) settleFormer() {
	for _, c := range d.o.Journal.Open() {
		if c.PID > 1 && c.PID != os.Getpid() {
			if p, err := process.Find(c.PID); err == nil && p.Start == c.Start {
				_ = syscall.Kill(-c.PID, syscall.SIGKILL) // it may have ended in between
			}
		}
		raw, err := wire.Encode(result(c.Ref, false, "the device was stopped while this ran; it may have been done in part"))
		if err == nil {
			_, err = d.o.Journal.End(c.Ref, c.Print, raw)
		}
		if err != nil {
			d.o.Log.Error("a former call could not be settled", "error", err)
		}
	}
}
