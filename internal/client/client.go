// Package client is an OAuth and MCP client of a gateway, as a chat client would
// be one.
//
// It owns discovery from the MCP URL alone, registration, the authorization code
// flow with PKCE, refresh, revocation and tool calls; and, because it serves the
// demo, the owner's checks and tests, it can play the owner on the consent page
// when it is given the password. It promises to follow what the server's
// metadata says and to check what a careful client checks (state, iss, PKCE). It
// holds no state beyond what its caller keeps, and leaves storing tokens to it.
// The protocols themselves are the work of golang.org/x/oauth2 and the MCP SDK.
package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"
)

// Scope is what clients ask for.
const Scope = "local-agents"

// Server is a gateway as its metadata describes it.
type Server struct {
	// MCPURL is the address the user typed.
	MCPURL string
	// Resource is the name of that address in tokens (RFC 8707).
	Resource string
	// Meta is the authorization server's metadata (RFC 8414).
	Meta *oauthex.AuthServerMeta

	http *http.Client
}

// Discover finds the authorization server of an MCP endpoint as the MCP
// specification tells clients to: it calls the endpoint without a token and
// follows the challenge of the 401 (RFC 9728) to the metadata (RFC 8414).
func Discover(ctx context.Context, h *http.Client, mcpURL string) (*Server, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, mcpURL, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := h.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking %s who protects it: %w", mcpURL, err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusUnauthorized {
		return nil, fmt.Errorf("%s answered %s to a call without a token, want 401", mcpURL, res.Status)
	}
	challenges, err := oauthex.ParseWWWAuthenticate(res.Header.Values("WWW-Authenticate"))
	if err != nil {
		return nil, fmt.Errorf("reading the challenge of %s: %w", mcpURL, err)
	}
	for _, c := range challenges {
		if u := c.Params["resource_metadata"]; u != "" {
			return follow(ctx, h, mcpURL, u)
		}
	}
	return nil, fmt.Errorf("the 401 of %s names no resource_metadata", mcpURL)
}

func follow(ctx context.Context, h *http.Client, mcpURL, metadataURL string) (*Server, error) {
	prm, err := oauthex.GetProtectedResourceMetadata(ctx, metadataURL, mcpURL, h)
	if err != nil {
		return nil, err
	}
	if len(prm.AuthorizationServers) == 0 {
		return nil, fmt.Errorf("%s names no authorization server", metadataURL)
	}
	issuer := prm.AuthorizationServers[0]
	meta, err := oauthex.GetAuthServerMeta(ctx, strings.TrimRight(issuer, "/")+"/.well-known/oauth-authorization-server", issuer, h)
	if err != nil {
		return nil, fmt.Errorf("reading the metadata of %s: %w", issuer, err)
	}
	if meta == nil {
		return nil, fmt.Errorf("%s has no authorization server metadata", issuer)
	}
	return &Server{MCPURL: mcpURL, Resource: prm.Resource, Meta: meta, http: h}, nil
}

// Register registers a public client with one redirect URI (RFC 7591) and
// returns its id.
func (s *Server) Register(ctx context.Context, name, redirectURI string) (clientID string, err error) {
	res, err := oauthex.RegisterClient(ctx, s.Meta.RegistrationEndpoint, &oauthex.ClientRegistrationMetadata{
		ClientName: name, RedirectURIs: []string{redirectURI},
		GrantTypes: []string{"authorization_code", "refresh_token"}, ResponseTypes: []string{"code"}, TokenEndpointAuthMethod: "none",
	}, s.http)
	if err != nil {
		return "", fmt.Errorf("registering %s: %w", name, err)
	}
	return res.ClientID, nil
}

// Flow is one authorization code flow on its way.
type Flow struct {
	// URL is where the owner's browser goes.
	URL string

	server   *Server
	config   *oauth2.Config
	verifier string
	state    string
}

// Authorize begins a flow for a client.
func (s *Server) Authorize(clientID, clientSecret, redirectURI string) *Flow {
	f := &Flow{
		server: s, verifier: oauth2.GenerateVerifier(), state: oauth2.GenerateVerifier(),
		config: &oauth2.Config{
			ClientID: clientID, ClientSecret: clientSecret, RedirectURL: redirectURI, Scopes: []string{Scope},
			Endpoint: oauth2.Endpoint{AuthURL: s.Meta.AuthorizationEndpoint, TokenURL: s.Meta.TokenEndpoint, AuthStyle: oauth2.AuthStyleInParams},
		},
	}
	f.URL = f.config.AuthCodeURL(f.state, oauth2.S256ChallengeOption(f.verifier), s.resourceParam())
	return f
}

func (s *Server) resourceParam() oauth2.AuthCodeOption {
	return oauth2.SetAuthURLParam("resource", s.Resource)
}

// Redeem checks the redirect that the owner's browser was sent to and exchanges
// its code.
func (f *Flow) Redeem(ctx context.Context, redirected *url.URL) (*oauth2.Token, error) {
	q := redirected.Query()
	switch {
	case q.Get("state") != f.state:
		return nil, errors.New("the redirect carries another state")
	case q.Get("iss") != f.server.Meta.Issuer:
		return nil, fmt.Errorf("the redirect comes from issuer %q, want %q", q.Get("iss"), f.server.Meta.Issuer)
	case q.Get("error") != "":
		return nil, fmt.Errorf("the authorization was refused: %s: %s", q.Get("error"), q.Get("error_description"))
	}
	token, err := f.config.Exchange(f.server.in(ctx), q.Get("code"), oauth2.VerifierOption(f.verifier), f.server.resourceParam())
	if err != nil {
		return nil, fmt.Errorf("exchanging the code: %w", err)
	}
	return token, nil
}

// Refresh exchanges a refresh token for new tokens.
func (s *Server) Refresh(ctx context.Context, clientID, refreshToken string) (*oauth2.Token, error) {
	config := &oauth2.Config{ClientID: clientID, Endpoint: oauth2.Endpoint{TokenURL: s.Meta.TokenEndpoint, AuthStyle: oauth2.AuthStyleInParams}}
	token, err := config.TokenSource(s.in(ctx), &oauth2.Token{RefreshToken: refreshToken}).Token()
	if err != nil {
		return nil, fmt.Errorf("refreshing: %w", err)
	}
	return token, nil
}

// Revoke ends the consent that a token belongs to (RFC 7009).
func (s *Server) Revoke(ctx context.Context, clientID, token string) error {
	form := url.Values{"client_id": {clientID}, "token": {token}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Meta.RevocationEndpoint, strings.NewReader(form.Encode()))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := s.http.Do(req)
	if err != nil {
		return fmt.Errorf("revoking: %w", err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("revoking: %s", res.Status)
	}
	return nil
}

// in gives x/oauth2 our HTTP client.
func (s *Server) in(ctx context.Context) context.Context {
	return context.WithValue(ctx, oauth2.HTTPClient, s.http)
}
