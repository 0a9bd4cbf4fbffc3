package commands

import (
	"encoding/json"
	"time"

	"agentrelay/internal/direct/commands/output"
	"agentrelay/internal/direct/commands/record"
)

// Time is an instant that JSON shows as RFC 3339 in UTC with milliseconds.
type Time struct{ time.Time }

// MarshalJSON implements [json.Marshaler].
func (t Time) MarshalJSON() ([]byte, error) {
	return json.Marshal(t.UTC().Format("2006-01-02T15:04:05.000Z"))
}

func at(ms int64) Time {
	if ms == 0 {
		return Time{}
	}
	return Time{time.UnixMilli(ms).UTC()}
}

// Receipt is a command in its present state.
type Receipt struct {
	// CommandID follows from owner and requestId, so a repeat has the same.
	CommandID string `json:"commandId"`
	RequestID string `json:"requestId"`
	HostID    string `json:"hostId"`
	// ProjectID, Argv and CWD are empty when the request never arrived before it
	// was asked about.
	ProjectID string       `json:"projectId"`
	Argv      []string     `json:"argv"`
	CWD       string       `json:"cwd"` // project-relative, "" is the project's directory
	State     record.State `json:"state"`
	ExitCode  *int         `json:"exitCode,omitempty"`
	Signal    string       `json:"signal,omitempty"` // such as SIGKILL, when that ended it
	CreatedAt Time         `json:"createdAt"`
	StartedAt Time         `json:"startedAt,omitzero"`
	EndedAt   Time         `json:"endedAt,omitzero"`
	// DetachedProcesses says that descendants outside the command's process
	// group outlived it, or could not be killed. Their output is not taken.
	DetachedProcesses bool          `json:"detachedProcesses,omitempty"`
	Error             *ReceiptError `json:"error,omitempty"`
}

// ReceiptError is why a command did not run or did not end by itself.
type ReceiptError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// Output is a page of a command's output.
type Output struct {
	Events []output.Event `json:"events"`
	// NextCursor continues after this page.
	NextCursor int64 `json:"nextCursor"`
	// LostCount is how many bytes between the cursor and NextCursor were not
	// kept: of a long output the beginning and the end are.
	LostCount int64 `json:"lostCount"`
	// Truncated says that there is more already: read on with NextCursor.
	Truncated bool `json:"truncated"`
	// OutputAvailable is false when the command printed nothing because it never
	// ran, or when its output is no longer kept.
	OutputAvailable bool `json:"outputAvailable"`
}

// In what follows a pointer is an argument whose absence differs from its empty
// value; nil means that the caller left it out.

// RunDirectCommandIn is the arguments of run_direct_command.
type RunDirectCommandIn struct {
	ProjectID string   `json:"projectId"`
	RequestID string   `json:"requestId"`           // the caller key
	Argv      []string `json:"argv,omitempty"`      // 1..64, executed without a shell
	Command   *string  `json:"command,omitempty"`   // a registered name, instead of Argv
	CWD       *string  `json:"cwd,omitempty"`       // project-relative, nil is the project's directory
	TimeoutMs *int     `json:"timeoutMs,omitempty"` // 1..3600000, nil is 30000
	Stdin     *string  `json:"stdin,omitempty"`     // closed or open, nil is closed
	// WaitMs (0..20000) waits for the command's end and answers output too.
	WaitMs *int `json:"waitMs,omitempty"`
}

// RunDirectCommandOut is the answer of run_direct_command.
type RunDirectCommandOut struct {
	Receipt
	// Duplicate says that an earlier call recorded this request.
	Duplicate bool `json:"duplicate"`
	// Output is the first page, when the call waited.
	Output *Output `json:"output,omitempty"`
}

// ReadDirectCommandIn is the arguments of read_direct_command. CommandID or
// RequestID is given.
type ReadDirectCommandIn struct {
	CommandID *string `json:"commandId,omitempty"`
	// RequestID also settles: a request that this host does not know will not
	// run any more, and its receipt says so.
	RequestID *string `json:"requestId,omitempty"`
	Cursor    *int64  `json:"cursor,omitempty"` // nil is 0, the beginning
	Limit     *int    `json:"limit,omitempty"`  // events, 1..1000, nil is 200
	// WaitMs (0..20000) waits while the page would be empty and the command runs.
	WaitMs *int `json:"waitMs,omitempty"`
}

// ReadDirectCommandOut is the answer of read_direct_command.
type ReadDirectCommandOut struct {
	Receipt
	Output
}

// WriteDirectCommandInputIn is the arguments of write_direct_command_input.
type WriteDirectCommandInputIn struct {
	CommandID string  `json:"commandId"`
	InputID   string  `json:"inputId"`        // the caller key, of this command
	Text      *string `json:"text,omitempty"` // at most 65536 bytes
	EOF       bool    `json:"eof,omitempty"`  // close stdin after the text
}

// WriteDirectCommandInputOut is the answer of write_direct_command_input.
type WriteDirectCommandInputOut struct {
	CommandID string `json:"commandId"`
	InputID   string `json:"inputId"`
	// State is accepted (stored, and written in its order as the command reads),
	// rejected (never written: 1 MiB waits to be read already; another inputId may
	// succeed later) or unknown (the supervisor did not answer: repeat the call).
	State     record.InputState `json:"state"`
	EOF       bool              `json:"eof"`
	Duplicate bool              `json:"duplicate"` // an earlier call stored this input
}

// CancelDirectCommandIn is the arguments of cancel_direct_command.
type CancelDirectCommandIn struct {
	CommandID string `json:"commandId"`
}

// CancelDirectCommandOut is the answer of cancel_direct_command.
type CancelDirectCommandOut struct {
	Receipt
	// CancelRequested is false when the command had ended before the call.
	CancelRequested bool `json:"cancelRequested"`
}
