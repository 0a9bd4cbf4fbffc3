package paseo

import (
	"context"
	"errors"
	"fmt"
)

// NotSent is a call that definitely never reached the daemon: no byte of it was
// handed to a connection. It may be made again with the same ids.
type NotSent struct {
	// Code is the state's code, or "" when the call itself was at fault.
	Code Code
	// Reason is one sentence for callers, without paths and secrets.
	Reason string
	cause  error
}

func (e *NotSent) Error() string { return describe("not sent", e.Reason, e.cause) }

// Unwrap returns the cause, for logs only.
func (e *NotSent) Unwrap() error { return e.cause }

// Rejected is the daemon's answer that it did not do what it was asked.
type Rejected struct {
	// Message is the daemon's own text. It can hold paths of the daemon's machine.
	Message string
	// Code is the daemon's code or one of the Code… constants; "" if it gave none.
	Code string
	// Applied names, for [Client.UpdateAgent], what was done before the refusal.
	Applied []string
}

func (e *Rejected) Error() string {
	if e.Code == "" {
		return "rejected by the daemon"
	}
	return "rejected by the daemon: " + e.Code
}

// Lost is a call that was handed to the connection, even partly, and has no
// answer: it may have happened. A call whose context ended while it waited is
// Lost too, and wraps the context's error.
type Lost struct {
	// Reason is one sentence for callers, without paths and secrets.
	Reason string
	// Code is CodeOutcomeUnknown when the daemon itself said that it doesn't know.
	Code  string
	cause error
}

func (e *Lost) Error() string { return describe("outcome unknown", e.Reason, e.cause) }

// Unwrap returns the cause, for logs only.
func (e *Lost) Unwrap() error { return e.cause }

// Unsupported is a call that this daemon is too old for; nothing was sent, or
// the daemon answered that it does not know the request.
type Unsupported struct {
	// Feature is what is missing, in the daemon's or the tool's words.
	Feature string
	// Version is the daemon's version, "" if it told none.
	Version string
}

func (e *Unsupported) Error() string {
	return fmt.Sprintf("daemon version %q does not support %s", e.Version, e.Feature)
}

// IdentityChanged is a call refused because another daemon than the pinned one
// answers. Nothing was sent.
type IdentityChanged struct {
	Pinned, Found string // serverIds
}

func (e *IdentityChanged) Error() string {
	return fmt.Sprintf("the daemon is %q, expected %q", e.Found, e.Pinned)
}

// Codes of [Rejected] and [Lost] that programs branch on.
const (
	// CodeAgentNotFound: no agent has exactly that id.
	CodeAgentNotFound = "agent_not_found"
	// CodePermissionNotPending: that permission is not, or no longer, asked for.
	CodePermissionNotPending = "permission_not_pending"
	// CodeUnknownSchema: the daemon does not know the request or its arguments.
	CodeUnknownSchema = "unknown_schema"
	// CodeHandlerError: the daemon failed while it worked on the request; what it
	// had done by then stays done.
	CodeHandlerError = "handler_error"
	// CodeKeyConflict: the key was used with other content.
	CodeKeyConflict = "agent_request_key_conflict"
	// CodeOutcomeUnknown: the daemon died half-way through the first call with
	// this key, and will never run it again. Always in a [Lost].
	CodeOutcomeUnknown = "agent_request_outcome_unknown"
	// CodeNotAccepted: the agent surely did not get it; the same id may be sent again.
	CodeNotAccepted = "agent_request_not_accepted"
	// CodeTooLarge: more than the daemon's HTTP endpoint takes.
	CodeTooLarge = "too_large"
)

// MaybeHappened reports whether the call that ended in err can have had its
// effect: true for [Lost] only.
func MaybeHappened(err error) bool {
	var lost *Lost
	return errors.As(err, &lost)
}

// RejectedAs reports whether err is a [Rejected] with that code.
func RejectedAs(err error, code string) bool {
	var r *Rejected
	return errors.As(err, &r) && r.Code == code
}

func describe(what, reason string, cause error) string {
	if cause == nil {
		return what + ": " + reason
	}
	return fmt.Sprintf("%s: %s: %v", what, reason, cause)
}

// refuse is a NotSent for a call that is itself wrong.
func refuse(format string, args ...any) error {
	return &NotSent{Reason: fmt.Sprintf(format, args...)}
}

// abandoned is the Lost of a call whose context ended first.
func abandoned(ctx context.Context) error {
	return &Lost{Reason: "The daemon did not answer in time.", cause: context.Cause(ctx)}
}
