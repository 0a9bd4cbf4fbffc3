package peeragent

import (
	"github.com/spf13/cobra"

	"agentrelay/internal/direct/commands/supervisor"
)

// superviseCommand explains what [Main] does without it.
func superviseCommand(env Env) *cobra.Command {
	return &cobra.Command{
		Use:   "supervise directory",
		Short: "Run one command of the Direct workspace (a worker or gateway starts this itself)",
		Long: `Run one command of the Direct workspace to its end, apart from the worker or gateway, which
may be restarted meanwhile. They start this themselves, in a session of its own.`,
		Example: `  setsid peer-agent supervise ~/.local/state/agent-relay-worker/worker/direct/commands/0123456789abcdef01234567`,
		Hidden:  true,
		Args:    exact("the directory of a command"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if code := supervisor.Supervise(cmd.Context(), args, supervisor.Stdio{In: env.Stdin, Out: env.Stdout, Err: env.Stderr}); code != ExitOK {
				return &exitError{code: code, err: errSaid}
			}
			return nil
		},
	}
}
