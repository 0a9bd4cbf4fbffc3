package gateway

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"agentrelay/internal/admin"
	"agentrelay/internal/hosts/local"
	"agentrelay/internal/principal"
	"agentrelay/internal/transfers"
)

func (a *app) transfersCommand() *cobra.Command {
	return a.group("transfers", "Look at the files that clients exported and imported",
		`An export gives a client a link from which a file of a project can be downloaded for a
while; an import puts a file of the internet into a project.`,
		`  gateway transfers list
  gateway transfers revoke <requestId>`,
		a.transfersListCommand(), a.transfersRevokeCommand())
}

func (a *app) transfersRevokeCommand() *cobra.Command {
	in := transfers.RevokeIn{HostID: local.ID()}
	c := a.withJSON(&cobra.Command{
		Use:   "revoke <requestId>",
		Short: "End a transfer and its link",
		Long: `The link stops working at once, downloads of it are cut, and a transfer that is under
way is broken off. What was imported or downloaded before stays where it is.`,
		Example: `  gateway transfers list
  gateway transfers revoke export-1`,
		Args: exact("the request id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.RequestID = args[0]
			out, err := call(a, cmd, admin.RevokeTransfers, in)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, out)
			}
			text := "It is ended, and its link with it."
			if out.Transfers == 0 {
				text = "It had ended before, and it has no link."
			}
			_, err = fmt.Fprintln(a.Stdout, text)
			return err
		},
	})
	c.Flags().StringVar(&in.Owner, "owner", principal.SharedOwner, "the `owner` whose transfer it is")
	return c
}

func (a *app) transfersListCommand() *cobra.Command {
	var in transfers.AllTransfersIn
	var page paging
	c := a.withJSON(&cobra.Command{
		Use:   "list",
		Short: "List exports and imports, newest first",
		Long:  `Lists the transfers with their state, and never a link.`,
		Example: `  gateway transfers list
  gateway transfers list --limit 200 --json`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			in.Limit, in.Cursor = page.args()
			out, err := call(a, cmd, admin.ListTransfers, in)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, out)
			}
			return a.printTransfers(out)
		},
	})
	c.Flags().StringVar(&in.Owner, "owner", "", "only those of this `owner`")
	page.flags(c)
	return c
}

func (a *app) printTransfers(out transfers.AllTransfersOut) error {
	if len(out.Transfers) == 0 {
		_, err := fmt.Fprintln(a.Stdout, "There are no transfers. Clients begin them with export_direct_file and import_direct_file.")
		return err
	}
	now := a.Now()
	rows := make([][]string, len(out.Transfers))
	for i, t := range out.Transfers {
		size, state := "", string(t.State)
		if t.Size != nil {
			size = strconv.FormatInt(*t.Size, 10)
		}
		if t.Error != nil {
			state += " " + t.Error.Code
		}
		rows[i] = []string{t.RequestID, string(t.Direction), t.ProjectID, t.Path, size, ago(now, t.CreatedAt.Time), state}
	}
	if err := table(a.Stdout, 0, []string{"REQUEST", "KIND", "PROJECT", "FILE", "BYTES", "BEGUN", "STATE"}, rows); err != nil {
		return err
	}
	return a.printMore(out.NextCursor)
}
