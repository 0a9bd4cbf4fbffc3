package e2e

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentrelay/internal/agents"
	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/agents/paseo/paseotest"
)

// TestResultsOutliveTheDaemon: what was seen is read while the daemon is down, and
// after it came back without its timelines.
func TestResultsOutliveTheDaemon(t *testing.T) {
	onVersions(t, func(t *testing.T, version string) {
		c := newCrew(t, version, nil)
		agentID := c.create("one", "the heron stands")
		read := func(when string) {
			t.Helper()
			var out agents.Result
			if err := c.Call(t.Context(), "get_request_result", object{"requestId": "one"}, &out); err != nil || !out.SavedResult || !strings.Contains(said(out), "the heron stands") || len(out.Entries) == 0 {
				t.Errorf("%s: %+v, %v", when, out, err)
			}
			if out.AcceptancePassed != nil || out.TaskOutcome != "unknown" {
				t.Errorf("%s: it says that the work is done: %+v", when, out)
			}
		}
		read("at once")
		c.daemon.kill()
		read("while the daemon is down")
		c.gateway.Kill()
		c.gateway = c.home.Serve()
		s, err := c.client.Connect(t.Context(), "chat", c.client.Token.AccessToken)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		c.chat = chat{t, s}
		read("after a restart of the gateway, without a daemon")
		if got := c.call("get_dispatch_request", object{"requestId": "one"}); got["state"] != "submitted" || got["agentId"] != agentID {
			t.Errorf("its receipt: %v", got)
		}
		if refused := c.refused("send_agent_prompt", prompting("two", agentID, "hello")); !strings.Contains(refused, "host_unavailable") {
			t.Errorf("a prompt without a daemon: %s", refused)
		}
		c.back()
		if page := c.call("get_agent_result", object{"agentId": agentID}); len(page["entries"].([]any)) != 0 {
			t.Errorf("the daemon still has %v", page)
		}
		read("when the daemon has forgotten it")
		c.dispatch("send_agent_prompt", prompting("two", agentID, "hello"))
		if out := c.wait("two", agentID); !strings.Contains(said(out), "hello") || c.daemon.ran("two") != 1 {
			t.Errorf("the next prompt: %+v", out)
		}
		read("after another prompt")
	})
}

// restarts are the ways in which a daemon forgets what runs, and what it says of
// such an agent afterwards: neither is true.
var restarts = []struct {
	name   string
	end    func(*daemon)
	claims string // its status, until something loads it
}{
	{"phantom running", (*daemon).kill, "running"},
	{"false idle", (*daemon).terminate, "closed"},
}

// TestRunsThatARestartEnded: how they ended is unknown, which is said once, and
// the agent can be prompted again.
func TestRunsThatARestartEnded(t *testing.T) {
	onVersions(t, func(t *testing.T, version string) {
		c := newCrew(t, version, nil)
		for _, restart := range restarts {
			for _, alone := range []bool{false, true} { // whether the gateway sees it
				id := restart.name[:5] + map[bool]string{true: "-alone"}[alone]
				agentID := c.dispatch("create_agent", c.creation(id, "sleep 60")).AgentID
				eventually(t, "the run", func() bool {
					out := c.call("get_request_result", object{"requestId": id})
					return out["requestMatched"] == true && out["observedAgentState"] == "running"
				})
				if alone {
					c.gateway.Kill()
				}
				restart.end(c.daemon)
				c.daemon.start()
				if claims := c.daemon.claims(t, agentID); string(claims.Status) != restart.claims || claims.Turn != paseo.TurnAbsent && version != paseotest.V01 {
					t.Errorf("%s: the daemon says %s, turn %s", restart.name, claims.Status, claims.Turn)
				}
				if alone {
					c.gateway = c.home.Serve()
					c.connect()
				}
				c.reached()
				out := c.wait(id, agentID)
				if out.Status != "unknown" || out.TerminalKind != nil || out.ReceiptState != agents.Submitted || said(out) != "" || out.Reason != "daemon_restarted" && out.Reason != "timeline_discontinuity" && out.Reason != "agent_closed" {
					t.Errorf("%s, alone %v: %+v", restart.name, alone, out)
				}
				c.dispatch("send_agent_prompt", prompting(id+"-next", agentID, "hello"))
				if out := c.wait(id+"-next", agentID); !strings.Contains(said(out), "hello") {
					t.Errorf("%s, alone %v: the next prompt: %+v", restart.name, alone, out)
				}
				if n := c.daemon.ran(id); n != 1 {
					t.Errorf("%s: it ran %d times", restart.name, n)
				}
			}
		}
	})
}

// TestRunsThatEndWithoutTheGateway are told as what was seen: an idle agent and
// its words, not a completed turn.
func TestRunsThatEndWithoutTheGateway(t *testing.T) {
	onVersions(t, func(t *testing.T, version string) {
		c := newCrew(t, version, nil)
		agentID := c.dispatch("create_agent", c.creation("one", "sleep 0.5")).AgentID
		c.gateway.Kill()
		eventually(t, "the end of the run", func() bool { return c.daemon.claims(t, agentID).Status == paseo.AgentIdle })
		c.gateway = c.home.Serve()
		c.connect()
		if out := c.wait("one", agentID); out.Status != "result_available" || *out.TerminalKind != "observed_idle" || !strings.Contains(said(out), "slept") || out.TerminalSeen != nil {
			t.Errorf("%+v", out)
		}
	})
}

// TestReplacedPrompts: a run that another prompt has replaced is canceled, and
// never has the words of the other.
func TestReplacedPrompts(t *testing.T) {
	onVersions(t, func(t *testing.T, version string) {
		c := newCrew(t, version, nil)
		agentID := c.create("before", "hello")
		own := func(id string) {
			over := prompting(id, agentID, "from the chat")
			over["interrupt"] = true
			c.dispatch("send_agent_prompt", over)
			if out := c.wait(id, agentID); !strings.Contains(said(out), "from the chat") {
				t.Errorf("the prompt that replaced it: %+v", out)
			}
		}
		somebody := func(string) {
			d := c.daemon.client(t)
			if err := d.SendMessage(t.Context(), paseo.Prompt{AgentID: agentID, Text: "from somebody else"}); err != nil {
				t.Fatal(err)
			}
		}
		for name, replace := range map[string]func(string){"own": own, "foreign": somebody} {
			c.dispatch("send_agent_prompt", prompting(name, agentID, "sleep 60"))
			c.running(agentID)
			replace(name + "-over")
			if out := c.wait(name, agentID); out.Status != "canceled" || *out.TerminalKind != "turn_canceled" || said(out) != "" {
				t.Errorf("replaced by %s: %+v", name, out)
			}
			eventually(t, "an idle agent", func() bool { return c.daemon.claims(t, agentID).Status == paseo.AgentIdle })
		}

		// Replaced while nobody looked: no word of the other is taken for an answer.
		c.dispatch("send_agent_prompt", prompting("unseen", agentID, "sleep 60"))
		c.running(agentID)
		c.gateway.Kill()
		somebody("")
		c.gateway = c.home.Serve()
		c.connect()
		if out := c.wait("unseen", agentID); out.Status != "unknown" || out.Reason != "newer_turn_present" || said(out) != "" {
			t.Errorf("replaced while the gateway was down: %+v", out)
		}
	})
}

// client is somebody else who uses the daemon.
func (d *daemon) client(t *testing.T) *paseo.Client {
	t.Helper()
	c := paseo.New(paseo.Options{Dial: func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", d.listen)
	}})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return c
}

// claims is what the daemon says of an agent to somebody who makes it load
// nothing.
func (d *daemon) claims(t *testing.T, agentID string) paseo.Agent {
	t.Helper()
	a, err := d.client(t).FetchAgent(t.Context(), agentID)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestSettingsOfADaemon: its password, and another identity, which is asked
// nothing until the owner accepts it.
func TestSettingsOfADaemon(t *testing.T) {
	t.Parallel()
	c := newCrew(t, paseotest.V10, nil)
	agentID := c.create("one", "hello")
	c.daemon.terminate()
	c.daemon.env = []string{"PASEO_PASSWORD=swordfish"}
	c.daemon.start()
	because := func(words string) {
		t.Helper()
		eventually(t, words, func() bool {
			err := c.Call(t.Context(), "list_agents", nil, nil)
			return err != nil && strings.Contains(err.Error(), words)
		})
	}
	because("password")
	file := filepath.Join(c.home.Dir, "password")
	if err := os.WriteFile(file, []byte("swordfish\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.home.Configure("agents", object{"passwordFile": file})
	c.bounce()
	if got := c.call("get_agent_status", object{"agentId": agentID}); got["status"] == nil {
		t.Errorf("with the password: %v", got)
	}
	c.daemon.terminate()
	if err := os.WriteFile(filepath.Join(c.daemon.dir, "server-id"), []byte("srv_another"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.daemon.start()
	because("daemon_identity_changed")
	before := len(c.daemon.prompts())
	if refused := c.refused("send_agent_prompt", prompting("two", agentID, "hello")); !strings.Contains(refused, "daemon_identity_changed") || len(c.daemon.prompts()) != before {
		t.Errorf("another daemon: %s", refused)
	}
	if out := c.home.OK("hosts", "accept-identity", "local"); !strings.Contains(out, "srv_another") {
		t.Errorf("the owner reads\n%s", out)
	}
	c.reached()
	c.dispatch("send_agent_prompt", prompting("two", agentID, "hello"))
	if strings.Contains(c.gateway.Output(), "swordfish") {
		t.Error("the log has the password")
	}
}
