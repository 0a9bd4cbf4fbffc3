// Package fault is the one form in which Agent Relay refuses something.
//
// It owns the shape of a refusal: a stable code that programs may branch on,
// a message that says what was wrong, a hint that says what to do next, and
// whether the same call can succeed later unchanged. Domain packages declare
// their kinds beside the rules that produce them; the edges (the MCP endpoint,
// the HTTP handlers, the command line) turn an [Error] into their own form and
// add the short id that joins it to a log line. docs/errors.md lists every
// kind.
//
// The package promises that nothing in an [Error] comes from a wrapped cause:
// causes are for the log, codes and messages are for the caller. Callers must
// not put secrets, message text, command text or absolute paths outside a
// project into a message.
package fault

import (
	"errors"
	"fmt"
)

// Kind is one way to be refused. Kinds are values: declare each once, as a
// package variable of the domain that owns the rule.
type Kind struct {
	// Code is stable, lower_snake and unique over the whole product.
	Code string
	// Hint is the caller's next step, in one or two sentences.
	Hint string
	// Retryable reports whether the identical call may succeed later.
	Retryable bool
}

// Error makes a Kind usable as the target of [errors.Is].
func (k Kind) Error() string { return k.Code }

// New returns an Error of this kind. The message is for the caller.
func (k Kind) New(message string) *Error {
	return &Error{Kind: k, Message: message}
}

// Newf is [Kind.New] with formatting.
func (k Kind) Newf(format string, args ...any) *Error {
	return k.New(fmt.Sprintf(format, args...))
}

// Error is a refusal on its way to a caller.
type Error struct {
	Kind
	// Message says what was wrong with this call.
	Message string

	cause error
}

// Error is for logs; it includes the cause when there is one.
func (e *Error) Error() string {
	if e.cause != nil {
		return fmt.Sprintf("%s: %s: %v", e.Code, e.Message, e.cause)
	}
	return e.Code + ": " + e.Message
}

// Unwrap returns the cause, which only logs may show.
func (e *Error) Unwrap() error { return e.cause }

// Is reports whether target is this error's kind, by code.
func (e *Error) Is(target error) bool {
	k, ok := target.(Kind)
	return ok && k.Code == e.Code
}

// Because returns a copy of e that wraps cause for the log.
func (e *Error) Because(cause error) *Error {
	c := *e
	c.cause = cause
	return &c
}

// WithHint returns a copy of e with a more precise next step than its kind's.
func (e *Error) WithHint(hint string) *Error {
	c := *e
	c.Hint = hint
	return &c
}

// The kinds every edge knows.
var (
	// Internal is what any error that is not an [Error] becomes.
	Internal = Kind{"internal_error", "Repeat the call once with the same ids; if it fails again, give the id of this error to the owner, whose gateway log explains it.", true}
	// InvalidArguments is input that breaks the declared schema or a rule between arguments.
	InvalidArguments = Kind{"invalid_arguments", "Correct the named argument; the tool's input schema lists every rule.", false}
	// NotPermitted is a call outside the permissions the owner gave this client.
	NotPermitted = Kind{"not_permitted", "Ask the owner to allow it.", false}
	// InvalidCursor is a cursor that continues another list, or none.
	InvalidCursor = Kind{"invalid_cursor", "Pass nextCursor unchanged, with the other arguments of the call that gave it, or leave cursor out to start again.", false}
	// KeyConflict is a caller key that was used with other arguments; every
	// family of keys has it.
	KeyConflict = Kind{"key_conflict", "This id belongs to an earlier call with other arguments, which can be read under it. Give this call an id of its own.", false}
	// UnknownHost is a hostId that the config does not have.
	UnknownHost = Kind{"unknown_host", "Leave hostId out for the local host, or give one that list_hosts shows.", false}
	// HostUnavailable is a call for a machine that can't be reached, or whose
	// agents' daemon can't. Its message says why, and since when.
	HostUnavailable = Kind{"host_unavailable", "Nothing was sent elsewhere and nothing is queued: call list_hosts to see when the host is back, then repeat the call with the same ids. What it was asked before is still on record.", true}
	// OutcomeUnknown is a change of which it can't be told yet what became of it.
	OutcomeUnknown = Kind{"outcome_unknown", "Do not assume either way: repeat the same call with the same ids when the other side can be asked again. It answers what became of it and does nothing twice.", true}
	// Unavailable is trouble in our own store: nothing was decided, try again.
	Unavailable = Kind{"unavailable", "The gateway cannot reach its own store right now. Repeat the call with the same ids in a few seconds.", true}
)

// Kinds lists the kinds of this package for docs/errors.md.
func Kinds() []Kind {
	return []Kind{InvalidArguments, InvalidCursor, KeyConflict, NotPermitted, UnknownHost, HostUnavailable, OutcomeUnknown, Unavailable, Internal}
}

// From returns the refusal in err's chain, or an [Internal] one that wraps
// err. It returns nil for nil.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return Internal.New("The gateway failed to finish this call.").Because(err)
}
