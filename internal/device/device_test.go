package device

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"pgregory.net/rapid"

	"agentrelay/internal/device/approval"
	"agentrelay/internal/device/policy"
	"agentrelay/internal/devices/wire"
)

func allowed(names ...string) func(*Options) {
	return func(o *Options) {
		o.Allow = map[string]bool{}
		for _, n := range names {
			o.Allow[n] = true
		}
	}
}

func TestCallsThatNeedNobody(t *testing.T) {
	r := newRig(t)
	r.opts = allowed("mark")
	if err := os.WriteFile(filepath.Join(r.dir, "policy.json"), []byte(`{"autoallow":["laptop:fail","phone:slow"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	r.script("fail", `echo "why" >&2; exit 3`, `{}`)
	r.start(Headless{})
	c := r.relay.ready(true)
	for i, w := range []struct {
		tool, args, output, why string
		ok                      bool
	}{
		{"mark", `{"x":"<one>"}`, "marked", "", true},
		{"fail", `{}`, "the plugin ended with exit code 3\nstderr: why", "", false},
		{"slow", `{}`, "denied: no human attached", "no human attached", false},
		{"mark", `{"x":5}`, "args.x must be of type string", "", false},
		{"mark", `{"y":"z"}`, "args has unknown properties: ?y?", "", false},
		{"gone", `{}`, "device laptop has no tool gone", "", false},
	} {
		ref := fmt.Sprint("call-", i)
		c.send(theCall(ref, w.tool, w.args))
		f := c.next(wire.ToolResult)
		if f.Ref != ref || *f.OK != w.ok || f.Output != w.output || f.Why != w.why || f.Denied != (w.why != "") {
			t.Errorf("%s %s: %+v", w.tool, w.args, f)
		}
		if w.ok && f.Summary != "<one>" {
			t.Errorf("the summary is %q", f.Summary)
		}
	}
	if n := r.runs(); n != 1 {
		t.Errorf("%d runs", n)
	}
	f := theCall("other", "mark", `{}`)
	f.ArgsSHA256 = wire.HashArgs(json.RawMessage(`{"x":"y"}`))
	c.send(f)
	if f := c.next(wire.ToolResult); *f.OK || !strings.Contains(f.Output, "not those that the relay named") {
		t.Errorf("%+v", f)
	}
}

func TestAHumanDecides(t *testing.T) {
	h := make(human)
	r := newRig(t)
	r.start(h)
	c := r.relay.ready(true)

	c.send(theCall("a", "mark", `{}`))
	c.progress(wire.PhaseApproval)
	a := h.asked(t)
	if q := a.Question; q.Device != "laptop" || q.Tool != "mark" || q.Agent != "tester" || q.Reason != "to test" || q.Hint != "x" || len(q.Requires) != 1 {
		t.Errorf("%+v", q)
	}
	yes(a)
	c.progress(wire.PhaseRunning)
	if f := c.next(wire.ToolResult); !*f.OK || f.Output != "marked" {
		t.Errorf("%+v", f)
	}

	c.send(theCall("b", "mark", `{}`))
	h.asked(t).Decide(approval.Outcome{State: approval.Denied, Why: "the human said no"})
	if f := c.next(wire.ToolResult); *f.OK || !f.Denied || f.Why != "the human said no" {
		t.Errorf("%+v", f)
	}

	c.send(theCall("c", "mark", `{}`)) // always
	a = h.asked(t)
	a.Allow(a.Question.Hash(), true)
	c.next(wire.ToolResult)
	c.send(theCall("d", "mark", `{}`))
	if f := c.next(wire.ToolResult); !*f.OK {
		t.Errorf("%+v", f)
	}
	if p, err := r.device.o.Policy.Read(); err != nil || !p.Allows("laptop", "mark") {
		t.Errorf("%+v %v", p, err)
	}
	if _, err := r.device.o.Policy.Revoke("laptop:mark"); err != nil {
		t.Fatal(err)
	}
	c.send(theCall("e", "mark", `{}`)) // asked again at once
	a = h.asked(t)
	c.send(wire.Frame{Type: wire.Deny, Ref: "e", Why: wire.WhyCancelled})
	f := c.next(wire.ToolResult)
	if o, won := yes(a); won || o.State != approval.Withdrawn || *f.OK || f.Why != "the caller is gone (cancelled)" {
		t.Errorf("%+v %v %+v", o, won, f)
	}
	if n := r.runs(); n != 3 {
		t.Errorf("%d runs", n)
	}
}

func TestNoAnswerIsADenial(t *testing.T) {
	h := make(human)
	r := newRig(t)
	if err := os.WriteFile(filepath.Join(r.dir, "policy.json"), []byte(`{"approval_timeout_ms":1000}`), 0o600); err != nil {
		t.Fatal(err)
	}
	r.start(h)
	c := r.relay.ready(true)
	c.send(theCall("a", "mark", `{}`))
	a := h.asked(t)
	if f := c.next(wire.ToolResult); *f.OK || !f.Denied || f.Why != "no answer within 1s" {
		t.Errorf("%+v", f)
	}
	if o, won := yes(a); won || o.State != approval.Expired {
		t.Errorf("%+v %v", o, won)
	}
	// With too little left of the budget nobody is asked.
	f := theCall("b", "mark", `{}`)
	f.DeadlineMs = minRun.Milliseconds() + 100
	c.send(f)
	if f := c.next(wire.ToolResult); *f.OK || !f.Denied || f.Why != "too little time was left to ask" {
		t.Errorf("%+v", f)
	}
	if n := r.runs(); n != 0 {
		t.Errorf("%d runs", n)
	}
}

func TestACancelledProgramIsKilled(t *testing.T) {
	r := newRig(t)
	r.opts = allowed("slow")
	r.start(Headless{})
	c := r.relay.ready(true)
	c.send(theCall("a", "slow", `{}`))
	c.progress(wire.PhaseRunning)
	eventually(t, "the run", func() bool { return r.runs() == 1 })
	c.send(wire.Frame{Type: wire.Deny, Ref: "a", Why: wire.WhyTimeout})
	if f := c.next(wire.ToolResult); *f.OK || f.Output != "the plugin was killed: the caller is gone (timeout)" {
		t.Errorf("%+v", f)
	}
}

func TestACallThatComesAgainRunsOnce(t *testing.T) {
	r := newRig(t)
	r.opts = allowed("mark")
	r.start(Headless{})
	c := r.relay.ready(true)
	c.send(theCall("a", "mark", `{"x":"1"}`))
	first := c.next(wire.ToolResult)
	again := func(c *conn, want string) {
		t.Helper()
		f := theCall("a", "mark", `{"x":"1"}`)
		f.Resent = true
		c.send(f)
		if f := c.next(wire.ToolResult); f.Output != want || f.Ref != "a" {
			t.Errorf("%+v, want %s", f, want)
		}
	}
	again(c, first.Output)
	c.CloseNow()
	c = r.relay.ready(true)
	if f := c.next(wire.ToolResult); f.Ref != "a" || f.Output != "marked" { // kept until it is acknowledged
		t.Errorf("%+v", f)
	}
	again(c, "marked")
	c.send(theCall("a", "mark", `{"x":"2"}`))
	if f := c.next(wire.ToolResult); *f.OK || !strings.Contains(f.Output, "the id of another") {
		t.Errorf("%+v", f)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r.start(Headless{})
	c = r.relay.ready(true)
	if f := c.next(wire.ToolResult); f.Ref != "a" || f.Output != "marked" {
		t.Errorf("after a restart: %+v", f)
	}
	c.send(wire.Frame{Type: wire.Ack, Ref: "a"})
	again(c, "this call ended before, and its result was acknowledged; nothing was run")
	if n := r.runs(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// TestACrashDoesNotRunACallTwice: a call was begun, and the process died.
func TestACrashDoesNotRunACallTwice(t *testing.T) {
	r := newRig(t)
	j, err := r.state.Journal(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	print := wire.HashArgs(json.RawMessage(`{}`)) + ":mark"
	if err := j.Begin("a", print); err != nil {
		t.Fatal(err)
	}
	j.Close()
	r.opts = allowed("mark")
	r.start(Headless{})
	c := r.relay.ready(true)
	if f := c.next(wire.ToolResult); f.Ref != "a" || *f.OK || !strings.Contains(f.Output, "may have been done in part") {
		t.Errorf("%+v", f)
	}
	c.send(theCall("a", "mark", `{}`))
	if f := c.next(wire.ToolResult); *f.OK {
		t.Errorf("%+v", f)
	}
	if n := r.runs(); n != 0 {
		t.Errorf("%d runs", n)
	}
}

// TestYesWhileTheLinkIsDown: the call may have been cancelled meanwhile, so it runs
// only once the relay has sent it again.
func TestYesWhileTheLinkIsDown(t *testing.T) {
	h := make(human)
	r := newRig(t)
	r.start(h)
	c := r.relay.ready(true)
	for _, again := range []bool{true, false} {
		ref := fmt.Sprint("again-", again)
		before := r.runs()
		c.send(theCall(ref, "mark", `{}`))
		a := h.asked(t)
		c.CloseNow()
		next := r.relay.accept()
		next.next(wire.Hello)
		if o, won := yes(a); !won {
			t.Fatalf("%+v", o)
		}
		next.send(wire.Frame{Type: wire.Ready, Device: "laptop", Proto: 1, Resume: true})
		time.Sleep(50 * time.Millisecond) // for a run that must not come
		if n := r.runs(); n != before {
			t.Fatal("it ran although the relay had not said that it is still wanted")
		}
		if again {
			next.send(theCall(ref, "mark", `{}`))
		} else {
			next.send(wire.Frame{Type: wire.Deny, Ref: ref, Why: wire.WhyCancelled})
		}
		f := next.next(wire.ToolResult)
		next.send(wire.Frame{Type: wire.Ack, Ref: ref})
		if *f.OK != again || (r.runs() == before+1) != again {
			t.Errorf("again %v: %+v, %d runs", again, f, r.runs())
		}
		c = next
	}
}

// TestARelayOfTheSpecificationAlone neither acknowledges nor sends again.
func TestARelayOfTheSpecificationAlone(t *testing.T) {
	h := make(human)
	r := newRig(t)
	r.start(h)
	c := r.relay.ready(false)
	c.send(theCall("a", "mark", `{}`))
	a := h.asked(t)
	c.CloseNow()
	<-a.Done()
	if o := a.Outcome(); o.State != approval.Withdrawn {
		t.Errorf("%+v", o)
	}
	c = r.relay.ready(false)
	if f := c.next(wire.ToolResult); f.Ref != "a" || *f.OK {
		t.Errorf("%+v", f)
	}
	c.send(theCall("b", "mark", `{}`))
	yes(h.asked(t))
	f, err := c.read()
	if err != nil || f.Type != wire.ToolResult || !*f.OK {
		t.Errorf("%+v %v", f, err) // no progress: it would not be understood
	}
	eventually(t, "the end of keeping", func() bool { return len(r.device.o.Journal.Kept()) == 0 })
}

func TestRevoked(t *testing.T) {
	h := make(human)
	r := newRig(t)
	r.opts = allowed("slow")
	r.start(h)
	c := r.relay.ready(true)
	c.send(theCall("run", "slow", `{}`))
	eventually(t, "the run", func() bool { return r.runs() == 1 })
	c.send(theCall("ask", "mark", `{}`))
	a := h.asked(t)
	c.send(wire.Frame{Type: wire.Err, Code: wire.CodeAuth, Msg: "the owner has ended this device's access"})
	<-a.Done()
	if o, won := yes(a); won || o.State != approval.Withdrawn {
		t.Errorf("%+v", o)
	}
	eventually(t, "the end", func() bool { return r.device.Status().Link.State == "refused" })
	if err := r.stop(); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "the owner has ended") {
		t.Error(err)
	}
	if n := r.runs(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

func TestAPluginThatChangedMeanwhileDoesNotRun(t *testing.T) {
	h := make(human)
	r := newRig(t)
	r.start(h)
	c := r.relay.ready(true)
	c.send(theCall("a", "mark", `{}`))
	a := h.asked(t)
	r.script("mark", `echo ran >>ran; echo ran >>ran; echo '{"ok":true,"output":"another"}'`, `{"type":"object","description":"another"}`)
	r.script("new", `echo '{"ok":true,"output":"new"}'`, `{}`)
	r.script("broken", ``, `5`)
	r.device.Load(t.Context())
	hello := c.next(wire.Hello)
	if len(hello.Tools) != 3 {
		t.Errorf("%+v", hello.Tools)
	}
	c.send(wire.Frame{Type: wire.Ready, Device: "laptop", Proto: 1, Resume: true})
	yes(a)
	if f := c.next(wire.ToolResult); *f.OK || f.Why != "the plugin was changed or removed meanwhile" {
		t.Errorf("%+v", f)
	}
	s := r.device.Status()
	if len(s.Problems) != 1 || s.Problems[0].Plugin != "broken" || s.Link.State != "connected" || strings.Join(s.Tools, " ") != "mark new slow" {
		t.Errorf("%+v", s)
	}
	if n := r.runs(); n != 0 {
		t.Errorf("%d runs", n)
	}
}

// TestAllowAndDenyAtOnce: a thousand times the human says yes in the instant in
// which the relay says that nobody waits. One wins, both sides hear the same, and
// nothing runs after a denial.
func TestAllowAndDenyAtOnce(t *testing.T) {
	h := make(human)
	r := newRig(t)
	r.start(h)
	c := r.relay.ready(true)
	ran, withdrawn := 0, 0
	for i := range 1000 {
		ref := fmt.Sprint("call-", i)
		before := r.runs()
		c.send(theCall(ref, "mark", `{}`))
		a := h.asked(t)
		var both sync.WaitGroup
		var won bool
		both.Go(func() {
			time.Sleep(time.Duration(i%2) * 100 * time.Microsecond) // the frame takes a while
			_, won = yes(a)
		})
		both.Go(func() {
			time.Sleep(time.Duration(i%3) * 50 * time.Microsecond)
			c.send(wire.Frame{Type: wire.Deny, Ref: ref, Why: wire.WhyCancelled})
		})
		both.Wait()
		f := c.next(wire.ToolResult)
		c.send(wire.Frame{Type: wire.Ack, Ref: ref})
		n := r.runs() - before
		switch {
		case f.Ref != ref || n > 1 || won != (a.Outcome().State == approval.Allowed):
			t.Fatalf("%+v, %d runs, won %v, %+v", f, n, won, a.Outcome())
		case !won && (n != 0 || *f.OK || !f.Denied):
			t.Fatalf("withdrawn, but %+v, %d runs", f, n)
		case won && *f.OK && n != 1:
			t.Fatalf("it is said to have run: %+v, %d runs", f, n)
		case f.Denied && n != 0:
			t.Fatalf("it is said not to have run: %+v, %d runs", f, n)
		}
		if won {
			ran++
		} else {
			withdrawn++
		}
	}
	t.Logf("%d allowed, %d withdrawn", ran, withdrawn)
}

// TestTheSocketIsCutAtEachFrame: a relay with our promises loses the connection after
// each frame of a call, a hundred times over; some rounds restart the device too.
func TestTheSocketIsCutAtEachFrame(t *testing.T) {
	r := newRig(t)
	r.opts = allowed("mark")
	r.start(Headless{})
	known := 0
	for round := range 100 {
		ref := fmt.Sprint("call-", round)
		before := r.runs()
		cut := round % 7 // after so many frames of this call
		var got *wire.Frame
		frames := 0
		hit := func() bool { frames++; return frames-1 == cut }
		for tries := 0; got == nil; tries++ {
			if tries > 10 {
				t.Fatal("no result")
			}
			c := r.relay.accept()
			got = r.through(c, ref, hit)
			c.CloseNow()
		}
		if round%20 == 19 {
			if err := r.stop(); err != nil {
				t.Fatal(err)
			}
			for len(r.relay.conns) > 0 {
				(<-r.relay.conns).CloseNow()
			}
			r.start(Headless{})
		}
		if *got.OK {
			known++
		}
		if n := r.runs() - before; n > 1 || *got.OK && n != 1 {
			t.Fatalf("round %d: %d runs, %+v", round, n, got)
		}
	}
	if known < 95 {
		t.Errorf("only %d of 100 calls succeeded", known)
	}
}

// through takes one connection as far as it goes: hello, ready, the call, its result
// and the acknowledgement. cut says after which frame it breaks.
func (r *rig) through(c *conn, ref string, cut func() bool) *wire.Frame {
	f, err := c.read()
	if err != nil || f.Type != wire.Hello || cut() {
		return nil
	}
	if c.try(wire.Frame{Type: wire.Ready, Device: "laptop", Proto: 1, Resume: true}) != nil || cut() {
		return nil
	}
	if c.try(theCall(ref, "mark", `{}`)) != nil || cut() {
		return nil
	}
	for {
		f, err := c.read()
		if err != nil {
			return nil
		}
		broken := cut()
		if f.Type == wire.ToolResult && f.Ref == ref {
			if !broken {
				_ = c.try(wire.Frame{Type: wire.Ack, Ref: ref})
				time.Sleep(time.Millisecond)
			}
			return &f // it has arrived, cut or not
		}
		if f.Type == wire.ToolResult {
			_ = c.try(wire.Frame{Type: wire.Ack, Ref: f.Ref}) // of a round before
		}
		if broken {
			return nil
		}
	}
}

// fast is a clock on which 50 seconds pass in one, and that can jump.
type fast struct {
	start time.Time
	jump  atomic.Int64
}

func (f *fast) now() time.Time {
	return f.start.Add(50*time.Since(f.start) + time.Duration(f.jump.Load()))
}

// TestABlackholeIsNoticed: after ready the relay neither sends nor answers.
func TestABlackholeIsNoticed(t *testing.T) {
	clock := &fast{start: time.Now()}
	r := newRig(t)
	r.opts = func(o *Options) { o.Now = clock.now }
	r.start(Headless{})
	r.relay.ready(true) // nobody reads this connection: pings get no answer
	eventually(t, "the link", func() bool { return r.device.Status().Link.State == "connected" })
	begun := clock.now()
	r.relay.ready(true)
	took := clock.now().Sub(begun)
	t.Logf("a silent relay was noticed after %v", took.Round(time.Second))
	if took < 40*time.Second || took > 75*time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestAMachineThatSlept looks for the relay at once, and lets no question stand that
// was asked before.
func TestAMachineThatSlept(t *testing.T) {
	clock := &fast{start: time.Now()}
	h := make(human)
	r := newRig(t)
	r.opts = func(o *Options) { o.Now = clock.now }
	r.start(h)
	c := r.relay.ready(true)
	c.send(theCall("a", "mark", `{}`))
	a := h.asked(t)
	clock.jump.Store(int64(time.Hour))
	begun := clock.now()
	r.relay.ready(true) // the old connection is silent
	if took := clock.now().Sub(begun); took > 20*time.Second {
		t.Errorf("a dead link was noticed %v after the sleep", took)
	}
	<-a.Done()
	if o := a.Outcome(); o.State != approval.Expired && o.State != approval.Withdrawn {
		t.Errorf("%+v", o)
	}
}

func TestTheRelaysHintIsHonoured(t *testing.T) {
	r := newRig(t)
	r.start(Headless{})
	c := r.relay.ready(true)
	begun := time.Now()
	c.Close(websocket.StatusCode(wire.CloseRestart), wire.RetryReason(300*time.Millisecond))
	r.relay.ready(true)
	if took := time.Since(begun); took < 300*time.Millisecond {
		t.Errorf("it came back after %v", took)
	}
}

// TestBackoff: full jitter up to a bound that doubles to a minute.
func TestBackoff(t *testing.T) {
	var mu sync.Mutex
	var bounds []time.Duration
	r := newRig(t)
	r.opts = func(o *Options) {
		o.Identity.RelayURL = "ws://127.0.0.1:1/device"
		o.Rand = func(d time.Duration) time.Duration {
			mu.Lock()
			defer mu.Unlock()
			bounds = append(bounds, d)
			return time.Millisecond
		}
	}
	r.start(Headless{})
	eventually(t, "ten tries", func() bool { mu.Lock(); defer mu.Unlock(); return len(bounds) >= 10 })
	if s := r.device.Status(); s.Link.Reason != "nothing listens at the relay's address" {
		t.Errorf("%+v", s.Link)
	}
	mu.Lock()
	defer mu.Unlock()
	if got, want := fmt.Sprint(bounds[:8]), "[1s 2s 4s 8s 16s 32s 1m0s 1m0s]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestTimesNest: whatever budget, policy and plugin say, a human who answers at any
// moment of their time leaves the tool at least minRun-answerTime, and the result has
// answerTime for its way.
func TestTimesNest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		span := func(name string, most time.Duration) time.Duration {
			return time.Duration(rapid.Int64Range(0, int64(most)).Draw(t, name))
		}
		budget := span("budget", wire.CallBudget)
		ask := askTime(span("policy", policy.MaxTimeout), budget)
		if ask < minAsk {
			return // nobody is asked
		}
		left := budget - time.Duration(rapid.Float64Range(0, 1).Draw(t, "answered")*float64(ask))
		tool := span("tool", wire.CallBudget)
		run := runTime(tool, left)
		if left < minRun || run < min(tool, minRun-answerTime) || run+answerTime > left {
			t.Fatalf("budget %v, asked for %v, %v left, runs for %v", budget, ask, left, run)
		}
	})
}
