package gateway

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"agentrelay/internal/admin"
	"agentrelay/internal/channel"
	"agentrelay/internal/channel/capability"
	"agentrelay/internal/shellquote"
)

func (a *app) agentsCommand() *cobra.Command {
	return a.group("agents", "Decide which agents on your machines may use the mailbox",
		`An agent that a client dispatched may use the mailbox of its owner, as a peer of its own, with
the peer-agent program on its machine. These commands look at such agents, let in one that
you started by hand, and end the access of one. They work with and without a running gateway.`,
		`  gateway agents list
  gateway agents adopt --agent my-agent
  gateway agents revoke --agent my-agent`,
		a.agentsListCommand(), a.agentsAdoptCommand(), a.agentsRevokeCommand())
}

func (a *app) agentsListCommand() *cobra.Command {
	var in channel.ListIn
	var page paging
	c := a.withJSON(&cobra.Command{
		Use:   "list",
		Short: "List the agents",
		Example: `  gateway agents list
  gateway agents list --all
  gateway agents list --json`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			in.Limit, in.Cursor = page.args()
			out, err := call(a, cmd, admin.ListAgents, in)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, out)
			}
			return a.printAgents(out, in.IncludeRevoked)
		},
	})
	c.Flags().BoolVar(&in.IncludeRevoked, "all", false, "also those that are revoked")
	c.Flags().StringVar(&in.Owner, "owner", "", "only those of this `owner`")
	page.flags(c)
	return c
}

func (a *app) printAgents(out channel.ListOut, all bool) error {
	if len(out.Agents) == 0 {
		text := "No agent may use the mailbox from its machine yet. To let in one that you started by hand:\n  gateway agents adopt --agent <id>\n"
		if !all {
			text += "Revoked agents are shown with --all.\n"
		}
		_, err := fmt.Fprint(a.Stdout, text)
		return err
	}
	now := a.Now()
	headings := []string{"AGENT", "HOST", "ACCESS", "LAST SEEN", "CAME BY", "SINCE"}
	several := false
	for _, g := range out.Agents {
		several = several || g.Owner != out.Agents[0].Owner
	}
	if several {
		headings = append(headings, "OWNER")
	}
	rows := make([][]string, len(out.Agents))
	for i, g := range out.Agents {
		access := "yes"
		switch {
		case !g.RevokedAt.IsZero():
			access = "revoked " + ago(now, g.RevokedAt)
		case g.IssuedAt.IsZero():
			access = "not issued yet"
		}
		by := "adoption"
		if g.Source == channel.Dispatched {
			by = "dispatch"
		}
		rows[i] = []string{g.AgentID, g.HostID, access, ago(now, g.LastSeenAt), by, ago(now, g.CreatedAt)}
		if several {
			rows[i] = append(rows[i], g.Owner)
		}
	}
	if err := table(a.Stdout, 0, headings, rows); err != nil {
		return err
	}
	return a.printMore(out.NextCursor)
}

func (a *app) agentsAdoptCommand() *cobra.Command {
	var in admin.AdoptIn
	c := a.withJSON(&cobra.Command{
		Use:   "adopt --agent <id>",
		Short: "Let in an agent that you started by hand",
		Long: `Makes an agent that no client dispatched one of yours, and writes its capability: a file
by which peer-agent on its machine proves who it is. An agent that was revoked comes back
with a new one. The agent's id is one that you choose, or that its daemon has given it; the
agent must have it in the environment variable PASEO_AGENT_ID.`,
		Example: `  gateway agents adopt --agent my-agent
  gateway agents adopt --host build-box --agent 0b9c1d0e-8e3d-4a53-9d2e-8c2f3b1f7a10`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if in.AgentID == "" {
				return usage("--agent is missing")
			}
			out, err := call(a, cmd, admin.AdoptAgent, in)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, out)
			}
			return a.printAdopted(out)
		},
	})
	c.Flags().StringVar(&in.AgentID, "agent", "", "the agent's `id`")
	c.Flags().StringVar(&in.HostID, "host", "", "the `host` that it runs on (default this machine)")
	c.Flags().StringVar(&in.Owner, "owner", "", "the `owner` whose mailbox it joins, when clients have one each")
	return c
}

func (a *app) printAdopted(out channel.AdoptOut) error {
	g := out.Agent
	text := "%s on %s is one of your agents now.\n"
	if !out.Created {
		text = "%s on %s was one of your agents already.\n"
	}
	fmt.Fprintf(a.Stdout, text, g.AgentID, g.HostID)
	program := "<remoteStateDir of the host>/bin/peer-agent"
	if out.StateDir != "" {
		program = shellquote.Word(channel.ProgramPath(out.StateDir))
		fmt.Fprintf(a.Stdout, "Its capability lies in\n  %s\n", filepath.Join(out.StateDir, capability.Name(g.AgentID)))
	}
	if out.Pending != "" {
		fmt.Fprintf(a.Stdout, "%s\n", wrap(clean("Its capability has not reached the host yet: "+out.Pending+" The gateway brings it there when it is connected to the host.")))
	}
	_, err := fmt.Fprintf(a.Stdout, "It joins the mailbox with\n  export PASEO_AGENT_ID=%s\n  %s register\n", shellquote.Word(g.AgentID), program)
	return err
}

func (a *app) agentsRevokeCommand() *cobra.Command {
	var in admin.ByAgent
	c := a.withJSON(&cobra.Command{
		Use:   "revoke --agent <id>",
		Short: "End an agent's access to the mailbox",
		Long: `Its next request is refused. Its peer and mail stay, and the agent itself goes on: to end its
peer as well use gateway peers stop. It comes back with gateway agents adopt alone.`,
		Example: `  gateway agents revoke --agent my-agent
  gateway agents revoke --host build-box --agent 0b9c1d0e-8e3d-4a53-9d2e-8c2f3b1f7a10`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if in.AgentID == "" {
				return usage("--agent is missing")
			}
			out, err := call(a, cmd, admin.RevokeAgent, in)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, out)
			}
			text := "%s on %s is revoked: its next request is refused.\n"
			if out.AlreadyRevoked {
				text = "%s on %s was revoked already.\n"
			}
			_, err = fmt.Fprintf(a.Stdout, text, out.Agent.AgentID, out.Agent.HostID)
			return err
		},
	})
	c.Flags().StringVar(&in.AgentID, "agent", "", "the agent's `id`")
	c.Flags().StringVar(&in.HostID, "host", "", "the `host` that it runs on (default this machine)")
	return c
}
