// Package worker reaches the Direct workspace of another machine: it is the
// gateway's client of the worker there, and makes an SSH host a [hosts.Host].
//
// It promises that a worker is started when it is first needed and kept, that any
// number of calls share it, that refusals arrive as they were made, and that a
// call ends as what it asked for really ended. When the connection is lost, what
// only reads is refused at once with [hosts.Unavailable]; a change is asked
// about, by an id of its own, as soon as the host answers again, and answers what
// became of it, or [hosts.OutcomeUnknown] when that takes longer than the call
// may. Nothing is sent a second time: asking settles, so that a change which was
// still under way on the lost connection is refused when it arrives.
//
// It leaves to others the connection (package ssh), the worker (package server),
// what they say to each other (package wire), receipts of transfers, and the
// record of who did what.
package worker

import (
	"context"
	"io"
	"log/slog"
	"path"
	"time"

	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/worker/wire"
)

// Links is the connection to a host, kept by somebody else.
type Links interface {
	// Link is the live connection; it may wait within ctx for one that is being
	// made. The refusal is [hosts.Unavailable].
	Link(ctx context.Context) (Transport, error)
	// Status is what is known of the connection. It never waits.
	Status() hosts.Status
}

// Transport is one live connection.
type Transport interface {
	// Exec starts a command of the login shell. ctx bounds the start alone.
	Exec(ctx context.Context, command string) (*Process, error)
	// Done is closed when the connection is lost.
	Done() <-chan struct{}
}

// Process is a command on the host.
type Process struct {
	Stdin          io.WriteCloser
	Stdout, Stderr io.Reader
	// Wait waits for its end; an *[ExitError] says that it was not status 0.
	Wait func() error
	// Close drops it. Reading and writing end then.
	Close func() error
}

// ExitError is a process that ended otherwise than with status 0.
type ExitError struct {
	Code  int // -1 when a signal ended it, or nobody said
	Cause error
}

// Error is for logs.
func (e *ExitError) Error() string { return e.Cause.Error() }

// Unwrap returns the cause.
func (e *ExitError) Unwrap() error { return e.Cause }

// Program is where the worker's program lies below a state directory.
func Program(stateDir string) string { return path.Join(stateDir, "bin", "peer-agent") }

// Options says which host a [Client] is for. ID, Name, Links, StateDir and Command
// are required.
type Options struct {
	ID, Name string
	Links    Links
	// StateDir is the remoteStateDir of the config.
	StateDir string
	// Settings is what the worker works by. Its HostID is ID.
	Settings wire.Settings
	// Command makes the command line that runs the program there with arguments:
	// see package overssh.
	Command func(args ...string) string
	// Version is that of this program; "" asks the Go tool.
	Version string
	// StartTimeout bounds the start of a worker, which may have to wait for an
	// older one to end; 0 is 50 s.
	StartTimeout time.Duration
	// SettleTimeout is how long a change whose connection was lost waits for the
	// host, unless its context ends first; 0 is 30 s.
	SettleTimeout time.Duration
	Now           func() time.Time // nil is time.Now
	Log           *slog.Logger     // nil discards

	protocol           int // tests speak another one
	stallTimeout       time.Duration
	minDelay, maxDelay time.Duration
}

// WithSettled returns a context for one change. When the change ends before it is
// known what became of it (with [hosts.OutcomeUnknown], or because ctx ended),
// settled is called once as soon as that is known: err is nil, or the refusal
// with which it was not made. It is not called when this process ends first.
func WithSettled(ctx context.Context, settled func(out any, err error)) context.Context {
	return context.WithValue(ctx, settledKey{}, settled)
}

type settledKey struct{}
