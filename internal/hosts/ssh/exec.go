package ssh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

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

	inner *xssh.Session
	l     *Link
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
func (l *Link) Exec(ctx context.Context, command string) (*Session, error) {
	return await(ctx, l, func() (*Session, error) {
		inner, err := l.client.NewSession()
		if err != nil {
			return nil, err
		}
		s := &Session{inner: inner, l: l}
		if s.Stdin, err = inner.StdinPipe(); err == nil {
			s.Stdout, err = inner.StdoutPipe()
		}
		if err == nil {
			s.Stderr, err = inner.StderrPipe()
		}
		if err == nil {
			if err = inner.Start(command); err != nil && !errors.Is(err, io.EOF) {
				err = errors.New("the host runs no commands for the gateway") // x/crypto's error has the command in it
			}
		}
		if err != nil {
			_ = inner.Close()
			return nil, err
		}
		return s, nil
	})
}

// Wait waits until the command has ended: nil for status 0, else an *[ExitError],
// or an error with [ErrLost]. It may be called once.
func (s *Session) Wait() error {
	err := s.inner.Wait()
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

// Close ends the session: the command's input ends and its output is dropped. The
// command itself is not killed by it. Closing twice is fine.
func (s *Session) Close() error {
	if err := s.inner.Close(); err != nil && !errors.Is(err, io.EOF) {
		return s.l.judge(err)
	}
	return nil
}

// Run runs a command as [Link.Exec] does, to its end or that of ctx, with stdin
// as its input. It returns at most maxOutput bytes of its output; more is an
// error. A status other than 0 is an *[ExitError].
func (l *Link) Run(ctx context.Context, command string, stdin []byte, maxOutput int) (stdout []byte, err error) {
	s, err := l.Exec(ctx, command)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
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
