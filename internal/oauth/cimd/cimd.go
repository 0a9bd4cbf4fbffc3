// Package cimd fetches client id metadata documents: a client whose id is a URL
// describes itself at that URL, and needs no registration
// (draft-ietf-oauth-client-id-metadata-document).
//
// It owns which ids are such URLs, which documents are believed, for how long
// (RFC 9111, within bounds), and the copies of well-known documents that stand in
// when a vendor's site will not talk to us. It promises that a document names
// itself by exactly the id it was asked for, that a fetch ends within
// [Timeout] and reads no more than registration.MaxBody bytes, and that an error
// repeats nothing of what the site sent. It leaves the destination to the guarded
// client it is given, and storing documents to its caller; it keeps none, and no
// errors.
package cimd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"agentrelay/internal/oauth/registration"
	"agentrelay/internal/safedial"
)

const (
	// Timeout bounds one fetch.
	Timeout = 5 * time.Second
	// maxID is the longest id in bytes.
	maxID = 1024
	// atOnce bounds the fetches that run at one time, for anybody may name an id.
	atOnce = 8
)

// Document is what a client says about itself at its id.
type Document struct {
	Metadata registration.Metadata
	// FreshUntil is when to ask again.
	FreshUntil time.Time
}

// Source finds documents.
type Source interface {
	// Fetch returns the present document of an id. The error is an [*Error], or
	// that of ctx.
	Fetch(ctx context.Context, clientID string) (Document, error)
}

// Error says why there is no usable document.
type Error struct {
	// Reason is a sentence for a person, without anything the site sent.
	Reason string
	// Unavailable says that the document itself may be right: its site could not
	// be asked, or what answered was not its owner.
	Unavailable bool

	cause error
}

func (e *Error) Error() string {
	if e.cause != nil {
		return e.Reason + " (" + e.cause.Error() + ")"
	}
	return e.Reason
}

// Unwrap returns the cause, for the log.
func (e *Error) Unwrap() error { return e.cause }

func fail(format string, args ...any) *Error { return &Error{Reason: fmt.Sprintf(format, args...)} }

func because(cause error, reason string) *Error { return &Error{Reason: reason, cause: cause} }

// Options says how to fetch.
type Options struct {
	// Client is made by safedial, which keeps ids from naming hosts that are
	// nobody's business.
	Client *http.Client
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// AllowLoopback accepts http ids on 127.0.0.1 and [::1], like the mode of
	// safedial with the same name.
	AllowLoopback bool
}

// Fetcher is a [Source] over HTTP. It is safe for concurrent use.
type Fetcher struct {
	client        http.Client
	now           func() time.Time
	allowLoopback bool
	slots         chan struct{}
}

// New returns a Fetcher.
func New(o Options) *Fetcher {
	f := &Fetcher{client: *o.Client, now: o.Now, allowLoopback: o.AllowLoopback, slots: make(chan struct{}, atOnce)}
	if f.now == nil {
		f.now = time.Now
	}
	f.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return f
}

// IsClientID reports whether id has the form of a client id that names a
// document: an https URL with a host and a path, and without credentials,
// fragment or dot segments, in ASCII. The consent page shows the host, so one
// that only looks like another must be seen in its xn-- form. The http URL of a literal loopback address has the
// form too; Fetch refuses it outside the loopback mode.
func IsClientID(id string) bool {
	if len(id) > maxID || strings.ContainsAny(id, "#\\") || !visibleASCII(id) {
		return false
	}
	u, err := url.Parse(id)
	if err != nil || u.User != nil || u.Hostname() == "" || u.Opaque != "" || !visibleASCII(u.Host) {
		return false
	}
	if u.Scheme != "https" && !plainLoopback(u) {
		return false
	}
	path := u.EscapedPath()
	if path == "" || path == "/" {
		return false
	}
	for _, segment := range strings.Split(strings.ToLower(path), "/") {
		if s := strings.ReplaceAll(segment, "%2e", "."); s == "." || s == ".." {
			return false
		}
	}
	return true
}

func visibleASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

func plainLoopback(u *url.URL) bool {
	return u.Scheme == "http" && (u.Hostname() == "127.0.0.1" || u.Hostname() == "::1")
}

// Fetch implements [Source]. When the site can't be reached or answers with
// something else than a document, and the id is well known, the document is the
// pinned copy. A site that says the document is gone is believed.
func (f *Fetcher) Fetch(ctx context.Context, clientID string) (Document, error) {
	if !IsClientID(clientID) {
		return Document{}, fail("The client id is not the URL of a metadata document.")
	}
	if strings.HasPrefix(clientID, "http:") && !f.allowLoopback {
		return Document{}, fail("The client id is a plain http URL on this machine, which only the loopback test mode accepts.")
	}
	timed, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	body, header, err := f.get(timed, clientID)
	if err == nil {
		var m registration.Metadata
		if m, err = parse(clientID, body); err == nil {
			now := f.now()
			return Document{m, now.Add(freshFor(header, now))}, nil
		}
	}
	if ctx.Err() != nil {
		return Document{}, ctx.Err()
	}
	var failed *Error
	if m, ok := pinned(clientID); ok && errors.As(err, &failed) && failed.Unavailable {
		return Document{m, f.now().Add(minFresh)}, nil
	}
	return Document{}, err
}

// away marks an error after which a pinned or an older copy may stand in.
func away(e *Error) *Error {
	e.Unavailable = true
	return e
}

// get returns the body of a 200 answer that may be JSON.
func (f *Fetcher) get(ctx context.Context, id string) ([]byte, http.Header, error) {
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	case <-ctx.Done():
		return nil, nil, away(fail("Too many metadata documents are being fetched at this moment."))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, id, nil)
	if err != nil {
		return nil, nil, because(safedial.Cause(err), "The client id cannot be fetched.")
	}
	req.Header.Set("Accept", "application/json")
	resp, err := f.client.Do(req)
	var refused *safedial.RefusedError
	if errors.As(err, &refused) {
		return nil, nil, because(refused, "The client id names a destination that is not allowed.")
	}
	if err != nil {
		return nil, nil, away(because(safedial.Cause(err), "The metadata document could not be fetched."))
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusGone:
		return nil, nil, fail("There is no metadata document at the client id: status %d.", resp.StatusCode)
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		return nil, nil, away(fail("The client id redirects, and redirects are not followed: status %d.", resp.StatusCode))
	case resp.StatusCode != http.StatusOK:
		return nil, nil, away(fail("The site of the client id answered with status %d.", resp.StatusCode))
	case !mayBeJSON(resp.Header.Get("Content-Type")):
		return nil, nil, away(fail("The site of the client id answered with a page, not with a metadata document."))
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, registration.MaxBody+1))
	if len(body) > registration.MaxBody || errors.Is(err, safedial.ErrTooLarge) {
		return nil, nil, fail("The metadata document has more than %d bytes.", registration.MaxBody)
	}
	if err != nil {
		return nil, nil, away(because(safedial.Cause(err), "The metadata document could not be read to its end."))
	}
	return body, resp.Header, nil
}

// mayBeJSON accepts the types under which servers of static files send JSON.
func mayBeJSON(contentType string) bool {
	if contentType == "" {
		return true
	}
	t, _, err := mime.ParseMediaType(contentType)
	return err == nil && (strings.HasSuffix(t, "json") || t == "text/plain" || t == "application/octet-stream")
}

// parse reads a document and applies the rules that a registration has not.
func parse(id string, body []byte) (registration.Metadata, error) {
	m, err := registration.Parse(body)
	if err != nil {
		return m, because(err, "The metadata document is not valid.")
	}
	var members map[string]json.RawMessage
	var self string
	if err := json.Unmarshal(body, &members); err != nil {
		return m, because(err, "The metadata document is not valid.")
	}
	switch {
	case json.Unmarshal(members["client_id"], &self) != nil || self != id:
		return m, fail("The metadata document does not name its own URL as client_id.")
	case members["client_secret"] != nil:
		return m, fail("The metadata document has a client_secret, which everybody can read.")
	case m.ClientName == "":
		return m, fail("The metadata document has no client_name.")
	case !offersNone(m.OfferedAuthMethods):
		return m, fail("The metadata document offers no token endpoint authentication that this gateway has; it would have to offer none.")
	}
	return m, nil
}

// offersNone reports whether a client may come without authentication: it says
// so, among other methods perhaps, or says nothing.
func offersNone(methods []string) bool {
	for _, m := range methods {
		if m == registration.AuthNone {
			return true
		}
	}
	return len(methods) == 0
}
