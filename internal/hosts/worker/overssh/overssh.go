// Package overssh has a worker reached over SSH: it makes a host of package ssh
// the connection of package worker, and the command lines by which a login shell
// there runs the worker's program.
//
// It promises that a connection which is lost is told apart from a program that
// ended, and that the command lines mean the same to every login shell. It leaves
// everything else to those two packages.
package overssh

import (
	"context"
	"errors"

	"agentrelay/internal/hosts/ssh"
	"agentrelay/internal/hosts/worker"
)

// Links is the connection of a host.
func Links(h *ssh.Host) worker.Links { return links{h} }

// Command makes the command lines of a host with that state directory.
func Command(stateDir string) func(args ...string) string {
	return func(args ...string) string {
		return ssh.Shell(`program=$1; shift; exec "$program" "$@"`, append([]string{worker.Program(stateDir)}, args...)...)
	}
}

type links struct{ *ssh.Host }

func (l links) Link(ctx context.Context) (worker.Transport, error) {
	link, err := l.Host.Link(ctx)
	if err != nil {
		return nil, err
	}
	return transport{link}, nil
}

type transport struct{ *ssh.Link }

func (t transport) Exec(ctx context.Context, command string) (*worker.Process, error) {
	s, err := t.Link.Exec(ctx, command)
	if err != nil {
		return nil, err
	}
	wait := func() error {
		err := s.Wait()
		var exit *ssh.ExitError
		if errors.As(err, &exit) {
			return &worker.ExitError{Code: exit.Code, Cause: err}
		}
		return err
	}
	return &worker.Process{Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr, Wait: wait, Close: s.Close}, nil
}
