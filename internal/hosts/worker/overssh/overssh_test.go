package overssh_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	xssh "golang.org/x/crypto/ssh"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/commands"
	"agentrelay/internal/direct/commands/record"
	"agentrelay/internal/direct/files"
	"agentrelay/internal/direct/transfers"
	"agentrelay/internal/e2e/sshd"
	"agentrelay/internal/fault"
	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/install"
	"agentrelay/internal/hosts/ssh"
	"agentrelay/internal/hosts/worker"
	"agentrelay/internal/hosts/worker/overssh"
	"agentrelay/internal/hosts/worker/wire"
	"agentrelay/internal/principal"
)

// beside has the gateway's programs.
var beside string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "peer-agent")
	if err != nil {
		panic(err)
	}
	beside = dir
	program := filepath.Join(dir, "peer-agent-"+runtime.GOOS+"-"+runtime.GOARCH)
	if out, err := exec.Command("go", "build", "-o", program, "agentrelay/cmd/peer-agent").CombinedOutput(); err != nil {
		panic(string(out))
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			println(err.Error())
			code = 1
		}
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

// site is a host with a worker, reached over a real server.
type site struct {
	server  *sshd.Server
	proxy   *sshd.Proxy // nil without one
	user    *sshd.Client
	host    *ssh.Host
	client  *worker.Client
	project string
	state   string
}

func newSite(t testing.TB, o sshd.Options) *site { return newSiteBehind(t, o, nil) }

// newSiteBehind has a proxy carry the connection, if there is one to make.
func newSiteBehind(t testing.TB, o sshd.Options, proxied func(to string) *sshd.Proxy) *site {
	t.Helper()
	s := &site{user: sshd.NewClient(t)}
	key := s.user.Key("id", "")
	o.Authorized = []xssh.PublicKey{key.Public}
	s.server = sshd.Start(t, o)
	s.user.Know(s.server)
	lines := []string{"IdentityFile " + key.File, "IdentitiesOnly yes"}
	if proxied != nil {
		s.proxy = proxied(s.server.Address())
		host, port, _ := net.SplitHostPort(s.proxy.Address())
		s.user.KnowAs(s.proxy.Address(), s.server)
		s.user.Configure(fmt.Sprintf("Host far\n  HostName %s\n  Port %s\n  User %s\n  %s\n", host, port, sshd.User(t), strings.Join(lines, "\n  ")))
	} else {
		s.user.Configure(s.user.Host("far", s.server, lines...))
	}
	dir := t.TempDir()
	s.project, s.state = filepath.Join(dir, "project"), filepath.Join(dir, "state")
	if err := os.Mkdir(s.project, 0o700); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	s.host = ssh.New(ssh.Options{
		HostID: "far", Target: "ssh://far", ConfigFile: s.user.Config, Home: s.user.Dir, Log: log,
		BackoffMin: 50 * time.Millisecond, BackoffMax: 200 * time.Millisecond,
		KeepaliveInterval: 200 * time.Millisecond, KeepaliveTimeout: 300 * time.Millisecond,
	})
	s.client = worker.New(worker.Options{
		ID: "far", Name: "Far", Links: overssh.Links(s.host), StateDir: s.state, Command: overssh.Command(s.state), Log: log,
		Settings: wire.Settings{Policy: direct.Policy{
			AllowedRoots: []string{dir},
			Projects:     []direct.Project{{ID: "p", Name: "P", Path: s.project, Read: true, Write: true, CommandMode: direct.Full}},
		}, Commands: wire.Commands{Path: os.Getenv("PATH")}},
	})
	s.host.OnChange(s.client.LinkChanged)
	s.host.Start(t.Context())
	t.Cleanup(func() {
		s.client.Close()
		_ = s.host.Close()
	})
	return s
}

func (s *site) install(t testing.TB) {
	t.Helper()
	link, err := s.host.Link(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	o := install.Options{HostID: "far", Link: link, StateDir: s.state, Builds: install.Builds{Beside: beside, StateDir: t.TempDir()}}
	if _, err := install.Install(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	for _, step := range install.Check(t.Context(), o) {
		if step.State == ssh.Fail {
			t.Errorf("%+v", step)
		}
	}
}

// TestLoginShells installs and works through shells of all kinds.
func TestLoginShells(t *testing.T) {
	for _, shell := range []string{"/bin/sh", "/usr/bin/fish", "/bin/tcsh"} {
		if _, err := os.Stat(shell); err != nil {
			continue // no such shell on this machine
		}
		t.Run(filepath.Base(shell), func(t *testing.T) {
			s := newSite(t, sshd.Options{Shell: shell, Banner: "Welcome to far, where everything is fine"})
			if _, err := s.client.At(t.Context()); !errors.Is(err, hosts.Unavailable) || !strings.Contains(err.Error(), "The worker is not installed: gateway hosts install far") {
				t.Fatal(err)
			}
			s.install(t)
			if got := s.client.Probe(t.Context()); got.State != hosts.Up || got.Worker == nil {
				time.Sleep(1100 * time.Millisecond) // it was found missing a moment ago
				if got = s.client.Probe(t.Context()); got.Worker == nil {
					t.Fatalf("%+v", got)
				}
			}
			wrote, err := s.client.WriteDirectFile(t.Context(), files.WriteDirectFileIn{ProjectID: "p", Path: "a", Content: "x"})
			if err != nil || !wrote.Created {
				t.Fatalf("%+v, %v", wrote, err)
			}
			content := bytes.Repeat([]byte("content"), 1<<18)
			sum := sha256.Sum256(content)
			in := transfers.Placement{ID: strings.Repeat("a", 24), ProjectID: "p", Path: "b", Size: int64(len(content)), SHA256: hex.EncodeToString(sum[:])}
			if _, err := s.client.Placements().Place(t.Context(), in, bytes.NewReader(content)); err != nil {
				t.Fatal(err)
			}
			snap, err := s.client.Placements().Open(t.Context(), "p", "b")
			if err != nil {
				t.Fatal(err)
			}
			defer snap.Content.Close()
			if got, err := io.ReadAll(snap.Content); err != nil || !bytes.Equal(got, content) {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
		})
	}
}

// A read over a connection that is killed says since when, and why.
func TestReadOverKilledConnection(t *testing.T) {
	s := newSite(t, sshd.Options{})
	s.install(t)
	who := principal.Owner(principal.SharedOwner)
	ran, err := s.client.RunDirectCommand(t.Context(), who, commands.RunDirectCommandIn{ProjectID: "p", RequestID: "r", Argv: []string{"sleep", "60"}})
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		_, err := s.client.ReadDirectCommand(t.Context(), who, commands.ReadDirectCommandIn{CommandID: &ran.CommandID, WaitMs: new(20_000)})
		read <- err
	}()
	time.Sleep(100 * time.Millisecond) // it waits there by now, or is on its way
	s.server.KillSessions()
	var refused *fault.Error
	if err := <-read; !errors.As(err, &refused) || refused.Code != "host_unavailable" || !strings.Contains(refused.Message, "since 2") {
		t.Error(err)
	}
	for {
		if _, err := s.client.CancelDirectCommand(t.Context(), who, commands.CancelDirectCommandIn{CommandID: ran.CommandID}); err == nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// A command outlives the connection, and its call answers how it ended.
func TestCommandOutlivesConnection(t *testing.T) {
	s := newSite(t, sshd.Options{})
	s.install(t)
	type end struct {
		out commands.RunDirectCommandOut
		err error
	}
	got := make(chan end, 1)
	go func() {
		out, err := s.client.RunDirectCommand(t.Context(), principal.Owner(principal.SharedOwner), commands.RunDirectCommandIn{
			ProjectID: "p", RequestID: "r", Argv: []string{"sh", "-c", "echo begun >f; sleep 1; echo ended >>f; echo said"}, WaitMs: new(20_000),
		})
		got <- end{out, err}
	}()
	for {
		if raw, _ := os.ReadFile(filepath.Join(s.project, "f")); string(raw) == "begun\n" {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if s.server.KillSessions() == 0 {
		t.Fatal("there was no connection to kill")
	}
	e := <-got
	if e.err != nil || e.out.Duplicate || e.out.State != record.Exited || len(e.out.Output.Events) != 1 || e.out.Output.Events[0].Text != "said\n" {
		t.Fatalf("%+v", e)
	}
}

// On a connection that carries nothing any more, a read is refused as soon as
// that is noticed, and a change ends as it ended once the host is back.
func TestBlackhole(t *testing.T) {
	s := newSiteBehind(t, sshd.Options{}, func(to string) *sshd.Proxy { return sshd.NewProxy(t, to) })
	s.install(t)
	who := principal.Owner(principal.SharedOwner)
	first, err := s.client.RunDirectCommand(t.Context(), who, commands.RunDirectCommandIn{ProjectID: "p", RequestID: "first", Argv: []string{"sleep", "60"}})
	if err != nil {
		t.Fatal(err)
	}
	type end struct {
		out commands.RunDirectCommandOut
		err error
	}
	read, ran := make(chan error, 1), make(chan end, 1)
	go func() {
		_, err := s.client.ReadDirectCommand(t.Context(), who, commands.ReadDirectCommandIn{CommandID: &first.CommandID, WaitMs: new(20_000)})
		read <- err
	}()
	go func() {
		out, err := s.client.RunDirectCommand(t.Context(), who, commands.RunDirectCommandIn{
			ProjectID: "p", RequestID: "second", Argv: []string{"sh", "-c", "echo begun >f; sleep 1; echo said"}, WaitMs: new(20_000),
		})
		ran <- end{out, err}
	}()
	for {
		if raw, _ := os.ReadFile(filepath.Join(s.project, "f")); string(raw) == "begun\n" {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	s.proxy.Blackhole()
	began := time.Now()
	if err := <-read; !errors.Is(err, hosts.Unavailable) || time.Since(began) > 5*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	if _, err := s.client.At(t.Context()); !errors.Is(err, hosts.Unavailable) {
		t.Error(err)
	}
	time.Sleep(2 * time.Second) // the connection is given up
	s.proxy.Restore()
	e := <-ran
	if e.err != nil || e.out.Duplicate || e.out.State != record.Exited || len(e.out.Output.Events) != 1 || e.out.Output.Events[0].Text != "said\n" {
		t.Errorf("%+v", e)
	}
	if _, err := s.client.CancelDirectCommand(t.Context(), who, commands.CancelDirectCommandIn{CommandID: first.CommandID}); err != nil {
		t.Error(err)
	}
}

// BenchmarkBulk compares a file's way from a worker with scp's.
func BenchmarkBulk(b *testing.B) {
	const size = 256 << 20
	s := newSite(b, sshd.Options{})
	s.install(b)
	content := make([]byte, size)
	rand.Read(content)
	if err := os.WriteFile(filepath.Join(s.project, "big"), content, 0o600); err != nil {
		b.Fatal(err)
	}
	to := filepath.Join(b.TempDir(), "got")
	b.Run("worker", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			snap, err := s.client.Placements().Open(b.Context(), "p", "big")
			if err != nil {
				b.Fatal(err)
			}
			f, err := os.Create(to)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := io.CopyBuffer(struct{ io.Writer }{f}, snap.Content, make([]byte, 1<<20)); err != nil {
				b.Fatal(err)
			}
			snap.Content.Close()
			f.Close()
		}
	})
	b.Run("place", func(b *testing.B) {
		b.SetBytes(size)
		sum := sha256.Sum256(content)
		for i := 0; b.Loop(); i++ {
			name := strconv.Itoa(i)
			in := transfers.Placement{ID: (strings.Repeat("0", 24) + name)[len(name):], ProjectID: "p", Path: "placed" + name, Size: size, SHA256: hex.EncodeToString(sum[:])}
			if _, err := s.client.Placements().Place(b.Context(), in, bytes.NewReader(content)); err != nil {
				b.Fatal(err)
			}
			os.Remove(filepath.Join(s.project, "placed"+name))
		}
	})
	b.Run("scp", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			if out, err := exec.Command("scp", "-q", "-F", s.user.Config, "far:"+filepath.Join(s.project, "big"), to).CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, out)
			}
		}
	})
}

// BenchmarkSmallRead compares a read with ssh over a connection that is kept
// (ControlMaster), and many at once with as many alone.
func BenchmarkSmallRead(b *testing.B) {
	s := newSite(b, sshd.Options{})
	s.install(b)
	file := filepath.Join(s.project, "small")
	if err := os.WriteFile(file, []byte("hello\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	read := func() error {
		_, err := s.client.ReadDirectFile(b.Context(), files.ReadDirectFileIn{ProjectID: "p", Path: "small"})
		return err
	}
	if err := read(); err != nil {
		b.Fatal(err)
	}
	b.Run("worker", func(b *testing.B) {
		for b.Loop() {
			if err := read(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("worker-200", func(b *testing.B) {
		for b.Loop() {
			var all sync.WaitGroup
			for range 200 {
				all.Go(func() {
					if err := read(); err != nil {
						b.Error(err)
					}
				})
			}
			all.Wait()
		}
	})
	socket := filepath.Join(b.TempDir(), "s")
	master := []string{"-F", s.user.Config, "-o", "ControlMaster=auto", "-o", "ControlPersist=yes", "-o", "ControlPath=" + socket, "far"}
	if out, err := exec.Command("ssh", append(master, "true")...).CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	defer func() { _ = exec.Command("ssh", append([]string{"-O", "exit"}, master...)...).Run() }()
	b.Run("ssh-cat", func(b *testing.B) {
		for b.Loop() {
			if out, err := exec.Command("ssh", append(master, "cat", file)...).Output(); err != nil || string(out) != "hello\n" {
				b.Fatalf("%v: %s", err, out)
			}
		}
	})
}
