package oauth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/ory/fosite"
	"github.com/ory/fosite/handler/oauth2"
	"github.com/ory/fosite/handler/pkce"

	"agentrelay/internal/fault"
)

// view is a client as fosite needs it. Redirects are matched before fosite runs
// (it knows neither loopback on any port for localhost nor our policy), so the
// view has none.
func (s *Server) view(c client) fosite.Client {
	return &fosite.DefaultClient{
		ID: c.id, Public: len(c.secretHash) == 0,
		GrantTypes: c.grantTypes, ResponseTypes: []string{"code"},
		Scopes: []string{ScopeAgents, ScopeOffline}, Audience: []string{s.resource.String()},
	}
}

// provider is fosite over this exchange's transaction: three handlers, S256
// only, no defaults of its own.
func (x *exchange) provider() *fosite.Fosite {
	config := &fosite.Config{
		AccessTokenLifespan: accessLife, RefreshTokenLifespan: refreshLife, AuthorizeCodeLifespan: codeLife,
		ScopeStrategy: fosite.ExactScopeStrategy, AudienceMatchingStrategy: fosite.ExactAudienceMatchingStrategy,
		EnforcePKCE: true, RefreshTokenScopes: []string{}, OmitRedirectScopeParam: true,
		RedirectSecureChecker: func(context.Context, *url.URL) bool { return true }, // package redirect decides
		ClientAuthenticationStrategy: func(context.Context, *http.Request, url.Values) (fosite.Client, error) {
			return x.s.view(x.client), nil
		},
	}
	tokens := strategy{rand: x.s.rand, now: x.tx.Now()}
	code := &oauth2.AuthorizeExplicitGrantHandler{
		AccessTokenStrategy: tokens, RefreshTokenStrategy: tokens, AuthorizeCodeStrategy: tokens,
		CoreStorage: x, TokenRevocationStorage: x, Config: config,
	}
	proof := &pkce.Handler{AuthorizeCodeStrategy: tokens, Storage: x, Config: config}
	refresh := &oauth2.RefreshTokenGrantHandler{
		AccessTokenStrategy: tokens, RefreshTokenStrategy: tokens, TokenRevocationStorage: x, Config: config,
	}
	config.AuthorizeEndpointHandlers = fosite.AuthorizeEndpointHandlers{code, proof}
	config.TokenEndpointHandlers = fosite.TokenEndpointHandlers{code, refresh, proof}
	config.RevocationHandlers = fosite.RevocationHandlers{
		&oauth2.TokenRevocationHandler{TokenRevocationStorage: x, RefreshTokenStrategy: tokens, AccessTokenStrategy: tokens},
	}
	return fosite.NewOAuth2Provider(x, config)
}

// issued is what fosite answered to a token request.
type issued struct {
	accessToken  string
	refreshToken string
	scope        string
}

// issue runs a token request through fosite. A refusal is what the client hears;
// an error undoes the transaction.
func (x *exchange) issue(form url.Values) (_ issued, refusal *fault.Error, err error) {
	p := x.provider()
	ctx := context.Background()
	request, err := p.NewAccessRequest(ctx, post(form), session{})
	if err != nil {
		return x.refused(err)
	}
	response, err := p.NewAccessResponse(ctx, request)
	if err != nil {
		return x.refused(err)
	}
	refresh, _ := response.GetExtra("refresh_token").(string)
	return issued{response.GetAccessToken(), refresh, strings.Join(request.GetGrantedScopes(), " ")}, nil, nil
}

// withdraw runs a revocation through fosite, like [exchange.issue].
func (x *exchange) withdraw(form url.Values) (*fault.Error, error) {
	err := x.provider().NewRevocationRequest(context.Background(), post(form))
	if err != nil || x.trouble != nil {
		return x.refusal(err)
	}
	return nil, nil
}

// post is a request as fosite reads it, with nothing but the form.
func post(form url.Values) *http.Request {
	return &http.Request{Method: http.MethodPost, Header: http.Header{}, URL: &url.URL{}, Form: form, PostForm: form}
}

func (x *exchange) refused(err error) (issued, *fault.Error, error) {
	refusal, err := x.refusal(err)
	return issued{}, refusal, err
}

// refusal puts fosite's refusals into our words. What is not a refusal comes
// back as an error.
func (x *exchange) refusal(err error) (*fault.Error, error) {
	if x.trouble != nil {
		return nil, x.trouble
	}
	e := fosite.ErrorToRFC6749Error(err)
	for _, kind := range []fault.Kind{invalidRequest, invalidClient, invalidGrant, unauthorizedClient, unsupportedGrantType, invalidTarget} {
		if e.ErrorField != kind.Code {
			continue
		}
		why := e.HintField
		switch {
		case errors.Is(err, fosite.ErrTokenExpired):
			why = "It has expired."
		case x.why != "":
			why = x.why
		}
		return kind.New(why).Because(err), nil
	}
	return nil, err
}

// code issues an authorization code for x.consent under a new grant.
func (x *exchange) code(grantID string) (string, error) {
	request := fosite.NewAuthorizeRequest()
	request.ID, request.Client = grantID, x.s.view(x.client)
	request.ResponseTypes, request.RedirectURI = fosite.Arguments{"code"}, &url.URL{}
	request.RequestedScope, request.GrantedScope = x.consent.scopes, x.consent.scopes
	request.RequestedAudience = fosite.Arguments{x.consent.resource}
	request.GrantedAudience = request.RequestedAudience
	request.Form = url.Values{"code_challenge": {x.consent.challenge}, "code_challenge_method": {"S256"}}
	response, err := x.provider().NewAuthorizeResponse(context.Background(), request, session{})
	if x.trouble != nil {
		return "", x.trouble
	}
	if err != nil {
		return "", fmt.Errorf("issuing a code: %w", err)
	}
	return response.GetCode(), nil
}
