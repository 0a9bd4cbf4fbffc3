package oauth

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"

	"agentrelay/internal/fault"
	"agentrelay/internal/oauth/registration"
	"agentrelay/internal/store"
)

// clientIDBytes makes ids that can't be guessed, though nothing depends on it.
const clientIDBytes = 16

// registered is the answer to a registration (RFC 7591 section 3.2.1): what was
// asked for, with the values that hold here in place of those that don't.
type registered struct {
	ClientID string `json:"client_id"`
	IssuedAt int64  `json:"client_id_issued_at"` // seconds
	registration.Metadata
}

// RegisterClient is the registration endpoint (RFC 7591). It is open: what a
// client may do is decided by the owner's consent. Redirect URIs outside
// oauth.redirects are kept and refused when they are used, so that one of them
// does not spoil the others, and the owner then sees a page that says why.
func (s *Server) RegisterClient(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		s.failWith(w, r, http.StatusMethodNotAllowed, invalidRequest.New("This endpoint takes POST."))
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, registration.MaxBody))
	if err != nil {
		s.failBody(w, r, invalidClientMetadata, err)
		return
	}
	metadata, err := registration.Parse(body)
	if err != nil {
		s.fail(w, r, registrationRefusal(err))
		return
	}
	id, err := mint(s.rand, clientPrefix, clientIDBytes)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	c := fromMetadata(id, Dynamic, metadata)
	metadata.Scope = strings.Join(narrow(metadata.Scope), " ")
	issued, err := store.Write(r.Context(), s.store, func(tx *store.Tx) (int64, error) {
		return tx.Now().Unix(), insertClient(tx, c)
	})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.log.Info("client registered", "client_id", id, "address", s.addr(r))
	if !slices.ContainsFunc(c.redirectURIs, s.redirects.Allows) {
		s.log.Warn("none of the client's redirect addresses is allowed", "client_id", id, "redirect_uri", c.redirectURIs[0],
			"next", "add it to oauth.redirects in the config and restart the gateway")
	}
	answer(w, http.StatusCreated, registered{id, issued, metadata})
}

func registrationRefusal(err error) error {
	var e *registration.Error
	if !errors.As(err, &e) {
		return err
	}
	for _, kind := range []fault.Kind{invalidRedirectURI, invalidClientMetadata} {
		if kind.Code == e.Code {
			return kind.New(e.Description)
		}
	}
	return err
}
