package paseo_test

import (
	"context"
	"errors"
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

func TestADialThatHangsIsGivenUp(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	f := run(t, paseo.Options{ConnectTimeout: 50 * time.Millisecond, Dial: func(context.Context) (net.Conn, error) {
		<-hang
		return nil, errors.New("too late")
	}})
	if s := f.state(paseo.Down, paseo.Unreachable); !strings.Contains(s.Reason, "in time") {
		t.Fatalf("reason %q", s.Reason)
	}
}
