package channel

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"agentrelay/internal/audit"
	"agentrelay/internal/channel/capability"
	"agentrelay/internal/channel/client"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

const anyUUID = "b0bd3f0e-08d7-4bf6-9764-58e8ef83f85a"

// TestAgentJoinsTheMailbox is the whole flow of an agent and a chat.
func TestAgentJoinsTheMailbox(t *testing.T) {
	m := newMachine(t)
	chat := m.chat("chat-main")
	a := m.adopt("builder")

	me := a.request(http.MethodGet, "/v1/self", "")
	me.want(t, "")
	if me.get(t, "peerId") != nil || me.get(t, "agentId") != "builder" || me.get(t, "hostId") != "local" {
		t.Errorf("a new agent is told %s", me.body)
	}
	registered := a.post("register_peer", "peerId", "builder", "displayName", "Builds")
	registered.want(t, "")
	if registered.get(t, "peer", "kind") != "local" || registered.get(t, "peer", "agentId") != "builder" || registered.get(t, "created") != true {
		t.Errorf("registered as %s", registered.body)
	}
	a.post("list_peers").want(t, "")
	sent := a.post("send_peer_message", "messageId", anyUUID, "fromPeerId", "builder", "toPeerId", "chat-main", "text", "Done?")
	sent.want(t, "")
	out, err := m.box.SendPeerMessage(t.Context(), chat, mailbox.SendPeerMessageIn{MessageID: uuid.NewString(), FromPeerID: "chat-main", ToPeerID: "builder", Text: "Yes.", InReplyTo: ptr(anyUUID)})
	if err != nil {
		t.Fatal(err)
	}
	mail := a.post("list_peer_messages", "peerId", "builder", "waitMs", 1000)
	mail.want(t, "")
	if !strings.Contains(mail.body, out.Message.MessageID) {
		t.Errorf("the inbox is %s", mail.body)
	}
	read := a.post("get_peer_message", "messageId", out.Message.MessageID, "peerId", "builder")
	read.want(t, "")
	if read.get(t, "message", "text") != "Yes." || read.get(t, "message", "readAt") == nil {
		t.Errorf("read %s", read.body)
	}
	a.post("ack_peer_message", "messageId", out.Message.MessageID, "peerId", "builder").want(t, "")
	a.post("stop_peer", "peerId", "builder").want(t, "")
	if a.request(http.MethodGet, "/v1/self", "").get(t, "peerId") != "builder" {
		t.Error("a stopped peer is forgotten")
	}

	list, err := m.agents.List(t.Context(), ListIn{})
	if err != nil || len(list.Agents) != 1 || !list.Agents[0].LastSeenAt.Equal(m.now()) {
		t.Errorf("%+v, %v", list, err)
	}
	log := m.log.String()
	for _, secret := range []string{a.key, "Done?", "Yes."} {
		if strings.Contains(log, secret) {
			t.Errorf("the log has %q", secret)
		}
	}
	if n := strings.Count(log, "route=send_peer_message"); n != 1 {
		t.Errorf("%d lines for one request in\n%s", n, log)
	}
}

func ptr[T any](v T) *T { return &v }

// TestAgentActsAsItselfAlone tries every way to be somebody else.
func TestAgentActsAsItselfAlone(t *testing.T) {
	m := newMachine(t)
	chat := m.chat("chat-main")
	m.chat("old-chat")
	if _, err := m.box.StopPeer(t.Context(), chat, mailbox.StopPeerIn{PeerID: "old-chat"}); err != nil {
		t.Fatal(err)
	}
	a, other := m.adopt("builder"), m.adopt("tester")
	a.post("register_peer", "peerId", "builder").want(t, "")
	other.post("register_peer", "peerId", "tester").want(t, "")
	secret := other.post("send_peer_message", "messageId", anyUUID, "fromPeerId", "tester", "toPeerId", "chat-main", "text", "secret")
	secret.want(t, "")

	for _, c := range []struct {
		route string
		in    []any
		code  string
	}{
		{"send_peer_message", []any{"messageId", uuid.NewString(), "fromPeerId", "tester", "toPeerId", "chat-main", "text", "x"}, "not_own_peer"},
		{"send_peer_message", []any{"messageId", uuid.NewString(), "fromPeerId", "chat-main", "toPeerId", "tester", "text", "x"}, "not_own_peer"},
		{"send_peer_message", []any{"messageId", uuid.NewString(), "fromPeerId", "nobody", "toPeerId", "tester", "text", "x"}, "not_own_peer"},
		{"list_peer_messages", []any{"peerId", "chat-main"}, "not_own_peer"},
		{"get_peer_message", []any{"messageId", anyUUID}, "invalid_arguments"},
		{"get_peer_message", []any{"messageId", anyUUID, "peerId", "chat-main"}, "not_own_peer"},
		{"get_peer_message", []any{"messageId", anyUUID, "peerId", "builder"}, "not_recipient"},
		{"ack_peer_message", []any{"messageId", anyUUID, "peerId", "chat-main"}, "not_own_peer"},
		{"ack_peer_message", []any{"messageId", anyUUID, "peerId", "builder"}, "not_recipient"},
		{"stop_peer", []any{"peerId", "tester"}, "not_own_peer"},
		{"register_peer", []any{"peerId", "tester"}, "not_own_peer"},
		{"register_peer", []any{"peerId", "old-chat"}, "not_own_peer"},
		{"register_peer", []any{"peerId", "second"}, "peer_conflict"},
		{"register_peer", []any{"peerId", "x", "kind", "chat"}, "invalid_arguments"},
		{"register_peer", []any{"peerId", "x", "agentId", "tester"}, "invalid_arguments"},
		{"register_peer", []any{"peerId", "x", "hostId", "box"}, "invalid_arguments"},
		{"register_peer", []any{"peerId", "x y"}, "invalid_arguments"},
		{"register_peer", []any{}, "invalid_arguments"},
		{"send_peer_message", []any{"messageId", "x", "fromPeerId", "builder", "toPeerId", "tester", "text", "x"}, "invalid_arguments"},
		{"send_peer_message", []any{"messageId", uuid.NewString(), "fromPeerId", "builder", "toPeerId", "tester", "text", "x", "more", 1}, "invalid_arguments"},
		{"send_peer_message", []any{"messageId", uuid.NewString(), "fromPeerId", "builder", "toPeerId", "nobody", "text", "x"}, "unknown_peer"},
		{"send_peer_message", []any{"messageId", uuid.NewString(), "fromPeerId", "builder", "toPeerId", "tester", "text", strings.Repeat("é", 8193)}, "invalid_arguments"},
		{"list_hosts", nil, "unknown_route"},
		{"purge", nil, "unknown_route"},
		{"message", []any{"requestId", "r", "messageId", anyUUID, "text", "x"}, "no_dispatch"},
		{"message", []any{"requestId", "r", "messageId", anyUUID, "kind", "order", "text", "x"}, "invalid_arguments"},
	} {
		r := a.post(c.route, c.in...)
		if r.code != c.code {
			t.Errorf("%s %v: %d %s; want %s", c.route, c.in, r.status, r.body, c.code)
		}
		if strings.Contains(r.body, "secret") {
			t.Errorf("%s %v shows %s", c.route, c.in, r.body)
		}
	}
	a.request(http.MethodPost, "/v1/register_peer", `{"peerId":"builder","peerId":"tester"}`).want(t, "invalid_arguments")
	a.request(http.MethodGet, "/v1/register_peer", ``).want(t, "unknown_route")

	entries, err := lastEntries(t, m.store)
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for _, e := range entries {
		if e.Action == "tool.refuse" && e.ClientID == "agent:local/builder" {
			refused++
		}
	}
	if refused < 20 {
		t.Errorf("%d refusals are on record", refused)
	}
}

func lastEntries(t *testing.T, s *store.Store) (entries []audit.Entry, err error) {
	err = store.Read(t.Context(), s, func(r *store.Reader) error {
		entries, err = audit.Last(r, 200)
		return err
	})
	return entries, err
}

func TestOnlyTheCapabilityOpens(t *testing.T) {
	m := newMachine(t)
	a, other := m.adopt("builder"), m.adopt("tester")
	if _, err := m.agents.Adopt(t.Context(), principal.SharedOwner, "box", "builder"); err != nil {
		t.Fatal(err)
	}
	var onBox capability.File
	if err := json.Unmarshal([]byte(m.remote.files["agent-channels/builder.json"]), &onBox); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(m.dir, capability.Socket)
	for _, c := range []struct{ name, id, key, code string }{
		{"nothing", "", "", "capability_missing"},
		{"no agent", "", a.key, "capability_missing"},
		{"no key", a.id, "", "capability_missing"},
		{"another agent's", a.id, other.key, "capability_refused"},
		{"another host's", a.id, onBox.Key, "capability_refused"},
		{"short", a.id, a.key[:63], "capability_refused"},
		{"upper case", a.id, strings.ToUpper(a.key), "capability_refused"},
		{"the hash", a.id, strings.Repeat("0", 64), "capability_refused"},
		{"unknown agent", "nobody", a.key, "capability_refused"},
		{"no id", "a b/../c", a.key, "capability_refused"},
		{"the right one", a.id, a.key, ""},
	} {
		r, err := over(t.Context(), socket, http.MethodGet, "/v1/self", c.id, c.key, "")
		if err != nil {
			t.Fatal(err)
		}
		if r.code != c.code {
			t.Errorf("%s: %s", c.name, r.body)
		}
	}
	// On its own host it opens.
	l, err := Listen(shortDir(t))
	if err != nil {
		t.Fatal(err)
	}
	defer serve(t, m.serverOf("box", nil), l)()
	r, err := over(t.Context(), l.Addr().String(), http.MethodGet, "/v1/self", "builder", onBox.Key, "")
	if err == nil {
		t.Errorf("the temporary name is still there: %+v", r)
	}
	r, err = over(t.Context(), l.(*socketListener).path, http.MethodGet, "/v1/self", "builder", onBox.Key, "")
	if err != nil || r.get(t, "hostId") != "box" {
		t.Errorf("%+v, %v", r, err)
	}
	r, err = over(t.Context(), l.(*socketListener).path, http.MethodGet, "/v1/self", "builder", a.key, "")
	if err != nil || r.code != "capability_refused" {
		t.Errorf("the local key on box: %+v, %v", r, err)
	}
}

func TestRevokingEndsAtOnce(t *testing.T) {
	m := newMachine(t)
	m.chat("chat-main")
	a := m.adopt("builder")
	a.post("register_peer", "peerId", "builder").want(t, "")

	waiting := make(chan reply, 1)
	go func() { waiting <- a.post("list_peer_messages", "peerId", "builder", "waitMs", 1500) }()
	time.Sleep(100 * time.Millisecond) // that it waits already is likely, and no matter
	if out, err := m.agents.Revoke(t.Context(), "mac", "builder"); err != nil || out.AlreadyRevoked {
		t.Fatalf("%+v, %v", out, err)
	}
	r := a.post("send_peer_message", "messageId", anyUUID, "fromPeerId", "builder", "toPeerId", "chat-main", "text", "x")
	r.want(t, "capability_refused")
	if r.status != http.StatusForbidden {
		t.Errorf("status %d", r.status)
	}
	if r := <-waiting; r.code != "capability_refused" {
		t.Errorf("a call that waited meanwhile answers %s", r.body)
	}
	if _, err := capability.Read(m.dir, "builder"); err == nil {
		t.Error("the file is still there")
	}
	who := principal.Principal{Owner: principal.SharedOwner, ClientID: "c"}
	if out, err := m.box.ListPeers(t.Context(), who, mailbox.ListPeersIn{}); err != nil || len(out.Peers) != 2 {
		t.Errorf("its peer is gone: %+v, %v", out, err)
	}
	if _, err := m.box.RegisterPeer(t.Context(), who, mailbox.RegisterPeerIn{PeerID: "again", Kind: mailbox.Local, AgentID: ptr("builder")}); err == nil {
		t.Error("a revoked agent was bound")
	}
	// It comes back with another key alone.
	back := m.adopt("builder")
	if back.key == a.key {
		t.Error("the old key came back")
	}
	a.request(http.MethodGet, "/v1/self", "").want(t, "capability_refused")
	back.request(http.MethodGet, "/v1/self", "").want(t, "")
}

// TestGenerations: a peer that begins anew sees nothing of its earlier life.
func TestGenerations(t *testing.T) {
	m := newMachine(t)
	chat := m.chat("chat-main")
	a := m.adopt("builder")
	a.post("register_peer", "peerId", "builder").want(t, "")
	old, err := m.box.SendPeerMessage(t.Context(), chat, mailbox.SendPeerMessageIn{MessageID: uuid.NewString(), FromPeerID: "chat-main", ToPeerID: "builder", Text: "old"})
	if err != nil {
		t.Fatal(err)
	}
	a.post("stop_peer", "peerId", "builder").want(t, "")
	a.post("send_peer_message", "messageId", uuid.NewString(), "fromPeerId", "builder", "toPeerId", "chat-main", "text", "x").want(t, "peer_stopped")
	a.post("register_peer", "peerId", "builder").want(t, "")

	id := old.Message.MessageID
	mail := a.post("list_peer_messages", "peerId", "builder", "includeProcessed", true)
	if mail.want(t, ""); strings.Contains(mail.body, id) || mail.get(t, "unprocessedCount") != 0.0 {
		t.Errorf("the inbox is %s", mail.body)
	}
	a.post("get_peer_message", "messageId", id, "peerId", "builder").want(t, "unknown_message")
	a.post("ack_peer_message", "messageId", id, "peerId", "builder").want(t, "unknown_message")
	a.post("send_peer_message", "messageId", uuid.NewString(), "fromPeerId", "builder", "toPeerId", "chat-main", "text", "x", "inReplyTo", id).want(t, "unknown_message")
}

func TestOneIDIsSentOnce(t *testing.T) {
	m := newMachine(t)
	chat := m.chat("chat-main")
	a := m.adopt("builder")
	a.post("register_peer", "peerId", "builder").want(t, "")
	send := func(text string) reply {
		return a.post("send_peer_message", "messageId", anyUUID, "fromPeerId", "builder", "toPeerId", "chat-main", "text", text)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	first := 0
	for range 100 {
		wg.Go(func() {
			r := send("once")
			mu.Lock()
			defer mu.Unlock()
			if r.want(t, ""); r.get(t, "duplicate") == false {
				first++
			}
		})
	}
	wg.Wait()
	if first != 1 {
		t.Errorf("%d calls were the first", first)
	}
	m.restart() // as after a crash between the commit and the answer
	if r := send("once"); r.code != "" || r.get(t, "duplicate") != true {
		t.Errorf("after a restart: %s", r.body)
	}
	send("twice").want(t, "key_conflict")
	out, err := m.box.ListPeerMessages(t.Context(), chat, mailbox.ListPeerMessagesIn{PeerID: "chat-main"})
	if err != nil || len(out.Messages) != 1 {
		t.Errorf("%+v, %v", out, err)
	}
}

// cutting is a listener whose connections break when the answer is sent.
type cutting struct {
	net.Listener
	cut atomic.Bool
}

func (l *cutting) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &cuttingConn{c, l}, err
}

type cuttingConn struct {
	net.Conn
	l *cutting
}

func (c *cuttingConn) Write(b []byte) (int, error) {
	if c.l.cut.Load() {
		c.Conn.Close()
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}

// TestLostAnswerIsAskedForAgain: what was stored before the connection broke is
// stored once.
func TestLostAnswerIsAskedForAgain(t *testing.T) {
	m := newMachine(t)
	chat := m.chat("chat-main")
	a := m.adopt("builder")
	a.post("register_peer", "peerId", "builder").want(t, "")
	dir := shortDir(t)
	if err := capability.Write(dir, capability.File{Version: 1, AgentID: a.id, Key: a.key}); err != nil {
		t.Fatal(err)
	}
	inner, err := net.Listen("unix", filepath.Join(dir, capability.Socket))
	if err != nil {
		t.Fatal(err)
	}
	l := &cutting{Listener: inner}
	defer serve(t, m.server, l)()

	c := client.Client{StateDir: dir, AgentID: a.id}
	send := client.Request{Route: "send_peer_message", Changes: true, In: mailbox.SendPeerMessageIn{MessageID: anyUUID, FromPeerID: "builder", ToPeerID: "chat-main", Text: "secret"}}
	l.cut.Store(true)
	if _, err := c.Do(t.Context(), send); !errors.Is(err, client.OutcomeUnknown) || strings.Contains(err.Error(), "secret") {
		t.Fatalf("with a lost answer: %v", err)
	}
	l.cut.Store(false)
	raw, err := c.Do(t.Context(), send)
	if err != nil || !strings.Contains(string(raw), `"duplicate":true`) {
		t.Errorf("repeated: %s, %v", raw, err)
	}
	out, err := m.box.ListPeerMessages(t.Context(), chat, mailbox.ListPeerMessagesIn{PeerID: "chat-main"})
	if err != nil || len(out.Messages) != 1 {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestLimits(t *testing.T) {
	m := newMachine(t)
	a, other := m.adopt("builder"), m.adopt("tester")
	r := a.request(http.MethodPost, "/v1/list_peers", `{"cursor":"`+strings.Repeat("x", MaxBody)+`"}`)
	if r.want(t, "request_too_large"); r.status != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d", r.status)
	}
	for i := range rateBurst + 1 {
		r = a.request(http.MethodGet, "/v1/self", "")
		if r.code != "" {
			if i < rateBurst-2 {
				t.Fatalf("request %d: %s", i, r.body)
			}
			break
		}
	}
	r.want(t, "agent_rate_limited")
	other.request(http.MethodGet, "/v1/self", "").want(t, "")
	m.clock.Add(1000)
	a.request(http.MethodGet, "/v1/self", "").want(t, "")
}

// dispatches stores the messages to chats.
type dispatches struct {
	from Caller
	in   MessageIn
}

func (d *dispatches) Message(_ context.Context, from Caller, in MessageIn) (any, error) {
	d.from, d.in = from, in
	if in.RequestID == "panic" {
		panic("oh")
	}
	return map[string]string{"messageId": in.MessageID}, nil
}

func TestMessagesGoToTheDispatch(t *testing.T) {
	m := newMachine(t)
	a := m.adopt("builder")
	dir, d := shortDir(t), &dispatches{}
	l, err := Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer serve(t, m.serverOf("local", d), l)()
	post := func(body string) reply {
		r, err := over(t.Context(), filepath.Join(dir, capability.Socket), http.MethodPost, "/v1/message", a.id, a.key, body)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := post(`{"requestId":"fix-it","messageId":"` + anyUUID + `","text":"Half done."}`)
	r.want(t, "")
	if want := (MessageIn{"fix-it", anyUUID, KindMessage, "Half done."}); d.in != want || d.from != (Caller{"local", "builder", principal.SharedOwner}) {
		t.Errorf("%+v from %+v", d.in, d.from)
	}
	r = post(`{"requestId":"panic","messageId":"` + anyUUID + `","text":"Half done."}`)
	if r.want(t, "internal_error"); strings.Contains(r.body, "oh") || !strings.Contains(m.log.String(), "panic: oh") {
		t.Errorf("a panic answers %s", r.body)
	}
}

func FuzzRequest(f *testing.F) {
	m := newMachine(f)
	a := m.adopt("builder")
	a.post("register_peer", "peerId", "builder").want(f, "")
	handler := m.server.Handler()
	for _, seed := range []string{`{}`, `{"peerId":"builder"}`, `{"peerId":"x","kind":"local"}`, `[]`, `null`, ` {"peerId":`, `{"kind":null}`, `{"peerId":"builder","peerId":"y"}`, `{"messageId":"` + anyUUID + `","peerId":"builder"}`} {
		for route := range routes {
			f.Add(route, []byte(seed))
		}
	}
	f.Fuzz(func(t *testing.T, route string, body []byte) {
		if _, ok := routes[route]; !ok {
			return
		}
		m.clock.Add(1000)
		w := &recorder{header: http.Header{}}
		r, err := http.NewRequest(http.MethodPost, "/v1/"+route, strings.NewReader(string(body)))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+a.key)
		r.Header.Set("Agent-Id", a.id)
		handler.ServeHTTP(w, r)
		if !json.Valid([]byte(w.body.String())) || w.status >= 500 {
			t.Errorf("%s %q: %d %s", route, body, w.status, w.body.String())
		}
		who := principal.Principal{Owner: principal.SharedOwner}
		out, err := m.box.ListPeers(t.Context(), who, mailbox.ListPeersIn{IncludeStopped: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range out.Peers {
			if p.Kind != mailbox.Local || p.AgentID != "builder" || p.HostID != "local" {
				t.Fatalf("%s %q made %+v", route, body, p)
			}
		}
	})
}

// recorder is a response that nothing is known of but what was written.
type recorder struct {
	header http.Header
	status int
	body   strings.Builder
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(b []byte) (int, error) { return r.body.Write(b) }
