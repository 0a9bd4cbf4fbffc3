package e2e

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/oauth2"

	"agentrelay/internal/client"
	"agentrelay/internal/e2e/rig"
)

// Every client of the table registers, is allowed by the owner, redeems its
// code, calls a tool, refreshes, and is revoked.
func TestClientTable(t *testing.T) {
	open := rig.NewHome(t, binary)
	open.Configure("safedial", object{"allowLoopback": true})
	open.Serve()
	// The vendors' own documents are not asked for: this gateway finds no host.
	cutOff := rig.NewHome(t, cutOffBinary(t))
	cutOff.Serve()
	h := loopbackClient(t)
	servers := map[*rig.Home]*client.Server{open: discover(t, h, open.MCPURL), cutOff: discover(t, h, cutOff.MCPURL)}
	for _, w := range clientTable {
		t.Run(w.client+", "+strings.Fields(w.registration())[0], func(t *testing.T) {
			home := open
			if w.known != "" {
				home = cutOff
			}
			newClientTest(t, home, servers[home], h, w).run()
		})
	}
}

// clientTest plays one way of one client.
type clientTest struct {
	clientWay
	t      *testing.T
	home   *rig.Home
	server *client.Server
	http   *http.Client
	secret string // of a client that was added with one
}

func newClientTest(t *testing.T, home *rig.Home, server *client.Server, h *http.Client, w clientWay) *clientTest {
	browser := *h
	browser.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &clientTest{clientWay: w, t: t, home: home, server: server, http: &browser}
}

func (c *clientTest) run() {
	ids := []string{c.register()}
	if c.twice {
		if ids = append(ids, c.register()); ids[0] == ids[1] {
			c.t.Fatalf("two registrations have one id, %s", ids[0])
		}
	}
	for _, id := range ids {
		var all []oauth2.Token
		for _, redirect := range c.redirects {
			verifier := oauth2.GenerateVerifier()
			first := c.redeem(id, redirect, c.authorize(id, redirect, verifier), verifier)
			c.call(first)
			second := c.refresh(id, first)
			c.call(second)
			all = append(all, second)
		}
		c.home.OK("clients", "revoke", id)
		for _, token := range all {
			c.checkRevoked(id, token)
		}
	}
}

// register returns the client's id.
func (c *clientTest) register() string {
	c.t.Helper()
	switch {
	case c.known != "":
		return c.known
	case c.document != "":
		return serveDocument(c.t, c.document)
	case c.added != "":
		args := append([]string{"clients", "add", "--json", "--name", c.client}, strings.Fields(c.added)...)
		var made struct{ ID, Secret string }
		if err := json.Unmarshal([]byte(c.home.OK(args...)), &made); err != nil {
			c.t.Fatal(err)
		}
		if c.secret = made.Secret; (c.secret != "") != strings.Contains(c.added, "--secret") {
			c.t.Fatalf("clients %s: the secret has %d characters", c.added, len(c.secret))
		}
		return made.ID
	}
	status, answer := c.post(c.server.Meta.RegistrationEndpoint, "application/json", c.dynamic)
	var made struct {
		ClientID                string   `json:"client_id"`
		ClientSecret            string   `json:"client_secret"`
		TokenEndpointAuthMethod string   `json:"token_endpoint_auth_method"`
		RedirectURIs            []string `json:"redirect_uris"`
	}
	if err := json.Unmarshal(answer, &made); err != nil || status != http.StatusCreated || made.ClientID == "" {
		c.t.Fatalf("the registration is answered %d, %s", status, answer)
	}
	if made.TokenEndpointAuthMethod != "none" || made.ClientSecret != "" {
		c.t.Errorf("a client that registers itself is told to use %q", made.TokenEndpointAuthMethod)
	}
	for _, uri := range c.redirects {
		if !strings.Contains(uri, "://127.0.0.1") && !slices.Contains(made.RedirectURIs, uri) {
			c.t.Errorf("%s is not among the registered %q", uri, made.RedirectURIs)
		}
	}
	return made.ClientID
}

// withResource adds the resource as the client spells it.
func (c *clientTest) withResource(q url.Values) url.Values {
	switch c.resource {
	case published:
		q.Set("resource", c.server.Resource)
	case slash:
		q.Set("resource", c.server.Resource+"/")
	}
	return q
}

// authorize asks the owner, who allows it, and returns the code.
func (c *clientTest) authorize(id, redirect, verifier string) string {
	c.t.Helper()
	raw := make([]byte, max(c.state, 32)/2)
	_, _ = rand.Read(raw)
	state := hex.EncodeToString(raw)
	q := c.withResource(url.Values{
		"response_type": {"code"}, "client_id": {id}, "redirect_uri": {redirect}, "state": {state},
		"code_challenge": {oauth2.S256ChallengeFromVerifier(verifier)}, "code_challenge_method": {"S256"},
	})
	if c.scope != "" {
		q.Set("scope", c.scope)
	}
	flow := c.server.Authorize(id, "", redirect)
	flow.URL = c.server.Meta.AuthorizationEndpoint + "?" + q.Encode()
	to, err := flow.Consent(c.t.Context(), c.home.Password, client.Allow)
	if err != nil {
		c.t.Fatalf("%s: %v", redirect, err)
	}
	answer := to.Query()
	code := answer.Get("code")
	want := url.Values{"code": {code}, "state": {state}, "iss": {c.server.Meta.Issuer}}
	if code == "" || to.String() != redirect+"?"+answer.Encode() || answer.Encode() != want.Encode() {
		c.t.Fatalf("the owner is sent to %s, want %s with code, state and iss", to, redirect)
	}
	return code
}

// redeem exchanges the code.
func (c *clientTest) redeem(id, redirect, code, verifier string) oauth2.Token {
	c.t.Helper()
	form := c.withResource(url.Values{"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {redirect}, "code_verifier": {verifier}})
	return c.token(id, form)
}

func (c *clientTest) refresh(id string, t oauth2.Token) oauth2.Token {
	c.t.Helper()
	next := c.token(id, c.withResource(url.Values{"grant_type": {"refresh_token"}, "refresh_token": {t.RefreshToken}}))
	if next.RefreshToken == t.RefreshToken || next.AccessToken == t.AccessToken {
		c.t.Error("the refresh gave a token that the client has already")
	}
	return next
}

func (c *clientTest) token(id string, form url.Values) oauth2.Token {
	c.t.Helper()
	status, answer := c.postToken(id, form)
	var got struct {
		oauth2.Token
		Scope string `json:"scope"`
	}
	if err := json.Unmarshal(answer, &got); err != nil || status != http.StatusOK {
		c.t.Fatalf("the %s is answered %d: %s", form.Get("grant_type"), status, answer)
	}
	wantScope := ourScope
	if strings.Contains(c.scope, "offline_access") {
		wantScope = allScopes
	}
	if got.TokenType != "Bearer" || got.ExpiresIn < 3000 || got.AccessToken == "" || got.RefreshToken == "" || got.Scope != wantScope {
		c.t.Errorf("the %s gives type %q, %d seconds, scope %q, a refresh token: %v", form.Get("grant_type"), got.TokenType, got.ExpiresIn, got.Scope, got.RefreshToken != "")
	}
	return got.Token
}

// postToken sends a form to the token endpoint, with the client's id and secret
// in it.
func (c *clientTest) postToken(id string, form url.Values) (int, []byte) {
	c.t.Helper()
	form.Set("client_id", id)
	if c.secret != "" {
		form.Set("client_secret", c.secret)
	}
	return c.post(c.server.Meta.TokenEndpoint, "application/x-www-form-urlencoded", form.Encode())
}

func (c *clientTest) post(address, contentType, body string) (int, []byte) {
	c.t.Helper()
	res, err := c.http.Post(address, contentType, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return res.StatusCode, answer
}

func (c *clientTest) call(t oauth2.Token) {
	c.t.Helper()
	session, err := c.server.Connect(c.t.Context(), c.client, t.AccessToken)
	if err != nil {
		c.t.Fatal(err)
	}
	defer session.Close()
	if err := session.Call(c.t.Context(), "list_peers", object{}, nil); err != nil {
		c.t.Errorf("the call: %v", err)
	}
}

// checkRevoked sees that the tokens are worth nothing any more, and that the
// client is told so in the words that make it ask the owner again.
func (c *clientTest) checkRevoked(id string, t oauth2.Token) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, c.server.MCPURL, strings.NewReader(`{"jsonrpc": "2.0", "id": 1, "method": "ping"}`))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+t.AccessToken)
	req.Header.Set("Content-Type", "application/json")
	res, err := c.http.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	res.Body.Close()
	if challenge := res.Header.Get("WWW-Authenticate"); res.StatusCode != http.StatusUnauthorized || !strings.Contains(challenge, `error="invalid_token"`) || !strings.Contains(challenge, "resource_metadata=") {
		c.t.Errorf("a call after the revocation is answered %d with the challenge %q", res.StatusCode, challenge)
	}
	status, answer := c.postToken(id, c.withResource(url.Values{"grant_type": {"refresh_token"}, "refresh_token": {t.RefreshToken}}))
	var refusal struct{ Error string }
	if err := json.Unmarshal(answer, &refusal); err != nil || status != http.StatusBadRequest || refusal.Error != "invalid_grant" {
		c.t.Errorf("a refresh after the revocation is answered %d: %s", status, answer)
	}
}

// serveDocument serves a client's metadata document on loopback and returns its
// client id, which the document is given as its own.
func serveDocument(t *testing.T, document string) (clientID string) {
	t.Helper()
	members := object{}
	if err := json.Unmarshal([]byte(document), &members); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(members)
	}))
	t.Cleanup(s.Close)
	members["client_id"] = s.URL + "/oauth/client.json"
	return s.URL + "/oauth/client.json"
}

// cutOffBinary is a gateway on a machine that resolves no names; see TestMain.
func cutOffBinary(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "gateway")
	script := fmt.Sprintf("#!/bin/sh\n%s=1 exec '%s' \"$@\"\n", asCutOffGateway, self)
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// refusalOf is the code of a tool's refusal, "" for success.
func refusalOf(t *testing.T, err error) string {
	t.Helper()
	var refused *client.ToolError
	if err != nil && !errors.As(err, &refused) {
		t.Fatal(err)
	}
	if refused == nil {
		return ""
	}
	return refused.Code
}
