package events

import (
	"encoding/json"
	"time"
)

// Path is how a reader is told.
type Path string

// The paths of this package.
const (
	PathEvents  Path = "events"  // an MCP Events subscription
	PathWebhook Path = "webhook" // a wake-up target of the config
	PathNone    Path = "none"    // nobody is told
)

// State says how far a delivery went. Accepted is never read.
type State string

// The states of a delivery.
const (
	Queued           State = "queued"
	Submitting       State = "submitting"
	CallbackAccepted State = "callback_accepted"
	WebhookAccepted  State = "webhook_accepted"
	Failed           State = "failed"
	Unknown          State = "unknown"
	Cancelled        State = "cancelled"
)

// accepted is how the outbox stores both accepted states.
const accepted State = "accepted"

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

// Peer is one generation of a peer.
type Peer struct {
	Owner      string
	PeerID     string
	Generation int64
}

type peerKey struct{ owner, peerID string }

func (p Peer) key() peerKey { return peerKey{p.Owner, p.PeerID} }

// Mail is a message to wake somebody for: ids only.
type Mail struct {
	// Seq is the order of arrival over all owners, for watermarks.
	Seq       int64
	MessageID string
	To        Peer
}

// Delivery is what is known about waking the recipient of one message.
type Delivery struct {
	Path          Path
	State         State // "" when Path is none
	Attempts      int   // of all receivers together
	LastAttemptAt Time
	Reason        string // a sentence, or ""
}

// Notification is what would happen now to tell a peer of new mail.
type Notification struct {
	Path      Path
	Reason    string // a sentence, or ""
	ExpiresAt Time   // of the subscription that lives longest
}

// encode is v as JSON without the escapes that only HTML needs.
func encode(v any) ([]byte, error) {
	var b jsonBuffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return b[:len(b)-1], nil // without the newline
}

type jsonBuffer []byte

func (b *jsonBuffer) Write(p []byte) (int, error) {
	*b = append(*b, p...)
	return len(p), nil
}
