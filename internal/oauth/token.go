package oauth

import (
	"bytes"
	"crypto/subtle"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"time"

	"agentrelay/internal/fault"
	"agentrelay/internal/store"
)

// maxForm bounds the body of a token or revocation request.
const maxForm = 64 << 10

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

// readRequest reads the parameters and the client's credentials of a POST. It
// has answered when it returns false.
func (s *Server) readRequest(w http.ResponseWriter, r *http.Request) (url.Values, credentials, bool) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		s.failWith(w, r, http.StatusMethodNotAllowed, invalidRequest.New("This endpoint takes POST."))
		return nil, credentials{}, false
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxForm))
	if err != nil {
		s.failBody(w, r, invalidRequest, err)
		return nil, credentials{}, false
	}
	form, refusal := parseForm(r.Header.Get("Content-Type"), body)
	if refusal != nil {
		s.fail(w, r, refusal)
		return nil, credentials{}, false
	}
	creds, refusal := credentialsOf(r, form)
	if refusal != nil {
		s.fail(w, r, refusal)
		return nil, credentials{}, false
	}
	return form, creds, true
}

// failBody answers a body that could not be read.
func (s *Server) failBody(w http.ResponseWriter, r *http.Request, kind fault.Kind, err error) {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		s.failWith(w, r, http.StatusRequestEntityTooLarge, kind.Newf("The body has more than %d bytes.", tooLarge.Limit))
		return
	}
	s.fail(w, r, kind.New("The body ended early.").Because(err))
}

// parseForm reads a form body, or the same parameters as a flat JSON object,
// which some clients send. Parameters without a value count as left out, and no
// parameter may come twice (RFC 6749 section 3.2), but for resource.
func parseForm(contentType string, body []byte) (url.Values, *fault.Error) {
	media, _, err := mime.ParseMediaType(contentType)
	if contentType != "" && err != nil {
		return nil, invalidRequest.New("The Content-Type is not readable; send application/x-www-form-urlencoded.")
	}
	var form url.Values
	switch media {
	case "", "application/x-www-form-urlencoded":
		if form, err = url.ParseQuery(string(body)); err != nil {
			return nil, invalidRequest.New("The body is not a form in application/x-www-form-urlencoded.")
		}
	case "application/json":
		if form, err = parseJSON(body); err != nil {
			return nil, invalidRequest.New("The body is not one flat JSON object of strings.")
		}
	default:
		return nil, invalidRequest.New("The body must be application/x-www-form-urlencoded.")
	}
	if refusal := checkRepeats(form); refusal != nil {
		return nil, refusal
	}
	for name, values := range form {
		if len(values) == 1 && values[0] == "" {
			delete(form, name)
		}
	}
	return form, nil
}

// parameterNames are the names that a refusal may repeat. Any other may be a
// token that a client has put in the wrong place.
var parameterNames = []string{
	"client_assertion", "client_assertion_type", "client_id", "client_secret", "code", "code_challenge", "code_challenge_method", "code_verifier",
	"grant_type", "redirect_uri", "refresh_token", "response_mode", "response_type", "scope", "state", "token", "token_type_hint",
}

func checkRepeats(form url.Values) *fault.Error {
	for name, values := range form {
		switch {
		case len(values) < 2 || name == "resource":
		case slices.Contains(parameterNames, name):
			return invalidRequest.Newf("The parameter %s is there more than once.", name)
		default:
			return invalidRequest.New("A parameter is there more than once.")
		}
	}
	return nil
}

// parseJSON reads an object member by member, so that a repeated one is seen.
func parseJSON(body []byte) (url.Values, error) {
	form := url.Values{}
	d := json.NewDecoder(bytes.NewReader(body))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("not an object")
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, err
		}
		value, err := d.Token()
		if err != nil {
			return nil, err
		}
		text, ok := value.(string)
		if !ok && value != nil {
			return nil, errors.New("a value is not a string")
		}
		form.Add(name.(string), text)
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("more than one value")
	}
	return form, nil
}

// credentials are how a client says who it is on the back channel.
type credentials struct {
	id     string
	secret string
}

// credentialsOf reads HTTP Basic or the body (RFC 6749 section 2.3.1). Both may
// be there when they agree.
func credentialsOf(r *http.Request, form url.Values) (credentials, *fault.Error) {
	c := credentials{form.Get("client_id"), form.Get("client_secret")}
	if form.Get("client_assertion") != "" || form.Get("client_assertion_type") != "" {
		return c, invalidClient.New("Client assertions are not served here.").WithHint("Use the authentication methods that /.well-known/oauth-authorization-server lists; none suits every client without a secret.")
	}
	if id, secret, ok := r.BasicAuth(); ok {
		id, err1 := url.QueryUnescape(id)
		secret, err2 := url.QueryUnescape(secret)
		if err1 != nil || err2 != nil {
			return c, invalidClient.New("The Authorization header is not form-encoded as RFC 6749 section 2.3.1 asks.")
		}
		if c.id != "" && c.id != id || c.secret != "" && c.secret != secret {
			return c, invalidRequest.New("The Authorization header and the body name different clients or secrets.")
		}
		c = credentials{id, secret}
	}
	if c.id == "" {
		return c, invalidClient.New("The parameter client_id is missing.")
	}
	return c, nil
}

// authenticate finds the client and checks its secret, if it has one.
func (c credentials) authenticate(tx *store.Tx) (client, *fault.Error, error) {
	row, err := loadClient(tx, c.id)
	if errors.Is(err, sql.ErrNoRows) {
		return client{}, invalidClient.New("This gateway does not know the client."), nil
	}
	if err != nil {
		return client{}, nil, fmt.Errorf("reading the client: %w", err)
	}
	switch {
	case len(row.secretHash) == 0 && c.secret != "":
		return client{}, invalidClient.New("This client has no secret, and one was sent.").WithHint("Leave the client secret empty in the client's settings."), nil
	case len(row.secretHash) > 0 && subtle.ConstantTimeCompare(row.secretHash, digest(c.secret)) != 1:
		return client{}, invalidClient.New("The client secret is missing or wrong.").WithHint("Enter the secret that gateway clients add printed, or add the client again."), nil
	}
	return row, nil, nil
}
