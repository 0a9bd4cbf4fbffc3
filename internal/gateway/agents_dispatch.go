package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"agentrelay/internal/agents"
	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/audit"
	"agentrelay/internal/channel"
	"agentrelay/internal/events"
	"agentrelay/internal/fault"
	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/local"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
	"agentrelay/internal/wake"
)

// defaultDaemon is where the daemon of this machine listens unless the config says
// otherwise.
const defaultDaemon = "127.0.0.1:6767"

// dispatching is the agents as the tools use them, with the client of each host's
// daemon.
type dispatching struct {
	store   *store.Store
	hosts   *hosts.Directory
	remotes remotes
	agents  *agents.Service
	clients map[string]*paseo.Client
	ids     []string // of clients, the local host first
	local   *agents.LocalRoots
}

// buildDispatch makes a client for the daemon of each host, and the agents on
// them. Nothing is connected yet.
func (g *Gateway) buildDispatch(ctx context.Context) error {
	c := g.config
	d := &dispatching{
		store: g.store, hosts: g.direct.hosts, remotes: g.direct.remotes, clients: map[string]*paseo.Client{}, local: agents.NewLocalRoots(c.AllowedRoots),
	}
	dial, err := dialLocal(c.UpstreamURL)
	if err != nil {
		return err
	}
	if err := g.addDaemon(ctx, d, local.ID(), c.Agents.PasswordFile, dial); err != nil {
		return err
	}
	for i, h := range g.direct.remotes {
		network, address := h.SSH.DaemonAddress()
		err := g.addDaemon(ctx, d, h.ID(), c.Hosts[i].DaemonPasswordFile, func(ctx context.Context) (net.Conn, error) {
			link, err := h.SSH.Link(ctx)
			if err != nil {
				return nil, err
			}
			return link.Dial(ctx, network, address)
		})
		if err != nil {
			return err
		}
	}
	d.agents, err = agents.New(agents.Options{
		Store: g.store, Daemons: d, Roots: d, Events: wake.Attention(g.events), Agents: recording{g.agents}, Mailbox: mailbox.Lookup{},
		PeerAgent:       func(hostID string) string { return d.peerAgent(c.StateDir, hostID) },
		AllowAutoAccept: c.Agents.AllowAutoAccept, PromptOverPermission: c.Agents.PromptOverPermission,
		Now: g.now, Rand: g.rand, Log: g.log,
	})
	g.dispatch = d
	return err
}

// addDaemon makes the client of one daemon.
func (g *Gateway) addDaemon(ctx context.Context, d *dispatching, hostID, passwordFile string, dial func(context.Context) (net.Conn, error)) error {
	pinned, err := agents.Pinned(ctx, g.store, hostID)
	if err != nil {
		return err
	}
	d.ids = append(d.ids, hostID)
	d.clients[hostID] = paseo.New(paseo.Options{
		HostID: hostID, Dial: dial, Pinned: pinned, Now: g.now, Log: g.log,
		Password: func() (string, error) { return daemonPassword(passwordFile) },
		OnIdentity: func(info paseo.ServerInfo) error {
			bound, cancel := context.WithTimeout(g.stopping, 10*time.Second)
			defer cancel()
			same, err := agents.Pin(bound, g.store, hostID, info.ServerID)
			switch {
			case err != nil:
				return err
			case !same:
				return errors.New("the host is known to have another daemon")
			}
			d.clients[hostID].AcceptIdentity(info.ServerID) // and no other from now on
			return nil
		},
	})
	return nil
}

// dialLocal makes connections to the daemon that upstreamUrl names.
func dialLocal(upstream string) (func(context.Context) (net.Conn, error), error) {
	address, secure := defaultDaemon, false
	if upstream != "" {
		u, err := url.Parse(upstream)
		if err != nil {
			return nil, fmt.Errorf("upstreamUrl: %w", err)
		}
		secure = u.Scheme == "https" || u.Scheme == "wss"
		port := u.Port()
		if port == "" && secure {
			port = "443"
		} else if port == "" {
			port = "80"
		}
		address = net.JoinHostPort(u.Hostname(), port)
	}
	if secure {
		return func(ctx context.Context) (net.Conn, error) { return new(tls.Dialer).DialContext(ctx, "tcp", address) }, nil
	}
	return func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", address) }, nil
}

// daemonPassword reads a password anew for each connection, so that it can be
// changed; "" is none.
func daemonPassword(ref string) (string, error) {
	if ref == "" {
		return "", nil
	}
	if name, ok := strings.CutPrefix(ref, "env:"); ok {
		password := os.Getenv(name)
		if password == "" {
			return "", errors.New("the environment variable with the daemon's password is not set")
		}
		return password, nil
	}
	raw, err := events.ReadPrivate(ref)
	return string(raw), err
}

// HostIDs implements [agents.Daemons].
func (d *dispatching) HostIDs() []string { return d.ids }

// Daemon implements [agents.Daemons].
func (d *dispatching) Daemon(hostID string) (agents.Daemon, error) {
	c := d.clients[hostID]
	if c == nil {
		return nil, fault.UnknownHost.New("hostId names no host of this gateway.")
	}
	return c, nil
}

// Resolve implements [agents.Roots].
func (d *dispatching) Resolve(ctx context.Context, hostID string, paths []string) ([]agents.Place, error) {
	if hostID == local.ID() {
		return d.local.Resolve(ctx, hostID, paths)
	}
	h, err := d.remotes.find(hostID)
	if err != nil {
		return nil, err
	}
	return h.Resolve(ctx, paths)
}

// peerAgent is where agents of a host find their program; "" when it has none.
func (d *dispatching) peerAgent(stateDir, hostID string) string {
	if h, err := d.remotes.find(hostID); err == nil {
		return h.PeerAgent()
	}
	program := filepath.Join(stateDir, "bin", "peer-agent")
	if _, err := os.Stat(program); err != nil {
		return ""
	}
	return program
}

// available reports whether agents can be dispatched on a host now.
func (d *dispatching) available(hostID string) bool {
	c := d.clients[hostID]
	if c == nil {
		return false
	}
	_, connected := c.Info()
	return connected
}

// native is what tells agents of their mail; nil when nothing is dispatched to them.
func (g *Gateway) native() *agents.Service {
	if !g.config.Tools.Agents {
		return nil
	}
	return g.dispatch.agents
}

// serveDispatch keeps the connections to the daemons until ctx ends. Without the
// tools there are none.
func (g *Gateway) serveDispatch(ctx context.Context) {
	if !g.config.Tools.Agents {
		return
	}
	var wg sync.WaitGroup
	for _, c := range g.dispatch.clients {
		wg.Go(func() { c.Run(ctx) })
	}
	wg.Wait()
}

// close ends waits and following within ctx. It may be called twice.
func (d *dispatching) close(ctx context.Context) error {
	if d == nil || d.agents == nil {
		return nil
	}
	return d.agents.Close(ctx)
}

// renewed publishes what is owed to a route; see [events.Options].
func (g *Gateway) renewed(tx *store.Tx, owner, hostID, workspaceID, routeID string) error {
	return g.dispatch.agents.Renewed(tx, owner, hostID, workspaceID, routeID)
}

// eventHost is the canonical id of a host that a subscription names.
func (g *Gateway) eventHost(hostID string) (string, error) {
	var named *string
	if hostID != "" {
		named = &hostID
	}
	h, err := g.direct.hosts.Resolve(named)
	if err != nil {
		return "", err
	}
	return h.ID(), nil
}

// recording is the directory of agents as the dispatch asks for it.
type recording struct{ agents *channel.Agents }

// Record implements [agents.Agents].
func (r recording) Record(tx *store.Tx, owner, hostID, agentID string) error {
	return r.agents.Record(tx, owner, hostID, agentID)
}

// Owner implements [agents.Agents].
func (r recording) Owner(q store.Querier, hostID, agentID string) (string, error) {
	return r.agents.Owner(q, hostID, agentID)
}

// Issue implements [agents.Agents].
func (r recording) Issue(ctx context.Context, hostID, agentID string) error {
	_, err := r.agents.Issue(ctx, hostID, agentID)
	return err
}

// chats takes what agents write to the chats that dispatched them.
type chats struct {
	agents *agents.Service
	store  *store.Store
}

// Message implements [channel.Dispatches].
func (c chats) Message(ctx context.Context, from channel.Caller, in channel.MessageIn) (any, error) {
	duplicate, err := c.agents.AcceptAgentMessage(ctx, from.Owner, from.HostID, from.AgentID, in.RequestID, in.MessageID, in.Kind, in.Text)
	if err != nil {
		return nil, err
	}
	status := "accepted"
	if duplicate {
		status = "duplicate"
	}
	err = store.Exec(ctx, c.store, func(tx *store.Tx) error {
		return audit.Record(tx, principal.Principal{Owner: from.Owner}, "agent.message", in.MessageID, audit.OK, "host", from.HostID, "agent", from.AgentID, "request", in.RequestID, "kind", in.Kind, "duplicate", duplicate)
	})
	return map[string]string{"messageId": in.MessageID, "status": status}, err
}
