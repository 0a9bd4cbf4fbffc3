package mailbox

import "agentrelay/internal/fault"

// The refusals of the mailbox. Their messages name arguments and ids of stored
// records, never the caller's value.
var (
	UnknownPeer    = fault.Kind{Code: "unknown_peer", Hint: "list_peers with includeStopped true shows the ids that exist; register_peer adds one. Then repeat the call."}
	PeerStopped    = fault.Kind{Code: "peer_stopped", Hint: "Ask whether the peer should be reachable again; register_peer with its id makes it active. Else choose another from list_peers."}
	SelfMessage    = fault.Kind{Code: "self_message", Hint: "Send to another peer: list_peers shows them."}
	PeerConflict   = fault.Kind{Code: "peer_conflict", Hint: "Register under another peerId, or, if the peer is no longer in use, stop_peer it first and register again."}
	PeerLimit      = fault.Kind{Code: "peer_limit", Hint: "Use an id the owner already has: list_peers with includeStopped true shows them, and register_peer makes a stopped one active again."}
	AgentNotOwned  = fault.Kind{Code: "agent_not_owned", Hint: "Dispatch the agent first (create_agent), or give the hostId and agentId that list_agents shows."}
	UnknownMessage = fault.Kind{Code: "unknown_message", Hint: "Check the id with list_peer_messages (includeProcessed true shows history). To learn whether a send arrived, repeat it with its own messageId."}
	NotRecipient   = fault.Kind{Code: "not_recipient", Hint: "Only the recipient reads and acknowledges in its own name: give the message's toPeerId if that is you. get_peer_message without peerId shows a message without marking it read."}
	ReplyMismatch  = fault.Kind{Code: "reply_mismatch", Hint: "A reply goes from the recipient of that message to its sender. Swap fromPeerId and toPeerId as that message has them, or leave inReplyTo out to begin a new thread."}
	AlreadyReplied = fault.Kind{Code: "already_replied", Hint: "Read the existing reply with get_peer_message. To add something, reply to the other peer's next message, or send without inReplyTo."}
	HopLimit       = fault.Kind{Code: "hop_limit", Hint: "Stop here unless a person wants the conversation to go on; then begin a new thread: send without inReplyTo, with what was agreed so far in the text."}
	RateLimited    = fault.Kind{Code: "rate_limited", Hint: "Wait for the reset time, then repeat the call with the same messageId.", Retryable: true}
	// NotOwnPeer refuses an agent, so it is among the Kinds of package channel.
	NotOwnPeer    = fault.Kind{Code: "not_own_peer", Hint: "Use your own peer: peer-agent register makes it or shows it. list_peers shows the others, to which you can write."}
	InvalidCursor = fault.InvalidCursor // shared with other lists, so not among Kinds
	MessagePurged = fault.Kind{Code: "message_purged", Hint: "The owner removed this message and its text; it was stored and is not sent again. Nothing is left to do for it."}
	TooManyWaits  = fault.Kind{Code: "too_many_waits", Hint: "There is no mail now. Repeat the call in a few seconds, or without waitMs.", Retryable: true}
)

// Kinds lists the refusals of this package for docs/errors.md. Malformed
// arguments are refused with [fault.InvalidArguments].
func Kinds() []fault.Kind {
	return []fault.Kind{
		UnknownPeer, PeerStopped, SelfMessage, PeerConflict, PeerLimit, AgentNotOwned, UnknownMessage, NotRecipient,
		ReplyMismatch, AlreadyReplied, HopLimit, RateLimited, MessagePurged, TooManyWaits,
	}
}
