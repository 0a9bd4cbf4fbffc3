package peeragent

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"
)

func registerCommand(env peerEnv) *cobra.Command {
	var peerID, name string
	cmd := env.command(peerCommand{
		use: "register", short: "Give this agent its name in the owner's directory",
		long: `Without --peer the name is that of the last time, else the agent's id. Registering again is
harmless. A peer that was stopped is active again, and sees only mail that comes from then on.`,
		example: `  peer-agent register
  peer-agent register --peer builder --name "Builds the site"`,
		run: func(ctx context.Context, a *agent, _ []string) (json.RawMessage, error) {
			if peerID == "" {
				own, err := a.peer(ctx)
				if err != nil {
					return nil, err
				}
				if peerID = own; peerID == "" {
					peerID = a.AgentID
				}
			}
			in := map[string]any{"peerId": peerID}
			if name != "" {
				in["displayName"] = name
			}
			return a.change(ctx, "register_peer", in)
		},
	})
	cmd.Flags().StringVar(&peerID, "peer", "", "the peer `id` to use")
	cmd.Flags().StringVar(&name, "name", "", "what people call it: `text` of at most 100 characters")
	return cmd
}
