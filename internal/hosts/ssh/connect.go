package ssh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	xssh "golang.org/x/crypto/ssh"
)

// passage is a way to a host that was walked, jump hosts first.
type passage struct {
	clients []*xssh.Client
	closers []func() error // of the connections, the first machine's first
	last    *watched       // the connection to the host itself
	at      *verifier      // of the machine that was reached last; nil before any showed a key
	to      *settings      // of the host itself
}

// close ends the connections. The first goes first: a channel through a machine
// that has stopped answering might wait for it.
func (p *passage) close() {
	for _, c := range p.closers {
		_ = c()
	}
}

// watched is a connection that knows when it last brought something.
type watched struct {
	net.Conn
	last  atomic.Int64 // nanoseconds since begun
	begun time.Time
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if n > 0 {
		w.last.Store(int64(time.Since(w.begun)))
	}
	return n, err
}

// since reports whether something came after t.
func (w *watched) since(t time.Time) bool { return w.begun.Add(time.Duration(w.last.Load())).After(t) }

// walk connects along the settings of the way. With look it stops before the login
// to the host itself, when that has shown its key, with errOffered. The passage is
// returned even with an error, closed, for what it knows.
func (h *Host) walk(ctx context.Context, way []*settings, look bool) (*passage, error) {
	p := &passage{to: way[len(way)-1]}
	for i, s := range way {
		if err := h.pass(ctx, p, s, look && i == len(way)-1); err != nil {
			p.close()
			return p, err
		}
	}
	return p, nil
}

// pass connects to the next machine of a passage and logs in to it.
func (h *Host) pass(ctx context.Context, p *passage, s *settings, look bool) error {
	patience := s.connectTimeout
	if patience == 0 {
		patience = h.opts.ConnectTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := h.dial(ctx, p, s)
	if err != nil {
		return err
	}
	p.last = &watched{Conn: conn, begun: time.Now()}
	p.closers = append(p.closers, conn.Close)
	stop := context.AfterFunc(ctx, p.close)
	defer stop()
	client, err := h.handshake(ctx, p, s, look)
	if err != nil {
		return proxySaid(conn, err)
	}
	p.clients = append(p.clients, client)
	settle(client)
	if !stop() {
		return unspoken(ctx, s, ctx.Err())
	}
	return nil
}

// dial makes the connection to a machine that SSH then speaks on.
func (h *Host) dial(ctx context.Context, p *passage, s *settings) (net.Conn, error) {
	switch n := len(p.clients); {
	case n > 0:
		conn, err := p.clients[n-1].DialContext(ctx, "tcp", s.address())
		if err != nil {
			return nil, unreached(s, err)
		}
		return conn, nil
	case s.proxyCommand != "":
		conn, err := startProxy(s.proxyCommand, h.opts.Getenv)
		if err != nil {
			return nil, &failure{step: "name", reason: "The ProxyCommand of the gateway's ssh configuration can't be started.", detail: "The ProxyCommand can't be started: " + err.Error() + ".", cause: err}
		}
		return conn, nil
	}
	d := net.Dialer{}
	if s.bindAddress != "" {
		local, err := net.ResolveTCPAddr(s.network, net.JoinHostPort(s.bindAddress, "0"))
		if err != nil {
			return nil, &failure{step: "name", reason: "The BindAddress of the gateway's ssh configuration is none of its machine's addresses.", cause: err}
		}
		d.LocalAddr = local
	}
	conn, err := d.DialContext(ctx, s.network, s.address())
	if err != nil {
		return nil, unreached(s, err)
	}
	return conn, nil
}

// handshake verifies the machine and then logs in to it, on p.last.
func (h *Host) handshake(ctx context.Context, p *passage, s *settings, look bool) (*xssh.Client, error) {
	v, err := newVerifier(s, h.opts.HostID)
	if err != nil {
		return nil, err
	}
	v.look = look
	algorithms, err := s.algorithms()
	if err != nil {
		return nil, err
	}
	creds := &credentials{s: s}
	defer creds.close()
	config := &xssh.ClientConfig{
		Config: algorithms, User: s.user, Auth: []xssh.AuthMethod{creds.method(ctx)}, AuthCallback: creds.saw,
		HostKeyCallback: v.check, HostKeyAlgorithms: v.algorithms(), ClientVersion: "SSH-2.0-AgentRelay",
	}
	c, channels, requests, err := xssh.NewClientConn(p.last, s.knownName(), config)
	if v.offered != nil {
		p.at = v
	}
	switch {
	case err == nil:
		return xssh.NewClient(c, channels, requests), nil
	case v.look && v.offered != nil:
		return nil, errOffered
	case v.failed != nil:
		return nil, v.failed
	case v.offered == nil:
		return nil, unspoken(ctx, s, err)
	}
	return nil, creds.refused(ctx, err)
}

// algorithms are those that the settings allow, in the order of x/crypto, which
// knows which are fast here.
func (s *settings) algorithms() (xssh.Config, error) {
	standard, old := xssh.SupportedAlgorithms(), xssh.InsecureAlgorithms()
	var c xssh.Config
	for _, k := range []struct {
		name          string
		allowed       []string
		standard, old []string
		into          *[]string
	}{
		{"Ciphers", s.ciphers, standard.Ciphers, old.Ciphers, &c.Ciphers},
		{"MACs", s.macs, standard.MACs, old.MACs, &c.MACs},
		{"KexAlgorithms", s.kex, standard.KeyExchanges, old.KeyExchanges, &c.KeyExchanges},
	} {
		if k.allowed == nil {
			continue
		}
		for _, a := range slices.Concat(k.standard, k.old) {
			if slices.Contains(k.allowed, a) {
				*k.into = append(*k.into, a)
			}
		}
		if len(*k.into) == 0 {
			return c, &failure{step: "settings", reason: fmt.Sprintf("The ssh configuration of the gateway's machine allows none of the %s that the gateway has for %s.", k.name, s.alias),
				detail: fmt.Sprintf("%s for %s allows only %v; the gateway has %v.", k.name, s.alias, k.allowed, k.standard), next: "Allow one more in the ssh configuration."}
		}
	}
	return c, nil
}

// settle starts a command that does nothing. From the start of a session on, the
// server sends small packets at once: without one it leaves Nagle's algorithm on,
// and every new channel takes 20 ms on the host itself and ten times what it needs
// over a jump host. How and when the command ends does not matter.
func settle(client *xssh.Client) {
	session, err := client.NewSession()
	if err != nil {
		return // a host that runs nothing may still forward
	}
	if err := session.Start("true"); err != nil {
		_ = session.Close()
		return
	}
	go func() {
		_ = session.Wait()
		_ = session.Close()
	}()
}

// proxySaid says of a failure before SSH had begun that it was a ProxyCommand that
// was spoken to, and for the owner what that printed.
func proxySaid(conn net.Conn, err error) error {
	p, ok := conn.(*proxyCommand)
	f := asFailure(err, "name")
	if !ok || f.step != "key" || !errors.Is(f.cause, io.EOF) && !errors.Is(f.cause, syscall.EPIPE) && !errors.Is(f.cause, os.ErrClosed) {
		return err
	}
	with := *f
	with.step, with.reason = "name", "The ProxyCommand of the gateway's ssh configuration did not lead to an SSH server."
	if said := p.stderr.line(); said != "" {
		with.detail = "The ProxyCommand did not lead to an SSH server; it says: " + said
	}
	return &with
}
