package oauth

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/ory/fosite"

	"agentrelay/internal/audit"
	"agentrelay/internal/store"
)

// exchange is one request to an endpoint, inside its transaction. It is the
// storage that fosite's handlers see; what fosite calls a signature is a hash,
// and its request id is our grant id.
//
// A method that finds nothing usable says in why what a client may be told. A
// method that fails keeps the error in trouble, since fosite hides causes.
type exchange struct {
	s      *Server
	tx     *store.Tx
	client client
	// consent is set while a code is issued.
	consent *authorization
	// revoking is set on the revocation endpoint, where a token that was already
	// rotated still names its grant.
	revoking bool

	revoked []string // grants ended by this request
	why     string
	trouble error
}

// grant is a row of oauth_grants that is not revoked.
type grant struct {
	id       string
	clientID string
	scope    string
	resource string
}

// failed keeps the first error of the store and returns it.
func (x *exchange) failed(err error) error {
	if err != nil && x.trouble == nil {
		x.trouble = err
	}
	return err
}

// missing is what fosite hears of a row that may not be used.
func (x *exchange) missing(why string) error {
	x.why = why
	return fosite.ErrNotFound
}

func (x *exchange) until(life time.Duration) int64 { return x.tx.Now().Add(life).UnixMilli() }

// request is a stored grant in fosite's form. form is what it was asked with.
func (x *exchange) request(g grant, expires map[fosite.TokenType]int64, into fosite.Session, form url.Values) fosite.Requester {
	if into == nil {
		into = session{}
	}
	for kind, at := range expires {
		into.SetExpiresAt(kind, time.UnixMilli(at))
	}
	c := x.client
	if g.clientID != c.id {
		c = client{id: g.clientID} // fosite compares the ids and refuses
	}
	scopes := strings.Fields(g.scope)
	return &fosite.Request{
		ID: g.id, Client: x.s.view(c), Session: into, Form: form, RequestedAt: x.tx.Now(),
		RequestedScope: scopes, GrantedScope: scopes,
		RequestedAudience: fosite.Arguments{g.resource}, GrantedAudience: fosite.Arguments{g.resource},
	}
}

// GetClient implements fosite's client manager. Clients are authenticated before
// fosite runs, so only the one that is may be found.
func (x *exchange) GetClient(_ context.Context, id string) (fosite.Client, error) {
	if id != x.client.id {
		return nil, fosite.ErrNotFound
	}
	return x.s.view(x.client), nil
}

// ClientAssertionJWTValid implements fosite's client manager; assertions are
// refused before fosite runs.
func (x *exchange) ClientAssertionJWTValid(context.Context, string) error { return fosite.ErrNotFound }

// SetClientAssertionJWT implements fosite's client manager.
func (x *exchange) SetClientAssertionJWT(context.Context, string, time.Time) error {
	return fosite.ErrNotFound
}

// CreateAuthorizeCodeSession writes the grant of a consent and its code.
func (x *exchange) CreateAuthorizeCodeSession(_ context.Context, signature string, r fosite.Requester) error {
	expires := x.until(codeLife)
	if _, err := x.tx.Exec(`INSERT INTO oauth_grants (id, client_id, scope, resource, created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?)`,
		r.GetID(), x.client.id, strings.Join(x.consent.scopes, " "), x.consent.resource, x.tx.Now().UnixMilli(), expires); err != nil {
		return x.failed(fmt.Errorf("storing the grant: %w", err))
	}
	if _, err := x.tx.Exec(`INSERT INTO oauth_codes (hash, grant_id, redirect_uri, challenge, expires_at) VALUES (?, ?, ?, ?, ?)`,
		[]byte(signature), r.GetID(), x.consent.redirectURI, x.consent.challenge, expires); err != nil {
		return x.failed(fmt.Errorf("storing the code: %w", err))
	}
	return nil
}

// GetAuthorizeCodeSession finds a code of the authenticated client.
func (x *exchange) GetAuthorizeCodeSession(_ context.Context, signature string, into fosite.Session) (fosite.Requester, error) {
	var g grant
	var redirectURI, challenge string
	var expires int64
	var used, revoked sql.NullInt64
	err := x.tx.QueryRow(`SELECT g.id, g.client_id, g.scope, g.resource, g.revoked_at, k.redirect_uri, k.challenge, k.expires_at, k.used_at
		FROM oauth_codes k JOIN oauth_grants g ON g.id = k.grant_id WHERE k.hash = ?`, []byte(signature)).
		Scan(&g.id, &g.clientID, &g.scope, &g.resource, &revoked, &redirectURI, &challenge, &expires, &used)
	if errors.Is(err, sql.ErrNoRows) || err == nil && g.clientID != x.client.id {
		return nil, x.missing("The code is unknown or was issued to another client.")
	}
	if err != nil {
		return nil, x.failed(fmt.Errorf("reading the code: %w", err))
	}
	form := url.Values{"code_challenge": {challenge}, "code_challenge_method": {"S256"}, "redirect_uri": {redirectURI}}
	r := x.request(g, map[fosite.TokenType]int64{fosite.AuthorizeCode: expires}, into, form)
	switch {
	case used.Valid:
		x.why = "The code was already used, so the tokens it gave were revoked."
		return r, fosite.ErrInvalidatedAuthorizeCode
	case revoked.Valid:
		return nil, x.missing("The consent behind this code was revoked.")
	case g.resource != x.s.resource.String():
		return nil, x.missing("The code was issued for another address of this gateway.")
	}
	return r, nil
}

// InvalidateAuthorizeCodeSession uses a code up, once.
func (x *exchange) InvalidateAuthorizeCodeSession(_ context.Context, signature string) error {
	n, err := x.tx.Exec(`UPDATE oauth_codes SET used_at = ? WHERE hash = ? AND used_at IS NULL`, x.tx.Now().UnixMilli(), []byte(signature))
	if err == nil && n != 1 {
		err = errors.New("the code was used within this transaction")
	}
	return x.failed(err)
}

// GetPKCERequestSession finds the challenge, which lies beside the code.
func (x *exchange) GetPKCERequestSession(ctx context.Context, signature string, into fosite.Session) (fosite.Requester, error) {
	return x.GetAuthorizeCodeSession(ctx, signature, into)
}

// CreatePKCERequestSession has nothing to do: the code's row has the challenge.
func (x *exchange) CreatePKCERequestSession(context.Context, string, fosite.Requester) error {
	return nil
}

// DeletePKCERequestSession has nothing to do: a wrong verifier does not use the
// code up, for then anybody who saw it could spoil it.
func (x *exchange) DeletePKCERequestSession(context.Context, string) error { return nil }

// CreateAccessTokenSession stores an access token.
func (x *exchange) CreateAccessTokenSession(_ context.Context, signature string, r fosite.Requester) error {
	return x.failed(x.insertAccess(r.GetID(), []byte(signature)))
}

func (x *exchange) insertAccess(grantID string, hash []byte) error {
	expires := x.until(accessLife)
	if _, err := x.tx.Exec(`INSERT INTO oauth_access_tokens (hash, grant_id, expires_at) VALUES (?, ?, ?)`, hash, grantID, expires); err != nil {
		return fmt.Errorf("storing the access token: %w", err)
	}
	return x.extend(grantID, expires)
}

// extend keeps a grant at least as long as its last token.
func (x *exchange) extend(grantID string, expires int64) error {
	if _, err := x.tx.Exec(`UPDATE oauth_grants SET expires_at = max(expires_at, ?) WHERE id = ?`, expires, grantID); err != nil {
		return fmt.Errorf("extending the grant: %w", err)
	}
	return nil
}

// GetAccessTokenSession finds an access token on the revocation endpoint.
func (x *exchange) GetAccessTokenSession(_ context.Context, signature string, into fosite.Session) (fosite.Requester, error) {
	var g grant
	var expires int64
	err := x.tx.QueryRow(`SELECT g.id, g.client_id, g.scope, g.resource, t.expires_at
		FROM oauth_access_tokens t JOIN oauth_grants g ON g.id = t.grant_id WHERE t.hash = ?`, []byte(signature)).
		Scan(&g.id, &g.clientID, &g.scope, &g.resource, &expires)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, x.missing("The token is unknown.")
	}
	if err != nil {
		return nil, x.failed(fmt.Errorf("reading the access token: %w", err))
	}
	return x.request(g, map[fosite.TokenType]int64{fosite.AccessToken: expires}, into, nil), nil
}

// DeleteAccessTokenSession removes one access token.
func (x *exchange) DeleteAccessTokenSession(_ context.Context, signature string) error {
	_, err := x.tx.Exec(`DELETE FROM oauth_access_tokens WHERE hash = ?`, []byte(signature))
	return x.failed(err)
}

// CreateRefreshTokenSession stores a refresh token.
func (x *exchange) CreateRefreshTokenSession(_ context.Context, signature, _ string, r fosite.Requester) error {
	expires := x.until(refreshLife)
	if _, err := x.tx.Exec(`INSERT INTO oauth_refresh_tokens (hash, grant_id, expires_at) VALUES (?, ?, ?)`, []byte(signature), r.GetID(), expires); err != nil {
		return x.failed(fmt.Errorf("storing the refresh token: %w", err))
	}
	return x.failed(x.extend(r.GetID(), expires))
}

// GetRefreshTokenSession finds a refresh token. One that was rotated, and was
// not answered again by [exchange.replay], is reused.
func (x *exchange) GetRefreshTokenSession(_ context.Context, signature string, into fosite.Session) (fosite.Requester, error) {
	t, err := x.readRefresh([]byte(signature))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, x.missing("The refresh token is unknown.")
	}
	if err != nil {
		return nil, x.failed(err)
	}
	r := x.request(t.grant, map[fosite.TokenType]int64{fosite.RefreshToken: t.expires.UnixMilli()}, into, nil)
	switch {
	case x.revoking:
		return r, nil
	case t.clientID != x.client.id:
		return nil, x.missing("The refresh token was issued to another client.")
	case t.revoked:
		return nil, x.missing("The consent behind this refresh token was revoked.")
	case t.resource != x.s.resource.String():
		return nil, x.missing("The refresh token was issued for another address of this gateway.")
	case !x.tx.Now().Before(t.expires):
		return r, nil // the strategy says so; a stale copy is no sign of theft
	case !t.rotated.IsZero():
		x.why = "The refresh token was used before its successor and is used again, so every token of this consent was revoked."
		return r, fosite.ErrInactiveToken
	}
	return r, nil
}

// DeleteRefreshTokenSession has nothing to do: fosite calls it for a reused
// token before it revokes the whole grant.
func (x *exchange) DeleteRefreshTokenSession(context.Context, string) error { return nil }

// RotateRefreshToken marks a refresh token as used, once.
func (x *exchange) RotateRefreshToken(_ context.Context, _ string, signature string) error {
	n, err := x.tx.Exec(`UPDATE oauth_refresh_tokens SET rotated_at = ? WHERE hash = ? AND rotated_at IS NULL`, x.tx.Now().UnixMilli(), []byte(signature))
	if err == nil && n != 1 {
		err = errors.New("the refresh token was rotated within this transaction")
	}
	return x.failed(err)
}

// RevokeRefreshToken ends the whole grant.
func (x *exchange) RevokeRefreshToken(_ context.Context, grantID string) error {
	return x.failed(x.revoke(grantID))
}

// RevokeAccessToken ends the whole grant.
func (x *exchange) RevokeAccessToken(_ context.Context, grantID string) error {
	return x.failed(x.revoke(grantID))
}

func (x *exchange) revoke(grantID string) error {
	n, err := revokeGrant(x.tx, grantID)
	if err != nil || n == 0 {
		return err
	}
	x.revoked = append(x.revoked, grantID)
	reason := "reuse"
	if x.revoking {
		reason = "asked"
	}
	return audit.Record(x.tx, x.s.clients.principalOf(x.client), "grant.revoke", grantID, audit.OK, "reason", reason)
}

// revokeGrant ends a grant and with it its code and every token. It returns 0
// when it was ended before.
func revokeGrant(tx *store.Tx, grantID string) (int64, error) {
	now := tx.Now().UnixMilli()
	n, err := tx.Exec(`UPDATE oauth_grants SET revoked_at = ?, expires_at = min(expires_at, ?) WHERE id = ? AND revoked_at IS NULL`, now, now, grantID)
	if err != nil {
		return 0, fmt.Errorf("revoking the grant: %w", err)
	}
	return n, nil
}
