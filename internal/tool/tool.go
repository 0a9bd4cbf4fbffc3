package tool

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
)

// Tool is one tool as clients see it and what it does. Clients keep the
// definition, so after a release it changes only by addition (tools.md).
type Tool struct {
	Name, Title, Description string
	// ReadOnly, Destructive, Idempotent and OpenWorld are the annotations that
	// hosts show to people before a call.
	ReadOnly, Destructive, Idempotent, OpenWorld bool
	Permission                                   principal.Permission // "" is none
	OrElse                                       principal.Set        // any of these does too
	Meta                                         mcp.Meta
	In, Out                                      *Schema
	Call                                         Call
}

// Allows reports whether a client with these permissions may call the tool.
func (t *Tool) Allows(has principal.Set) bool {
	return t.Permission == "" || has.Has(t.Permission) || slices.ContainsFunc(t.OrElse, has.Has)
}

// Call decodes arguments that passed the tool's schema and calls a domain.
type Call func(ctx context.Context, who principal.Principal, arguments json.RawMessage) (any, error)

// Calls makes a [Call] of a domain's method.
func Calls[In, Out any](method func(context.Context, principal.Principal, In) (Out, error)) Call {
	return func(ctx context.Context, who principal.Principal, arguments json.RawMessage) (any, error) {
		var in In
		if err := json.Unmarshal(arguments, &in); err != nil {
			return nil, fmt.Errorf("arguments that passed the schema do not decode: %w", err)
		}
		return method(ctx, who, in)
	}
}

// Check returns raw in the form that [Tool.Call] takes, or the refusal
// invalid_arguments.
func (t *Tool) Check(raw json.RawMessage) (json.RawMessage, error) {
	if cutCharacter(raw) {
		return nil, fault.InvalidArguments.New("An argument holds half of a character: an escape of one half of a surrogate pair.").
			WithHint("Send whole characters; a text was probably cut in the middle of an emoji.")
	}
	arguments, problems := t.In.Read(raw)
	if len(problems) > 0 {
		return nil, fault.InvalidArguments.New(strings.Join(problems, "; ") + ".")
	}
	return arguments, nil
}

// Result is the output schema of a tool. Nothing in it is required, and error is
// part of it, because clients check the answers of failed calls against it too.
// A part that another tool describes in full is only named: each list has room
// for 64 KiB.
func Result(properties ...Field) *Schema {
	failed := Object("Failure: code, message, hint, retryable, id.")
	return Object("", append(properties, Opt("error", failed))...)
}

// Receipt is the output schema of a tool whose answers have an error of their own
// kind too: why what was asked for did not happen, though the call did not fail.
func Receipt(properties ...Field) *Schema {
	s := Result(properties...)
	s.Properties[len(s.Properties)-1].Schema.Description = "Alone: the call failed. Beside state: why. code, message, hint."
	return s
}

// Definition is the tool for the SDK.
func (t *Tool) Definition() *mcp.Tool {
	return &mcp.Tool{
		Meta: t.Meta,
		Name: t.Name, Title: t.Title, Description: t.Description,
		Annotations: &mcp.ToolAnnotations{
			Title: t.Title, ReadOnlyHint: t.ReadOnly, DestructiveHint: &t.Destructive,
			IdempotentHint: t.Idempotent, OpenWorldHint: &t.OpenWorld,
		},
		InputSchema:  json.RawMessage(Encode(t.In)),
		OutputSchema: json.RawMessage(Encode(t.Out)),
	}
}

// Surface is a hash over the definitions of tools, in the order that tools/list
// has. The owner compares it to learn whether clients must read the list again.
func Surface(tools []Tool) string {
	tools = slices.Clone(tools)
	slices.SortFunc(tools, func(a, b Tool) int { return strings.Compare(a.Name, b.Name) })
	h := sha256.New()
	for i := range tools {
		h.Write(Encode(tools[i].Definition()))
		h.Write([]byte{'\n'})
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}
