package paseo_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/agents/paseo/paseotest"
)

func newAgent(t testing.TB, f *follower, prompt string) (paseo.Agent, error) {
	return f.CreateAgent(within(t, patience), paseo.NewAgent{Provider: "fake", CWD: t.TempDir(), Title: "test", Prompt: prompt})
}

func mustAgent(t testing.TB, f *follower, prompt string) paseo.Agent {
	t.Helper()
	a, err := newAgent(t, f, prompt)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestACallToADaemonThatIsDownWasNotSent(t *testing.T) {
	d := paseotest.Start(t, paseotest.Options{})
	d.Kill()
	f := run(t, quick(d))
	f.state(paseo.Down, paseo.Unreachable)
	_, err := newAgent(t, f, "")
	var notSent *paseo.NotSent
	if !errors.As(err, &notSent) || notSent.Code != paseo.Unreachable || paseo.MaybeHappened(err) {
		t.Fatalf("err = %v", err)
	}
	if !strings.Contains(notSent.Reason, "is the daemon running") {
		t.Fatalf("reason %q", notSent.Reason)
	}
}

func TestACallAfterTheDaemonCameBackDoesNotWaitOutThePause(t *testing.T) {
	d := paseotest.Start(t, paseotest.Options{})
	d.Kill()
	o := quick(d)
	o.BackoffMin, o.BackoffMax, o.Rand = time.Hour, time.Hour, func() float64 { return 1 }
	clock := atomic.Int64{}
	o.Now = func() time.Time { return time.Unix(clock.Load(), 0) }
	f := run(t, o)
	f.state(paseo.Down, paseo.Unreachable)
	if err := d.Restart(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.FetchAgents(within(t, patience), paseo.AgentQuery{}); err == nil {
		t.Fatal("an attempt was made at once after a failed one")
	}
	clock.Add(5)
	if _, err := f.FetchAgents(within(t, patience), paseo.AgentQuery{}); err != nil {
		t.Fatal(err)
	}
}

// TestWhatIsKnownOfALostCall orders a loss at every stage of a create and of a
// prompt, and checks what the client claims against what happened.
func TestWhatIsKnownOfALostCall(t *testing.T) {
	for _, request := range []string{"create_agent_request", "send_agent_message_request"} {
		for _, act := range []paseotest.Act{paseotest.Cut, paseotest.Crash} {
			for stage, happened := range map[paseotest.Stage]bool{
				paseotest.Received: false, paseotest.Journalled: false, paseotest.Done: true, paseotest.Completed: true,
			} {
				t.Run(fmt.Sprint(request, act, stage), func(t *testing.T) {
					d := paseotest.Start(t, paseotest.Options{})
					f := connected(t, quick(d))
					a := mustAgent(t, f, "")
					d.Order(paseotest.Fault{Request: request, Stage: stage, Act: act})
					var err error
					if request == "create_agent_request" {
						_, err = newAgent(t, f, "made")
					} else {
						err = f.SendMessage(within(t, patience), paseo.Prompt{AgentID: a.ID, Text: "made", MessageID: "m1"})
					}
					if !paseo.MaybeHappened(err) {
						t.Fatalf("err = %v", err)
					}
					prompts, err := d.Prompts()
					if err != nil || (len(prompts) == 1) != happened {
						t.Fatalf("%d prompts, %v", len(prompts), err)
					}
				})
			}
		}
	}
}

// TestAKeyIsResolvedAfterACrash crashes the daemon at every stage of a keyed
// create and prompt, and asks again with the same key.
func TestAKeyIsResolvedAfterACrash(t *testing.T) {
	type want struct {
		prompts int
		code    string // of the repeat; "" is success
	}
	for stage, want := range map[paseotest.Stage]want{
		paseotest.Received:   {1, ""},
		paseotest.Journalled: {0, paseo.CodeOutcomeUnknown},
		paseotest.Done:       {1, paseo.CodeOutcomeUnknown},
		paseotest.Completed:  {1, ""},
	} {
		t.Run("prompt "+string(stage), func(t *testing.T) {
			d := paseotest.Start(t, paseotest.Options{})
			f := connected(t, quick(d))
			a := mustAgent(t, f, "")
			d.Order(paseotest.Fault{Request: "send_agent_message_request", Stage: stage, Act: paseotest.Crash})
			prompt := paseo.Prompt{AgentID: a.ID, Text: "silent", MessageID: "m1"}
			if err := f.SendMessage(within(t, patience), prompt); !paseo.MaybeHappened(err) {
				t.Fatalf("first: %v", err)
			}
			if err := d.Restart(); err != nil {
				t.Fatal(err)
			}
			f.restored()
			err := f.SendMessage(within(t, patience), prompt)
			var lost *paseo.Lost
			if want.code == "" && err != nil || want.code != "" && (!errors.As(err, &lost) || lost.Code != want.code) {
				t.Fatalf("repeat: %v", err)
			}
			if prompts, _ := d.Prompts(); len(prompts) != want.prompts {
				t.Fatalf("%d prompts ran", len(prompts))
			}
		})
	}
	for _, stage := range []paseotest.Stage{paseotest.Received, paseotest.Done, paseotest.Completed} {
		t.Run("create "+string(stage), func(t *testing.T) {
			d := paseotest.Start(t, paseotest.Options{})
			f := connected(t, quick(d))
			d.Order(paseotest.Fault{Request: "create_agent_request", Stage: stage, Act: paseotest.Crash})
			wanted := paseo.NewAgent{Provider: "fake", CWD: t.TempDir(), Title: "keyed", IdempotencyKey: "k1"}
			if _, err := f.CreateAgent(within(t, patience), wanted); !paseo.MaybeHappened(err) {
				t.Fatalf("first: %v", err)
			}
			if err := d.Restart(); err != nil {
				t.Fatal(err)
			}
			f.restored()
			made, err := f.CreateAgent(within(t, patience), wanted)
			if err != nil {
				t.Fatal(err)
			}
			page, err := f.FetchAgents(within(t, patience), paseo.AgentQuery{})
			if err != nil || len(page.Agents) != 1 || page.Agents[0].ID != made.ID {
				t.Fatalf("%d agents, %v", len(page.Agents), err)
			}
		})
	}
}

func TestAMessageTheProviderNeverGotMayBeSentAgain(t *testing.T) {
	d := paseotest.Start(t, paseotest.Options{})
	f := connected(t, quick(d))
	a := mustAgent(t, f, "")
	d.Order(paseotest.Fault{Request: "send_agent_message_request", Stage: paseotest.Journalled, Act: paseotest.Refuse, Error: "agent_request_not_accepted"})
	prompt := paseo.Prompt{AgentID: a.ID, Text: "silent", MessageID: "m1"}
	if err := f.SendMessage(within(t, patience), prompt); !paseo.RejectedAs(err, paseo.CodeNotAccepted) {
		t.Fatalf("first: %v", err)
	}
	if err := f.SendMessage(within(t, patience), prompt); err != nil {
		t.Fatal(err)
	}
}

func TestACallThatEndsWhileItWaitsIsLostAndHarmsNobody(t *testing.T) {
	d := paseotest.Start(t, paseotest.Options{})
	f := connected(t, quick(d))
	a := mustAgent(t, f, "")
	d.Order(paseotest.Fault{Request: "fetch_agent_request", Act: paseotest.Silence})
	_, err := f.FetchAgent(within(t, 50*time.Millisecond), a.ID)
	if !paseo.MaybeHappened(err) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("err = %v", err)
	}
	if _, err := f.FetchAgent(within(t, patience), a.ID); err != nil || d.Opened() != 1 {
		t.Fatalf("%v, %d connections", err, d.Opened())
	}
}

// stuck is a connection whose writes block from some point on.
type stuck struct {
	net.Conn
	blocked *atomic.Bool
	writing chan struct{}
	freed   chan struct{}
}

func (s *stuck) Write(b []byte) (int, error) {
	if s.blocked.Load() {
		s.writing <- struct{}{}
		<-s.freed
		return 0, io.ErrClosedPipe
	}
	return s.Conn.Write(b)
}

func TestACallBehindAStuckOneWasNotSent(t *testing.T) {
	d := paseotest.Start(t, paseotest.Options{})
	var blocked atomic.Bool
	writing, freed := make(chan struct{}, 8), make(chan struct{})
	o := quick(d)
	o.Dial = func(ctx context.Context) (net.Conn, error) {
		conn, err := d.Dial(ctx)
		if err != nil {
			return nil, err
		}
		return &stuck{conn, &blocked, writing, freed}, nil
	}
	f := connected(t, o)
	blocked.Store(true)
	first := make(chan error, 1)
	go func() {
		_, err := f.FetchAgent(context.Background(), "a")
		first <- err
	}()
	<-writing
	var notSent *paseo.NotSent
	if _, err := f.FetchAgent(within(t, 20*time.Millisecond), "b"); !errors.As(err, &notSent) {
		t.Fatalf("the call behind it: %v", err)
	}
	blocked.Store(false)
	close(freed)
	if err := <-first; !paseo.MaybeHappened(err) {
		t.Fatalf("the call that was being written: %v", err)
	}
	if d.Asked("fetch_agent_request") != 0 {
		t.Fatal("a withdrawn call was sent")
	}
}

func TestTheMCPEndpointIsSpokenAsEachVersionWants(t *testing.T) {
	for _, version := range paseotest.Versions() {
		t.Run(version, func(t *testing.T) {
			d := paseotest.Start(t, paseotest.Options{Version: version})
			f := connected(t, quick(d))
			a := mustAgent(t, f, "")
			for round := range 2 {
				if _, err := f.AgentActivity(within(t, patience), a.ID, 5); err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
				d.Terminate() // and with it the session, where there is one
				if err := d.Restart(); err != nil {
					t.Fatal(err)
				}
				f.restored()
			}
			var notSent *paseo.NotSent
			if _, err := f.AgentActivity(within(t, patience), strings.Repeat("x", 110_000), 5); !errors.As(err, &notSent) {
				t.Fatalf("too large: %v", err)
			}
		})
	}
	d := paseotest.Start(t, paseotest.Options{BodyLimit: 500})
	f := connected(t, quick(d))
	if _, err := f.AgentActivity(within(t, patience), strings.Repeat("x", 1000), 5); !paseo.RejectedAs(err, paseo.CodeTooLarge) {
		t.Fatalf("beyond the daemon's limit: %v", err)
	}
}

func TestAPartlyRefusedUpdateSaysWhatWasDone(t *testing.T) {
	d := paseotest.Start(t, paseotest.Options{})
	f := connected(t, quick(d))
	a := mustAgent(t, f, "")
	d.Order(paseotest.Fault{Request: "set_agent_model_request", Stage: paseotest.Done, Act: paseotest.Refuse, Error: "no such model"})
	model, none := "other", ""
	err := f.UpdateAgent(within(t, patience), paseo.AgentChange{AgentID: a.ID, Name: "new", ModeID: "plan", Model: &model, ThinkingOptionID: &none})
	var no *paseo.Rejected
	if !errors.As(err, &no) || strings.Join(no.Applied, ",") != "name and labels,modeId" {
		t.Fatalf("err = %#v", err)
	}
	got, err := f.FetchAgent(within(t, patience), a.ID)
	if err != nil || got.Title != "new" || got.ModeID != "plan" {
		t.Fatalf("%v, agent = %+v", err, got)
	}
}

func TestAPermissionIsAnsweredOnce(t *testing.T) {
	for _, version := range paseotest.Versions() {
		t.Run(version, func(t *testing.T) {
			d := paseotest.Start(t, paseotest.Options{Version: version})
			f := connected(t, quick(d))
			a := mustAgent(t, f, "perm-exec")
			asked := f.until("a permission", func(e paseo.Event) bool { _, ok := e.(paseo.PermissionRequested); return ok }).(paseo.PermissionRequested)
			// Two answers at once: one is taken, and the other is told so.
			answers := make(chan error, 2)
			for _, behavior := range []string{"allow", "deny"} {
				go func() {
					answers <- f.RespondPermission(within(t, patience), paseo.PermissionAnswer{
						AgentID: a.ID, PermissionID: asked.Permission.ID, Response: json.RawMessage(`{"behavior":"` + behavior + `"}`),
					})
				}()
			}
			taken, refused := 0, 0
			for range 2 {
				switch err := <-answers; {
				case err == nil:
					taken++
				case paseo.RejectedAs(err, paseo.CodePermissionNotPending):
					refused++
				default:
					t.Fatal(err)
				}
			}
			if taken != 1 || refused != 1 {
				t.Fatalf("%d taken, %d refused", taken, refused)
			}
		})
	}
}

func TestASlowAnswerHoldsUpNoOther(t *testing.T) {
	d := paseotest.Start(t, paseotest.Options{})
	f := connected(t, quick(d))
	a := mustAgent(t, f, "")
	d.Order(paseotest.Fault{Request: "fetch_agent_timeline_request", Act: paseotest.Delay, Delay: 300 * time.Millisecond})
	slow := make(chan time.Time, 1)
	go func() {
		_, _ = f.Timeline(within(t, patience), paseo.TimelineQuery{AgentID: a.ID})
		slow <- time.Now()
	}()
	for d.Asked("fetch_agent_timeline_request") == 0 {
		time.Sleep(time.Millisecond)
	}
	if _, err := f.FetchAgent(within(t, patience), a.ID); err != nil {
		t.Fatal(err)
	}
	if quick := time.Now(); !quick.Before(<-slow) {
		t.Fatal("a quick call waited for a slow one")
	}
}
