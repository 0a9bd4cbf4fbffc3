package ssh

import (
	"net"
	"os"
	"sync"
	"time"
)

// conn gives a channel deadlines. SSH channels have none, and HTTP servers and
// websockets rely on them: a read that is broken off must leave the connection
// usable, and lose nothing.
type conn struct {
	net.Conn

	mu      sync.Mutex
	cond    chan struct{} // closed when anything below changes
	space   []byte        // what buf lies in
	buf     []byte        // what came, not read yet
	err     error         // what ended reading
	pending bool          // the reader is at it
	readBy  time.Time
	writeBy time.Time
	closed  bool
}

const readSize = 32 << 10

func withDeadlines(inner net.Conn) *conn {
	return &conn{Conn: inner, cond: make(chan struct{})}
}

// changed wakes whoever waits. c.mu is held.
func (c *conn) changed() {
	close(c.cond)
	c.cond = make(chan struct{})
}

// Read waits for data, the end or the deadline.
func (c *conn) Read(p []byte) (int, error) {
	for {
		c.mu.Lock()
		by, wait := c.readBy, c.cond
		switch {
		case c.closed:
			c.mu.Unlock()
			return 0, net.ErrClosed
		case !by.IsZero() && !time.Now().Before(by):
			c.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		case len(c.buf) > 0 || len(p) == 0:
			n := copy(p, c.buf)
			c.buf = c.buf[n:]
			c.mu.Unlock()
			return n, nil
		case c.err != nil:
			err := c.err
			c.mu.Unlock()
			return 0, err
		}
		if !c.pending {
			c.pending = true
			go c.receive()
		}
		c.mu.Unlock()
		until(wait, by)
	}
}

// receive reads once. It outlives the Read that wanted it when that is broken off,
// and the next takes what it brings. There is one at a time, and none before all
// was read, so that it has the space to itself.
func (c *conn) receive() {
	if c.space == nil {
		c.space = make([]byte, readSize)
	}
	n, err := c.Conn.Read(c.space)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending, c.buf, c.err = false, c.space[:n], err
	c.changed()
}

// until waits for a change or a time; zero is never.
func until(change <-chan struct{}, t time.Time) {
	if t.IsZero() {
		<-change
		return
	}
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-change:
	case <-timer.C:
	}
}

// Write writes all of p. A deadline that comes while it waits for the other side
// ends the connection, for part of p has been sent.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	by := c.writeBy
	c.mu.Unlock()
	if by.IsZero() {
		return c.Conn.Write(p)
	}
	if !time.Now().Before(by) {
		return 0, os.ErrDeadlineExceeded
	}
	timer := time.AfterFunc(time.Until(by), func() { _ = c.Close() })
	n, err := c.Conn.Write(p)
	if !timer.Stop() && err != nil {
		err = os.ErrDeadlineExceeded
	}
	return n, err
}

// CloseWrite ends what the other side reads.
func (c *conn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return c.Close()
}

// Close ends the connection, and whatever waits for it.
func (c *conn) Close() error {
	c.mu.Lock()
	was := c.closed
	c.closed = true
	c.changed()
	c.mu.Unlock()
	if was {
		return net.ErrClosed
	}
	return c.Conn.Close()
}

// SetDeadline holds for reads and writes, those that wait included for reads.
func (c *conn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readBy, c.writeBy = t, t
	c.changed()
	return nil
}

// SetReadDeadline holds for reads, one that waits included.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readBy = t
	c.changed()
	return nil
}

// SetWriteDeadline holds for the writes that begin after it.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeBy = t
	return nil
}
