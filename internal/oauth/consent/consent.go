// Package consent has the pages that the owner sees: the question whether a
// client may use the gateway, and the reasons why it is not asked.
//
// It owns their words, their look and the headers that keep them safe to show.
// It promises pages that need no script, read well on a phone and to a screen
// reader, show what a client says about itself only as text, and cannot be
// framed or cached, and whose form can be sent only to this gateway, on from
// there to the redirect target of the request, and on from there over https. It
// decides nothing: the fields of a form come back to internal/oauth.
package consent

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"agentrelay/internal/oauth/redirect"
	"agentrelay/internal/principal"
)

// The names and values of the form's own fields; the others are the parameters
// of the authorization request.
const (
	FieldToken      = "form_token"
	FieldPermission = "permission" // once for each ticked permission
	FieldPassword   = "password"
	FieldRemember   = "remember"
	FieldDecision   = "decision"
	Allow           = "allow"
	Deny            = "deny"
)

// The kinds of client, as internal/oauth calls them.
const (
	Dynamic    = "dynamic"
	Metadata   = "metadata"
	Registered = "registered"
)

//go:embed pages
var pages embed.FS

// Pages renders. It is safe for concurrent use.
type Pages struct {
	templates *template.Template
	style     template.CSS
	styleHash string
}

// New returns the pages. It panics when a template of this binary is broken.
func New() *Pages {
	style, err := pages.ReadFile("pages/style.css")
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(style)
	return &Pages{
		templates: template.Must(template.ParseFS(pages, "pages/*.html")),
		style:     template.CSS(style),
		styleHash: base64.StdEncoding.EncodeToString(sum[:]),
	}
}

// Client is who asks.
type Client struct {
	ID   string
	Name string // its own claim; "" when it has none
	Kind string
}

// maxShownName leaves no room for a name that tells a story, in characters.
const maxShownName = 60

// ShownName is the name, cut when it is long.
func (c Client) ShownName() string {
	runes := []rune(c.Name)
	if len(runes) <= maxShownName {
		return c.Name
	}
	return strings.TrimSpace(string(runes[:maxShownName-1])) + "…"
}

// Host is the host that vouches for a client whose id is a URL.
func (c Client) Host() string {
	u, err := url.Parse(c.ID)
	if err != nil {
		return ""
	}
	return u.Host
}

// Question is the consent page.
type Question struct {
	Client      Client
	RedirectURI string
	Resource    string
	Scope       string
	// Allowed are the permissions that are ticked.
	Allowed principal.Set
	// Params are the parameters of the request, and Token what ties them to the
	// browser.
	Params url.Values
	Token  string
	// AskPassword is false in a browser where the owner is signed in.
	AskPassword bool
	// OfferRemember offers to stay signed in; Remember is the box's state.
	OfferRemember bool
	Remember      bool
	// Problem is shown beside the password.
	Problem string
}

// Loopback reports that the answer goes to some program on the browser's machine.
func (q Question) Loopback() bool { return redirect.IsLoopback(q.RedirectURI) }

// CustomScheme reports that the answer goes to an app by a scheme of its own.
func (q Question) CustomScheme() bool {
	return !strings.HasPrefix(q.RedirectURI, "https:") && !strings.HasPrefix(q.RedirectURI, "http:")
}

// Destination is what people recognise of the redirect URI.
func (q Question) Destination() string {
	u, err := url.Parse(q.RedirectURI)
	switch {
	case err != nil:
		return ""
	case q.CustomScheme():
		return u.Scheme + "://" + u.Host
	}
	return u.Host
}

// Hidden are the form's hidden fields, in a stable order.
func (q Question) Hidden() []struct{ Name, Value string } {
	fields := []struct{ Name, Value string }{{FieldToken, q.Token}}
	for _, name := range slices.Sorted(maps.Keys(q.Params)) {
		for _, value := range q.Params[name] {
			fields = append(fields, struct{ Name, Value string }{name, value})
		}
	}
	return fields
}

// Choice is one permission on the page.
type Choice struct {
	Name            principal.Permission
	Label, Sentence string
	Checked         bool
}

// Permissions are the choices, in display order.
func (q Question) Permissions() []Choice {
	words := map[principal.Permission][2]string{
		principal.Mailbox:    {"Messages", "See your other agents, and exchange messages with them."},
		principal.FilesRead:  {"Read files", "List, search, read and download files of your projects."},
		principal.FilesWrite: {"Change files", "Create, edit and upload files in your projects."},
		principal.Commands:   {"Run commands", "Run programs on your machines, as your user there."},
		principal.Agents:     {"Use agents", "Start agents on your machines, instruct and answer them."},
		principal.Devices:    {"Use devices", "Call the tools of your paired devices, which ask you first."},
	}
	var out []Choice
	for _, p := range principal.All() {
		out = append(out, Choice{p, words[p][0], words[p][1], q.Allowed.Has(p)})
	}
	return out
}

// Consent shows the question.
func (p *Pages) Consent(w http.ResponseWriter, status int, q Question) error {
	name := q.Client.ShownName()
	if name == "" {
		name = "this client"
	}
	return p.show(w, status, "consent.html", "Allow "+name+"?", q.RedirectURI, q)
}

// Problem is a page that says why the question is not asked.
type Problem struct {
	Heading string
	Message string
	// Steps are what to do, in order; Hint is used when there are none.
	Steps []string
	Hint  string
	// Code and ID join the page to documentation and to a log line.
	Code string
	ID   string
}

// Problem shows a problem.
func (p *Pages) Problem(w http.ResponseWriter, status int, pr Problem) error {
	return p.show(w, status, "problem.html", pr.Heading, "", pr)
}

// UnknownClient is the problem of a client that this gateway does not know, or no
// longer. resource is what is typed into the client.
func UnknownClient(message, resource string) Problem {
	return Problem{
		Heading: "This client is not known here",
		Message: message,
		Steps: []string{
			"Go back to the client that you came from, such as ChatGPT, Claude, Grok or Cursor, and open its list of connectors.",
			"Remove the connector of this gateway.",
			"Add it again, with the address " + resource,
		},
	}
}

// Locked shows how long no password is looked at. back leads to the question.
func (p *Pages) Locked(w http.ResponseWriter, wait time.Duration, back string) error {
	seconds := int64((wait + time.Second - 1) / time.Second)
	w.Header().Set("Retry-After", fmt.Sprint(seconds))
	return p.show(w, http.StatusTooManyRequests, "locked.html", "Too many wrong passwords", "", struct{ Wait, Back string }{Words(wait), back})
}

// Words is a duration for people, rounded up: "1 second", "3 minutes".
func Words(d time.Duration) string {
	n, unit := int64((d+time.Second-1)/time.Second), "second"
	if n > 90 {
		n, unit = (n+59)/60, "minute"
	}
	if n != 1 {
		unit += "s"
	}
	return fmt.Sprint(n, " ", unit)
}

// show writes a page whole or not at all.
func (p *Pages) show(w http.ResponseWriter, status int, name, title, redirectURI string, page any) error {
	var b bytes.Buffer
	err := p.templates.ExecuteTemplate(&b, name, struct {
		Title string
		Style template.CSS
		Page  any
	}{title, p.style, page})
	if err != nil {
		return fmt.Errorf("rendering %s: %w", name, err)
	}
	p.setHeaders(w.Header(), redirectURI)
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // the reader left; there is nobody to tell
	return nil
}

func (p *Pages) setHeaders(h http.Header, redirectURI string) {
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", p.policy(redirectURI))
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer") // the address holds state
	h.Set("Cache-Control", "no-store")
}

// policy is the Content-Security-Policy of a page whose form may lead to
// redirectURI; "" is none.
func (p *Pages) policy(redirectURI string) string {
	formAction := "'self'"
	if target := formTarget(redirectURI); target != "" {
		// Chromium applies the directive to every redirect that follows, and
		// clients do redirect on: www.cursor.com to cursor.com, a program on
		// loopback to its maker's page. A hop that is not admitted leaves the
		// owner on this page although the client has its code.
		formAction += " " + target + " https:"
	}
	return "default-src 'none'; style-src 'sha256-" + p.styleHash + "'; form-action " + formAction + "; frame-ancestors 'none'; base-uri 'none'"
}

// formTarget is the source expression that admits a redirect URI: its origin, or
// the scheme alone for a client's own scheme. The grammar has no IPv6 addresses,
// so [::1] is admitted by its scheme too.
func formTarget(redirectURI string) string {
	u, err := url.Parse(redirectURI)
	switch {
	case err != nil || redirect.Registrable(redirectURI) != nil:
		return ""
	case u.Scheme != "https" && u.Scheme != "http", strings.HasPrefix(u.Host, "["):
		return u.Scheme + ":"
	}
	return u.Scheme + "://" + u.Host
}
