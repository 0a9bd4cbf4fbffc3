package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrelay/internal/audit"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
	"agentrelay/internal/shellquote"
	"agentrelay/internal/store"
	"agentrelay/internal/tool"
)

// frame is what all tools share on the way from the SDK to a domain and back.
type frame struct {
	store *store.Store
}

// add registers the tools with a server.
func (f *frame) add(server *mcp.Server, tools []tool.Tool) {
	for i := range tools {
		t := &tools[i]
		server.AddTool(t.Definition(), func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			who, err := caller(req.Extra.TokenInfo)
			if err != nil {
				return nil, err
			}
			out, err := f.run(ctx, t, who, req.Params.Arguments)
			if err != nil {
				return f.fail(ctx, t, who, err)
			}
			return tool.Answer(out, false), nil
		})
	}
}

// run checks and does one call. A panic is a failed call: the SDK would let it
// end the process.
func (f *frame) run(ctx context.Context, t *tool.Tool, who principal.Principal, raw json.RawMessage) (out any, err error) {
	defer func() {
		if v := recover(); v != nil {
			out, err = nil, panicked(v)
		}
	}()
	if !t.Allows(who.Permissions) {
		return nil, fault.NotPermitted.Newf("The owner has not allowed this client %q, which %s needs.", t.Permission, t.Name).
			WithHint(fmt.Sprintf("Ask the owner to run: gateway clients allow %s %s", shellquote.Word(who.ClientID), t.Permission))
	}
	arguments, err := t.Check(raw)
	if err != nil {
		return nil, err
	}
	return t.Call(ctx, who, arguments)
}

// fail answers a failed call. A refusal stands in the audit log before the client
// hears of it.
func (f *frame) fail(ctx context.Context, t *tool.Tool, who principal.Principal, err error) (*mcp.CallToolResult, error) {
	e := faultOf(err)
	rec := recordOf(ctx)
	if !slices.Contains([]string{fault.Internal.Code, fault.Unavailable.Code}, e.Code) {
		if err := recordRefusal(ctx, f.store, who, "tool.refuse", t.Name, e, rec.id); err != nil {
			e = faultOf(err)
		}
	}
	rec.refused(e)
	return tool.Answer(tool.Envelope{Error: tool.NewFailure(e, rec.id)}, true), nil
}

// auditTimeout bounds the wait for the audit entry of a refusal.
const auditTimeout = 5 * time.Second

// recordRefusal also works for a client that has left by now: that it asked is
// what the record is for.
func recordRefusal(ctx context.Context, s *store.Store, who principal.Principal, action, subject string, e *fault.Error, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditTimeout)
	defer cancel()
	err := store.Exec(ctx, s, func(tx *store.Tx) error {
		return audit.Record(tx, who, action, subject, e.Code, "id", id)
	})
	if err != nil {
		return fmt.Errorf("recording a refusal: %w", err)
	}
	return nil
}

// faultOf is the refusal of any error of a domain. Trouble of our store, and a
// call that ended before it was done, decided nothing: they can be repeated.
func faultOf(err error) *fault.Error {
	var e *fault.Error
	switch {
	case errors.As(err, &e):
		return e
	case store.IsTrouble(err):
		return fault.Unavailable.New("The gateway's store did not answer.").Because(err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fault.Unavailable.New("The call ended before it was finished.").Because(err)
	}
	return fault.From(err)
}
