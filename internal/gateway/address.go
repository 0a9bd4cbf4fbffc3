package gateway

import (
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/go-chi/chi/v5/middleware"
	"github.com/go-chi/httprate"
)

// findAddress notes the client's address of each request: the right-most
// address of X-Forwarded-For that is no trusted proxy, and only when the peer of
// the connection is one; else the peer.
func findAddress(proxies []netip.Prefix) func(http.Handler) http.Handler {
	if len(proxies) == 0 {
		return middleware.ClientIPFromRemoteAddr
	}
	prefixes := make([]string, len(proxies))
	for i, p := range proxies {
		prefixes[i] = p.String()
	}
	return middleware.ClientIPFromXFF(prefixes...)
}

// clientAddress is the address that limits count, and the log shows.
func clientAddress(r *http.Request) string {
	if ip := middleware.GetClientIP(r.Context()); ip != "" {
		return ip
	}
	// A trusted proxy that named nobody, or a chain that can't be read.
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// limitWindow is the time over which the limits of routes count.
const limitWindow = 10 * time.Minute

// limited lets each client address make n requests in [limitWindow]. IPv6
// clients count by their /64.
func limited(n int) func(http.Handler) http.Handler {
	key := func(r *http.Request) (string, error) { return httprate.CanonicalizeIP(clientAddress(r)), nil }
	return httprate.LimitBy(n, limitWindow, key, httprate.WithLimitHandler(func(w http.ResponseWriter, r *http.Request) {
		refuse(w, r, http.StatusTooManyRequests, tooManyRequests.Newf("This address made more than %d such requests in %d minutes.", n, limitWindow/time.Minute))
	}))
}
