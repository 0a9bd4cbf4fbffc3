package ssh_test

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/ssh"
)

func isUnavailable(err error) bool { return errors.Is(err, hosts.Unavailable) }

func isLost(err error) bool { return errors.Is(err, ssh.ErrLost) }

// serveEcho sends back what comes, on every connection.
func serveEcho(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}()
	}
}

// talk proves that a connection carries bytes, ends, and keeps deadlines.
func talk(t *testing.T, dial func() (net.Conn, error)) {
	t.Helper()
	c, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b := make([]byte, 5)
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	var timed net.Error
	if _, err := c.Read(b); !errors.As(err, &timed) || !timed.Timeout() {
		t.Fatalf("a read past its deadline: %v", err)
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "hello" {
		t.Fatalf("read %q, %v", b, err)
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(b); n != 0 || err != io.EOF {
		t.Fatalf("read %d bytes, %v at the end", n, err)
	}
}

// linkOnce waits for a link, over attempts that fail.
func linkOnce(t *testing.T, h *ssh.Host) *ssh.Link {
	t.Helper()
	until(t, h, "up", state(hosts.Up))
	return link(t, h)
}
