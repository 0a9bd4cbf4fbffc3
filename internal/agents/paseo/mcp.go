package paseo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
)

// What the websocket lacks is asked over the daemon's MCP endpoint: profiles,
// provider inspection and the curated activity text. All of it only reads. It is
// spoken by hand rather than with an MCP client library, because daemons differ
// from the protocol just where a library insists on it: up to 0.1.x there are
// sessions, and a lost one is answered with 400 in place of 404; from 0.5 there
// are none, and calls need no initialize.

const (
	// mcpBody is what the daemon takes at most in one request: 100 KB.
	mcpBody = 100 << 10
	// mcpAnswer bounds what is read of an answer.
	mcpAnswer = 16 << 20
)

type mcpEndpoint struct {
	client   *http.Client
	password func() (string, error)

	mu      sync.Mutex
	session string // "" until a daemon wants one
}

func (m *mcpEndpoint) configure(o Options) {
	m.password = o.Password
	m.client = &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DisableKeepAlives: true, // such calls are rare, and a kept connection is one more to lose
			DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dialThrough(ctx, o.Dial) },
		},
	}
}

// callMCP calls a tool and returns its structured content.
func (c *Client) callMCP(ctx context.Context, tool string, arguments fields) (json.RawMessage, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.o.CallTimeout)
		defer cancel()
	}
	cn, err := c.ready(ctx) // so that another daemon than the pinned one is sent nothing
	if err != nil {
		return nil, err
	}
	kept := fields{}
	for key, value := range arguments {
		if !dropped(key, value) {
			kept[key] = value
		}
	}
	result, err := c.mcp.call(ctx, tool, kept)
	var no *Rejected
	if errors.As(err, &no) && strings.Contains(no.Message, "Tool "+tool+" not found") {
		return nil, &Unsupported{Feature: tool, Version: cn.info.Version}
	}
	return result, err
}

// call makes a tools/call, in a new session if the daemon asks for one.
func (m *mcpEndpoint) call(ctx context.Context, tool string, arguments fields) (json.RawMessage, error) {
	body, err := json.Marshal(fields{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": fields{"name": tool, "arguments": arguments}})
	if err != nil {
		return nil, refuse("The request can't be written as JSON.")
	}
	if len(body) > mcpBody {
		return nil, &NotSent{Reason: "The request is larger than the 100 KB the daemon takes here."}
	}
	m.mu.Lock()
	session := m.session
	m.mu.Unlock()
	for fresh := false; ; fresh = true {
		reply, err := m.post(ctx, body, session)
		if err != nil {
			return nil, err
		}
		if !reply.wantsSession || fresh {
			return reply.result()
		}
		if session, err = m.initialize(ctx); err != nil {
			return nil, err
		}
	}
}

// initialize opens a session and keeps its id.
func (m *mcpEndpoint) initialize(ctx context.Context) (string, error) {
	body := []byte(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"agent-relay","version":"1"}}}`)
	reply, err := m.post(ctx, body, "")
	if err != nil {
		return "", err
	}
	if reply.session == "" {
		return "", unreadable("MCP session")
	}
	if _, err := m.post(ctx, []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`), reply.session); err != nil {
		return "", err
	}
	m.mu.Lock()
	m.session = reply.session
	m.mu.Unlock()
	return reply.session, nil
}

// mcpReply is what one POST brought.
type mcpReply struct {
	status       int
	session      string // as a header of the answer
	wantsSession bool
	body         []byte // the JSON-RPC answer
}

func (m *mcpEndpoint) post(ctx context.Context, body []byte, session string) (mcpReply, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost:6767/mcp/agents", bytes.NewReader(body))
	if err != nil {
		return mcpReply{}, refuse("The request can't be made.")
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if session != "" {
		r.Header.Set("Mcp-Session-Id", session)
	}
	if m.password != nil {
		password, err := m.password()
		if err != nil {
			return mcpReply{}, &NotSent{Code: PasswordUnusable, Reason: "The daemon's password can't be read from where the config says it is.", cause: err}
		}
		if password != "" {
			r.Header.Set("Authorization", "Bearer "+password)
		}
	}
	resp, err := m.client.Do(r)
	if errors.Is(err, errDial) {
		return mcpReply{}, &NotSent{Code: Unreachable, Reason: unreachable(err), cause: err}
	}
	if err != nil {
		return mcpReply{}, &Lost{Reason: "The connection to the daemon broke before it answered.", cause: err}
	}
	defer resp.Body.Close()
	return readReply(resp)
}

// readReply reads an answer and sorts out what is no JSON-RPC.
func readReply(resp *http.Response) (mcpReply, error) {
	data, err := io.ReadAll(io.LimitReader(resp.Body, mcpAnswer+1))
	if err != nil {
		return mcpReply{}, &Lost{Reason: "The connection to the daemon broke before it answered.", cause: err}
	}
	if len(data) > mcpAnswer {
		return mcpReply{}, &Lost{Reason: "The daemon's answer is larger than 16 MiB."}
	}
	reply := mcpReply{status: resp.StatusCode, session: resp.Header.Get("Mcp-Session-Id"), body: data}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		reply.body = firstAnswer(data)
	}
	switch {
	case resp.StatusCode == http.StatusUnauthorized:
		return mcpReply{}, &Rejected{Message: "The daemon refused the configured password.", Code: string(PasswordWrong)}
	case resp.StatusCode == http.StatusRequestEntityTooLarge:
		return mcpReply{}, &Rejected{Message: "The request is larger than the daemon takes here.", Code: CodeTooLarge}
	case resp.StatusCode == http.StatusNotFound:
		return mcpReply{}, &Rejected{Message: "The daemon's MCP endpoint is switched off.", Code: "mcp_disabled"}
	case resp.StatusCode == http.StatusBadRequest:
		// Any 400 may mean that the session is gone: with or without one, the request
		// has not been carried out.
		reply.wantsSession = true
	case resp.StatusCode/100 != 2:
		return mcpReply{}, &Rejected{Message: "The daemon refused the request with HTTP " + resp.Status + ".", Code: "http_error"}
	}
	return reply, nil
}

// firstAnswer finds the first complete event of a stream that is an answer.
func firstAnswer(stream []byte) []byte {
	lines := bufio.NewScanner(bytes.NewReader(stream))
	lines.Buffer(nil, mcpAnswer+1)
	var data []byte
	for lines.Scan() {
		line := lines.Bytes() // Scan drops a final \r
		if part, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			data = append(data, bytes.TrimPrefix(part, []byte(" "))...)
			data = append(data, '\n')
			continue
		}
		if len(line) > 0 {
			continue
		}
		var answer struct {
			Result json.RawMessage `json:"result"`
			Error  json.RawMessage `json:"error"`
		}
		if json.Unmarshal(data, &answer) == nil && (answer.Result != nil || answer.Error != nil) {
			return data
		}
		data = data[:0]
	}
	return nil
}

// result reads a tool's answer. Its text is not read where there is structured
// content: from 0.5 it is a copy, before it is empty.
func (r mcpReply) result() (json.RawMessage, error) {
	var w struct {
		Result *struct {
			Structured json.RawMessage `json:"structuredContent"`
			IsError    bool            `json:"isError"`
			Content    []struct {
				Text text `json:"text"`
			} `json:"content"`
		} `json:"result"`
		Error *struct {
			Message text `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(r.body, &w) != nil {
		return nil, unreadable("MCP answer")
	}
	switch {
	case w.Error != nil && strings.Contains(string(w.Error.Message), "Invalid structured content"):
		// The daemon did the work and then refused its own answer.
		return nil, &Lost{Reason: "The daemon could not write its answer; a newer version of it can."}
	case w.Error != nil:
		return nil, rejected(string(w.Error.Message), "")
	case w.Result == nil:
		return nil, unreadable("MCP answer")
	case w.Result.IsError:
		message := "The daemon's tool failed."
		if len(w.Result.Content) > 0 {
			message = string(w.Result.Content[0].Text)
		}
		return nil, rejected(message, "")
	case len(w.Result.Structured) == 0 || string(w.Result.Structured) == "null":
		return nil, unreadable("MCP answer")
	}
	return w.Result.Structured, nil
}
