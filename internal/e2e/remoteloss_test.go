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
	c := make(chan int, 1)
	go func() {
		for n := 1; ; n++ {
			code, out := m.agent.run("Mail of "+m.id, "send", "--to", "chat-main", "--message-id", id)
			if code == 0 || n == 200 {
				c <- n
				return
			}
			if e := out["error"].(map[string]any); e["code"] != "outcome_unknown" && e["code"] != "host_unavailable" && e["code"] != "gateway_unavailable" && e["retryable"] != true {
				m.t.Errorf("%s: a message is refused as %v", m.id, e)
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

// round is the changes that a loss falls upon, and the calls beside them.
type round struct {
	m                      *far
	n                      string
	write, edit, run, read <-chan ended
}

func (m *far) prepare(n string) *round {
	if err := os.WriteFile(filepath.Join(m.dir, "edit-"+n), []byte("one two\n"), 0o600); err != nil {
		m.t.Fatal(err)
	}
	return &round{m: m, n: n}
}

func (r *round) writes() object {
	return object{"path": "write-" + r.n, "content": "heron " + r.n, "expectedSha256": nil}
}

func (r *round) edits() object {
	return object{"path": "edit-" + r.n, "oldText": "two", "newText": "two two", "expectedSha256": "2dbb4a503f1515636b6a54e7f5b1a8ccfddcb62f0571c8b57a2879c360d00346"}
}

func (r *round) runs() object {
	return object{"requestId": "run-" + r.n, "argv": lines("run-"+r.n, "0.3"), "waitMs": 20000}
}

func (r *round) begin() {
	r.write, r.edit = r.m.begin("write_direct_file", r.writes()), r.m.begin("edit_direct_file", r.edits())
	r.run, r.read = r.m.begin("run_direct_command", r.runs()), r.m.begin("read_direct_file", object{"path": "edit-" + r.n})
}

// notDone checks answers to what never arrived, and that it can be done since.
func (r *round) notDone() {
	m := r.m
	m.t.Helper()
	for what, c := range map[string]<-chan ended{"write": r.write, "edit": r.edit, "read": r.read} {
		if e := <-c; e.code != "host_unavailable" {
			m.t.Errorf("%s: the %s %s ended with %v, %v", m.id, what, r.n, e.out, e.err)
		}
	}
	ran := <-r.run
	if failed, _ := ran.out["error"].(map[string]any); ran.out["state"] != "failed" || failed["code"] != "not_started" || ran.out["duplicate"] != false {
		m.t.Errorf("%s: the command %s ended as %v, %v", m.id, r.n, ran.out, ran.err)
	}
	if _, there := m.has("write-" + r.n); there {
		m.t.Errorf("%s: it was written", m.id)
	}
	if got, _ := m.has("edit-" + r.n); got != "one two\n" {
		m.t.Errorf("%s: it was edited: %q", m.id, got)
	}
	if again := m.do("run_direct_command", r.runs()); again.out["state"] != "failed" || again.out["duplicate"] != true {
		m.t.Errorf("%s: repeated, the command is %v, %v", m.id, again.out, again.err)
	}
	m.holds("run-"+r.n, "")
	r.repeated(false)
}

// done checks answers to what was done before the loss.
func (r *round) done() {
	m := r.m
	m.t.Helper()
	for what, c := range map[string]<-chan ended{"write": r.write, "edit": r.edit, "run": r.run} {
		if e := <-c; e.err != nil || e.out["duplicate"] == true || what == "run" && e.out["state"] != "exited" {
			m.t.Errorf("%s: the %s %s ended with %v, %v", m.id, what, r.n, e.out, e.err)
		}
	}
	if e := <-r.read; e.code != "host_unavailable" {
		m.t.Errorf("%s: the read ended with %v, %v", m.id, e.out, e.err)
	}
	r.repeated(true)
	r.ranOnce()
}

// repeated makes the write and the edit once more.
func (r *round) repeated(duplicate bool) {
	m := r.m
	m.t.Helper()
	for tool, in := range map[string]object{"write_direct_file": r.writes(), "edit_direct_file": r.edits()} {
		e := m.do(tool, in)
		if was, _ := e.out["duplicate"].(bool); e.err != nil || was != duplicate {
			m.t.Errorf("%s: repeated, %s answers %v, %v", m.id, tool, e.out, e.err)
		}
	}
	m.holds("write-"+r.n, "heron "+r.n)
	m.holds("edit-"+r.n, "one two two\n")
}

// ranOnce checks that a command that began has run to its end, once.
func (r *round) ranOnce() {
	m := r.m
	m.t.Helper()
	var e ended
	eventually(m.t, "the end of the command", func() bool {
		e = m.do("run_direct_command", r.runs())
		return e.out["state"] == "exited"
	})
	if e.out["duplicate"] != true {
		m.t.Errorf("%s: repeated, the command is %v", m.id, e.out)
	}
	m.holds("run-"+r.n, "begun\nended\n")
}

// TestLostConnections loses the connections to machines while everything that
// goes over one is under way. Each call must end as it really ended, once.
func TestLostConnections(t *testing.T) {
	t.Parallel()
	_, running, machines := newLossRig(t, "killed", "restarted", "broken", "hole")
	lose := map[string]func(*far){
		"killed":    func(m *far) { m.server.KillSessions() },
		"restarted": func(m *far) { m.server.Stop(); m.server.Start() },
		"broken":    func(*far) {},
	}
	t.Run("each", func(t *testing.T) {
		for _, m := range machines {
			t.Run(m.id, func(t *testing.T) {
				t.Parallel()
				m.with(t)
				if m.id == "hole" {
					m.swallowed()
					return
				}
				lost := func() {
					lose[m.id](m)
					m.proxy.Cut()
					m.proxy.Restore()
				}
				m.beforeItArrives(lost)
				m.afterItWasDone(lost)
				m.inTheMiddle(lost)
			})
		}
	})
	if t.Failed() {
		return
	}
	for _, m := range machines {
		m.with(t).onRecord()
	}
	machines[0].offline()
	if log := running.Output(); strings.Contains(log, "heron 1") || strings.Contains(log, "Mail of") {
		t.Error("the log has what was written")
	}
	if code := running.Stop(); code != 0 {
		t.Errorf("the gateway ended with %d", code)
	}
}

// beforeItArrives loses what was sent and is on its way. It may arrive when the
// gateway has long been answered that it was not done.
func (m *far) beforeItArrives(lost func()) {
	r := m.prepare("1")
	carried, let := m.importing("import-1")
	m.server.Freeze()
	let()
	r.begin()
	exported := m.begin("export_direct_file", object{"path": "edit-1", "requestId": "export-1"})
	id, stored := m.sending()
	m.recorded("write-1", "edit-1", "run-1")
	lost()
	r.notDone()
	if e := <-exported; e.code != "host_unavailable" {
		m.t.Errorf("%s: the export ended with %v, %v", m.id, e.out, e.err)
	}
	if e := m.do("export_direct_file", object{"path": "edit-1", "requestId": "export-1"}); e.out["state"] != "ready" || string(download(m.t, e.out["downloadUrl"])) != "one two two\n" {
		m.t.Errorf("%s: repeated, the export is %v, %v", m.id, e.out, e.err)
	}
	<-carried
	m.settledImport("import-1")
	m.server.Thaw() // what waited there arrives
	m.t.Logf("%s: the message took %d sends", m.id, <-stored)
	m.received(id)
}

// afterItWasDone loses the answers.
func (m *far) afterItWasDone(lost func()) {
	m.reached()
	r := m.prepare("2")
	carried, let := m.importing("import-2")
	let()
	eventually(m.t, "the import", func() bool {
		left, _ := filepath.Glob(filepath.Join(m.dir, ".agent-relay-*"))
		_, there := m.has("import-2")
		return there || len(left) > 0
	})
	m.proxy.Mute()
	r.begin()
	id, stored := m.sending()
	eventually(m.t, "what was asked for", func() bool {
		_, written := m.has("write-2")
		edited, _ := m.has("edit-2")
		_, ran := m.has("run-2")
		return written && edited == "one two two\n" && ran
	})
	lost()
	r.done()
	<-carried
	m.settledImport("import-2")
	m.t.Logf("%s: the message took %d sends", m.id, <-stored)
	m.received(id)
}

// inTheMiddle loses the connection while a file is on its way, and while somebody
// waits for a command.
func (m *far) inTheMiddle(lost func()) {
	m.reached()
	if err := os.WriteFile(filepath.Join(m.dir, "large"), []byte(strings.Repeat("heron 3\n", exportSize/8)), 0o600); err != nil {
		m.t.Fatal(err)
	}
	if e := m.do("run_direct_command", object{"requestId": "run-3", "argv": lines("run-3", "2")}); e.err != nil {
		m.t.Fatal(e.err)
	}
	waits := m.begin("read_direct_command", object{"requestId": "run-3", "waitMs": 20000})
	exported := m.begin("export_direct_file", object{"path": "large", "requestId": "export-3"})
	eventually(m.t, "the export", func() bool {
		return m.do("get_direct_transfer", object{"requestId": "export-3"}).err == nil
	})
	id, stored := m.sending()
	lost()
	if e := <-waits; e.err != nil && e.code != "host_unavailable" {
		m.t.Errorf("%s: waiting ended with %v", m.id, e.err)
	}
	<-exported
	m.settledExport("export-3", "large")
	m.reached()
	m.t.Logf("%s: the message took %d sends", m.id, <-stored)
	m.received(id)
	eventually(m.t, "the end of the command", func() bool {
		return m.do("read_direct_command", object{"requestId": "run-3", "waitMs": 20000}).out["state"] == "exited"
	})
	m.holds("run-3", "begun\nended\n")
}

// swallowed has a network carry nothing and say nothing, until the gateway notices.
func (m *far) swallowed() {
	r := m.prepare("4")
	carried, let := m.importing("import-4")
	m.proxy.Blackhole()
	began := time.Now()
	let()
	r.begin()
	id, stored := m.sending()
	e := <-r.read
	took := time.Since(began)
	if e.code != "host_unavailable" || !strings.Contains(e.err.Error(), "has stopped answering, since ") || took > 45*time.Second {
		m.t.Errorf("after %v the read ended with %v, %v", took, e.out, e.err)
	}
	m.t.Logf("noticed after %v", took)
	host := m.listed()
	if reason, _ := host["reason"].(string); host["available"] != false || !strings.Contains(reason, "stopped answering") || !strings.Contains(reason, "(degraded since 2") {
		m.t.Errorf("list_hosts says %v", host)
	}
	m.proxy.Restore() // and all arrives
	for what, c := range map[string]<-chan ended{"write": r.write, "edit": r.edit, "run": r.run} {
		if e := <-c; e.err != nil || e.out["duplicate"] == true {
			m.t.Errorf("the %s ended with %v, %v", what, e.out, e.err)
		}
	}
	<-carried
	m.settledImport("import-4")
	<-stored
	m.received(id)
	m.reached()
	r.repeated(true)
	r.ranOnce()
}

// onRecord checks that each change is on record as it was answered, and each
// import once.
func (m *far) onRecord() {
	m.t.Helper()
	for _, check := range m.later {
		check(m.t)
	}
	got := map[string]map[string]int{}
	imports := map[string]int{}
	for _, e := range m.rig.auditLog(m.id) {
		key := e.Action + " " + e.Subject
		if m.calls[key] != nil {
			if got[key] == nil {
				got[key] = map[string]int{}
			}
			got[key][e.Outcome]++
		}
		if e.Action == "file.import" {
			imports[e.Subject]++
		}
	}
	for key, outcomes := range m.calls {
		want := map[string]int{}
		for _, o := range outcomes {
			want[o]++
		}
		if fmt.Sprint(want) != fmt.Sprint(got[key]) {
			m.t.Errorf("%s: %s was answered %v and is on record as %v", m.id, key, want, got[key])
		}
	}
	for path, n := range imports {
		if n != 1 {
			m.t.Errorf("%s: the import of %s is on record %d times", m.id, path, n)
		}
	}
}

// offline checks what is known of a machine that is gone.
func (m *far) offline() {
	m.server.Stop()
	m.proxy.Cut()
	eventually(m.t, "the loss", func() bool { return m.listed()["available"] == false })
	if reason := fmt.Sprint(m.listed()["reason"]); !strings.Contains(reason, " since 2") {
		m.t.Errorf("list_hosts says %s", reason)
	}
	eventually(m.t, "the refusal", func() bool {
		e := m.do("read_direct_file", object{"path": "edit-1"})
		return e.code == "host_unavailable" && strings.Contains(e.err.Error(), "since 2")
	})
	held := m.do("get_direct_transfer", object{"requestId": "export-1"})
	if held.err != nil || string(download(m.t, held.out["downloadUrl"])) != "one two two\n" {
		m.t.Errorf("of what the gateway holds: %v, %v", held.out, held.err)
	}
	if peers := fmt.Sprint(m.chat.call("list_peers", nil)); !strings.Contains(peers, m.peer()) {
		m.t.Errorf("the directory is %s", peers)
	}
}

// TestGatewayKilledOverSSH kills the gateway while a machine works for it: before
// what it sent has arrived, before answers have, and in the middle of files.
func TestGatewayKilledOverSSH(t *testing.T) {
	t.Parallel()
	r, running, machines := newLossRig(t, "far")
	m := machines[0].with(t)
	kill := func() {
		running.Kill()
		m.proxy.Restore()
		running = r.home.Serve()
		m.with(t).reached()
	}

	one := m.prepare("1")
	_, let := m.importing("import-1")
	m.proxy.Strand()
	let()
	one.begin()
	id, stored := m.sending()
	m.recorded("write-1", "edit-1", "run-1")
	running.Kill() // what it sent is still on its way
	running = r.home.Serve()
	m.with(t).reached()
	if e := m.do("read_direct_command", object{"requestId": "run-1"}); e.out["state"] != "failed" {
		t.Errorf("of a command that never arrived the gateway says %v, %v", e.out, e.err)
	}
	m.proxy.Restore() // and arrives
	if again := m.do("run_direct_command", one.runs()); again.out["state"] != "failed" || again.out["duplicate"] != true {
		t.Errorf("repeated, it is %v, %v", again.out, again.err)
	}
	m.holds("run-1", "")
	one.repeated(false)
	m.settledImport("import-1")
	<-stored
	m.received(id)

	two := m.prepare("2")
	_, let = m.importing("import-2")
	let()
	eventually(t, "the import", func() bool {
		left, _ := filepath.Glob(filepath.Join(m.dir, ".agent-relay-*"))
		_, there := m.has("import-2")
		return there || len(left) > 0
	})
	m.proxy.Mute()
	two.begin()
	id, stored = m.sending()
	eventually(t, "what was asked for", func() bool {
		_, written := m.has("write-2")
		edited, _ := m.has("edit-2")
		_, ran := m.has("run-2")
		return written && edited == "one two two\n" && ran
	})
	kill()
	two.repeated(true)
	two.ranOnce()
	m.settledImport("import-2")
	<-stored
	m.received(id)

	if err := os.WriteFile(filepath.Join(m.dir, "large"), []byte(strings.Repeat("heron 3\n", exportSize/8)), 0o600); err != nil {
		t.Fatal(err)
	}
	m.begin("export_direct_file", object{"path": "large", "requestId": "export-3"})
	eventually(t, "the export", func() bool {
		return m.do("get_direct_transfer", object{"requestId": "export-3"}).err == nil
	})
	kill()
	m.settledExport("export-3", "large")
	for _, check := range m.later {
		check(t)
	}
	if code := running.Stop(); code != 0 {
		t.Errorf("the gateway ended with %d", code)
	}
}
