package oauth

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"

	"agentrelay/internal/fault"
)

// A refresh token is rotated on its first use. Until its successor has been used
// as a refresh token, and for replayWindow in any case, presenting it again
// gives the same successor: answers are lost on the wire, and clients refresh
// from several processes at once. After that its use means that two parties
// hold the grant, and the grant ends.
//
// Use of the successor's access token does not count as use of the successor.
// It would be cheap to see (one write for each access token, with last_used_at),
// but the second process of a client comes with the old refresh token minutes
// after the first has begun to work with the new access token, and it is the
// rightful owner's. The price is that a thief who copied a token and keeps in
// step with the client is seen only when one of them falls a step behind.
const replayWindow = 2 * time.Minute

// replayLeft is what an access token must still be good for to be given again.
const replayLeft = 5 * time.Minute

// refreshToken is a row of oauth_refresh_tokens with its grant.
type refreshToken struct {
	grant
	hash      []byte
	expires   time.Time
	rotated   time.Time // zero until its first use
	successor []byte
	answer    []byte
	revoked   bool
}

// readRefresh returns [sql.ErrNoRows] for an unknown token.
func (x *exchange) readRefresh(hash []byte) (refreshToken, error) {
	t := refreshToken{hash: hash}
	var expires int64
	var rotated, revoked sql.NullInt64
	err := x.tx.QueryRow(`SELECT g.id, g.client_id, g.scope, g.resource, g.revoked_at, t.expires_at, t.rotated_at, t.successor, t.answer
		FROM oauth_refresh_tokens t JOIN oauth_grants g ON g.id = t.grant_id WHERE t.hash = ?`, hash).
		Scan(&t.id, &t.clientID, &t.scope, &t.resource, &revoked, &expires, &rotated, &t.successor, &t.answer)
	if err != nil {
		return t, fmt.Errorf("reading the refresh token: %w", err)
	}
	t.expires, t.rotated, t.revoked = time.UnixMilli(expires), timeOf(rotated), revoked.Valid
	return t, nil
}

// rotate answers a refresh: again as before where that is right, else with new
// tokens.
func (x *exchange) rotate(form url.Values) (tokens, *fault.Error, error) {
	presented := form.Get("refresh_token")
	t, err := x.readRefresh(digest(presented))
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return tokens{}, nil, err
	}
	again, err := x.replayable(t)
	if err != nil {
		return tokens{}, nil, err
	}
	if again {
		out, err := x.replay(t, presented)
		return out, nil, err
	}
	got, refusal, err := x.issue(pick(form, "grant_type", "refresh_token"))
	if refusal != nil || err != nil {
		return tokens{}, refusal, err
	}
	err = x.seal(t.hash, presented, sealed{got.accessToken, x.until(accessLife), got.refreshToken, got.scope})
	return got.answer(accessLife), nil, err
}

// replayable reports whether a rotated token may have its answer again.
func (x *exchange) replayable(t refreshToken) (bool, error) {
	now := x.tx.Now()
	if t.rotated.IsZero() || t.revoked || t.clientID != x.client.id || t.resource != x.s.resource.String() || !now.Before(t.expires) || t.answer == nil {
		return false, nil
	}
	if now.Sub(t.rotated) < replayWindow {
		return true, nil
	}
	next, err := x.readRefresh(t.successor)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil && next.rotated.IsZero(), err
}

// sealed is an answer at rest.
type sealed struct {
	AccessToken  string `json:"accessToken"`
	ExpiresAt    int64  `json:"expiresAt"` // of the access token, in milliseconds
	RefreshToken string `json:"refreshToken"`
	Scope        string `json:"scope"`
}

// replay gives the stored answer again, with a new access token when the old one
// is about to end.
func (x *exchange) replay(t refreshToken, presented string) (tokens, error) {
	a, err := open(t.answer, presented)
	if err != nil {
		return tokens{}, err
	}
	left := time.UnixMilli(a.ExpiresAt).Sub(x.tx.Now())
	if left < replayLeft {
		if a.AccessToken, err = mint(x.s.rand, accessPrefix, secretBytes); err != nil {
			return tokens{}, err
		}
		if err := x.insertAccess(t.id, digest(a.AccessToken)); err != nil {
			return tokens{}, err
		}
		left, a.ExpiresAt = accessLife, x.until(accessLife)
		if err := x.seal(t.hash, presented, a); err != nil {
			return tokens{}, err
		}
	}
	return issued{a.AccessToken, a.RefreshToken, a.Scope}.answer(left), nil
}

// seal stores an answer so that only the token it answered can open it.
func (x *exchange) seal(hash []byte, presented string, a sealed) error {
	plain, err := json.Marshal(a)
	if err != nil {
		return err
	}
	box, err := sealer(presented)
	if err != nil {
		return err
	}
	nonce := make([]byte, box.NonceSize())
	if _, err := io.ReadFull(x.s.rand, nonce); err != nil {
		return fmt.Errorf("reading random bytes: %w", err)
	}
	n, err := x.tx.Exec(`UPDATE oauth_refresh_tokens SET successor = ?, answer = ? WHERE hash = ? AND rotated_at IS NOT NULL`,
		digest(a.RefreshToken), box.Seal(nonce, nonce, plain, hash), hash)
	if err == nil && n != 1 {
		err = errors.New("it is not rotated")
	}
	if err != nil {
		return fmt.Errorf("keeping the answer of a refresh token: %w", err)
	}
	return nil
}

func open(box []byte, presented string) (sealed, error) {
	var a sealed
	aead, err := sealer(presented)
	if err != nil {
		return a, err
	}
	if len(box) < aead.NonceSize() {
		return a, errors.New("the kept answer of a refresh token is damaged")
	}
	plain, err := aead.Open(nil, box[:aead.NonceSize()], box[aead.NonceSize():], digest(presented))
	if err != nil {
		return a, fmt.Errorf("opening the kept answer of a refresh token: %w", err)
	}
	return a, json.Unmarshal(plain, &a)
}

// sealer derives the key from the token (RFC 5869): the database has only the
// token's hash, and so never the key.
func sealer(presented string) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, []byte(presented), nil, "agent-relay refresh answer v1", 32)
	if err != nil {
		return nil, fmt.Errorf("deriving the key of a refresh answer: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
