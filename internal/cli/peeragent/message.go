package peeragent

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"
)

func messageCommand(env peerEnv) *cobra.Command {
	var requestID, kind, messageID, text string
	var cmd *cobra.Command
	cmd = env.command(peerCommand{
		use: "message --request-id ID", short: "Write to the chat that gave this agent its task",
		long: textHelp + `
Use --kind needs_input to ask for something that you can't go on without, and end your turn
then. When the answer's code is outcome_unknown, repeat the same command with --message-id and
the messageId of that answer: the message is stored once.`,
		example: `  peer-agent message --request-id fix-login --text "Half of the tests pass now."
  peer-agent message --request-id fix-login --kind needs_input --text "Which database is it?"`,
		id: &messageID,
		run: func(ctx context.Context, a *agent, _ []string) (json.RawMessage, error) {
			if err := env.messageID(&messageID); err != nil {
				return nil, err
			}
			switch {
			case requestID == "":
				return nil, badUsage.New("--request-id is missing: it stands in the prompt that gave you the task.")
			case kind != "message" && kind != "needs_input":
				return nil, badUsage.New("--kind must be message or needs_input.")
			}
			text, err := env.text(cmd, text)
			if err != nil {
				return nil, err
			}
			return a.change(ctx, "message", map[string]any{"requestId": requestID, "messageId": messageID, "kind": kind, "text": text})
		},
	})
	cmd.Flags().StringVar(&requestID, "request-id", "", "the `id` of the task, from the prompt")
	cmd.Flags().StringVar(&kind, "kind", "message", "message, or needs_input to ask")
	cmd.Flags().StringVar(&text, "text", "", "the `text` of the message")
	cmd.Flags().StringVar(&messageID, "message-id", "", "the `uuid` of this message, to repeat it")
	return cmd
}
