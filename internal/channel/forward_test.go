package channel

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"agentrelay/internal/channel/capability"
	"agentrelay/internal/principal"
)

// link is a connection to this machine: commands are run here, and sockets are
// those of this machine. Like sshd it leaves its sockets behind.
type link struct {
	done     chan struct{}
	cut      func()
	noListen bool // AllowStreamLocalForwarding no
	noDial   bool // AllowStreamLocalForwarding remote
	noRun    error
}

func newLink() *link {
	l := &link{done: make(chan struct{})}
	l.cut = sync.OnceFunc(func() { close(l.done) })
	return l
}

func (l *link) Done() <-chan struct{} { return l.done }

func (l *link) Script(ctx context.Context, script string, args []string, stdin []byte, maxOutput int) ([]byte, error) {
	if l.noRun != nil {
		return nil, l.noRun
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", script, "sh"}, args...)...)
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.Output()
	if len(out) > maxOutput {
		return nil, errors.New("too much output")
	}
	return out, err
}

func (l *link) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	refused := &ssh.OpenChannelError{Reason: ssh.ConnectionFailed, Message: "open failed"}
	if l.noDial {
		return nil, refused
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, refused
	}
	return conn, nil
}

func (l *link) ListenUnix(_ context.Context, path string) (net.Listener, error) {
	if len(path) > capability.MaxSocketPath {
		return nil, errors.New("the path is longer than macOS has room for")
	}
	if l.noListen {
		return nil, errors.New("ssh: streamlocal-forward@openssh.com request denied by peer")
	}
	in, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	in.SetUnlinkOnClose(false)
	go func() {
		<-l.done
		in.Close()
	}()
	return in, os.Chmod(path, 0o600)
}

// far is the host box, reached over links, whose state directory is dir.
type far struct {
	*machine
	dir     string
	forward *Forward
}

// installedDir is a state directory of a host as its installation leaves it.
func installedDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(shortDir(t), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func newFar(t *testing.T, dir string) *far {
	m := newMachine(t)
	return &far{m, dir, NewForward(ForwardOptions{Server: m.serverOf("box", nil), StateDir: dir, Log: slog.New(slog.NewTextHandler(m.log, nil))})}
}

// connect keeps the forward over a new link until the test ends.
func (f *far) connect(l *link) *link {
	f.t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.forward.Keep(context.Background(), l)
	}()
	f.t.Cleanup(func() {
		l.cut()
		<-done
	})
	return l
}

func (f *far) until(what string, ok func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("still not: %s; status %+v\n%s", what, f.forward.Status(), f.log.String())
		}
	}
}

func (f *far) up() bool { return f.forward.Status().Up }

// sockets are the sockets of connections in the host's directory.
func (f *far) sockets() []string {
	names, err := filepath.Glob(filepath.Join(f.dir, "a-*"))
	if err != nil {
		f.t.Fatal(err)
	}
	return names
}

func TestForwardFollowsTheLinks(t *testing.T) {
	f := newFar(t, installedDir(t))
	if s := f.forward.Status(); s.Up || s.Reason == "" {
		t.Errorf("%+v", s)
	}
	if _, err := f.agents.Adopt(t.Context(), principal.SharedOwner, "box", "builder"); err != nil {
		t.Fatal(err)
	}
	file, err := capability.Decode([]byte(f.remote.files["agent-channels/builder.json"]), "builder")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(f.dir, capability.Socket)
	answers := func() bool {
		r, err := over(t.Context(), socket, http.MethodGet, "/v1/self", "builder", file.Key, "")
		return err == nil && r.status == http.StatusOK
	}
	for i := range 4 { // the link is lost, and comes back
		l := f.connect(newLink())
		f.until("up", f.up)
		if !answers() {
			t.Fatalf("connection %d: an agent gets no answer", i)
		}
		if n := len(f.sockets()); n != 1 {
			t.Errorf("connection %d: there are %v", i, f.sockets())
		}
		if to, err := os.Readlink(socket); err != nil || strings.Contains(to, "/") {
			t.Errorf("the link is %q, %v", to, err)
		}
		if info, err := os.Stat(f.dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%v, %v", info, err)
		}
		l.cut()
		f.until("down", func() bool { return !f.up() })
	}
}

// TestNewLinkOverlapsTheOld: a connection that is half dead keeps nobody from the
// new one, and its end says nothing about that.
func TestNewLinkOverlapsTheOld(t *testing.T) {
	f := newFar(t, installedDir(t))
	old := f.connect(newLink())
	f.until("up", f.up)
	first, err := os.Readlink(filepath.Join(f.dir, capability.Socket))
	if err != nil {
		t.Fatal(err)
	}
	f.connect(newLink())
	f.until("moved", func() bool {
		to, err := os.Readlink(filepath.Join(f.dir, capability.Socket))
		return err == nil && to != first && f.up()
	})
	if len(f.sockets()) != 2 {
		t.Errorf("a socket in use was removed: %v", f.sockets())
	}
	old.cut()
	time.Sleep(50 * time.Millisecond) // whatever the old one still says
	if !f.up() {
		t.Errorf("%+v", f.forward.Status())
	}
}

func TestForwardSaysWhatIsWrong(t *testing.T) {
	mkdir := func(_ *testing.T, dir string) error { return os.Mkdir(dir, 0o700) }
	for name, c := range map[string]struct {
		prepare func(t *testing.T, dir string) error
		link    func(*link)
		says    string
	}{
		"forwarding is off": {prepare: mkdir, link: func(l *link) { l.noListen = true }, says: "AllowStreamLocalForwarding"},
		"commands fail":     {prepare: mkdir, link: func(l *link) { l.noRun = errDown }, says: "command on the host failed"},
		"nothing is there":  {says: "gateway hosts install"},
		"others can enter": {prepare: func(_ *testing.T, dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o755))
		}, says: "mode 0700"},
		"a link": {prepare: func(t *testing.T, dir string) error { return os.Symlink(t.TempDir(), dir) }, says: "must be no link"},
		"a file": {prepare: func(_ *testing.T, dir string) error { return os.WriteFile(dir, nil, 0o600) }, says: "must be no link"},
		"the name is taken": {prepare: func(_ *testing.T, dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, capability.Socket), []byte("mine"), 0o600))
		}, says: "move it away"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(shortDir(t), "state")
			if c.prepare != nil {
				if err := c.prepare(t, dir); err != nil {
					t.Fatal(err)
				}
			}
			f, l := newFar(t, dir), newLink()
			if c.link != nil {
				c.link(l)
			}
			f.connect(l)
			f.until("the reason", func() bool { return strings.Contains(f.forward.Status().Reason, c.says) })
			if raw, err := os.ReadFile(filepath.Join(dir, capability.Socket)); err == nil && string(raw) != "mine" {
				t.Errorf("another's file is %q", raw)
			}
		})
	}
	// What was put right is found at once, and what waited for it is told.
	dir := filepath.Join(shortDir(t), "state")
	f := newFar(t, dir)
	delivered := make(chan error, 2)
	f.forward.o.Up = func(ctx context.Context) { delivered <- f.agents.Deliver(ctx, "box") }
	f.remote.down = errDown
	if out, err := f.agents.Adopt(t.Context(), principal.SharedOwner, "box", "early"); err != nil || out.Pending == "" {
		t.Fatalf("%+v, %v", out, err)
	}
	f.remote.down = nil
	f.connect(newLink())
	f.until("the reason", func() bool { return strings.Contains(f.forward.Status().Reason, "gateway hosts install") })
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	f.forward.Retry()
	f.until("up", f.up)
	if err := <-delivered; err != nil || f.remote.files["agent-channels/early.json"] == "" {
		t.Errorf("the capability of an agent that was adopted before: %v", err)
	}
	if took := time.Since(begun); took > firstRetry/2 {
		t.Errorf("it took %v", took)
	}

	f = newFar(t, "/"+strings.Repeat("d", 90))
	f.connect(newLink())
	f.until("the reason", func() bool { return strings.Contains(f.forward.Status().Reason, "shorter remoteStateDir") })
}

// TestForwardWithoutSight: where sshd forwards sockets in one direction alone the
// channel works, and nothing is removed.
func TestForwardWithoutSight(t *testing.T) {
	f := newFar(t, installedDir(t))
	for i := range 2 {
		l := newLink()
		l.noDial = true
		f.connect(l)
		f.until("up", f.up)
		if n := len(f.sockets()); n != i+1 {
			t.Errorf("there are %v", f.sockets())
		}
		l.cut()
		f.until("down", func() bool { return !f.up() })
	}
}

func TestAnotherGatewayIsNotPushedOut(t *testing.T) {
	dir := installedDir(t)
	first := newFar(t, dir)
	l := first.connect(newLink())
	first.until("up", first.up)
	to, err := os.Readlink(filepath.Join(dir, capability.Socket))
	if err != nil {
		t.Fatal(err)
	}
	second := newFar(t, dir)
	second.connect(newLink())
	second.until("the reason", func() bool { return strings.Contains(second.forward.Status().Reason, "Another gateway") })
	if now, _ := os.Readlink(filepath.Join(dir, capability.Socket)); now != to {
		t.Errorf("the link was moved to %s", now)
	}
	l.cut()
}

func TestRemoteDir(t *testing.T) {
	dir := installedDir(t)
	r := &RemoteDir{Link: newLink(), Path: dir}
	name := capability.Name("builder")
	path := filepath.Join(dir, name)
	for _, content := range []string{"one", "two\n"} {
		if err := r.WritePrivate(t.Context(), name, []byte(content)); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(path)
		info, _ := os.Lstat(path)
		if err != nil || string(raw) != content || info.Mode() != 0o600 {
			t.Errorf("%q, %v, %v", raw, info.Mode(), err)
		}
	}
	if names, _ := os.ReadDir(filepath.Dir(path)); len(names) != 1 {
		t.Errorf("there are %v", names)
	}
	victim := filepath.Join(t.TempDir(), "victim")
	if err := errors.Join(os.WriteFile(victim, []byte("mine"), 0o600), os.Remove(path), os.Symlink(victim, path)); err != nil {
		t.Fatal(err)
	}
	if err := r.WritePrivate(t.Context(), name, []byte("x")); err == nil || !strings.Contains(reasonOf(err), "no private file") {
		t.Errorf("over a link: %v", err)
	}
	if err := errors.Join(os.Remove(path), os.WriteFile(path, []byte("theirs"), 0o644), os.Chmod(path, 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := r.WritePrivate(t.Context(), name, []byte("x")); err == nil {
		t.Error("over a file that others read")
	}
	if err := os.Chmod(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := r.WritePrivate(t.Context(), name, []byte("x")); err == nil || !strings.Contains(reasonOf(err), "mode 0700") {
		t.Errorf("into a directory that others enter: %v", err)
	}
	if raw, err := os.ReadFile(victim); err != nil || string(raw) != "mine" {
		t.Errorf("the link was followed: %q", raw)
	}
	if err := (&RemoteDir{Link: &link{noRun: errDown}, Path: dir}).WritePrivate(t.Context(), name, nil); !errors.Is(err, errDown) {
		t.Error(err)
	}
	if _, err := os.Lstat(victim + "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// TestForwardInTheLongestStateDir: a state directory whose link has room has room
// for the sockets too.
func TestForwardInTheLongestStateDir(t *testing.T) {
	dir := shortDir(t)
	dir = filepath.Join(dir, strings.Repeat("d", capability.MaxSocketPath-len(dir)-len("//"+capability.Socket)))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f := newFar(t, dir)
	f.connect(newLink())
	f.until("up", f.up)
}

// TestManySilentSockets: connections that were lost without a word, whose sockets
// take questions and don't answer, hold up the new one no more than one would.
func TestManySilentSockets(t *testing.T) {
	dir := installedDir(t)
	for range 20 {
		l, err := net.Listen("unix", filepath.Join(dir, "a-"+newName()+".sock"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	f := newFar(t, dir)
	f.connect(newLink())
	f.until("up", f.up)
	if n := len(f.sockets()); n != 21 {
		t.Errorf("%d sockets: one that somebody listens on was removed", n)
	}
}
