package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"agentrelay/internal/e2e/rig"
)

// machineAgent is an agent on the gateway's machine, with the peer-agent that the
// gateway keeps for it.
type machineAgent struct {
	t       *testing.T
	home    *rig.Home
	program string
	id      string
}

// newMachineAgent sets up a gateway beside which peer-agent lies.
func newMachineAgent(t *testing.T) *machineAgent {
	t.Helper()
	dir := t.TempDir()
	gateway := filepath.Join(dir, "gateway")
	if err := os.Link(binary, gateway); err != nil {
		raw, err := os.ReadFile(binary) // another file system
		if err := errors.Join(err, os.WriteFile(gateway, raw, 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := rig.Build(dir, "peer-agent"); err != nil {
		t.Fatal(err)
	}
	home := rig.NewHome(t, gateway)
	return &machineAgent{t, home, filepath.Join(home.StateDir, "bin", "peer-agent"), "builder"}
}

// run runs one command of the agent, and returns its exit code and its answer.
func (a *machineAgent) run(stdin string, args ...string) (int, map[string]any) {
	a.t.Helper()
	cmd := exec.Command(a.program, args...)
	cmd.Env = []string{"PASEO_AGENT_ID=" + a.id}
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		a.t.Fatal(err)
	}
	answer := map[string]any{}
	if strings.Count(stdout.String(), "\n") != 1 || json.Unmarshal(stdout.Bytes(), &answer) != nil || stderr.Len() > 0 {
		a.t.Fatalf("peer-agent %v: %v, out %q, err %q", args, err, &stdout, &stderr)
	}
	return cmd.ProcessState.ExitCode(), answer
}

// ok is run for commands that must be done.
func (a *machineAgent) ok(stdin string, args ...string) map[string]any {
	a.t.Helper()
	code, answer := a.run(stdin, args...)
	if code != 0 {
		a.t.Fatalf("peer-agent %v: exit code %d, %v", args, code, answer)
	}
	return answer
}

// TestAgentOnTheMachine is the life of an agent that its owner started by hand: it
// joins, gets mail, answers and leaves, while the gateway goes down and comes back.
func TestAgentOnTheMachine(t *testing.T) {
	a := newMachineAgent(t)
	running := a.home.Serve()
	c := a.home.Authorize("Chat")
	chat, err := c.Connect(t.Context(), "chat", c.Token.AccessToken)
	if err != nil {
		t.Fatal(err)
	}
	defer chat.Close()
	call := func(tool string, in map[string]any) map[string]any {
		t.Helper()
		out := map[string]any{}
		if err := chat.Call(t.Context(), tool, in, &out); err != nil {
			t.Fatalf("%s: %v", tool, err)
		}
		return out
	}
	call("register_peer", map[string]any{"peerId": "chat-main", "kind": "chat"})
	if out := a.home.OK("agents", "adopt", "--agent", a.id); !strings.Contains(out, "export PASEO_AGENT_ID=builder\n  "+a.program+" register") {
		t.Errorf("the owner reads\n%s", out)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(a.program); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the gateway keeps no peer-agent")
		}
	}
	a.ok("", "register", "--name", "Builds the site")
	if peers := a.ok("", "peers"); len(peers["peers"].([]any)) != 2 {
		t.Errorf("the agent sees %v", peers)
	}

	const question = "Is the heron built?"
	asked := uuid.NewString()
	waiting := make(chan map[string]any, 1)
	go func() { waiting <- a.ok("", "inbox", "--wait", "20") }()
	call("send_peer_message", map[string]any{"messageId": asked, "fromPeerId": "chat-main", "toPeerId": "builder", "text": question})
	mail := (<-waiting)["messages"].([]any)
	if len(mail) != 1 || mail[0].(map[string]any)["messageId"] != asked {
		t.Fatalf("the inbox has %v", mail)
	}
	running.Kill()
	back := make(chan *rig.Gateway)
	go func() { back <- a.home.Serve() }()
	read := make(chan map[string]any, 1)
	go func() { read <- a.until("read", asked) }() // the program waits for it
	running = <-back
	if m := (<-read)["message"].(map[string]any); m["text"] != question {
		t.Errorf("read %v", m)
	}

	answered := uuid.NewString()
	reply := []string{"send", "--to", "chat-main", "--reply-to", asked, "--message-id", answered}
	if out := a.ok("It stands.\n", reply...); out["duplicate"] != false {
		t.Errorf("sent %v", out)
	}
	running.Kill()
	running = a.home.Serve()
	if out := a.ok("It stands.\n", reply...); out["duplicate"] != true {
		t.Errorf("repeated %v", out)
	}
	if code, out := a.run("It fell.\n", reply...); code != 1 || out["error"].(map[string]any)["code"] != "key_conflict" || out["messageId"] != answered {
		t.Errorf("%d, %v", code, out)
	}
	a.ok("", "ack", asked)
	got := call("get_peer_message", map[string]any{"messageId": answered, "peerId": "chat-main"})
	if got["message"].(map[string]any)["text"] != "It stands." {
		t.Errorf("the chat reads %v", got)
	}
	if inbox := call("list_peer_messages", map[string]any{"peerId": "chat-main"}); len(inbox["messages"].([]any)) != 1 {
		t.Errorf("the chat's inbox is %v", inbox)
	}
	if code, out := a.run("Half.", "message", "--request-id", "none"); code != 1 || out["error"].(map[string]any)["code"] == "" {
		t.Errorf("%d, %v", code, out)
	}
	a.ok("", "stop")

	a.home.OK("agents", "revoke", "--agent", a.id)
	if code, out := a.run("", "peers"); code != 1 {
		t.Errorf("a revoked agent: %d, %v", code, out)
	}
	if list := a.home.OK("agents", "list", "--all"); !strings.Contains(list, "revoked") {
		t.Errorf("the owner reads\n%s", list)
	}
	log := running.Output()
	for _, secret := range []string{"heron", "It stands", "It fell", "Bearer"} {
		if strings.Contains(log, secret) {
			t.Errorf("the log has %q", secret)
		}
	}
	if code := running.Stop(); code != 0 {
		t.Errorf("the gateway ended with %d", code)
	}
	if _, err := os.Lstat(filepath.Join(a.home.StateDir, "agent-channel.sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// until runs a command until it is done: while a gateway starts it may be refused
// as not ready.
func (a *machineAgent) until(args ...string) map[string]any {
	for deadline := time.Now().Add(30 * time.Second); ; {
		code, answer := a.run("", args...)
		if code == 0 || time.Now().After(deadline) {
			return answer
		}
	}
}
