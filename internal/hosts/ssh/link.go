package ssh

import (
	"context"
	"fmt"
	"io"
	"net"

	"github.com/pkg/sftp"
)

// Link is one connection to a host, from its login to its loss. Everything on it
// ends with it, with [ErrLost].
type Link struct{}

// Session is one command that runs on the host. The caller reads both Stdout and
// Stderr to their end, or closes the session: what is not read blocks the
// command once a few megabytes wait.
type Session struct {
	// Stdin is the command's input; Close is its end.
	Stdin io.WriteCloser
	// Stdout and Stderr end when the command does, or the link.
	Stdout, Stderr io.Reader
}

// ExitError is a command that ended otherwise than with status 0.
type ExitError struct {
	// Code is the exit status; -1 when a signal ended the command or the host said
	// none.
	Code int
	// Signal is the signal's name without SIG, "" for none.
	Signal string
	// Stderr is the end of what [Link.Run] read there, for the log.
	Stderr string
}

// Error is for logs.
func (e *ExitError) Error() string {
	s := fmt.Sprintf("the command ended with status %d", e.Code)
	if e.Signal != "" {
		s = "the command was ended by signal " + e.Signal
	}
	if e.Stderr != "" {
		s += ": " + e.Stderr
	}
	return s
}

// Exec starts a command. It is given to the user's login shell there, whichever
// that is: build it with [Shell]. ctx bounds the start, not the command, which
// goes on until it ends, the session is closed or the link is lost.
func (l *Link) Exec(ctx context.Context, command string) (*Session, error) { return nil, ErrLost }

// Wait waits until the command has ended: nil for status 0, else an *[ExitError],
// or an error with [ErrLost].
func (s *Session) Wait() error { return ErrLost }

// Close ends the session: the command's input ends and its output is dropped. The
// command itself is not killed by it. Closing twice is fine.
func (s *Session) Close() error { return nil }

// Run runs a command as [Link.Exec] does, to its end or that of ctx, with stdin
// as its input. It returns at most maxOutput bytes of its output; more is an
// error. A status other than 0 is an *[ExitError].
func (l *Link) Run(ctx context.Context, command string, stdin []byte, maxOutput int) (stdout []byte, err error) {
	return nil, ErrLost
}

// Dial connects to an address on the host, seen from there: network is "tcp" or
// "unix". The connection has deadlines, unlike a bare SSH channel.
func (l *Link) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return nil, ErrLost
}

// ListenUnix has the host listen on a unix socket and hands its connections to
// the listener, whose Accept must go on being called. The path must be absolute,
// in a private directory, and not exist: sshd neither replaces nor removes it, so
// the caller takes a fresh name for each link and sweeps the old. sshd gives it
// mode 0600. That a server refuses, which it does without a reason, is said with
// the likely reasons.
func (l *Link) ListenUnix(ctx context.Context, path string) (net.Listener, error) {
	return nil, ErrLost
}

// SFTP starts the host's file service on a channel of its own; the caller closes
// the client. A host may have none, which is an error.
func (l *Link) SFTP() (*sftp.Client, error) { return nil, ErrLost }

// Done is closed when the link is lost or closed.
func (l *Link) Done() <-chan struct{} { return nil }

// Err is why the link is gone, with [ErrLost] in its chain; nil while it is live.
func (l *Link) Err() error { return nil }

// Generation counts the links of a host, from 1: another number is another
// connection.
func (l *Link) Generation() uint64 { return 0 }

// HostKey is the SHA256: fingerprint of the key with which the host proved
// itself.
func (l *Link) HostKey() string { return "" }
