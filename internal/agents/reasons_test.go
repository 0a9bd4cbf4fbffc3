package agents

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/agents/paseo/paseotest"
)

// reader is a daemon whose timelines are read through a function.
type reader struct {
	Daemon
	read func(ctx context.Context, q paseo.TimelineQuery, d Daemon) (paseo.TimelinePage, error)
}

func (r reader) Timeline(ctx context.Context, q paseo.TimelineQuery) (paseo.TimelinePage, error) {
	return r.read(ctx, q, r.Daemon)
}

type alteration func(paseo.TimelineQuery, paseo.TimelinePage) (paseo.TimelinePage, error)

// alterations are pages that read badly, by the reason that this gives.
func alterations() map[string]alteration {
	far := func(seq int64, epoch string) paseo.TimelinePage { // a page of a long history, without the prompt
		at := &paseo.Cursor{Epoch: epoch, Seq: seq}
		return paseo.TimelinePage{Epoch: epoch, StartCursor: at, EndCursor: at, HasOlder: true, Entries: []paseo.Entry{{SeqStart: seq, SeqEnd: seq, Item: paseo.Item{Type: "assistant_message", Text: "x"}, Raw: []byte(`{}`)}}}
	}
	return map[string]alteration{
		reasonCursor: func(_ paseo.TimelineQuery, p paseo.TimelinePage) (paseo.TimelinePage, error) {
			return far(1_000_000, p.Epoch), nil
		},
		reasonWindow: func(q paseo.TimelineQuery, p paseo.TimelinePage) (paseo.TimelinePage, error) {
			if q.Cursor != nil {
				return far(q.Cursor.Seq-1, q.Cursor.Epoch), nil
			}
			return far(1_000_000, p.Epoch), nil
		},
		reasonTailMoved: func(q paseo.TimelineQuery, p paseo.TimelinePage) (paseo.TimelinePage, error) {
			if q.Limit == 1 && p.EndCursor != nil {
				p.EndCursor.Seq++
			}
			return p, nil
		},
		reasonReadFailed: func(paseo.TimelineQuery, paseo.TimelinePage) (paseo.TimelinePage, error) {
			return paseo.TimelinePage{}, &paseo.Rejected{Message: "too much"}
		},
	}
}

// TestReasonsOfReading: an agent is idle after a run whose end nobody saw, and its
// timeline reads badly. That is said, nothing is claimed, and what is there is found
// as soon as it reads well again.
func TestReasonsOfReading(t *testing.T) {
	for want, read := range alterations() {
		t.Run(want, func(t *testing.T) {
			r := started(t, paseotest.V05)
			agentID := r.create("ended", "sleep 1.2")
			r.halt()
			aside := paseo.New(paseo.Options{HostID: here, Dial: r.daemon[here].Dial})
			runAside(t, aside)
			eventually(t, "the end", func() bool {
				a, err := aside.FetchAgent(t.Context(), agentID)
				return err == nil && a.Status == paseo.AgentIdle
			})
			var well atomic.Bool
			r.alter = func(d Daemon) Daemon {
				return reader{d, func(ctx context.Context, q paseo.TimelineQuery, d Daemon) (paseo.TimelinePage, error) {
					if well.Load() {
						return d.Timeline(ctx, q)
					}
					asked := q
					if q.Cursor != nil && q.Cursor.Seq > 1000 {
						asked = paseo.TimelineQuery{AgentID: q.AgentID}
					}
					page, err := d.Timeline(ctx, asked)
					if err != nil {
						return page, err
					}
					return read(q, page)
				}}
			}
			r.start()
			out, err := r.s.GetRequestResult(t.Context(), r.who, GetRequestResultIn{OnHost: OnHost{here}, RequestID: "ended"})
			if err != nil || out.Reason != want || out.SavedResult || out.TerminalKind != nil || out.LastMessage != nil || out.Status != "pending" && out.Status != "unmatched" {
				t.Errorf("%s, %v", asJSON(t, out), err)
			}
			well.Store(true)
			if out := r.wait("ended", agentID); out.Status != "result_available" || text(out.LastMessage) != "slept 1.2" {
				t.Errorf("%s", asJSON(t, out))
			}
		})
	}
}

// TestAWaitEndsWithTheGateway at once, and says so.
func TestAWaitEndsWithTheGateway(t *testing.T) {
	r := started(t, paseotest.V10)
	agentID := r.create("long", "sleep 30")
	r.running(agentID)
	type answer struct {
		out Result
		err error
	}
	done := make(chan answer, 1)
	go func() {
		ms := MaxWaitMs
		out, err := r.s.WaitForAgentResult(context.Background(), r.who, WaitForAgentResultIn{OnHost: OnHost{here}, RequestID: "long", AgentID: agentID, TimeoutMs: &ms})
		done <- answer{out, err}
	}()
	eventually(t, "the wait", func() bool {
		row, _, err := r.s.read(t.Context(), byKey, r.who.Owner, here, "long")
		v, seen := r.s.followers[here].viewOf(row, 0)
		r.s.news.mu.Lock()
		defer r.s.news.mu.Unlock()
		return err == nil && seen && v.status == "running" && len(r.s.news.waiting) > 0
	})
	began := time.Now()
	r.halt()
	if a := <-done; a.err != nil || a.out.Reason != reasonStopping || a.out.SavedResult || time.Since(began) > 10*time.Second {
		t.Errorf("after %v: %s, %v", time.Since(began), asJSON(t, a.out), a.err)
	}
}
