package gateway

import (
	"context"
	"encoding/json"
	"time"

	"agentrelay/internal/direct/files"
	"agentrelay/internal/hosts/local"
	"agentrelay/internal/principal"
)

// host is one host as list_hosts shows it.
type host struct {
	HostID           string     `json:"hostId"`
	Name             string     `json:"name"`
	Transport        string     `json:"transport"`
	Available        bool       `json:"available"`
	CheckedAt        files.Time `json:"checkedAt"`
	DirectConfigured bool       `json:"directConfigured"`
	AgentsAvailable  bool       `json:"agentsAvailable"`
}

// hostTools is the one tool that shows the hosts. projects is how many projects
// the local one has.
func hostTools(projects int, now func() time.Time) []tool {
	return []tool{{
		name: "list_hosts", title: "List hosts", readOnly: true, idempotent: true,
		description: "List the owner's machines that this gateway reaches, by hostId. Pass a hostId to the other tools to work there; left out, it is the gateway's own machine, which is also called local or mac. Then use list_direct_projects to see which projects a host has.",
		in:          arguments(),
		out: result(opt("hosts", list("The hosts.", object("A host.",
			opt("hostId", str("Its id.")),
			opt("name", str("What people call it.")),
			opt("transport", str("How it is reached: local, ssh or device.")),
			opt("available", boolean("Whether it could be reached when it was checked.")),
			opt("checkedAt", str("When that was.")),
			opt("reason", str("Why it is not available.")),
			opt("directConfigured", boolean("Whether it has projects for the Direct tools.")),
			opt("agentsAvailable", boolean("Whether agents can be dispatched there now.")),
			opt("worker", object("The gateway's helper on that host: version, outdated.")),
		)))),
		call: func(context.Context, principal.Principal, json.RawMessage) (any, error) {
			return map[string][]host{"hosts": {{
				HostID: local.ID(), Name: local.Name(), Transport: "local", Available: true,
				CheckedAt: files.Time{Time: now()}, DirectConfigured: projects > 0,
			}}}, nil
		},
	}}
}
