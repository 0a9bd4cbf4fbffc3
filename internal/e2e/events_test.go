package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"agentrelay/internal/e2e/rig"
	"agentrelay/internal/mailbox"
)

// eventLine is what the AI SDK's client prints.
type eventLine struct {
	Listed struct {
		Events []struct{ Name string }
	}
	Subscribed   struct{ ID, RefreshBefore string }
	Refreshed    struct{ ID, RefreshBefore string }
	Event        struct{ EventID, Name string }
	Subscription string
	Signatures   int
	Message      mailbox.Message
	Unsubscribed bool
	Left         int
	Failed       string
}

// TestAISDKEvents plays the whole loop of MCP Events with a client and a receiver
// that others wrote: discover, list, subscribe with its challenge, a signed
// delivery of a message of another client, read, acknowledge, unsubscribe.
func TestAISDKEvents(t *testing.T) {
	for _, legacy := range []bool{false, true} {
		t.Run(map[bool]string{true: "2025-11-25", false: "2026-07-28"}[legacy], func(t *testing.T) { aiSDKEvents(t, legacy) })
	}
}

func aiSDKEvents(t *testing.T, legacy bool) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	h := rig.NewHome(t, binary)
	h.Configure("safedial", object{"allowLoopback": true})
	g := h.Serve()
	writer := h.Authorize("writer")
	sender, err := writer.Connect(ctx, "writer", writer.Token.AccessToken)
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	for _, id := range []string{"sender", "reader"} {
		if err := sender.Call(ctx, "register_peer", object{"peerId": id, "kind": "chat"}, nil); err != nil {
			t.Fatal(err)
		}
	}

	reader := h.Authorize("reader")
	cmd := rig.Node(t, "events-client.mjs")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer stdin.Close()
	if err := json.NewEncoder(stdin).Encode(object{"url": h.MCPURL, "token": reader.Token.AccessToken, "peer": "reader", "legacy": legacy}); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(stdout)
	next := func() (l eventLine) {
		t.Helper()
		line, err := out.ReadString('\n')
		if err == nil {
			err = json.Unmarshal([]byte(line), &l)
		}
		if err != nil || l.Failed != "" {
			t.Fatalf("the AI SDK says %q, %v\n%s", line, err, &stderr)
		}
		return l
	}

	if l := next(); len(l.Listed.Events) != 2 || l.Listed.Events[0].Name != "peer.message" || l.Listed.Events[1].Name != "agent.attention" {
		t.Fatalf("listed: %+v", l.Listed)
	}
	id := next().Subscribed.ID
	if !strings.HasPrefix(id, "sub_") {
		t.Fatalf("subscribed as %q", id)
	}
	deliver := func() {
		t.Helper()
		in := mailbox.SendPeerMessageIn{MessageID: uuid.NewString(), FromPeerID: "sender", ToPeerID: "reader", Text: "hello reader"}
		var sent mailbox.SendPeerMessageOut
		if err := sender.Call(ctx, "send_peer_message", in, &sent); err != nil {
			t.Fatal(err)
		}
		if sent.Delivery.Path != mailbox.Events {
			t.Errorf("sent with %+v", sent.Delivery)
		}
		l := next()
		if l.Event.Name != "peer.message" || l.Subscription != id || l.Signatures != 1 || l.Message.MessageID != in.MessageID || l.Message.Text != in.Text {
			t.Errorf("the event is %+v", l)
		}
		var read mailbox.GetPeerMessageOut
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			if err := sender.Call(ctx, "get_peer_message", object{"messageId": in.MessageID}, &read); err != nil {
				t.Fatal(err)
			}
			if read.Delivery.State == mailbox.CallbackAccepted || time.Now().After(deadline) {
				break
			}
		}
		if read.Delivery.State != mailbox.CallbackAccepted || read.Message.ReadAt.IsZero() || read.Message.State != mailbox.Processed {
			t.Errorf("afterwards the sender sees %+v, read at %v, %s", read.Delivery, read.Message.ReadAt, read.Message.State)
		}
	}
	deliver()
	if _, err := io.WriteString(stdin, "refresh\n"); err != nil {
		t.Fatal(err)
	}
	if l := next(); l.Refreshed.ID != id || l.Refreshed.RefreshBefore == "" {
		t.Errorf("refreshed: %+v", l.Refreshed)
	}
	if code := g.Stop(); code != 0 {
		t.Errorf("the gateway ended with %d", code)
	}
	h.Serve() // a restart loses no subscription
	deliver()

	stdin.Close()
	if l := next(); !l.Unsubscribed || l.Left != 0 {
		t.Errorf("unsubscribed: %+v", l)
	}
	var sent mailbox.SendPeerMessageOut
	in := mailbox.SendPeerMessageIn{MessageID: uuid.NewString(), FromPeerID: "sender", ToPeerID: "reader", Text: "gone?"}
	if err := sender.Call(ctx, "send_peer_message", in, &sent); err != nil {
		t.Fatal(err)
	}
	if sent.Delivery.Path != mailbox.None {
		t.Errorf("after the end: %+v", sent.Delivery)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the AI SDK's client: %v\n%s", err, &stderr)
	}
}
