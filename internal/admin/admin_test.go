package admin

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"agentrelay/internal/audit"
	"agentrelay/internal/config"
	"agentrelay/internal/fault"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/oauth"
	"agentrelay/internal/oauth/owner"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shortDir is a state directory whose path leaves room for a socket's name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "relay")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func testConfig(t *testing.T, dir string) *config.Config {
	t.Helper()
	c, err := config.Default(func(string) string { return "/home/you" })
	if err != nil {
		t.Fatal(err)
	}
	c.StateDir, c.OwnerTokenFile, c.SharedOwner = dir, filepath.Join(dir, "owner.json"), true
	return c
}

func open(t *testing.T, c *config.Config) func(context.Context) (*Backend, func() error, error) {
	return func(ctx context.Context) (*Backend, func() error, error) {
		return Open(ctx, c, time.Now, rand.Reader, slog.New(slog.DiscardHandler))
	}
}

// serve runs a "gateway" of nothing but its owner's socket.
func serve(t *testing.T, c *config.Config) *Backend {
	t.Helper()
	b, closeBackend, err := open(t, c)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.Status = func(context.Context) (any, error) { return map[string]int{"pid": os.Getpid()}, nil }
	l, err := Listen(c.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, b) }()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-done, closeBackend()); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(filepath.Join(c.StateDir, config.AdminSocket)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is still there: %v", err)
		}
	})
	return b
}

// bothWays runs a test with and without a running gateway.
func bothWays(t *testing.T, test func(t *testing.T, c *config.Config, conn *Conn, b *Backend)) {
	for _, running := range []bool{true, false} {
		t.Run(map[bool]string{true: "running gateway", false: "no gateway"}[running], func(t *testing.T) {
			c := testConfig(t, shortDir(t))
			var b *Backend
			if running {
				b = serve(t, c)
			}
			conn, err := Dial(t.Context(), c.StateDir, open(t, c))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if conn.Running() != running {
				t.Fatalf("Running() is %v", conn.Running())
			}
			test(t, c, conn, cmp.Or(b, conn.local))
		})
	}
}

func TestCommands(t *testing.T) {
	bothWays(t, func(t *testing.T, c *config.Config, conn *Conn, b *Backend) {
		ctx := t.Context()

		if list, err := ListClients.Call(ctx, conn, None{}); err != nil || len(list) != 0 {
			t.Fatalf("clients of a new gateway: %v, %v", list, err)
		}
		added, err := AddClient.Call(ctx, conn, oauth.NewClient{Name: "App", RedirectURIs: []string{"http://127.0.0.1:1/cb"}, Secret: true})
		if err != nil || added.ID == "" || added.Secret == "" {
			t.Fatalf("adding a client: %+v, %v", added, err)
		}
		set, err := SetPermissions.Call(ctx, conn, PermissionsIn{ClientID: added.ID, Deny: principal.Set{principal.Commands}})
		if err != nil || set.Permissions.Has(principal.Commands) || !set.Permissions.Has(principal.Mailbox) {
			t.Fatalf("denying: %v, %v", set, err)
		}
		list, err := ListClients.Call(ctx, conn, None{})
		if err != nil || len(list) != 1 || list[0].Name != "App" || !list[0].HasSecret || list[0].Permissions.Has(principal.Commands) {
			t.Fatalf("clients: %+v, %v", list, err)
		}
		if out, err := RevokeClient.Call(ctx, conn, ByClient{added.ID}); err != nil || out.Grants != 0 {
			t.Fatalf("revoking: %+v, %v", out, err)
		}

		if peers, err := ListPeers.Call(ctx, conn, PeersIn{}); err != nil || len(peers.Peers) != 0 {
			t.Fatalf("peers: %+v, %v", peers, err)
		}
		if messages, err := ListMessages.Call(ctx, conn, MessagesIn{}); err != nil || len(messages.Messages) != 0 {
			t.Fatalf("messages: %+v, %v", messages, err)
		}
		if out, err := PurgeMessages.Call(ctx, conn, PurgeIn{Before: time.Now()}); err != nil || out.Purged != 0 {
			t.Fatalf("purging: %+v, %v", out, err)
		}

		password, err := ResetPassword.Call(ctx, conn, None{})
		if err != nil || password.OwnerPassword == "" || password.OwnerTokenFile != c.OwnerTokenFile {
			t.Fatalf("a new password: %v", err)
		}
		p, err := owner.LoadPassword(c.OwnerTokenFile)
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := p.Verify(ctx, password.OwnerPassword); err != nil || !ok {
			t.Errorf("the new password does not hold: %v", err)
		}

		entries, err := Audit.Call(ctx, conn, AuditIn{Limit: 20})
		if err != nil {
			t.Fatal(err)
		}
		var actions []string
		for _, e := range entries {
			if e.ClientID != principal.OwnerClientID || e.Outcome != audit.OK {
				t.Errorf("%+v is not recorded as done by the owner", e)
			}
			actions = append(actions, e.Action)
		}
		want := []string{"owner.reset-password", "client.revoke", "client.permissions", "client.add"}
		if diff := gocmp.Diff(want, actions[:4]); diff != "" {
			t.Errorf("audit, newest first (-want +got):\n%s", diff)
		}
	})
}

func TestStopPeer(t *testing.T) {
	bothWays(t, func(t *testing.T, c *config.Config, conn *Conn, b *Backend) {
		// Two owners have a peer "twin"; one has "single". They are registered
		// first, in the store that the commands act on.
		m := b.Mailbox
		for who, ids := range map[string][]string{"local-owner:a": {"twin", "single"}, "local-owner:b": {"twin"}} {
			for _, id := range ids {
				p := principal.Principal{Owner: who, ClientID: "x", Permissions: principal.Full()}
				if _, err := m.RegisterPeer(t.Context(), p, mailbox.RegisterPeerIn{PeerID: id, Kind: mailbox.Chat}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if out, err := StopPeer.Call(t.Context(), conn, StopPeerIn{PeerID: "single"}); err != nil || out.AlreadyStopped || out.Peer.State != mailbox.Stopped {
			t.Errorf("the only one of its name: %+v, %v", out, err)
		}
		if out, err := StopPeer.Call(t.Context(), conn, StopPeerIn{PeerID: "single"}); err != nil || !out.AlreadyStopped {
			t.Errorf("again: %+v, %v", out, err)
		}
		if _, err := StopPeer.Call(t.Context(), conn, StopPeerIn{PeerID: "twin"}); !errors.Is(err, fault.InvalidArguments) || !strings.Contains(fault.From(err).Hint, "--owner") {
			t.Errorf("one of two: %v", err)
		}
		if out, err := StopPeer.Call(t.Context(), conn, StopPeerIn{PeerID: "twin", Owner: "local-owner:b"}); err != nil || out.Peer.State != mailbox.Stopped {
			t.Errorf("one of two, with its owner: %+v, %v", out, err)
		}
		if _, err := StopPeer.Call(t.Context(), conn, StopPeerIn{PeerID: "nobody"}); !errors.Is(err, mailbox.UnknownPeer) {
			t.Errorf("an unknown one: %v", err)
		}
		peers, err := ListPeers.Call(t.Context(), conn, PeersIn{})
		if err != nil || len(peers.Peers) != 1 || peers.Peers[0].Owner != "local-owner:a" || peers.Peers[0].PeerID != "twin" {
			t.Errorf("what is left: %+v, %v", peers, err)
		}
	})
}

func TestRefusalsAreTheSameBothWays(t *testing.T) {
	bothWays(t, func(t *testing.T, c *config.Config, conn *Conn, b *Backend) {
		_, err := RevokeClient.Call(t.Context(), conn, ByClient{"nobody"})
		if e := fault.From(err); !errors.Is(err, oauth.UnknownClient) || e.Message == "" || e.Hint == "" {
			t.Errorf("got %v", err)
		}
		for _, n := range []int{0, 1001} {
			if _, err := Audit.Call(t.Context(), conn, AuditIn{n}); !errors.Is(err, fault.InvalidArguments) {
				t.Errorf("%d entries: %v", n, err)
			}
		}
	})
}

func TestStatusNeedsARunningGateway(t *testing.T) {
	bothWays(t, func(t *testing.T, c *config.Config, conn *Conn, b *Backend) {
		raw, err := Status.Call(t.Context(), conn, None{})
		var got struct{ PID int }
		if conn.Running() && (err != nil || json.Unmarshal(raw, &got) != nil || got.PID != os.Getpid()) {
			t.Errorf("got %s, %v", raw, err)
		}
		if !conn.Running() && err == nil {
			t.Errorf("got %s without a gateway", raw)
		}
	})
}

func TestSocketIsPrivate(t *testing.T) {
	c := testConfig(t, shortDir(t))
	serve(t, c)
	info, err := os.Lstat(filepath.Join(c.StateDir, config.AdminSocket))
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("mode %v, %v; want a socket of mode 0600", info.Mode(), err)
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	dir := shortDir(t)
	path := filepath.Join(dir, config.AdminSocket)
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close() // as if killed: the name stays, nobody answers
	if conn, err := DialRunning(t.Context(), dir); conn != nil || err != nil {
		t.Fatalf("a dead socket answered: %v, %v", conn, err)
	}
	c := testConfig(t, dir)
	serve(t, c)
	conn, err := Dial(t.Context(), dir, open(t, c))
	if err != nil || !conn.Running() {
		t.Fatalf("after the start: %v", err)
	}
	conn.Close()
}

func TestOtherFilesAreNotReplaced(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"file":      func(path string) error { return os.WriteFile(path, []byte("mine"), 0o600) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"link":      func(path string) error { return os.Symlink("/dev/null", path) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := shortDir(t)
			path := filepath.Join(dir, config.AdminSocket)
			if err := make(path); err != nil {
				t.Fatal(err)
			}
			if l, err := Listen(dir); err == nil {
				l.Close()
				t.Error("it was replaced")
			}
			if _, err := os.Lstat(path); err != nil {
				t.Errorf("it is gone: %v", err)
			}
		})
	}
}

// A gateway that holds the lock and does not answer is named.
func TestUnansweredGatewayIsNamed(t *testing.T) {
	c := testConfig(t, shortDir(t))
	s, err := store.Open(t.Context(), store.Options{Dir: c.StateDir})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, err = Dial(t.Context(), c.StateDir, open(t, c))
	var unanswered *UnansweredError
	if !errors.As(err, &unanswered) || unanswered.PID != os.Getpid() {
		t.Errorf("got %v", err)
	}
}

// A gateway that is still starting is waited for.
func TestStartingGatewayIsWaitedFor(t *testing.T) {
	c := testConfig(t, shortDir(t))
	b, closeBackend, err := open(t, c)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer closeBackend()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	tried := make(chan struct{}, 1)
	go func() {
		<-tried
		l, err := Listen(c.StateDir)
		if err != nil {
			done <- err
			return
		}
		done <- Serve(ctx, l, b)
	}()
	conn, err := Dial(t.Context(), c.StateDir, func(ctx context.Context) (*Backend, func() error, error) {
		b, closeBackend, err := open(t, c)(ctx)
		select {
		case tried <- struct{}{}:
		default:
		}
		return b, closeBackend, err
	})
	if err != nil || !conn.Running() {
		t.Errorf("got %v", err)
	} else {
		conn.Close()
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestSocketRefusesWhatItDoesNotKnow(t *testing.T) {
	c := testConfig(t, shortDir(t))
	serve(t, c)
	conn, err := DialRunning(t.Context(), c.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, tt := range []struct {
		name, method, path, body string
		status                   int
		code                     string
	}{
		{"unknown command", "POST", "/no.such", "{}", 422, "unknown_command"},
		{"GET", "GET", "/clients.list", "", 422, "unknown_command"},
		{"unknown argument", "POST", "/clients.revoke", `{"client": "x"}`, 422, "invalid_arguments"},
		{"no JSON", "POST", "/clients.revoke", `x`, 422, "invalid_arguments"},
		{"too long", "POST", "/clients.revoke", `{"clientId": "` + strings.Repeat("x", maxRequest) + `"}`, 422, "invalid_arguments"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := http.NewRequestWithContext(t.Context(), tt.method, "http://gateway"+tt.path, strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := conn.client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			var body struct{ Error wireError }
			err = json.NewDecoder(resp.Body).Decode(&body)
			if resp.StatusCode != tt.status || err != nil || body.Error.Code != tt.code {
				t.Errorf("got %d %+v, %v; want %d %s", resp.StatusCode, body, err, tt.status, tt.code)
			}
		})
	}
}

// A gateway that is killed between the commit and its answer has done what it
// was asked, so an error must not read like a refusal.
func TestLostAnswerIsNoRefusal(t *testing.T) {
	for name, answer := range map[string]string{
		"nothing":        "",
		"half an answer": "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			c := testConfig(t, shortDir(t))
			l, err := Listen(c.StateDir)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					_, _ = conn.Read(make([]byte, 4096))
					_, _ = conn.Write([]byte(answer))
					conn.Close()
				}
			}()
			defer func() { l.Close(); <-done }()
			conn, err := DialRunning(t.Context(), c.StateDir)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, err = AddClient.Call(t.Context(), conn, oauth.NewClient{Name: "x"})
			if err == nil || !strings.Contains(err.Error(), "may have been done") || !strings.Contains(err.Error(), "gateway status --audit") || strings.Contains(err.Error(), "http://") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Trouble of the store keeps its cause for the log and says under which id.
func TestTroubleIsLoggedNotTold(t *testing.T) {
	c := testConfig(t, shortDir(t))
	b := serve(t, c)
	var log strings.Builder
	b.Log = slog.New(slog.NewTextHandler(&log, nil))
	conn, err := DialRunning(t.Context(), c.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	b.Store.Close()
	_, err = RevokeClient.Call(t.Context(), conn, ByClient{"x"})
	e := fault.From(err)
	if !errors.Is(err, fault.Unavailable) || !e.Retryable {
		t.Fatalf("got %v", err)
	}
	_, id, _ := strings.Cut(e.Message, "under id ")
	if id = strings.TrimSuffix(id, "."); id == "" || !strings.Contains(log.String(), "id="+id) || !strings.Contains(log.String(), "closed") {
		t.Errorf("the log has not the cause under %q: %s", id, log.String())
	}
}
