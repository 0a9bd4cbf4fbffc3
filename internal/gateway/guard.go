package gateway

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"agentrelay/internal/config"
	"agentrelay/internal/tool"
)

// guard decides by the Host and Origin headers whether a request is answered,
// and lets browser clients read the answers. It stands in front of
// authentication: a preflight carries no credential.
type guard struct {
	mcpURL  string
	hosts   []string // host names without port, lower case
	origins []string // lower case
}

func newGuard(c *config.Config) *guard {
	g := &guard{mcpURL: c.MCPURL(), origins: []string{strings.ToLower(c.PublicBaseURL)}}
	if u, err := url.Parse(c.PublicBaseURL); err == nil {
		g.hosts = append(g.hosts, strings.ToLower(u.Hostname()))
	}
	for _, h := range c.AllowedHosts {
		g.hosts = append(g.hosts, hostName(h))
	}
	for _, o := range c.AllowedOrigins {
		g.origins = append(g.origins, strings.ToLower(strings.TrimSuffix(o, "/")))
	}
	return g
}

func (g *guard) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origins := r.Header["Origin"]
		policy := corsPolicyOf(r.URL.Path)
		trusted := !slices.ContainsFunc(origins, func(o string) bool { return !g.originAllowed(o) })
		if len(origins) > 0 {
			policy.allow(w.Header(), origins[0], trusted)
		}
		if !g.hostAllowed(r.Host) {
			refuse(w, r, http.StatusForbidden, hostNotAllowed.Newf("This gateway does not answer to the host name %q.", tool.Shown(r.Host, 100)).
				WithHint("Use "+g.mcpURL+", or add this host name to allowedHosts in the gateway's config."))
			return
		}
		if policy == corsListed && !trusted {
			refuse(w, r, http.StatusForbidden, originNotAllowed.Newf("Pages of %q may not call this gateway.", tool.Shown(origins[0], 100)))
			return
		}
		if r.Method == http.MethodOptions && policy != corsNone {
			preflight(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// corsPolicy says which web pages may read the answers of a path.
type corsPolicy int

const (
	corsNone   corsPolicy = iota // pages for people, health
	corsAny                      // what is public anyway or holds its own proof
	corsListed                   // the MCP endpoint: listed origins, and others are refused
)

func corsPolicyOf(path string) corsPolicy {
	switch {
	case path == "/mcp", strings.HasPrefix(path, "/mcp/"):
		return corsListed
	case strings.HasPrefix(path, "/.well-known/"), strings.HasPrefix(path, "/files/"), path == "/register", path == "/token", path == "/revoke":
		return corsAny
	}
	return corsNone
}

// allow sets the headers by which a browser lets the page read the answer, also
// when it is an error. Credentials are never allowed: a bearer token is a header
// of the page's own making.
func (p corsPolicy) allow(h http.Header, origin string, trusted bool) {
	switch {
	case p == corsAny:
		h.Set("Access-Control-Allow-Origin", "*")
	case p == corsListed:
		h.Add("Vary", "Origin")
		if !trusted {
			return
		}
		h.Set("Access-Control-Allow-Origin", origin)
	default:
		return
	}
	h.Set("Access-Control-Expose-Headers", "WWW-Authenticate, Mcp-Session-Id, MCP-Protocol-Version, Retry-After")
}

// preflight answers what a browser asks before a request with headers of its own.
func preflight(w http.ResponseWriter, r *http.Request) {
	allowed := []string{
		"Authorization", "Content-Type", "Accept", "Last-Event-ID",
		"MCP-Protocol-Version", "Mcp-Session-Id", "Mcp-Method", "Mcp-Name",
	}
	for _, line := range r.Header["Access-Control-Request-Headers"] {
		for name := range strings.SplitSeq(line, ",") {
			if name = strings.TrimSpace(name); isMCPHeader(name) && len(allowed) < 64 {
				allowed = append(allowed, name)
			}
		}
	}
	h := w.Header()
	h.Set("Allow", "GET, POST, DELETE, OPTIONS")
	h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS")
	h.Set("Access-Control-Allow-Headers", strings.Join(allowed, ", "))
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
}

// isMCPHeader reports whether name is a header that MCP may define, such as
// Mcp-Param-Region of a tool.
func isMCPHeader(name string) bool {
	const prefix = "mcp-"
	return len(name) > len(prefix) && len(name) <= 64 && strings.EqualFold(name[:len(prefix)], prefix) &&
		!strings.ContainsFunc(name, func(r rune) bool {
			return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
		})
}

func (g *guard) hostAllowed(host string) bool {
	name := hostName(host)
	return name != "" && (isLoopbackName(name) || slices.Contains(g.hosts, name))
}

func (g *guard) originAllowed(origin string) bool {
	if slices.Contains(g.origins, strings.ToLower(origin)) {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.User == nil && u.Path == "" && isLoopbackName(strings.ToLower(u.Hostname()))
}

// hostName is the name in a Host header: without port, lower case. The port is
// no part of the decision, for whoever can choose it has the name already.
func hostName(host string) string {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	return strings.ToLower(strings.TrimSuffix(name, "."))
}

func isLoopbackName(name string) bool {
	if name == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(name)
	return err == nil && addr.IsLoopback()
}
