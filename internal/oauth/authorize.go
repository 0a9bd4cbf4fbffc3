package oauth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"agentrelay/internal/audit"
	"agentrelay/internal/oauth/consent"
	"agentrelay/internal/oauth/owner"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// maxAnswer bounds the body of a consent, in bytes.
const maxAnswer = 64 << 10

// requestParams are the parameters of an authorization request that the consent
// form carries. Others are ignored, as RFC 6749 section 3.1 has it.
var requestParams = []string{
	"response_type", "response_mode", "client_id", "redirect_uri", "scope", "state", "resource",
	"code_challenge", "code_challenge_method", "request", "request_uri",
}

// frontDoor is what the owner's browser meets.
type frontDoor struct {
	pages    *consent.Pages
	sessions owner.Sessions
	forms    owner.Forms
}

func newFrontDoor(issuer string, rand io.Reader) frontDoor {
	secure := strings.HasPrefix(issuer, "https://")
	return frontDoor{consent.New(), owner.Sessions{Secure: secure, Rand: rand}, owner.Forms{Secure: secure, Rand: rand}}
}

// Authorize is the authorization endpoint: GET asks the owner, POST takes the
// answer.
//
// A refusal is a page for a person until the redirect is known to be the
// client's, and a redirect from then on. A refused POST stores nothing but the
// count of wrong passwords and its line in the audit log. A form may be sent
// twice: each answer has a code of its own.
func (s *Server) Authorize(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		params, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			s.refusePage(w, r, badRequest("The parameters of the request cannot be read."))
			return
		}
		s.ask(w, r, params)
	case http.MethodPost:
		s.decide(w, r)
	default:
		w.Header().Set("Allow", "GET, HEAD, POST")
		s.refusePage(w, r, &pageError{status: http.StatusMethodNotAllowed, code: invalidRequest.Code,
			message: "This address does not take the method " + shownMethod(r.Method) + ".", hint: "Open it in a browser, as the client does."})
	}
}

func shownMethod(m string) string { return m[:min(len(m), 20)] }

// ask shows the question.
func (s *Server) ask(w http.ResponseWriter, r *http.Request, params url.Values) {
	a, err := s.checkAuthorization(r.Context(), params)
	if err != nil {
		s.refusePage(w, r, err)
		return
	}
	signedIn, err := s.signedIn(r)
	if err != nil {
		s.refusePage(w, r, err)
		return
	}
	s.show(w, r, http.StatusOK, &visit{a: a, params: carried(params), perms: a.permissions, signedIn: signedIn, remember: signedIn}, "")
}

// carried are the parameters that the form repeats.
func carried(params url.Values) url.Values {
	out := url.Values{}
	for _, name := range requestParams {
		if values, ok := params[name]; ok {
			out[name] = values
		}
	}
	return out
}

func (s *Server) signedIn(r *http.Request) (ok bool, err error) {
	token := s.front.sessions.Token(r)
	if token == "" {
		return false, nil
	}
	err = store.Read(r.Context(), s.store, func(q *store.Reader) error {
		ok, err = s.front.sessions.Valid(q, token, s.now())
		return err
	})
	return ok, err
}

// visit is one request of the owner's browser, with what was chosen on the page.
type visit struct {
	a        *authorization
	params   url.Values
	perms    principal.Set
	signedIn bool
	remember bool
}

// show writes the question, with a problem beside the password when there is one.
func (s *Server) show(w http.ResponseWriter, r *http.Request, status int, v *visit, problem string) {
	token, err := s.front.forms.Token(w, r, v.params)
	if err != nil {
		s.refusePage(w, r, err)
		return
	}
	err = s.front.pages.Consent(w, status, consent.Question{
		Client:      consent.Client{ID: v.a.client.id, Name: v.a.client.name, Kind: string(v.a.client.kind)},
		RedirectURI: v.a.redirectURI, Resource: v.a.resource, Scope: strings.Join(v.a.scopes, " "),
		Allowed: v.perms, Params: v.params, Token: token,
		AskPassword: !v.signedIn, OfferRemember: s.front.sessions.Secure, Remember: v.remember, Problem: problem,
	})
	if err != nil {
		s.log.Error("consent page not shown", "error", err)
		http.Error(w, "The gateway failed to show this page.", http.StatusInternalServerError)
	}
}

// decide takes the owner's answer.
func (s *Server) decide(w http.ResponseWriter, r *http.Request) {
	form, err := readForm(w, r)
	if err != nil {
		s.refusePage(w, r, err)
		return
	}
	v := &visit{params: carried(form), remember: form.Get(consent.FieldRemember) != ""}
	if !fromOurPage(r) || !s.front.forms.Check(r, v.params, form.Get(consent.FieldToken)) {
		s.refusePage(w, r, &pageError{status: http.StatusForbidden, code: invalidRequest.Code,
			message: "This answer does not come from a page that this browser was shown.",
			hint:    "Start again from the client. If it stays so, let the browser keep cookies of this address."})
		return
	}
	if v.a, err = s.checkAuthorization(r.Context(), v.params); err == nil {
		v.perms, err = readPermissions(form)
	}
	if err == nil {
		v.signedIn, err = s.signedIn(r)
	}
	if err != nil {
		s.refusePage(w, r, err)
		return
	}
	switch form.Get(consent.FieldDecision) {
	case consent.Allow:
		s.allow(w, r, v, form.Get(consent.FieldPassword))
	case consent.Deny:
		s.deny(w, r, v)
	default:
		s.refusePage(w, r, badRequest("The answer is neither to allow nor to deny."))
	}
}

func readForm(w http.ResponseWriter, r *http.Request) (url.Values, error) {
	contentType, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if !strings.EqualFold(strings.TrimSpace(contentType), "application/x-www-form-urlencoded") {
		return nil, &pageError{status: http.StatusUnsupportedMediaType, code: invalidRequest.Code,
			message: "The body is not a form.", hint: "Open this address in a browser, as the client does."}
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxAnswer)
	err := r.ParseForm()
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return nil, &pageError{status: http.StatusRequestEntityTooLarge, code: invalidRequest.Code,
			message: "The form is longer than 64 KiB.", hint: "Start again from the client. If it stays so, the client sends a request that is too long for this gateway."}
	}
	if err != nil {
		return nil, badRequest("The form cannot be read.")
	}
	return r.PostForm, nil
}

// fromOurPage reports what the browser itself says about the page that sent the
// form, if it says anything. An Origin header says nothing here: our own pages
// send "null", because they keep their address to themselves.
func fromOurPage(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return site == "" || site == "same-origin" || site == "none"
}

func readPermissions(form url.Values) (principal.Set, error) {
	set := principal.Set{}
	for _, name := range form[consent.FieldPermission] {
		if !slices.Contains(principal.All(), principal.Permission(name)) {
			return nil, badRequest("The form names a permission that does not exist.")
		}
		set = set.With(principal.Permission(name))
	}
	return set, nil
}

// deny sends the client away. It needs no password, so it is the owner's answer
// only in a signed-in browser. Anybody else's changes nothing and stands in the
// log alone: strangers must not be able to fill the audit log.
func (s *Server) deny(w http.ResponseWriter, r *http.Request, v *visit) {
	to := s.errorRedirect(v.a, accessDenied.Code, "It was denied on the consent page.")
	if v.signedIn {
		var err error
		to, err = store.Write(r.Context(), s.store, func(tx *store.Tx) (string, error) { return s.denyConsent(tx, v.a) })
		if err != nil {
			s.refusePage(w, r, err)
			return
		}
	}
	s.log.Info("consent denied", "client_id", v.a.client.id, "address", s.addr(r))
	sendTo(w, to, http.StatusSeeOther)
}

// allow lets the client in if the owner is who answered.
func (s *Server) allow(w http.ResponseWriter, r *http.Request, v *visit, password string) {
	if !v.signedIn && !s.checkPassword(w, r, v, password) {
		return
	}
	done, err := store.Write(r.Context(), s.store, func(tx *store.Tx) (consented, error) { return s.admit(tx, r, v) })
	if err != nil {
		s.refusePage(w, r, err)
		return
	}
	if done.signedOut {
		v.signedIn = false
		s.show(w, r, http.StatusUnauthorized, v, "You were signed out. Enter the owner password.")
		return
	}
	if done.setCookie {
		s.front.sessions.SetCookie(w, done.session, s.now())
	}
	s.log.Info("consent given", "client_id", v.a.client.id, "permissions", v.perms.String(), "address", s.addr(r))
	sendTo(w, done.to, http.StatusSeeOther)
}

// consented is what one transaction made of an answer.
type consented struct {
	to        string
	session   owner.Session
	setCookie bool
	signedOut bool // the session ended since the page was shown; nothing was done
}

// admit is everything that follows from a consent, in its transaction.
func (s *Server) admit(tx *store.Tx, r *http.Request, v *visit) (done consented, err error) {
	if v.signedIn {
		done, err = s.prolong(tx, r, v)
	} else {
		done, err = s.signIn(tx, r, v)
	}
	if err != nil || done.signedOut {
		return done, err
	}
	done.to, err = s.issueCode(tx, v.a, v.perms)
	return done, err
}

// prolong goes on with a session, or ends it when its box was unticked.
func (s *Server) prolong(tx *store.Tx, r *http.Request, v *visit) (done consented, err error) {
	token := s.front.sessions.Token(r)
	session, ok, err := s.front.sessions.Use(tx, token)
	if err != nil || !ok {
		return consented{signedOut: true}, err
	}
	if v.remember {
		return consented{session: session, setCookie: true}, nil
	}
	if err := s.front.sessions.End(tx, token); err != nil {
		return done, err
	}
	err = audit.Record(tx, s.clients.ownerOf(v.a.client.id), "owner.logout", "", audit.OK)
	return consented{setCookie: true}, err
}

// signIn follows a right password.
func (s *Server) signIn(tx *store.Tx, r *http.Request, v *visit) (done consented, err error) {
	if err := owner.Succeeded(tx, s.addr(r)); err != nil {
		return done, err
	}
	remember := v.remember && s.front.sessions.Secure
	if remember {
		done.setCookie = true
		if done.session, err = s.front.sessions.Start(tx); err != nil {
			return done, err
		}
	}
	err = audit.Record(tx, s.clients.ownerOf(v.a.client.id), "owner.login", v.a.client.id, audit.OK, "address", s.addr(r), "remembered", remember)
	return done, err
}

// checkPassword reports whether password is the owner's. When it is not, or must
// not be looked at now, the answer is written.
func (s *Server) checkPassword(w http.ResponseWriter, r *http.Request, v *visit, password string) bool {
	if strings.TrimSpace(password) == "" {
		s.show(w, r, http.StatusUnauthorized, v, "Enter the owner password.")
		return false
	}
	try, right, err := s.tryPassword(r.Context(), s.addr(r), v.a.client.id, password)
	switch {
	case err != nil:
		s.refusePage(w, r, err)
	case try.Wait > 0:
		s.log.Warn("sign-in refused during a pause", "wait_ms", try.Wait.Milliseconds(), "address", s.addr(r))
		if err := s.front.pages.Locked(w, try.Wait, "authorize?"+v.params.Encode()); err != nil {
			s.log.Error("locked page not shown", "error", err)
		}
	case !right:
		s.log.Warn("wrong owner password", "pause_ms", try.Pause.Milliseconds(), "address", s.addr(r))
		problem := "This is not the owner password."
		if try.Pause > 0 {
			problem += " The next try is possible in " + consent.Words(try.Pause) + "."
			w.Header().Set("Retry-After", fmt.Sprint(int64((try.Pause+time.Second-1)/time.Second)))
		}
		s.show(w, r, http.StatusUnauthorized, v, problem)
	}
	return right
}

// tryPassword counts the try before it looks at the password, and records a
// wrong one. A try in a pause costs a read.
func (s *Server) tryPassword(ctx context.Context, address, clientID, password string) (try owner.Try, right bool, err error) {
	if s.password == nil {
		return try, false, errors.New("the server has no owner password")
	}
	err = store.Read(ctx, s.store, func(q *store.Reader) error {
		try.Wait, err = owner.Pause(q, address, s.now())
		return err
	})
	if err != nil || try.Wait > 0 {
		return try, false, err
	}
	try, err = store.Write(ctx, s.store, func(tx *store.Tx) (owner.Try, error) { return owner.Begin(tx, address) })
	if err != nil || try.Wait > 0 {
		return try, false, err
	}
	if right, err = s.password.Verify(ctx, password); err != nil || right {
		return try, right, err
	}
	return try, false, store.Exec(ctx, s.store, func(tx *store.Tx) error {
		return audit.Record(tx, principal.Principal{}, "owner.login", clientID, "wrong_password", "address", address, "pauseMs", try.Pause.Milliseconds())
	})
}

// sendTo redirects. The address was built by [Server.redirectTo].
func sendTo(w http.ResponseWriter, location string, status int) {
	h := w.Header()
	h.Set("Location", location)
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	w.WriteHeader(status)
}

// refusePage answers an error: through the client's redirect when that is to be
// trusted, else with a page. It writes the log line that shares the page's id.
func (s *Server) refusePage(w http.ResponseWriter, r *http.Request, err error) {
	var toClient *redirectError
	if errors.As(err, &toClient) {
		s.log.Info("authorization refused", "code", toClient.code, "reason", toClient.description, "address", s.addr(r))
		status := http.StatusFound
		if r.Method == http.MethodPost {
			status = http.StatusSeeOther
		}
		sendTo(w, toClient.location, status)
		return
	}
	var page *pageError
	if !errors.As(err, &page) {
		refusal := refusalOf(err)
		page = &pageError{status: statusOf(refusal.Code), code: refusal.Code, message: refusal.Message, hint: refusal.Hint, cause: err}
	}
	id, log := s.requestID(r), s.log.Info
	if page.status >= http.StatusInternalServerError {
		log = s.log.Error
	}
	log("authorization refused", "id", id, "status", page.status, "address", s.addr(r), "error", page)
	if page.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", retryAfter)
	}
	if err := s.front.pages.Problem(w, page.status, s.problemOf(page, id)); err != nil {
		s.log.Error("problem page not shown", "id", id, "error", err)
	}
}

// problemOf chooses the words of a page.
func (s *Server) problemOf(e *pageError, id string) consent.Problem {
	p := consent.Problem{Heading: "This request cannot be answered", Message: e.message, Hint: e.hint}
	switch {
	case e.code == invalidClient.Code && e.cause == nil:
		p = consent.UnknownClient(e.message, s.resource.String())
	case e.code == invalidClient.Code:
		p.Heading = "This client cannot be verified" // the message says why
	case e.code == invalidRedirectURI.Code:
		p.Heading = "This address is not allowed"
	case e.status >= http.StatusInternalServerError:
		p.Heading = "The gateway has a problem"
	}
	p.Code, p.ID = e.code, id
	return p
}
