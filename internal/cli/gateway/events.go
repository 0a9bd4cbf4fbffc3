package gateway

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"agentrelay/internal/admin"
	"agentrelay/internal/events"
)

func (a *app) eventsCommand() *cobra.Command {
	return a.group("events", "Look at what wakes the peers, and send again what failed",
		`A client that subscribes to MCP Events is called when a peer has new mail; a wake-up
target of the config is called once. These commands show the subscriptions and what
became of each event. They work with and without a running gateway.`,
		`  gateway events subscriptions
  gateway events list --dead
  gateway events resend <eventId>`,
		a.eventsListCommand(), a.eventsResendCommand(), a.eventsSubscriptionsCommand(), a.eventsForgetCommand())
}

func (a *app) eventsListCommand() *cobra.Command {
	var in admin.DeliveriesIn
	var page paging
	c := a.withJSON(&cobra.Command{
		Use:   "list",
		Short: "List events and their deliveries, newest first",
		Long: `Lists each event once for each receiver. --dead shows those that nothing tries again:
failed ones, and those whose outcome is not known. With --json each has its attempts.`,
		Example: `  gateway events list
  gateway events list --dead
  gateway events list --limit 200 --json`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			in.Limit, in.Cursor = page.args()
			out, err := call(a, cmd, admin.ListDeliveries, in)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, out)
			}
			return a.printDeliveries(out, in.Dead)
		},
	})
	c.Flags().BoolVar(&in.Dead, "dead", false, "only those that nothing tries again")
	c.Flags().StringVar(&in.Owner, "owner", "", "only those of this `owner`")
	page.flags(c)
	return c
}

func (a *app) printDeliveries(out events.DeliveriesOut, dead bool) error {
	if len(out.Deliveries) == 0 {
		text := "No event was stored yet: one is when mail comes for a peer that something wakes."
		if dead {
			text = "No event is dead: each was accepted, cancelled, or is on its way."
		}
		_, err := fmt.Fprintln(a.Stdout, text)
		return err
	}
	now := a.Now()
	rows := make([][]string, len(out.Deliveries))
	for i, d := range out.Deliveries {
		rows[i] = []string{d.EventID, d.PeerID, string(d.Path), string(d.State), strconv.Itoa(len(d.Attempts)), ago(now, d.CreatedAt.Time), d.Reason}
	}
	if err := table(a.Stdout, 0, []string{"EVENT", "PEER", "BY", "STATE", "ATTEMPTS", "STORED", "REASON"}, rows); err != nil {
		return err
	}
	return a.printMore(out.NextCursor)
}

func (a *app) eventsResendCommand() *cobra.Command {
	return a.withJSON(&cobra.Command{
		Use:   "resend <eventId>",
		Short: "Send an event again that nothing tries any more",
		Long: `Begins a new round of attempts for each delivery of the event that was not accepted,
with the same id, so that a receiver can tell a repetition. A wake-up target whose
outcome is not known is left alone: a routine must not run twice.`,
		Example: `  gateway events list --dead
  gateway events resend evt_0123456789abcdef0123456789abcdef`,
		Args: exact("the event id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			out, err := call(a, cmd, admin.ResendEvent, admin.ResendIn{EventID: args[0]})
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, out)
			}
			_, err = fmt.Fprintf(a.Stdout, "%s is sent again, to %s. See: gateway events list\n", clean(out.EventID), plural(int64(out.Resent), "receiver"))
			return err
		},
	})
}

func (a *app) eventsSubscriptionsCommand() *cobra.Command {
	var in admin.SubscriptionsIn
	var page paging
	c := a.withJSON(&cobra.Command{
		Use:   "subscriptions",
		Short: "List what wakes the peers: subscriptions and wake-up targets",
		Example: `  gateway events subscriptions
  gateway events subscriptions --all
  gateway events subscriptions --json`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			in.Limit, in.Cursor = page.args()
			out, err := call(a, cmd, admin.ListSubscriptions, in)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, out)
			}
			return a.printSubscriptions(out, in.IncludeEnded)
		},
	})
	c.Flags().BoolVar(&in.IncludeEnded, "all", false, "also those that expired or ended")
	c.Flags().StringVar(&in.Owner, "owner", "", "only those of this `owner`")
	page.flags(c)
	return c
}

func (a *app) printSubscriptions(out events.SubscriptionsOut, all bool) error {
	if len(out.Subscriptions) == 0 {
		text := "There is no subscription. A client that knows MCP Events makes one, such as a ChatGPT conversation that is asked to watch its mail."
		if !all {
			text += "\nThose that expired or ended are shown with --all."
		}
		fmt.Fprintln(a.Stdout, wrap(text))
	} else if err := a.printSubscriptionTable(out.Subscriptions); err != nil {
		return err
	}
	if len(out.Targets) > 0 {
		fmt.Fprintln(a.Stdout)
		rows := make([][]string, len(out.Targets))
		for i, t := range out.Targets {
			rows[i] = []string{t.PeerID, strconv.FormatInt(t.Generation, 10), t.RoutineID, string(t.Scheme), t.State, t.Reason}
		}
		if err := table(a.Stdout, 4, []string{"WAKE-UP OF", "GENERATION", "ROUTINE", "SCHEME", "STATE", "REASON"}, rows); err != nil {
			return err
		}
	}
	return a.printMore(out.NextCursor)
}

func (a *app) printSubscriptionTable(list []events.SubscriptionInfo) error {
	now := a.Now()
	rows := make([][]string, len(list))
	for i, s := range list {
		expires := ago(now, s.ExpiresAt.Time)
		if s.State == "ended" {
			expires = ""
		}
		rows[i] = []string{
			s.Name + " " + subject(s.Arguments), strings.TrimPrefix(s.Receiver, "https://"), s.State, expires,
			ago(now, s.LastAcceptedAt.Time), strconv.Itoa(s.Waiting), s.Reason,
		}
	}
	return table(a.Stdout, 2, []string{"EVENT", "RECEIVER", "STATE", "EXPIRES", "ACCEPTED", "WAITING", "REASON"}, rows)
}

// subject is the values of a subscription's arguments.
func subject(arguments json.RawMessage) string {
	var members map[string]string
	if json.Unmarshal(arguments, &members) != nil {
		return string(arguments)
	}
	var values []string
	for _, name := range slices.Sorted(maps.Keys(members)) {
		values = append(values, members[name])
	}
	return strings.Join(values, " ")
}

func (a *app) eventsForgetCommand() *cobra.Command {
	var yes bool
	c := a.withJSON(&cobra.Command{
		Use:   "forget-secrets --yes",
		Short: "End every subscription, when the key of their secrets is lost",
		Long: `The secrets with which callbacks are signed are sealed with a key file in the state
directory. If that file is lost and no backup has it, the secrets can't be read any
more, and the gateway does not start. This ends every subscription; each client has to
subscribe again. Mail and peers stay as they are.`,
		Example: `  gateway events forget-secrets --yes`,
		Args:    exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !yes {
				return &exitError{code: ExitUsage, err: fmt.Errorf("nothing was ended"), hint: "put the key file back from a backup if there is one; else run this again with --yes"}
			}
			out, err := call(a, cmd, admin.ForgetSecrets, admin.None{})
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, out)
			}
			_, err = fmt.Fprintf(a.Stdout, "%s ended. Ask the clients to subscribe again.\n", plural(int64(out.Subscriptions), "subscription"))
			return err
		},
	})
	c.Flags().BoolVar(&yes, "yes", false, "end them")
	return c
}
