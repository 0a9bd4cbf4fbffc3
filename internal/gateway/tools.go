package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrelay/internal/audit"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
	"agentrelay/internal/shellquote"
	"agentrelay/internal/store"
)

// tool is one tool as clients see it and what it does. Clients keep the
// definition, so after a release it changes only by addition (tools.md).
type tool struct {
	name, title, description string
	// readOnly, destructive, idempotent and openWorld are the annotations that
	// hosts show to people before a call.
	readOnly, destructive, idempotent, openWorld bool
	permission                                   principal.Permission // "" is none
	orElse                                       principal.Set        // any of these does too
	meta                                         mcp.Meta
	in, out                                      *schema
	call                                         domainCall
}

// allows reports whether a client with these permissions may call the tool.
func (t *tool) allows(has principal.Set) bool {
	return t.permission == "" || has.Has(t.permission) || slices.ContainsFunc(t.orElse, has.Has)
}

// domainCall decodes arguments that passed the tool's schema and calls a domain.
type domainCall func(ctx context.Context, who principal.Principal, arguments json.RawMessage) (any, error)

// calls makes a [domainCall] of a domain's method.
func calls[In, Out any](method func(context.Context, principal.Principal, In) (Out, error)) domainCall {
	return func(ctx context.Context, who principal.Principal, arguments json.RawMessage) (any, error) {
		var in In
		if err := json.Unmarshal(arguments, &in); err != nil {
			return nil, fmt.Errorf("arguments that passed the schema do not decode: %w", err)
		}
		return method(ctx, who, in)
	}
}

// result is the output schema of a tool. Nothing in it is required, and error is
// part of it, because clients check the answers of failed calls against it too.
// A part that another tool describes in full is only named: each list has room
// for 64 KiB.
func result(properties ...field) *schema {
	failed := object("Set instead when the call failed: code, message, hint (the next step), retryable, id.")
	return object("", append(properties, opt("error", failed))...)
}

// definition is the tool for the SDK.
func (t *tool) definition() *mcp.Tool {
	return &mcp.Tool{
		Meta: t.meta,
		Name: t.name, Title: t.title, Description: t.description,
		Annotations: &mcp.ToolAnnotations{
			Title: t.title, ReadOnlyHint: t.readOnly, DestructiveHint: &t.destructive,
			IdempotentHint: t.idempotent, OpenWorldHint: &t.openWorld,
		},
		InputSchema:  json.RawMessage(encode(t.in)),
		OutputSchema: json.RawMessage(encode(t.out)),
	}
}

// surface is a hash over the definitions of tools, in the order that tools/list
// has. The owner compares it to learn whether clients must read the list again.
func surface(tools []tool) string {
	tools = slices.Clone(tools)
	slices.SortFunc(tools, func(a, b tool) int { return strings.Compare(a.name, b.name) })
	h := sha256.New()
	for i := range tools {
		h.Write(encode(tools[i].definition()))
		h.Write([]byte{'\n'})
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// frame is what all tools share on the way from the SDK to a domain and back.
type frame struct {
	store *store.Store
}

// add registers the tools with a server.
func (f *frame) add(server *mcp.Server, tools []tool) {
	for i := range tools {
		t := &tools[i]
		server.AddTool(t.definition(), func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			who, err := caller(req.Extra.TokenInfo)
			if err != nil {
				return nil, err
			}
			out, err := f.run(ctx, t, who, req.Params.Arguments)
			if err != nil {
				return f.fail(ctx, t, who, err)
			}
			return answer(out, false), nil
		})
	}
}

// run checks and does one call. A panic is a failed call: the SDK would let it
// end the process.
func (f *frame) run(ctx context.Context, t *tool, who principal.Principal, raw json.RawMessage) (out any, err error) {
	defer func() {
		if v := recover(); v != nil {
			out, err = nil, panicked(v)
		}
	}()
	if !t.allows(who.Permissions) {
		return nil, fault.NotPermitted.Newf("The owner has not allowed this client %q, which %s needs.", t.permission, t.name).
			WithHint(fmt.Sprintf("Ask the owner to run: gateway clients allow %s %s", shellquote.Word(who.ClientID), t.permission))
	}
	if cutCharacter(raw) {
		return nil, fault.InvalidArguments.New("An argument holds half of a character: an escape of one half of a surrogate pair.").
			WithHint("Send whole characters; a text was probably cut in the middle of an emoji.")
	}
	arguments, problems := t.in.read(raw)
	if len(problems) > 0 {
		return nil, fault.InvalidArguments.New(strings.Join(problems, "; ") + ".")
	}
	return t.call(ctx, who, arguments)
}

// fail answers a failed call. A refusal stands in the audit log before the client
// hears of it.
func (f *frame) fail(ctx context.Context, t *tool, who principal.Principal, err error) (*mcp.CallToolResult, error) {
	e := faultOf(err)
	rec := recordOf(ctx)
	if !slices.Contains([]string{fault.Internal.Code, fault.Unavailable.Code}, e.Code) {
		if err := recordRefusal(ctx, f.store, who, "tool.refuse", t.name, e, rec.id); err != nil {
			e = faultOf(err)
		}
	}
	rec.refused(e)
	return answer(envelope{newFailure(e, rec.id)}, true), nil
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

// linked is an answer that points to something beside its object.
type linked interface {
	links() []mcp.Content
}

// answer is a tool's result: the object, and the same as text for clients that
// read no structured content.
func answer(out any, failed bool) *mcp.CallToolResult {
	raw := encode(out)
	content := []mcp.Content{&mcp.TextContent{Text: string(raw)}}
	if l, ok := out.(linked); ok {
		content = append(content, l.links()...)
	}
	return &mcp.CallToolResult{
		Content:           content,
		StructuredContent: json.RawMessage(raw),
		IsError:           failed,
	}
}
