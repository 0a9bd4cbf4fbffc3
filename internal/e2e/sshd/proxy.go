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
	flows  *flows   // of connections from now on
	former []*flows // of those that were left behind
	closed bool
}

// flows are the two ways of connections; a channel is closed while bytes are
// carried its way.
type flows struct{ toServer, toClient chan struct{} }

func flowing() *flows {
	f := &flows{make(chan struct{}), make(chan struct{})}
	close(f.toServer)
	close(f.toClient)
	return f
}

// NewProxy carries connections to an address, at first faithfully.
func NewProxy(t testing.TB, to string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Port: l.Addr().(*net.TCPAddr).Port, to: to, l: l, open: map[net.Conn]bool{}, flows: flowing()}
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Address is where the proxy listens.
func (p *Proxy) Address() string { return p.l.Addr().String() }

// Blackhole carries no more bytes, either way, and tells nobody. New connections
// are taken and left alone.
func (p *Proxy) Blackhole() {
	p.Mute()
	p.mu.Lock()
	defer p.mu.Unlock()
	stop(&p.flows.toServer)
}

// Mute carries no more of what the server says: requests arrive, and their
// answers do not.
func (p *Proxy) Mute() {
	p.mu.Lock()
	defer p.mu.Unlock()
	stop(&p.flows.toClient)
}

// stop has a way carry nothing from now on.
func stop(way *chan struct{}) {
	select {
	case <-*way:
		*way = make(chan struct{})
	default: // those who wait, wait on this one
	}
}

// Strand carries no more bytes of the connections that are open. New ones are
// carried.
func (p *Proxy) Strand() {
	p.Blackhole()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.former = append(p.former, p.flows)
	p.flows = flowing()
}

// Restore carries bytes again. Those that were held back come first.
func (p *Proxy) Restore() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range append(p.former, p.flows) {
		for _, c := range []chan struct{}{f.toServer, f.toClient} {
			select {
			case <-c:
			default:
				close(c)
			}
		}
	}
	p.former = nil
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
	p.mu.Lock()
	f := p.flows
	p.mu.Unlock()
	if !p.keep(c) {
		return
	}
	defer p.drop(c)
	p.wait(&f.toServer)
	s, err := net.Dial("tcp", p.to)
	if err != nil || !p.keep(s) {
		return
	}
	defer p.drop(s)
	var both sync.WaitGroup
	both.Go(func() { p.copy(s, c, &f.toServer) })
	p.copy(c, s, &f.toClient)
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

// wait waits until one way carries bytes.
func (p *Proxy) wait(way *chan struct{}) {
	p.mu.Lock()
	flows := *way
	p.mu.Unlock()
	<-flows
}

func (p *Proxy) copy(to, from net.Conn, way *chan struct{}) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		p.wait(way)
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
