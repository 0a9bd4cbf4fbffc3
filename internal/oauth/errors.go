package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"agentrelay/internal/fault"
	"agentrelay/internal/store"
)

// The OAuth error codes, by the names their RFCs give them (RFC 6749 section
// 4.1.2.1 and 5.2, RFC 7591 section 3.2.2, RFC 8707 section 2).
var (
	invalidRequest          = fault.Kind{Code: "invalid_request", Hint: "Correct the named parameter and send the request again.", Retryable: false}
	invalidClient           = fault.Kind{Code: "invalid_client", Hint: "Register again, or remove and re-add the connector in the client.", Retryable: false}
	invalidGrant            = fault.Kind{Code: "invalid_grant", Hint: "Start the authorization again; the owner will be asked once more.", Retryable: false}
	unauthorizedClient      = fault.Kind{Code: "unauthorized_client", Hint: "Use only what this client registered for, and only its own tokens.", Retryable: false}
	unsupportedGrantType    = fault.Kind{Code: "unsupported_grant_type", Hint: "Use authorization_code or refresh_token.", Retryable: false}
	unsupportedResponseType = fault.Kind{Code: "unsupported_response_type", Hint: "Use response_type=code.", Retryable: false}
	requestNotSupported     = fault.Kind{Code: "request_not_supported", Hint: "Send the parameters themselves.", Retryable: false}
	requestURINotSupported  = fault.Kind{Code: "request_uri_not_supported", Hint: "Send the parameters themselves.", Retryable: false}
	accessDenied            = fault.Kind{Code: "access_denied", Hint: "Start again, and let the owner allow it.", Retryable: false}
	invalidTarget           = fault.Kind{Code: "invalid_target", Hint: "Send the resource that /.well-known/oauth-protected-resource names, or leave it out.", Retryable: false}
	invalidClientMetadata   = fault.Kind{Code: "invalid_client_metadata", Hint: "Correct the named field and register again.", Retryable: false}
	invalidRedirectURI      = fault.Kind{Code: "invalid_redirect_uri", Hint: "Register https addresses, http loopback addresses, or a private scheme with a host.", Retryable: false}
	serverError             = fault.Kind{Code: "server_error", Hint: "Try once more; if it fails again, give the id of this error to the owner, whose gateway log explains it.", Retryable: true}
	temporarilyUnavailable  = fault.Kind{Code: "temporarily_unavailable", Hint: "The gateway cannot reach its own store right now. Send the same request again in a few seconds.", Retryable: true}
)

// The refusals of the owner's commands.
var (
	// UnknownClient is a client id that is not in the table.
	UnknownClient = fault.Kind{Code: "unknown_client", Hint: "gateway clients list shows every client and its id.", Retryable: false}
	// InvalidClientArguments is a name or redirect address that can't be registered.
	InvalidClientArguments = fault.Kind{Code: "invalid_client_arguments", Hint: "Give a name, and redirect addresses that oauth.redirects of the config allows.", Retryable: false}
)

// Kinds lists the kinds of this package for docs/errors.md.
func Kinds() []fault.Kind {
	return []fault.Kind{
		invalidRequest, invalidClient, invalidGrant, unauthorizedClient, unsupportedGrantType, unsupportedResponseType,
		requestNotSupported, requestURINotSupported, accessDenied, invalidTarget, invalidClientMetadata, invalidRedirectURI, serverError, temporarilyUnavailable,
		UnknownClient, InvalidClientArguments, NoTrial,
	}
}

// pageError is a refusal of an authorization request that no redirect can be
// trusted with, so a person sees it on a page.
type pageError struct {
	status              int
	code, message, hint string
	cause               error // for the log
}

func (e *pageError) Error() string {
	if e.cause != nil {
		return e.code + ": " + e.message + ": " + e.cause.Error()
	}
	return e.code + ": " + e.message
}

func (e *pageError) Unwrap() error { return e.cause }

// redirectError is a refusal of an authorization request that the client hears
// through its redirect. location carries error, error_description, state and iss.
type redirectError struct {
	code, description string
	location          string
}

func (e *redirectError) Error() string { return e.code + ": " + e.description }

// retryAfter is what clients are told to wait for when our store is in trouble.
const retryAfter = "5"

// statusOf is the HTTP status of a code.
func statusOf(code string) int {
	switch code {
	case invalidClient.Code:
		return http.StatusUnauthorized
	case serverError.Code:
		return http.StatusInternalServerError
	case temporarilyUnavailable.Code:
		return http.StatusServiceUnavailable
	}
	return http.StatusBadRequest
}

// refusalOf turns any error into what an OAuth endpoint answers.
func refusalOf(err error) *fault.Error {
	var refusal *fault.Error
	switch {
	case errors.As(err, &refusal):
		return refusal
	case store.IsTrouble(err), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return temporarilyUnavailable.New("The gateway's store did not answer.").Because(err)
	}
	return serverError.New("The gateway failed to finish this request.").Because(err)
}

// errorBody is the JSON of every refusal.
type errorBody struct {
	Error       string `json:"error"`
	Description string `json:"error_description"`
	Hint        string `json:"hint,omitempty"`
	ID          string `json:"id"`
}

// fail answers err as JSON and writes the one log line that shares its id.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	refusal := refusalOf(err)
	s.failWith(w, r, statusOf(refusal.Code), refusal)
}

func (s *Server) failWith(w http.ResponseWriter, r *http.Request, status int, refusal *fault.Error) {
	id := s.requestID(r)
	log := s.log.Info
	if status >= http.StatusInternalServerError {
		log = s.log.Error
	}
	log("oauth request refused", "id", id, "path", r.URL.Path, "status", status, "address", s.addr(r), "error", refusal)

	h := w.Header()
	if status == http.StatusServiceUnavailable {
		h.Set("Retry-After", retryAfter)
	}
	if _, _, basic := r.BasicAuth(); basic && status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Basic realm="Agent Relay", charset="UTF-8"`)
	}
	answer(w, status, errorBody{refusal.Code, refusal.Message, refusal.Hint, id})
}

// answer writes JSON that no cache may keep.
func answer(w http.ResponseWriter, status int, body any) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Pragma", "no-cache")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(body) // the client left; there is nobody to tell
}

// idAlphabet has no letters that are read as another.
const idAlphabet = "0123456789abcdefghjkmnpqrstvwxyz"

// randomID is short enough to be read out over a telephone: 40 random bits.
func randomID(random io.Reader) string {
	b := make([]byte, 8)
	if _, err := io.ReadFull(random, b); err != nil {
		return "unknown"
	}
	for i := range b {
		b[i] = idAlphabet[b[i]%32]
	}
	return string(b)
}
