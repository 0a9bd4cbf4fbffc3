// Package remote is one machine that is reached over SSH, put together from the
// owner's config: its connection (package ssh), its worker (package worker), and
// what the owner's commands do with it.
//
// It promises that making one starts nothing, that a started one connects by
// itself and goes on connecting until it is closed, and that closing it ends
// everything it began here while commands there go on. It leaves to others the
// channel of agents, the agent daemon, and who may call what.
package remote

import (
	"context"
	"log/slog"
	"time"

	"agentrelay/internal/channel"
	"agentrelay/internal/config"
	"agentrelay/internal/direct"
	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/ssh"
	"agentrelay/internal/hosts/worker"
	"agentrelay/internal/hosts/worker/overssh"
	"agentrelay/internal/hosts/worker/wire"
)

// Options says which machine, and how it is reached. Config and Host are
// required.
type Options struct {
	Config *config.Config
	// Host is its entry in Config.
	Host config.Host
	// FormerOwners are those whose commands the shared owner has taken over.
	FormerOwners []string
	// Version is that of this program.
	Version string
	// SSH is how it is reached; its HostID, Target and Log are not used.
	SSH ssh.Options
	Now func() time.Time
	Log *slog.Logger
}

// Host is one machine. It is safe for concurrent use.
type Host struct {
	*worker.Client
	// SSH is its connection.
	SSH        *ssh.Host
	conf       config.Host
	gatewayDir string // the gateway's state directory
	lookBudget time.Duration
}

var _ hosts.Host = (*Host)(nil)

// New returns a host that is down. [Host.Close] must be called.
func New(o Options) *Host {
	conn := o.SSH
	conn.HostID, conn.Target, conn.Now, conn.Log = o.Host.ID, o.Host.Target, o.Now, o.Log
	h := &Host{SSH: ssh.New(conn), conf: o.Host, gatewayDir: o.Config.StateDir, lookBudget: defaultLookBudget}
	settings := Settings(o.Config, o.Host)
	settings.FormerOwners = o.FormerOwners
	h.Client = worker.New(worker.Options{
		ID: o.Host.ID, Name: o.Host.Name, Links: overssh.Links(h.SSH), StateDir: o.Host.RemoteStateDir, Command: overssh.Command(o.Host.RemoteStateDir),
		Settings: settings, Version: o.Version, Now: o.Now, Log: o.Log,
	})
	h.SSH.OnChange(h.Client.LinkChanged)
	return h
}

// Settings is what the worker on a host works by. How many commands run and what
// is kept of them is as on the gateway's machine; their PATH is that of the login
// shell there.
func Settings(c *config.Config, host config.Host) wire.Settings {
	limits := c.Commands
	return wire.Settings{
		Policy: direct.Policy{
			HostID: host.ID, AllowedRoots: host.AllowedRoots, Protected: []string{host.RemoteStateDir}, Projects: Projects(host.Direct),
		},
		Commands: wire.Commands{
			PassEnvironment: limits.PassEnvironment, RunningPerOwner: limits.RunningPerOwner, RunningPerHost: limits.RunningPerHost,
			OutputBytes: int64(limits.OutputBytes), StoredBytes: int64(limits.StoredBytes), KeepDays: limits.KeepDays,
		},
	}
}

// Projects are the projects of a direct key of the config.
func Projects(d config.Direct) []direct.Project {
	var out []direct.Project
	for _, conf := range d.Projects {
		p := direct.Project{
			ID: conf.ID, Name: conf.Name, Path: conf.Path, Read: conf.Read, Write: conf.Write, CommandMode: direct.CommandMode(conf.CommandMode),
		}
		for _, command := range conf.Commands {
			p.Commands = append(p.Commands, direct.Command(command))
		}
		out = append(out, p)
	}
	return out
}

// StateDir is the private directory of the gateway on that machine.
func (h *Host) StateDir() string { return h.conf.RemoteStateDir }

// PeerAgent is where agents find their program there.
func (h *Host) PeerAgent() string { return worker.Program(h.conf.RemoteStateDir) }

// Start connects in the background, until ctx ends or the host is closed.
func (h *Host) Start(ctx context.Context) { h.SSH.Start(ctx) }

// Close ends the worker and the connection.
func (h *Host) Close() error {
	h.Client.Close()
	return h.SSH.Close()
}

// WritePrivate implements [channel.RemoteFiles] for the state directory there.
func (h *Host) WritePrivate(ctx context.Context, relPath string, content []byte) error {
	link, err := h.SSH.Link(ctx)
	if err != nil {
		return err
	}
	return (&channel.RemoteDir{Link: link, Path: h.conf.RemoteStateDir}).WritePrivate(ctx, relPath, content)
}
