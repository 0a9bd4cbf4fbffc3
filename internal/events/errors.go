package events

import (
	"fmt"
	"strings"
	"time"

	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
	"agentrelay/internal/shellquote"
)

// The refusals of this package. Malformed parameters are refused with
// [fault.InvalidArguments], a missing permission with [fault.NotPermitted].
var (
	UnknownEvent    = fault.Kind{Code: "unknown_event", Hint: "events/list shows the names that exist."}
	UnknownSubject  = fault.Kind{Code: "unknown_event_subject", Hint: "Register the peer first with register_peer, under the same peerId; then subscribe again."}
	Withdrawn       = fault.Kind{Code: "subscription_withdrawn", Hint: "Nothing is left to do. To subscribe all the same, call events/subscribe again."}
	TooMany         = fault.Kind{Code: "subscription_limit", Hint: "End subscriptions that are no longer needed with events/unsubscribe, or ask the owner to raise events.maxSubscriptions in the gateway's config."}
	TooFast         = fault.Kind{Code: "challenge_limit", Hint: "Wait as long as retryAfterMs says, then subscribe again.", Retryable: true}
	Unsupported     = fault.Kind{Code: "unsupported_delivery", Hint: "Subscribe with delivery.mode webhook."}
	CallbackFailed  = fault.Kind{Code: "callback_failed", Hint: "Make the callback answer a verification challenge with status 200 and its challenge in a JSON body, over https with a valid certificate at a public address, within 10 seconds. Then subscribe again.", Retryable: true}
	UnknownDelivery = fault.Kind{Code: "unknown_delivery", Hint: "gateway events list shows the events that are kept."}
	NotResendable   = fault.Kind{Code: "not_resendable", Hint: "gateway events list shows the state of each event. What was accepted, is still on its way, or may have woken a wake-up target is not sent again."}
)

// Kinds lists the refusals of this package for docs/errors.md.
func Kinds() []fault.Kind {
	return []fault.Kind{UnknownEvent, UnknownSubject, Withdrawn, TooMany, TooFast, Unsupported, CallbackFailed, UnknownDelivery, NotResendable}
}

// Numbers is a table of JSON-RPC error numbers for MCP Events.
type Numbers string

// The tables. The draft of SEP-3415 moved the numbers; the clients that exist
// know those of the sketch that came before it.
const (
	Sketch Numbers = "sketch"
	SEP    Numbers = "sep"
)

// invalidParams and internalError are JSON-RPC's own numbers.
const (
	invalidParams = -32602
	internalError = -32603
)

var numbers = map[string]map[Numbers]int64{
	fault.InvalidArguments.Code: {Sketch: invalidParams, SEP: invalidParams},
	UnknownEvent.Code:           {Sketch: -32011, SEP: -32023}, // NotFound
	UnknownSubject.Code:         {Sketch: -32011, SEP: -32023},
	Withdrawn.Code:              {Sketch: -32011, SEP: -32023},
	fault.NotPermitted.Code:     {Sketch: -32012, SEP: -32024}, // Forbidden
	TooMany.Code:                {Sketch: -32013, SEP: -32025}, // ResourceExhausted
	TooFast.Code:                {Sketch: -32013, SEP: -32025},
	Unsupported.Code:            {Sketch: -32014, SEP: -32026}, // Unsupported
	CallbackFailed.Code:         {Sketch: -32015, SEP: -32027}, // CallbackEndpointError
}

// Number is the JSON-RPC error number of a refusal in a table; what is no
// refusal of MCP Events has that of an internal error.
func (n Numbers) Number(k fault.Kind) int64 {
	if byTable, ok := numbers[k.Code]; ok {
		return byTable[n]
	}
	return internalError
}

// Refusal is a refusal with the members that MCP Events wants in error.data.
type Refusal struct {
	Fault *fault.Error
	Data  map[string]any
}

func (r *Refusal) Error() string { return r.Fault.Error() }

// Unwrap gives [fault.From] the refusal without its data.
func (r *Refusal) Unwrap() error { return r.Fault }

func refuse(f *fault.Error, data ...any) error {
	r := &Refusal{Fault: f, Data: map[string]any{}}
	for i := 0; i+1 < len(data); i += 2 {
		r.Data[data[i].(string)] = data[i+1]
	}
	return r
}

func invalid(path, rule string) error {
	return refuse(fault.InvalidArguments.Newf("%s %s.", path, rule).WithHint("Correct the named member; events/list shows the arguments of each event."))
}

func forbidden(who principal.Principal, p principal.Permission) error {
	return refuse(fault.NotPermitted.Newf("This client is not allowed %s, which this event needs.", p).
		WithHint(fmt.Sprintf("The owner can allow it: gateway clients allow %s %s", shellquote.Word(who.ClientID), p)))
}

func callbackFailed(reason string) error {
	return refuse(CallbackFailed.Newf("The callback did not pass the verification challenge: %s.", phrase(reason)), "reason", wireReason(reason))
}

// The words of the outbox: why an attempt was not accepted, and why a delivery
// was cancelled. An answer that is not 2xx is http_ and its status.
const (
	unreachable        = "connection_refused"
	timedOut           = "timeout"
	tlsError           = "tls_error"
	destinationRefused = "destination_refused"
	lost               = "lost"        // the connection broke after the request may have arrived
	interrupted        = "interrupted" // we broke the attempt off, or the gateway ended during it
	challengeFailed    = "challenge_failed"
	secretUnreadable   = "secret_unreadable"
	credentialUnusable = "credential_unusable"

	unsubscribed   = "unsubscribed"
	expired        = "expired"
	gone           = "gone" // the receiver answered 410
	clientEnded    = "client_ended"
	peerStopped    = "peer_stopped"
	notPermitted   = "not_permitted"
	targetRemoved  = "target_removed"
	targetDisabled = "target_disabled"
	restored       = "restored" // the state is that of a backup
)

var phrases = map[string]string{
	unreachable:        "it could not be connected to",
	timedOut:           "it did not answer in time",
	tlsError:           "its TLS certificate or handshake is not valid",
	destinationRefused: "its address is not on the public internet",
	lost:               "the connection broke before an answer came",
	interrupted:        "the attempt was broken off before an answer came",
	challengeFailed:    "its answer does not repeat the challenge",
	secretUnreadable:   "its secret can't be read any more, the client must subscribe again",
	credentialUnusable: "the credential file of the wake-up target can't be used",
	unsubscribed:       "the client unsubscribed",
	expired:            "the subscription expired",
	gone:               "the receiver ended the subscription",
	clientEnded:        "the client's access was revoked",
	peerStopped:        "the peer was stopped",
	notPermitted:       "the owner does not allow it to the client that subscribed",
	targetRemoved:      "the wake-up target is no longer in the config",
	restored:           "the gateway was put back to a backup, and it may have been sent since that was made",
	targetDisabled:     "the wake-up target is for another generation of the peer",
}

// phrase is a reason as a clause.
func phrase(reason string) string {
	if status, ok := strings.CutPrefix(reason, "http_"); ok {
		return "it answered with status " + status
	}
	return phrases[reason]
}

// wireReason is a reason as MCP Events knows it: one of six words, so that a
// client can branch on it.
func wireReason(reason string) string {
	status, isStatus := strings.CutPrefix(reason, "http_")
	switch {
	case isStatus && (status[0] == '3' || status[0] == '4'): // it has no word for a redirect
		return "http_4xx"
	case isStatus:
		return "http_5xx"
	case reason == timedOut, reason == tlsError, reason == challengeFailed:
		return reason
	}
	return "connection_refused"
}

// inMs is a duration in whole milliseconds, rounded up.
func inMs(d time.Duration) int64 {
	return (max(d, 0) + time.Millisecond - 1).Milliseconds()
}
