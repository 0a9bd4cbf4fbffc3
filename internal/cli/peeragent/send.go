package peeragent

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"
)

func sendCommand(env peerEnv) *cobra.Command {
	var to, replyTo, messageID, text string
	var cmd *cobra.Command
	cmd = env.command(peerCommand{
		use: "send --to PEER", short: "Send a message to a peer",
		long: textHelp + `
When the answer's code is outcome_unknown, repeat the same command with --message-id and the
messageId of that answer: the message is stored once. Choose --message-id yourself, a new UUID,
to be able to repeat the command when you saw no answer. That
a message is stored does not say that anybody has read it.`,
		example: `  peer-agent send --to chat-main --text "The build is green."
  git log -1 | peer-agent send --to chat-main
  peer-agent send --to chat-main --reply-to b0bd3f0e-08d7-4bf6-9764-58e8ef83f85a --text "Yes."`,
		id: &messageID,
		run: func(ctx context.Context, a *agent, _ []string) (json.RawMessage, error) {
			if err := env.messageID(&messageID); err != nil {
				return nil, err
			}
			if to == "" {
				return nil, badUsage.New("--to is missing: peer-agent peers lists whom you can write to.")
			}
			text, err := env.text(cmd, text)
			if err != nil {
				return nil, err
			}
			in := map[string]any{"messageId": messageID, "toPeerId": to, "text": text}
			if replyTo != "" {
				if in["inReplyTo"], err = messageArgument(replyTo); err != nil {
					return nil, err
				}
			}
			if in["fromPeerId"], err = a.ownPeer(ctx); err != nil {
				return nil, err
			}
			return a.change(ctx, "send_peer_message", in)
		},
	})
	cmd.Flags().StringVar(&to, "to", "", "the recipient's `peer` id")
	cmd.Flags().StringVar(&replyTo, "reply-to", "", "the `id` of the message that this answers")
	cmd.Flags().StringVar(&text, "text", "", "the `text` of the message")
	cmd.Flags().StringVar(&messageID, "message-id", "", "the `uuid` of this message, to repeat a send")
	return cmd
}
