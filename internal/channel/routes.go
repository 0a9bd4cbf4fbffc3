package channel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"agentrelay/internal/fault"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/principal"
	"agentrelay/internal/tool"
)

// route is how a tool is limited to the agent that calls it.
type route struct {
	// own is the argument that must name a peer of the agent; "" for none.
	own string
	// registers is set where that peer may be new, and becomes the agent's.
	registers bool
}

// routes are the tools that agents have.
var routes = map[string]route{
	"register_peer":      {own: "peerId", registers: true},
	"list_peers":         {},
	"send_peer_message":  {own: "fromPeerId"},
	"list_peer_messages": {own: "peerId"},
	"get_peer_message":   {own: "peerId"},
	"ack_peer_message":   {own: "peerId"},
	"stop_peer":          {own: "peerId"},
	messageRoute:         {},
}

// native is what the tools do for an agent: all but the directory in the name of a
// peer of its own, which the mailbox sees to.
func native(box *mailbox.Service) map[string]tool.Call {
	type who = principal.Principal
	return map[string]tool.Call{
		"list_peers": tool.Calls(box.ListPeers),
		"register_peer": tool.Calls(func(ctx context.Context, who who, in mailbox.RegisterPeerIn) (mailbox.RegisterPeerOut, error) {
			in.Agent = agentOf(ctx)
			return box.RegisterPeer(ctx, who, in)
		}),
		"stop_peer": tool.Calls(func(ctx context.Context, who who, in mailbox.StopPeerIn) (mailbox.StopPeerOut, error) {
			in.Agent = agentOf(ctx)
			return box.StopPeer(ctx, who, in)
		}),
		"send_peer_message": tool.Calls(func(ctx context.Context, who who, in mailbox.SendPeerMessageIn) (mailbox.SendPeerMessageOut, error) {
			in.Agent = agentOf(ctx)
			return box.SendPeerMessage(ctx, who, in)
		}),
		"list_peer_messages": tool.Calls(func(ctx context.Context, who who, in mailbox.ListPeerMessagesIn) (mailbox.ListPeerMessagesOut, error) {
			in.Agent = agentOf(ctx)
			return box.ListPeerMessages(ctx, who, in)
		}),
		"get_peer_message": tool.Calls(func(ctx context.Context, who who, in mailbox.GetPeerMessageIn) (mailbox.GetPeerMessageOut, error) {
			in.Agent = agentOf(ctx)
			return box.GetPeerMessage(ctx, who, in)
		}),
		"ack_peer_message": tool.Calls(func(ctx context.Context, who who, in mailbox.AckPeerMessageIn) (mailbox.AckPeerMessageOut, error) {
			in.Agent = agentOf(ctx)
			return box.AckPeerMessage(ctx, who, in)
		}),
	}
}

// complete adds the arguments of a registration that an agent can't choose, where
// it has left them out. What is no object is left to the schema. Nothing is parsed
// and written anew, so that a name which stands there twice is still seen.
func (r route) complete(who Caller, raw json.RawMessage) json.RawMessage {
	var given map[string]json.RawMessage
	if !r.registers || json.Unmarshal(raw, &given) != nil || given == nil {
		return raw
	}
	out := []byte{'{'}
	for _, own := range []struct{ name, value string }{{"kind", string(mailbox.Local)}, {"hostId", who.HostID}, {"agentId", who.AgentID}} {
		if _, ok := given[own.name]; !ok {
			out = append(append(out, tool.Encode(own.name)...), ':')
			out = append(append(out, tool.Encode(own.value)...), ',')
		}
	}
	_, rest, _ := bytes.Cut(raw, []byte{'{'})
	if len(given) == 0 {
		out = bytes.TrimSuffix(out, []byte{','})
	}
	return append(out, rest...)
}

// restrict refuses arguments that an agent may not give.
func restrict(who Caller, toolName string, arguments json.RawMessage) error {
	r := routes[toolName]
	if r.own == "" {
		return nil
	}
	var given map[string]any
	if err := json.Unmarshal(arguments, &given); err != nil {
		return fmt.Errorf("arguments that passed the schema do not decode: %w", err)
	}
	if r.registers && (given["kind"] != string(mailbox.Local) || given["hostId"] != who.HostID || given["agentId"] != who.AgentID) {
		return fault.InvalidArguments.New("An agent registers itself alone: kind is local, hostId and agentId are its own.").
			WithHint("Leave kind, hostId and agentId out.")
	}
	if _, ok := given[r.own].(string); !ok {
		return fault.InvalidArguments.Newf("%s is required here: an agent reads in its own name.", r.own)
	}
	return nil
}

// messageRoute is the name of the one route that is no tool of the mailbox.
const messageRoute = "message"

// MessageIn is the arguments of a message to the chat that dispatched an agent.
type MessageIn struct {
	RequestID string `json:"requestId"` // of the dispatch
	MessageID string `json:"messageId"` // UUID, the caller key
	Kind      string `json:"kind"`      // message or needs_input
	Text      string `json:"text"`      // 1..8192 code points
}

// The kinds of messages to a chat.
const (
	KindMessage    = "message"
	KindNeedsInput = "needs_input" // the agent ends its turn and waits for an answer
)

// messageTool has the form of a tool, so that the same checks hold for it.
func (s *Server) messageTool() tool.Tool {
	return tool.Tool{
		Name: messageRoute, Permission: principal.Mailbox,
		In: tool.Arguments(
			tool.Req("requestId", tool.Str("The dispatch.").Matching(tool.IDForm)),
			tool.Req("messageId", tool.Str("A new UUID.").Matching(tool.UUIDForm)),
			tool.Opt("kind", tool.Str("What it is.").OneOf(KindMessage, KindNeedsInput).Standard(KindMessage)),
			tool.Req("text", tool.Str("The message.").Length(1, mailbox.MaxTextLength)),
		),
		Call: tool.Calls(func(ctx context.Context, _ principal.Principal, in MessageIn) (any, error) {
			if s.o.Dispatches == nil {
				return nil, noDispatch.New("No chat has dispatched this agent.")
			}
			if in.Kind == "" {
				in.Kind = KindMessage
			}
			from, ok := ctx.Value(callerKey{}).(Caller)
			if !ok {
				return nil, errors.New("a message came without its caller")
			}
			return s.o.Dispatches.Message(ctx, from, in)
		}),
	}
}

// agentOf is the caller as the mailbox knows it. A call that came without one has
// no peer.
func agentOf(ctx context.Context) *mailbox.Agent {
	who, _ := ctx.Value(callerKey{}).(Caller)
	return &mailbox.Agent{HostID: who.HostID, AgentID: who.AgentID}
}

type callerKey struct{}

func withCaller(ctx context.Context, who Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, who)
}
