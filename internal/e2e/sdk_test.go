package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"

	"agentrelay/internal/client"
	"agentrelay/internal/e2e/rig"
	"agentrelay/internal/fault"
	"agentrelay/internal/mailbox"
)

type object = map[string]any

// sdkCall is one call of a tool, and the code of the refusal it must get: "" is
// success.
type sdkCall struct {
	Tool      string `json:"tool"`
	Arguments object `json:"arguments"`
	want      string
}

type sdkAnswer struct {
	Threw             string
	IsError           bool
	StructuredContent json.RawMessage
	Content           []struct{ Type, Text string }
}

// refusal is the error of a tool's answer.
type refusal struct {
	Code, Message, Hint, ID string
	Retryable               *bool
}

// runSDK makes the calls with the TypeScript SDK 1.x and returns what it made of
// the answers. With falsify they do not obey the tools' output schemas.
func runSDK(t *testing.T, c *rig.Client, calls []sdkCall, falsify bool) []sdkAnswer {
	t.Helper()
	input, err := json.Marshal(object{"url": c.MCPURL, "token": c.Token.AccessToken, "calls": calls, "falsify": falsify})
	if err != nil {
		t.Fatal(err)
	}
	cmd := rig.Node(t, "sdk-client.mjs")
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the SDK client: %v\n%s", err, &stderr)
	}
	var got struct {
		Tools   []struct{ Name string }
		Answers []sdkAnswer
	}
	if err := json.Unmarshal(out, &got); err != nil || len(got.Answers) != len(calls) {
		t.Fatalf("%d answers to %d calls: %v", len(got.Answers), len(calls), err)
	}
	if len(got.Tools) < 7 {
		t.Errorf("tools/list has %d tools", len(got.Tools))
	}
	return got.Answers
}

// sdk makes the calls with the TypeScript SDK 1.x, which checks each answer
// against the tool's output schema, and sees that each is answered as it must
// be. It adds each tool and code of a refusal to seen.
func sdk(t *testing.T, c *rig.Client, seen map[refused]bool, calls []sdkCall) {
	t.Helper()
	for i, a := range runSDK(t, c, calls, false) {
		call := calls[i]
		what := fmt.Sprintf("%s %v", call.Tool, call.Arguments)
		if a.Threw != "" {
			t.Errorf("%s: the SDK does not take the answer: %s", what, a.Threw)
			continue
		}
		var text, structured any
		if len(a.Content) != 1 || a.Content[0].Type != "text" ||
			errors.Join(json.Unmarshal([]byte(a.Content[0].Text), &text), json.Unmarshal(a.StructuredContent, &structured)) != nil || !reflect.DeepEqual(text, structured) {
			t.Errorf("%s: the text %+v is not the object %s", what, a.Content, a.StructuredContent)
		}
		var failed struct{ Error refusal }
		if err := json.Unmarshal(a.StructuredContent, &failed); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		e := failed.Error
		if e.Code != call.want || a.IsError != (call.want != "") {
			t.Errorf("%s: got %s, want %q", what, a.StructuredContent, cmp.Or(call.want, "success"))
			continue
		}
		if a.IsError && (e.Message == "" || e.Hint == "" || e.ID == "" || e.Retryable == nil) {
			t.Errorf("%s: the refusal lacks something: %s", what, a.StructuredContent)
		}
		seen[refused{call.Tool, e.Code}] = true
	}
}

// refused is a tool and a code that it answered.
type refused struct{ tool, code string }

// declaredRefusals are what each tool can answer: the doc comments of the
// mailbox list it, and any tool can be given bad arguments or be forbidden.
func declaredRefusals(t *testing.T) []refused {
	t.Helper()
	files, err := filepath.Glob("../mailbox/*.go")
	if err != nil {
		t.Fatal(err)
	}
	method := regexp.MustCompile(`(?s)\n// Refusals: ([^\n]*(?:\n//[^\n]*)*)\nfunc \(s \*Service\) (\w+)\(`)
	code := regexp.MustCompile(`[a-z]+(?:_[a-z]+)+`)
	capital := regexp.MustCompile(`(.)([A-Z])`)
	var all []refused
	tools := 0
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range method.FindAllStringSubmatch(string(source), -1) {
			tools++
			tool := strings.ToLower(capital.ReplaceAllString(m[2], "${1}_$2"))
			for _, c := range append(code.FindAllString(m[1], -1), fault.InvalidArguments.Code, fault.NotPermitted.Code) {
				all = append(all, refused{tool, c})
			}
		}
	}
	if tools != 7 {
		t.Fatalf("the refusals of %d tools are declared, want 7", tools)
	}
	return all
}

// Every refusal of the seven mailbox tools, and what succeeds around them, as
// the TypeScript SDK 1.x meets them after tools/list.
func TestEveryRefusalWithTheTypeScriptSDK(t *testing.T) {
	home := rig.NewHome(t, binary)
	const pairPerHour = 15
	home.Configure("mailbox", object{"limits": object{"pairPerHour": pairPerHour}})
	home.Serve()
	c := home.Authorize("SDK 1.x")
	seen := map[refused]bool{}

	id := func(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012x", n) }
	register := func(peer string) sdkCall {
		return sdkCall{"register_peer", object{"peerId": peer, "kind": "chat"}, ""}
	}
	send := func(n int, from, to, want string, more ...string) sdkCall {
		args := object{"messageId": id(n), "fromPeerId": from, "toPeerId": to, "text": fmt.Sprint("message ", n)}
		for i := 0; i < len(more); i += 2 {
			args[more[i]] = more[i+1]
		}
		return sdkCall{"send_peer_message", args, want}
	}

	calls := []sdkCall{register("a"), register("b"), register("c"), register("gone"), send(1, "a", "b", "")}
	sdk(t, c, seen, append(calls, sdkCall{"stop_peer", object{"peerId": "gone"}, ""}))
	home.OK("messages", "purge", "--before", "0s", "--include-unprocessed", "--yes")

	calls = []sdkCall{
		{"register_peer", object{"peerId": "a", "kind": "chat", "displayName": "Anna"}, ""},
		{"register_peer", object{"peerId": "a", "kind": "dot"}, "peer_conflict"},
		{"register_peer", object{"peerId": "x", "kind": "local", "agentId": "nobody"}, "agent_not_owned"},
		{"register_peer", object{"peerId": "x", "kind": "local", "agentId": "nobody", "hostId": "nowhere"}, "unknown_host"},
		{"list_peers", object{"includeStopped": true, "limit": 1}, ""},
		{"list_peers", object{"cursor": "nonsense"}, "invalid_cursor"},

		send(1, "a", "b", "message_purged"),
		send(2, "a", "b", ""),
		send(2, "a", "b", ""), // the repeat
		send(2, "a", "b", "key_conflict", "text", "another"),
		send(3, "nobody", "b", "unknown_peer"),
		send(3, "a", "nobody", "unknown_peer"),
		send(3, "a", "gone", "peer_stopped"),
		send(3, "gone", "a", "peer_stopped"),
		send(3, "a", "a", "self_message"),
		send(3, "b", "a", "unknown_message", "inReplyTo", id(999)),
		send(5, "b", "a", "", "inReplyTo", id(1)), // a purged message can be answered
		send(3, "a", "b", "reply_mismatch", "inReplyTo", id(2)),
		send(3, "c", "a", "reply_mismatch", "inReplyTo", id(2)),
		send(3, "b", "a", "", "inReplyTo", id(2)),
		send(4, "b", "a", "already_replied", "inReplyTo", id(2)),

		{"list_peer_messages", object{"peerId": "b", "limit": 1, "includeProcessed": true}, ""},
		{"list_peer_messages", object{"peerId": "b", "threadId": id(2)}, ""},
		{"list_peer_messages", object{"peerId": "c", "waitMs": 1}, ""},
		{"list_peer_messages", object{"peerId": "nobody"}, "unknown_peer"},
		{"list_peer_messages", object{"peerId": "b", "threadId": id(999)}, "unknown_message"},
		{"list_peer_messages", object{"peerId": "b", "threadId": id(3)}, "unknown_message"},
		{"list_peer_messages", object{"peerId": "b", "cursor": "nonsense"}, "invalid_cursor"},

		{"get_peer_message", object{"messageId": id(2)}, ""},
		{"get_peer_message", object{"messageId": id(2), "peerId": "b"}, ""},
		{"get_peer_message", object{"messageId": id(2), "peerId": "c"}, "not_recipient"},
		{"get_peer_message", object{"messageId": id(2), "peerId": "nobody"}, "unknown_peer"},
		{"get_peer_message", object{"messageId": id(999)}, "unknown_message"},
		{"get_peer_message", object{"messageId": id(1)}, "message_purged"},

		{"ack_peer_message", object{"messageId": id(2), "peerId": "b"}, ""},
		{"ack_peer_message", object{"messageId": id(2), "peerId": "b"}, ""}, // harmless
		{"ack_peer_message", object{"messageId": id(3), "peerId": "b"}, "not_recipient"},
		{"ack_peer_message", object{"messageId": id(3), "peerId": "nobody"}, "unknown_peer"},
		{"ack_peer_message", object{"messageId": id(999), "peerId": "b"}, "unknown_message"},
		{"ack_peer_message", object{"messageId": id(1), "peerId": "b"}, "message_purged"},

		{"stop_peer", object{"peerId": "gone"}, ""}, // harmless
		{"stop_peer", object{"peerId": "nobody"}, "unknown_peer"},
	}
	// A conversation to its end: 8 messages, then one more.
	from, to := "a", "c"
	calls = append(calls, send(100, from, to, ""))
	for n := 101; n <= 108; n++ {
		from, to = to, from
		want := ""
		if n == 108 {
			want = "hop_limit"
		}
		calls = append(calls, send(n, from, to, want, "inReplyTo", id(n-1)))
	}
	// The budget of a pair to its end.
	for n := 200; n < 200+pairPerHour; n++ {
		calls = append(calls, send(n, "b", "c", ""))
	}
	calls = append(calls, send(299, "c", "b", "rate_limited"))
	// Arguments that break a rule, for each tool.
	for _, bad := range []sdkCall{
		{"register_peer", object{"peerId": "-x", "kind": "chat"}, ""},
		{"register_peer", object{"peerId": "x", "kind": "person"}, ""},
		{"register_peer", object{"peerId": "x", "kind": "local"}, ""},
		{"register_peer", object{"peerId": "x", "kind": "chat", "agentId": "y"}, ""},
		{"list_peers", object{"limit": 0}, ""},
		{"list_peers", object{"unknown": true}, ""},
		{"send_peer_message", object{}, ""},
		send(300, "a", "b", "", "text", ""),
		send(300, "a", "b", "", "text", strings.Repeat("x", mailbox.MaxTextLength+1)),
		send(300, "a", "b", "", "messageId", "not-a-uuid"),
		{"list_peer_messages", object{"peerId": "b", "waitMs": 20001}, ""},
		{"list_peer_messages", object{"peerId": 7}, ""},
		{"get_peer_message", object{"messageId": nil}, ""},
		{"ack_peer_message", object{"messageId": id(2)}, ""},
		{"stop_peer", object{"peerId": "../../etc"}, ""},
	} {
		bad.want = "invalid_arguments"
		calls = append(calls, bad)
	}
	sdk(t, c, seen, calls)

	endWaits := fillWaits(t, c, "awaited")
	sdk(t, c, seen, []sdkCall{{"list_peer_messages", object{"peerId": "awaited", "waitMs": 20000}, "too_many_waits"}})
	endWaits()

	home.OK("clients", "deny", c.ID, "mailbox")
	calls = nil
	for _, tool := range []string{"register_peer", "list_peers", "send_peer_message", "list_peer_messages", "get_peer_message", "ack_peer_message", "stop_peer"} {
		calls = append(calls, sdkCall{tool, object{}, "not_permitted"})
	}
	sdk(t, c, seen, calls)
	home.OK("clients", "allow", c.ID, "mailbox")

	const registered = 5 // a, b, c, gone, awaited
	calls = nil
	for n := range mailbox.MaxPeersPerOwner - registered {
		calls = append(calls, register(fmt.Sprint("peer-", n)))
	}
	sdk(t, c, seen, append(calls, sdkCall{"register_peer", object{"peerId": "one-more", "kind": "chat"}, "peer_limit"}))

	for _, r := range declaredRefusals(t) {
		if !seen[r] {
			t.Errorf("no call of %s was refused with %s", r.tool, r.code)
		}
	}

	answers := runSDK(t, c, []sdkCall{{Tool: "list_peers", Arguments: object{}}}, true)
	for _, a := range answers {
		if !strings.Contains(a.Threw, "does not match the tool's output schema") {
			t.Errorf("the SDK takes an answer that is against the schema: %+v", a)
		}
	}
}

// fillWaits registers a peer and takes all its places for waiting calls. They
// end when the returned function is called.
func fillWaits(t *testing.T, c *rig.Client, peer string) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	session, err := c.Connect(ctx, "waiting", c.Token.AccessToken)
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Call(ctx, "register_peer", object{"peerId": peer, "kind": "chat"}, nil); err != nil {
		t.Fatal(err)
	}
	const calls = 32 // more than there are places
	var wg sync.WaitGroup
	answers := make(chan error, calls)
	for range calls {
		wg.Go(func() {
			answers <- session.Call(ctx, "list_peer_messages", object{"peerId": peer, "waitMs": 20000}, nil)
		})
	}
	// The first answer can only be a refusal, for the others wait.
	var refusal *client.ToolError
	if err := <-answers; !errors.As(err, &refusal) || refusal.Code != mailbox.TooManyWaits.Code {
		t.Errorf("a call beyond the places for waiting: %v", err)
	}
	return func() {
		cancel()
		wg.Wait()
		session.Close()
	}
}
