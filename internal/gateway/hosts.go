package gateway

import (
	"context"
	"errors"
	"sync"

	"agentrelay/internal/admin"
	"agentrelay/internal/agents"
	"agentrelay/internal/channel"
	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/remote"
	"agentrelay/internal/hosts/ssh"
)

// remotes are the machines that are reached over SSH, in the order of the config.
type remotes []*remote.Host

// buildRemotes makes them; nothing is connected yet.
func (g *Gateway) buildRemotes(formerOwners []string) remotes {
	out := make(remotes, len(g.config.Hosts))
	for i, conf := range g.config.Hosts {
		out[i] = remote.New(remote.Options{Config: g.config, Host: conf, FormerOwners: formerOwners, Version: g.version, Now: g.now, Log: g.log})
	}
	return out
}

func (r remotes) directory() []hosts.Host {
	out := make([]hosts.Host, len(r))
	for i, h := range r {
		out[i] = h
	}
	return out
}

func (r remotes) find(hostID string) (*remote.Host, error) {
	for _, h := range r {
		if h.ID() == hostID {
			return h, nil
		}
	}
	return nil, errors.New("no SSH host has this id")
}

// files is where the capabilities of a host's agents are put.
func (r remotes) files(hostID string) (channel.RemoteFiles, error) {
	h, err := r.find(hostID)
	if err != nil {
		return nil, err
	}
	return h, nil
}

// close ends the connections, all at once: a host that does not answer delays no
// other.
func (r remotes) close() error {
	errs := make([]error, len(r))
	var wg sync.WaitGroup
	for i, h := range r {
		wg.Go(func() { errs[i] = h.Close() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// serveRemotes connects to the SSH hosts and keeps the channel of each host's
// agents, until ctx ends. A host that can't be reached is tried again and again.
func (g *Gateway) serveRemotes(ctx context.Context) {
	var wg sync.WaitGroup
	for i, h := range g.direct.remotes {
		forward := g.direct.forwards[i]
		up, answers := make(chan struct{}, 1), make(chan struct{}, 1)
		h.SSH.OnChange(func(s hosts.Status) {
			for _, c := range []chan struct{}{up, answers} {
				if s.State == hosts.Up {
					select {
					case c <- struct{}{}:
					default: // it will look
					}
				}
			}
		})
		h.Start(ctx)
		wg.Go(func() { g.settleTransfers(ctx, h.ID(), answers) })
		wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-up:
				}
				if link, err := h.SSH.Link(ctx); err == nil {
					forward.Keep(ctx, link)
				}
			}
		})
	}
	wg.Wait()
}

// settleTransfers asks a host, whenever it answers again, what became of imports
// whose answer was lost.
func (g *Gateway) settleTransfers(ctx context.Context, hostID string, answers <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-answers:
		}
		if err := g.direct.transfers.SettleHost(ctx, hostID); err != nil && ctx.Err() == nil {
			g.log.Warn("imports of unknown outcome could not be settled", "host", hostID, "error", err)
		}
	}
}

// deliverCapabilities gives agents that were adopted while their host was away, or
// not installed, what they prove themselves with.
func (g *Gateway) deliverCapabilities(ctx context.Context, hostID string) {
	if err := g.agents.Deliver(ctx, hostID); err != nil && ctx.Err() == nil {
		g.log.Warn("agents of a host could not be given their capabilities", "host", hostID, "error", err)
	}
}

// ownersHosts is what the owner's commands see of the machines.
type ownersHosts struct{ *Gateway }

// Hosts implements [admin.Hosts].
func (o ownersHosts) Hosts(ctx context.Context) []admin.HostInfo {
	w := o.direct
	statuses := w.hosts.Probe(ctx, probeBudget)
	out := make([]admin.HostInfo, len(statuses))
	for i, h := range w.hosts.All() {
		if i == 0 {
			s := statuses[0]
			out[0] = admin.HostInfo{
				HostID: h.ID(), Name: h.Name(), Transport: h.Transport(), State: s.State, Since: o.started, CheckedAt: s.CheckedAt,
				Projects: len(o.config.Direct.Projects),
			}
			continue
		}
		out[i] = admin.Describe(o.config.Hosts[i-1], statuses[i])
		channel := w.forwards[i-1].Status()
		out[i].Channel = &channel
	}
	return out
}

// CheckHost implements [admin.Hosts].
func (o ownersHosts) CheckHost(ctx context.Context, hostID string) ([]ssh.Step, error) {
	if _, err := admin.FindHost(o.config, hostID); err != nil {
		return nil, err
	}
	h, err := o.direct.remotes.find(hostID)
	if err != nil {
		return nil, err
	}
	return h.Check(ctx), nil
}

// AcceptIdentity implements [admin.Hosts].
func (o ownersHosts) AcceptIdentity(ctx context.Context, hostID string) (agents.Identity, error) {
	h, err := o.direct.hosts.Resolve(&hostID)
	if err != nil {
		return agents.Identity{}, err
	}
	return o.dispatch.agents.AcceptIdentity(ctx, h.ID())
}

// RetryHost implements [admin.Hosts].
func (o ownersHosts) RetryHost(hostID string) error {
	for i, h := range o.direct.remotes {
		if h.ID() == hostID {
			h.SSH.Wake()
			h.Renew()
			o.direct.forwards[i].Retry()
			return nil
		}
	}
	_, err := admin.FindHost(o.config, hostID)
	return err
}

// buildForwards makes the channels of the SSH hosts, which the mailbox must be
// there for.
func (g *Gateway) buildForwards() []*channel.Forward {
	out := make([]*channel.Forward, len(g.direct.remotes))
	for i, h := range g.direct.remotes {
		out[i] = channel.NewForward(channel.ForwardOptions{Server: g.buildChannel(h.ID()), StateDir: h.StateDir(), Log: g.log, Up: func(ctx context.Context) {
			g.deliverCapabilities(ctx, h.ID())
		}})
	}
	return out
}
