package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Session calls the tools of a gateway with one access token.
type Session struct{ session *mcp.ClientSession }

// ToolError is a refusal of a tool.
type ToolError struct {
	Code      string `json:"code"`
	Message   string `json:"message"`
	Hint      string `json:"hint,omitempty"`
	Retryable bool   `json:"retryable"`
	ID        string `json:"id"`
}

func (e *ToolError) Error() string { return e.Code + ": " + e.Message }

// Connect opens a session. The SDK negotiates the newest protocol version that
// both sides know.
func (s *Server) Connect(ctx context.Context, name, accessToken string) (*Session, error) {
	h := *s.http
	h.Transport = bearer{token: accessToken, next: s.http.Transport}
	c := mcp.NewClient(&mcp.Implementation{Name: name, Version: "1"}, nil)
	session, err := c.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: s.MCPURL, HTTPClient: &h, DisableStandaloneSSE: true}, nil)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", s.MCPURL, err)
	}
	return &Session{session}, nil
}

// Close ends the session.
func (s *Session) Close() error { return s.session.Close() }

// Tools returns the names of the gateway's tools.
func (s *Session) Tools(ctx context.Context) ([]string, error) {
	var names []string
	for t, err := range s.session.Tools(ctx, nil) {
		if err != nil {
			return nil, fmt.Errorf("listing the tools: %w", err)
		}
		names = append(names, t.Name)
	}
	return names, nil
}

// Call calls a tool and decodes its answer into out, unless out is nil. A
// refusal is a [*ToolError].
func (s *Session) Call(ctx context.Context, tool string, arguments, out any) error {
	res, err := s.session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		return fmt.Errorf("calling %s: %w", tool, err)
	}
	raw, err := json.Marshal(res.StructuredContent)
	if err != nil {
		return fmt.Errorf("reading the answer of %s: %w", tool, err)
	}
	if res.IsError {
		refusal := struct{ Error *ToolError }{&ToolError{Code: "unreadable", Message: "the refusal has no structured content"}}
		if err := json.Unmarshal(raw, &refusal); err != nil {
			return fmt.Errorf("reading the refusal of %s: %w", tool, err)
		}
		return refusal.Error
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("reading the answer of %s: %w", tool, err)
	}
	return nil
}

// bearer adds the token to each request.
type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	next := b.next
	if next == nil {
		next = http.DefaultTransport
	}
	return next.RoundTrip(r)
}
