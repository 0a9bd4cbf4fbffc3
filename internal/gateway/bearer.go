package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/auth"

	"agentrelay/internal/fault"
	"agentrelay/internal/oauth"
	"agentrelay/internal/principal"
)

// authenticator is the part of [oauth.Server] that knows tokens. An error that
// is not [oauth.ErrInvalidToken] is trouble of our own.
type authenticator interface {
	Authenticate(ctx context.Context, token string) (oauth.Access, error)
}

// bearer lets only requests with a valid access token through (RFC 6750, RFC
// 9728 section 5.1). It decides before the body is read.
type bearer struct {
	tokens      authenticator
	metadataURL string // of the protected resource
	scope       string
}

type accessKey struct{}

func (b *bearer) handler(next http.Handler) http.Handler {
	// The SDK's own middleware is what puts the identity where its handlers
	// find it. The token is verified by then, and its expiry decided by our
	// clock, so there is nothing left for it to refuse.
	known := auth.RequireBearerToken(func(ctx context.Context, _ string, _ *http.Request) (*auth.TokenInfo, error) {
		access := ctx.Value(accessKey{}).(oauth.Access)
		return &auth.TokenInfo{Scopes: access.Scopes, UserID: access.Principal.ClientID, Extra: map[string]any{principalKey: access.Principal}}, nil
	}, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})(next)

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, sent := bearerToken(r.Header["Authorization"])
		if !sent {
			b.challenge(w, r, http.StatusUnauthorized, unauthorized.New("This request carries no access token."))
			return
		}
		access, err := b.authenticate(r.Context(), token)
		switch {
		case errors.Is(err, oauth.ErrInvalidToken):
			b.challenge(w, r, http.StatusUnauthorized, invalidToken.New("The access token is malformed, unknown, expired or revoked."))
			return
		case err != nil: // never a 401: that means "log in again"
			w.Header().Set("Retry-After", "5")
			refuse(w, r, http.StatusServiceUnavailable, fault.Unavailable.New("The access token could not be checked.").Because(err))
			return
		case !slices.Contains(access.Scopes, b.scope):
			b.challenge(w, r, http.StatusForbidden, insufficientScope.Newf("The access token lacks the scope %s.", b.scope))
			return
		}
		rec := recordOf(r.Context())
		rec.authenticated(access.Principal.ClientID)
		r = r.WithContext(context.WithValue(r.Context(), accessKey{}, access))
		r.Body = rec.body // from here on the endpoint's own limit holds
		known.ServeHTTP(w, r)
	})
}

func (b *bearer) authenticate(ctx context.Context, token string) (oauth.Access, error) {
	if token == "" {
		return oauth.Access{}, oauth.ErrInvalidToken
	}
	return b.tokens.Authenticate(ctx, token)
}

// challenge answers with a WWW-Authenticate header. A request without a
// credential gets no error attribute (RFC 6750 section 3.1): some clients stop
// at one instead of logging in.
func (b *bearer) challenge(w http.ResponseWriter, r *http.Request, status int, e *fault.Error) {
	attrs := fmt.Sprintf("resource_metadata=%q, scope=%q", b.metadataURL, b.scope)
	if e.Code != unauthorized.Code {
		attrs = fmt.Sprintf("error=%q, error_description=%q, ", e.Code, e.Message) + attrs
	}
	w.Header().Set("WWW-Authenticate", "Bearer "+attrs)
	refuse(w, r, status, e)
}

// bearerToken reads the Authorization lines. Another scheme is no bearer
// credential; two lines, or a value that can be no token, are one that is
// invalid, which "" stands for.
func bearerToken(lines []string) (token string, sent bool) {
	if len(lines) == 0 {
		return "", false
	}
	scheme, token, _ := strings.Cut(lines[0], " ")
	if !strings.EqualFold(scheme, "bearer") {
		return "", false
	}
	token = strings.Trim(token, " ")
	if len(lines) > 1 || strings.ContainsAny(token, " \t,") || len(token) > 4096 {
		return "", true
	}
	return token, true
}

// principalKey is where the verified caller stands in [auth.TokenInfo].Extra.
const principalKey = "principal"

// caller returns who made a call. Only the bearer check puts it there.
func caller(info *auth.TokenInfo) (principal.Principal, error) {
	if info == nil {
		return principal.Principal{}, errors.New("a call reached the MCP server without an identity")
	}
	p, ok := info.Extra[principalKey].(principal.Principal)
	if !ok {
		return principal.Principal{}, errors.New("a call's identity is not a principal")
	}
	return p, nil
}
