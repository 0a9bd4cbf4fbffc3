package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrelay/internal/direct/commands"
	"agentrelay/internal/direct/commands/record"
	"agentrelay/internal/directtools"
	"agentrelay/internal/fault"
	"agentrelay/internal/hosts/worker/wire"
	"agentrelay/internal/principal"
	"agentrelay/internal/tool"
)

// changeable is a tool of this worker.
type changeable struct {
	tool.Tool
	change
	call    tool.Call
	changes bool // it has a change
}

// server is the MCP server of the thirteen tools.
func (w *worker) server() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "agent-relay-worker", Title: "Agent Relay worker", Version: w.o.Version}, &mcp.ServerOptions{
		Logger: w.o.sdkLog, Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}},
	})
	calls, changes := w.calls(), w.changes()
	for _, t := range directtools.All() {
		c := &changeable{Tool: t, call: calls[t.Name]}
		c.change, c.changes = changes[t.Name]
		s.AddTool(c.Definition(), w.handler(c))
	}
	if !w.alone {
		// Neither has the name of a standard method, which is the only error.
		_ = mcp.AddReceivingCustomMethod(s, wire.CheckMethod, w.checkPlacement)
		_ = mcp.AddReceivingCustomMethod(s, wire.SettleMethod, w.settlePlacement)
	}
	return s
}

// alike is a call that does the same for every caller.
func alike[In, Out any](do func(context.Context, In) (Out, error)) tool.Call {
	return tool.Calls(func(ctx context.Context, _ principal.Principal, in In) (Out, error) { return do(ctx, in) })
}

func (w *worker) calls() map[string]tool.Call {
	return map[string]tool.Call{
		"list_direct_projects":       alike(w.ListDirectProjects),
		"list_direct_files":          alike(w.ListDirectFiles),
		"search_direct_files":        alike(w.SearchDirectFiles),
		"read_direct_file":           alike(w.ReadDirectFile),
		"write_direct_file":          alike(w.WriteDirectFile),
		"edit_direct_file":           alike(w.EditDirectFile),
		"run_direct_command":         tool.Calls(w.RunDirectCommand),
		"read_direct_command":        tool.Calls(w.ReadDirectCommand),
		"write_direct_command_input": tool.Calls(w.writeInput),
		"cancel_direct_command":      tool.Calls(w.CancelDirectCommand),
		"export_direct_file":         needsGateway,
		"import_direct_file":         needsGateway,
		"get_direct_transfer":        needsGateway,
	}
}

// needsGateway refuses what a worker can't do by itself.
func needsGateway(context.Context, principal.Principal, json.RawMessage) (any, error) {
	return nil, NeedsGateway.New("This worker runs alone, and transfers need a gateway.")
}

// inputAnswer is an answer of the domain with its host.
type inputAnswer struct {
	commands.WriteDirectCommandInputOut
	HostID string `json:"hostId"`
}

func (w *worker) writeInput(ctx context.Context, who principal.Principal, in commands.WriteDirectCommandInputIn) (inputAnswer, error) {
	out, err := w.WriteDirectCommandInput(ctx, who, in)
	return inputAnswer{out, w.ID()}, err
}

// storedInput is writeInput for an input that was begun before: that it is
// stored already is the first answer to it.
func (w *worker) storedInput(ctx context.Context, who principal.Principal, in commands.WriteDirectCommandInputIn) (inputAnswer, error) {
	out, err := w.writeInput(ctx, who, in)
	if out.State == record.Accepted {
		out.Duplicate = false
	}
	return out, err
}

// caller is who asks, as _meta says.
type caller struct {
	who       principal.Principal
	operation string // "" for what has no id
	settle    bool
}

// caller reads _meta. Only a gateway is believed: a worker that runs alone
// serves one owner.
func (w *worker) caller(meta mcp.Meta) (caller, error) {
	if w.alone {
		return caller{who: principal.Owner(principal.SharedOwner)}, nil
	}
	owner, _ := meta[wire.OwnerKey].(string)
	client, _ := meta[wire.ClientKey].(string)
	operation, _ := meta[wire.OperationKey].(string)
	settle, _ := meta[wire.SettleKey].(bool)
	if settle && operation == "" {
		return caller{}, errors.New("a change is to be settled that has no id")
	}
	return caller{principal.Principal{Owner: owner, ClientID: client}, operation, settle}, nil
}

func (w *worker) handler(c *changeable) mcp.ToolHandler {
	return func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		out, err := w.answer(ctx, c, r.Params)
		var result *mcp.CallToolResult
		if err == nil {
			result = tool.Answer(out, false)
		} else {
			result = tool.Answer(tool.Envelope{Error: tool.NewFailure(fault.From(err), w.internal(err))}, true)
		}
		if !w.alone {
			result.StructuredContent = nil // the gateway reads the text, which is the same
		}
		return result, nil
	}
}

func (w *worker) answer(ctx context.Context, c *changeable, p *mcp.CallToolParamsRaw) (any, error) {
	from, err := w.caller(p.Meta)
	if err != nil {
		return nil, err
	}
	arguments, err := c.Check(p.Arguments)
	switch {
	case err != nil:
		return nil, err
	case from.operation == "" || !c.changes:
		return c.call(ctx, from.who, arguments)
	case from.settle:
		return w.settle(ctx, c, from, arguments)
	}
	return w.do(ctx, c, from, arguments)
}

// internal logs an error that is no refusal, and returns the id of the line.
func (w *worker) internal(err error) (id string) {
	raw := make([]byte, 4)
	rand.Read(raw)
	id = hex.EncodeToString(raw)
	var refused *fault.Error
	if !errors.As(err, &refused) || refused.Code == fault.Internal.Code {
		w.o.Log.Error("a call failed", "id", id, "error", err)
	}
	return id
}

func (w *worker) checkPlacement(ctx context.Context, _ *mcp.ServerSession, p *wire.PlacementParams) (*wire.PlacementResult, error) {
	if p == nil {
		return nil, errors.New("the placement is missing")
	}
	r := &wire.PlacementResult{}
	if err := w.Placements().Check(ctx, p.Placement); err != nil {
		w.internal(err)
		r.Error = wire.FailureOf(err)
	}
	return r, nil
}

// settlePlacement answers for one that is under way that it is.
func (w *worker) settlePlacement(ctx context.Context, _ *mcp.ServerSession, p *wire.PlacementParams) (*wire.PlacementResult, error) {
	if p == nil {
		return nil, errors.New("the placement is missing")
	}
	r := &wire.PlacementResult{}
	placed, ok, err := w.Placements().Settle(ctx, p.ID)
	if err != nil {
		w.internal(err)
		r.Error = wire.FailureOf(err)
	}
	r.Placed, r.OK = placed, ok
	return r, nil
}
