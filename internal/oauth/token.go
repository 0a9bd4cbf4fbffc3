package oauth

import (
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"agentrelay/internal/fault"
	"agentrelay/internal/store"
)

// tokens is the answer of the token endpoint (RFC 6749 section 5.1).
type tokens struct {
	AccessToken  string `json:"access_token"`
	TokenType    string `json:"token_type"`
	ExpiresIn    int64  `json:"expires_in"` // seconds
	RefreshToken string `json:"refresh_token,omitempty"`
	Scope        string `json:"scope"`
}

// outcome is what one transaction decided. A refusal is committed like an
// answer, since it may have revoked a grant.
type outcome struct {
	tokens   tokens
	refusal  *fault.Error
	clientID string
	revoked  []string
}

// Token is the token endpoint: authorization_code and refresh_token (RFC 6749
// sections 4.1.3 and 6, RFC 7636, RFC 8707). One request is one transaction.
func (s *Server) Token(w http.ResponseWriter, r *http.Request) {
	form, creds, ok := s.readRequest(w, r)
	if !ok {
		return
	}
	if refusal := s.checkTokenForm(form); refusal != nil {
		s.fail(w, r, refusal)
		return
	}
	out, err := store.Write(r.Context(), s.store, func(tx *store.Tx) (outcome, error) { return s.token(tx, form, creds) })
	s.logRevoked(out)
	switch {
	case err != nil:
		s.fail(w, r, err)
	case out.refusal != nil:
		s.fail(w, r, out.refusal)
	default:
		s.log.Info("tokens issued", "client_id", out.clientID, "grant_type", form.Get("grant_type"))
		answer(w, http.StatusOK, out.tokens)
	}
}

// logRevoked reports grants that ended because a code or token was used again.
func (s *Server) logRevoked(out outcome) {
	for _, id := range out.revoked {
		s.log.Warn("grant revoked", "client_id", out.clientID, "grant", id)
	}
}

// needed are the parameters of each grant type.
var needed = map[string][]string{
	"authorization_code": {"code", "code_verifier"},
	"refresh_token":      {"refresh_token"},
}

// checkTokenForm refuses what needs no look into the store.
func (s *Server) checkTokenForm(form url.Values) *fault.Error {
	grantType := form.Get("grant_type")
	if grantType == "" {
		return invalidRequest.New("The parameter grant_type is missing.")
	}
	parameters, ok := needed[grantType]
	if !ok {
		return unsupportedGrantType.New("This grant_type is not served here.")
	}
	for _, name := range parameters {
		if form.Get(name) == "" {
			return invalidRequest.Newf("The parameter %s is missing.", name)
		}
	}
	return s.checkResource(form)
}

// checkResource refuses tokens for anything but this gateway. The parameter may
// be repeated (RFC 8707 section 2).
func (s *Server) checkResource(form url.Values) *fault.Error {
	for _, name := range form["resource"] {
		if !s.resource.Accepts(name) {
			return invalidTarget.Newf("This server issues tokens for %s only.", s.resource)
		}
	}
	return nil
}

func (s *Server) token(tx *store.Tx, form url.Values, creds credentials) (outcome, error) {
	c, refusal, err := creds.authenticate(tx)
	if refusal != nil || err != nil {
		return outcome{refusal: refusal}, err
	}
	x := &exchange{s: s, tx: tx, client: c}
	grant := x.redeem
	if form.Get("grant_type") == "refresh_token" {
		grant = x.rotate
	}
	out, refusal, err := grant(form)
	if err != nil {
		return outcome{}, err
	}
	if refusal == nil {
		err = touchClient(tx, c.id, tx.Now())
	}
	return outcome{tokens: out, refusal: refusal, clientID: c.id, revoked: x.revoked}, err
}

// redeem exchanges a code. A client that leaves redirect_uri out is bound by
// its code verifier alone, as OAuth 2.1 has it.
func (x *exchange) redeem(form url.Values) (tokens, *fault.Error, error) {
	request := pick(form, "grant_type", "code", "code_verifier", "redirect_uri")
	if request.Get("redirect_uri") == "" {
		var uri string
		err := x.tx.QueryRow(`SELECT redirect_uri FROM oauth_codes WHERE hash = ?`, digest(form.Get("code"))).Scan(&uri)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return tokens{}, nil, fmt.Errorf("reading the code: %w", err)
		}
		request.Set("redirect_uri", uri)
	}
	got, refusal, err := x.issue(request)
	return got.answer(accessLife), refusal, err
}

func pick(form url.Values, names ...string) url.Values {
	out := url.Values{}
	for _, name := range names {
		if v := form.Get(name); v != "" {
			out.Set(name, v)
		}
	}
	return out
}

func (i issued) answer(life time.Duration) tokens {
	return tokens{i.accessToken, "Bearer", int64(life / time.Second), i.refreshToken, i.scope}
}
