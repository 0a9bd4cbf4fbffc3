package hosts

import (
	"context"
	"slices"
	"strings"
	"time"

	"agentrelay/internal/fault"
)

// Host is one machine. It is safe for concurrent use.
type Host interface {
	// ID is the canonical id.
	ID() string
	// Name is what people call it.
	Name() string
	// Transport is local or ssh.
	Transport() string
	// DirectConfigured reports whether it has projects.
	DirectConfigured() bool
	// Status is what is known now, without asking the host.
	Status() Status
	// Probe asks the host, within ctx, and returns what is known then.
	Probe(ctx context.Context) Status
	// At is the Direct tools there, or the refusal [Unavailable]. It may wait
	// within ctx for a connection that is being made.
	At(ctx context.Context) (Workspace, error)
}

// Directory is the owner's machines in the order of the config, the local one
// first. It is safe for concurrent use.
type Directory struct {
	local   string
	aliases []string
	hosts   []Host
}

// NewDirectory makes a directory of the local host, which callers may also leave
// out or call by the aliases, and of further ones.
func NewDirectory(local Host, aliases []string, further ...Host) *Directory {
	return &Directory{local: local.ID(), aliases: aliases, hosts: append([]Host{local}, further...)}
}

// All returns the hosts. The caller must not change the slice.
func (d *Directory) All() []Host { return d.hosts }

// Resolve returns the host that a caller names; nil is the local one. The
// refusal is unknown_host, which lists the known ids.
func (d *Directory) Resolve(hostID *string) (Host, error) {
	id := d.local
	if hostID != nil && !slices.Contains(d.aliases, *hostID) {
		id = *hostID
	}
	ids := make([]string, len(d.hosts))
	for i, h := range d.hosts {
		if h.ID() == id {
			return h, nil
		}
		ids[i] = h.ID()
	}
	return nil, fault.UnknownHost.Newf("hostId names no host of this gateway. It has: %s.", strings.Join(ids, ", "))
}

// Probe asks all hosts at once and returns what is known when all have answered
// or the budget is over. The statuses are in the order of [Directory.All].
func (d *Directory) Probe(ctx context.Context, budget time.Duration) []Status {
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	type answer struct {
		at     int
		status Status
	}
	answers := make(chan answer, len(d.hosts))
	for i, h := range d.hosts {
		go func() { answers <- answer{i, h.Probe(ctx)} }()
	}
	out := make([]Status, len(d.hosts))
	for i, h := range d.hosts {
		out[i] = h.Status() // unless it answers in time
	}
	for range d.hosts {
		select {
		case a := <-answers:
			out[a.at] = a.status
		case <-ctx.Done():
			return out
		}
	}
	return out
}
