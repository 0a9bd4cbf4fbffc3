package gateway

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"agentrelay/internal/channel"
	"agentrelay/internal/hosts/local"
	"agentrelay/internal/tool"
)

// buildAgents makes the directory of agents, which the mailbox asks.
func (g *Gateway) buildAgents() {
	g.agents = channel.NewAgents(channel.AgentsOptions{
		Store: g.store, StateDir: g.config.StateDir, LocalHostID: local.ID(), LocalAliases: local.Aliases(),
		HostIDs: func() []string {
			ids := make([]string, len(g.config.Hosts))
			for i, h := range g.config.Hosts {
				ids[i] = h.ID
			}
			return ids
		},
		Remote: g.direct.remotes.files, Rand: g.rand, Log: g.log,
	})
}

// buildChannel makes the server for the agents of a host.
func (g *Gateway) buildChannel(hostID string) *channel.Server {
	var tools []tool.Tool
	if g.config.Tools.Mailbox {
		tools = mailboxTools(g.mailbox)
	}
	return channel.NewServer(channel.ServerOptions{
		Store: g.store, HostID: hostID, Mailbox: g.mailbox, Tools: tools, Dispatches: chats{g.dispatch.agents, g.store}, Now: g.now, Rand: g.rand, Log: g.log,
	})
}

// serveAgents answers the agents of this machine until ctx ends. A socket that
// can't be opened is no reason not to serve everybody else.
func (g *Gateway) serveAgents(ctx context.Context) {
	l, err := channel.Listen(g.config.StateDir)
	if err != nil {
		g.log.Error("agents on this machine can't reach the gateway", "error", err)
		return
	}
	g.keepPeerAgent()
	if err := g.buildChannel(local.ID()).Serve(ctx, l); err != nil {
		g.log.Error("agents on this machine can't reach the gateway any more", "error", err)
	}
}

// keepPeerAgent gives the agents of this machine the program that lies beside this
// one. Without it they have none, or that of an earlier version.
func (g *Gateway) keepPeerAgent() {
	self, err := os.Executable()
	if err != nil {
		g.log.Warn("the agents' program can't be kept up to date", "error", err)
		return
	}
	beside := filepath.Join(filepath.Dir(self), "peer-agent")
	if _, err := os.Stat(beside); errors.Is(err, fs.ErrNotExist) {
		g.log.Info("there is no peer-agent beside this program, so agents on this machine are given none")
		return
	}
	if _, err := channel.KeepCopy(g.config.StateDir, beside); err != nil {
		g.log.Warn("the agents' program can't be kept up to date", "error", err)
	}
}
