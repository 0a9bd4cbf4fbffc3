package peeragent

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"
)

func ackCommand(env peerEnv) *cobra.Command {
	return env.command(peerCommand{
		use: "ack MESSAGE_ID", short: "Mark a message as dealt with",
		long: `It leaves the inbox; nothing is sent and nobody is woken. To answer use send with --reply-to.
Acknowledging twice is harmless.`,
		example: `  peer-agent ack b0bd3f0e-08d7-4bf6-9764-58e8ef83f85a`,
		want:    []string{"The message id"},
		run: func(ctx context.Context, a *agent, args []string) (json.RawMessage, error) {
			return a.withMessage(ctx, args[0], func(in map[string]any) (json.RawMessage, error) {
				return a.change(ctx, "ack_peer_message", in)
			})
		},
	})
}
