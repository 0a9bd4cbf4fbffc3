package oauth

import (
	"encoding/json"
	"fmt"
	"net/http"

	"agentrelay/internal/store"
)

// serverMetadata is RFC 8414 with the flags of RFC 9207 and of client-id
// metadata documents.
type serverMetadata struct {
	Issuer                string   `json:"issuer"`
	AuthorizationEndpoint string   `json:"authorization_endpoint"`
	TokenEndpoint         string   `json:"token_endpoint"`
	RegistrationEndpoint  string   `json:"registration_endpoint"`
	RevocationEndpoint    string   `json:"revocation_endpoint"`
	ResponseTypes         []string `json:"response_types_supported"`
	ResponseModes         []string `json:"response_modes_supported"`
	GrantTypes            []string `json:"grant_types_supported"`
	ChallengeMethods      []string `json:"code_challenge_methods_supported"`
	TokenAuthMethods      []string `json:"token_endpoint_auth_methods_supported"`
	RevocationAuthMethods []string `json:"revocation_endpoint_auth_methods_supported"`
	Scopes                []string `json:"scopes_supported"`
	Documents             bool     `json:"client_id_metadata_document_supported"`
	Iss                   bool     `json:"authorization_response_iss_parameter_supported"`
}

// resourceMetadata is RFC 9728.
type resourceMetadata struct {
	Resource             string   `json:"resource"`
	AuthorizationServers []string `json:"authorization_servers"`
	BearerMethods        []string `json:"bearer_methods_supported"`
	Scopes               []string `json:"scopes_supported"`
	Name                 string   `json:"resource_name"`
}

// ServerMetadata answers RFC 8414 metadata, the same bytes at every path it is
// served at. Secrets are offered once a client of the owner's has one; until
// then a client that picks the first method it knows would pick one in vain.
func (s *Server) ServerMetadata(w http.ResponseWriter, r *http.Request) {
	var secrets bool
	err := store.Read(r.Context(), s.store, func(q *store.Reader) error {
		return q.QueryRow(`SELECT EXISTS (SELECT 1 FROM oauth_clients WHERE secret_hash IS NOT NULL)`).Scan(&secrets)
	})
	if err != nil {
		s.fail(w, r, fmt.Errorf("looking for clients with a secret: %w", err))
		return
	}
	methods := []string{"none"}
	if secrets {
		methods = append(methods, "client_secret_post", "client_secret_basic")
	}
	s.document(w, r, serverMetadata{
		Issuer:                s.issuer,
		AuthorizationEndpoint: s.issuer + "/authorize",
		TokenEndpoint:         s.issuer + "/token",
		RegistrationEndpoint:  s.issuer + "/register",
		RevocationEndpoint:    s.issuer + "/revoke",
		ResponseTypes:         []string{"code"},
		ResponseModes:         []string{"query"},
		GrantTypes:            []string{"authorization_code", "refresh_token"},
		ChallengeMethods:      []string{"S256"},
		TokenAuthMethods:      methods,
		RevocationAuthMethods: methods,
		Scopes:                []string{ScopeAgents, ScopeOffline},
		Documents:             true,
		Iss:                   true,
	})
}

// ResourceMetadata answers RFC 9728 metadata, the same bytes at every path it is
// served at. It has no offline_access, which is no scope of the resource.
func (s *Server) ResourceMetadata(w http.ResponseWriter, r *http.Request) {
	s.document(w, r, resourceMetadata{
		Resource:             s.resource.String(),
		AuthorizationServers: []string{s.issuer},
		BearerMethods:        []string{"header"},
		Scopes:               []string{ScopeAgents},
		Name:                 "Agent Relay",
	})
}

// document answers GET and HEAD with JSON that caches may keep for a minute.
func (s *Server) document(w http.ResponseWriter, r *http.Request, doc any) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		s.failWith(w, r, http.StatusMethodNotAllowed, invalidRequest.New("This document takes GET and HEAD."))
		return
	}
	body, err := json.Marshal(doc)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "public, max-age=60")
	h.Set("Content-Length", fmt.Sprint(len(body)))
	if r.Method == http.MethodGet {
		_, _ = w.Write(body) // the client left; there is nobody to tell
	}
}
