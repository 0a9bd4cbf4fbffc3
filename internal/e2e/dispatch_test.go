package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentrelay/internal/agents"
	"agentrelay/internal/agents/paseo/paseotest"
	"agentrelay/internal/client"
	"agentrelay/internal/e2e/rig"
)

// dispatchPrograms builds, once, what dispatching needs: a gateway with peer-agent
// beside it, and the double of the agent daemon. It goes with the gateway.
var dispatchPrograms = sync.OnceValues(func() (dir string, err error) {
	dir = filepath.Join(filepath.Dir(binary), "dispatch")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	if err := os.Link(binary, filepath.Join(dir, "gateway")); err != nil {
		return "", err
	}
	if _, err := rig.Build(dir, "peer-agent"); err != nil {
		return "", err
	}
	out, err := exec.Command("go", "build", "-o", dir, "agentrelay/internal/agents/paseo/paseotest/daemon").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building the daemon: %w\n%s", err, out)
	}
	return dir, nil
})

// dispatchProgram is the path of one of the [dispatchPrograms].
func dispatchProgram(t *testing.T, name string) string {
	t.Helper()
	dir, err := dispatchPrograms()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// daemon is the double of the agent daemon as a process, which keeps its directory
// and its address when it is started again.
type daemon struct {
	t       *testing.T
	version string
	dir     string
	listen  string
	env     []string // further variables

	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *bufio.Reader
	ended chan struct{}
}

func newDaemon(t *testing.T, version, listen string) *daemon {
	t.Helper()
	d := &daemon{t: t, version: version, dir: t.TempDir(), listen: listen}
	d.start()
	t.Cleanup(func() { d.kill() })
	return d
}

// localPort is an address that nobody listens on, outside of the range from which
// systems take the ports of outgoing connections.
func localPort(t *testing.T) string {
	t.Helper()
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 30000+rand.IntN(2500))
		if l, err := net.Listen("tcp", address); err == nil {
			l.Close()
			return address
		}
	}
	t.Fatal("no port is free")
	return ""
}

func (d *daemon) start() {
	d.t.Helper()
	d.cmd = exec.Command(dispatchProgram(d.t, "daemon"), "-dir", d.dir, "-listen", d.listen, "-version", d.version)
	d.cmd.Env = append(os.Environ(), d.env...)
	d.cmd.Stderr = os.Stderr
	stdin, err := d.cmd.StdinPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	stdout, err := d.cmd.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.stdin, d.out, d.ended = stdin, bufio.NewReader(stdout), make(chan struct{})
	d.says("listening")
	cmd, ended := d.cmd, d.ended
	go func() {
		_, _ = cmd.Process.Wait()
		close(ended)
	}()
}

func (d *daemon) says(want string) {
	d.t.Helper()
	if line, err := d.out.ReadString('\n'); err != nil || !strings.HasPrefix(line, want) {
		d.t.Fatalf("the daemon says %q, %v; want %s", line, err, want)
	}
}

// kill ends the daemon with SIGKILL, if it runs.
func (d *daemon) kill() { d.end(syscall.SIGKILL) }

// terminate ends it as its user does.
func (d *daemon) terminate() { d.end(syscall.SIGTERM) }

func (d *daemon) end(sig syscall.Signal) {
	_ = d.cmd.Process.Signal(sig)
	<-d.ended
	d.stdin.Close()
}

// order has something go wrong once.
func (d *daemon) order(f paseotest.Fault) {
	d.t.Helper()
	line, err := json.Marshal(f)
	if err != nil {
		d.t.Fatal(err)
	}
	if _, err := d.stdin.Write(append(line, '\n')); err != nil {
		d.t.Fatal(err)
	}
	d.says("ordered")
}

// prompts are all that any run of the daemon gave to an agent.
func (d *daemon) prompts() []paseotest.Prompt {
	d.t.Helper()
	reader, err := paseotest.New(paseotest.Options{Dir: d.dir})
	if err != nil {
		d.t.Fatal(err)
	}
	prompts, err := reader.Prompts()
	if err != nil {
		d.t.Fatal(err)
	}
	return prompts
}

// ran counts how often an agent was given the prompt of a dispatch.
func (d *daemon) ran(requestID string) (n int) {
	d.t.Helper()
	for _, p := range d.prompts() {
		if strings.HasPrefix(p.Text, "[Local Agents requestId: "+requestID+"]\n") {
			n++
		}
	}
	return n
}

// crew is a gateway, the daemon of its machine, and a chat that dispatches.
type crew struct {
	t       *testing.T
	home    *rig.Home
	gateway *rig.Gateway
	client  *rig.Client
	daemon  *daemon
	root    string // allowed
	place   string // a workspace in it
	chat
}

// newCrew starts one; change is what differs in its home from one without.
func newCrew(t *testing.T, version string, change func(*rig.Home)) *crew {
	t.Helper()
	c := &crew{t: t, home: rig.NewHome(t, dispatchProgram(t, "gateway")), daemon: newDaemon(t, version, localPort(t))}
	root, err := filepath.EvalSymlinks(c.home.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if c.root = filepath.Join(root, "site"); os.Mkdir(c.root, 0o700) != nil {
		t.Fatal("the directory of the work can't be made")
	}
	c.home.Configure("allowedRoots", []string{c.root})
	c.home.Configure("upstreamUrl", "http://"+c.daemon.listen)
	if change != nil {
		change(c.home)
	}
	c.gateway = c.home.Serve()
	c.client = c.home.Authorize("Chat")
	c.connect()
	c.place = c.root // of a daemon without workspaces
	if version != paseotest.V01 {
		c.place = c.call("create_workspace", object{"isolation": "local", "path": c.root})["workspaceId"].(string)
	}
	return c
}

// connect opens a session with the gateway that runs now, and waits until that
// reaches the daemon.
func (c *crew) connect() {
	c.t.Helper()
	s, err := c.client.Connect(c.t.Context(), "chat", c.client.Token.AccessToken)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { s.Close() })
	c.chat = chat{c.t, s}
	c.reached()
}

func (c *crew) reached() {
	c.t.Helper()
	eventually(c.t, "the daemon", func() bool { return c.Call(c.t.Context(), "list_agents", object{"limit": 1}, nil) == nil })
}

// bounce kills the gateway and starts it again.
func (c *crew) bounce() {
	c.t.Helper()
	c.gateway.Kill()
	c.gateway = c.home.Serve()
	c.connect()
}

// back starts the daemon again.
func (c *crew) back() {
	c.t.Helper()
	c.daemon.start()
	c.reached()
}

func (c *crew) creation(requestID, prompt string) object {
	return object{"requestId": requestID, "workspaceId": c.place, "title": "Builds the site", "provider": "fake/echo", "initialPrompt": prompt}
}

func prompting(requestID, agentID, prompt string) object {
	return object{"requestId": requestID, "agentId": agentID, "prompt": prompt}
}

// dispatch makes a call that must be submitted.
func (c *crew) dispatch(tool string, in object) agents.Receipt {
	c.t.Helper()
	r := c.settled(tool, in)
	if r.State != agents.Submitted || r.AgentID == "" || r.Duplicate {
		c.t.Fatalf("%s: %+v", tool, r)
	}
	return r
}

// create makes an agent and waits for the end of its first prompt.
func (c *crew) create(requestID, prompt string) (agentID string) {
	c.t.Helper()
	agentID = c.dispatch("create_agent", c.creation(requestID, prompt)).AgentID
	if out := c.wait(requestID, agentID); !out.SavedResult {
		c.t.Fatalf("the first prompt: %+v", out)
	}
	return agentID
}

// agentOf is the program of an agent that was dispatched: what it runs is the
// built peer-agent that the gateway keeps for it.
func (c *crew) agentOf(agentID string) *machineAgent {
	return &machineAgent{c.t, c.home, filepath.Join(c.home.StateDir, "bin", "peer-agent"), agentID}
}

// settled repeats a call until it is answered with what became of it. No refusal
// is final: what fails does so because something was killed, or an agent is busy.
func (c *crew) settled(tool string, in object) agents.Receipt {
	c.t.Helper()
	for deadline := time.Now().Add(45 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var r agents.Receipt
		err := c.Call(c.t.Context(), tool, in, &r)
		var refused *client.ToolError
		if errors.As(err, &refused) && !refused.Retryable {
			c.t.Fatalf("%s: %v", tool, err)
		}
		if err == nil && r.State != agents.Submitting {
			return r
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s ends with %+v, %v", tool, r, err)
		}
	}
}

// wait waits until a dispatch has ended, or asks something.
func (c *crew) wait(requestID, agentID string) (out agents.Result) {
	c.t.Helper()
	for deadline := time.Now().Add(60 * time.Second); ; {
		out = agents.Result{}
		if err := c.Call(c.t.Context(), "wait_for_agent_result", object{"requestId": requestID, "agentId": agentID, "timeoutMs": 20000}, &out); err != nil {
			c.t.Fatalf("waiting for %s: %v", requestID, err)
		}
		if !out.WaitTimedOut || time.Now().After(deadline) {
			return out
		}
	}
}

// running waits until an agent is at work on a prompt.
func (c *crew) running(agentID string) {
	c.t.Helper()
	eventually(c.t, "the run", func() bool {
		return c.call("get_agent_status", object{"agentId": agentID})["status"] == "running"
	})
}

func said(out agents.Result) string {
	if out.LastMessage == nil {
		return ""
	}
	return *out.LastMessage
}

// onVersions runs a test against the double of each version at the same time.
func onVersions(t *testing.T, test func(t *testing.T, version string)) {
	t.Parallel()
	for _, version := range paseotest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			test(t, version)
		})
	}
}
