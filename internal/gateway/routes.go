package gateway

import (
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrelay/internal/devices/wire"
	"agentrelay/internal/oauth"
)

// How many requests one client address may make in [limitWindow].
const (
	registerLimit  = 30
	authorizeLimit = 120
	tokenLimit     = 600  // of /token, and as many of /revoke
	deviceLimit    = 1200 // of /device: two hundred devices behind one address that come back, several times
)

// Handler serves everything the gateway serves.
func (g *Gateway) Handler() http.Handler { return g.HandlerFor(g.server()) }

// HandlerFor is [Gateway.Handler] with another MCP server behind the same guards,
// bearer check and middleware, for conformance tests that need tools of their
// own. It may be called once for a server.
func (g *Gateway) HandlerFor(server *mcp.Server) http.Handler {
	server.AddReceivingMiddleware(g.receive)
	check := &bearer{tokens: g.oauth, metadataURL: g.config.PublicBaseURL + "/.well-known/oauth-protected-resource/mcp", scope: oauth.ScopeAgents}

	r := chi.NewRouter()
	r.Use(findAddress(g.config.Proxies()), g.observe, newGuard(g.config).handler, middleware.GetHead)
	r.NotFound(g.notFound)
	r.MethodNotAllowed(wrongMethod)

	r.Handle("/mcp", g.tickets.answering(g.beats, check.handler(newEndpoint(server, g.beats))))
	r.HandleFunc("/mcp/*", g.notFound)

	for _, suffix := range []string{"", "/mcp"} {
		r.Get("/.well-known/oauth-protected-resource"+suffix, g.oauth.ResourceMetadata)
		r.Get("/.well-known/oauth-authorization-server"+suffix, g.oauth.ServerMetadata)
	}
	r.Group(func(r chi.Router) {
		r.Use(limited(authorizeLimit))
		r.Get("/authorize", g.oauth.Authorize)
		r.Post("/authorize", g.oauth.Authorize)
	})
	r.With(limited(registerLimit)).Post("/register", g.oauth.RegisterClient)
	r.With(limited(tokenLimit)).Post("/token", g.oauth.Token)
	r.With(limited(tokenLimit)).Post("/revoke", g.oauth.Revoke)

	if g.config.Tools.Direct {
		r.Get("/files/*", g.download) // the rest is a ticket, which is not for the log
	}
	if g.config.Tools.Devices {
		r.With(limited(deviceLimit)).Get(wire.Path, g.acceptDevice)
	}
	r.Get("/healthz", g.alive)
	r.Get("/readyz", g.ready)
	r.Get("/metrics", g.serveMetrics)
	return r
}

// isOAuthPath reports the endpoints whose clients read errors in the form of
// RFC 6749.
func isOAuthPath(path string) bool {
	switch path {
	case "/authorize", "/token", "/register", "/revoke":
		return true
	}
	return false
}

func (g *Gateway) notFound(w http.ResponseWriter, r *http.Request) {
	e := notFound.New("Nothing is served at this address.").WithHint("The MCP endpoint is " + g.config.MCPURL() + ".")
	switch path := r.URL.Path; {
	case strings.HasPrefix(path, "/mcp/"):
		e = notFound.New("The address of the MCP endpoint has nothing behind /mcp, not even a slash.").WithHint("Use exactly " + g.config.MCPURL() + ".")
	case strings.HasPrefix(path, "/.well-known/openid-configuration"), strings.HasSuffix(path, "/.well-known/openid-configuration"):
		e = notFound.New("This is no OpenID provider.").WithHint("The OAuth metadata is at " + g.config.PublicBaseURL + "/.well-known/oauth-authorization-server.")
	case strings.Contains(path, "/.well-known/"):
		e = e.WithHint("Metadata is at " + g.config.PublicBaseURL + "/.well-known/oauth-protected-resource and /.well-known/oauth-authorization-server.")
	}
	refuse(w, r, http.StatusNotFound, e)
}

// wrongMethod answers 405 and lists what the route takes.
func wrongMethod(w http.ResponseWriter, r *http.Request) {
	var allowed []string
	for _, m := range []string{http.MethodGet, http.MethodHead, http.MethodPost} {
		probe := m
		if m == http.MethodHead { // served by GET
			probe = http.MethodGet
		}
		if chi.RouteContext(r.Context()).Routes.Match(chi.NewRouteContext(), probe, r.URL.Path) {
			allowed = append(allowed, m)
		}
	}
	if corsPolicyOf(r.URL.Path) != corsNone {
		allowed = append(allowed, http.MethodOptions)
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	refuse(w, r, http.StatusMethodNotAllowed, methodNotAllowed.New("This address does not take this method."))
}
