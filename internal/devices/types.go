package devices

import (
	"encoding/json"
	"time"
)

// Time is an instant that JSON shows as RFC 3339 in UTC with milliseconds.
type Time struct{ time.Time }

const timeLayout = "2006-01-02T15:04:05.000Z"

// MarshalJSON implements [json.Marshaler].
func (t Time) MarshalJSON() ([]byte, error) { return json.Marshal(t.UTC().Format(timeLayout)) }

// UnmarshalJSON reads what [Time.MarshalJSON] writes.
func (t *Time) UnmarshalJSON(b []byte) error { return t.Time.UnmarshalJSON(b) }

// at makes a Time of database milliseconds; 0, which a NULL is read as, is the
// zero Time.
func at(ms int64) Time {
	if ms == 0 {
		return Time{}
	}
	return Time{time.UnixMilli(ms).UTC()}
}

// Limits.
const (
	// MaxQueued is how many calls may wait for a device beside the one in flight.
	MaxQueued = 8
	// MaxReason is the length of a call's reason, in code points.
	MaxReason = 1000
	// MaxDevices is how many devices may be paired.
	MaxDevices = 1024
	// maxMessage is how much of a failing tool's output its caller reads.
	maxMessage = 8 << 10
	// maxLine is the length of a description in a list, in code points.
	maxLine = 160
	// maxPlatform and maxAgent bound what the other side calls itself.
	maxPlatform = 64
	maxAgent    = 64

	// DefaultLimit and MaxLimit are the sizes of a page of calls.
	DefaultLimit = 50
	MaxLimit     = 200
)

// ListIn is the arguments of spooky_list.
type ListIn struct {
	Device string `json:"device"`
}

// Listing is every device.
type Listing struct {
	Devices []Connected `json:"devices"`
	Offline []Offline   `json:"offline,omitempty"`
}

// Connected is a device that is connected, in short.
type Connected struct {
	Device      string    `json:"device"`
	SeenAt      Time      `json:"seenAt"` // the last sign of life
	ConnectedAt Time      `json:"connectedAt"`
	Tools       []Summary `json:"tools"`
}

// Summary is a tool in one line.
type Summary struct {
	Name     string   `json:"name"`
	Desc     string   `json:"desc"`
	Requires []string `json:"requires,omitempty"`
}

// Offline is a paired device that is not connected.
type Offline struct {
	Device string `json:"device"`
	SeenAt *Time  `json:"seenAt,omitempty"` // nil: never since it was paired
}

// One is one device.
type One struct {
	Device      string    `json:"device"`
	Platform    string    `json:"platform"`
	SeenAt      Time      `json:"seenAt"`
	ConnectedAt Time      `json:"connectedAt"`
	OpenCalls   int       `json:"openCalls"` // in flight and waiting
	Tools       []Summary `json:"tools"`
}

// SchemaIn is the arguments of spooky_schema.
type SchemaIn struct {
	Device string `json:"device"`
	Tool   string `json:"tool"`
	Full   bool   `json:"full"`
}

// Full is a tool's schema as the device gave it.
type Full struct {
	Device   string          `json:"device"`
	Tool     string          `json:"tool"`
	Desc     string          `json:"desc"`
	Requires []string        `json:"requires"`
	Schema   json.RawMessage `json:"schema"`
}

// CallIn is the arguments of spooky_call: those of a call, or CallID alone.
type CallIn struct {
	Device    string          `json:"device"`
	Tool      string          `json:"tool"`
	Args      json.RawMessage `json:"args"`
	Reason    string          `json:"reason"`
	RequestID string          `json:"requestId"`
	CallID    string          `json:"callId"`
}

// State is what a caller is told of a call that did not fail.
type State string

// The states of an answer.
const (
	Pending State = "pending" // not ended: ask again with the callId
	Done    State = "done"    // the tool said ok
)

// CallOut is a call that is done or pending. A failed one is a refusal.
type CallOut struct {
	CallID    string `json:"callId"`
	State     State  `json:"state"`
	Device    string `json:"device"`
	Tool      string `json:"tool"`
	Output    string `json:"output,omitempty"`
	Summary   string `json:"summary,omitempty"`
	Spilled   bool   `json:"spilled,omitempty"`
	Phase     string `json:"phase,omitempty"`     // of a pending call: queued, sent, approval or running
	ExpiresAt *Time  `json:"expiresAt,omitempty"` // of a pending call: when it fails at the latest
	Duplicate bool   `json:"duplicate,omitempty"` // the requestId was used before
	Next      string `json:"next,omitempty"`      // of a pending call
}

// Paired is a paired device as its owner sees it.
type Paired struct {
	Name        string `json:"name"`
	Platform    string `json:"platform,omitempty"`
	PairedAt    Time   `json:"pairedAt"`
	Connected   bool   `json:"connected"`
	ConnectedAt *Time  `json:"connectedAt,omitempty"` // of the link that is up, else of the last
	SeenAt      *Time  `json:"seenAt,omitempty"`      // the last sign of life
	Tools       int    `json:"tools"`                 // while connected
	OpenCalls   int    `json:"openCalls"`
}

// Code is a pairing code for a person.
type Code struct {
	Code      string `json:"code"`
	ExpiresAt Time   `json:"expiresAt"`
	Replaces  string `json:"replaces,omitempty"` // the one device that may be paired anew with it
	URL       string `json:"url"`                // what the device dials
}

// CallsIn selects a page of calls, newest first.
type CallsIn struct {
	Device string  `json:"device"` // "" is every device
	Limit  *int    `json:"limit,omitempty"`
	Cursor *string `json:"cursor,omitempty"`
}

// CallsOut is a page of calls.
type CallsOut struct {
	Calls      []Record `json:"calls"`
	NextCursor string   `json:"nextCursor,omitempty"`
}

// Record is a call as the owner sees it: never its arguments or its output.
type Record struct {
	CallID     string `json:"callId"`
	Owner      string `json:"owner"`
	ClientID   string `json:"clientId"`
	Device     string `json:"device"`
	Tool       string `json:"tool"`
	ArgsSHA256 string `json:"argsSha256"`
	State      string `json:"state"` // queued, sent, done or failed
	Code       string `json:"code,omitempty"`
	CreatedAt  Time   `json:"createdAt"`
	SentAt     *Time  `json:"sentAt,omitempty"`
	EndedAt    *Time  `json:"endedAt,omitempty"`
	LateAt     *Time  `json:"lateAt,omitempty"` // a result came after the end
}

// pointer is nil for the zero time, so that JSON has none.
func pointer(t Time) *Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
