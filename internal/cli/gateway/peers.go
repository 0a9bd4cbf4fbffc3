package gateway

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"agentrelay/internal/admin"
	"agentrelay/internal/mailbox"
)

func (a *app) peersCommand() *cobra.Command {
	return a.group("peers", "Look at the peers and stop them",
		`A peer is a name under which a client sends and receives messages. Clients register
their peers themselves. These commands work with and without a running gateway.`,
		`  gateway peers list
  gateway peers stop <peerId>`,
		a.peersListCommand(), a.peersStopCommand())
}

func (a *app) peersListCommand() *cobra.Command {
	var in admin.PeersIn
	var page paging
	c := a.withJSON(&cobra.Command{
		Use:   "list",
		Short: "List the peers",
		Example: `  gateway peers list
  gateway peers list --all
  gateway peers list --json`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			in.Limit, in.Cursor = page.args()
			out, err := call(a, cmd, admin.ListPeers, in)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, out)
			}
			return a.printPeers(out, in.IncludeStopped)
		},
	})
	c.Flags().BoolVar(&in.IncludeStopped, "all", false, "also those that are stopped")
	c.Flags().StringVar(&in.Owner, "owner", "", "only those of this `owner`")
	page.flags(c)
	return c
}

func (a *app) printPeers(out mailbox.AllPeersOut, all bool) error {
	if len(out.Peers) == 0 {
		text := "No peer is registered. Say to a connected client:\n\"Register yourself as a peer with register_peer.\""
		if !all {
			text += " Stopped peers are shown with --all."
		}
		_, err := fmt.Fprintln(a.Stdout, text)
		return err
	}
	now := a.Now()
	headings := []string{"PEER", "KIND", "STATE", "UNPROCESSED", "LAST SEEN", "WOKEN BY", "NAME"}
	several := out.Peers[0].Owner != out.Peers[len(out.Peers)-1].Owner
	if several {
		headings = append(headings, "OWNER")
	}
	rows := make([][]string, len(out.Peers))
	for i, p := range out.Peers {
		rows[i] = []string{p.PeerID, string(p.Kind), string(p.State), strconv.FormatInt(p.UnprocessedCount, 10), ago(now, p.LastSeenAt.Time), string(p.Notification.Path), p.DisplayName}
		if several {
			rows[i] = append(rows[i], p.Owner)
		}
	}
	if err := table(a.Stdout, 0, headings, rows); err != nil {
		return err
	}
	return a.printMore(out.NextCursor)
}

func (a *app) peersStopCommand() *cobra.Command {
	var in admin.StopPeerIn
	c := a.withJSON(&cobra.Command{
		Use:   "stop <peerId>",
		Short: "Stop a peer",
		Long: `A stopped peer neither sends nor receives. Its messages stay, and a client that
registers the same id again makes it active.`,
		Example: `  gateway peers stop grok-bot`,
		Args:    exact("the peer id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.PeerID = args[0]
			out, err := call(a, cmd, admin.StopPeer, in)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, out)
			}
			if out.AlreadyStopped {
				_, err = fmt.Fprintf(a.Stdout, "%s was stopped already.\n", clean(out.Peer.PeerID))
				return err
			}
			_, err = fmt.Fprintf(a.Stdout, "%s is stopped. %s; register_peer makes it active again.\n", clean(out.Peer.PeerID), waiting(out.Peer.UnprocessedCount))
			return err
		},
	})
	c.Flags().StringVar(&in.Owner, "owner", "", "the peer's `owner`, when several have a peer of this id")
	return c
}

func waiting(n int64) string {
	if n == 0 {
		return "No message waits for it"
	}
	return plural(n, "unprocessed message") + " stay"
}

// paging is the flags of a list that has pages.
type paging struct {
	limit  int
	cursor string
}

func (p *paging) flags(c *cobra.Command) {
	c.Flags().IntVar(&p.limit, "limit", 50, "at most so many, 1 to 200")
	c.Flags().StringVar(&p.cursor, "cursor", "", "go on from the `cursor` of an earlier list")
}

func (p *paging) args() (limit *int, cursor *string) {
	if p.cursor != "" {
		cursor = &p.cursor
	}
	return &p.limit, cursor
}

// printMore says how to get the next page.
func (a *app) printMore(cursor string) error {
	if cursor == "" {
		return nil
	}
	_, err := fmt.Fprintf(a.Stdout, "\nThere is more. The next page: the same command with --cursor %s\n", cursor)
	return err
}
