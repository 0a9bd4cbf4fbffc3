package oauth

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/ory/fosite"
)

// What a secret is, is visible in its first letters, so that a leaked one is
// recognised by people and by scanners.
const (
	codePrefix    = "ar_code_"
	accessPrefix  = "ar_at_"
	refreshPrefix = "ar_rt_"
	secretPrefix  = "ar_secret_"
	clientPrefix  = "ar_client_"
)

// secretBytes is the entropy of every code, token and client secret. At 256
// bits a plain hash is enough at rest: there is nothing to guess.
const secretBytes = 32

// mint returns a new random string of n bytes behind a prefix.
func mint(random io.Reader, prefix string, n int) (string, error) {
	b := make([]byte, n)
	if _, err := io.ReadFull(random, b); err != nil {
		return "", fmt.Errorf("reading random bytes: %w", err)
	}
	return prefix + base64.RawURLEncoding.EncodeToString(b), nil
}

// digest is what is stored of a secret.
func digest(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

// plausible reports whether token has the form of ours, which spares the store
// a read for everything else.
func plausible(prefix, token string) bool {
	return len(token) == len(prefix)+base64.RawURLEncoding.EncodedLen(secretBytes) && strings.HasPrefix(token, prefix)
}

// strategy makes and checks codes and tokens for fosite. A signature, in its
// words, is the digest; expiry is judged by the session that storage filled.
type strategy struct {
	rand io.Reader
	now  time.Time
}

func (strategy) AccessTokenSignature(_ context.Context, token string) string {
	return string(digest(token))
}
func (strategy) RefreshTokenSignature(_ context.Context, token string) string {
	return string(digest(token))
}
func (strategy) AuthorizeCodeSignature(_ context.Context, token string) string {
	return string(digest(token))
}

func (s strategy) GenerateAccessToken(context.Context, fosite.Requester) (string, string, error) {
	return s.generate(accessPrefix)
}

func (s strategy) GenerateRefreshToken(context.Context, fosite.Requester) (string, string, error) {
	return s.generate(refreshPrefix)
}

func (s strategy) GenerateAuthorizeCode(context.Context, fosite.Requester) (string, string, error) {
	return s.generate(codePrefix)
}

func (s strategy) generate(prefix string) (token, signature string, err error) {
	token, err = mint(s.rand, prefix, secretBytes)
	return token, string(digest(token)), err
}

func (s strategy) ValidateAccessToken(_ context.Context, r fosite.Requester, _ string) error {
	return s.alive(r, fosite.AccessToken)
}

func (s strategy) ValidateRefreshToken(_ context.Context, r fosite.Requester, _ string) error {
	return s.alive(r, fosite.RefreshToken)
}

func (s strategy) ValidateAuthorizeCode(_ context.Context, r fosite.Requester, _ string) error {
	return s.alive(r, fosite.AuthorizeCode)
}

func (s strategy) alive(r fosite.Requester, kind fosite.TokenType) error {
	if !s.now.Before(r.GetSession().GetExpiresAt(kind)) {
		return fosite.ErrTokenExpired.WithHint("It has expired.")
	}
	return nil
}

// session carries the expiry that storage read to the strategy. Nothing of it
// is stored: the rows have all that there is.
type session map[fosite.TokenType]time.Time

func (s session) SetExpiresAt(kind fosite.TokenType, at time.Time) { s[kind] = at }
func (s session) GetExpiresAt(kind fosite.TokenType) time.Time     { return s[kind] }
func (session) GetUsername() string                                { return "" }
func (session) GetSubject() string                                 { return "" }

func (s session) Clone() fosite.Session {
	c := session{}
	for k, v := range s {
		c[k] = v
	}
	return c
}
