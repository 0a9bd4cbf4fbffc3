package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"syscall"
	"time"

	"agentrelay/internal/config"
	"agentrelay/internal/fault"
	"agentrelay/internal/store"
)

// startTime is how long a gateway may hold the lock before it answers: it is
// migrating, or ending.
const startTime = 3 * time.Second

// retryEvery is how often a socket is tried while the lock is held.
const retryEvery = 50 * time.Millisecond

// Conn runs commands in the running gateway or in this process. Close it.
type Conn struct {
	client *http.Client // over the socket; nil when local is set
	local  *Backend
	close  func() error
}

// Running reports whether the commands go to a running gateway.
func (c *Conn) Running() bool { return c.local == nil }

// Close lets go of the socket, or of the state lock.
func (c *Conn) Close() error { return c.close() }

// UnansweredError says that a gateway holds the state directory but does not
// answer on its socket.
type UnansweredError struct {
	*store.LockedError
}

func (e *UnansweredError) Error() string {
	holder := "another process"
	if e.PID > 0 {
		holder = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("%s holds the state directory %s but does not answer the owner's commands: if it is starting or stopping, try again; else end it and try again", holder, e.Dir)
}

// Unwrap makes the lock's holder known to [errors.As].
func (e *UnansweredError) Unwrap() error { return e.LockedError }

// Dial connects to the gateway that runs on stateDir. When there is none it
// calls open, which takes the state lock and returns a backend and how to close
// it; open must return the error of [store.Open] as it is or wrapped.
func Dial(ctx context.Context, stateDir string, open func(context.Context) (*Backend, func() error, error)) (*Conn, error) {
	deadline := time.Now().Add(startTime)
	for {
		conn, err := DialRunning(ctx, stateDir)
		if conn != nil || err != nil {
			return conn, err
		}
		b, closeBackend, err := open(ctx)
		if err == nil {
			return &Conn{local: b, close: closeBackend}, nil
		}
		var locked *store.LockedError
		if !errors.As(err, &locked) {
			return nil, err
		}
		if time.Now().After(deadline) {
			return nil, &UnansweredError{locked}
		}
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// DialRunning connects to the gateway that runs on stateDir. It returns nil
// when there is none.
func DialRunning(ctx context.Context, stateDir string) (*Conn, error) {
	path := filepath.Join(stateDir, config.AdminSocket)
	var d net.Dialer
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", path) }
	probe, err := dial(ctx, "", "")
	switch {
	case err == nil:
		probe.Close()
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOTDIR):
		return nil, nil
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return nil, fmt.Errorf("the owner's socket %s belongs to another user: run this as the user that runs the gateway", path)
	default:
		return nil, fmt.Errorf("connecting to the gateway: %w", err)
	}
	transport := &http.Transport{DialContext: dial}
	return &Conn{
		client: &http.Client{Transport: transport},
		close:  func() error { transport.CloseIdleConnections(); return nil },
	}, nil
}

// post sends one command to the running gateway.
func (c *Conn) post(ctx context.Context, name string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("writing the arguments: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://gateway/"+name, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("making the request: %w", err)
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := c.client.Do(r)
	if err != nil {
		return unanswered(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return unanswered(err)
	}
	if resp.StatusCode != http.StatusOK {
		var refusal struct{ Error wireError }
		if err := json.Unmarshal(raw, &refusal); err != nil || refusal.Error.Code == "" {
			return fmt.Errorf("the gateway answered with status %d", resp.StatusCode)
		}
		e := refusal.Error
		return fault.Kind{Code: e.Code, Hint: e.Hint, Retryable: e.Retryable}.New(e.Message)
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("the gateway's answer is not of this version, restart it: %w", err)
	}
	return nil
}

// unanswered is the error of a request without a whole answer. Only one that
// could not be sent was certainly not carried out.
func unanswered(err error) error {
	var request *url.Error // says no more than our own words
	if errors.As(err, &request) {
		err = request.Err
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return fmt.Errorf("the gateway has just stopped, nothing was done: run the command again: %w", err)
	}
	return fmt.Errorf(`no answer came from the gateway, so the command may have been done or not: "gateway status --audit 5" shows the last changes: %w`, err)
}
