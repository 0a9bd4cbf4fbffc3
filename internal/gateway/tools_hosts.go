package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"agentrelay/internal/direct/files"
	"agentrelay/internal/hosts"
	"agentrelay/internal/principal"
	"agentrelay/internal/tool"
)

// host is one host as list_hosts shows it.
type host struct {
	HostID           string        `json:"hostId"`
	Name             string        `json:"name"`
	Transport        string        `json:"transport"`
	Available        bool          `json:"available"`
	CheckedAt        files.Time    `json:"checkedAt"`
	Reason           string        `json:"reason,omitempty"`
	DirectConfigured bool          `json:"directConfigured"`
	AgentsAvailable  bool          `json:"agentsAvailable"`
	Worker           *hosts.Worker `json:"worker,omitempty"`
}

// probeBudget is how long list_hosts waits for hosts to answer.
const probeBudget = 2 * time.Second

// listHosts asks all hosts at once.
func (w *workspace) listHosts(ctx context.Context, d *dispatching) []host {
	statuses := w.hosts.Probe(ctx, probeBudget)
	out := make([]host, len(statuses))
	for i, h := range w.hosts.All() {
		s := statuses[i]
		out[i] = host{
			HostID: h.ID(), Name: h.Name(), Transport: h.Transport(), Available: s.State == hosts.Up, CheckedAt: files.Time{Time: s.CheckedAt},
			Reason: reasonOf(s), DirectConfigured: h.DirectConfigured(), AgentsAvailable: d.available(h.ID()), Worker: s.Worker,
		}
	}
	return out
}

// reasonOf says why a host is not available, and since when.
func reasonOf(s hosts.Status) string {
	if s.State == hosts.Up || s.Reason == "" {
		return s.Reason
	}
	return fmt.Sprintf("%s (%s since %s)", s.Reason, s.State, s.Since.UTC().Format("2006-01-02T15:04:05.000Z"))
}

// hostTools is the one tool that shows the hosts.
func hostTools(w *workspace, d *dispatching) []tool.Tool {
	return []tool.Tool{{
		Name: "list_hosts", Title: "List hosts", ReadOnly: true, Idempotent: true,
		Description: "List the owner's machines that this gateway reaches, by hostId. Pass a hostId to the other tools to work there; left out, it is the gateway's own machine, which is also called local or mac. Then use list_direct_projects to see which projects a host has.",
		In:          tool.Arguments(),
		Out:         tool.Result(tool.Opt("hosts", tool.List("hostId, name, transport (local, ssh or device), available, checkedAt, reason (why not), directConfigured, agentsAvailable, worker: version, outdated.", tool.Object("A host.")))),
		Call: func(ctx context.Context, _ principal.Principal, _ json.RawMessage) (any, error) {
			return map[string][]host{"hosts": w.listHosts(ctx, d)}, nil
		},
	}}
}
