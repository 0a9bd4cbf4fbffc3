// Package registration reads what a client says about itself: the body of a
// dynamic registration (RFC 7591) and, by the same rules, a client metadata
// document.
//
// It owns which members are read, their limits, their defaults and the values
// that replace what this server does not offer (RFC 7591 section 2 lets a server
// replace values, and the answer shows what was registered). It promises that a
// [Metadata] it returns is complete, bounded and safe to show and store, and
// that an error names the member at fault without repeating its value. It
// leaves client ids, storage and rate limits to its callers, and which of the
// redirect URIs may receive a code to package redirect's Policy.
package registration

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"agentrelay/internal/oauth/redirect"
)

// Limits of a registration. A larger one is refused.
const (
	// MaxBody is the longest registration or metadata document in bytes.
	MaxBody = 64 << 10
	// MaxClientName is the longest client_name in characters.
	MaxClientName = 200
	// MaxRedirectURIs is how many redirect URIs one client may register; each
	// has at most redirect.MaxLength bytes.
	MaxRedirectURIs = 32
	// MaxScope is the longest scope in bytes.
	MaxScope = 1000

	// maxList and maxItem bound the lists of names, such as grant_types.
	maxList = 32
	maxItem = 200
)

// The values this server offers.
const (
	AuthorizationCode = "authorization_code"
	RefreshToken      = "refresh_token"
	Code              = "code"
	AuthNone          = "none"
	Native            = "native"
	Web               = "web"
)

// The error codes of RFC 7591 section 3.2.2.
const (
	InvalidMetadata    = "invalid_client_metadata"
	InvalidRedirectURI = "invalid_redirect_uri"
)

// Error is a refused registration in the words of RFC 7591. Both members may be
// sent to the client.
type Error struct {
	Code        string
	Description string
}

func (e *Error) Error() string { return e.Code + ": " + e.Description }

func invalid(format string, args ...any) *Error {
	return &Error{InvalidMetadata, fmt.Sprintf(format, args...)}
}

// Metadata is what was registered, under the JSON names of RFC 7591. All of it
// is the client's own claim.
type Metadata struct {
	// RedirectURIs are 1 to [MaxRedirectURIs] URIs that redirect.Registrable
	// accepts, without repeats.
	RedirectURIs []string `json:"redirect_uris"`
	// ClientName has no control, format or bidirectional characters and no
	// runs of spaces: they are removed, since they only serve to deceive the
	// owner. It is empty when the client gave none.
	ClientName string `json:"client_name,omitempty"`
	// GrantTypes always has authorization_code; refresh_token is there when the
	// client named it or named no grant type at all. Unknown ones are dropped.
	GrantTypes []string `json:"grant_types"`
	// ResponseTypes is always code.
	ResponseTypes []string `json:"response_types"`
	// TokenEndpointAuthMethod is always none: a self-registered client gets no
	// secret, whatever method it asked for.
	TokenEndpointAuthMethod string `json:"token_endpoint_auth_method"`
	// ApplicationType is native when any redirect URI is loopback or has a
	// scheme of the client's own, else web. What the client claims is ignored.
	ApplicationType string `json:"application_type"`
	// Scope is what the client asked for, unknown scopes included.
	Scope string `json:"scope,omitempty"`

	// OfferedAuthMethods are the token endpoint authentication methods that the
	// client named, in the singular or a plural member, before none replaced
	// them. Empty means that it named none.
	OfferedAuthMethods []string `json:"-"`
}

// Parse reads a registration. Unknown members are ignored; null and "" count as
// absent. The error is an [*Error].
func Parse(body []byte) (Metadata, error) {
	m, err := parse(body)
	if err != nil {
		return Metadata{}, err
	}
	return m, nil
}

func parse(body []byte) (Metadata, *Error) {
	var m Metadata
	members, err := decode(body)
	if err != nil {
		return m, err
	}
	for _, f := range []struct {
		name string
		to   *string
		max  int
	}{
		// A name of four-byte characters, each escaped, is still read; its
		// characters are counted once it is clean.
		{"client_name", &m.ClientName, 16 * MaxClientName},
		{"scope", &m.Scope, MaxScope},
	} {
		if err := members.text(f.name, f.to, f.max); err != nil {
			return m, err
		}
	}
	if m.ClientName, err = cleanName(m.ClientName); err != nil {
		return m, err
	}
	if !scopeBytes.MatchString(m.Scope) {
		return m, invalid("scope must be names separated by single spaces (RFC 6749 section 3.3)")
	}
	if m.RedirectURIs, err = members.redirectURIs(); err != nil {
		return m, err
	}
	if m.GrantTypes, err = members.list("grant_types"); err != nil {
		return m, err
	}
	if m.ResponseTypes, err = members.list("response_types"); err != nil {
		return m, err
	}
	if m.OfferedAuthMethods, err = members.authMethods(); err != nil {
		return m, err
	}
	err = normalize(&m)
	return m, err
}

// normalize fills defaults and replaces what this server does not offer.
func normalize(m *Metadata) *Error {
	if len(m.GrantTypes) == 0 {
		m.GrantTypes = []string{AuthorizationCode, RefreshToken}
	}
	if !slices.Contains(m.GrantTypes, AuthorizationCode) {
		return invalid("grant_types must have authorization_code, the only grant that starts here")
	}
	grants := []string{AuthorizationCode}
	if slices.Contains(m.GrantTypes, RefreshToken) {
		grants = append(grants, RefreshToken)
	}
	m.GrantTypes = grants
	if len(m.ResponseTypes) > 0 && !slices.Contains(m.ResponseTypes, Code) {
		return invalid("response_types must have code, the only response type here")
	}
	m.ResponseTypes = []string{Code}
	m.TokenEndpointAuthMethod = AuthNone
	m.ApplicationType = Web
	if slices.ContainsFunc(m.RedirectURIs, isNative) {
		m.ApplicationType = Native
	}
	return nil
}

func isNative(uri string) bool {
	return redirect.IsLoopback(uri) || !strings.HasPrefix(uri, "https://")
}

// scopeBytes is RFC 6749's scope, or nothing.
var scopeBytes = regexp.MustCompile(`^([!#-\[\]-~]+( [!#-\[\]-~]+)*)?$`)

// cleanName removes what a name does not need and a page should not show.
func cleanName(name string) (string, *Error) {
	clean := strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case r == utf8.RuneError || !unicode.IsGraphic(r):
			return -1
		}
		return r
	}, name)
	clean = strings.Join(strings.Fields(clean), " ")
	if utf8.RuneCountInString(clean) > MaxClientName {
		return "", invalid("client_name has more than %d characters", MaxClientName)
	}
	return clean, nil
}

// members are the members of the object, not yet decoded.
type members map[string]json.RawMessage

func decode(body []byte) (members, *Error) {
	if len(body) > MaxBody {
		return nil, invalid("the metadata has more than %d bytes", MaxBody)
	}
	if !utf8.Valid(body) {
		return nil, invalid("the metadata is not UTF-8")
	}
	var m members
	if err := json.Unmarshal(body, &m); err != nil || m == nil {
		return nil, invalid("the metadata is not one JSON object")
	}
	return m, nil
}

// text reads an optional string of at most max bytes.
func (m members) text(name string, to *string, max int) *Error {
	raw, ok := m[name]
	if !ok {
		return nil
	}
	if len(raw) > 2*max+2 || json.Unmarshal(raw, to) != nil || len(*to) > max {
		return invalid("%s must be a string of at most %d bytes", name, max)
	}
	return nil
}

// list reads an optional list of names.
func (m members) list(name string) ([]string, *Error) {
	var out []string
	raw, ok := m[name]
	if !ok {
		return nil, nil
	}
	if json.Unmarshal(raw, &out) != nil || len(out) > maxList || slices.ContainsFunc(out, tooLong) {
		return nil, invalid("%s must be a list of at most %d strings of at most %d bytes", name, maxList, maxItem)
	}
	return out, nil
}

func tooLong(s string) bool { return len(s) > maxItem }

// authMethods joins the singular member with the plural ones that clients send.
func (m members) authMethods() ([]string, *Error) {
	var offered []string
	var single string
	if err := m.text("token_endpoint_auth_method", &single, maxItem); err != nil {
		return nil, err
	}
	if single != "" {
		offered = append(offered, single)
	}
	for _, name := range []string{"token_endpoint_auth_methods", "token_endpoint_auth_methods_supported"} {
		more, err := m.list(name)
		if err != nil {
			return nil, err
		}
		offered = append(offered, more...)
	}
	return offered, nil
}

func (m members) redirectURIs() ([]string, *Error) {
	var given, out []string
	if raw, ok := m["redirect_uris"]; ok && json.Unmarshal(raw, &given) != nil {
		return nil, &Error{InvalidRedirectURI, "redirect_uris must be a list of strings"}
	}
	if len(given) == 0 || len(given) > MaxRedirectURIs {
		return nil, &Error{InvalidRedirectURI, fmt.Sprintf("redirect_uris must have 1 to %d entries", MaxRedirectURIs)}
	}
	for i, uri := range given {
		if err := redirect.Registrable(uri); err != nil {
			return nil, &Error{InvalidRedirectURI, fmt.Sprintf("redirect_uris[%d] is refused: %v", i, err)}
		}
		if !slices.Contains(out, uri) {
			out = append(out, uri)
		}
	}
	return out, nil
}
