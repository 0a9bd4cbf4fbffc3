package tool

import (
	"encoding/json"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrelay/internal/fault"
)

// Failure is a refusal as callers get it (tools.md, Failure).
type Failure struct {
	Code      string `json:"code"`
	Message   string `json:"message,omitempty"`
	Hint      string `json:"hint,omitempty"`
	Retryable bool   `json:"retryable"`
	ID        string `json:"id"` // stands in the log line of the request
}

// NewFailure is the form of a refusal with the id of its log line.
func NewFailure(e *fault.Error, id string) Failure {
	return Failure{e.Code, e.Message, e.Hint, e.Retryable, id}
}

// Envelope is the object of a failed call.
type Envelope struct {
	Error Failure `json:"error"`
}

// Linked is an answer that points to something beside its object.
type Linked interface {
	// Links are further content blocks.
	Links() []mcp.Content
}

// Answer is a tool's result: the object, and the same as text for clients that
// read no structured content.
func Answer(out any, failed bool) *mcp.CallToolResult {
	raw := Encode(out)
	content := []mcp.Content{&mcp.TextContent{Text: string(raw)}}
	if l, ok := out.(Linked); ok {
		content = append(content, l.Links()...)
	}
	return &mcp.CallToolResult{Content: content, StructuredContent: json.RawMessage(raw), IsError: failed}
}

// Encode is the JSON of a value of ours, without escapes for HTML. It panics for
// what has no JSON.
func Encode(v any) []byte {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return []byte(strings.TrimSuffix(b.String(), "\n"))
}

// Shown is a caller's text as it may be repeated in a refusal or a log: short,
// and nothing but printable ASCII without quotation marks.
func Shown(s string, most int) string {
	cut := len(s) > most
	if cut {
		s = s[:most]
	}
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' {
			return '?'
		}
		return r
	}, s)
	if cut {
		s += "..."
	}
	return s
}
