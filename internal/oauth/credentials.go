package oauth

import (
	"crypto/subtle"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"agentrelay/internal/fault"
	"agentrelay/internal/store"
)

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
