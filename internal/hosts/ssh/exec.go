package ssh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	xssh "golang.org/x/crypto/ssh"
)

// Session is one command that runs on the host. The caller reads both Stdout and
// Stderr to their end, or closes the session: what is not read blocks the
// command once a few megabytes wait.
type Session struct {
	// Stdin is the command's input; Close is its end.
	Stdin io.WriteCloser
	// Stdout and Stderr end when the command does, or the link.
	Stdout, Stderr io.Reader

	inner       *xssh.Session
	l           *Link
	out, errOut *reader
	ended       chan error // gets how it ended
	closed      chan struct{}
	close       func() // on this side
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
// goes on until it ends, the session is closed or the link is lost. sshd has ten
// sessions a connection (MaxSessions): where there are no more, Exec waits for
// another to end.
func (l *Link) Exec(ctx context.Context, command string) (*Session, error) {
	return l.open(ctx, func(inner *xssh.Session) error { return inner.Start(command) })
}

// retryRefused is how long a refused session waits, when none ends before.
const retryRefused = 200 * time.Millisecond

// open starts a session.
func (l *Link) open(ctx context.Context, start func(*xssh.Session) error) (*Session, error) {
	for {
		ended := l.sessions.ended()
		s, err := await(ctx, l, func() (*Session, error) { return l.openOnce(start) })
		var refused *xssh.OpenChannelError
		if ended == nil || !errors.As(err, &refused) {
			return s, err
		}
		select {
		case <-ended:
		case <-time.After(retryRefused): // its end here may be before its end there
		case <-ctx.Done():
			return nil, fmt.Errorf("the host has no session left for the gateway (MaxSessions in its sshd_config): %w", ctx.Err())
		case <-l.done:
		}
	}
}

func (l *Link) openOnce(start func(*xssh.Session) error) (*Session, error) {
	inner, err := l.client.NewSession()
	if err != nil {
		return nil, err
	}
	// The pipes of a session that was not started can't fail.
	stdin, _ := inner.StdinPipe()
	stdout, _ := inner.StdoutPipe()
	stderr, _ := inner.StderrPipe()
	if err := start(inner); err != nil {
		_ = inner.Close()
		if errors.Is(err, io.EOF) {
			return nil, err
		}
		return nil, errors.New("the host does not run this for the gateway") // x/crypto's error has the command in it
	}
	s := &Session{Stdin: stdin, inner: inner, l: l, out: newReader(stdout), errOut: newReader(stderr), ended: make(chan error, 1), closed: make(chan struct{})}
	s.Stdout, s.Stderr = s.out, s.errOut
	s.close = sync.OnceFunc(func() {
		close(s.closed)
		s.out.close()
		s.errOut.close()
	})
	l.sessions.begin()
	go func() {
		s.ended <- inner.Wait()
		l.sessions.end()
	}()
	return s, nil
}

// sessions counts those that are open on a link.
type sessions struct {
	mu   sync.Mutex
	open int
	next chan struct{} // closed when one ends; nil while nobody waits
}

func (s *sessions) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open++
}

func (s *sessions) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	if s.next != nil {
		close(s.next)
		s.next = nil
	}
}

// ended is closed when the next of them ends; nil when there are none.
func (s *sessions) ended() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == 0 {
		return nil
	}
	if s.next == nil {
		s.next = make(chan struct{})
	}
	return s.next
}

// Wait waits until the command has ended: nil for status 0, else an *[ExitError],
// or an error with [ErrLost]; net.ErrClosed after Close. It may be called once.
func (s *Session) Wait() error {
	select {
	case err := <-s.ended:
		return s.judge(err)
	case <-s.closed:
		return net.ErrClosed
	}
}

// judge says how a command ended.
func (s *Session) judge(err error) error {
	var exit *xssh.ExitError
	var missing *xssh.ExitMissingError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &exit):
		code := exit.ExitStatus()
		if exit.Signal() != "" {
			code = -1
		}
		return &ExitError{Code: code, Signal: exit.Signal()}
	case errors.As(err, &missing):
		// The channel ended without a word: either it alone, or with its link.
		select {
		case <-s.l.done:
			return s.l.Err()
		case <-s.l.ping():
			return &ExitError{Code: -1}
		}
	}
	return s.l.judge(err)
}

// Close ends the session: the command's input ends, its output is dropped, and
// reads and Wait end with net.ErrClosed. The command itself is not killed by it.
// Closing twice is fine.
func (s *Session) Close() error {
	s.close()
	go func() { _ = s.inner.Close() }() // a link that is stuck takes its time
	return nil
}

// Run runs a command as [Link.Exec] does, to its end or that of ctx, with stdin
// as its input. It returns at most maxOutput bytes of its output; more is an
// error. A status other than 0 is an *[ExitError]. A command that outlives ctx, or
// prints too much, is killed, where sshd lets the gateway (it does since OpenSSH
// 7.9, unless a ForceCommand is set).
func (l *Link) Run(ctx context.Context, command string, stdin []byte, maxOutput int) (stdout []byte, err error) {
	s, err := l.Exec(ctx, command)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	defer context.AfterFunc(ctx, s.kill)()
	go func() {
		_, _ = s.Stdin.Write(stdin) // a command need not read it
		_ = s.Stdin.Close()
	}()
	var stderr tail
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(&stderr, s.Stderr)
	}()
	var out bytes.Buffer
	if n, _ := io.Copy(&out, io.LimitReader(s.Stdout, int64(maxOutput)+1)); n > int64(maxOutput) {
		s.kill()
		return nil, fmt.Errorf("the command printed more than %d bytes", maxOutput)
	}
	<-drained
	err = s.Wait()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	var exit *ExitError
	if errors.As(err, &exit) {
		exit.Stderr = stderr.line()
	}
	return out.Bytes(), err
}

// kill ends the command, if it can be, and the session.
func (s *Session) kill() {
	s.close()
	go func() {
		_ = s.inner.Signal(xssh.SIGKILL)
		_ = s.inner.Close()
	}()
}

// begin is printed before the output of a script, behind whatever the login shell
// prints of its own.
const begin = "--agent-relay-output--"

// noise is how much a login shell may print of its own.
const noise = 64 << 10

// Script runs a script by /bin/sh, args as $1 and so on, and returns what it
// prints, without what the login shell prints when it starts (banners, fortunes).
// All else is as in [Link.Run].
func (l *Link) Script(ctx context.Context, script string, args []string, stdin []byte, maxOutput int) (stdout []byte, err error) {
	_, stdout, err = l.script(ctx, script, args, stdin, maxOutput)
	return stdout, err
}

func (l *Link) script(ctx context.Context, script string, args []string, stdin []byte, maxOutput int) (banner, stdout []byte, err error) {
	out, err := l.Run(ctx, Shell(`printf '\n%s\n' `+begin+"; "+script, args...), stdin, maxOutput+noise)
	banner, stdout, found := bytes.Cut(out, []byte("\n"+begin+"\n"))
	if !found && err == nil {
		return banner, nil, errors.New("the login shell did not run /bin/sh")
	}
	if err == nil && len(stdout) > maxOutput {
		return nil, nil, fmt.Errorf("the command printed more than %d bytes", maxOutput)
	}
	return banner, stdout, err
}
