package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/crypto/ssh"

	"agentrelay/internal/client"
	"agentrelay/internal/e2e/rig"
	"agentrelay/internal/e2e/sshd"
)

// remoteRig is a gateway and a machine that it reaches over OpenSSH.
type remoteRig struct {
	t      *testing.T
	owner  *machineAgent // the gateway's home; its agent is on the other machine
	server *sshd.Server
	client *sshd.Client
	dir    string // of the project
	state  string // remoteStateDir
}

// newRemoteRig sets the two up. The owner has never logged in to the machine.
func newRemoteRig(t *testing.T) *remoteRig {
	t.Helper()
	r := &remoteRig{t: t, owner: newMachineAgent(t), client: sshd.NewClient(t)}
	key := r.client.Key("id", "")
	r.server = sshd.Start(t, sshd.Options{Authorized: []ssh.PublicKey{key.Public}})
	r.client.Configure(r.client.Host("builder", r.server, "IdentityFile "+key.File))
	r.dir, r.state = filepath.Join(r.server.Dir, "site"), filepath.Join(r.server.Dir, "relay")
	if err := os.Mkdir(r.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	program, err := exec.LookPath("ssh")
	if err != nil {
		t.Fatalf("%v (install openssh-client)", err)
	}
	// ssh reads the configuration of the account, whatever HOME is.
	path := filepath.Join(r.client.Dir, "bin")
	wrapper := fmt.Sprintf("#!/bin/sh\nexec %s -F %s \"$@\"\n", program, r.client.Config)
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "ssh"), []byte(wrapper), 0o700); err != nil {
		t.Fatal(err)
	}
	home := r.owner.home
	home.Env = append(home.Env, "PATH="+path+":"+os.Getenv("PATH"))
	home.Configure("hosts", []any{map[string]any{
		"id": "builder", "name": "Build server", "transport": "ssh", "target": "ssh://builder",
		"allowedRoots": []string{r.server.Dir}, "remoteStateDir": r.state,
		"direct": map[string]any{"projects": []any{map[string]any{"id": "site", "path": r.dir, "write": true, "commandMode": "full"}}},
	}})
	r.owner.program = filepath.Join(r.state, "bin", "peer-agent")
	return r
}

// prepare does what the README says of a new machine.
func (r *remoteRig) prepare() {
	r.t.Helper()
	home := r.owner.home
	home.OK("hosts", "trust", "builder", "--fingerprint", ssh.FingerprintSHA256(r.server.HostKey))
	home.OK("hosts", "install", "builder")
}

// chat is a client of the gateway.
type chat struct {
	t *testing.T
	*client.Session
}

func (r *remoteRig) connect(c *rig.Client) chat {
	r.t.Helper()
	s, err := c.Connect(r.t.Context(), "chat", c.Token.AccessToken)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { s.Close() })
	return chat{r.t, s}
}

func (c chat) call(tool string, in map[string]any) map[string]any {
	c.t.Helper()
	out := map[string]any{}
	if err := c.Call(c.t.Context(), tool, in, &out); err != nil {
		c.t.Fatalf("%s: %v", tool, err)
	}
	return out
}

// refused calls a tool that must fail, and returns the error's text.
func (c chat) refused(tool string, in map[string]any) string {
	c.t.Helper()
	out := map[string]any{}
	err := c.Call(c.t.Context(), tool, in, &out)
	if err == nil {
		c.t.Fatalf("%s: %v", tool, out)
	}
	return err.Error()
}

// reached waits until the gateway reaches the host.
func (r *remoteRig) reached(c chat) map[string]any {
	r.t.Helper()
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		host := c.call("list_hosts", nil)["hosts"].([]any)[1].(map[string]any)
		if host["available"] == true && host["worker"] != nil {
			return host
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("the host is not reached: %v", host)
		}
	}
}

// TestRemoteHost is the life of a machine behind ssh, from an entry in the config
// on: its owner trusts its key and installs the helper, clients work there, the
// connection is lost and comes back, and at last the machine is gone.
func TestRemoteHost(t *testing.T) {
	r := newRemoteRig(t)
	home := r.owner.home
	running := home.Serve()
	c := r.connect(home.Authorize("Chat"))

	host := c.call("list_hosts", nil)["hosts"].([]any)[1].(map[string]any)
	if reason, _ := host["reason"].(string); host["available"] != false || !strings.Contains(reason, "gateway hosts trust builder") {
		t.Errorf("of a machine with an unknown key clients hear %v", host)
	}
	if out := home.OK("hosts", "list"); !strings.Contains(out, "gateway hosts trust builder") {
		t.Errorf("the owner reads\n%s", out)
	}
	refused := home.Run("hosts", "trust", "builder")
	if refused.Code == 0 || !strings.Contains(refused.Stdout, ssh.FingerprintSHA256(r.server.HostKey)) {
		t.Errorf("without an answer: %+v", refused)
	}
	r.prepare()
	checked := home.OK("hosts", "check", "builder")
	if strings.Contains(checked, "FAIL") || !strings.Contains(checked, "PASS  auth") {
		t.Errorf("the check says\n%s", checked)
	}
	r.reached(c)

	on := func(more map[string]any) map[string]any {
		in := map[string]any{"hostId": "builder", "projectId": "site"}
		for k, v := range more {
			in[k] = v
		}
		return in
	}
	const text = "A heron stands here.\n"
	written := c.call("write_direct_file", on(map[string]any{"path": "a.txt", "content": text, "expectedSha256": nil}))
	if got, err := os.ReadFile(filepath.Join(r.dir, "a.txt")); err != nil || string(got) != text {
		t.Fatalf("the machine has %q, %v", got, err)
	}
	edited := c.call("edit_direct_file", on(map[string]any{"path": "a.txt", "oldText": "stands", "newText": "stood", "expectedSha256": written["sha256"]}))
	if got := c.call("read_direct_file", on(map[string]any{"path": "a.txt"})); got["content"] != "A heron stood here.\n" || got["sha256"] != edited["sha256"] {
		t.Errorf("read %v", got)
	}
	ran := c.call("run_direct_command", on(map[string]any{"requestId": "r-1", "argv": []string{"cat", "a.txt"}, "waitMs": 20000}))
	if ran["state"] != "exited" || !strings.Contains(fmt.Sprint(ran["output"]), "A heron stood") || ran["hostId"] != "builder" {
		t.Errorf("ran %v", ran)
	}
	if e := c.refused("read_direct_file", map[string]any{"projectId": "site", "path": "a.txt"}); !strings.Contains(e, "unknown_project") {
		t.Errorf("a project of another host: %s", e)
	}

	large := bytes.Repeat([]byte("heron\x00"), 1<<20)
	if err := os.WriteFile(filepath.Join(r.dir, "large"), large, 0o600); err != nil {
		t.Fatal(err)
	}
	exported := c.call("export_direct_file", on(map[string]any{"path": "large", "requestId": "x-1"}))
	if got := download(t, exported["downloadUrl"]); !bytes.Equal(got, large) {
		t.Errorf("downloaded %d bytes of %d: %v", len(got), len(large), exported)
	}

	// A command goes on while the connection is lost, and is found again.
	c.call("run_direct_command", on(map[string]any{"requestId": "r-2", "argv": []string{"sh", "-c", "sleep 3; echo done >> ran"}}))
	if r.server.KillSessions() == 0 {
		t.Fatal("there was no connection")
	}
	var command map[string]any
	for deadline := time.Now().Add(30 * time.Second); command["state"] != "exited"; {
		err := c.Call(t.Context(), "read_direct_command", map[string]any{"hostId": "builder", "requestId": "r-2", "waitMs": 5000}, &command)
		if err != nil && !strings.Contains(err.Error(), "host_unavailable") || time.Now().After(deadline) {
			t.Fatalf("the command is %v, %v", command, err)
		}
	}
	again := c.call("run_direct_command", on(map[string]any{"requestId": "r-2", "argv": []string{"sh", "-c", "sleep 3; echo done >> ran"}, "waitMs": 20000}))
	if ran, err := os.ReadFile(filepath.Join(r.dir, "ran")); err != nil || string(ran) != "done\n" || again["duplicate"] != true {
		t.Errorf("it ran as %q, %v; repeated %v", ran, err, again)
	}

	r.server.Stop()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		e := c.refused("read_direct_file", on(map[string]any{"path": "a.txt"}))
		if strings.Contains(e, "host_unavailable") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("of a machine that is gone clients hear %s", e)
		}
	}
	if got := c.call("get_direct_transfer", map[string]any{"hostId": "builder", "requestId": "x-1"}); got["requestId"] != "x-1" {
		t.Errorf("what the gateway holds: %v", got)
	}
	if got := download(t, exported["downloadUrl"]); !bytes.Equal(got, large) {
		t.Errorf("downloaded %d bytes of %d", len(got), len(large))
	}
	if out := c.call("list_direct_projects", nil); out["hostId"] == "builder" {
		t.Errorf("the local host answers %v", out)
	}
	if log := running.Output(); strings.Contains(log, "heron") {
		t.Error("the log has the text of a file")
	}
	if code := running.Stop(); code != 0 {
		t.Errorf("the gateway ended with %d", code)
	}
}

func download(t *testing.T, url any) []byte {
	t.Helper()
	resp, err := http.Get(fmt.Sprint(url))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v", resp.Status, err)
	}
	return body
}

// TestAgentOnARemoteHost has an agent behind ssh register, write to a chat, get
// its reply and acknowledge it, while the gateway is killed in the middle.
func TestAgentOnARemoteHost(t *testing.T) {
	r := newRemoteRig(t)
	home, agent := r.owner.home, r.owner
	running := home.Serve()
	authorized := home.Authorize("Chat")
	c := r.connect(authorized)
	r.prepare()
	r.reached(c)
	home.OK("agents", "adopt", "--host", "builder", "--agent", agent.id)
	c.call("register_peer", map[string]any{"peerId": "chat-main", "kind": "chat"})

	agent.until("register", "--peer", "heron", "--name", "Builds the site")
	asked := uuid.NewString()
	agent.ok("Shall I build?", "send", "--to", "chat-main", "--message-id", asked)
	if got := c.call("get_peer_message", map[string]any{"messageId": asked, "peerId": "chat-main"}); got["message"].(map[string]any)["text"] != "Shall I build?" {
		t.Errorf("the chat reads %v", got)
	}
	running.Kill()
	running = home.Serve()
	c = r.connect(authorized)
	reply := uuid.NewString()
	c.call("send_peer_message", map[string]any{"messageId": reply, "fromPeerId": "chat-main", "toPeerId": "heron", "inReplyTo": asked, "text": "Yes."})
	agent.until("read", reply)
	if got := agent.until("read", reply)["message"].(map[string]any); got["text"] != "Yes." {
		t.Errorf("the agent reads %v", got)
	}
	agent.ok("", "ack", reply)
	if got := c.call("get_peer_message", map[string]any{"messageId": reply}); got["message"].(map[string]any)["state"] != "processed" {
		t.Errorf("the reply is %v", got)
	}
	peers, _ := json.Marshal(c.call("list_peers", nil))
	if !strings.Contains(string(peers), `"hostId":"builder"`) {
		t.Errorf("the directory has %s", peers)
	}
	if code := running.Stop(); code != 0 {
		t.Errorf("the gateway ended with %d", code)
	}
}

// TestManyDeadHosts has three quarters of the hosts dead: neither the start nor
// list_hosts wait for them.
func TestManyDeadHosts(t *testing.T) {
	r := newRemoteRig(t)
	home := r.owner.home
	r.client.Know(r.server)
	var hosts []any
	for i := range 20 {
		target := "ssh://builder"
		if i >= 5 {
			target = "ssh://127.0.0.1:9" // discard, where nobody listens
		}
		hosts = append(hosts, map[string]any{
			"id": fmt.Sprintf("host-%d", i), "name": "Host", "transport": "ssh", "target": target,
			"allowedRoots": []string{r.server.Dir}, "remoteStateDir": fmt.Sprintf("%s-%d", r.state, i),
		})
	}
	home.Configure("hosts", hosts)
	began := time.Now()
	running := home.Serve()
	started := time.Since(began)
	c := r.connect(home.Authorize("Chat"))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var listed time.Duration
	for available := 0; available != 5; {
		began = time.Now()
		out := c.call("list_hosts", nil)
		listed = time.Since(began)
		available = -1 // the local one
		for _, h := range out["hosts"].([]any) {
			if h := h.(map[string]any); h["available"] == true {
				available++
			} else if h["reason"] == nil {
				t.Errorf("no reason: %v", h)
			}
		}
		if ctx.Err() != nil {
			t.Fatalf("%d of 5 live hosts are reached", available)
		}
	}
	t.Logf("start %v, list_hosts %v", started, listed)
	if listed > 3*time.Second {
		t.Errorf("list_hosts took %v", listed)
	}
	running.Stop()
}
