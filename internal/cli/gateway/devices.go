package gateway

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"agentrelay/internal/admin"
	"agentrelay/internal/devices"
	"agentrelay/internal/shellquote"
)

func (a *app) devicesCommand() *cobra.Command {
	var relay string
	c := a.group("devices", "Pair and look after devices that lend their tools to your clients",
		`A device is a machine that dials in, such as a laptop behind a home router. Its program runs
the tools that its human allows, for clients that have the permission "devices". A device
is paired once, with a code; pairing needs the running gateway, the other commands do not.
With --relay they look after a stand-alone relay (gateway relay) instead.`,
		`  gateway devices pair
  gateway devices list
  gateway devices calls --device laptop
  gateway devices revoke laptop`,
		a.devicesListCommand(&relay), a.devicesPairCommand(&relay), a.devicesRevokeCommand(&relay), a.devicesCallsCommand(&relay))
	c.PersistentFlags().StringVar(&relay, "relay", "", "the state `directory` of a running stand-alone relay")
	return c
}

// callDevices runs a command in the gateway, or in a stand-alone relay.
func callDevices[In, Out any](a *app, cmd *cobra.Command, relay string, c admin.Command[In, Out], in In) (Out, error) {
	if relay == "" {
		return call(a, cmd, c, in)
	}
	var none Out
	dir, err := filepath.Abs(relay)
	if err != nil {
		return none, err
	}
	conn, err := admin.DialRunning(cmd.Context(), dir)
	if err != nil {
		return none, err
	}
	if conn == nil {
		return none, failed("the harness starts it; name the directory of its --state-dir", "no relay runs on %s", dir)
	}
	defer conn.Close()
	return c.Call(cmd.Context(), conn, in)
}

func (a *app) devicesListCommand(relay *string) *cobra.Command {
	return a.withJSON(&cobra.Command{
		Use:   "list",
		Short: "List the paired devices",
		Example: `  gateway devices list
  gateway devices list --json`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			out, err := callDevices(a, cmd, *relay, admin.ListDevices, admin.None{})
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, out)
			}
			if len(out.Devices) == 0 {
				_, err := fmt.Fprint(a.Stdout, "No device is paired. To pair one:\n  gateway devices pair\n")
				return err
			}
			return table(a.Stdout, 0, []string{"DEVICE", "CONNECTED", "LAST SEEN", "TOOLS", "OPEN CALLS", "PAIRED", "PLATFORM"}, deviceRows(a.Now(), out.Devices))
		},
	})
}

func deviceRows(now time.Time, all []devices.Paired) [][]string {
	rows := make([][]string, len(all))
	for i, d := range all {
		connected, tools := "no", "-"
		if d.Connected {
			connected, tools = "for "+span(now.Sub(d.ConnectedAt.Time)), fmt.Sprint(d.Tools)
		}
		rows[i] = []string{d.Name, connected, ago(now, instant(d.SeenAt)), tools, fmt.Sprint(d.OpenCalls), ago(now, d.PairedAt.Time), d.Platform}
	}
	return rows
}

// instant is the zero time for nil, which is shown as never.
func instant(t *devices.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}

func (a *app) devicesPairCommand(relay *string) *cobra.Command {
	var in devices.PairIn
	c := a.withJSON(&cobra.Command{
		Use:   "pair",
		Short: "Show the code that pairs a device",
		Long: `Shows the pairing code that is valid now, or makes one. A code pairs one device, within ten
minutes; five wrong tries burn it, and then this command makes another. A name that is
paired already can be paired anew only with a code of --replace, which ends the old one.`,
		Example: `  gateway devices pair
  gateway devices pair --replace laptop`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			out, err := callDevices(a, cmd, *relay, admin.PairDevice, in)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, out)
			}
			name := "<name>"
			if out.Replaces != "" {
				name = shellquote.Word(out.Replaces)
			}
			_, err = fmt.Fprintf(a.Stdout, "%s\n\nOn the device, within %s:\n  device pair %s %s --device %s\n", out.Code, span(out.ExpiresAt.Sub(a.Now())+time.Second), shellquote.Word(out.URL), out.Code, name)
			return err
		},
	})
	c.Flags().StringVar(&in.Replace, "replace", "", "the `name` of a paired device that is paired anew")
	return c
}

func (a *app) devicesRevokeCommand(relay *string) *cobra.Command {
	return a.withJSON(&cobra.Command{
		Use:   "revoke <name>",
		Short: "End a device's access",
		Long: `Its token is no longer valid, its link is closed and its open calls fail. What it already runs
is not stopped by this. Its name is free for another pairing.`,
		Example: `  gateway devices revoke laptop`,
		Args:    exact("the device's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			out, err := callDevices(a, cmd, *relay, admin.RevokeDevice, devices.RevokeIn{Name: args[0]})
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, out)
			}
			_, err = fmt.Fprintf(a.Stdout, "%s is revoked; %s of it failed.\n", out.Name, plural(out.Calls, "open call"))
			return err
		},
	})
}

func (a *app) devicesCallsCommand(relay *string) *cobra.Command {
	var in devices.CallsIn
	var page paging
	c := a.withJSON(&cobra.Command{
		Use:   "calls",
		Short: "List the calls of devices, newest first",
		Long: `Shows which client called which tool and how it ended; never the arguments, of which the
gateway keeps a hash, nor the output.`,
		Example: `  gateway devices calls
  gateway devices calls --device laptop --json`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			in.Limit, in.Cursor = page.args()
			out, err := callDevices(a, cmd, *relay, admin.ListDeviceCalls, in)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, out)
			}
			if len(out.Calls) == 0 {
				_, err := fmt.Fprintln(a.Stdout, "There are no calls.")
				return err
			}
			if err := table(a.Stdout, 0, []string{"CALL", "DEVICE", "TOOL", "STATE", "CLIENT", "CALLED"}, callRows(a.Now(), out.Calls)); err != nil {
				return err
			}
			return a.printMore(out.NextCursor)
		},
	})
	c.Flags().StringVar(&in.Device, "device", "", "only those of the device of this `name`")
	page.flags(c)
	return c
}

func callRows(now time.Time, calls []devices.Record) [][]string {
	rows := make([][]string, len(calls))
	for i, c := range calls {
		state := c.State
		if c.Code != "" {
			state += ": " + c.Code
		}
		if c.LateAt != nil {
			state += ", a result came late"
		}
		rows[i] = []string{c.CallID, c.Device, c.Tool, state, c.ClientID, ago(now, c.CreatedAt.Time)}
	}
	return rows
}
