// Package oauth is the authorization server of Agent Relay and the check of its
// bearer tokens.
//
// It owns clients (registered by themselves, by a metadata document, or by the
// owner), the owner's consent, grants, codes, tokens, and what each client is
// allowed to do. It promises that a code or token is stored only as a hash, that
// each request to the token endpoint is one transaction, that a code gives one
// grant once, that a refresh whose answer was lost can be asked again and gets
// the same tokens, that a token used against those rules ends its grant, and
// that a change of permissions or a revocation holds from the next request on.
// Trouble of the store is never answered as a refusal of the client. It leaves
// routing, CORS, rate limits and the WWW-Authenticate header of the MCP endpoint
// to internal/gateway, and to its own sub-packages the rules for redirects,
// resources, registrations, metadata documents, the owner's password and pages.
//
// The library that runs the grants (github.com/ory/fosite) is visible in
// storage.go, strategy.go and provider.go only.
package oauth

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"agentrelay/internal/oauth/cimd"
	"agentrelay/internal/oauth/owner"
	"agentrelay/internal/oauth/redirect"
	"agentrelay/internal/oauth/resource"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// The scopes. There is one thing to be granted; what a client may do within it
// is its permissions. offline_access is accepted because clients that find it
// in our metadata ask for it; refresh tokens do not depend on it.
const (
	ScopeAgents  = "local-agents"
	ScopeOffline = "offline_access"
)

const (
	codeLife    = 5 * time.Minute
	accessLife  = time.Hour
	refreshLife = 30 * 24 * time.Hour
	// leeway is how much longer than it says an access token is honoured, for
	// clients whose clock runs behind ours.
	leeway = 30 * time.Second
)

// Options says how to build a [Server].
type Options struct {
	// Store holds everything; the server does not close it.
	Store *store.Store
	// PublicBaseURL is the issuer, without a trailing slash, from the config.
	PublicBaseURL string
	// SharedOwner gives every client the same owner string; see principal.OwnerOf.
	SharedOwner bool
	// Redirects are the config's oauth.redirects, added to the shipped ones.
	Redirects []string
	// Password checks the owner on the consent page.
	Password *owner.Password
	// Documents fetches client-id metadata documents.
	Documents cimd.Source
	// Ended is called in the transaction in which a client ends: revoked by the
	// owner or removed after its idle time.
	Ended []func(tx *store.Tx, clientID string) error
	// Permitted is called in the transaction in which the owner decides what a
	// client may do from now on, for what it left behind to be done later.
	Permitted []func(tx *store.Tx, clientID string, may principal.Set) error
	// Now is the clock; nil means time.Now. It must be the store's.
	Now func() time.Time
	// Rand makes codes, tokens and ids; nil means crypto/rand. It is used by
	// many goroutines at once.
	Rand io.Reader
	// ClientAddr is the address of a request's client, for log lines and the
	// lock-out; nil means the address of the connection.
	ClientAddr func(*http.Request) string
	// RequestID names a request in the log. A refusal shows it, so that the two
	// are found together; nil means that each refusal gets a random one.
	RequestID func(*http.Request) string
	// Log gets one line for each refusal and each change; nil discards them.
	Log *slog.Logger
}

// Server is the authorization server. Its methods named like http.HandlerFunc
// are the endpoints. It is safe for concurrent use.
type Server struct {
	store     *store.Store
	issuer    string
	resource  resource.Resource
	redirects *redirect.Policy
	password  *owner.Password
	documents cimd.Source
	clients   Clients
	usage     usage
	now       func() time.Time
	rand      io.Reader
	addr      func(*http.Request) string
	requestID func(*http.Request) string
	log       *slog.Logger
	front     frontDoor
}

// New checks the options and returns a server. It fails when a redirect of the
// config is not one entry of the allowed forms.
func New(o Options) (*Server, error) {
	if o.Store == nil || o.Documents == nil || o.PublicBaseURL == "" {
		return nil, errors.New("oauth: Store, Documents and PublicBaseURL are needed")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	if o.ClientAddr == nil {
		o.ClientAddr = func(r *http.Request) string { return r.RemoteAddr }
	}
	if o.RequestID == nil {
		o.RequestID = func(*http.Request) string { return randomID(o.Rand) }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	policy, err := redirect.NewPolicy(o.Redirects)
	if err != nil {
		return nil, fmt.Errorf("oauth.redirects: %w", err)
	}
	issuer := strings.TrimRight(o.PublicBaseURL, "/")
	s := &Server{
		store: o.Store, issuer: issuer, resource: resource.New(issuer), redirects: policy,
		password: o.Password, documents: o.Documents,
		clients: Clients{Store: o.Store, SharedOwner: o.SharedOwner, Redirects: policy, Now: o.Now, Rand: o.Rand, Ended: o.Ended, Permitted: o.Permitted},
		now:     o.Now, rand: o.Rand, addr: o.ClientAddr, requestID: o.RequestID, log: o.Log,
		front: newFrontDoor(issuer, o.Rand),
	}
	s.clients.flush = s.Flush
	return s, nil
}

// Clients are the owner's commands on this server's clients.
func (s *Server) Clients() Clients { return s.clients }

// Close writes what is still only in memory: when each client was last seen.
// The store must still be open.
func (s *Server) Close(ctx context.Context) error { return s.Flush(ctx) }
