package gateway

import (
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"agentrelay/internal/admin"
	"agentrelay/internal/mailbox"
)

func (a *app) messagesCommand() *cobra.Command {
	return a.group("messages", "Look at the mail between peers and remove old text",
		`These commands show who wrote to whom and when, and never what. They work with and
without a running gateway.`,
		`  gateway messages list
  gateway messages purge --before 90d`,
		a.messagesListCommand(), a.messagesPurgeCommand())
}

func (a *app) messagesListCommand() *cobra.Command {
	var in admin.MessagesIn
	var page paging
	var state string
	c := a.withJSON(&cobra.Command{
		Use:   "list",
		Short: "List messages without their text, newest first",
		Example: `  gateway messages list
  gateway messages list --peer grok-bot --state unprocessed
  gateway messages list --limit 200 --json`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			in.State = mailbox.State(state)
			in.Limit, in.Cursor = page.args()
			out, err := call(a, cmd, admin.ListMessages, in)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, out)
			}
			return a.printMessages(out)
		},
	})
	c.Flags().StringVar(&in.PeerID, "peer", "", "only to or from this `peer`")
	c.Flags().StringVar(&state, "state", "", "only unprocessed or only processed ones")
	c.Flags().StringVar(&in.Owner, "owner", "", "only those of this `owner`")
	page.flags(c)
	return c
}

func (a *app) printMessages(out mailbox.AllMessagesOut) error {
	if len(out.Messages) == 0 {
		_, err := fmt.Fprintln(a.Stdout, "There are no such messages. Clients send them with send_peer_message, once two peers are\nregistered: gateway peers list")
		return err
	}
	now := a.Now()
	rows := make([][]string, len(out.Messages))
	for i, m := range out.Messages {
		state := string(m.State)
		if m.State == mailbox.Unprocessed && !m.ReadAt.IsZero() {
			state = "read"
		}
		if !m.PurgedAt.IsZero() {
			state = "purged"
		}
		rows[i] = []string{m.MessageID, m.FromPeerID, m.ToPeerID, ago(now, m.CreatedAt.Time), state, strconv.Itoa(m.TextLength)}
	}
	if err := table(a.Stdout, 0, []string{"MESSAGE", "FROM", "TO", "SENT", "STATE", "CHARACTERS"}, rows); err != nil {
		return err
	}
	return a.printMore(out.NextCursor)
}

func (a *app) messagesPurgeCommand() *cobra.Command {
	var in admin.PurgeIn
	var before string
	var yes bool
	c := a.withJSON(&cobra.Command{
		Use:   "purge --before <time>",
		Short: "Remove the text of old messages for good",
		Long: `Removes the text of messages that were sent before a time, and takes them out of
every list. That a message was sent stays on record, so that a repeat of it is not
delivered a second time. Messages that nobody processed yet are kept, unless
--include-unprocessed is given.

Without --yes nothing is removed: the messages are counted, and the exit code is 2.
With --dry-run they are counted and the exit code is 0.

The time is RFC 3339, or an age such as 30d, 720h or 90m.`,
		Example: `  gateway messages purge --before 90d --dry-run
  gateway messages purge --before 90d --yes
  gateway messages purge --before 2026-01-01T00:00:00Z --yes`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if before == "" {
				return usage("--before is missing")
			}
			if yes && in.DryRun {
				return usage("--yes and --dry-run are given at once: keep one")
			}
			dry := in.DryRun
			in.DryRun = !yes
			var err error
			if in.Before, err = parseBefore(before, a.Now()); err != nil {
				return err
			}
			out, err := call(a, cmd, admin.PurgeMessages, in)
			if err != nil {
				return err
			}
			return a.printPurge(in, out, dry)
		},
	})
	c.Flags().StringVar(&before, "before", "", "`time` or age; messages sent before it lose their text")
	c.Flags().BoolVar(&in.IncludeUnprocessed, "include-unprocessed", false, "also messages that nobody processed yet")
	c.Flags().StringVar(&in.Owner, "owner", "", "only those of this `owner`")
	c.Flags().BoolVar(&yes, "yes", false, "remove them")
	c.Flags().BoolVar(&in.DryRun, "dry-run", false, "only count them")
	return c
}

// printPurge says what a purge did. One that was neither confirmed nor a dry run
// is an error after it has counted.
func (a *app) printPurge(in admin.PurgeIn, out mailbox.PurgeOut, dry bool) error {
	confirm := in.DryRun && !dry && out.Purged > 0
	if a.json {
		result := struct {
			mailbox.PurgeOut
			Before mailbox.Time `json:"before"`
			DryRun bool         `json:"dryRun"`
		}{out, mailbox.Time{Time: in.Before}, in.DryRun}
		if err := a.printJSON(a.Stdout, result); err != nil {
			return err
		}
	} else {
		verb := "Removed"
		if in.DryRun {
			verb = "This would remove"
		}
		fmt.Fprintf(a.Stdout, "%s the text of %s sent before %s.\n", verb, plural(out.Purged, "message"), in.Before.UTC().Format(time.RFC3339))
		if out.KeptUnprocessed > 0 {
			fmt.Fprintf(a.Stdout, "%s that old, not processed yet, stay: --include-unprocessed takes them too.\n", plural(out.KeptUnprocessed, "message"))
		}
	}
	if confirm {
		return &exitError{code: ExitUsage, err: fmt.Errorf("nothing was removed"), hint: "run it again with --yes to remove them, or with --dry-run to only count"}
	}
	return nil
}

var days = regexp.MustCompile(`^(\d{1,6})d$`)

// parseBefore reads RFC 3339 or an age.
func parseBefore(s string, now time.Time) (time.Time, error) {
	if m := days.FindStringSubmatch(s); m != nil {
		n, err := strconv.Atoi(m[1])
		return now.AddDate(0, 0, -n), err
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, usage("--before must be RFC 3339 such as 2026-01-01T00:00:00Z, or an age such as 30d or 720h")
	}
	if t.After(now) {
		return t, usage("--before is in the future: that would remove every message")
	}
	return t, nil
}
