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
	"agentrelay/internal/store"
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

// native is what the tools do for an agent: those that show mail show that of the
// present generation of its peer.
func native(box *mailbox.Service) map[string]tool.Call {
	type who = principal.Principal
	return map[string]tool.Call{
		"register_peer": tool.Calls(box.RegisterPeer),
		"list_peers":    tool.Calls(box.ListPeers),
		"stop_peer":     tool.Calls(box.StopPeer),
		"send_peer_message": tool.Calls(func(ctx context.Context, who who, in mailbox.SendPeerMessageIn) (mailbox.SendPeerMessageOut, error) {
			in.OwnGeneration = true
			return box.SendPeerMessage(ctx, who, in)
		}),
		"list_peer_messages": tool.Calls(func(ctx context.Context, who who, in mailbox.ListPeerMessagesIn) (mailbox.ListPeerMessagesOut, error) {
			in.OwnGeneration = true
			return box.ListPeerMessages(ctx, who, in)
		}),
		"get_peer_message": tool.Calls(func(ctx context.Context, who who, in mailbox.GetPeerMessageIn) (mailbox.GetPeerMessageOut, error) {
			in.OwnGeneration = true
			return box.GetPeerMessage(ctx, who, in)
		}),
		"ack_peer_message": tool.Calls(func(ctx context.Context, who who, in mailbox.AckPeerMessageIn) (mailbox.AckPeerMessageOut, error) {
			in.OwnGeneration = true
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

// restrict refuses what an agent may not do in the name of the peer it names.
func (s *Server) restrict(ctx context.Context, who Caller, toolName string, arguments json.RawMessage) error {
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
	peerID, ok := given[r.own].(string)
	if !ok {
		return fault.InvalidArguments.Newf("%s is required here: an agent reads in its own name.", r.own)
	}
	var bound, found bool
	err := store.Read(ctx, s.o.Store, func(q *store.Reader) (err error) {
		bound, found, err = mailbox.Lookup{}.Bound(q, who.Owner, peerID, who.HostID, who.AgentID)
		return err
	})
	switch {
	case err != nil:
		return err
	case bound, r.registers && !found:
		return nil
	case r.registers:
		return notOwnPeer.New("This peerId is or was another's, and mail for that one may still come.").WithHint("Register under another peerId.")
	}
	return notOwnPeer.Newf("%s names no peer of this agent.", r.own)
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

type callerKey struct{}

func withCaller(ctx context.Context, who Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, who)
}
