package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrelay/internal/events"
	"agentrelay/internal/fault"
	"agentrelay/internal/oauth"
	"agentrelay/internal/principal"
	"agentrelay/internal/safedial"
	"agentrelay/internal/tool"
	"agentrelay/internal/wake"
)

// eventsExtension is where the draft SEP-3415 wants the capability; ChatGPT reads
// it at the top level.
const eventsExtension = "io.modelcontextprotocol/events"

// maxCallbackAnswer is what a callback may answer: more than anybody sends, for
// internal/events reads only as much as it needs, and must see the status of a
// longer one.
const maxCallbackAnswer = 1 << 40

// buildEvents makes the events and the client that makes their POSTs.
func (g *Gateway) buildEvents(ctx context.Context) error {
	key, err := events.OpenKey(ctx, g.store)
	if err != nil {
		return err
	}
	dialer := safedial.New(safedial.Options{AllowLoopback: g.config.Safedial.AllowLoopback, MaxBytes: maxCallbackAnswer})
	g.callbacks = dialer.Client()
	o := wake.EventsOptions(g.config)
	o.Store, o.Key, o.Client, o.CheckURL, o.Mailbox, o.Allowed = g.store, key, g.callbacks, dialer.CheckURL, wake.Mailbox{}, oauth.Permits
	o.Now, o.Rand, o.Log = g.now, g.rand, g.log
	o.ResolveHost, o.Renewed = g.eventHost, g.renewed
	if g.config.Tools.Mailbox {
		o.Offer = append(o.Offer, events.PeerMessage)
	}
	if g.config.Tools.Agents {
		o.Offer = append(o.Offer, events.AgentAttention)
	}
	g.events, err = events.New(o)
	return err
}

// eventMethods are the methods of MCP Events, in every protocol version.
var eventMethods = []string{"events/list", "events/subscribe", "events/unsubscribe"}

// eventParams are the params of an event method as they came.
type eventParams struct {
	mcp.ParamsBase
	raw json.RawMessage
}

// UnmarshalJSON implements [json.Unmarshaler].
func (p *eventParams) UnmarshalJSON(raw []byte) error {
	p.raw = slices.Clone(raw)
	return json.Unmarshal(raw, &struct {
		Meta *mcp.Meta `json:"_meta"`
	}{&p.Meta})
}

// eventResult is the result of an event method.
type eventResult struct {
	mcp.ResultBase
	ResultType string // from protocol 2026-07-28 on
	members    any
}

// MarshalJSON implements [json.Marshaler].
func (r *eventResult) MarshalJSON() ([]byte, error) {
	members := map[string]json.RawMessage{}
	if err := json.Unmarshal(tool.Encode(r.members), &members); err != nil {
		return nil, fmt.Errorf("writing the result of an event method: %w", err)
	}
	if r.ResultType != "" {
		members["resultType"] = tool.Encode(r.ResultType)
	}
	if len(r.Meta) > 0 {
		members["_meta"] = tool.Encode(r.Meta)
	}
	return tool.Encode(members), nil
}

type callerKey struct{}

// addEvents registers the event methods with a server and advertises them.
func (g *Gateway) addEvents(server *mcp.Server) {
	for _, method := range eventMethods {
		err := mcp.AddReceivingCustomMethod(server, method, func(ctx context.Context, _ *mcp.ServerSession, p *eventParams) (*eventResult, error) {
			return g.eventMethod(ctx, method, p)
		})
		if err != nil {
			panic(err) // the name of a standard method; it is none
		}
	}
	server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			if slices.Contains(eventMethods, method) {
				// Custom methods get no request: the caller comes with the context.
				who, err := caller(req.GetExtra().TokenInfo)
				if err != nil {
					return nil, err
				}
				ctx = context.WithValue(ctx, callerKey{}, who)
			}
			res, err := next(ctx, method, req)
			return withEvents(res), err
		}
	})
}

// eventMethod does one call and records a refusal before the client hears of it.
func (g *Gateway) eventMethod(ctx context.Context, method string, p *eventParams) (*eventResult, error) {
	who, ok := ctx.Value(callerKey{}).(principal.Principal)
	if !ok {
		return nil, errors.New("an event method was called without a caller")
	}
	var raw json.RawMessage
	if p != nil {
		raw = p.raw
	}
	members, err := g.callEvents(ctx, who, method, raw)
	if err != nil {
		return nil, g.refuseEvent(ctx, who, method, err)
	}
	res := &eventResult{members: members}
	if post, ok := ctx.Value(postKey{}).(*post); ok && post.modern() {
		res.ResultType = "complete"
	}
	return res, nil
}

func (g *Gateway) callEvents(ctx context.Context, who principal.Principal, method string, raw json.RawMessage) (any, error) {
	switch method {
	case "events/list":
		if err := events.CheckList(raw); err != nil {
			return nil, err
		}
		return map[string]any{"events": g.events.List(who)}, nil
	case "events/subscribe":
		in, err := events.ReadSubscribe(raw)
		if err != nil {
			return nil, err
		}
		return g.events.Subscribe(ctx, who, in)
	}
	in, err := events.ReadUnsubscribe(raw)
	if err == nil {
		_, err = g.events.Unsubscribe(ctx, who, in)
	}
	return struct{}{}, err
}

// refuseEvent is a refusal as a JSON-RPC error, with the members that MCP Events
// defines for its data and ours.
func (g *Gateway) refuseEvent(ctx context.Context, who principal.Principal, method string, err error) error {
	e, rec := faultOf(err), recordOf(ctx)
	if !slices.Contains([]string{fault.Internal.Code, fault.Unavailable.Code}, e.Code) {
		if err := recordRefusal(ctx, g.store, who, "event.refuse", method, e, rec.id); err != nil {
			e = faultOf(err)
		}
	}
	if cause := e.Unwrap(); cause != nil {
		rec.failed(cause)
	}
	data := map[string]any{}
	if err := json.Unmarshal(tool.Encode(tool.NewFailure(e, rec.id)), &data); err != nil {
		return err
	}
	delete(data, "message") // it is the error's own
	var r *events.Refusal
	if errors.As(err, &r) {
		for name, value := range r.Data {
			data[name] = value
		}
	}
	return &jsonrpc.Error{Code: events.Numbers(g.config.Events.ErrorCodes).Number(e.Kind), Message: e.Message, Data: tool.Encode(data)}
}

// The SDK has no room for a capability of its own at the top level, so its
// results are wrapped: what is embedded is marshalled beside Capabilities.
type (
	capabilities struct {
		*mcp.ServerCapabilities
		Events struct{} `json:"events"`
	}
	discoverResult struct {
		*mcp.DiscoverResult
		Capabilities capabilities `json:"capabilities"`
	}
	initializeResult struct {
		*mcp.InitializeResult
		Capabilities capabilities `json:"capabilities"`
	}
)

// withEvents adds the capability to a result that lists capabilities.
func withEvents(res mcp.Result) mcp.Result {
	switch res := res.(type) {
	case *mcp.DiscoverResult:
		return &discoverResult{res, capabilities{ServerCapabilities: res.Capabilities}}
	case *mcp.InitializeResult:
		return &initializeResult{res, capabilities{ServerCapabilities: res.Capabilities}}
	}
	return res
}

// closeEvents ends the events within ctx.
func (g *Gateway) closeEvents(ctx context.Context) {
	if g.events != nil {
		g.events.Close(ctx)
	}
	for _, c := range []*http.Client{g.callbacks, g.outbound} {
		if c != nil {
			c.CloseIdleConnections()
		}
	}
}
