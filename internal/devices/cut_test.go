package devices

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// The places at which the link of a call is cut, by the device's frames.
const (
	beforeReady = iota // hello is sent, ready is not read
	afterReady         // no call has come
	afterCall          // the call was read, nothing ran
	afterRun           // it ran, the result is not sent
	afterResult        // the result is sent, the ack is not read
	afterAck           // all is said
	places
)

// keeper is a device that keeps its promise of resume: it runs each ref once and
// keeps results until they are acknowledged.
type keeper struct {
	t       *testing.T
	r       *relay
	token   string
	runs    map[string]int
	results map[string]string // not acknowledged
	done    map[string]bool   // acknowledged
	cuts    []int             // where the next links are cut
}

func (k *keeper) cut(d *stranger, place int) bool {
	if len(k.cuts) == 0 || k.cuts[0] != place {
		return false
	}
	k.cuts = k.cuts[1:]
	d.conn.CloseNow()
	return true
}

// link serves one link until it is cut or a result is acknowledged.
func (k *keeper) link() {
	conn, _, err := websocket.Dial(k.t.Context(), k.r.url, nil)
	if err != nil { // the relay restarts
		time.Sleep(5 * time.Millisecond)
		return
	}
	d := &stranger{k.t, conn}
	defer d.conn.CloseNow()
	f := hello("laptop", k.token)
	f["resume"] = true
	if d.try(f) != nil || k.cut(d, beforeReady) {
		return
	}
	if f, err := d.next(); err != nil || f.text("type") != "ready" || k.cut(d, afterReady) {
		return
	}
	for ref := range k.results {
		k.report(d, ref)
	}
	for {
		f, err := d.next()
		if err != nil {
			return
		}
		switch ref := f.text("ref"); f.text("type") {
		case "call":
			if k.results[ref] != "" || k.done[ref] {
				k.report(d, ref)
				continue
			}
			if k.cut(d, afterCall) {
				return
			}
			k.runs[ref]++
			args, _ := f["args"].(map[string]any)
			k.results[ref] = fmt.Sprint(args["text"])
			if k.cut(d, afterRun) {
				return
			}
			k.report(d, ref)
			if k.cut(d, afterResult) {
				return
			}
		case "ack":
			k.done[ref] = true
			delete(k.results, ref)
			k.cut(d, afterAck)
			return
		case "deny":
			k.t.Errorf("a call was denied: %v", f)
		}
	}
}

func (k *keeper) report(d *stranger, ref string) {
	_ = d.try(frame{"type": "tool_result", "ref": ref, "ok": true, "output": k.results[ref]})
}

// TestALinkThatIsCutAtEachFrame: a hundred calls, each with the link cut at one place
// or at several, and with restarts of the relay between: each runs once, and its
// result comes once.
func TestALinkThatIsCutAtEachFrame(t *testing.T) {
	r := newRelay(t, func(o *Options) { o.Times.Patience = 20 * time.Second })
	k := &keeper{t: t, r: r, token: r.pairDevice("laptop"), runs: map[string]int{}, results: map[string]string{}, done: map[string]bool{}}
	for round := range 100 {
		k.cuts = nil
		for place := range places {
			if place == round%places || rand.N(4) == 0 {
				k.cuts = append(k.cuts, place)
			}
		}
		what := fmt.Sprintf("round %d, cut at %v", round, k.cuts)
		in := CallIn{Device: "laptop", Tool: "echo", Args: json.RawMessage(fmt.Sprintf(`{"text":"r%d"}`, round)), Reason: "x", RequestID: fmt.Sprintf("r-%d", round)}
		d := r.connect("laptop", k.token, "resume", true) // there when the call is made, gone before it comes
		call := r.start(t.Context(), alice, in)
		eventually(t, "the call is stored", func() bool { return r.openCalls("laptop") == 1 })
		d.conn.CloseNow()
		served := make(chan struct{})
		go func() {
			defer close(served)
			for len(k.done) <= round {
				k.link()
			}
		}()
		var got result
		if round%10 == 9 { // the relay restarts too, and the caller asks again
			r.restart()
			within(t, call)
			got = within(t, r.start(t.Context(), alice, in))
		} else {
			got = within(t, call)
		}
		if got.err != nil || got.out.Output != fmt.Sprintf("r%d", round) {
			t.Fatalf("%s: %+v", what, got)
		}
		within(t, served)
		if n := k.runs[got.out.CallID]; n != 1 {
			t.Fatalf("%s: it ran %d times", what, n)
		}
	}
	if len(k.runs) != 100 {
		t.Errorf("%d calls ran", len(k.runs))
	}
	if strings.Contains(r.log.String(), "panic") {
		t.Error(r.log.String())
	}
}

// TestADeviceWithoutResumeIsNeverAskedTwice, wherever its link is cut; a result that
// it still brings is taken, and else the failure is known.
func TestADeviceWithoutResumeIsNeverAskedTwice(t *testing.T) {
	r := newRelay(t, func(o *Options) { o.Times.Budget = 400 * time.Millisecond })
	token := r.pairDevice("laptop")
	for round := range 10 {
		d := r.connect("laptop", token)
		call := r.start(t.Context(), alice, echo("laptop"))
		f := d.want("call")
		d.conn.CloseNow()
		d = r.connect("laptop", token)
		if round%2 == 0 {
			d.send(frame{"type": "tool_result", "ref": f["ref"], "ok": true, "output": "kept"})
			if got := within(t, call); got.err != nil || got.out.Output != "kept" {
				t.Fatalf("%+v", got)
			}
			d.send(frame{"type": "ping"})
			d.want("pong")
		} else {
			refusedWith(t, within(t, call).err, TimedOut, "")
			if deny := d.want("deny"); deny["ref"] != f["ref"] {
				t.Fatal(deny)
			}
		}
		d.conn.CloseNow()
	}
}
