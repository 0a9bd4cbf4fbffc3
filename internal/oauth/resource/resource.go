// Package resource knows the one protected resource of this gateway, and the
// ways in which clients spell it.
//
// It owns the canonical string, which is printed in every document and bound to
// every token, and the list of variants that mean the same (RFC 8707 asks for
// one URI; clients add a slash, name the origin, or send nothing). It promises
// that [Resource.Accepts] admits no other host, port, path or query. It leaves
// to its callers what a refusal looks like: OAuth's invalid_target.
package resource

import (
	"net/url"
	"strings"
)

// Path is the path of the resource below the public base URL.
const Path = "/mcp"

// Resource is the protected resource of one gateway. It is a value.
type Resource struct {
	canonical string
	origin    string // scheme, host and port in normal form
	base      string // path of the public base URL, without a trailing slash
}

// New returns the resource of a gateway with the given public base URL, which
// the config has checked: http or https, no query, no fragment.
func New(publicBaseURL string) Resource {
	base := strings.TrimRight(publicBaseURL, "/")
	r := Resource{canonical: base + Path}
	if u, err := url.Parse(base); err == nil {
		r.origin, r.base = origin(u), u.EscapedPath()
	}
	return r
}

// String is the canonical form: the public base URL and "/mcp", without a
// trailing slash.
func (r Resource) String() string { return r.canonical }

// Accepts reports whether s names this resource: not at all, canonically, with
// a trailing slash, by the public base URL with or without one, with letters of
// the scheme or host in upper case, or with the scheme's default port written
// out.
func (r Resource) Accepts(s string) bool {
	if s == "" || s == r.canonical {
		return true
	}
	if strings.ContainsAny(s, "?#") {
		return false
	}
	u, err := url.Parse(s)
	if err != nil || u.User != nil || r.origin == "" || origin(u) != r.origin {
		return false
	}
	path, ok := strings.CutPrefix(u.EscapedPath(), r.base)
	return ok && (path == "" || path == "/" || path == Path || path == Path+"/")
}

// origin is the normal form of scheme, host and port; "" when u has no host.
func origin(u *url.URL) string {
	defaults := map[string]string{"http": ":80", "https": ":443"}
	port, known := defaults[u.Scheme]
	if !known || u.Host == "" {
		return ""
	}
	return u.Scheme + "://" + strings.TrimSuffix(strings.ToLower(u.Host), port)
}
