package device

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"agentrelay/internal/devices/wire"
)

// The times of a link.
const (
	connectTime = 20 * time.Second // for dialling, and again until ready
	writeTime   = 15 * time.Second
	pingEvery   = 20 * time.Second
	// tickEvery is how often the clocks are looked at, and slept the difference from
	// which on the machine has slept, or this process has.
	tickEvery = 2 * time.Second
	slept     = 10 * time.Second
	wakeTime  = 5 * time.Second // for a sign of life after that
	// stable is how long a link must hold before the next loss is taken for a new one.
	stable     = time.Minute
	minBackoff = time.Second
	maxBackoff = time.Minute
)

// link is one connection on which the relay has answered.
type link struct {
	d      *Device
	conn   *websocket.Conn
	ready  time.Time // when the relay took us
	resume bool      // the relay acknowledges

	lastHeard atomic.Int64 // nanoseconds since the device started, monotonic
	roundTrip atomic.Int64
	pingSent  atomic.Int64
	pings     atomic.Int64

	sent sync.Map // refs of results
}

func (d *Device) since() int64 { return int64(d.o.Now().Sub(d.started)) }

func (l *link) hear() { l.lastHeard.Store(l.d.since()) }

func (l *link) heard() time.Time { return l.d.started.Add(time.Duration(l.lastHeard.Load())) }

func (l *link) silence() time.Duration { return time.Duration(l.d.since() - l.lastHeard.Load()) }

// send sends a frame. A failure ends the link; what must not be lost is in the journal.
func (l *link) send(f wire.Frame) {
	raw, err := wire.Encode(f)
	if err != nil {
		l.d.o.Log.Error("a frame was not sent", "type", f.Type, "error", err)
		return
	}
	l.d.o.Log.Debug("a frame goes", "type", f.Type, "ref", said(f.Ref))
	l.sendRaw(raw)
}

func (l *link) sendRaw(raw []byte) bool {
	ctx, cancel := context.WithTimeout(context.Background(), writeTime)
	defer cancel()
	if err := l.conn.Write(ctx, websocket.MessageText, raw); err != nil {
		_ = l.conn.CloseNow()
		return false
	}
	return true
}

// progress tells a relay that understands it where a call stands.
func (l *link) progress(ref, phase string) {
	if l.resume && phase != "" {
		l.send(wire.Frame{Type: wire.Progress, Ref: ref, Phase: phase})
	}
}

// newResult sends a result unless it has gone over this link: one that is kept
// while the link comes up is met by its call and by the link.
func (l *link) newResult(ref string, raw json.RawMessage) {
	if _, gone := l.sent.LoadOrStore(ref, true); !gone {
		l.result(ref, raw)
	}
}

// result sends a result. A relay that acknowledges nothing has it once it is sent.
func (l *link) result(ref string, raw json.RawMessage) {
	if l.sendRaw(raw) && !l.resume {
		l.d.acknowledged(ref)
	}
}

func (d *Device) acknowledged(ref string) {
	if err := d.o.Journal.Ack(ref); err != nil {
		d.o.Log.Error("an acknowledgement could not be kept", "error", err)
	}
}

// lost is the end of a connection: why, and whether to come back.
type lost struct {
	why   string
	retry time.Duration // the relay asks to wait at least so long
	final bool          // there is no use in coming back
	slow  bool          // come back, but a human has to do something first
}

// stayConnected connects again and again.
func (d *Device) stayConnected(ctx context.Context) error {
	backoff := minBackoff
	for {
		d.setNote(Link{State: "connecting", Since: d.o.Now()})
		begun := d.o.Now()
		end, wasReady := d.connect(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if end.final {
			d.setNote(Link{State: "refused", Since: d.o.Now(), Reason: end.why})
			return fmt.Errorf("%w: %s", ErrRefused, end.why)
		}
		if wasReady && d.o.Now().Sub(begun) >= stable {
			backoff = minBackoff
		}
		if end.slow {
			backoff = maxBackoff
		}
		wait := end.retry + d.o.Rand(backoff)
		d.o.Log.Warn("not connected", "why", end.why, "next_try_in", wait.Round(time.Millisecond).String())
		now := d.o.Now()
		d.setNote(Link{State: "waiting", Since: now, Reason: end.why, NextTry: now.Add(wait)})
		backoff = min(2*backoff, maxBackoff)
		if !d.pause(ctx, wait) {
			return nil
		}
	}
}

func (d *Device) setNote(n Link) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n.State == "connecting" {
		n.Reason = d.note.Reason
	}
	d.note = n
}

// pause waits, but not through a sleep of the machine: then the way may be free again.
func (d *Device) pause(ctx context.Context, wait time.Duration) bool {
	begun := d.o.Now()
	tick := time.NewTicker(min(d.o.tick(), max(wait, time.Millisecond)))
	defer tick.Stop()
	clock := d.newWatch()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
			if clock.woke() || d.o.Now().Sub(begun) >= wait {
				return true
			}
		}
	}
}

// watch notices that time has jumped: the two clocks drift apart when the machine
// sleeps, and ticks are late when the process was stopped.
type watch struct {
	now  func() time.Time
	last time.Time
}

func (d *Device) newWatch() *watch { return &watch{d.o.Now, d.o.Now()} }

func (w *watch) woke() bool {
	now := w.now()
	mono, wall := now.Sub(w.last), now.Round(0).Sub(w.last.Round(0))
	w.last = now
	return wall-mono > slept || mono > slept
}

// connect makes one connection and serves it to its end.
func (d *Device) connect(ctx context.Context) (end lost, wasReady bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := &link{d: d}
	l.hear()
	dialling, stop := context.WithTimeout(ctx, connectTime)
	conn, err := d.o.Dial.dial(dialling, d.o.Identity, l.hear)
	stop()
	if err != nil {
		return dialProblem(err), false
	}
	defer conn.CloseNow()
	l.conn = conn
	l.send(d.hello())
	end, wasReady = l.serve(ctx)
	d.mu.Lock()
	if d.link == l {
		d.link = nil
		d.turn()
	}
	d.mu.Unlock()
	if wasReady && !l.resume {
		// This relay has failed what was open, and never sends it again.
		d.withdrawOf(l)
	}
	if ctx.Err() != nil {
		_ = conn.Close(websocket.StatusGoingAway, "the device stops")
	}
	return end, wasReady
}

// withdrawOf withdraws the questions that came over a link.
func (d *Device) withdrawOf(l *link) {
	d.mu.Lock()
	var gone []*call
	for _, c := range d.calls {
		if c.link == l && c.phase != wire.PhaseRunning {
			gone = append(gone, c)
		}
	}
	d.mu.Unlock()
	for _, c := range gone {
		c.end("the link to the relay was lost")
	}
}

// serve reads frames until the link ends.
func (l *link) serve(ctx context.Context) (lost, bool) {
	silent := make(chan string, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l.d.work.Go(func() { l.watch(ctx, silent) })
	wasReady := false
	for {
		kind, raw, err := l.conn.Read(ctx)
		if err != nil {
			return l.readProblem(err, silent), wasReady
		}
		l.hear()
		f, err := wire.Decode(raw)
		if kind != websocket.MessageText || err != nil {
			l.d.o.Log.Warn("a frame of the relay was not understood", "error", err)
			continue
		}
		l.d.o.Log.Debug("a frame came", "type", said(f.Type), "ref", said(f.Ref))
		switch f.Type {
		case wire.Ready:
			l.onReady(f, wasReady)
			wasReady = true
		case wire.Call:
			if wasReady {
				l.d.onCall(l, f)
			}
		case wire.Deny:
			l.d.onDeny(f)
		case wire.Ack:
			l.d.acknowledged(f.Ref)
			l.sent.Delete(f.Ref)
		case wire.Pong:
			if sent := l.pingSent.Load(); f.Ref == strconv.FormatInt(l.pings.Load(), 10) {
				l.roundTrip.Store(l.d.since() - sent)
			}
		case wire.Err:
			if end, ends := l.onErr(f); ends {
				return end, wasReady
			}
		}
	}
}

// onReady makes this the link of the device, and brings the results that wait.
func (l *link) onReady(f wire.Frame, again bool) {
	d := l.d
	d.mu.Lock()
	if !again {
		l.ready, l.resume = d.o.Now(), f.Resume
		d.note = Link{State: "connected", Since: d.o.Now()}
	}
	d.link = l
	d.turn()
	d.mu.Unlock()
	if again {
		return
	}
	d.o.Log.Info("connected", "relay", d.o.Identity.RelayURL, "as", d.o.Identity.Device)
	for _, c := range d.o.Journal.Kept() {
		l.newResult(c.Ref, c.Result)
	}
}

// onErr is what the relay refuses. It ends the link unless it is about one frame.
func (l *link) onErr(f wire.Frame) (lost, bool) {
	end := lost{why: "the relay says " + said(f.Code) + ": " + said(f.Msg), retry: min(time.Duration(max(f.RetryAfterMs, 0))*time.Millisecond, 5*time.Minute)}
	switch {
	case f.Code == wire.CodeAuth, f.Code == wire.CodeProto && !l.isReady():
		end.final = true
		l.d.revoked.Store(true)
		l.d.endAll("the relay refuses this device")
	case f.Code == wire.CodeDeviceTaken:
		end.slow = true
	case l.isReady():
		l.d.o.Log.Warn("the relay refused a frame", "code", said(f.Code), "msg", said(f.Msg), "ref", said(f.Ref))
		return end, false
	}
	return end, true
}

func (l *link) isReady() bool {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	return l.d.link == l
}

// readProblem says why reading ended.
func (l *link) readProblem(err error, silent <-chan string) lost {
	select {
	case why := <-silent:
		return lost{why: why}
	default:
	}
	var closed websocket.CloseError
	if !errors.As(err, &closed) {
		return lost{why: "the connection broke"}
	}
	end := lost{why: fmt.Sprintf("the relay closed the link with code %d", closed.Code)}
	if after, ok := wire.ParseRetry(closed.Reason); ok {
		end.retry = after
		end.why = "the relay restarts"
	} else if closed.Reason != "" {
		end.why += ": " + said(closed.Reason)
		// Only another process with our token can do that while we read: two that take
		// the link from each other shall not do it all the time.
		end.slow = strings.Contains(closed.Reason, "taken over")
	}
	return end
}

// watch sends pings and ends a link that has fallen silent, or that the machine has
// slept through.
func (l *link) watch(ctx context.Context, silent chan<- string) {
	tick := time.NewTicker(l.d.o.tick())
	defer tick.Stop()
	clock, opened, lastPing := l.d.newWatch(), l.d.o.Now(), l.d.o.Now()
	wake := time.Time{} // until when a sign of life must have come
	give := func(why string) {
		silent <- why
		_ = l.conn.CloseNow()
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := l.d.o.Now()
		woke := clock.woke()
		switch {
		case woke:
			l.hear() // silence counts from here: nobody was there to listen
			wake = now.Add(wakeTime)
			l.ping()
			lastPing = now
		case !wake.IsZero() && now.After(wake):
			if l.silence() > wakeTime-l.d.o.tick() {
				give("the relay did not answer after this machine had slept")
				return
			}
			wake = time.Time{}
		case l.silence() > wire.Silence:
			give(fmt.Sprintf("the relay was silent for %v", wire.Silence))
			return
		case !l.isReady() && now.Sub(opened) > connectTime:
			give("the relay did not answer hello")
			return
		case now.Sub(lastPing) >= pingEvery:
			l.ping()
			lastPing = now
		}
	}
}

func (l *link) ping() {
	l.pingSent.Store(l.d.since())
	l.send(wire.Frame{Type: wire.Ping, ID: wire.ID(strconv.FormatInt(l.pings.Add(1), 10))})
}

// tick is how often clocks are looked at.
func (o Options) tick() time.Duration {
	if o.Tick > 0 {
		return o.Tick
	}
	return tickEvery
}
