package channel

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"agentrelay/internal/channel/capability"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
	"agentrelay/internal/tool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// definitions are tools with the names and arguments of the gateway's.
func definitions() []tool.Tool {
	id := func() *tool.Schema { return tool.Str("An id.").Matching(tool.IDForm) }
	uuid := func() *tool.Schema { return tool.Str("A UUID.").Matching(tool.UUIDForm) }
	tools := []tool.Tool{
		{Name: "register_peer", In: tool.Arguments(tool.Req("peerId", id()), tool.Req("kind", tool.Str("Kind.").OneOf("chat", "dot", "local")),
			tool.Opt("displayName", tool.Str("Name.").Length(1, 100)), tool.Opt("hostId", id()), tool.Opt("agentId", id()))},
		{Name: "list_peers", ReadOnly: true, In: tool.Arguments(tool.Opt("includeStopped", tool.Boolean("All.")), tool.Opt("limit", tool.Integer("Limit.").Between(1, 200)), tool.Opt("cursor", tool.Str("Cursor.")))},
		{Name: "send_peer_message", In: tool.Arguments(tool.Req("messageId", uuid()), tool.Req("fromPeerId", id()), tool.Req("toPeerId", id()), tool.Req("text", tool.Str("Text.").Length(1, 8192)), tool.Opt("inReplyTo", uuid()))},
		{Name: "list_peer_messages", ReadOnly: true, In: tool.Arguments(tool.Req("peerId", id()), tool.Opt("includeProcessed", tool.Boolean("All.")), tool.Opt("threadId", uuid()),
			tool.Opt("limit", tool.Integer("Limit.").Between(1, 200)), tool.Opt("cursor", tool.Str("Cursor.")), tool.Opt("waitMs", tool.Integer("Wait.").Between(0, 20000)))},
		{Name: "get_peer_message", ReadOnly: true, In: tool.Arguments(tool.Req("messageId", uuid()), tool.Opt("peerId", id()))},
		{Name: "ack_peer_message", In: tool.Arguments(tool.Req("messageId", uuid()), tool.Req("peerId", id()))},
		{Name: "stop_peer", In: tool.Arguments(tool.Req("peerId", id()))},
		{Name: "list_hosts", In: tool.Arguments()},
	}
	for i := range tools {
		tools[i].Permission = principal.Mailbox
	}
	return tools
}

// machine is a gateway of nothing but its mailbox and its channel.
type machine struct {
	t      testing.TB
	dir    string
	clock  *atomic.Int64
	store  *store.Store
	box    *mailbox.Service
	agents *Agents
	server *Server
	remote *remoteFiles
	log    *buffer
	stop   func()
}

// shortDir is a private directory whose path leaves room for a socket.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ch")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func newMachine(t testing.TB) *machine {
	t.Helper()
	m := &machine{t: t, dir: shortDir(t), clock: &atomic.Int64{}, remote: &remoteFiles{files: map[string]string{}}, log: &buffer{}}
	m.clock.Store(time.Date(2026, 5, 1, 8, 0, 0, 0, time.UTC).UnixMilli())
	m.open()
	t.Cleanup(func() { m.stop() })
	return m
}

func (m *machine) now() time.Time { return time.UnixMilli(m.clock.Load()) }

// open starts the gateway; restart is what its owner does.
func (m *machine) open() {
	m.t.Helper()
	var err error
	if m.store, err = store.Open(context.Background(), store.Options{Dir: m.dir, Now: m.now}); err != nil {
		m.t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(m.log, nil))
	m.agents = NewAgents(AgentsOptions{
		Store: m.store, StateDir: m.dir, LocalHostID: "local", LocalAliases: []string{"mac"}, HostIDs: func() []string { return []string{"box"} },
		Remote: func(string) (RemoteFiles, error) { return m.remote, nil }, Rand: rand.Reader, Log: log,
	})
	m.box = mailbox.New(mailbox.Options{Store: m.store, Agents: m.agents, LocalHostID: "local", Now: m.now})
	m.server = m.serverOf("local", nil)
	l, err := Listen(m.dir)
	if err != nil {
		m.t.Fatal(err)
	}
	stop := serve(m.t, m.server, l)
	m.stop = sync.OnceFunc(func() {
		m.box.Close()
		stop()
		m.store.Close()
	})
}

func (m *machine) serverOf(hostID string, d Dispatches) *Server {
	return NewServer(ServerOptions{Store: m.store, HostID: hostID, Mailbox: m.box, Tools: definitions(), Dispatches: d, Now: m.now, Log: slog.New(slog.NewTextHandler(m.log, nil))})
}

func (m *machine) restart() {
	m.t.Helper()
	m.stop()
	m.open()
}

// serve runs a server on a listener until the returned function is called.
func serve(t testing.TB, s *Server, l net.Listener) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// chat registers a peer of another client of the owner.
func (m *machine) chat(id string) principal.Principal {
	m.t.Helper()
	who := principal.Principal{Owner: principal.SharedOwner, ClientID: "chat-client"}
	if _, err := m.box.RegisterPeer(m.t.Context(), who, mailbox.RegisterPeerIn{PeerID: id, Kind: mailbox.Chat}); err != nil {
		m.t.Fatal(err)
	}
	return who
}

// agent is an adopted agent of the local host.
type agent struct {
	m       *machine
	id, key string
}

func (m *machine) adopt(id string) agent {
	m.t.Helper()
	if _, err := m.agents.Adopt(m.t.Context(), principal.SharedOwner, "", id); err != nil {
		m.t.Fatal(err)
	}
	return agent{m, id, m.key(m.dir, id)}
}

func (m *machine) key(stateDir, id string) string {
	m.t.Helper()
	f, err := capability.Read(stateDir, id)
	if err != nil {
		m.t.Fatal(err)
	}
	return f.Key
}

// reply is an answer of the channel.
type reply struct {
	status int
	body   string
	code   string // of a refusal
}

// over makes a request over a socket.
func over(ctx context.Context, socket, method, route, agentID, key, body string) (reply, error) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}
	r, err := http.NewRequestWithContext(ctx, method, "http://channel"+route, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	if agentID != "" {
		r.Header.Set("Agent-Id", agentID)
	}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	out := reply{status: resp.StatusCode, body: string(raw)}
	var e tool.Envelope
	if json.Unmarshal(raw, &e) == nil {
		out.code = e.Error.Code
	}
	return out, err
}

func (a agent) request(method, route, body string) reply {
	a.m.t.Helper()
	r, err := over(a.m.t.Context(), filepath.Join(a.m.dir, capability.Socket), method, route, a.id, a.key, body)
	if err != nil {
		a.m.t.Fatal(err)
	}
	return r
}

// post calls a route with arguments given as names and values.
func (a agent) post(route string, pairs ...any) reply {
	a.m.t.Helper()
	in := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		in[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	return a.request(http.MethodPost, "/v1/"+route, string(tool.Encode(in)))
}

func (r reply) want(t testing.TB, code string) {
	t.Helper()
	if r.code != code || (code == "") != (r.status == http.StatusOK) {
		t.Errorf("status %d, %s; want %q", r.status, r.body, code)
	}
}

// get reads a member of an answer, by its path.
func (r reply) get(t testing.TB, path ...string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(r.body), &v); err != nil {
		t.Fatalf("%s: %v", r.body, err)
	}
	for _, name := range path {
		object, ok := v.(map[string]any)
		if !ok {
			t.Fatalf("%s has no %v", r.body, path)
		}
		v = object[name]
	}
	return v
}

// remoteFiles is the state directory of the host box.
type remoteFiles struct {
	mu    sync.Mutex
	files map[string]string
	down  error
}

func (r *remoteFiles) WritePrivate(_ context.Context, relPath string, content []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down != nil {
		return r.down
	}
	r.files[relPath] = string(content)
	return nil
}

var errDown = errors.New("the host is down")

// buffer is a bytes.Buffer for several goroutines.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
