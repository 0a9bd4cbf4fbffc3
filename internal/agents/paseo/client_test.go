package paseo_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/agents/paseo/paseotest"
	"agentrelay/internal/fault"
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

func TestPasswords(t *testing.T) {
	give := func(s string) func() (string, error) { return func() (string, error) { return s, nil } }
	for name, one := range map[string]struct {
		password func() (string, error)
		code     paseo.Code
	}{
		"none":       {nil, paseo.PasswordNeeded},
		"empty":      {give(""), paseo.PasswordNeeded},
		"wrong":      {give("guess"), paseo.PasswordWrong},
		"no token":   {give("two words"), paseo.PasswordUnusable},
		"unreadable": {func() (string, error) { return "", os.ErrNotExist }, paseo.PasswordUnusable},
	} {
		t.Run(name, func(t *testing.T) {
			d := paseotest.Start(t, paseotest.Options{Password: "open-sesame"})
			o := quick(d)
			o.Password = one.password
			f := run(t, o)
			s := f.state(paseo.Down, one.code)
			if s.Reason == "" || strings.Contains(s.Reason, "guess") || strings.Contains(s.Reason, "two words") {
				t.Fatalf("reason %q", s.Reason)
			}
			var notSent *paseo.NotSent
			if _, err := f.FetchAgents(within(t, patience), paseo.AgentQuery{}); !errors.As(err, &notSent) || notSent.Code != one.code && notSent.Code != paseo.Unreachable {
				t.Fatalf("err = %v", err)
			}
		})
	}
}

func TestAnotherIdentityIsSentNothingUntilItIsAccepted(t *testing.T) {
	d := paseotest.Start(t, paseotest.Options{})
	o := quick(d)
	o.Pinned = d.ServerID()
	var kept atomic.Int64
	o.OnIdentity = func(paseo.ServerInfo) error { kept.Add(1); return nil }
	f := connected(t, o)
	was := d.ServerID()
	d.Kill()
	if err := d.SetServerID("srv_other"); err != nil {
		t.Fatal(err)
	}
	if err := d.Restart(); err != nil {
		t.Fatal(err)
	}
	s := f.state(paseo.Down, paseo.IdentityDiffers)
	if s.Found == nil || s.Found.ServerID != "srv_other" || s.Info.ServerID != was {
		t.Fatalf("status = %+v", s)
	}
	opened, asked := d.Opened(), d.Asked("fetch_agents_request")
	var changed *paseo.IdentityChanged
	if _, err := f.FetchAgents(within(t, patience), paseo.AgentQuery{}); !errors.As(err, &changed) || changed.Found != "srv_other" || changed.Pinned != was {
		t.Fatalf("err = %v", err)
	}
	if _, err := f.AgentActivity(within(t, patience), "a", 1); !errors.As(err, &changed) {
		t.Fatalf("over MCP: %v", err)
	}
	if d.Opened() != opened || d.Asked("fetch_agents_request") != asked || d.Asked("mcp:get_agent_activity") != 0 {
		t.Fatal("the other daemon was sent something")
	}
	f.AcceptIdentity("srv_other")
	f.restored()
	if kept.Load() != 2 {
		t.Fatalf("%d identities were shown", kept.Load())
	}
	f.AcceptIdentity("srv_third") // pinned while the other is connected
	f.state(paseo.Down, paseo.IdentityDiffers)
}

func TestAnIdentityThatCannotBeKeptIsNotUsed(t *testing.T) {
	d := paseotest.Start(t, paseotest.Options{})
	o := quick(d)
	var refusals atomic.Int64
	o.OnIdentity = func(paseo.ServerInfo) error {
		if refusals.Add(1) < 3 {
			return errors.New("disk full")
		}
		return nil
	}
	f := connected(t, o)
	if refusals.Load() != 3 || d.Asked("daemon.get_status.request") != 1 {
		t.Fatalf("%d tries, %d requests", refusals.Load(), d.Asked("daemon.get_status.request"))
	}
	_ = f
}

func TestPingsKeepTheLease(t *testing.T) {
	d := paseotest.Start(t, paseotest.Options{Lease: 300 * time.Millisecond})
	o := quick(d)
	o.PingEvery = 50 * time.Millisecond
	f := connected(t, o)
	if _, err := f.WaitForFinish(within(t, patience), mustAgent(t, f, "sleep 1").ID, patience); err != nil {
		t.Fatal(err)
	}
	if d.Opened() != 1 {
		t.Fatalf("%d connections", d.Opened())
	}
}

// mute is a connection on which nothing arrives while it is switched.
type mute struct {
	net.Conn
	on *atomic.Bool
}

func (m *mute) Read(b []byte) (int, error) {
	for {
		n, err := m.Conn.Read(b)
		if err != nil || !m.on.Load() {
			return n, err
		}
	}
}

func TestASilentDaemonIsDegradedAndThenGivenUp(t *testing.T) {
	d := paseotest.Start(t, paseotest.Options{})
	var silent atomic.Bool
	o := quick(d)
	o.PingEvery, o.PongWithin = 40*time.Millisecond, 600*time.Millisecond
	o.Dial = func(ctx context.Context) (net.Conn, error) {
		conn, err := d.Dial(ctx)
		if err != nil {
			return nil, err
		}
		return &mute{conn, &silent}, nil
	}
	f := connected(t, o)
	silent.Store(true)
	f.state(paseo.Degraded, paseo.NoAnswer)
	lost := f.until("the end", func(e paseo.Event) bool { _, ok := e.(paseo.Disconnected); return ok }).(paseo.Disconnected)
	if lost.Code != paseo.NoAnswer {
		t.Fatalf("lost = %+v", lost)
	}
	silent.Store(false)
	f.restored()
}

func TestAnAnswerBeyondTheLimitEndsTheConnectionOnly(t *testing.T) {
	d := paseotest.Start(t, paseotest.Options{})
	o := quick(d)
	o.MaxFrame = 200_000
	f := connected(t, o)
	a := mustAgent(t, f, "")
	if err := f.SendMessage(within(t, patience), paseo.Prompt{AgentID: a.ID, Text: strings.Repeat("x", 300_000) + "\nsilent"}); err != nil {
		t.Fatal(err)
	}
	var lost *paseo.Lost
	if _, err := f.Timeline(within(t, patience), paseo.TimelineQuery{AgentID: a.ID}); !errors.As(err, &lost) || !strings.Contains(lost.Reason, "larger") {
		t.Fatalf("err = %v", err)
	}
	f.restored()
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

func TestReasonsSayNoPathsAndFaultsSpeakForThemselves(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "owner", "daemon.sock")
	for name, one := range map[string]struct {
		err  error
		want string
	}{
		"socket":  {&net.OpError{Op: "dial", Err: &os.PathError{Op: "connect", Path: secret, Err: syscall.ENOENT}}, "does not exist"},
		"refused": {&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, "is the daemon running"},
		"denied":  {&net.OpError{Op: "dial", Err: syscall.EACCES}, "may not be opened"},
		"slow":    {os.ErrDeadlineExceeded, "in time"},
		"other":   {errors.New("weird " + secret), "could not be reached"},
		"fault":   {fault.Kind{Code: "host_unavailable"}.New("The host sleeps since 9."), "The host sleeps since 9."},
	} {
		t.Run(name, func(t *testing.T) {
			f := run(t, paseo.Options{Dial: func(context.Context) (net.Conn, error) { return nil, one.err }})
			s := f.state(paseo.Down, paseo.Unreachable)
			if !strings.Contains(s.Reason, one.want) || strings.Contains(s.Reason, secret) {
				t.Fatalf("reason %q", s.Reason)
			}
		})
	}
}

func TestWhatIsNoDaemonIsSaidToBeNone(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("SSH-2.0-OpenSSH_9.2\r\n"))
			_ = conn.Close()
		}
	}()
	f := run(t, paseo.Options{Dial: func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	}})
	f.state(paseo.Down, paseo.NoAnswer)
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
