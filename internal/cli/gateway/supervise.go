package gateway

import (
	"bytes"
	"strings"

	"github.com/spf13/cobra"

	"agentrelay/internal/direct/commands/supervisor"
)

// superviseCommand is what the gateway starts for each command of the Direct
// workspace when there is no peer-agent beside it.
func (a *app) superviseCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "supervise directory",
		Short: "Run one command of the Direct workspace (the gateway starts this itself)",
		Long: `Run one command of the Direct workspace to its end, apart from the gateway, which may be
restarted meanwhile. The gateway starts this itself, in a session of its own.`,
		Example: `  setsid gateway supervise ~/.local/state/agent-relay/commands/0123456789abcdef01234567`,
		Hidden:  true,
		Args:    exact("the directory of a command"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var said bytes.Buffer
			if supervisor.Supervise(cmd.Context(), args, supervisor.Stdio{In: a.Stdin, Out: a.Stdout, Err: &said}) != ExitOK {
				return failed("", "%s", strings.TrimPrefix(strings.TrimSpace(said.String()), "supervise: "))
			}
			return nil
		},
	}
}
