package channel

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	xssh "golang.org/x/crypto/ssh"

	"agentrelay/internal/channel/capability"
	"agentrelay/internal/e2e/sshd"
	"agentrelay/internal/hosts/ssh"
	"agentrelay/internal/principal"
)

// openSSH is the host box behind OpenSSH's server.
type openSSH struct {
	*machine
	server *sshd.Server
	host   *ssh.Host
	dir    string // its state directory
}

func newOpenSSH(t *testing.T, o sshd.Options) *openSSH {
	t.Helper()
	c := sshd.NewClient(t)
	key := c.Key("id", "")
	c.Agent(key)
	o.Authorized = []xssh.PublicKey{key.Public}
	s := sshd.Start(t, o)
	c.Know(s)
	c.Configure(c.Host("box", s))
	h := ssh.New(ssh.Options{
		HostID: "box", Target: "ssh://box", ConfigFile: c.Config, Home: c.Dir,
		KeepaliveInterval: 100 * time.Millisecond, KeepaliveTimeout: 200 * time.Millisecond, KeepaliveCount: 3,
		BackoffMin: 20 * time.Millisecond, BackoffMax: 200 * time.Millisecond,
	})
	h.Start(context.Background())
	t.Cleanup(func() { h.Close() })
	return &openSSH{newMachine(t), s, h, installedDir(t)}
}

// keep keeps a forward over the links of the host, until the returned function is
// called.
func (o *openSSH) keep() (f *Forward, stop func()) {
	f = NewForward(ForwardOptions{Server: o.serverOf("box", nil), StateDir: o.dir, Log: slog.New(slog.NewTextHandler(o.log, nil))})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if l, err := o.host.Link(ctx); err == nil {
				f.Keep(ctx, l)
			}
		}
	}()
	return f, func() { cancel(); <-done }
}

func (o *openSSH) until(what string, ok func() bool) {
	o.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			o.t.Fatalf("still not: %s\n%s", what, o.log.String())
		}
	}
}

// sockets counts the sockets of connections.
func (o *openSSH) sockets() int {
	names, _ := filepath.Glob(filepath.Join(o.dir, "a-*"))
	return len(names)
}

// TestForwardOverOpenSSH: an agent of the host is answered, again when the link was
// killed, and again by the next gateway.
func TestForwardOverOpenSSH(t *testing.T) {
	o := newOpenSSH(t, sshd.Options{})
	link, err := o.host.Link(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The key arrives over the same connection.
	o.agents.o.Remote = func(string) (RemoteFiles, error) { return &RemoteDir{Link: link, Path: o.dir}, nil }
	if out, err := o.agents.Adopt(t.Context(), principal.SharedOwner, "box", "builder"); err != nil || out.Pending != "" {
		t.Fatalf("%+v, %v", out, err)
	}
	key := o.key(o.dir, "builder")
	socket := filepath.Join(o.dir, capability.Socket)
	answered := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		r, err := over(ctx, socket, http.MethodGet, "/v1/self", "builder", key, "")
		return err == nil && r.status == http.StatusOK
	}
	forward, stop := o.keep()
	o.until("up", func() bool { return forward.Status().Up })
	if !answered() {
		t.Fatal("an agent gets no answer")
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	for range 2 {
		before, err := os.Readlink(socket)
		if err != nil {
			t.Fatal(err)
		}
		o.server.KillSessions()
		o.until("a new socket that answers", func() bool {
			now, err := os.Readlink(socket)
			return err == nil && now != before && answered()
		})
		o.until("the sockets of lost links gone", func() bool { return o.sockets() == 1 })
	}
	stop()
	if forward.Status().Up {
		t.Error("a forward that has ended is up")
	}
	next, stopNext := o.keep()
	defer stopNext()
	o.until("up again", func() bool { return next.Status().Up })
	if !answered() || o.sockets() != 1 {
		t.Errorf("the next gateway: %d sockets", o.sockets())
	}
}

func TestOpenSSHThatForwardsNoSockets(t *testing.T) {
	o := newOpenSSH(t, sshd.Options{Config: []string{"AllowStreamLocalForwarding no"}})
	forward, stop := o.keep()
	defer stop()
	o.until("the reason", func() bool { return strings.Contains(forward.Status().Reason, "AllowStreamLocalForwarding") })
	link, err := o.host.Link(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if out, err := link.Run(t.Context(), "echo still", nil, 100); err != nil || string(out) != "still\n" {
		t.Errorf("the rest of the host: %q, %v", out, err)
	}
}

// TestOpenSSHThatForwardsOneWay: sockets of the host can be listened on, not dialled.
func TestOpenSSHThatForwardsOneWay(t *testing.T) {
	o := newOpenSSH(t, sshd.Options{Config: []string{"AllowStreamLocalForwarding remote"}})
	forward, stop := o.keep()
	defer stop()
	o.until("up", func() bool { return forward.Status().Up })
	r, err := over(t.Context(), filepath.Join(o.dir, capability.Socket), http.MethodGet, "/v1/health", "", "", "")
	if err != nil || r.get(t, "hostId") != "box" {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestOpenSSHWithABanner: what the login shell prints first hides no refusal of a
// script, and no socket.
func TestOpenSSHWithABanner(t *testing.T) {
	o := newOpenSSH(t, sshd.Options{Banner: "Welcome to box"})
	link, err := o.host.Link(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	forward, stop := o.keep()
	defer stop()
	o.until("up", func() bool { return forward.Status().Up })
	files := &RemoteDir{Link: link, Path: o.dir}
	if err := files.WritePrivate(t.Context(), capability.Name("builder"), []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(o.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := files.WritePrivate(t.Context(), capability.Name("builder"), []byte("y")); err == nil || !strings.Contains(reasonOf(err), "mode 0700") {
		t.Errorf("into a directory that others enter: %v", err)
	}
}
