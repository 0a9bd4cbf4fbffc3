package gateway

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"agentrelay/internal/admin"
	"agentrelay/internal/oauth"
	"agentrelay/internal/principal"
)

func (a *app) clientsCommand() *cobra.Command {
	return a.group("clients", "Decide which clients may use the gateway, and for what",
		`Clients register themselves when you connect them, and can do nothing before you
allow them on the page of your gateway. These commands look at them and change what
they may do. They work with and without a running gateway.`,
		`  gateway clients list
  gateway clients deny <clientId> mailbox
  gateway clients revoke <clientId>`,
		a.clientsListCommand(), a.clientsAddCommand(), a.clientsRevokeCommand(),
		a.permissionsCommand("allow", "Allow a client more"), a.permissionsCommand("deny", "Take permissions from a client"))
}

func (a *app) clientsListCommand() *cobra.Command {
	return a.withJSON(&cobra.Command{
		Use:   "list",
		Short: "List the clients, the one last used first",
		Example: `  gateway clients list
  gateway clients list --json`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			clients, err := call(a, cmd, admin.ListClients, admin.None{})
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, map[string]any{"clients": clients})
			}
			return a.printClients(clients)
		},
	})
}

func (a *app) printClients(clients []oauth.ClientInfo) error {
	if len(clients) == 0 {
		c, _, err := a.load()
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(a.Stdout, "No client is known yet. Add this URL as a connector in ChatGPT, Claude, Cursor or Grok:\n\n  %s\n\nThe README says where. To register a client by hand: gateway clients add --help\n", c.MCPURL())
		return err
	}
	now := a.Now()
	rows := make([][]string, len(clients))
	for i, c := range clients {
		used := "never"
		if c.LastUsedAt != nil {
			used = ago(now, *c.LastUsedAt)
		}
		access := "not allowed yet"
		if c.ActiveGrants > 0 {
			access = may(c.Permissions)
		} else if c.AuthorizedAt != nil {
			access = "revoked or expired"
		}
		rows[i] = []string{c.Name, access, used, strings.Join(c.RedirectHosts, " "), "id " + c.ID}
	}
	return table(a.Stdout, -1, []string{"NAME", "MAY USE", "LAST USED", "RETURNS TO"}, rows)
}

// may is a set of permissions in a table.
func may(s principal.Set) string {
	switch len(s) {
	case 0:
		return "nothing"
	case len(principal.All()):
		return "everything"
	}
	return s.String()
}

func (a *app) clientsAddCommand() *cobra.Command {
	var in oauth.NewClient
	c := a.withJSON(&cobra.Command{
		Use:   "add --name <name> --redirect <address>",
		Short: "Register a client by hand",
		Long: `Registers a client that can't register itself. Redirect addresses must be loopback,
those of a known client, or listed under oauth.redirects in the config. The client
still needs your consent when it connects.

With --secret it gets a client secret, which is printed once.`,
		Example: `  gateway clients add --name "My app" --redirect http://127.0.0.1:8080/callback
  gateway clients add --name ChatGPT --redirect https://chatgpt.com/connector/oauth/abc --secret`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if in.Name == "" {
				return usage("--name is missing")
			}
			if len(in.RedirectURIs) == 0 {
				return usage("--redirect is missing")
			}
			added, err := call(a, cmd, admin.AddClient, in)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, added)
			}
			fmt.Fprintf(a.Stdout, "Client ID      %s\n", added.ID)
			if added.Secret != "" {
				fmt.Fprintf(a.Stdout, "Client secret  %s\n  It is shown once and stored nowhere else.\n", added.Secret)
			}
			_, err = fmt.Fprintln(a.Stdout, "Enter this in the client and connect it; your consent is asked for then.")
			return err
		},
	})
	c.Flags().StringVar(&in.Name, "name", "", "`name` to show on the consent page")
	c.Flags().StringArrayVar(&in.RedirectURIs, "redirect", nil, "redirect `address` of the client; may be repeated")
	c.Flags().BoolVar(&in.Secret, "secret", false, "make a client secret")
	return c
}

func (a *app) clientsRevokeCommand() *cobra.Command {
	return a.withJSON(&cobra.Command{
		Use:   "revoke <clientId>",
		Short: "End a client's access",
		Long: `Ends all tokens of a client at once, and what it has under way. Peers and messages
stay. The client may ask for your consent again; until you give it, it can do nothing.`,
		Example: `  gateway clients revoke 7f3a...`,
		Args:    exact("the client id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			out, err := call(a, cmd, admin.RevokeClient, admin.ByClient{ClientID: args[0]})
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, out)
			}
			if out.Grants == 0 {
				_, err = fmt.Fprintln(a.Stdout, "The client had no access: there was nothing to end.")
				return err
			}
			_, err = fmt.Fprintf(a.Stdout, "Ended %s. The client can do nothing until you allow it again.\n", plural(out.Grants, "login"))
			return err
		},
	})
}

// permissionsCommand is allow or deny.
func (a *app) permissionsCommand(verb, short string) *cobra.Command {
	return a.withJSON(&cobra.Command{
		Use:   verb + " <clientId> <permission>...",
		Short: short,
		Long: short + `, from its next request on.
The permissions are ` + strings.Join(strings.Split(principal.Full().String(), ","), ", ") + `; "all" is every one.`,
		Example: `  gateway clients ` + verb + ` <clientId> mailbox
  gateway clients ` + verb + ` <clientId> files_write commands
  gateway clients ` + verb + ` <clientId> all`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usage("%s is missing", []string{"the client id", "a permission"}[len(args)])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			set, err := principal.ParseSet(strings.Join(args[1:], ","))
			if err != nil {
				return usage("%s", err)
			}
			if len(set) == 0 {
				return usage("a permission is missing")
			}
			in := admin.PermissionsIn{ClientID: args[0], Allow: set, Deny: principal.Set{}}
			if verb == "deny" {
				in.Allow, in.Deny = in.Deny, in.Allow
			}
			out, err := call(a, cmd, admin.SetPermissions, in)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, out)
			}
			_, err = fmt.Fprintf(a.Stdout, "From its next request on the client may use %s.\n", strings.ReplaceAll(may(out.Permissions), ",", ", "))
			return err
		},
	})
}
