package paseo_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/agents/paseo/paseotest"
)

func TestReconnectionsAreToldAndTheDaemonsProcessCompared(t *testing.T) {
	for _, version := range []string{paseotest.V01, paseotest.V05, paseotest.V10} {
		t.Run(version, func(t *testing.T) {
			d := paseotest.Start(t, paseotest.Options{Version: version})
			f := run(t, quick(d))
			first := f.until("the connection", func(e paseo.Event) bool { _, ok := e.(paseo.Connected); return ok }).(paseo.Connected)
			if first.Generation != 1 || first.Info.Version != version {
				t.Fatalf("first = %+v", first)
			}
			if e := f.restored(); e.Process != paseo.ProcessUnknown {
				t.Fatalf("first restored = %+v", e)
			}
			told := version != paseotest.V01
			for n, change := range []struct {
				do   func() error
				want paseo.ProcessChange
			}{
				{func() error { d.CutAfter(0); _, _ = f.FetchAgents(within(t, patience), paseo.AgentQuery{}); return nil }, paseo.ProcessSame},
				{d.RestartWorker, paseo.ProcessChanged},
				{func() error { d.Terminate(); return d.Restart() }, paseo.ProcessChanged},
			} {
				if err := change.do(); err != nil {
					t.Fatal(err)
				}
				lost := f.until("the end", func(e paseo.Event) bool { _, ok := e.(paseo.Disconnected); return ok }).(paseo.Disconnected)
				if lost.Code != paseo.ConnectionLost || lost.Reason == "" {
					t.Fatalf("%d: lost = %+v", n, lost)
				}
				if e := f.restored(); told && e.Process != change.want || !told && e.Process != paseo.ProcessUnknown {
					t.Fatalf("%d: restored = %+v", n, e)
				}
			}
		})
	}
}

func TestTheWatchSetOutlivesTheConnection(t *testing.T) {
	for _, version := range paseotest.Versions() {
		t.Run(version, func(t *testing.T) {
			d := paseotest.Start(t, paseotest.Options{Version: version})
			f := connected(t, quick(d))
			watched, other := mustAgent(t, f, ""), mustAgent(t, f, "")
			if err := f.Watch(within(t, patience), []string{watched.ID}); err != nil {
				t.Fatal(err)
			}
			d.Terminate()
			if err := d.Restart(); err != nil {
				t.Fatal(err)
			}
			f.restored()
			for _, a := range []paseo.Agent{other, watched} {
				if err := f.SendMessage(within(t, patience), paseo.Prompt{AgentID: a.ID, Text: "hello", MessageID: "after-" + a.ID}); err != nil {
					t.Fatal(err)
				}
			}
			f.until("the watched turn", func(e paseo.Event) bool {
				switch e := e.(type) {
				case paseo.TurnChanged:
					if e.AgentID == other.ID {
						t.Fatal("an event of an agent nobody watches")
					}
					return e.Phase == paseo.TurnCompleted
				case paseo.RowAdded:
					if e.AgentID == other.ID || e.Epoch == "" || e.Seq < 1 {
						t.Fatalf("row = %+v", e)
					}
				}
				return false
			})
			f.until("the attention of the other", func(e paseo.Event) bool {
				a, ok := e.(paseo.AttentionRequired)
				return ok && a.AgentID == watched.ID || ok && a.AgentID == other.ID && a.Reason == "finished"
			})
		})
	}
}

func TestBreaksInATimelineAreTold(t *testing.T) {
	d := paseotest.Start(t, paseotest.Options{})
	f := connected(t, quick(d))
	a := mustAgent(t, f, "")
	if err := f.Watch(within(t, patience), []string{a.ID}); err != nil {
		t.Fatal(err)
	}
	prompt := func(id string) {
		t.Helper()
		if err := f.SendMessage(within(t, patience), paseo.Prompt{AgentID: a.ID, Text: "hi", MessageID: id}); err != nil {
			t.Fatal(err)
		}
	}
	prompt("1")
	f.turn(a.ID, paseo.TurnCompleted)
	d.Skip(a.ID, 5)
	prompt("2")
	if e := f.discontinuity(paseo.SequenceGap); e.AgentID != a.ID {
		t.Fatalf("gap = %+v", e)
	}
	f.turn(a.ID, paseo.TurnCompleted)
	d.Skip(a.ID, -3)
	prompt("3")
	f.discontinuity(paseo.SequenceReset)
	f.turn(a.ID, paseo.TurnCompleted)
	if err := f.ArchiveAgent(within(t, patience), a.ID); err != nil {
		t.Fatal(err)
	}
	prompt("4")
	f.discontinuity(paseo.EpochChanged)
	f.turn(a.ID, paseo.TurnCompleted)
	d.Replace(a.ID)
	f.discontinuity(paseo.Replacement)
}

// TestRestartsAreNotTakenForTheEnd walks through the lies a daemon tells of a run
// that a restart ended.
func TestRestartsAreNotTakenForTheEnd(t *testing.T) {
	for _, version := range paseotest.Versions() {
		for _, graceful := range []bool{true, false} {
			t.Run(fmt.Sprint(version, graceful), func(t *testing.T) {
				d := paseotest.Start(t, paseotest.Options{Version: version})
				f := connected(t, quick(d))
				a := mustAgent(t, f, "sleep 60")
				wantStatus := paseo.AgentRunning // a phantom
				if graceful {
					wantStatus = paseo.AgentClosed
					d.Terminate()
				} else {
					d.Kill()
				}
				if err := d.Restart(); err != nil {
					t.Fatal(err)
				}
				f.restored()
				got, err := f.FetchAgent(within(t, patience), a.ID)
				if err != nil || got.Status != wantStatus || got.Turn != paseo.TurnAbsent || got.AttentionReason != "" {
					t.Fatalf("%v, agent = %s %s", err, got.Status, got.Turn)
				}
				finish, err := f.WaitForFinish(within(t, patience), a.ID, time.Second)
				if err != nil || finish.Status != "idle" || finish.Final.Status != wantStatus || finish.LastMessage != "" {
					t.Fatalf("%v, finish = %+v", err, finish)
				}
				page, err := f.Timeline(within(t, patience), paseo.TimelineQuery{AgentID: a.ID})
				if err != nil || len(page.Entries) != 0 || page.Agent.Status != paseo.AgentIdle {
					t.Fatalf("%v, page = %+v", err, page)
				}
				if version != paseotest.V01 && page.Agent.Turn != paseo.TurnNone {
					t.Fatalf("turn of a loaded agent: %s", page.Agent.Turn)
				}
			})
		}
	}
}

func TestAReplayedTimelineHasNoIDs(t *testing.T) {
	d := paseotest.Start(t, paseotest.Options{})
	f := connected(t, quick(d))
	a, err := f.CreateAgent(within(t, patience), paseo.NewAgent{Provider: "fake-replay", CWD: t.TempDir(), Title: "replay"})
	if err != nil {
		t.Fatal(err)
	}
	for n, text := range []string{"sleep 10", "silent", "hello"} {
		if err := f.SendMessage(within(t, patience), paseo.Prompt{AgentID: a.ID, Text: text, MessageID: fmt.Sprint("m", n)}); err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			if _, err := f.WaitForFinish(within(t, patience), a.ID, patience); err != nil {
				t.Fatal(err)
			}
		}
	}
	d.Terminate()
	if err := d.Restart(); err != nil {
		t.Fatal(err)
	}
	f.restored()
	page, err := f.Timeline(within(t, patience), paseo.TimelineQuery{AgentID: a.ID})
	if err != nil || len(page.Entries) == 0 {
		t.Fatalf("%v, page = %+v", err, page)
	}
	first := page.Entries[0]
	if first.TurnID != "" || first.Item.MessageID != "" || first.Item.ClientMessageID != "" || !strings.HasPrefix(first.Item.Text, "sleep 10silent") {
		t.Fatalf("first row = %+v", first)
	}
}

func TestASlowFollowerLosesEventsAndKnowsIt(t *testing.T) {
	d := paseotest.Start(t, paseotest.Options{})
	o := quick(d)
	o.QueueEvents = 20
	f := connected(t, o)
	slow := f.Subscribe()
	t.Cleanup(slow.Close)
	a := mustAgent(t, f, "")
	if err := f.Watch(within(t, patience), []string{a.ID}); err != nil {
		t.Fatal(err)
	}
	if err := f.SendMessage(within(t, patience), paseo.Prompt{AgentID: a.ID, Text: "stream 200 0s"}); err != nil {
		t.Fatal(err)
	}
	f.turn(a.ID, paseo.TurnCompleted)
	if _, err := f.FetchAgent(within(t, patience), a.ID); err != nil {
		t.Fatal(err)
	}
	first, err := slow.Next(within(t, patience))
	if gap, ok := first.(paseo.Discontinuity); err != nil || !ok || gap.Reason != paseo.Overflow {
		t.Fatalf("first = %#v, %v", first, err)
	}
}

func TestSubscriptionsEndWithTheClient(t *testing.T) {
	d := paseotest.Start(t, paseotest.Options{})
	c := paseo.New(quick(d))
	sub := c.Subscribe()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	for {
		e, err := sub.Next(within(t, patience))
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := e.(paseo.Connected); ok {
			break
		}
	}
	cancel()
	<-done
	for {
		if _, err := sub.Next(within(t, patience)); err != nil {
			if !errors.Is(err, paseo.ErrClosed) {
				t.Fatal(err)
			}
			break
		}
	}
	var notSent *paseo.NotSent
	if _, err := c.FetchAgents(within(t, patience), paseo.AgentQuery{}); !errors.As(err, &notSent) || notSent.Code != paseo.Stopped {
		t.Fatalf("err = %v", err)
	}
	if _, err := c.Subscribe().Next(within(t, patience)); !errors.Is(err, paseo.ErrClosed) {
		t.Fatalf("err = %v", err)
	}
}

func TestARefusedSubscriptionIsToldAfterRestored(t *testing.T) {
	d := paseotest.Start(t, paseotest.Options{})
	d.Order(paseotest.Fault{Request: "agent.timeline.set_subscription.request", Act: paseotest.Refuse, Error: "no"})
	f := connected(t, quick(d))
	f.discontinuity(paseo.SubscriptionError)
	if d.Opened() != 1 {
		t.Fatalf("%d connections", d.Opened())
	}
}
