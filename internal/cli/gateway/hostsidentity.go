package gateway

import (
	"fmt"

	"github.com/spf13/cobra"

	"agentrelay/internal/admin"
)

func (a *app) hostsAcceptIdentityCommand() *cobra.Command {
	return a.withJSON(&cobra.Command{
		Use:   "accept-identity <hostId>",
		Short: "Accept that another agent daemon answers on a machine",
		Long: `The gateway remembers which agent daemon each machine has, and asks nothing of another one:
somebody may listen in its place. After you have installed the daemon anew, or moved it, accept
the one that answers now. local is this machine. Needs a running gateway.`,
		Example: `  gateway hosts accept-identity local
  gateway hosts accept-identity build-server`,
		Args: exact("the host id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			out, err := call(a, cmd, admin.AcceptIdentity, admin.ByHost{HostID: args[0]})
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, out)
			}
			text := fmt.Sprintf("The daemon of %s is the one that is known: %s. Nothing is changed.", out.HostID, clean(out.Found))
			if out.Accepted {
				text = fmt.Sprintf("The daemon of %s is now %s.", out.HostID, clean(out.Found))
			}
			_, err = fmt.Fprintln(a.Stdout, text)
			return err
		},
	})
}
