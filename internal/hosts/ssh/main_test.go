package ssh_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"agentrelay/internal/e2e/sshd"
	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/ssh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds each wait for a connection, which takes a fraction of a second
// when the machine is idle.
const patience = 30 * time.Second

// newHost is a host of a client's configuration, not started, with intervals short
// enough to test.
func newHost(t *testing.T, c *sshd.Client, target string, change ...func(*ssh.Options)) *ssh.Host {
	t.Helper()
	o := ssh.Options{
		HostID: "box", Target: target, ConfigFile: c.Config, Home: c.Dir,
		KeepaliveInterval: 100 * time.Millisecond, KeepaliveTimeout: 200 * time.Millisecond, KeepaliveCount: 3,
		BackoffMin: 50 * time.Millisecond, BackoffMax: 200 * time.Millisecond,
	}
	for _, f := range change {
		f(&o)
	}
	h := ssh.New(o)
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// connect starts a host and returns its first link.
func connect(t *testing.T, h *ssh.Host) *ssh.Link {
	t.Helper()
	h.Start(context.Background())
	return link(t, h)
}

func link(t *testing.T, h *ssh.Host) *ssh.Link {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	l, err := h.Link(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// echo proves that a link runs commands.
func echo(t *testing.T, l *ssh.Link) {
	t.Helper()
	out, err := l.Run(timeout(t), "echo hello", nil, 100)
	if err != nil || string(out) != "hello\n" {
		t.Fatalf("echo: %q, %v", out, err)
	}
}

func timeout(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// until waits for a status.
func until(t *testing.T, h *ssh.Host, what string, is func(hosts.Status) bool) hosts.Status {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		s := h.Status()
		if is(s) {
			return s
		}
		if time.Now().After(deadline) {
			t.Fatalf("the host is not %s after %v: it is %s: %s", what, patience, s.State, s.Reason)
		}
	}
}

func state(want hosts.State) func(hosts.Status) bool {
	return func(s hosts.Status) bool { return s.State == want }
}

// setup is a server that lets a key of a client's agent in, under the name box.
func setup(t *testing.T, o sshd.Options) (*sshd.Client, *sshd.Server) {
	t.Helper()
	c := sshd.NewClient(t)
	key := c.Key("id", "")
	c.Agent(key)
	o.Authorized = append(o.Authorized, key.Public)
	s := sshd.Start(t, o)
	c.Know(s)
	c.Configure(c.Host("box", s))
	return c, s
}
