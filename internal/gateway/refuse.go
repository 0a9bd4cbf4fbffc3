package gateway

import (
	"net/http"

	"agentrelay/internal/fault"
	"agentrelay/internal/tool"
)

// The refusals of the HTTP layer, before any tool or OAuth rule is asked.
var (
	unauthorized      = fault.Kind{Code: "unauthorized", Hint: "Log in with OAuth 2.1: the address in resource_metadata of the WWW-Authenticate header says where. An MCP client does this by itself when its owner connects it.", Retryable: false}
	invalidToken      = fault.Kind{Code: "invalid_token", Hint: "Use the refresh token to get a new access token, or log in again.", Retryable: false}
	insufficientScope = fault.Kind{Code: "insufficient_scope", Hint: "Log in again and ask for the scope that the WWW-Authenticate header names.", Retryable: false}
	hostNotAllowed    = fault.Kind{Code: "host_not_allowed", Hint: "Use the gateway's public address, or add this host name to allowedHosts in the gateway's config.", Retryable: false}
	originNotAllowed  = fault.Kind{Code: "origin_not_allowed", Hint: "If the owner trusts this web page, add its origin to allowedOrigins in the gateway's config.", Retryable: false}
	notFound          = fault.Kind{Code: "not_found", Hint: "Check the address.", Retryable: false}
	methodNotAllowed  = fault.Kind{Code: "method_not_allowed", Hint: "Use a method of the Allow header.", Retryable: false}
	notAcceptable     = fault.Kind{Code: "not_acceptable", Hint: "Send Accept: application/json, text/event-stream.", Retryable: false}
	unsupportedType   = fault.Kind{Code: "unsupported_media_type", Hint: "Send the JSON-RPC message as uncompressed UTF-8 with Content-Type: application/json.", Retryable: false}
	bodyTooLarge      = fault.Kind{Code: "body_too_large", Hint: "Send less in one request.", Retryable: false}
	bodyUnreadable    = fault.Kind{Code: "body_unreadable", Hint: "Send the request again; its body must arrive whole within 30 seconds.", Retryable: true}
	tooManyRequests   = fault.Kind{Code: "too_many_requests", Hint: "Wait as long as the Retry-After header says, then repeat the request.", Retryable: true}
	notAWebsocket     = fault.Kind{Code: "not_a_websocket", Hint: "Give this address to the program of a device: device pair <address> <code> --device <name>. A proxy in front of the gateway must pass on Upgrade and Connection.", Retryable: false}
	notReady          = fault.Kind{Code: "not_ready", Hint: "Try again in a few seconds.", Retryable: true}
)

// Kinds lists the refusals of this package for docs/errors.md. Those of the
// JSON-RPC layer stand in error.data.code beside the numeric code.
func Kinds() []fault.Kind {
	kinds := []fault.Kind{
		unauthorized, invalidToken, insufficientScope, hostNotAllowed, originNotAllowed, notFound, methodNotAllowed,
		notAcceptable, unsupportedType, bodyTooLarge, bodyUnreadable, tooManyRequests, notAWebsocket, notReady,
	}
	for _, k := range rpcKinds {
		if k.kind.Code != fault.Internal.Code {
			kinds = append(kinds, k.kind)
		}
	}
	return kinds
}

// oauthFailure is the form of RFC 6749 section 5.2, which OAuth clients read.
type oauthFailure struct {
	Error       string `json:"error"`
	Description string `json:"error_description"`
	Hint        string `json:"hint"`
	ID          string `json:"id"`
}

// oauthCodes names the OAuth error for refusals that the HTTP layer makes in
// front of an OAuth endpoint.
var oauthCodes = map[string]string{
	tooManyRequests.Code: "temporarily_unavailable",
	fault.Internal.Code:  "server_error",
}

// refuse answers r with a refusal and notes it for the request's log line.
func refuse(w http.ResponseWriter, r *http.Request, status int, e *fault.Error) {
	rec := recordOf(r.Context())
	rec.refused(e)
	var body any = tool.Envelope{Error: tool.NewFailure(e, rec.id)}
	if isOAuthPath(r.URL.Path) {
		code, ok := oauthCodes[e.Code]
		if !ok {
			code = "invalid_request"
		}
		body = oauthFailure{code, e.Message, e.Hint, rec.id}
	}
	writeJSON(w, status, body)
}

// writeJSON answers with a value that always encodes.
func writeJSON(w http.ResponseWriter, status int, v any) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if h.Get("Cache-Control") == "" {
		h.Set("Cache-Control", "no-store")
	}
	w.WriteHeader(status)
	w.Write(tool.Encode(v))
}
