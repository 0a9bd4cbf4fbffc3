package ssh_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"agentrelay/internal/e2e/sshd"
	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/ssh"
)

func TestDefaultsNoticeASilentLink(t *testing.T) {
	if d := ssh.DefaultKeepaliveInterval + ssh.DefaultKeepaliveTimeout; d >= 45*time.Second {
		t.Errorf("a link that stops answering is degraded after %v", d)
	}
}

// A link is cut in each way there is, while a command runs on it: the command ends
// with ErrLost, and there is another link within the backoff.
func TestCuts(t *testing.T) {
	for _, tt := range []struct {
		name         string
		cut, restore func(*sshd.Server, *sshd.Proxy)
		degraded     bool
	}{
		{"its processes are killed", func(s *sshd.Server, p *sshd.Proxy) { s.KillSessions() }, func(*sshd.Server, *sshd.Proxy) {}, false},
		{"the server stops", func(s *sshd.Server, p *sshd.Proxy) { s.Stop() }, func(s *sshd.Server, p *sshd.Proxy) { s.Start() }, false},
		{"the network swallows it", func(s *sshd.Server, p *sshd.Proxy) { p.Blackhole() }, func(s *sshd.Server, p *sshd.Proxy) { p.Restore() }, true},
		{"the network cuts it", func(s *sshd.Server, p *sshd.Proxy) { p.Cut() }, func(*sshd.Server, *sshd.Proxy) {}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, s := setup(t, sshd.Options{})
			p := sshd.NewProxy(t, s.Address())
			c.KnowAs(p.Address(), s)
			c.Configure(fmt.Sprintf("Host box\n  HostName 127.0.0.1\n  User %s\n  Port %d\n", sshd.User(t), p.Port))
			h := newHost(t, c, "ssh://box", func(o *ssh.Options) { o.ConnectTimeout = time.Second })
			seen := watch(h)
			first := connect(t, h)
			session, err := first.Exec(timeout(t), "cat")
			if err != nil {
				t.Fatal(err)
			}
			tt.cut(s, p)
			if tt.degraded {
				until(t, h, "degraded", state(hosts.Degraded))
				if l := link(t, h); l != first {
					t.Error("a degraded link is not handed out")
				}
			}
			if _, err := io.Copy(io.Discard, session.Stdout); err != nil && !errors.Is(err, io.EOF) {
				t.Errorf("reading from the command: %v", err)
			}
			if err := session.Wait(); !isLost(err) {
				t.Errorf("the command ended with %v", err)
			}
			if _, err := first.Run(timeout(t), "true", nil, 1); !isLost(err) || !isLost(first.Err()) {
				t.Errorf("the old link says %v and runs a command with %v", first.Err(), err)
			}
			tt.restore(s, p)
			restored := time.Now()
			until(t, h, "up again", func(st hosts.Status) bool { return st.State == hosts.Up && link(t, h) != first })
			// The longest backoff, and an attempt that began before and is given up.
			if d := time.Since(restored); d > 2*time.Second+patience/10 {
				t.Errorf("it took %v to come back", d)
			}
			second := link(t, h)
			if second.Generation() <= first.Generation() {
				t.Errorf("generation %d follows %d", second.Generation(), first.Generation())
			}
			echo(t, second)
			if got := seen(); got[0].State != hosts.Connecting || got[1].State != hosts.Up || got[len(got)-1].State != hosts.Up {
				t.Errorf("the changes were %v", got)
			}
		})
	}
}

// watch collects the changes that a host tells.
func watch(h *ssh.Host) func() []hosts.Status {
	var mu sync.Mutex
	var all []hosts.Status
	h.OnChange(func(s hosts.Status) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, s)
	})
	return func() []hosts.Status {
		mu.Lock()
		defer mu.Unlock()
		return append([]hosts.Status{}, all...)
	}
}

// A link that answers again before it is given up is the same link.
func TestDegradedAndBack(t *testing.T) {
	c, s := setup(t, sshd.Options{})
	h := newHost(t, c, "ssh://box", func(o *ssh.Options) { o.KeepaliveCount = 1000 })
	first := connect(t, h)
	s.Freeze()
	until(t, h, "degraded", state(hosts.Degraded))
	s.Thaw()
	until(t, h, "up", state(hosts.Up))
	if link(t, h) != first {
		t.Error("it is another link")
	}
	echo(t, first)
}

// A link that is busy and slow is not degraded for it.
func TestBusyLink(t *testing.T) {
	c, _ := setup(t, sshd.Options{})
	h := newHost(t, c, "ssh://box")
	seen := watch(h)
	l := connect(t, h)
	s, err := l.Exec(timeout(t), "dd if=/dev/zero bs=65536 count=3000 2>/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, s.Stdout)
	if err != nil || n != 3000*65536 {
		t.Errorf("read %d bytes, %v", n, err)
	}
	if err := s.Wait(); err != nil {
		t.Error(err)
	}
	if got := seen(); len(got) != 2 {
		t.Errorf("the changes were %v", got)
	}
}

// Starting waits for nothing, dead hosts hold up no live ones, and what is said of
// them keeps its age.
func TestManyHostsMostlyDead(t *testing.T) {
	c, s := setup(t, sshd.Options{})
	dead := sshd.NewProxy(t, s.Address())
	dead.Blackhole()
	config := c.Host("live", s)
	config += fmt.Sprintf("Host silent\n  HostName 127.0.0.1\n  Port %d\nHost refusing\n  HostName 127.0.0.1\n  Port 1\nHost nameless\n  HostName no-such-host.invalid\n", dead.Port)
	c.Configure(config)
	var all []*ssh.Host
	begun := time.Now()
	for i := range 20 {
		name := []string{"live", "silent", "refusing", "nameless"}[i%4]
		h := newHost(t, c, "ssh://"+name, func(o *ssh.Options) { o.ConnectTimeout = 2 * time.Second })
		h.Start(context.Background())
		all = append(all, h)
	}
	if d := time.Since(begun); d > time.Second {
		t.Errorf("starting took %v", d)
	}
	for i, h := range all {
		if i%4 == 0 {
			echo(t, link(t, h))
			continue
		}
		first := until(t, h, "down", state(hosts.Down))
		time.Sleep(20 * time.Millisecond)
		asked := time.Now()
		_, err := h.Link(context.Background())
		if !isUnavailable(err) || time.Since(asked) > time.Second {
			t.Errorf("a dead host says %v after %v", err, time.Since(asked))
		}
		if now := h.Status(); now.State != hosts.Down || !now.Since.Equal(first.Since) || now.CheckedAt.Before(first.CheckedAt) {
			t.Errorf("it was %+v and is %+v", first, now)
		}
	}
}

// The wait for a link ends with the caller's context, and says what was known.
func TestLinkWaitsWithinItsContext(t *testing.T) {
	c, s := setup(t, sshd.Options{})
	p := sshd.NewProxy(t, s.Address())
	c.KnowAs(p.Address(), s)
	p.Blackhole()
	c.Configure(fmt.Sprintf("Host box\n  HostName 127.0.0.1\n  User %s\n  Port %d\n", sshd.User(t), p.Port))
	h := newHost(t, c, "ssh://box")
	h.Start(context.Background())
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := h.Link(ctx)
	if !isUnavailable(err) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "connecting since") {
		t.Errorf("got %v", err)
	}
	p.Restore()
	echo(t, link(t, h))
}

func TestWakeTriesAtOnce(t *testing.T) {
	c, s := setup(t, sshd.Options{})
	s.Stop()
	h := newHost(t, c, "ssh://box", func(o *ssh.Options) {
		o.BackoffMin, o.BackoffMax, o.Rand = time.Hour, time.Hour, func() float64 { return 1 }
	})
	h.Start(context.Background())
	until(t, h, "down", state(hosts.Down))
	s.Start()
	h.Wake()
	echo(t, linkOnce(t, h))
}

func TestCommands(t *testing.T) {
	c, _ := setup(t, sshd.Options{})
	l := connect(t, newHost(t, c, "ssh://box"))
	t.Run("status", func(t *testing.T) {
		_, err := l.Run(timeout(t), ssh.Shell("echo no >&2; exit 7"), nil, 10)
		var exit *ssh.ExitError
		if !errors.As(err, &exit) || exit.Code != 7 || exit.Stderr != "no" {
			t.Errorf("got %v", err)
		}
	})
	t.Run("signal", func(t *testing.T) {
		_, err := l.Run(timeout(t), ssh.Shell("kill -KILL $$"), nil, 10)
		var exit *ssh.ExitError
		if !errors.As(err, &exit) || exit.Code != -1 || exit.Signal != "KILL" {
			t.Errorf("got %v", err)
		}
	})
	t.Run("stdin", func(t *testing.T) {
		in := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // larger than a window
		out, err := l.Run(timeout(t), "cat", in, len(in))
		if err != nil || !bytes.Equal(in, out) {
			t.Errorf("%d bytes came back, %v", len(out), err)
		}
	})
	t.Run("stdin that nobody reads", func(t *testing.T) {
		if _, err := l.Run(timeout(t), "true", make([]byte, 8<<20), 10); err != nil {
			t.Error(err)
		}
	})
	t.Run("too much output", func(t *testing.T) {
		if _, err := l.Run(timeout(t), "yes", nil, 1000); err == nil || !strings.Contains(err.Error(), "more than 1000 bytes") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("context", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		if _, err := l.Run(ctx, "sleep 60", nil, 10); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("more at once than sshd has sessions", func(t *testing.T) {
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				want := fmt.Sprintf("%d\n", i)
				if out, err := l.Run(timeout(t), "echo "+strings.TrimSpace(want), nil, 100); err != nil || string(out) != want {
					t.Errorf("got %q, %v; want %q", out, err, want)
				}
			})
		}
		wg.Wait()
	})
}

// Where sshd has no session left and none ends, the caller's context ends the wait.
func TestNoSessionLeft(t *testing.T) {
	c, _ := setup(t, sshd.Options{Config: []string{"MaxSessions 2"}})
	l := connect(t, newHost(t, c, "ssh://box"))
	var open []*ssh.Session
	for range 2 {
		s, err := l.Exec(timeout(t), "cat")
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, s)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if _, err := l.Exec(ctx, "cat"); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "MaxSessions") {
		t.Errorf("got %v", err)
	}
	time.AfterFunc(100*time.Millisecond, func() { _ = open[0].Stdin.Close() })
	echo(t, l)
	if _, err := l.SFTP(); err != nil {
		t.Error(err)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	c, _ := setup(t, sshd.Options{})
	h := newHost(t, c, "ssh://box")
	l := connect(t, h)
	s, err := l.Exec(timeout(t), "sleep 60")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(); !isLost(err) {
		t.Errorf("the command ended with %v", err)
	}
	if st := h.Status(); st.State != hosts.Down {
		t.Errorf("the host is %+v", st)
	}
	h.Start(context.Background())
	if _, err := h.Link(context.Background()); !isUnavailable(err) {
		t.Errorf("a closed host gives %v", err)
	}
}

func TestTargetThatIsNone(t *testing.T) {
	h := ssh.New(ssh.Options{HostID: "box", Target: "ssh://-x"})
	h.Start(context.Background())
	if st := h.Status(); st.State != hosts.Down || !strings.Contains(st.Reason, "Its target in the config must be ssh://") {
		t.Errorf("the host is %+v", st)
	}
	if steps := h.CheckConnection(context.Background()); steps[0].State != ssh.Fail || len(steps) != 6 {
		t.Errorf("the check says %v", steps)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}

// A socket whose connections nobody accepts holds up nothing else on the link.
func TestForwardThatNobodyAccepts(t *testing.T) {
	c, s := setup(t, sshd.Options{})
	h := newHost(t, c, "ssh://box")
	l := connect(t, h)
	path := s.Dir + "/forward"
	in, err := l.ListenUnix(timeout(t), path)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	echo(t, l)
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	for {
		conn, err := in.Accept()
		if err != nil {
			break
		}
		_ = conn.Close()
	}
	echo(t, l)
}
