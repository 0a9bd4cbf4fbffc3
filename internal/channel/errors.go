package channel

import (
	"agentrelay/internal/fault"
	"agentrelay/internal/mailbox"
)

// The refusals of the channel and of the owner's commands about agents.
var (
	noCapability  = fault.Kind{Code: "capability_missing", Hint: "Use the peer-agent program, which sends the agent's capability. Nothing was done."}
	badCapability = fault.Kind{Code: "capability_refused", Hint: "Nothing was done. Ask the owner: gateway agents list shows whether the agent was revoked, and gateway agents adopt gives it a new capability."}
	noDispatch    = fault.Kind{Code: "no_dispatch", Hint: "No chat waits for messages of this agent. To write to a peer use peer-agent send; peer-agent peers shows them."}
	unknownRoute  = fault.Kind{Code: "unknown_route", Hint: "The peer-agent program is of another version than the gateway: ask the owner to run gateway hosts install for this host."}
	tooLarge      = fault.Kind{Code: "request_too_large", Hint: "Send less in one request: 64 KiB are taken. A message has at most 8192 characters."}
	unreadable    = fault.Kind{Code: "request_unreadable", Hint: "Nothing was done. Repeat the request with the same ids; it must arrive whole within 10 seconds.", Retryable: true}
	tooFast       = fault.Kind{Code: "agent_rate_limited", Hint: "Nothing was done. Wait a second, then repeat the request with the same ids.", Retryable: true}

	notPrivate = fault.Kind{Code: "capability_not_private", Hint: "Look who could have changed it, correct it, and run the command again: the agent is yours already, and gets its capability then."}

	// UnknownAgent is an agent that the owner has neither dispatched nor adopted.
	UnknownAgent = fault.Kind{Code: "unknown_agent", Hint: "gateway agents list shows the agents; gateway agents adopt adds one that you started by hand."}
	// AgentRevoked is an agent whose access the owner has ended.
	AgentRevoked = fault.Kind{Code: "agent_revoked", Hint: "Ask the owner whether the agent may come back: gateway agents adopt allows it again."}
	// AgentTaken is an agent that belongs to another owner.
	AgentTaken = fault.Kind{Code: "agent_taken", Hint: "An agent belongs to one owner: gateway agents list shows which. Revoke it there first, if it is to change hands."}
)

// Kinds lists the refusals of this package for docs/errors.md. Refusals of the
// mailbox reach agents unchanged.
func Kinds() []fault.Kind {
	return []fault.Kind{
		noCapability, badCapability, mailbox.NotOwnPeer, noDispatch, unknownRoute, tooLarge, unreadable, tooFast,
		notPrivate, UnknownAgent, AgentRevoked, AgentTaken,
	}
}
