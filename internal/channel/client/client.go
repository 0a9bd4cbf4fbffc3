// Package client is an agent's side of the channel: it proves who the agent is
// and makes one request at a time.
//
// It owns the wait for a channel that is just coming up, the time limits, and the
// refusals that are made on this side. It promises that a request is sent at most
// once, that one which was certainly not sent is told apart from one whose outcome
// is not known, and that no error holds a text or a key. It leaves to its caller
// which requests change something, and to the channel what they do; it links
// nothing of the gateway.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"syscall"
	"time"

	"agentrelay/internal/channel/capability"
	"agentrelay/internal/fault"
)

const (
	// Timeout bounds a request, besides what it waits for.
	Timeout = 15 * time.Second
	// startWait is how long a channel may take to come up, and retryEvery how often
	// it is tried meanwhile.
	startWait  = 3 * time.Second
	retryEvery = 100 * time.Millisecond
	// maxAnswer is more than the longest page of a list.
	maxAnswer = 8 << 20
)

// The refusals of this side. In all but the last two nothing was sent.
var (
	NotReady = fault.Kind{Code: "channel_not_ready", Retryable: true,
		Hint: "Nothing was sent. Repeat the command with the same ids in a while; if it stays so, the owner sees with gateway status and gateway hosts check what is wrong."}
	NoCapability = fault.Kind{Code: "capability_not_found",
		Hint: "Nothing was sent. The owner gives an agent that was started by hand its capability with gateway agents adopt."}
	UnsafeCapability = fault.Kind{Code: "capability_unsafe",
		Hint: "Nothing was sent. The owner must make the state directory and what is in agent-channels private again (chmod -R go-rwx), or remove the agent's file and run gateway agents adopt."}
	ConnectDenied = fault.Kind{Code: "connect_denied",
		Hint: "Nothing was sent. This process may not use the channel's socket or the capability's file: ask for permission to run peer-agent outside of the sandbox, then repeat the command with the same ids."}
	NoAnswer = fault.Kind{Code: "no_answer", Retryable: true,
		Hint: "Nothing was changed: repeat the command."}
	OutcomeUnknown = fault.Kind{Code: fault.OutcomeUnknown.Code, Retryable: true,
		Hint: "It may have been done or not. Repeat the same command with the same ids and the same text: nothing is done twice, and the answer says what became of it."}
)

// Kinds lists the kinds of this package for docs/errors.md; outcome_unknown is
// shared with the tools.
func Kinds() []fault.Kind {
	return []fault.Kind{NotReady, NoCapability, UnsafeCapability, ConnectDenied, NoAnswer}
}

// Client makes the requests of one agent.
type Client struct {
	// StateDir has the socket and the capability. It must not be reached over a
	// link.
	StateDir string
	// AgentID is canonical.
	AgentID string
}

// Refused is a refusal of the gateway, with the id of its log line.
type Refused struct {
	Refusal *fault.Error
	ID      string
}

func (e *Refused) Error() string { return e.Refusal.Error() }

// Unwrap returns the refusal.
func (e *Refused) Unwrap() error { return e.Refusal }

// Request is one call of a route.
type Request struct {
	Route string
	// In becomes the JSON body of a POST; nil makes a GET.
	In any
	// Changes is set for what must not be done twice without a key.
	Changes bool
	// Wait is how long the gateway may hold the answer.
	Wait time.Duration
}

// Do makes a request and returns the answer's JSON object on one line. The error
// is a [*Refused] or a [*fault.Error] of this package, or a plain one when ctx has
// ended.
func (c *Client) Do(ctx context.Context, r Request) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, startWait+Timeout+r.Wait)
	defer cancel()
	start, stop := context.WithTimeout(ctx, startWait)
	defer stop()
	key, err := c.key(start)
	if err != nil {
		return nil, err
	}
	conn, err := c.connect(start)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(Timeout + r.Wait)); err != nil {
		return nil, fmt.Errorf("setting a deadline: %w", err)
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	answer, err := exchange(ctx, conn, c.AgentID, key, r)
	var unanswered *unansweredError
	if !errors.As(err, &unanswered) {
		return answer, err
	}
	if r.Changes {
		return nil, OutcomeUnknown.New("The request was sent, and no answer came: " + unanswered.why + ".")
	}
	return nil, NoAnswer.New("No answer came: " + unanswered.why + ".")
}

// key reads the agent's key, waiting for it to be issued.
func (c *Client) key(ctx context.Context) (string, error) {
	for {
		f, err := capability.Read(c.StateDir, c.AgentID)
		var unsafe *capability.UnsafeError
		switch {
		case err == nil:
			return f.Key, nil
		case errors.As(err, &unsafe):
			return "", UnsafeCapability.New("The agent's capability was not used: " + unsafe.Error() + ".")
		case errors.Is(err, capability.ErrMalformed):
			return "", UnsafeCapability.New("The agent's capability was not used: its file has another form.")
		case errors.Is(err, fs.ErrPermission):
			return "", ConnectDenied.New("The agent's capability can't be read.")
		case !errors.Is(err, fs.ErrNotExist):
			return "", UnsafeCapability.New("The agent's capability can't be read.")
		}
		if !pause(ctx) {
			return "", NoCapability.New("This agent has no capability on this machine.")
		}
	}
}

// connect opens the socket, waiting for it to be there.
func (c *Client) connect(ctx context.Context) (net.Conn, error) {
	path := filepath.Join(c.StateDir, capability.Socket)
	if len(path) > capability.MaxSocketPath {
		return nil, NotReady.Newf("The path of the channel's socket has %d bytes, more than the %d that a socket's may have: the owner must choose a shorter state directory.",
			len(path), capability.MaxSocketPath).WithHint("Nothing was sent, and repeating it does not help.")
	}
	var d net.Dialer
	for {
		conn, err := d.DialContext(ctx, "unix", path)
		switch {
		case err == nil:
			return conn, nil
		case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
			return nil, ConnectDenied.New("The channel's socket can't be used by this process.")
		case !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.EAGAIN) && ctx.Err() == nil:
			return nil, NotReady.New("The channel's socket can't be connected to.")
		}
		if !pause(ctx) {
			return nil, NotReady.Newf("The gateway was not reached within %d seconds.", int(startWait.Seconds()))
		}
	}
}

// pause waits a moment and reports whether there is time left.
func pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(retryEvery):
		return true
	}
}

// unansweredError is a request without a whole answer.
type unansweredError struct{ why string }

func (e *unansweredError) Error() string { return e.why }

// exchange sends a request over a connection of its own, once, and reads the
// answer.
func exchange(ctx context.Context, conn net.Conn, agentID, key string, r Request) (json.RawMessage, error) {
	method, body := http.MethodGet, []byte(nil)
	if r.In != nil {
		method = http.MethodPost
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(r.In); err != nil {
			return nil, fmt.Errorf("writing the arguments: %w", err)
		}
		body = b.Bytes()
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://channel/v1/"+r.Route, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("making the request: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Agent-Id", agentID)
	req.Header.Set("Content-Type", "application/json")
	used := false
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		if used { // a request is never sent again
			return nil, errors.New("the connection is used up")
		}
		used = true
		return conn, nil
	}}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, &unansweredError{why(err)}
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, &unansweredError{why(err)}
	}
	var refusal struct {
		Error *struct {
			Code, Message, Hint, ID string
			Retryable               bool
		}
	}
	if len(raw) > maxAnswer || json.Unmarshal(raw, &refusal) != nil {
		return nil, &unansweredError{"the answer was not one of the gateway"}
	}
	if resp.StatusCode == http.StatusOK {
		var line bytes.Buffer
		err := json.Compact(&line, raw)
		return line.Bytes(), err
	}
	e := refusal.Error
	if e == nil || e.Code == "" {
		return nil, &unansweredError{"the answer was not one of the gateway"}
	}
	return nil, &Refused{fault.Kind{Code: e.Code, Hint: e.Hint, Retryable: e.Retryable}.New(e.Message), e.ID}
}

// why says in words what cut an exchange off.
func why(err error) string {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("it took longer than %d seconds", int(Timeout.Seconds()))
	}
	return "the connection broke"
}
