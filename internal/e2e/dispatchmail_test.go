package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"agentrelay/internal/agents/paseo/paseotest"
	"agentrelay/internal/mailbox"
)

// TestTwoChats: A writes to B, B answers, and both read and acknowledge, each by
// the ids that it was told.
func TestTwoChats(t *testing.T) {
	t.Parallel()
	c := newCrew(t, paseotest.V10, nil)
	other := c.home.Authorize("Other chat")
	s, err := other.Connect(t.Context(), "other", other.Token.AccessToken)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	a, b := c.chat, chat{t, s}
	a.call("register_peer", object{"peerId": "a", "kind": "chat"})
	b.call("register_peer", object{"peerId": "b", "kind": "chat"})
	question, answer := uuid.NewString(), uuid.NewString()
	a.call("send_peer_message", object{"messageId": question, "fromPeerId": "a", "toPeerId": "b", "text": "Is the heron built?"})
	c.bounce()
	a = c.chat
	inbox(b, "b", question, "Is the heron built?")
	b.call("send_peer_message", object{"messageId": answer, "fromPeerId": "b", "toPeerId": "a", "inReplyTo": question, "text": "It stands."})
	b.call("ack_peer_message", object{"messageId": question, "peerId": "b"})
	if got := inbox(a, "a", answer, "It stands."); got["inReplyTo"] != question {
		t.Errorf("the answer is %v", got)
	}
	a.call("ack_peer_message", object{"messageId": answer, "peerId": "a"})
	for _, id := range []string{question, answer} {
		if got := a.call("get_peer_message", object{"messageId": id})["message"].(object); got["state"] != "processed" {
			t.Errorf("%v", got)
		}
	}
}

// inbox finds one message in the inbox of a peer and reads it.
func inbox(c chat, peer, id, text string) object {
	c.t.Helper()
	list := c.call("list_peer_messages", object{"peerId": peer})["messages"].([]any)
	if len(list) != 1 || list[0].(object)["messageId"] != id {
		c.t.Fatalf("the inbox of %s is %v", peer, list)
	}
	got := c.call("get_peer_message", object{"messageId": id, "peerId": peer})["message"].(object)
	if got["text"] != text {
		c.t.Errorf("%s reads %v", peer, got)
	}
	return got
}

// mailPrompts are the prompts that told agents of mail.
func (d *daemon) mailPrompts() (texts []string) {
	d.t.Helper()
	for _, p := range d.prompts() {
		if strings.HasPrefix(p.Text, "[Agent Relay mail: ") {
			texts = append(texts, p.Text)
		}
	}
	return texts
}

// native is a chat and an agent that it writes to, on a host.
type native struct {
	chat
	daemon  *daemon
	agentID string
	agent   *machineAgent
}

// tell sends the agent a message.
func (n *native) tell(text string) (id string, d mailbox.Delivery) {
	n.t.Helper()
	var sent mailbox.SendPeerMessageOut
	in := mailbox.SendPeerMessageIn{MessageID: uuid.NewString(), FromPeerID: "chat-main", ToPeerID: "builder", Text: text}
	if err := n.Call(n.t.Context(), "send_peer_message", in, &sent); err != nil {
		n.t.Fatal(err)
	}
	return in.MessageID, sent.Delivery
}

func (n *native) delivery(id string) mailbox.Delivery {
	n.t.Helper()
	var got mailbox.GetPeerMessageOut
	if err := n.Call(n.t.Context(), "get_peer_message", object{"messageId": id}, &got); err != nil {
		n.t.Fatal(err)
	}
	return got.Delivery
}

// delivered waits until the agent was told of all these, and returns the prompt,
// of which there must be one.
func (n *native) delivered(before int, ids ...string) (prompt string) {
	n.t.Helper()
	for _, id := range ids {
		eventually(n.t, "the prompt", func() bool { return n.delivery(id).State == "submitted" })
	}
	prompts := n.daemon.mailPrompts()
	if len(prompts) != before+1 {
		n.t.Fatalf("the agent was told by %d prompts, %d before: %q", len(prompts), before, prompts)
	}
	prompt = prompts[before]
	for _, id := range ids {
		if strings.Count(prompt, id) != 1 {
			n.t.Errorf("%s is not in the prompt once: %s", id, prompt)
		}
	}
	return prompt
}

// does runs a command that a prompt names, as the agent would, with ids and words
// of its own in place of those in capitals.
func (n *native) does(prompt, begins string, words ...string) {
	n.t.Helper()
	for line := range strings.Lines(prompt) {
		if _, command, ok := strings.Cut(strings.TrimSpace(line), begins+": "); ok {
			cmd := exec.Command("sh", "-c", strings.NewReplacer(words...).Replace(command))
			cmd.Env = []string{"PASEO_AGENT_ID=" + n.agentID}
			if out, err := cmd.CombinedOutput(); err != nil {
				n.t.Errorf("%s: %v, %s", command, err, out)
			}
			return
		}
	}
	n.t.Errorf("the prompt does not say how to %q: %s", begins, prompt)
}

// answers plays the agent's side of a prompt about mail: it reads a message,
// answers it and acknowledges it; the chat gets the reply.
func (n *native) answers(prompt, id, text, reply string) {
	t := n.t
	t.Helper()
	if got := n.agent.ok("", "read", id)["message"].(object); got["text"] != text {
		t.Errorf("the agent reads %v", got)
	}
	n.does(prompt, "Read each one", "MESSAGE_ID", id)
	n.does(prompt, "To answer one", "PEER", "chat-main", "MESSAGE_ID", id, "TEXT", "'"+reply+"'")
	n.does(prompt, "When you have dealt with it", "MESSAGE_ID", id)
	if got := n.call("get_peer_message", object{"messageId": id})["message"].(object); got["state"] != "processed" {
		t.Errorf("the message is %v", got)
	}
	list := n.call("list_peer_messages", object{"peerId": "chat-main"})["messages"].([]any)
	if len(list) != 1 {
		t.Fatalf("the chat's inbox is %v", list)
	}
	got := n.call("get_peer_message", object{"messageId": list[0].(object)["messageId"], "peerId": "chat-main"})["message"].(object)
	if got["text"] != reply || got["inReplyTo"] != id || got["fromPeerId"] != "builder" {
		t.Errorf("the chat reads %v", got)
	}
	n.call("ack_peer_message", object{"messageId": got["messageId"], "peerId": "chat-main"})
}

// TestMailForABusyAgent waits until the agent is idle; then one prompt tells of
// all of it. What has been told is not told again, whoever was killed.
func TestMailForABusyAgent(t *testing.T) {
	onVersions(t, func(t *testing.T, version string) {
		c := newCrew(t, version, nil)
		agentID := c.create("first", "hello")
		c.call("register_peer", object{"peerId": "chat-main", "kind": "chat"})
		c.call("register_peer", object{"peerId": "builder", "kind": "local", "agentId": agentID})
		c.dispatch("send_agent_prompt", prompting("busy", agentID, "sleep 2"))
		c.running(agentID)
		n := &native{c.chat, c.daemon, agentID, c.agentOf(agentID)}
		first, d := n.tell("Where does the heron stand?")
		second, _ := n.tell("And which way does it look?")
		if d.Path != "native" || d.State != "queued" {
			t.Errorf("to a busy agent: %+v", d)
		}
		if said := n.delivery(first); said.State != "queued" || len(c.daemon.mailPrompts()) != 0 {
			t.Errorf("while it is busy: %+v", said)
		}
		c.bounce()
		n.chat = c.chat
		if out := c.wait("busy", agentID); !strings.Contains(said(out), "slept") || *out.TerminalKind == "turn_canceled" {
			t.Errorf("the run before was disturbed: %+v", out)
		}
		prompt := n.delivered(0, first, second)
		if strings.Contains(prompt, "heron") || strings.Contains(prompt, "look?") {
			t.Errorf("what a peer wrote stands in a prompt: %s", prompt)
		}
		n.answers(prompt, first, "Where does the heron stand?", "On one leg.")
		n.answers(prompt, second, "And which way does it look?", "At the fish.")
		c.bounce()
		n.chat = c.chat

		// The daemon dies while the agent is told.
		c.daemon.order(paseotest.Fault{Request: askPrompt, Stage: paseotest.Done, Act: paseotest.Crash})
		third, _ := n.tell("Does it fly?")
		<-c.daemon.ended
		c.back()
		fourth, _ := n.tell("Where to?")
		if d := n.delivery(third); d.State != "unknown" && d.State != "submitted" {
			t.Errorf("what may have been told: %+v", d)
		}
		told := 0
		for _, prompt := range c.daemon.mailPrompts() {
			told += strings.Count(prompt, third)
		}
		if told != 1 {
			t.Errorf("it was told %d times", told)
		}
		if got := n.agent.ok("", "read", fourth)["message"].(object); got["text"] != "Where to?" {
			t.Errorf("the agent reads %v", got)
		}
	})
}

// TestMailForAnAgentOverSSH: the daemon, which listens on a socket of the other
// machine, is reached through the connection, the agent has the program that was
// installed there, and mail waits while the connection is lost.
func TestMailForAnAgentOverSSH(t *testing.T) {
	t.Parallel()
	r := newRemoteRig(t)
	home := r.owner.home
	socket := filepath.Join(r.server.Dir, "paseo.sock")
	d := newDaemon(t, paseotest.V10, socket)
	home.Configure("upstreamUrl", "http://127.0.0.1:9") // discard, where nobody listens
	home.Configure("hosts", []object{{
		"id": "builder", "name": "Build server", "transport": "ssh", "target": "ssh://builder?daemonSocket=" + socket,
		"allowedRoots": []string{r.server.Dir}, "remoteStateDir": r.state,
	}})
	gateway := home.Serve()
	c := &crew{t: t, home: home, gateway: gateway, client: home.Authorize("Chat"), daemon: d}
	c.chat = r.connect(c.client)
	r.prepare()
	on := func(in object) object {
		in["hostId"] = "builder"
		return in
	}
	eventually(t, "the daemon", func() bool { return c.Call(t.Context(), "list_agents", on(object{}), nil) == nil })
	c.place = c.call("create_workspace", on(object{"isolation": "local", "path": r.dir}))["workspaceId"].(string)
	agentID := c.dispatch("create_agent", on(c.creation("first", "hello"))).AgentID
	out := c.call("wait_for_agent_result", on(object{"requestId": "first", "agentId": agentID, "timeoutMs": 20000}))
	if out["savedResult"] != true || out["hostId"] != "builder" || !strings.Contains(out["lastMessage"].(string), "hello") {
		t.Errorf("the result is %v", out)
	}
	c.call("register_peer", object{"peerId": "chat-main", "kind": "chat"})
	c.call("register_peer", on(object{"peerId": "builder", "kind": "local", "agentId": agentID}))
	c.dispatch("send_agent_prompt", on(prompting("busy", agentID, "sleep 1")))
	r.owner.id = agentID
	n := &native{c.chat, d, agentID, r.owner}
	id, sent := n.tell("Is the heron built?")
	if sent.State != "queued" || sent.Path != "native" {
		t.Errorf("to a busy agent: %+v", sent)
	}
	if r.server.KillSessions() == 0 {
		t.Fatal("there was no connection")
	}
	prompt := n.delivered(0, id)
	if !strings.Contains(prompt, r.owner.program) || strings.Contains(prompt, "heron") {
		t.Errorf("the prompt is %s", prompt)
	}
	r.owner.until("read", id) // the way back is made anew too
	n.answers(prompt, id, "Is the heron built?", "It stands.")
	if refused := c.refused("list_agents", nil); !strings.Contains(refused, "host_unavailable") {
		t.Errorf("without a daemon on this machine: %s", refused)
	}
	if code := gateway.Stop(); code != 0 {
		t.Errorf("the gateway ended with %d", code)
	}
}
