package devices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"agentrelay/internal/fault"
	"agentrelay/internal/store"
)

// TestTexts: the words of the specification.
func TestTexts(t *testing.T) {
	r := newRelay(t)
	r.pairDevice("away")
	d := r.connect("laptop", r.pairDevice("laptop"))
	bare := r.connect("bare", r.pairDevice("bare"), "tools", nil)
	_ = bare
	call := func(device, tool, args string) error {
		_, err := r.Call(t.Context(), alice, CallIn{Device: device, Tool: tool, Args: json.RawMessage(args), Reason: "x"})
		return err
	}
	refusedWith(t, call("nobody", "run", `{}`), NotConnected, "device nobody is not connected")
	refusedWith(t, call("away", "run", `{}`), NotConnected, "device away is not connected")
	refusedWith(t, call("Lap\ntop\u202e", "run", `{}`), NotConnected, "device Lap?top? is not connected")
	refusedWith(t, call("laptop", "ruin", `{}`), UnknownTool, "device laptop has no tool ruin: it has echo, run")
	refusedWith(t, call("bare", "run", `{}`), UnknownTool, "device bare has no tool run: it has none")
	refusedWith(t, call("laptop", "run", `{}`), fault.InvalidArguments, "args lacks [cmd].")
	refusedWith(t, call("laptop", "run", `{"cmd":5}`), fault.InvalidArguments, "args.cmd must be of type string.")
	refusedWith(t, call("laptop", "run", `{"cmd":"x","timeout_s":"long"}`), fault.InvalidArguments, "args.timeout_s must be of type integer.")
	refusedWith(t, call("laptop", "run", `[]`), fault.InvalidArguments, "args must be an object.")
	refusedWith(t, call("laptop", "echo", `{"x":"`+strings.Repeat("y", 1<<20)+`"}`), ArgsTooLarge, "args are too large: a call has at most 1048576 bytes.")
	refusedWith(t, call("laptop", "", ``), fault.InvalidArguments, "tool: required unless callId is given.")
	_, err := r.Call(t.Context(), alice, CallIn{CallID: "call-x", Device: "laptop"})
	refusedWith(t, err, fault.InvalidArguments, "callId stands alone: it reads the outcome of an earlier call.")
	_, err = r.Call(t.Context(), alice, CallIn{CallID: "call-x"})
	refusedWith(t, err, UnknownCall, "")
	_, err = r.Schema(t.Context(), alice, SchemaIn{Device: "laptop", Tool: "nothing"})
	refusedWith(t, err, UnknownTool, "device laptop has no tool nothing: it has echo, run")
	_, err = r.List(t.Context(), alice, ListIn{Device: "away"})
	refusedWith(t, err, NotConnected, "device away is not connected")

	for _, c := range []struct {
		answer  frame
		kind    fault.Kind
		message string
	}{
		{frame{"type": "tool_result", "ok": false, "output": "exit 1: no such file"}, ToolFailed, "exit 1: no such file"},
		{frame{"type": "tool_result", "ok": false}, ToolFailed, "tool echo of device laptop failed without a message"},
		{frame{"type": "tool_result", "ok": false, "denied": true, "output": "denied", "why": "no human attached"}, Denied, "device laptop denied the call: no human attached"},
		{frame{"type": "deny", "why": "no"}, Denied, "device laptop denied the call: no"},
		{frame{"type": "tool_result", "ok": true, "output": strings.Repeat("z", 1<<20)}, ResultTooLarge, "the result of device laptop was too large"},
	} {
		got := r.start(t.Context(), alice, echo("laptop"))
		c.answer["ref"] = d.want("call")["ref"]
		d.send(c.answer)
		refusedWith(t, within(t, got).err, c.kind, c.message)
		if c.kind == ResultTooLarge {
			if f := d.want("err"); f.text("code") != "too_large" {
				t.Error(f)
			}
		}
	}
	long := r.start(t.Context(), alice, echo("laptop"))
	d.send(frame{"type": "tool_result", "ref": d.want("call")["ref"], "ok": false, "output": strings.Repeat("a", 20<<10) + "end"})
	var e *fault.Error
	if err := within(t, long).err; !errors.As(err, &e) || len(e.Message) > 9<<10 || !strings.HasSuffix(e.Message, "end") || !strings.Contains(e.Message, "bytes left out") {
		t.Error(err)
	}
}

func TestOneInFlightEightWaitAndTheTenthIsRefused(t *testing.T) {
	r := newRelay(t)
	d := r.connect("laptop", r.pairDevice("laptop"))
	other := r.connect("phone", r.pairDevice("phone"))
	var all []<-chan result
	for i := range 1 + MaxQueued {
		in := echo("laptop")
		in.Args = json.RawMessage(fmt.Sprintf(`{"n":%d}`, i))
		all = append(all, r.start(t.Context(), alice, in))
		eventually(t, "the call is there", func() bool { return r.openCalls("laptop") == i+1 })
	}
	_, err := r.Call(t.Context(), bob, echo("laptop"))
	refusedWith(t, err, Busy, "device laptop is busy")
	free := r.start(t.Context(), bob, echo("phone")) // another device is not concerned
	other.answer("free")
	if got := within(t, free); got.out.Output != "free" {
		t.Errorf("%+v", got)
	}
	for i := range all {
		f := d.want("call")
		if args, _ := f["args"].(map[string]any); args["n"] != float64(i) {
			t.Fatalf("call %d came as %v", i, args)
		}
		d.send(frame{"type": "ping"})
		d.want("pong") // and not the next call
		d.send(frame{"type": "tool_result", "ref": f["ref"], "ok": true, "output": fmt.Sprint(i)})
		if got := within(t, all[i]); got.out.Output != fmt.Sprint(i) {
			t.Errorf("%+v", got)
		}
	}
}

func TestACallThatTakesTooLongIsDeniedAndItsLateResultDiscarded(t *testing.T) {
	r := newRelay(t, func(o *Options) { o.Times.Budget = 300 * time.Millisecond })
	d := r.connect("laptop", r.pairDevice("laptop"))
	call := r.start(t.Context(), alice, echo("laptop"))
	f := d.want("call")
	if left, _ := f["deadline_ms"].(float64); left <= 0 || left > 300 {
		t.Errorf("deadline_ms %v", f["deadline_ms"])
	}
	refusedWith(t, within(t, call).err, TimedOut, "device laptop did not answer in time")
	if deny := d.want("deny"); deny["ref"] != f["ref"] || deny.text("why") != "timeout" {
		t.Error(deny)
	}
	d.send(frame{"type": "tool_result", "ref": f["ref"], "ok": true, "output": "late"})
	eventually(t, "the late result is noted", func() bool { return r.stored(f.text("ref")).late != 0 })
	_, err := r.Call(t.Context(), alice, CallIn{CallID: f.text("ref")})
	refusedWith(t, err, TimedOut, "device laptop did not answer in time")
	next := r.start(t.Context(), alice, echo("laptop"))
	d.answer("on time")
	if got := within(t, next); got.out.Output != "on time" {
		t.Errorf("%+v", got)
	}
	page, err := r.Calls(t.Context(), CallsIn{})
	if err != nil || len(page.Calls) != 2 || page.Calls[1].LateAt == nil || page.Calls[1].Code != TimedOut.Code || page.Calls[1].ArgsSHA256 == "" {
		t.Errorf("%+v %v", page, err)
	}
}

func TestACallerWhoLeavesWithdrawsTheCall(t *testing.T) {
	r := newRelay(t)
	d := r.connect("laptop", r.pairDevice("laptop"))
	ctx, leave := context.WithCancel(t.Context())
	call := r.start(ctx, alice, echo("laptop"))
	f := d.want("call")
	waitingCtx, leaveWaiting := context.WithCancel(t.Context())
	waiting := r.start(waitingCtx, alice, echo("laptop"))
	eventually(t, "the second call waits", func() bool { return r.openCalls("laptop") == 2 })
	leaveWaiting()
	if got := within(t, waiting); !errors.Is(got.err, context.Canceled) {
		t.Error(got.err)
	}
	if deny := d.want("deny"); deny.text("why") != "cancelled" {
		t.Error(deny)
	}
	leave()
	within(t, call)
	if deny := d.want("deny"); deny["ref"] != f["ref"] || deny.text("why") != "cancelled" {
		t.Error(deny)
	}
	_, err := r.Call(t.Context(), alice, CallIn{CallID: f.text("ref")})
	refusedWith(t, err, Cancelled, "the call of device laptop was cancelled")
	next := r.start(t.Context(), alice, echo("laptop"))
	d.answer("the withdrawn one never came")
	if got := within(t, next); got.err != nil {
		t.Error(got.err)
	}
}

// TestAWithdrawalWaitsForTheDevice: it is told after its next hello.
func TestAWithdrawalWaitsForTheDevice(t *testing.T) {
	r := newRelay(t)
	token := r.pairDevice("laptop")
	d := r.connect("laptop", token)
	ctx, leave := context.WithCancel(t.Context())
	call := r.start(ctx, alice, echo("laptop"))
	f := d.want("call")
	d.conn.CloseNow()
	eventually(t, "the link is gone", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.links["laptop"] == nil })
	leave()
	within(t, call)
	d = r.connect("laptop", token)
	if deny := d.want("deny"); deny["ref"] != f["ref"] || deny.text("why") != "cancelled" {
		t.Error(deny)
	}
}

func TestAPendingCallIsReadByItsOwnerAlone(t *testing.T) {
	r := newRelay(t, func(o *Options) { o.Times.Patience = 100 * time.Millisecond })
	d := r.connect("laptop", r.pairDevice("laptop"), "resume", true)
	call := r.start(t.Context(), alice, echo("laptop"))
	f := d.want("call")
	got := within(t, call)
	if got.err != nil || got.out.State != Pending || got.out.CallID != f.text("ref") || got.out.Phase != "sent" || got.out.ExpiresAt == nil {
		t.Fatalf("%+v", got)
	}
	d.send(frame{"type": "progress", "ref": f["ref"], "phase": "approval"})
	eventually(t, "the phase is known", func() bool {
		out, err := r.Call(t.Context(), alice, CallIn{CallID: got.out.CallID})
		return err == nil && out.State == Pending && out.Phase == "approval"
	})
	_, err := r.Call(t.Context(), bob, CallIn{CallID: got.out.CallID})
	refusedWith(t, err, UnknownCall, "There is no call of this callId.")
	d.send(frame{"type": "tool_result", "ref": f["ref"], "ok": true, "output": "at last"})
	d.want("ack")
	for range 2 {
		out, err := r.Call(t.Context(), alice, CallIn{CallID: got.out.CallID})
		if err != nil || out.State != Done || out.Output != "at last" {
			t.Errorf("%+v %v", out, err)
		}
	}
}

func TestARequestIDRunsOnce(t *testing.T) {
	r := newRelay(t)
	token := r.pairDevice("laptop")
	d := r.connect("laptop", token)
	in := echo("laptop")
	in.Args, in.RequestID = json.RawMessage(`{"a":1,"b":2}`), "once"
	var all []<-chan result
	for i := range 100 {
		same := in
		if i%2 == 1 {
			same.Args = json.RawMessage(`{ "b":2, "a":1 }`)
		}
		all = append(all, r.start(t.Context(), alice, same))
	}
	f := d.answer("first")
	fresh := 0
	for _, c := range all {
		got := within(t, c)
		if got.err != nil || got.out.Output != "first" || got.out.CallID != f.text("ref") {
			t.Fatalf("%+v", got)
		}
		if !got.out.Duplicate {
			fresh++
		}
	}
	if fresh != 1 {
		t.Errorf("%d of 100 were the first", fresh)
	}
	d.send(frame{"type": "ping"})
	d.want("pong") // no second call

	other := in
	other.Reason = "something else"
	_, err := r.Call(t.Context(), alice, other)
	refusedWith(t, err, fault.KeyConflict, "")
	theirs := r.start(t.Context(), bob, in) // another owner's key
	d.answer("second")
	if got := within(t, theirs); got.out.Output != "second" || got.out.Duplicate {
		t.Errorf("%+v", got)
	}
	d.conn.CloseNow()
	r.restart()
	out, err := r.Call(t.Context(), alice, in) // though the device is away
	if err != nil || !out.Duplicate || out.Output != "first" {
		t.Errorf("%+v %v", out, err)
	}
	in.RequestID = "not an id"
	_, err = r.Call(t.Context(), alice, in)
	refusedWith(t, err, fault.InvalidArguments, "")
}

// TestACallWithARequestIDOutlivesItsRequest, for its caller can ask again.
func TestACallWithARequestIDOutlivesItsRequest(t *testing.T) {
	r := newRelay(t)
	d := r.connect("laptop", r.pairDevice("laptop"))
	in := echo("laptop")
	in.RequestID = "kept"
	ctx, leave := context.WithCancel(t.Context())
	call := r.start(ctx, alice, in)
	f := d.want("call")
	leave()
	within(t, call)
	d.send(frame{"type": "tool_result", "ref": f["ref"], "ok": true, "output": "kept"})
	again := within(t, r.start(t.Context(), alice, in))
	if again.err != nil || again.out.Output != "kept" || !again.out.Duplicate {
		t.Errorf("%+v", again)
	}
}

func TestARestartTakesOpenCallsUp(t *testing.T) {
	for _, resume := range []bool{true, false} {
		t.Run(fmt.Sprintf("resume %v", resume), func(t *testing.T) {
			r := newRelay(t)
			token := r.pairDevice("laptop")
			d := r.connect("laptop", token, "resume", resume)
			first, second := echo("laptop"), echo("laptop")
			first.RequestID, second.RequestID = "first", "second"
			r.start(t.Context(), alice, first)
			f := d.want("call")
			r.start(t.Context(), alice, second)
			eventually(t, "the second call waits", func() bool { return r.openCalls("laptop") == 2 })
			go func() { _, _ = d.next() }()
			r.restart()

			d = r.connect("laptop", token, "resume", resume)
			if resume {
				again := d.want("call")
				if again["ref"] != f["ref"] || again["resent"] != true || again.text("args_sha256") != f.text("args_sha256") {
					t.Fatalf("%v was sent again as %v", f, again)
				}
			}
			d.send(frame{"type": "tool_result", "ref": f["ref"], "ok": true, "output": "1"})
			if resume {
				d.want("ack")
			}
			next := d.want("call") // never the first one again
			if next["ref"] == f["ref"] || next["resent"] != nil {
				t.Fatal(next)
			}
			d.send(frame{"type": "tool_result", "ref": next["ref"], "ok": true, "output": "2"})
			for in, want := range map[*CallIn]string{&first: "1", &second: "2"} {
				if got := within(t, r.start(t.Context(), alice, *in)); got.err != nil || got.out.Output != want {
					t.Errorf("%+v", got)
				}
			}
		})
	}
}

func TestCallsOfARestartThatCameTooLate(t *testing.T) {
	r := newRelay(t, func(o *Options) { o.Times.Budget = 300 * time.Millisecond })
	token := r.pairDevice("laptop")
	d := r.connect("laptop", token)
	sent, queued := echo("laptop"), echo("laptop")
	sent.RequestID, queued.RequestID = "sent", "queued"
	r.start(t.Context(), alice, sent)
	d.want("call")
	r.start(t.Context(), alice, queued)
	eventually(t, "the second call waits", func() bool { return r.openCalls("laptop") == 2 })
	go func() { _, _ = d.next() }()
	r.close()
	time.Sleep(700 * time.Millisecond) // longer than both may take
	r.open()
	_, err := r.Call(t.Context(), alice, sent)
	refusedWith(t, err, Lost, "device laptop was lost while the call was under way")
	_, err = r.Call(t.Context(), alice, queued)
	refusedWith(t, err, NotConnected, "device laptop is not connected")
}

func TestCallsArePaged(t *testing.T) {
	r := newRelay(t)
	d := r.connect("laptop", r.pairDevice("laptop"))
	for range 5 {
		c := r.start(t.Context(), alice, echo("laptop"))
		d.answer("x")
		within(t, c)
	}
	two, seen := 2, map[string]bool{}
	in := CallsIn{Device: "laptop", Limit: &two}
	for pages := 1; ; pages++ {
		out, err := r.Calls(t.Context(), in)
		if err != nil || len(out.Calls) > 2 {
			t.Fatal(out, err)
		}
		for _, c := range out.Calls {
			seen[c.CallID] = true
		}
		if out.NextCursor == "" {
			if pages != 3 || len(seen) != 5 {
				t.Errorf("%d pages, %d calls", pages, len(seen))
			}
			break
		}
		in.Cursor = &out.NextCursor
	}
	in.Device = ""
	_, err := r.Calls(t.Context(), in)
	refusedWith(t, err, fault.InvalidCursor, "")
}

func TestOldOutputsAreForgotten(t *testing.T) {
	var c clock
	r := newRelay(t, func(o *Options) { o.Now = c.now })
	d := r.connect("laptop", r.pairDevice("laptop"))
	keyed := echo("laptop")
	keyed.RequestID = "key"
	var ids []string
	for _, in := range []CallIn{keyed, echo("laptop")} {
		call := r.start(t.Context(), alice, in)
		ids = append(ids, d.answer("x").text("ref"))
		within(t, call)
	}
	c.advance(8 * 24 * time.Hour)
	if err := r.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		_, err := r.Call(t.Context(), alice, CallIn{CallID: id})
		refusedWith(t, err, NoOutput, "")
	}
	c.advance(90 * 24 * time.Hour)
	if err := r.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := r.Call(t.Context(), alice, keyed) // the receipt of a key stays
	refusedWith(t, err, NoOutput, "")
	_, err = r.Call(t.Context(), alice, CallIn{CallID: ids[1]})
	refusedWith(t, err, UnknownCall, "")
}

func TestEachCallIsInTheAuditLog(t *testing.T) {
	r := newRelay(t)
	d := r.connect("laptop", r.pairDevice("laptop"))
	call := r.start(t.Context(), alice, echo("laptop"))
	f := d.answer("x")
	within(t, call)
	var got []string
	err := store.Read(t.Context(), r.store, func(q *store.Reader) error {
		return q.Query(func(s store.Scanner) error {
			var line string
			err := s.Scan(&line)
			got = append(got, line)
			return err
		}, `SELECT action || ' ' || outcome || ' ' || client_id || ' ' || json_extract(detail, '$.device') || ' ' || json_extract(detail, '$.tool') || ' ' || json_extract(detail, '$.args') FROM audit_log WHERE subject = ? ORDER BY id`, f.text("ref"))
	})
	hash := r.stored(f.text("ref")).argsHash
	want := []string{"device.call ok a laptop echo " + hash, "device.result ok a laptop echo " + hash}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v %v", got, err)
	}
}

// TestAResultAndADeadlineAtOneInstant: one wins, and what the caller reads is what is
// stored.
func TestAResultAndADeadlineAtOneInstant(t *testing.T) {
	r := newRelay(t, func(o *Options) { o.Times.Budget = 60 * time.Millisecond })
	d := r.connect("laptop", r.pairDevice("laptop"))
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			f, err := d.next()
			if err != nil {
				return
			}
			if f.text("type") == "call" {
				wg.Go(func() {
					time.Sleep(60 * time.Millisecond)
					_ = d.try(frame{"type": "tool_result", "ref": f["ref"], "ok": true, "output": "x"})
				})
			}
		}
	})
	done, late := 0, 0
	for range 40 {
		got := within(t, r.start(t.Context(), alice, echo("laptop")))
		var e *fault.Error
		switch {
		case got.err == nil:
			done++
		case errors.As(got.err, &e) && e.Code == TimedOut.Code:
			late++
		default:
			t.Fatal(got.err)
		}
	}
	t.Logf("%d results won, %d deadlines", done, late)
	d.conn.CloseNow()
	wg.Wait()
	page, err := r.Calls(t.Context(), CallsIn{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range page.Calls {
		if c.State == "done" {
			done--
		} else {
			late--
		}
	}
	if done != 0 || late != 0 {
		t.Errorf("the callers and the store differ by %d and %d", done, late)
	}
}

// TestACallerWhoLeavesAtAnyInstant leaves no call behind that would ask a human.
func TestACallerWhoLeavesAtAnyInstant(t *testing.T) {
	r := newRelay(t)
	d := r.connect("laptop", r.pairDevice("laptop"))
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			if _, err := d.next(); err != nil {
				return
			}
		}
	})
	for i := range 60 {
		ctx, leave := context.WithTimeout(t.Context(), time.Duration(i)*200*time.Microsecond)
		within(t, r.start(ctx, alice, echo("laptop")))
		leave()
	}
	eventually(t, "no call is open", func() bool { return r.openCalls("laptop") == 0 })
	all, err := r.ListPaired(t.Context())
	if err != nil || all[0].OpenCalls != 0 {
		t.Errorf("%+v %v", all, err)
	}
	d.conn.CloseNow()
	wg.Wait()
}
