package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/crypto/ssh"

	"agentrelay/internal/audit"
	"agentrelay/internal/e2e/rig"
	"agentrelay/internal/e2e/sshd"
)

// importSize is large enough for a loss in the middle: more than SSH sends
// before it is answered.
const importSize, exportSize = 16 << 20, 48 << 20

// lossRig is a gateway and machines that it reaches through proxies which fail.
type lossRig struct {
	*remoteRig
	home       *rig.Home
	authorized *rig.Client
	source     *source
}

// far is one of the machines. Its calls are those of a chat of its own.
type far struct {
	t      *testing.T
	rig    *lossRig
	id     string
	server *sshd.Server
	proxy  *sshd.Proxy
	dir    string // of the project
	chat   chat
	agent  *machineAgent

	mu    sync.Mutex
	calls map[string][]string // the outcomes of changes, by action and subject
	later []func(*testing.T)  // what must still be so at the end
}

// newLossRig sets machines up, with an agent on each.
func newLossRig(t *testing.T, ids ...string) (*lossRig, *rig.Gateway, []*far) {
	t.Helper()
	r := &lossRig{remoteRig: newRemoteRig(t), source: newSource(t)}
	r.home = r.owner.home
	key := r.client.Key("far", "")
	var machines []*far
	var hosts []any
	config := ""
	for _, id := range ids {
		server := sshd.Start(t, sshd.Options{Authorized: []ssh.PublicKey{key.Public}})
		m := &far{rig: r, id: id, server: server, proxy: sshd.NewProxy(t, server.Address()), dir: filepath.Join(server.Dir, "site"), calls: map[string][]string{}}
		if err := os.Mkdir(m.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		config += fmt.Sprintf("Host %s\n  HostName 127.0.0.1\n  Port %d\n  User %s\n  IdentityFile %s\n", id, m.proxy.Port, sshd.User(t), key.File)
		r.client.KnowAs(m.proxy.Address(), server)
		state := filepath.Join(server.Dir, "relay")
		m.agent = &machineAgent{t, r.home, filepath.Join(state, "bin", "peer-agent"), "builder"}
		hosts = append(hosts, map[string]any{
			"id": id, "name": "The machine " + id, "transport": "ssh", "target": "ssh://" + id, "allowedRoots": []string{server.Dir}, "remoteStateDir": state,
			"direct": map[string]any{"projects": []any{map[string]any{"id": "site", "path": m.dir, "write": true, "commandMode": "full"}}},
		})
		machines = append(machines, m)
	}
	r.client.Configure(config)
	r.home.Configure("hosts", hosts)
	r.home.Configure("safedial", object{"allowLoopback": true})
	running := r.home.Serve()
	r.authorized = r.home.Authorize("Chat")
	first := r.connect(r.authorized)
	first.call("register_peer", object{"peerId": "chat-main", "kind": "chat"})
	var installed sync.WaitGroup
	for _, m := range machines {
		installed.Go(func() { r.home.OK("hosts", "install", m.id) })
	}
	installed.Wait()
	for _, m := range machines {
		m.with(t).reached()
		r.home.OK("agents", "adopt", "--host", m.id, "--agent", m.agent.id)
		m.agent.until("register", "--peer", m.peer())
	}
	return r, running, machines
}

// with is the machine as a test sees it that has a session of its own.
func (m *far) with(t *testing.T) *far {
	t.Helper()
	s, err := m.rig.authorized.Connect(t.Context(), "chat", m.rig.authorized.Token.AccessToken)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	m.t, m.chat, m.agent.t = t, chat{t, s}, t
	return m
}

func (m *far) peer() string { return "heron-" + m.id }

// eventually waits until something is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come", what)
		}
	}
}

// listed is what list_hosts says of the machine.
func (m *far) listed() map[string]any {
	for _, h := range m.chat.call("list_hosts", nil)["hosts"].([]any) {
		if h := h.(map[string]any); h["hostId"] == m.id {
			return h
		}
	}
	m.t.Fatalf("list_hosts lacks %s", m.id)
	return nil
}

func (m *far) reached() {
	m.t.Helper()
	eventually(m.t, m.id, func() bool { h := m.listed(); return h["available"] == true && h["worker"] != nil })
}

// ended is how a call ended.
type ended struct {
	out  object
	code string // of its refusal
	err  error
}

// changes are the tools whose effect is on record, by the action there.
var changes = map[string]string{"write_direct_file": "file.write", "edit_direct_file": "file.edit", "run_direct_command": "command.run"}

// begin makes a call in the background.
func (m *far) begin(tool string, in object) <-chan ended {
	in["hostId"] = m.id
	if tool != "get_direct_transfer" && tool != "read_direct_command" {
		in["projectId"] = "site"
	}
	c, ctx, session := make(chan ended, 1), m.t.Context(), m.chat
	go func() {
		e := ended{out: object{}}
		if e.err = session.Call(ctx, tool, in, &e.out); e.err != nil {
			e.code = refusedAs(e.err)
		}
		if action, ok := changes[tool]; ok {
			subject := in["path"]
			if subject == nil {
				subject = in["requestId"]
			}
			outcome := e.code
			if outcome == "" {
				outcome = audit.OK
			}
			m.mu.Lock()
			key := fmt.Sprint(action, " ", subject)
			m.calls[key] = append(m.calls[key], outcome)
			m.mu.Unlock()
		}
		c <- e
	}()
	return c
}

func (m *far) do(tool string, in object) ended { return <-m.begin(tool, in) }

// has is what a file of the project has; false where there is none.
func (m *far) has(name string) (string, bool) {
	raw, err := os.ReadFile(filepath.Join(m.dir, name))
	return string(raw), err == nil
}

// holds asks for a content now, and again at the end: nothing may change what was
// answered. "" is that there is no such file.
func (m *far) holds(name, want string) {
	check := func(t *testing.T) {
		t.Helper()
		if got, there := m.has(name); got != want || there != (want != "") {
			t.Errorf("%s: %s has %d bytes (%v), %.60q, want %.60q", m.id, name, len(got), there, got, want)
		}
	}
	m.t.Helper()
	check(m.t)
	m.later = append(m.later, check)
}

// source is where imports come from. It sends nothing before it is let.
type source struct {
	url   string
	mu    sync.Mutex
	asked map[string]chan struct{}
	let   map[string]chan struct{}
}

func newSource(t *testing.T) *source {
	s := &source{asked: map[string]chan struct{}{}, let: map[string]chan struct{}{}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked, let := s.gate(r.URL.Path)
		close(asked)
		select {
		case <-let:
			_, _ = io.WriteString(w, imported(r.URL.Path))
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func (s *source) gate(path string) (asked, let chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked[path] == nil {
		s.asked[path], s.let[path] = make(chan struct{}), make(chan struct{})
	}
	return s.asked[path], s.let[path]
}

func imported(path string) string { return strings.Repeat(path+"\n", importSize/(len(path)+1)) }

// importing begins an import, and returns when its source is asked. The content
// comes with let.
func (m *far) importing(name string) (answer <-chan ended, let func()) {
	path := "/" + m.id + "/" + name
	asked, letChan := m.rig.source.gate(path)
	answer = m.begin("import_direct_file", object{
		"path": name, "requestId": name, "expectedSha256": nil, "waitMs": 20000, "file": object{"download_url": m.rig.source.url + path, "file_id": "f"},
	})
	select {
	case <-asked:
	case e := <-answer:
		m.t.Fatalf("%s: %v", name, e)
	}
	return answer, func() { close(letChan) }
}

// settledImport checks that an import ended as its file says, once.
func (m *far) settledImport(name string) {
	m.t.Helper()
	var got object
	eventually(m.t, "the end of the import "+name, func() bool {
		e := m.do("get_direct_transfer", object{"requestId": name})
		got = e.out
		return e.err == nil && got["state"] != "pending" && got["state"] != "outcome_unknown"
	})
	m.t.Logf("%s: the import %s is %v", m.id, name, got["state"])
	switch got["state"] {
	case "completed":
		m.holds(name, imported("/"+m.id+"/"+name))
	case "failed", "interrupted":
		if code := got["error"].(map[string]any)["code"]; code != "host_unavailable" && code != "transfer_interrupted" {
			m.t.Errorf("%s: the import %s failed with %v", m.id, name, got["error"])
		}
		m.holds(name, "")
	default:
		m.t.Errorf("%s: %v", name, got)
	}
	left, _ := filepath.Glob(filepath.Join(m.dir, ".agent-relay-*"))
	if len(left) > 0 {
		m.t.Errorf("%s: %v is left", m.id, left)
	}
}

// settledExport checks that an export ended as one that did not happen, or as the
// file that it is of.
func (m *far) settledExport(name, file string) {
	m.t.Helper()
	var got object
	eventually(m.t, "the end of the export "+name, func() bool {
		got = m.do("get_direct_transfer", object{"requestId": name}).out
		return got["state"] != "pending"
	})
	m.t.Logf("%s: the export %s is %v", m.id, name, got["state"])
	switch got["state"] {
	case "ready":
		want, _ := m.has(file)
		if raw := download(m.t, got["downloadUrl"]); string(raw) != want {
			m.t.Errorf("%s: %d bytes of %d", name, len(raw), len(want))
		}
	case "failed", "interrupted":
		if code := got["error"].(map[string]any)["code"]; code != "host_unavailable" && code != "transfer_interrupted" {
			m.t.Errorf("%s: the export %s failed with %v", m.id, name, got["error"])
		}
	default:
		m.t.Errorf("%s: %v", name, got)
	}
}

// sending has the agent send a message until it is stored.
func (m *far) sending() (id string, stored <-chan int) {
	id = uuid.NewString()
	c, agent := make(chan int, 1), *m.agent
	go func() {
		for n := 1; ; n++ {
			code, out := agent.run("Mail of "+m.id, "send", "--to", "chat-main", "--message-id", id)
			if code == 0 || n == 200 {
				c <- n
				return
			}
			if e := out["error"].(map[string]any); e["code"] != "outcome_unknown" && e["code"] != "host_unavailable" && e["code"] != "gateway_unavailable" && e["retryable"] != true {
				agent.t.Errorf("%s: a message is refused as %v", m.id, e)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	return id, c
}

// received checks that a message is there once.
func (m *far) received(id string) {
	m.t.Helper()
	n := 0
	for _, got := range m.chat.call("list_peer_messages", object{"peerId": "chat-main", "includeProcessed": true, "limit": 200})["messages"].([]any) {
		if got.(map[string]any)["messageId"] == id {
			n++
		}
	}
	if n != 1 {
		m.t.Errorf("%s: the message is %d times in the inbox", m.id, n)
	}
}

// recorded waits until changes are on record, so that they are under way.
func (m *far) recorded(subjects ...string) {
	m.t.Helper()
	eventually(m.t, "the record", func() bool {
		n := 0
		for _, e := range m.rig.auditLog(m.id) {
			for _, s := range subjects {
				if e.Subject == s {
					n++
				}
			}
		}
		return n >= len(subjects)
	})
}

// auditLog has the changes on a host.
func (r *lossRig) auditLog(hostID string) (out []audit.Entry) {
	var status struct{ Audit []audit.Entry }
	if err := json.Unmarshal([]byte(r.home.OK("status", "--audit", "1000", "--json")), &status); err != nil {
		r.t.Fatal(err)
	}
	for _, e := range status.Audit {
		if e.Detail["host"] == hostID {
			out = append(out, e)
		}
	}
	return out
}

// lines is a command whose file shows how often it ran.
func lines(file, wait string) []string {
	return []string{"sh", "-c", fmt.Sprintf("echo begun >>%[1]s; sleep %[2]s; echo ended >>%[1]s", file, wait)}
}
