package peeragent

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"
)

func peersCommand(env peerEnv) *cobra.Command {
	var all bool
	var cursor string
	cmd := env.command(peerCommand{
		use: "peers", short: "List whom this agent can write to",
		long: `Each has a peerId, which send takes with --to. notification says whether mail wakes it.
nextCursor stands there when there are more: pass it with --cursor.`,
		example: `  peer-agent peers`,
		run: func(ctx context.Context, a *agent, _ []string) (json.RawMessage, error) {
			in := map[string]any{"includeStopped": all, "limit": 200}
			if cursor != "" {
				in["cursor"] = cursor
			}
			return a.ask(ctx, "list_peers", in, 0)
		},
	})
	cmd.Flags().BoolVar(&all, "all", false, "also those that are stopped")
	cmd.Flags().StringVar(&cursor, "cursor", "", "nextCursor of the page before")
	return cmd
}
