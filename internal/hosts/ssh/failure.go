package ssh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"unicode"

	xssh "golang.org/x/crypto/ssh"

	"agentrelay/internal/hosts"
)

// failure is why a host can't be reached.
type failure struct {
	step   string // the step of a check that fails with it
	reason string // for callers: one sentence, without paths and users
	detail string // for the owner; "" is reason
	next   string // what the owner does about it
	cause  error  // for the log
	// final reports whether trying again is still not to be done; nil where it may
	// always be. It asks nobody but files of this machine.
	final func() bool
}

func (f *failure) Error() string {
	if f.cause != nil {
		return f.reason + " (" + f.cause.Error() + ")"
	}
	return f.reason
}

func (f *failure) Unwrap() error { return f.cause }

// fault is the failure as the owner is told it.
func (f *failure) fault() error {
	message := f.detail
	if message == "" {
		message = f.reason
	}
	refusal := hosts.Unavailable.New(plain(message)).Because(f.cause)
	if f.next != "" {
		refusal = refusal.WithHint(f.next)
	}
	return refusal
}

// asFailure is the failure in err's chain, or one of this step.
func asFailure(err error, step string) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	return &failure{step: step, reason: "The host can't be reached: " + err.Error() + ".", cause: err}
}

// unreached is why a machine did not take a connection.
func unreached(s *settings, err error) *failure {
	f := &failure{step: "name", cause: err, next: "Try: ssh " + s.alias}
	var dns *net.DNSError
	var refused *xssh.OpenChannelError
	var network net.Error
	switch {
	case errors.As(err, &refused):
		f.reason = fmt.Sprintf("The jump host before it can't connect to %s, port %d: %s.", s.host, s.port, strings.TrimRight(refused.Message, "."))
	case errors.As(err, &dns) && dns.IsNotFound:
		f.reason = fmt.Sprintf("No machine has the name %s.", s.host)
		f.next = "Correct the target in the config, or HostName in the ssh configuration."
	case errors.As(err, &dns):
		f.reason = fmt.Sprintf("The name service did not answer for %s.", s.host)
	case errors.Is(err, syscall.ECONNREFUSED):
		f.reason = fmt.Sprintf("%s refuses connections to port %d.", s.host, s.port)
		f.next = "See that sshd runs there and listens on this port."
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &network) && network.Timeout():
		f.reason = fmt.Sprintf("%s does not answer on port %d.", s.host, s.port)
		f.next = "See that the machine is on, and that the network between lets SSH through."
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		f.reason = fmt.Sprintf("There is no way to %s in the network.", s.host)
		f.next = "See that the machine is on, and that this one is in its network (a VPN?)."
	default:
		f.reason = fmt.Sprintf("Connecting to %s, port %d, failed.", s.host, s.port)
		f.detail = fmt.Sprintf("Connecting to %s, port %d, failed: %v.", s.host, s.port, err)
	}
	return f
}

// unspoken is why a machine that took the connection did not come to the login.
func unspoken(ctx context.Context, s *settings, err error) *failure {
	f := &failure{step: "key", cause: err, next: "Try: ssh -v " + s.alias}
	var mismatch *xssh.AlgorithmNegotiationError
	switch {
	case errors.As(err, &mismatch):
		f.reason = fmt.Sprintf("The gateway and %s have no SSH algorithm in common.", s.host)
		f.detail = strings.TrimSuffix(f.reason, ".") + ": " + mismatch.Error() + "."
		f.next = "Allow more with Ciphers, MACs, KexAlgorithms or HostKeyAlgorithms in the ssh configuration, or renew the sshd there."
	case ctx.Err() != nil:
		f.reason = fmt.Sprintf("%s took the connection and then did not answer.", s.host)
		f.next = "The machine may be overloaded, or what listens on port " + fmt.Sprint(s.port) + " is no SSH server."
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		f.reason = fmt.Sprintf("%s closed the connection before SSH had begun.", s.host)
		f.next = "sshd there may have too many connections (MaxStartups) or shut this machine out (fail2ban, hosts.deny); its log says it."
	default:
		f.reason = fmt.Sprintf("%s and the gateway could not agree on a connection.", s.host)
		f.detail = strings.TrimSuffix(f.reason, ".") + ": " + err.Error() + "."
	}
	return f
}

// tail keeps the end of what a program says.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailBytes = 4096

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	t.b = t.b[max(0, len(t.b)-tailBytes):]
	return len(p), nil
}

// line is the last line that says something.
func (t *tail) line() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.b)), "\n")
	return plain(lines[len(lines)-1])
}

// plain is what somebody else said, fit to be shown: without control characters,
// at most 1000 bytes.
func plain(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, s)
	return strings.ToValidUTF8(s[:min(len(s), 1000)], "")
}
