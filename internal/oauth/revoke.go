package oauth

import (
	"net/http"
	"net/url"

	"agentrelay/internal/store"
)

// Revoke is the revocation endpoint (RFC 7009). Either token of a grant ends the
// whole grant; a token that is not known is already as the client wants it; one
// of another client is refused.
func (s *Server) Revoke(w http.ResponseWriter, r *http.Request) {
	form, creds, ok := s.readRequest(w, r)
	if !ok {
		return
	}
	if form.Get("token") == "" {
		s.fail(w, r, invalidRequest.New("The parameter token is missing."))
		return
	}
	out, err := store.Write(r.Context(), s.store, func(tx *store.Tx) (outcome, error) { return s.revoke(tx, form, creds) })
	s.logRevoked(out)
	switch {
	case err != nil:
		s.fail(w, r, err)
	case out.refusal != nil:
		s.fail(w, r, out.refusal)
	default:
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusOK)
	}
}

func (s *Server) revoke(tx *store.Tx, form url.Values, creds credentials) (outcome, error) {
	c, refusal, err := creds.authenticate(tx)
	if refusal != nil || err != nil {
		return outcome{refusal: refusal}, err
	}
	x := &exchange{s: s, tx: tx, client: c, revoking: true}
	refusal, err = x.withdraw(pick(form, "token", "token_type_hint"))
	return outcome{refusal: refusal, clientID: c.id, revoked: x.revoked}, err
}
