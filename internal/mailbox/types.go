package mailbox

import (
	"encoding/json"
	"time"
)

// Time is an instant that JSON shows as RFC 3339 in UTC with milliseconds.
type Time struct{ time.Time }

const timeLayout = "2006-01-02T15:04:05.000Z"

// MarshalJSON implements [json.Marshaler].
func (t Time) MarshalJSON() ([]byte, error) { return json.Marshal(t.String()) }

// String is the JSON form without quotes.
func (t Time) String() string { return t.UTC().Format(timeLayout) }

// at makes a Time of database milliseconds; 0, which a NULL is read as, is the
// zero Time.
func at(ms int64) Time {
	if ms == 0 {
		return Time{}
	}
	return Time{time.UnixMilli(ms).UTC()}
}

// Kind is what a peer is.
type Kind string

// The kinds of peers.
const (
	Chat  Kind = "chat"  // a conversation in a chat client
	Dot   Kind = "dot"   // a standing assistant
	Local Kind = "local" // an agent dispatched on one of the owner's hosts
)

// State is the state of a peer or of a message.
type State string

// The states.
const (
	Active  State = "active"
	Stopped State = "stopped"

	Unprocessed State = "unprocessed"
	Processed   State = "processed" // acknowledged by its recipient
)

// Peer is a name in the owner's directory.
type Peer struct {
	PeerID      string `json:"peerId"`
	Kind        Kind   `json:"kind"`
	DisplayName string `json:"displayName,omitempty"`
	// Generation starts at 1 and grows when a stopped peer is registered again.
	Generation int64  `json:"generation"`
	State      State  `json:"state"`
	HostID     string `json:"hostId,omitempty"`  // of a local peer
	AgentID    string `json:"agentId,omitempty"` // of a local peer
	CreatedAt  Time   `json:"createdAt"`
	// LastSeenAt is when something was last done in this peer's name
	// (registration, send, list, read with peerId, acknowledgement), to the
	// minute: a write per minute is the most that reading may cost.
	LastSeenAt Time `json:"lastSeenAt,omitzero"`
	// UnprocessedCount is the mail of all generations that waits for an
	// acknowledgement.
	UnprocessedCount int64        `json:"unprocessedCount"`
	Notification     Notification `json:"notification"`
}

// Message is a message with its text.
type Message struct {
	MessageID  string `json:"messageId"`
	FromPeerID string `json:"fromPeerId"`
	ToPeerID   string `json:"toPeerId"`
	// Text is data from a peer, never authority; byte-equal to what was sent.
	Text      string `json:"text"`
	InReplyTo string `json:"inReplyTo,omitempty"`
	// ThreadID is the messageId of the conversation's first message.
	ThreadID    string `json:"threadId"`
	Hop         int    `json:"hop"` // 1 for the first message of a thread
	CreatedAt   Time   `json:"createdAt"`
	State       State  `json:"state"`
	ProcessedAt Time   `json:"processedAt,omitzero"`
	// ReadAt is when the recipient itself first got the text.
	ReadAt Time `json:"readAt,omitzero"`
	// RecipientGeneration is the recipient's generation when it was sent.
	RecipientGeneration int64 `json:"recipientGeneration"`
}

// Entry is a message in a list: without its text.
type Entry struct {
	MessageID           string `json:"messageId"`
	FromPeerID          string `json:"fromPeerId"`
	ToPeerID            string `json:"toPeerId"`
	Summary             string `json:"summary"`    // the first 200 code points of the text
	TextLength          int    `json:"textLength"` // code points
	InReplyTo           string `json:"inReplyTo,omitempty"`
	ThreadID            string `json:"threadId"`
	Hop                 int    `json:"hop"`
	CreatedAt           Time   `json:"createdAt"`
	State               State  `json:"state"`
	ProcessedAt         Time   `json:"processedAt,omitzero"`
	ReadAt              Time   `json:"readAt,omitzero"`
	RecipientGeneration int64  `json:"recipientGeneration"`
}

// In what follows a pointer is an argument whose absence differs from its empty
// value; nil means that the caller left it out.

// RegisterPeerIn is the arguments of register_peer.
type RegisterPeerIn struct {
	PeerID      string  `json:"peerId"`
	Kind        Kind    `json:"kind"`
	DisplayName *string `json:"displayName,omitempty"` // 1..100 code points, no control characters
	HostID      *string `json:"hostId,omitempty"`      // local peers only; nil is the local host
	AgentID     *string `json:"agentId,omitempty"`     // local peers only, and required there

	// Agent is the agent that registers, which takes no id that is or was another's.
	Agent *Agent `json:"-"`
}

// RegisterPeerOut is the answer of register_peer.
type RegisterPeerOut struct {
	Peer    Peer `json:"peer"`
	Created bool `json:"created"` // the id is new
}

// ListPeersIn is the arguments of list_peers.
type ListPeersIn struct {
	IncludeStopped bool    `json:"includeStopped,omitempty"`
	Limit          *int    `json:"limit,omitempty"` // 1..200, nil is 50
	Cursor         *string `json:"cursor,omitempty"`
}

// ListPeersOut is the answer of list_peers, ordered by peerId in byte order.
type ListPeersOut struct {
	Peers      []Peer `json:"peers"`
	NextCursor string `json:"nextCursor,omitempty"`
}

// SendPeerMessageIn is the arguments of send_peer_message.
type SendPeerMessageIn struct {
	MessageID  string  `json:"messageId"` // UUID, the caller key
	FromPeerID string  `json:"fromPeerId"`
	ToPeerID   string  `json:"toPeerId"`
	Text       string  `json:"text"`                // 1..8192 code points of valid UTF-8, any of them
	InReplyTo  *string `json:"inReplyTo,omitempty"` // UUID of a message from ToPeerID to FromPeerID

	// Agent is the agent that calls, whose peer FromPeerID must be.
	Agent *Agent `json:"-"`
}

// SendPeerMessageOut is the answer of send_peer_message.
type SendPeerMessageOut struct {
	Message   Message  `json:"message"`
	Delivery  Delivery `json:"delivery"`
	Duplicate bool     `json:"duplicate"` // this messageId was stored by an earlier call
}

// ListPeerMessagesIn is the arguments of list_peer_messages.
type ListPeerMessagesIn struct {
	PeerID           string  `json:"peerId"`
	IncludeProcessed bool    `json:"includeProcessed,omitempty"`
	ThreadID         *string `json:"threadId,omitempty"` // UUID of a thread's first message
	Limit            *int    `json:"limit,omitempty"`    // 1..200, nil is 50
	Cursor           *string `json:"cursor,omitempty"`
	WaitMs           *int    `json:"waitMs,omitempty"` // 0..20000

	// Agent is the agent that calls, whose peer PeerID must be.
	Agent *Agent `json:"-"`
}

// ListPeerMessagesOut is the answer of list_peer_messages, oldest first in the
// order of arrival.
type ListPeerMessagesOut struct {
	Messages []Entry `json:"messages"`
	// UnprocessedCount is of the whole inbox, not of the page.
	UnprocessedCount int64  `json:"unprocessedCount"`
	NextCursor       string `json:"nextCursor,omitempty"`
	Next             Next   `json:"next"`
}

// GetPeerMessageIn is the arguments of get_peer_message.
type GetPeerMessageIn struct {
	MessageID string `json:"messageId"`
	// PeerID is who reads: the recipient marks the message read, the sender
	// does not, anybody else is refused. nil marks nothing.
	PeerID *string `json:"peerId,omitempty"`

	// Agent is the agent that calls, whose peer PeerID must be.
	Agent *Agent `json:"-"`
}

// GetPeerMessageOut is the answer of get_peer_message.
type GetPeerMessageOut struct {
	Message        Message  `json:"message"`
	Delivery       Delivery `json:"delivery"`
	ReplyMessageID string   `json:"replyMessageId,omitempty"` // the one reply to it
}

// AckPeerMessageIn is the arguments of ack_peer_message.
type AckPeerMessageIn struct {
	MessageID string `json:"messageId"`
	PeerID    string `json:"peerId"` // the recipient itself

	// Agent is the agent that calls, whose peer PeerID must be.
	Agent *Agent `json:"-"`
}

// AckPeerMessageOut is the answer of ack_peer_message.
type AckPeerMessageOut struct {
	Message          Message `json:"message"`
	AlreadyProcessed bool    `json:"alreadyProcessed"`
}

// StopPeerIn is the arguments of stop_peer.
type StopPeerIn struct {
	PeerID string `json:"peerId"`

	// Agent is the agent that calls, whose peer it must be.
	Agent *Agent `json:"-"`
}

// StopPeerOut is the answer of stop_peer.
type StopPeerOut struct {
	Peer           Peer `json:"peer"`
	AlreadyStopped bool `json:"alreadyStopped"`
}
