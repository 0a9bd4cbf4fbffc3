package admin

import (
	"context"
	"sync"
	"time"

	"agentrelay/internal/agents"
	"agentrelay/internal/config"
	"agentrelay/internal/fault"
	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/local"
	"agentrelay/internal/hosts/remote"
	"agentrelay/internal/hosts/ssh"
)

// hostsAlone looks at the machines of a config while no gateway runs.
type hostsAlone struct {
	config *config.Config
	now    func() time.Time
}

// Alone looks at the machines of a config while no gateway runs, for those who need
// nothing of the store.
func Alone(c *config.Config, now func() time.Time) Hosts { return hostsAlone{c, now} }

// aloneBudget is how long a machine has to be connected to and to answer.
const aloneBudget = 15 * time.Second

// Hosts implements [Hosts]: it connects to all of them at once.
func (a hostsAlone) Hosts(ctx context.Context) []HostInfo {
	ctx, cancel := context.WithTimeout(ctx, aloneBudget)
	defer cancel()
	now := a.now()
	out := make([]HostInfo, 1+len(a.config.Hosts))
	out[0] = HostInfo{
		HostID: local.ID(), Name: local.Name(), Transport: "local", State: hosts.Up, Since: now, CheckedAt: now, Projects: len(a.config.Direct.Projects),
	}
	var wg sync.WaitGroup
	for i, conf := range a.config.Hosts {
		wg.Go(func() {
			h := remote.New(remote.Options{Config: a.config, Host: conf, Now: a.now})
			h.Start(ctx)
			out[1+i] = Describe(conf, h.Probe(ctx))
			_ = h.Close() // nothing was under way
		})
	}
	wg.Wait()
	return out
}

// Describe is a machine of the config as it is.
func Describe(conf config.Host, s hosts.Status) HostInfo {
	return HostInfo{
		HostID: conf.ID, Name: conf.Name, Transport: conf.Transport, Target: conf.Target, State: s.State, Since: s.Since,
		CheckedAt: s.CheckedAt, Reason: s.Reason, Worker: s.Worker, Projects: len(conf.Direct.Projects),
	}
}

// CheckHost implements [Hosts].
func (a hostsAlone) CheckHost(ctx context.Context, hostID string) ([]ssh.Step, error) {
	conf, err := FindHost(a.config, hostID)
	if err != nil {
		return nil, err
	}
	h := remote.New(remote.Options{Config: a.config, Host: conf, Now: a.now})
	defer h.Close()
	h.Start(ctx)
	return h.Check(ctx), nil
}

// RetryHost implements [Hosts]: the next start will look by itself.
func (a hostsAlone) RetryHost(hostID string) error {
	_, err := FindHost(a.config, hostID)
	return err
}

// AcceptIdentity implements [Hosts]: which daemon answers, only a running gateway
// knows.
func (a hostsAlone) AcceptIdentity(context.Context, string) (agents.Identity, error) {
	return agents.Identity{}, agents.HostUnavailable.New("No gateway runs, so no agent daemon is asked.").WithHint("Start the gateway, then run the command again.")
}

// FindHost is the entry of an SSH host in the config.
func FindHost(c *config.Config, hostID string) (config.Host, error) {
	for _, h := range c.Hosts {
		if h.ID == hostID {
			return h, nil
		}
	}
	return config.Host{}, fault.UnknownHost.New("The config has no SSH host of this id.").
		WithHint("Give the id of an entry of hosts in the config: gateway hosts list shows them.")
}
