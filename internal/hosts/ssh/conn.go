package ssh

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// reader makes reads that can be broken off of those that can't: what SSH channels
// have ends only when the other side says so. A read that is broken off loses
// nothing; the next one has it.
type reader struct {
	inner io.Reader

	mu      sync.Mutex
	change  chan struct{} // closed when anything below changes
	space   []byte        // what buf lies in
	buf     []byte        // what came, not read yet
	err     error         // what ended it
	pending bool          // receive is at it
	by      time.Time     // the deadline; zero for none
	closed  bool
}

const readSize = 32 << 10

func newReader(inner io.Reader) *reader { return &reader{inner: inner, change: make(chan struct{})} }

// Read waits for data, the end, the deadline or close.
func (r *reader) Read(p []byte) (int, error) {
	for {
		r.mu.Lock()
		by, change := r.by, r.change
		n, err, ready := r.take(p)
		if !ready && !r.pending {
			r.pending = true
			go r.receive()
		}
		r.mu.Unlock()
		if ready {
			return n, err
		}
		until(change, by)
	}
}

// take is what a Read gets now, if it is anything. r.mu is held.
func (r *reader) take(p []byte) (n int, err error, ready bool) {
	switch {
	case r.closed:
		return 0, net.ErrClosed, true
	case !r.by.IsZero() && !time.Now().Before(r.by):
		return 0, os.ErrDeadlineExceeded, true
	case len(r.buf) > 0 || len(p) == 0:
		n = copy(p, r.buf)
		r.buf = r.buf[n:]
		return n, nil, true
	}
	return 0, r.err, r.err != nil
}

// receive reads once. It outlives the Read that wanted it when that is broken off.
// There is one at a time, and none before all was read, so that it has the space to
// itself.
func (r *reader) receive() {
	if r.space == nil {
		r.space = make([]byte, readSize)
	}
	n, err := r.inner.Read(r.space)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending, r.buf, r.err = false, r.space[:n], err
	r.changed()
}

// changed wakes whoever waits. r.mu is held.
func (r *reader) changed() {
	close(r.change)
	r.change = make(chan struct{})
}

// close ends the reads, and reports whether it is the first to.
func (r *reader) close() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.closed = true
	r.changed()
	return true
}

func (r *reader) deadline(t time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.by = t
	r.changed()
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

// conn gives a channel deadlines, on which HTTP servers and websockets rely.
type conn struct {
	net.Conn
	in *reader

	mu      sync.Mutex
	writeBy time.Time
}

func withDeadlines(inner net.Conn) *conn { return &conn{Conn: inner, in: newReader(inner)} }

// Read waits for data, the end or the deadline.
func (c *conn) Read(p []byte) (int, error) { return c.in.Read(p) }

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
	type result struct {
		n   int
		err error
	}
	written := make(chan result, 1)
	go func() {
		n, err := c.Conn.Write(p)
		written <- result{n, err}
	}()
	timer := time.NewTimer(time.Until(by))
	defer timer.Stop()
	select {
	case r := <-written:
		return r.n, r.err
	case <-timer.C:
		_ = c.Close()
		return 0, os.ErrDeadlineExceeded
	}
}

// CloseWrite ends what the other side reads.
func (c *conn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return c.Close()
}

// Close ends the connection, and whatever waits to read from it.
func (c *conn) Close() error {
	if !c.in.close() {
		return net.ErrClosed
	}
	go func() { _ = c.Conn.Close() }() // a link that is stuck takes its time
	return nil
}

// SetDeadline is both of those below.
func (c *conn) SetDeadline(t time.Time) error {
	c.in.deadline(t)
	return c.SetWriteDeadline(t)
}

// SetReadDeadline holds for reads, one that waits included.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.deadline(t)
	return nil
}

// SetWriteDeadline holds for the writes that begin after it.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeBy = t
	return nil
}
