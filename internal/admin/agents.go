package admin

import (
	"context"

	"agentrelay/internal/channel"
	"agentrelay/internal/config"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
)

// AdoptIn names an agent that was started by hand.
type AdoptIn struct {
	Owner   string `json:"owner"`  // "" is the shared owner, where the config has it
	HostID  string `json:"hostId"` // "" is the local host
	AgentID string `json:"agentId"`
}

// ByAgent names an agent.
type ByAgent struct {
	HostID  string `json:"hostId"` // "" is the local host
	AgentID string `json:"agentId"`
}

// The commands about agents.
var (
	// ListAgents lists a page of the agents that may come over a channel.
	ListAgents = Command[channel.ListIn, channel.ListOut]{"agents.list", func(ctx context.Context, b *Backend, in channel.ListIn) (channel.ListOut, error) {
		return b.Agents.List(ctx, in)
	}}

	// AdoptAgent makes an agent that was started by hand an owner's.
	AdoptAgent = Command[AdoptIn, channel.AdoptOut]{"agents.adopt", func(ctx context.Context, b *Backend, in AdoptIn) (channel.AdoptOut, error) {
		if in.Owner == "" && !b.Clients.SharedOwner {
			return channel.AdoptOut{}, fault.InvalidArguments.New("The clients of this gateway have an owner each (sharedOwner is false), so the agent's must be named.").
				WithHint("Name the one whose peers the agent is to join, with --owner local-owner:<clientId>: gateway clients list shows the ids.")
		}
		if in.Owner == "" {
			in.Owner = principal.SharedOwner
		}
		return b.Agents.Adopt(ctx, in.Owner, in.HostID, in.AgentID)
	}}

	// RevokeAgent ends an agent's access.
	RevokeAgent = Command[ByAgent, channel.RevokeOut]{"agents.revoke", func(ctx context.Context, b *Backend, in ByAgent) (channel.RevokeOut, error) {
		return b.Agents.Revoke(ctx, in.HostID, in.AgentID)
	}}
)

// hostIDs lists the hosts besides the local one.
func hostIDs(c *config.Config) func() []string {
	ids := make([]string, len(c.Hosts))
	for i, h := range c.Hosts {
		ids[i] = h.ID
	}
	return func() []string { return ids }
}
