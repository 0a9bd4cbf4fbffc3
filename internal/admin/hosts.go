package admin

import (
	"context"
	"time"

	"agentrelay/internal/agents"
	"agentrelay/internal/channel"
	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/ssh"
)

// Hosts is what the owner's commands ask of the machines that a gateway reaches.
type Hosts interface {
	// Hosts asks all machines at once, within a few seconds.
	Hosts(ctx context.Context) []HostInfo
	// CheckHost walks the way to one, step by step.
	CheckHost(ctx context.Context, hostID string) ([]ssh.Step, error)
	// RetryHost has it tried at once, with the host keys that are known now.
	RetryHost(hostID string) error
	// AcceptIdentity has the agent daemon that answers on a host now take the place
	// of the one that was known.
	AcceptIdentity(ctx context.Context, hostID string) (agents.Identity, error)
}

// HostInfo is a machine as the owner sees it.
type HostInfo struct {
	HostID    string        `json:"hostId"`
	Name      string        `json:"name"`
	Transport string        `json:"transport"`
	Target    string        `json:"target,omitempty"`
	State     hosts.State   `json:"state"`
	Since     time.Time     `json:"since"`
	CheckedAt time.Time     `json:"checkedAt,omitzero"`
	Reason    string        `json:"reason,omitempty"`
	Worker    *hosts.Worker `json:"worker,omitempty"`
	Projects  int           `json:"projects"`
	// Channel is the socket there by which agents reach the gateway; nil for the
	// local host.
	Channel *channel.ForwardStatus `json:"channel,omitempty"`
}

// ByHost names a machine.
type ByHost struct {
	HostID string `json:"hostId"`
}

// The commands about hosts. They work on the running gateway, for what counts is
// whether it reaches them.
var (
	// ListHosts lists the machines.
	ListHosts = Command[None, []HostInfo]{"hosts.list", func(ctx context.Context, b *Backend, _ None) ([]HostInfo, error) {
		return b.Hosts.Hosts(ctx), nil
	}}

	// CheckHost walks the way to a machine.
	CheckHost = Command[ByHost, []ssh.Step]{"hosts.check", func(ctx context.Context, b *Backend, in ByHost) ([]ssh.Step, error) {
		return b.Hosts.CheckHost(ctx, in.HostID)
	}}

	// RetryHost has a machine tried at once.
	RetryHost = Command[ByHost, None]{"hosts.retry", func(_ context.Context, b *Backend, in ByHost) (None, error) {
		return None{}, b.Hosts.RetryHost(in.HostID)
	}}

	// AcceptIdentity accepts another agent daemon on a host.
	AcceptIdentity = Command[ByHost, agents.Identity]{"hosts.accept-identity", func(ctx context.Context, b *Backend, in ByHost) (agents.Identity, error) {
		return b.Hosts.AcceptIdentity(ctx, in.HostID)
	}}
)
