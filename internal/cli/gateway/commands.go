package gateway

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"agentrelay/internal/admin"
	"agentrelay/internal/direct/commands"
	"agentrelay/internal/direct/commands/record"
)

func (a *app) commandsCommand() *cobra.Command {
	return a.group("commands", "Look at the commands that clients ran in your projects, and end one",
		`A command that a client starts with run_direct_command goes on when the client leaves
and when the gateway restarts. These commands work with and without a running gateway.`,
		`  gateway commands list
  gateway commands show <commandId>
  gateway commands cancel <commandId>`,
		a.commandsListCommand(), a.commandsShowCommand(), a.commandsCancelCommand())
}

func (a *app) commandsListCommand() *cobra.Command {
	var in admin.CommandsIn
	var page paging
	var state string
	c := a.withJSON(&cobra.Command{
		Use:   "list",
		Short: "List commands, newest first",
		Example: `  gateway commands list
  gateway commands list --state running
  gateway commands list --project site --limit 200 --json`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			in.State = record.State(state)
			in.Limit, in.Cursor = page.args()
			out, err := call(a, cmd, admin.ListCommands, in)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, out)
			}
			return a.printCommands(out)
		},
	})
	c.Flags().StringVar(&in.ProjectID, "project", "", "only those in this `project`")
	c.Flags().StringVar(&state, "state", "", "only those in this `state`, such as running or failed")
	c.Flags().StringVar(&in.Owner, "owner", "", "only those of this `owner`")
	page.flags(c)
	return c
}

func (a *app) printCommands(out commands.AllCommandsOut) error {
	if len(out.Commands) == 0 {
		_, err := fmt.Fprintln(a.Stdout, "There are no such commands. Clients run them with run_direct_command, in projects whose commandMode\nallows it.")
		return err
	}
	now := a.Now()
	rows := make([][]string, len(out.Commands))
	for i, c := range out.Commands {
		rows[i] = []string{c.CommandID, c.ProjectID, ago(now, c.CreatedAt.Time), stateOf(c.Receipt), strings.Join(c.Argv, " ")}
	}
	if err := table(a.Stdout, 0, []string{"COMMAND", "PROJECT", "RUN", "STATE", "ARGUMENTS"}, rows); err != nil {
		return err
	}
	return a.printMore(out.NextCursor)
}

// stateOf is a command's state with how it ended.
func stateOf(r commands.Receipt) string {
	switch {
	case r.ExitCode != nil:
		return string(r.State) + " " + strconv.Itoa(*r.ExitCode)
	case r.Error != nil:
		return string(r.State) + " " + r.Error.Code
	}
	return string(r.State)
}

func (a *app) commandsShowCommand() *cobra.Command {
	var cursor int64
	c := a.withJSON(&cobra.Command{
		Use:   "show <commandId>",
		Short: "Show a command and a page of its output",
		Example: `  gateway commands show 0123456789abcdef01234567
  gateway commands show 0123456789abcdef01234567 --cursor 65536`,
		Args: exact("the command id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			out, err := call(a, cmd, admin.ShowCommand, admin.ShowCommandIn{CommandID: args[0], Cursor: &cursor})
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, out)
			}
			return a.printCommand(out)
		},
	})
	c.Flags().Int64Var(&cursor, "cursor", 0, "show the output after this `position`")
	return c
}

func (a *app) printCommand(out commands.ShowCommandOut) error {
	now := a.Now()
	lines := [][2]string{
		{"Command", out.CommandID}, {"Request", out.RequestID}, {"Owner", out.Owner}, {"Project", out.ProjectID},
		{"Arguments", strings.Join(out.Argv, " ")}, {"Directory", "/" + out.CWD}, {"State", stateOf(out.Receipt)},
		{"Started", ago(now, out.StartedAt.Time)}, {"Ended", ago(now, out.EndedAt.Time)},
	}
	if out.Error != nil {
		lines = append(lines, [2]string{"Reason", out.Error.Message})
	}
	for _, l := range lines {
		fmt.Fprintf(a.Stdout, "%-9s %s\n", l[0], strings.ReplaceAll(clean(l[1]), "\n", " "))
	}
	if !out.OutputAvailable {
		_, err := fmt.Fprintln(a.Stdout, "\nIts output is not kept, or there was none.")
		return err
	}
	fmt.Fprintln(a.Stdout)
	for _, e := range out.Events {
		if _, err := io.WriteString(a.Stdout, clean(e.Text)); err != nil {
			return err
		}
	}
	if out.LostCount > 0 {
		fmt.Fprintf(a.Stdout, "\n%d bytes of this part were not kept.\n", out.LostCount)
	}
	if out.Truncated {
		return a.printMore(strconv.FormatInt(out.NextCursor, 10))
	}
	return nil
}

func (a *app) commandsCancelCommand() *cobra.Command {
	return a.withJSON(&cobra.Command{
		Use:   "cancel <commandId>",
		Short: "End a command and its whole process group",
		Long: `Ends the processes of the command: with TERM, and with KILL two seconds later. What it
has printed stays.`,
		Example: `  gateway commands list --state running
  gateway commands cancel 0123456789abcdef01234567`,
		Args: exact("the command id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			out, err := call(a, cmd, admin.CancelCommand, admin.ByCommand{CommandID: args[0]})
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, out)
			}
			text := "It is being ended. See: gateway commands show " + out.CommandID
			switch {
			case !out.CancelRequested:
				text = "It had ended before: " + stateOf(out.Receipt) + "."
			case out.State.Final():
				text = "It has ended: " + stateOf(out.Receipt) + "."
			}
			_, err = fmt.Fprintln(a.Stdout, text)
			return err
		},
	})
}
