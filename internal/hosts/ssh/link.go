package ssh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/pkg/sftp"
	xssh "golang.org/x/crypto/ssh"
)

// Link is one connection to a host, from its login to its loss. Everything on it
// ends with it, with [ErrLost].
type Link struct {
	passage    *passage
	client     *xssh.Client // to the host itself
	hostID     string
	generation uint64
	reason     string // why it is gone, in one sentence; set before done is closed
	done       chan struct{}
	ended      chan struct{} // closed when all connections are
	gone       sync.Once
	sessions   sessions
}

func newLink(p *passage, hostID string, generation uint64) *Link {
	l := &Link{passage: p, client: p.clients[len(p.clients)-1], hostID: hostID, generation: generation, done: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(l.ended)
		err := l.client.Wait()
		reason := "The connection to the host was lost."
		if errors.Is(err, io.EOF) {
			reason = "The host closed the connection."
		}
		l.finish(reason)
		p.close()
	}()
	return l
}

// finish makes the reason known, once.
func (l *Link) finish(reason string) {
	l.gone.Do(func() {
		l.reason = reason
		close(l.done)
	})
}

// drop gives the link up, for a reason.
func (l *Link) drop(reason string) {
	l.finish(reason)
	l.passage.close()
}

// Done is closed when the link is lost or closed.
func (l *Link) Done() <-chan struct{} { return l.done }

// Err is why the link is gone, with [ErrLost] in its chain; nil while it is live.
func (l *Link) Err() error {
	select {
	case <-l.done:
		return fmt.Errorf("host %s: %w: %s", l.hostID, ErrLost, l.reason)
	default:
		return nil
	}
}

// Generation counts the links of a host, from 1: another number is another
// connection.
func (l *Link) Generation() uint64 { return l.generation }

// HostKey is the SHA256: fingerprint of the key with which the host proved
// itself.
func (l *Link) HostKey() string { return xssh.FingerprintSHA256(l.passage.at.offered) }

// judge tells a refusal of the host from the loss of the link.
func (l *Link) judge(err error) error {
	var refused *xssh.OpenChannelError
	if err == nil || errors.As(err, &refused) {
		return err
	}
	if lost := l.Err(); lost != nil {
		return lost
	}
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("host %s: %w", l.hostID, ErrLost)
	}
	return err
}

// await starts something on a link, at most as long as ctx. What comes too late is
// closed.
func await[T io.Closer](ctx context.Context, l *Link, start func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	var none T
	if err := l.Err(); err != nil {
		return none, err
	}
	c := make(chan result, 1)
	go func() {
		v, err := start()
		c <- result{v, err}
	}()
	select {
	case r := <-c:
		return r.v, l.judge(r.err)
	case <-ctx.Done():
		go func() {
			if r := <-c; r.err == nil {
				_ = r.v.Close()
			}
		}()
		return none, ctx.Err()
	}
}

// Dial connects to an address on the host, seen from there: network is "tcp" or
// "unix". The connection has deadlines, unlike a bare SSH channel.
func (l *Link) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return await(ctx, l, func() (net.Conn, error) {
		c, err := l.client.Dial(network, address)
		if err != nil {
			return nil, err
		}
		return withDeadlines(c), nil
	})
}

// ListenUnix has the host listen on a unix socket and hands its connections to
// the listener, which must be closed. Those that are not accepted in time do not
// hold up the link: some wait, and the others are closed. The path must be
// absolute, in a private directory, and not exist: sshd neither replaces nor
// removes it, so the caller takes a fresh name for each link and sweeps the old.
// sshd gives it mode 0600. That a server refuses, which it does without a reason,
// is said with the likely reasons.
func (l *Link) ListenUnix(ctx context.Context, path string) (net.Listener, error) {
	return await(ctx, l, func() (net.Listener, error) {
		inner, err := l.client.ListenUnix(path)
		if err != nil && strings.Contains(err.Error(), "denied by peer") {
			return nil, errors.New("the host does not listen on a unix socket for the gateway: its sshd_config has AllowStreamLocalForwarding no or DisableForwarding, or the socket exists, or its directory does not")
		}
		if err != nil {
			return nil, err
		}
		n := &listener{Listener: inner, l: l, waiting: make(chan net.Conn, maxWaiting)}
		go n.take()
		return n, nil
	})
}

// maxWaiting is how many connections of a listener wait to be accepted.
const maxWaiting = 64

// listener is a socket of the host.
type listener struct {
	net.Listener
	l       *Link
	waiting chan net.Conn // closed at the end
}

// take takes the connections as they come: the whole link would wait for the one
// that nobody takes.
func (n *listener) take() {
	for {
		inner, err := n.Listener.Accept()
		if err != nil {
			break
		}
		c := withDeadlines(inner)
		select {
		case n.waiting <- c:
		default:
			_ = c.Close()
		}
	}
	close(n.waiting)
	for c := range n.waiting {
		_ = c.Close()
	}
}

// Accept returns the next connection; net.ErrClosed after Close, ErrLost after the
// loss of the link.
func (n *listener) Accept() (net.Conn, error) {
	if c, ok := <-n.waiting; ok {
		return c, nil
	}
	if lost := n.l.Err(); lost != nil {
		return nil, lost
	}
	return nil, net.ErrClosed
}

// Close ends Accept at once. The host is told, but not waited for long.
func (n *listener) Close() error {
	told := make(chan struct{})
	go func() {
		defer close(told)
		_ = n.Listener.Close() // the host forgets it with the link, if not now
	}()
	select {
	case <-told:
	case <-n.l.done:
	case <-time.After(time.Second):
	}
	return nil
}

// SFTP starts the host's file service on a session of its own; the caller closes
// the client. A host may have none, which is an error.
func (l *Link) SFTP() (*sftp.Client, error) {
	ctx, cancel := context.WithTimeout(context.Background(), sftpTimeout)
	defer cancel()
	s, err := l.open(ctx, func(inner *xssh.Session) error { return inner.RequestSubsystem("sftp") })
	if err != nil {
		return nil, fmt.Errorf("the host's file service (sftp): %w", err)
	}
	go func() { _, _ = io.Copy(io.Discard, s.Stderr) }()
	defer context.AfterFunc(ctx, s.close)()
	c, err := sftp.NewClientPipe(s.Stdout, sessionInput{s}, sftp.UseConcurrentWrites(true))
	if err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("the host's file service (sftp): %w", l.judge(err))
	}
	return c, nil
}

// sftpTimeout bounds the start of the file service.
const sftpTimeout = 30 * time.Second

// sessionInput is the input of a session that ends with it.
type sessionInput struct{ s *Session }

func (i sessionInput) Write(p []byte) (int, error) { return i.s.Stdin.Write(p) }

// Close ends the session.
func (i sessionInput) Close() error { return i.s.Close() }
