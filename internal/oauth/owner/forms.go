package owner

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// Forms ties a form to the browser that was shown it and to the request it is
// about, so that no other site can send it (CSRF) and no field can be swapped.
//
// The browser holds a random key in a cookie, the form holds an HMAC of the
// request's parameters under that key. Nothing is stored here, so a form stays
// good over a restart.
type Forms struct {
	// Secure says that the public base URL is https: the cookie then has the
	// __Host- prefix, so that no other host of the domain can plant one.
	Secure bool
	// Rand makes keys.
	Rand io.Reader
}

// keyText is the length of a key in its cookie.
var keyText = base64.RawURLEncoding.EncodedLen(32)

func (f Forms) cookie() string {
	if f.Secure {
		return "__Host-agentrelay_form"
	}
	return "agentrelay_form"
}

// Token returns the token of a form about params, and gives the browser a key
// when it has none. It must be called before the body is written.
func (f Forms) Token(w http.ResponseWriter, r *http.Request, params url.Values) (string, error) {
	key, ok := f.key(r)
	if !ok {
		var raw [32]byte
		if _, err := io.ReadFull(f.Rand, raw[:]); err != nil {
			return "", fmt.Errorf("making a form key: %w", err)
		}
		key = base64.RawURLEncoding.EncodeToString(raw[:])
		http.SetCookie(w, &http.Cookie{Name: f.cookie(), Value: key, Path: "/", Secure: f.Secure, HttpOnly: true, SameSite: http.SameSiteLaxMode})
	}
	return seal(key, params), nil
}

// Check reports whether token is that of a form about params in this browser.
func (f Forms) Check(r *http.Request, params url.Values, token string) bool {
	key, ok := f.key(r)
	return ok && hmac.Equal([]byte(seal(key, params)), []byte(token))
}

func (f Forms) key(r *http.Request) (string, bool) {
	c, err := r.Cookie(f.cookie())
	if err != nil || len(c.Value) != keyText {
		return "", false
	}
	return c.Value, true
}

func seal(key string, params url.Values) string {
	mac := hmac.New(sha256.New, []byte(key))
	io.WriteString(mac, params.Encode()) // sorted by name
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}
