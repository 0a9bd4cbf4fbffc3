package oauth

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/google/uuid"

	"agentrelay/internal/audit"
	"agentrelay/internal/fault"
	"agentrelay/internal/oauth/redirect"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// authorization is a request of a client for the owner's consent, checked.
type authorization struct {
	client      client
	redirectURI string
	scopes      []string // what will be granted, in our order
	resource    string   // the canonical one
	state       string   // "" when the client sent none
	challenge   string   // PKCE, S256
	// permissions are what the consent page starts from: what this client id
	// has, or everything for a new one.
	permissions principal.Set
	trial       bool // of the owner's doctor; see [Server.ConsentTrial]
}

// maxParameter bounds each parameter of an authorization request, in bytes.
// Some clients send a state of more than a kilobyte.
const maxParameter = 8 << 10

// checkAuthorization checks the parameters of an authorization request. A
// refusal is a [*pageError] while no redirect is to be trusted, then a
// [*redirectError]; any other error is trouble of ours.
func (s *Server) checkAuthorization(ctx context.Context, params url.Values) (*authorization, error) {
	for name, values := range params {
		if slices.ContainsFunc(values, func(v string) bool { return len(v) > maxParameter }) {
			return nil, badRequest("A parameter of the request is longer than 8 KiB.")
		}
		if len(values) > 1 && (name == "client_id" || name == "redirect_uri") {
			return nil, badRequest("The parameter " + name + " is there more than once.")
		}
	}
	id := params.Get("client_id")
	if id == "" {
		return nil, badRequest("The parameter client_id is missing.")
	}
	c, err := s.resolve(ctx, id)
	if err != nil {
		return nil, err
	}
	a := &authorization{client: c, resource: s.resource.String(), permissions: c.permissions, challenge: params.Get("code_challenge")}
	if a.redirectURI, err = s.chooseRedirect(c, params.Get("redirect_uri")); err != nil {
		return nil, err
	}
	if len(params["state"]) == 1 {
		a.state = params.Get("state")
	}
	if refusal := s.checkParameters(params); refusal != nil {
		return nil, &redirectError{refusal.Code, refusal.Message, s.errorRedirect(a, refusal.Code, refusal.Message)}
	}
	a.scopes = narrow(params.Get("scope"))
	return a, nil
}

func badRequest(message string) *pageError {
	return &pageError{status: http.StatusBadRequest, code: invalidRequest.Code, message: message,
		hint: "Start again from the client. If it stays so, the client sends a request that this gateway cannot read."}
}

// chooseRedirect is the redirect URI of a request: one that the client has
// registered and that the owner's list allows. A client with one may leave it
// out (RFC 6749 section 3.1.2.3).
func (s *Server) chooseRedirect(c client, requested string) (string, error) {
	if requested == "" && len(c.redirectURIs) == 1 {
		requested = c.redirectURIs[0]
	}
	if requested == "" {
		return "", badRequest("The parameter redirect_uri is missing, and the client has registered more than one.")
	}
	if !redirect.Match(c.redirectURIs, requested) {
		return "", &pageError{status: http.StatusBadRequest, code: invalidRedirectURI.Code,
			message: "The client asked to be sent back to an address that it has not registered.",
			hint:    "Remove the connector in the client and add it again; it then registers its present address."}
	}
	if !s.redirects.Allows(requested) {
		return "", &pageError{status: http.StatusBadRequest, code: invalidRedirectURI.Code,
			message: fmt.Sprintf("This gateway sends nobody to %s: the address is not on its list.", requested),
			hint:    fmt.Sprintf("If you trust it, add %q to oauth.redirects in the gateway's config, restart the gateway and start again from the client.", requested)}
	}
	return requested, nil
}

// challengeForm is RFC 7636 section 4.2.
var challengeForm = regexp.MustCompile(`^[A-Za-z0-9._~-]{43,128}$`)

// checkParameters refuses what the client hears through its redirect.
func (s *Server) checkParameters(params url.Values) *fault.Error {
	if refusal := checkRepeats(params); refusal != nil {
		return refusal
	}
	switch {
	case params.Get("request") != "":
		return requestNotSupported.New("Request objects are not served here.")
	case params.Get("request_uri") != "":
		return requestURINotSupported.New("Request objects are not served here.")
	case params.Get("response_type") == "":
		return invalidRequest.New("The parameter response_type is missing.")
	case params.Get("response_type") != "code":
		return unsupportedResponseType.New("Only response_type=code is served here.")
	case params.Get("response_mode") != "" && params.Get("response_mode") != "query":
		return invalidRequest.New("Only response_mode=query is served here.")
	case params.Get("code_challenge") == "":
		return invalidRequest.New("The parameter code_challenge is missing: PKCE is required (RFC 7636).")
	case params.Get("code_challenge_method") != "S256":
		return invalidRequest.New("Only code_challenge_method=S256 is served here.")
	case !challengeForm.MatchString(params.Get("code_challenge")):
		return invalidRequest.New("The parameter code_challenge must be 43 to 128 letters, digits, '-', '.', '_' or '~' (RFC 7636 section 4.2).")
	}
	return s.checkResource(params)
}

// narrow keeps the scopes that are served here. Clients ask for scopes that they
// know from elsewhere, so unknown ones are dropped, and none means the one.
func narrow(scope string) []string {
	scopes := []string{ScopeAgents}
	if slices.Contains(strings.Fields(scope), ScopeOffline) {
		scopes = append(scopes, ScopeOffline)
	}
	return scopes
}

// issueCode records the owner's consent in tx: what the client may do from its
// next request on, a grant and its code. It returns the redirect that carries
// the code. The client may have ended since the page was shown; then the error
// is a [*pageError].
func (s *Server) issueCode(tx *store.Tx, a *authorization, perms principal.Set) (string, error) {
	c, err := loadClient(tx, a.client.id)
	if errors.Is(err, sql.ErrNoRows) {
		return "", &pageError{status: http.StatusBadRequest, code: invalidClient.Code,
			message: "The client was removed while this page was open.",
			hint:    "Remove the connector in the client and add it again; it then registers anew."}
	}
	if err != nil {
		return "", fmt.Errorf("reading the client: %w", err)
	}
	id, err := uuid.NewRandomFromReader(s.rand)
	if err != nil {
		return "", fmt.Errorf("making a grant id: %w", err)
	}
	x := &exchange{s: s, tx: tx, client: c, consent: a}
	code, err := x.code(id.String())
	if err != nil {
		return "", err
	}
	if _, err := tx.Exec(`UPDATE oauth_clients SET permissions = ?, authorized_at = ? WHERE id = ?`, perms.String(), tx.Now().UnixMilli(), c.id); err != nil {
		return "", fmt.Errorf("storing the consent: %w", err)
	}
	if err := s.clients.permitted(tx, c.id, perms); err != nil {
		return "", err
	}
	// A registration is recorded when the owner first answers it: before that
	// anybody could fill the audit log, which is kept for a year.
	if c.authorizedAt.IsZero() && c.kind != Registered {
		if err := audit.Record(tx, s.clients.principalOf(c), "client.register", c.id, audit.OK, "kind", string(c.kind), "registeredAt", c.createdAt.UnixMilli()); err != nil {
			return "", err
		}
	}
	detail := []any{"grant", id.String(), "permissions", perms.String()}
	if a.trial {
		detail = append(detail, "doctor", true)
	}
	if err := audit.Record(tx, s.clients.ownerOf(c.id), "consent.allow", c.id, audit.OK, detail...); err != nil {
		return "", err
	}
	return s.redirectTo(a, url.Values{"code": {code}}), nil
}

// denyConsent records that the owner said no, and returns the redirect that
// tells the client.
func (s *Server) denyConsent(tx *store.Tx, a *authorization) (string, error) {
	err := audit.Record(tx, s.clients.ownerOf(a.client.id), "consent.deny", a.client.id, accessDenied.Code)
	return s.errorRedirect(a, accessDenied.Code, "The owner did not allow it."), err
}

// errorRedirect is the redirect that tells a client of a refusal.
func (s *Server) errorRedirect(a *authorization, code, description string) string {
	return s.redirectTo(a, url.Values{"error": {code}, "error_description": {description}})
}

// redirectTo adds an answer, with state and iss (RFC 9207), to the query of the
// client's redirect URI and leaves the rest of it as it was registered.
func (s *Server) redirectTo(a *authorization, answer url.Values) string {
	if a.state != "" {
		answer.Set("state", a.state)
	}
	answer.Set("iss", s.issuer)
	separator := "&"
	switch {
	case !strings.Contains(a.redirectURI, "?"):
		separator = "?"
	case strings.HasSuffix(a.redirectURI, "?"), strings.HasSuffix(a.redirectURI, "&"):
		separator = ""
	}
	return a.redirectURI + separator + answer.Encode()
}
