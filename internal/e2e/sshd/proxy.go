package sshd

import (
	"net"
	"sync"
	"testing"
)

// Proxy stands between a client and a server and can fail as networks do.
type Proxy struct {
	// Port on 127.0.0.1.
	Port int

	to string
	l  net.Listener
	wg sync.WaitGroup

	mu     sync.Mutex
	open   map[net.Conn]bool
	flows  chan struct{} // closed while bytes are carried
	closed bool
}

// NewProxy carries connections to an address, at first faithfully.
func NewProxy(t testing.TB, to string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Port: l.Addr().(*net.TCPAddr).Port, to: to, l: l, open: map[net.Conn]bool{}, flows: make(chan struct{})}
	close(p.flows)
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Address is where the proxy listens.
func (p *Proxy) Address() string { return p.l.Addr().String() }

// Blackhole carries no more bytes, either way, and tells nobody. New connections
// are taken and left alone.
func (p *Proxy) Blackhole() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flows = make(chan struct{})
}

// Restore carries bytes again. Those that were held back come first.
func (p *Proxy) Restore() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.flows:
	default:
		close(p.flows)
	}
}

// Cut ends all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		_ = c.Close()
	}
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.l.Close()
	p.Restore()
	p.Cut()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.carry(c) })
	}
}

func (p *Proxy) carry(c net.Conn) {
	if !p.keep(c) {
		return
	}
	defer p.drop(c)
	p.wait()
	s, err := net.Dial("tcp", p.to)
	if err != nil || !p.keep(s) {
		return
	}
	defer p.drop(s)
	var both sync.WaitGroup
	both.Go(func() { p.copy(s, c) })
	p.copy(c, s)
	both.Wait()
}

func (p *Proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = c.Close()
		return false
	}
	p.open[c] = true
	return true
}

func (p *Proxy) drop(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
	_ = c.Close()
}

func (p *Proxy) wait() {
	p.mu.Lock()
	flows := p.flows
	p.mu.Unlock()
	<-flows
}

func (p *Proxy) copy(to, from net.Conn) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		p.wait()
		if n > 0 {
			if _, failed := to.Write(b[:n]); failed != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	if t, ok := to.(*net.TCPConn); ok {
		_ = t.CloseWrite()
	}
}
