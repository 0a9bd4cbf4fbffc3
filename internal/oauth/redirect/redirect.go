// Package redirect decides where an authorization code may be sent.
//
// It owns the list of redirect URIs of known clients, the rules for what a
// client may register, and the comparison of a requested URI with a registered
// one. It promises that a URI it allows is either on the owner's list or stays
// on the machine of the browser, and that nothing it accepts can change meaning
// between this program and a browser: a URI with user info, a fragment, a
// backslash or any byte outside RFC 3986 is refused before it is compared. It
// leaves storage of registrations and the answers to clients to its callers.
package redirect

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// MaxLength is the longest redirect URI in bytes.
const MaxLength = 2048

// idSegment ends an entry of the list that stands for one path segment which
// the client chooses.
const idSegment = "{id}"

// Shipped returns the redirect URIs of every client known to work, to which the
// owner's config adds. Loopback URIs need no entry: see [Policy.Allows].
func Shipped() []string {
	return []string{
		// ChatGPT: one for servers that send iss (RFC 9207), one per connector.
		"https://chatgpt.com/connector_platform_oauth_redirect",
		"https://chatgpt.com/connector/oauth/{id}",
		"https://chat.openai.com/connector_platform_oauth_redirect",
		"https://chat.openai.com/connector/oauth/{id}",
		// Claude on the web, desktop and mobile; claude.com is its announced next home.
		"https://claude.ai/api/mcp/auth_callback",
		"https://claude.com/api/mcp/auth_callback",
		// Grok; the trailing slash is part of it.
		"https://grok.com/connectors-oauth-exchange-code/",
		// Cursor, and Grok Bot, which runs on Cursor's back end.
		"cursor://anysphere.cursor-mcp/oauth/callback",
		"https://www.cursor.com/agents/mcp/oauth/callback",
		// VS Code and its preview.
		"https://vscode.dev/redirect",
		"https://insiders.vscode.dev/redirect",
		// Gemini, one per project.
		"https://oauth-redirect.googleusercontent.com/r/{id}",
		"https://www.perplexity.ai/rest/connections/oauth_callback",
		"https://callback.mistral.ai/v1/integrations_auth/oauth2_callback",
	}
}

// Policy is the list of redirect URIs that may receive a code. It is immutable.
type Policy struct {
	exact    map[string]bool
	prefixes []string // of entries that end in {id}, with the slash before it
}

// NewPolicy returns the policy of the shipped list and extra, which is the
// config's oauth.redirects. An entry is an exact URI or ends its path in one
// {id} segment. The error names every bad entry and what is wrong with it.
func NewPolicy(extra []string) (*Policy, error) {
	p := &Policy{exact: map[string]bool{}}
	var errs []error
	for _, entry := range slices.Concat(Shipped(), extra) {
		if err := p.add(entry); err != nil {
			errs = append(errs, fmt.Errorf("redirect entry %.100q: %w", entry, err))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return p, nil
}

func (p *Policy) add(entry string) error {
	prefix, isPattern := strings.CutSuffix(entry, idSegment)
	if !isPattern {
		if err := Registrable(entry); err != nil {
			return err
		}
		p.exact[entry] = true
		return nil
	}
	if !strings.HasSuffix(prefix, "/") || strings.ContainsAny(prefix, "?") {
		return errors.New("{id} must be the whole last segment of the path")
	}
	u, err := parse(prefix + "id")
	if err != nil {
		return err
	}
	if u.Path == "" {
		return errors.New("{id} must follow a path")
	}
	p.prefixes = append(p.prefixes, prefix)
	return nil
}

// segment is what may stand for {id}.
var segment = regexp.MustCompile(`^[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,199}$`)

// Allows reports whether a code may be sent to uri: it is listed, or it is a
// loopback URI on any port. It says nothing about who registered it.
func (p *Policy) Allows(uri string) bool {
	if p.exact[uri] || IsLoopback(uri) {
		return true
	}
	return slices.ContainsFunc(p.prefixes, func(prefix string) bool {
		id, ok := strings.CutPrefix(uri, prefix)
		return ok && segment.MatchString(id)
	})
}

// Registrable returns nil when a client may register uri: https with a host, http
// on loopback, or a scheme of the client's own with a host (RFC 8252 section
// 7). Whether a code may be sent there is [Policy.Allows]. The error says why
// not without repeating uri.
func Registrable(uri string) error {
	_, err := parse(uri)
	return err
}

// refusedSchemes run or show what they are given inside the browser, or name
// transports that end nowhere.
var refusedSchemes = []string{
	"about", "blob", "chrome", "data", "file", "filesystem", "ftp", "intent",
	"javascript", "jar", "mailto", "resource", "vbscript", "view-source", "ws", "wss",
}

var (
	// uriBytes are the bytes of RFC 3986. Anything else, such as a backslash or
	// a space, is rewritten by browsers in ways we would not see.
	uriBytes = regexp.MustCompile(`^[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]*$`)
	// hostName is deliberately narrower than RFC 3986: the host is printed in a
	// Content-Security-Policy header, where a semicolon has a meaning.
	hostName = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)
)

func parse(uri string) (*url.URL, error) {
	if uri == "" {
		return nil, errors.New("it is empty")
	}
	if len(uri) > MaxLength {
		return nil, fmt.Errorf("it is longer than %d bytes", MaxLength)
	}
	if !uriBytes.MatchString(uri) {
		return nil, errors.New("it has characters that no URI may have; percent-encode them")
	}
	if strings.Contains(uri, "#") {
		return nil, errors.New("it has a fragment")
	}
	u, err := url.Parse(uri)
	if err != nil {
		return nil, errors.New("it is not a URI")
	}
	switch {
	case u.Scheme == "":
		return nil, errors.New("it has no scheme")
	case slices.Contains(refusedSchemes, u.Scheme):
		return nil, fmt.Errorf("the scheme %s is refused", u.Scheme)
	case u.User != nil:
		return nil, errors.New("it has user information before the host")
	case u.Host == "":
		return nil, errors.New("it has no host after ://")
	case !hostName.MatchString(u.Hostname()) && u.Hostname() != "::1":
		return nil, errors.New("its host is not a plain name or address")
	case !validPort(u):
		return nil, errors.New("its port is not a number from 1 to 65535")
	case u.Scheme == "http" && !loopbackHost(u.Hostname()):
		return nil, errors.New("plain http is allowed only for localhost, 127.0.0.1 and [::1]; use https")
	}
	return u, nil
}

func validPort(u *url.URL) bool {
	if u.Port() == "" {
		return !strings.HasSuffix(u.Host, ":")
	}
	n, err := strconv.ParseUint(u.Port(), 10, 16)
	return err == nil && n > 0
}

func loopbackHost(h string) bool { return h == "localhost" || h == "127.0.0.1" || h == "::1" }

// IsLoopback reports whether uri is http or https on localhost, 127.0.0.1 or
// [::1]: the code goes to a program on the browser's machine, and nobody can
// tell which one.
func IsLoopback(uri string) bool {
	_, ok := loopback(uri)
	return ok
}

func loopback(uri string) (*url.URL, bool) {
	u, err := parse(uri)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || !loopbackHost(u.Hostname()) {
		return nil, false
	}
	return u, true
}

// Match reports whether requested is one of the registered URIs: the same bytes,
// or both loopback and the same but for the port (RFC 8252 section 7.3).
// localhost, 127.0.0.1 and [::1] are three hosts.
func Match(registered []string, requested string) bool {
	want, isLoopback := loopback(requested)
	for _, uri := range registered {
		if uri == requested {
			return true
		}
		if !isLoopback {
			continue
		}
		if have, ok := loopback(uri); ok && portless(have) == portless(want) {
			return true
		}
	}
	return false
}

// portless is a loopback URI without its port. An empty path and "/" are the
// same request (RFC 9110 section 4.2.3).
func portless(u *url.URL) string {
	c := *u
	c.Host = u.Hostname()
	if c.Path == "" {
		c.Path = "/"
	}
	return c.String()
}
