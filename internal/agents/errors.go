package agents

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/fault"
)

// The refusals of this package.
var (
	HostUnavailable    = fault.Kind{Code: fault.HostUnavailable.Code, Hint: "Nothing was sent elsewhere and nothing is queued: call list_hosts to see when agentsAvailable is true again, then repeat the call with the same ids.", Retryable: true}
	IdentityChanged    = fault.Kind{Code: "daemon_identity_changed", Hint: "Another agent daemon answers on this host than before, so it was asked nothing. If that is right, ask the owner to run: gateway hosts accept-identity HOST"}
	UnsupportedDaemon  = fault.Kind{Code: "unsupported_by_daemon", Hint: "Ask the owner to update the agent daemon on that host; list_hosts shows the hosts."}
	DaemonRefused      = fault.Kind{Code: "daemon_refused", Hint: "The message is the daemon's own. Correct what it names: list_providers, list_models and inspect_provider show what it takes."}
	OutcomeUnknown     = fault.Kind{Code: fault.OutcomeUnknown.Code, Hint: "Do not assume either way: look at the agent with get_agent_status before you repeat the call.", Retryable: true}
	AgentNotFound      = fault.Kind{Code: "agent_not_found", Hint: "Give the full id of an agent, as list_agents of the same hostId shows it; prefixes and titles are not taken."}
	PathNotAllowed     = fault.Kind{Code: "path_not_allowed", Hint: "Work in a directory that the owner allows: list_projects and list_workspaces show those. The owner extends allowedRoots in the gateway's config."}
	WorkspaceNotFound  = fault.Kind{Code: "workspace_not_found", Hint: "Take a workspaceId from list_workspaces of the same hostId, or make one with create_workspace."}
	ReservedLabel      = fault.Kind{Code: "reserved_label", Hint: "Leave the label out: the gateway sets it itself, to find its agents again."}
	AutoAcceptRefused  = fault.Kind{Code: "auto_accept_refused", Hint: "Leave the setting out, so that somebody is asked before the agent acts. Only the owner can allow it, with agents.allowAutoAccept in the gateway's config."}
	AgentBusy          = fault.Kind{Code: "agent_busy", Hint: "A prompt would replace the run. Wait for it with wait_for_agent_result, or pass interrupt: true to replace it.", Retryable: true}
	PermissionPending  = fault.Kind{Code: "permission_pending", Hint: "A prompt would cancel the question that the agent asks. Answer it first: list_pending_permissions shows it, respond_to_permission answers it.", Retryable: true}
	PermissionGone     = fault.Kind{Code: "permission_not_pending", Hint: "It was answered or withdrawn. list_pending_permissions shows what is asked now."}
	UnknownDispatch    = fault.Kind{Code: "unknown_dispatch", Hint: "Check requestId and hostId. To learn whether a call arrived, repeat it with its own requestId and arguments."}
	AgentMismatch      = fault.Kind{Code: "agent_mismatch", Hint: "Take agentId from get_dispatch_request of the same requestId."}
	UnknownMessage     = fault.Kind{Code: "unknown_agent_message", Hint: "Take messageId and hostId from the event that announced the message."}
	NoActiveRoute      = fault.Kind{Code: "no_active_route", Hint: "Subscribe to agent.attention with this workspaceId and routeId first, or leave notificationRouteId out. list_notification_routes shows the active ones."}
	AmbiguousRoute     = fault.Kind{Code: "ambiguous_route", Hint: "Name one with notificationRouteId (list_notification_routes shows them), or pass notify: false."}
	RouteBound         = fault.Kind{Code: "route_bound", Hint: "The request tells another route, whose subscription is active. Read its results with get_request_result instead."}
	NoAgentYet         = fault.Kind{Code: "agent_submission_unknown", Hint: "Read the receipt with get_dispatch_request until it names an agent, then repeat the call.", Retryable: true}
	DispatchRejected   = fault.Kind{Code: "dispatch_rejected", Hint: "The daemon refused this request, so it has no result; the receipt says why. Dispatch anew with another requestId."}
	ReplyMismatch      = fault.Kind{Code: "agent_reply_mismatch", Hint: "Send the reply to the agent that wrote the message; get_agent_message names it."}
	AlreadyReplied     = fault.Kind{Code: "agent_already_replied", Hint: "A message has one reply, and this one has another already. Send a prompt without replyToMessageId instead."}
	TimelineUnreadable = fault.Kind{Code: "timeline_unreadable", Hint: "Repeat the call with a smaller limit.", Retryable: true}
	NotAuthorized      = fault.Kind{Code: "request_not_authorized", Hint: "Use the requestId of the prompt that you work on; it stands in the prompt's first line."}
)

// Kinds lists the refusals of this package for docs/errors.md, but for
// outcome_unknown, which stands there for all that have it.
func Kinds() []fault.Kind {
	return []fault.Kind{
		IdentityChanged, UnsupportedDaemon, DaemonRefused, AgentNotFound, PathNotAllowed, WorkspaceNotFound,
		ReservedLabel, AutoAcceptRefused, AgentBusy, PermissionPending, PermissionGone, UnknownDispatch, AgentMismatch, UnknownMessage,
		NoActiveRoute, AmbiguousRoute, RouteBound, NoAgentYet, DispatchRejected, ReplyMismatch, AlreadyReplied, TimelineUnreadable, NotAuthorized,
	}
}

// refusal is what a failed call of the daemon is to a caller. changes says
// whether the call can have changed something.
func refusal(ctx context.Context, err error, hostID string, changes bool) error {
	var notSent *paseo.NotSent
	var rejected *paseo.Rejected
	var lost *paseo.Lost
	var old *paseo.Unsupported
	var other *paseo.IdentityChanged
	switch {
	case err == nil:
		return nil
	case errors.As(err, &other):
		return IdentityChanged.New("The agent daemon of this host is not the one that the owner knows.").
			WithHint(strings.Replace(IdentityChanged.Hint, "HOST", hostID, 1)).Because(err)
	case errors.As(err, &notSent) && notSent.Code == "":
		return fault.InvalidArguments.New(notSent.Reason).Because(err)
	case errors.As(err, &notSent):
		return HostUnavailable.Newf("The agent daemon of host %s can't be asked: %s", hostID, notSent.Reason).Because(err)
	case errors.As(err, &old):
		return UnsupportedDaemon.Newf("The agent daemon of host %s, version %s, does not have %s.", hostID, versionOr(old.Version), old.Feature).Because(err)
	case errors.As(err, &rejected):
		return rejection(rejected)
	case errors.As(err, &lost):
		if err := ctx.Err(); err != nil && !changes {
			return err
		}
		if changes {
			return OutcomeUnknown.Newf("Whether it was done is not known: %s", lost.Reason).Because(err)
		}
		return HostUnavailable.Newf("The agent daemon of host %s did not answer: %s", hostID, lost.Reason).Because(err)
	}
	return err
}

func rejection(r *paseo.Rejected) *fault.Error {
	switch r.Code {
	case paseo.CodeAgentNotFound:
		return AgentNotFound.New("The daemon has no agent of this id.").Because(r)
	case paseo.CodePermissionNotPending:
		return PermissionGone.New("The agent does not ask for this permission, or no longer.").Because(r)
	case paseo.CodeUnknownSchema:
		return UnsupportedDaemon.New("The daemon does not know this request or one of its arguments.").Because(r)
	}
	text := "The daemon refused: " + shownText(r.Message, 300)
	if r.Message == "" {
		text = "The daemon refused, without saying why."
	}
	if len(r.Applied) > 0 {
		text += fmt.Sprintf(" Done before that: %s.", strings.Join(r.Applied, ", "))
	}
	return DaemonRefused.New(text).Because(r)
}

func versionOr(v string) string {
	if v == "" {
		return "unknown"
	}
	return shownText(v, 40)
}

// localPath is what looks like an absolute path of a machine.
var localPath = regexp.MustCompile(`(~|[A-Za-z]:)?[/\\][^\s'"` + "`" + `,;:)\]}>]*`)

// beginsPath is where an absolute path begins: not within a word, as the slash of
// provider/model does.
var beginsPath = regexp.MustCompile(`(^|[^\w.-])(~|[A-Za-z]:)?[/\\][^\s/\\]`)

// shownText is a daemon's text as callers may see it: short, on one line, without
// paths of the daemon's machine. A path can have spaces, so that what follows one
// counts to it if it has a slash.
func shownText(s string, most int) string {
	if beginsPath.MatchString(s) {
		s = localPath.ReplaceAllStringFunc(s, func(p string) string {
			if len(p) < 3 {
				return p
			}
			return "<path>"
		})
	}
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }), " ")
	return firstRunes(s, most)
}

// firstRunes is the beginning of s, without cutting a character.
func firstRunes(s string, most int) string {
	n := 0
	for i := range s {
		if n == most {
			return s[:i]
		}
		n++
	}
	return s
}
