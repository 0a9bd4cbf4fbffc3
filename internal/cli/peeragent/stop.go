package peeragent

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"
)

func stopCommand(env peerEnv) *cobra.Command {
	return env.command(peerCommand{
		use: "stop", short: "End this agent's peer",
		long: `Nobody can write to it until it registers again. Its mail stays. Stopping twice is harmless.
The agent itself goes on.`,
		example: `  peer-agent stop`,
		run: func(ctx context.Context, a *agent, _ []string) (json.RawMessage, error) {
			own, err := a.ownPeer(ctx)
			if err != nil {
				return nil, err
			}
			return a.change(ctx, "stop_peer", map[string]any{"peerId": own})
		},
	})
}
