package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/uuid"

	"agentrelay/internal/e2e/rig"
	"agentrelay/internal/mailbox"
)

// inspectorToolFailed is the exit code of MCP Inspector's command line when a
// tool refused the call.
const inspectorToolFailed = 5

// inspector is MCP Inspector's command line with one client's token.
type inspector struct {
	t    *testing.T
	home *rig.Home
	era  string
	args []string
}

func newInspector(t *testing.T, home *rig.Home, era, name string) inspector {
	c := home.Authorize(name)
	return inspector{t, home, era, []string{
		"--cli", home.MCPURL, "--transport", "http", "--protocol-era", era,
		"--header", "Authorization: Bearer " + c.Token.AccessToken, "--format", "json",
	}}
}

// run makes one request, in a process of its own as on a command line.
func (i inspector) run(args ...string) (result json.RawMessage, code int) {
	i.t.Helper()
	cmd := rig.Node(i.t, "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js", append(i.args, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+i.home.Dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		i.t.Fatalf("running MCP Inspector: %v", err)
	}
	var answer struct{ Result json.RawMessage }
	if err := json.Unmarshal(out, &answer); err != nil {
		i.t.Fatalf("MCP Inspector ended with %d and printed %q: %s", cmd.ProcessState.ExitCode(), out, &stderr)
	}
	return answer.Result, cmd.ProcessState.ExitCode()
}

// call calls a tool with arguments given as name=value, and decodes its answer.
// It returns the code of a refusal.
func (i inspector) call(out any, tool string, arguments ...string) (refusal string) {
	i.t.Helper()
	args := []string{"--method", "tools/call", "--tool-name", tool}
	for _, a := range arguments {
		args = append(args, "--tool-arg", a)
	}
	raw, code := i.run(args...)
	var result struct {
		StructuredContent json.RawMessage
		IsError           bool
	}
	var failed struct{ Error struct{ Code string } }
	err := errors.Join(json.Unmarshal(raw, &result), json.Unmarshal(result.StructuredContent, &failed))
	if err != nil || result.IsError != (failed.Error.Code != "") || result.IsError != (code == inspectorToolFailed) {
		i.t.Fatalf("%s: exit code %d, %s (%v)", tool, code, raw, err)
	}
	if out != nil && !result.IsError {
		if err := json.Unmarshal(result.StructuredContent, out); err != nil {
			i.t.Fatalf("%s: %v in %s", tool, err, raw)
		}
	}
	return failed.Error.Code
}

func (i inspector) must(out any, tool string, arguments ...string) {
	i.t.Helper()
	if refusal := i.call(out, tool, arguments...); refusal != "" {
		i.t.Fatalf("%s was refused: %s", tool, refusal)
	}
}

// The main job, with a client that nobody here wrote, in both eras of the
// protocol: two clients, each allowed by the owner on its own, exchange linked
// messages and acknowledge them.
func TestMainJobWithInspector(t *testing.T) {
	for _, era := range []string{"legacy", "modern"} {
		t.Run(era, func(t *testing.T) {
			home := rig.NewHome(t, binary)
			gateway := home.Serve()
			writer, reviewer := newInspector(t, home, era, "Writer"), newInspector(t, home, era, "Reviewer")

			list, _ := writer.run("--method", "tools/list", "--strict")
			for _, tool := range []string{"register_peer", "list_peers", "send_peer_message", "list_peer_messages", "get_peer_message", "ack_peer_message", "stop_peer"} {
				if !strings.Contains(string(list), `"name":"`+tool+`"`) {
					t.Errorf("tools/list lacks %s", tool)
				}
			}
			writer.must(nil, "register_peer", "peerId=writer", "kind=chat")
			reviewer.must(nil, "register_peer", "peerId=reviewer", "kind=dot", "displayName=The Reviewer")
			var peers mailbox.ListPeersOut
			writer.must(&peers, "list_peers")
			if len(peers.Peers) != 2 {
				t.Fatalf("the directory has %+v", peers.Peers)
			}

			question, answer := uuid.NewString(), uuid.NewString()
			const text = "Is the naïve plan ☕ good?\nSecond line."
			var sent mailbox.SendPeerMessageOut
			send := []string{"messageId=" + question, "fromPeerId=writer", "toPeerId=reviewer", "text=" + text}
			writer.must(&sent, "send_peer_message", send...)
			if sent.Duplicate || sent.Message.Hop != 1 || sent.Message.ThreadID != question {
				t.Errorf("sent %+v", sent)
			}
			writer.must(&sent, "send_peer_message", send...)
			if !sent.Duplicate {
				t.Error("the repeat was sent a second time")
			}

			var inbox mailbox.ListPeerMessagesOut
			reviewer.must(&inbox, "list_peer_messages", "peerId=reviewer")
			if len(inbox.Messages) != 1 || inbox.Messages[0].MessageID != question || inbox.UnprocessedCount != 1 {
				t.Fatalf("the inbox is %+v", inbox)
			}
			var read mailbox.GetPeerMessageOut
			reviewer.must(&read, "get_peer_message", "messageId="+question, "peerId=reviewer")
			if read.Message.Text != text {
				t.Errorf("the reviewer read %q", read.Message.Text)
			}
			reviewer.must(&sent, "send_peer_message", "messageId="+answer, "fromPeerId=reviewer", "toPeerId=writer", "text=Yes.", "inReplyTo="+question)
			if sent.Message.Hop != 2 || sent.Message.ThreadID != question {
				t.Errorf("the reply is %+v", sent.Message)
			}
			var acked mailbox.AckPeerMessageOut
			reviewer.must(&acked, "ack_peer_message", "messageId="+question, "peerId=reviewer")
			if acked.Message.State != mailbox.Processed {
				t.Errorf("acknowledged: %+v", acked)
			}
			writer.must(&read, "get_peer_message", "messageId="+question)
			if read.ReplyMessageID != answer || read.Message.ReadAt.IsZero() {
				t.Errorf("the writer sees %+v", read)
			}
			writer.must(&read, "get_peer_message", "messageId="+answer, "peerId=writer")
			if read.Message.Text != "Yes." || read.Message.InReplyTo != question {
				t.Errorf("the writer read %+v", read.Message)
			}
			writer.must(nil, "ack_peer_message", "messageId="+answer, "peerId=writer")
			reviewer.must(&inbox, "list_peer_messages", "peerId=reviewer", "threadId="+question)
			if len(inbox.Messages) != 2 || inbox.UnprocessedCount != 0 {
				t.Errorf("the conversation is %+v", inbox)
			}
			if refusal := writer.call(nil, "ack_peer_message", "messageId="+question, "peerId=writer"); refusal != "not_recipient" {
				t.Errorf("the sender's own acknowledgement: %q", refusal)
			}
			var stopped mailbox.StopPeerOut
			reviewer.must(&stopped, "stop_peer", "peerId=reviewer")
			if stopped.Peer.State != mailbox.Stopped || stopped.AlreadyStopped {
				t.Errorf("stopped: %+v", stopped)
			}
			if code := gateway.Stop(); code != 0 {
				t.Errorf("the gateway ended with %d", code)
			}
		})
	}
}
