package oauth

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/html"

	"agentrelay/internal/oauth/owner"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

const (
	ownerPassword = "abcd-efgh-ijkm-npqr-stuv-wxyz-abcd"
	home          = "203.0.113.5"
)

// newDoor is a relay with the authorization endpoint and a password.
func newDoor(t testing.TB, options ...func(*Options)) *relay {
	t.Helper()
	path := filepath.Join(t.TempDir(), "owner.json")
	if err := owner.WritePassword(path, ownerPassword, rand.Reader, false); err != nil {
		t.Fatal(err)
	}
	password, err := owner.LoadPassword(path)
	if err != nil {
		t.Fatal(err)
	}
	return newRelay(t, append([]func(*Options){func(o *Options) { o.Password = password }}, options...)...)
}

// browser is one browser at one address.
type browser struct {
	*relay
	jar     *cookiejar.Jar
	base    *url.URL
	address string
}

func (r *relay) browser(address string) *browser {
	jar, err := cookiejar.New(nil)
	if err != nil {
		r.Fatal(err)
	}
	base, err := url.Parse(r.server.issuer)
	if err != nil {
		r.Fatal(err)
	}
	return &browser{r, jar, base, address}
}

func (b *browser) send(method, target, body string, header ...string) *page {
	b.Helper()
	to, err := b.base.Parse(target)
	if err != nil {
		b.Fatal(err)
	}
	req := httptest.NewRequest(method, to.String(), strings.NewReader(body))
	req.RemoteAddr = b.address + ":40000"
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	for _, c := range b.jar.Cookies(to) {
		req.AddCookie(c)
	}
	w := httptest.NewRecorder()
	b.server.Authorize(w, req)
	b.jar.SetCookies(to, w.Result().Cookies())
	p := &page{browser: b, status: w.Code, header: w.Header(), body: w.Body.String(), url: to}
	if root, err := html.Parse(strings.NewReader(p.body)); err == nil {
		p.read(root)
	}
	return p
}

func (b *browser) open(v url.Values) *page {
	return b.send(http.MethodGet, "/authorize?"+v.Encode(), "")
}

// cookie is the value of the cookie whose name ends in suffix.
func (b *browser) cookie(suffix string) string {
	for _, c := range b.jar.Cookies(b.base) {
		if strings.HasSuffix(c.Name, suffix) {
			return c.Value
		}
	}
	return ""
}

// page is an answer, with its form as a browser would send it unchanged.
type page struct {
	*browser
	status int
	header http.Header
	body   string
	url    *url.URL
	action string
	fields url.Values
	inputs map[string]bool // every field there is
}

func (p *page) read(n *html.Node) {
	p.fields, p.inputs = url.Values{}, map[string]bool{}
	for e := range n.Descendants() {
		attrs := map[string]string{}
		for _, a := range e.Attr {
			attrs[a.Key] = a.Val
		}
		_, checked := attrs["checked"]
		switch {
		case e.Data == "form":
			p.action = attrs["action"]
		case e.Data != "input":
		case attrs["type"] != "checkbox" || checked:
			p.fields.Add(attrs["name"], attrs["value"])
			fallthrough
		default:
			p.inputs[attrs["name"]] = true
		}
	}
}

// submit sends the form with the given fields set; an empty value removes one.
func (p *page) submit(set ...string) *page {
	p.Helper()
	if p.action == "" {
		p.Fatalf("no form on the page: %d %s", p.status, p.body)
	}
	fields := url.Values{}
	for name, values := range p.fields {
		fields[name] = values
	}
	for i := 0; i+1 < len(set); i += 2 {
		if fields.Del(set[i]); set[i+1] != "" {
			fields[set[i]] = strings.Fields(set[i+1])
		}
	}
	action, err := p.url.Parse(p.action)
	if err != nil {
		p.Fatal(err)
	}
	return p.send(http.MethodPost, action.String(), fields.Encode(), "Sec-Fetch-Site", "same-origin", "Origin", "null")
}

func (p *page) allow(set ...string) *page {
	return p.submit(append([]string{"decision", "allow"}, set...)...)
}

// wantRedirect returns the query of the redirect to target.
func (p *page) wantRedirect(status int, target string) url.Values {
	p.Helper()
	to, err := url.Parse(p.header.Get("Location"))
	if err != nil || p.status != status {
		p.Fatalf("status %d, Location %q, want %d: %s", p.status, to, status, p.body)
	}
	query := to.Query()
	if to.RawQuery = ""; to.String() != target {
		p.Fatalf("sent to %s, want %s", to, target)
	}
	if query.Get("iss") != p.server.issuer || p.header.Get("Cache-Control") != "no-store" || p.header.Get("Referrer-Policy") != "no-referrer" {
		p.Errorf("iss %q, headers %v", query.Get("iss"), p.header)
	}
	return query
}

func (p *page) wantCode(target string) string {
	p.Helper()
	query := p.wantRedirect(http.StatusSeeOther, target)
	if query.Get("code") == "" || query.Get("error") != "" {
		p.Fatalf("no code: %v", query)
	}
	return query.Get("code")
}

// wantPage checks a page's status, a text on it, and the headers of every page.
func (p *page) wantPage(status int, text string) *page {
	p.Helper()
	if p.status != status || !strings.Contains(p.body, text) {
		p.Fatalf("status %d, want %d with %q: %s", p.status, status, text, p.body)
	}
	policy := p.header.Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'; style-src 'sha256-", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'"} {
		if !strings.Contains(policy, want) {
			p.Errorf("the policy has no %s: %s", want, policy)
		}
	}
	for name, want := range map[string]string{"Location": "", "Cache-Control": "no-store", "X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff",
		"Referrer-Policy": "no-referrer", "Content-Type": "text/html; charset=utf-8"} {
		if got := p.header.Get(name); got != want {
			p.Errorf("%s: %q", name, got)
		}
	}
	return p
}

func TestConsent(t *testing.T) {
	r := newDoor(t)
	id := r.register(claude)
	b := r.browser(home)
	p := b.open(authorizeParams(id, claude)).wantPage(http.StatusOK, "Claude")
	for _, want := range []string{"<strong>claude.ai</strong>", "https://gw.test/mcp", "local-agents", "Registered itself"} {
		if !strings.Contains(p.body, want) {
			t.Errorf("the page does not show %s", want)
		}
	}
	if got := strings.Join(p.fields["permission"], ","); got != principal.Full().String() {
		t.Errorf("ticked: %s", got)
	}
	if strings.Contains(p.body, ownerPassword) || strings.Contains(p.body, "<script") {
		t.Error("the page holds what it must not")
	}

	done := p.allow("password", ownerPassword, "permission", "mailbox files_read")
	code := done.wantCode(claude)
	if got := done.wantRedirect(http.StatusSeeOther, claude).Get("state"); got != "s1" {
		t.Errorf("state %q", got)
	}
	tokens := r.redeem(id, code)
	if tokens.status != http.StatusOK {
		t.Fatalf("the code is refused: %s", tokens.body)
	}
	if got := r.mustAccess(tokens.text("access_token")).Principal.Permissions.String(); got != "mailbox,files_read" {
		t.Errorf("permissions %s", got)
	}
	if e := r.lastAudit("owner.login"); e.Outcome != "ok" || e.Subject != id || e.Detail["remembered"] != false {
		t.Errorf("audit %+v", e)
	}
	if e := r.lastAudit("consent.allow"); e.Outcome != "ok" || e.Detail["permissions"] != "mailbox,files_read" {
		t.Errorf("audit %+v", e)
	}
	if b.cookie("owner") != "" {
		t.Error("the browser is remembered unasked")
	}
	// The next consent starts from what this client has.
	if got := strings.Join(b.open(authorizeParams(id, claude)).fields["permission"], ","); got != "mailbox,files_read" {
		t.Errorf("the next page ticks %s", got)
	}
	// Nothing ticked is an answer too.
	b.open(authorizeParams(id, claude)).allow("password", ownerPassword, "permission", "").wantCode(claude)
	if got := r.mustAccess(tokens.text("access_token")).Principal.Permissions; len(got) != 0 {
		t.Errorf("permissions %s", got)
	}
}

func TestDeny(t *testing.T) {
	r := newDoor(t)
	id := r.register(claude)
	b := r.browser(home)
	query := b.open(authorizeParams(id, claude)).submit("decision", "deny").wantRedirect(http.StatusSeeOther, claude)
	if query.Get("error") != "access_denied" || query.Get("state") != "s1" || query.Get("code") != "" {
		t.Errorf("%v", query)
	}
	if n := r.count(`SELECT count(*) FROM audit_log`); n != 0 {
		t.Errorf("a stranger's answer stands in the audit log")
	}
	b.open(authorizeParams(id, claude)).allow("password", ownerPassword, "remember", "yes").wantCode(claude)
	b.open(authorizeParams(id, claude)).submit("decision", "deny").wantRedirect(http.StatusSeeOther, claude)
	if e := r.lastAudit("consent.deny"); e.ClientID != principal.OwnerClientID {
		t.Errorf("audit %+v", e)
	}
	if n := r.count(`SELECT count(*) FROM oauth_grants`); n != 1 {
		t.Errorf("%d grants", n)
	}
}

func TestWrongPasswords(t *testing.T) {
	r := newDoor(t)
	id := r.register(claude)
	b := r.browser(home)
	p := b.open(authorizeParams(id, claude))
	before := r.rows()
	for i, pause := range []string{"", "", "1 second", "2 seconds", "4 seconds", "8 seconds"} {
		wrong := p.allow("password", fmt.Sprint("wrong-", i), "permission", "mailbox").wantPage(http.StatusUnauthorized, "This is not the owner password.")
		if strings.Contains(wrong.body, "next try") != (pause != "") || !strings.Contains(wrong.body, pause) {
			t.Fatalf("try %d does not name the pause %q: %s", i+1, pause, wrong.body)
		}
		if got := strings.Join(wrong.fields["permission"], ","); got != "mailbox" {
			t.Errorf("the form forgot what was ticked: %s", got)
		}
		if pause == "" {
			continue
		}
		locked := wrong.allow("password", ownerPassword).wantPage(http.StatusTooManyRequests, pause)
		seconds, _, _ := strings.Cut(pause, " ")
		if locked.header.Get("Retry-After") != seconds {
			t.Errorf("Retry-After %q, want %s", locked.header.Get("Retry-After"), seconds)
		}
		if again := b.send(http.MethodGet, backLink(locked), ""); again.fields.Get("client_id") != id {
			t.Error("the link back does not lead to the request")
		}
		n, _ := time.ParseDuration(seconds + "s")
		r.clock.advance(n)
		p = wrong
	}
	if n := r.rows() - before; n != 6 { // one line of the audit log each
		t.Errorf("wrong passwords stored %d rows", n)
	}
	if e := r.lastAudit("owner.login"); e.Outcome != "wrong_password" || e.Detail["pauseMs"] != 8000.0 || e.ClientID != "" {
		t.Errorf("audit %+v", e)
	}
	p.allow("password", " "+ownerPassword+" ").wantCode(claude)
	// A right password ends the pauses.
	p.allow("password", "wrong").wantPage(http.StatusUnauthorized, "not the owner password.</p>")
}

func backLink(p *page) string {
	_, rest, _ := strings.Cut(p.body, `class="button main" href="`)
	link, _, _ := strings.Cut(rest, `"`)
	return "/" + html.UnescapeString(link)
}

func TestAnEmptyPasswordIsNoTry(t *testing.T) {
	r := newDoor(t)
	id := r.register(claude)
	p := r.browser(home).open(authorizeParams(id, claude))
	for range 10 {
		p.allow("password", "").wantPage(http.StatusUnauthorized, "Enter the owner password.")
	}
	p.allow("password", ownerPassword).wantCode(claude)
}

func TestPauseAndFormSurviveRestart(t *testing.T) {
	r := newDoor(t)
	id := r.register(claude)
	b := r.browser(home)
	p := b.open(authorizeParams(id, claude))
	for range 3 {
		p.allow("password", "wrong").wantPage(http.StatusUnauthorized, "")
	}
	r.restart()
	p.allow("password", ownerPassword).wantPage(http.StatusTooManyRequests, "1 second")
	r.clock.advance(time.Second)
	p.allow("password", ownerPassword).wantCode(claude)
}

func TestStrangersCannotLockTheOwnerOut(t *testing.T) {
	r := newDoor(t)
	id := r.register(claude)
	remembered, fresh := r.browser(home), r.browser("2001:db8:5::1")
	remembered.open(authorizeParams(id, claude)).allow("password", ownerPassword, "remember", "yes").wantCode(claude)
	for i := range 60 {
		stranger := r.browser(fmt.Sprintf("198.51.100.%d", i))
		stranger.open(authorizeParams(id, claude)).allow("password", "wrong")
		r.clock.advance(time.Second)
	}
	remembered.open(authorizeParams(id, claude)).allow().wantCode(claude)
	// Where the owner signed in before, and where not.
	known := r.browser(home)
	known.open(authorizeParams(id, claude)).allow("password", ownerPassword).wantCode(claude)
	p := fresh.open(authorizeParams(id, claude))
	p.allow("password", ownerPassword).wantPage(http.StatusTooManyRequests, "second")
	r.clock.advance(30 * time.Second)
	p.allow("password", ownerPassword).wantCode(claude)
}

func TestGuessesAtOnce(t *testing.T) {
	r := newDoor(t)
	id := r.register(claude)
	p := r.browser("198.51.100.7").open(authorizeParams(id, claude))
	var wg sync.WaitGroup
	var mu sync.Mutex
	statuses := map[int]int{}
	for range 20 {
		wg.Go(func() {
			status := p.allow("password", "wrong").status
			mu.Lock()
			statuses[status]++
			mu.Unlock()
		})
	}
	wg.Wait()
	if statuses[http.StatusUnauthorized] != 3 || statuses[http.StatusTooManyRequests] != 17 {
		t.Errorf("statuses %v", statuses)
	}
}

func TestSession(t *testing.T) {
	r := newDoor(t)
	id := r.register(claude)
	b := r.browser(home)
	p := b.open(authorizeParams(id, claude))
	if !p.inputs["password"] || !p.inputs["remember"] || p.fields.Get("remember") != "" {
		t.Fatalf("fields %v", p.inputs)
	}
	p.allow("password", ownerPassword, "remember", "yes").wantCode(claude)
	r.restart()

	p = b.open(authorizeParams(id, claude))
	if p.inputs["password"] || p.fields.Get("remember") != "yes" {
		t.Fatalf("a signed-in browser is asked for %v", p.inputs)
	}
	p.allow().wantCode(claude)
	if r.browser(home).open(authorizeParams(id, claude)).inputs["password"] == false {
		t.Error("another browser is signed in")
	}

	// Signed out elsewhere while the page was open: nothing happens but a question.
	grants := r.count(`SELECT count(*) FROM oauth_grants`)
	if err := store.Exec(context.Background(), r.store, owner.EndSessions); err != nil {
		t.Fatal(err)
	}
	asked := p.allow().wantPage(http.StatusUnauthorized, "Enter the owner password.")
	if n := r.count(`SELECT count(*) FROM oauth_grants`); n != grants {
		t.Errorf("%d grants, want %d", n, grants)
	}
	asked.allow("password", ownerPassword, "remember", "yes").wantCode(claude)

	// Unticked: signed out.
	b.open(authorizeParams(id, claude)).allow("remember", "").wantCode(claude)
	if r.count(`SELECT count(*) FROM owner_sessions`) != 0 || b.cookie("owner") != "" {
		t.Error("the session lives on")
	}
	if e := r.lastAudit("owner.logout"); e.ClientID != principal.OwnerClientID {
		t.Errorf("audit %+v", e)
	}

	// It ends by itself.
	b.open(authorizeParams(id, claude)).allow("password", ownerPassword, "remember", "yes").wantCode(claude)
	r.clock.advance(owner.SessionIdle)
	if !b.open(authorizeParams(id, claude)).inputs["password"] {
		t.Error("an idle browser is still signed in")
	}
}

func TestNoSessionOnHTTP(t *testing.T) {
	r := newDoor(t, func(o *Options) { o.PublicBaseURL = "http://127.0.0.1:6768" })
	id := r.register(claude)
	b := r.browser("127.0.0.1")
	p := b.open(authorizeParams(id, claude))
	if p.inputs["remember"] {
		t.Error("the page offers to stay signed in")
	}
	p.allow("password", ownerPassword, "remember", "yes").wantCode(claude)
	if b.cookie("owner") != "" || r.count(`SELECT count(*) FROM owner_sessions`) != 0 {
		t.Error("a session was made")
	}
}

func TestForgedForms(t *testing.T) {
	r := newDoor(t)
	id, other := r.register(claude), r.register(claude)
	victim, attacker := r.browser(home), r.browser("198.51.100.7")
	victim.open(authorizeParams(id, claude)).allow("password", ownerPassword, "remember", "yes").wantCode(claude)
	theirs := attacker.open(authorizeParams(id, claude))
	mine := victim.open(authorizeParams(id, claude))
	before, grants := r.rows(), r.count(`SELECT count(*) FROM oauth_grants`)

	forged := func(name string, fields url.Values, header ...string) {
		t.Helper()
		fields.Set("decision", "allow")
		p := victim.send(http.MethodPost, "/authorize", fields.Encode(), header...)
		if p.status != http.StatusForbidden || p.header.Get("Location") != "" {
			t.Errorf("%s: %d %q", name, p.status, p.header.Get("Location"))
		}
	}
	with := func(p *page, set ...string) url.Values {
		out := url.Values{}
		for name, values := range p.fields {
			out[name] = append([]string{}, values...)
		}
		for i := 0; i+1 < len(set); i += 2 {
			out.Set(set[i], set[i+1])
		}
		return out
	}
	bare := authorizeParams(id, claude)
	forged("no token", bare)
	forged("a wrong token", with(mine, "form_token", "x"))
	forged("another browser's token", with(theirs))
	forged("another client", with(mine, "client_id", other))
	forged("another challenge", with(mine, "code_challenge", challengeOf("another verifier of more than forty-three characters")))
	forged("another state", with(mine, "state", "s2"))
	forged("a field more", with(mine, "resource", "https://gw.test/mcp"))
	forged("another site", with(mine), "Sec-Fetch-Site", "cross-site")
	forged("another host of the domain", with(mine), "Sec-Fetch-Site", "same-site")
	if r.rows() != before || r.count(`SELECT count(*) FROM oauth_grants`) != grants {
		t.Error("a forged form stored something")
	}
	// Parameters in the address do not count.
	p := victim.send(http.MethodPost, "/authorize?"+with(mine, "decision", "allow").Encode(), "")
	p.wantPage(http.StatusForbidden, "Start again from the client")
	mine.allow().wantCode(claude)
}

func TestFormAction(t *testing.T) {
	r := newDoor(t, func(o *Options) { o.Redirects = []string{"https://app.test:8443/cb"} })
	const cursor = "cursor://anysphere.cursor-mcp/oauth/callback"
	for redirectURI, want := range map[string]string{
		claude:                            "form-action 'self' https://claude.ai https:;",
		cursor:                            "form-action 'self' cursor: https:;",
		"http://localhost:53682/callback": "form-action 'self' http://localhost:53682 https:;",
		"http://127.0.0.1:9/":             "form-action 'self' http://127.0.0.1:9 https:;",
		"http://[::1]:9/":                 "form-action 'self' http: https:;",
		"https://app.test:8443/cb":        "form-action 'self' https://app.test:8443 https:;",
	} {
		id := r.register(redirectURI)
		p := r.browser(home).open(authorizeParams(id, redirectURI)).wantPage(http.StatusOK, "")
		if policy := p.header.Get("Content-Security-Policy"); !strings.Contains(policy, want) {
			t.Errorf("%s: %s", redirectURI, policy)
		}
		if got := strings.Contains(p.body, "a program on your own computer"); got != strings.HasPrefix(redirectURI, "http:") {
			t.Errorf("%s: warned about loopback: %v", redirectURI, got)
		}
		p.allow("password", ownerPassword).wantCode(redirectURI)
	}
}

func TestRefusedRequests(t *testing.T) {
	r := newDoor(t)
	id := r.register(claude, "https://unlisted.test/cb")
	b := r.browser(home)
	before := r.rows()
	b.open(authorizeParams("nobody", claude)).wantPage(http.StatusBadRequest, "Remove the connector")
	unverified := b.open(authorizeParams("https://app.test/client.json", claude)).wantPage(http.StatusBadRequest, "cannot be verified")
	if n := strings.Count(unverified.body, "There is no document."); n != 1 {
		t.Errorf("the page gives the reason %d times", n)
	}
	b.open(authorizeParams(id, "https://evil.test/cb")).wantPage(http.StatusBadRequest, "has not registered")
	b.open(authorizeParams(id, "https://unlisted.test/cb")).wantPage(http.StatusBadRequest, "oauth.redirects")
	b.open(url.Values{}).wantPage(http.StatusBadRequest, "client_id")
	b.send(http.MethodGet, "/authorize?client_id=%zz", "").wantPage(http.StatusBadRequest, "cannot be read")
	b.open(authorizeParams(id, "https://evil.test/\"><script>alert(1)</script>")).wantPage(http.StatusBadRequest, "")

	query := b.open(authorizeParams(id, claude, "code_challenge", "")).wantRedirect(http.StatusFound, claude)
	if query.Get("error") != "invalid_request" || query.Get("state") != "s1" {
		t.Errorf("%v", query)
	}
	if got := b.open(authorizeParams(id, claude, "resource", "https://evil.test/mcp")).wantRedirect(http.StatusFound, claude).Get("error"); got != "invalid_target" {
		t.Errorf("error %s", got)
	}

	b.send(http.MethodPost, "/authorize", `{}`, "Content-Type", "application/json").wantPage(http.StatusUnsupportedMediaType, "not a form")
	b.send(http.MethodPost, "/authorize", "state="+strings.Repeat("x", 65<<10)).wantPage(http.StatusRequestEntityTooLarge, "64 KiB")
	b.send(http.MethodPost, "/authorize", "state=%zz").wantPage(http.StatusBadRequest, "cannot be read")
	p := b.open(authorizeParams(id, claude))
	p.submit("decision", "maybe", "password", ownerPassword).wantPage(http.StatusBadRequest, "neither")
	p.allow("permission", "mailbox root", "password", ownerPassword).wantPage(http.StatusBadRequest, "does not exist")
	for _, method := range []string{http.MethodPut, http.MethodDelete, http.MethodOptions, "X-" + strings.Repeat("A", 3000)} {
		if got := b.send(method, "/authorize", "").wantPage(http.StatusMethodNotAllowed, "").header.Get("Allow"); got != "GET, HEAD, POST" {
			t.Errorf("%s: Allow %q", method, got)
		}
	}
	if head := b.send(http.MethodHead, "/authorize?"+authorizeParams(id, claude).Encode(), ""); head.status != http.StatusOK {
		t.Errorf("HEAD: %d", head.status)
	}
	if r.rows() != before {
		t.Error("a refused request stored something")
	}
}

func TestSubmittedTwice(t *testing.T) {
	r := newDoor(t)
	id := r.register(claude)
	p := r.browser(home).open(authorizeParams(id, claude))
	answers := make([]*page, 2)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i] = p.allow("password", ownerPassword, "remember", "yes") })
	}
	wg.Wait()
	one, two := answers[0].wantCode(claude), answers[1].wantCode(claude)
	if one == two {
		t.Error("both answers have the same code")
	}
	for _, code := range []string{one, two} {
		if got := r.redeem(id, code); got.status != http.StatusOK {
			t.Errorf("a code is refused: %s", got.body)
		}
	}
}

func TestClientRemovedWhileThePageWasOpen(t *testing.T) {
	r := newDoor(t)
	id := r.register(claude)
	b := r.browser(home)
	p := b.open(authorizeParams(id, claude))
	r.exec(`DELETE FROM oauth_clients WHERE id = ?`, id)
	p.allow("password", ownerPassword, "remember", "yes").wantPage(http.StatusBadRequest, "Remove the connector")
	if r.count(`SELECT count(*) FROM owner_sessions`) != 0 || b.cookie("owner") != "" {
		t.Error("the refused consent signed the browser in")
	}
}

func TestTroubleIsNoRefusal(t *testing.T) {
	r := newDoor(t)
	id := r.register(claude)
	p := r.browser(home).open(authorizeParams(id, claude))
	r.store.Close()
	got := p.allow("password", ownerPassword).wantPage(http.StatusServiceUnavailable, "in a few seconds")
	if got.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

func TestNoSecretInTheLog(t *testing.T) {
	r := newDoor(t)
	id := r.register(claude)
	b := r.browser(home)
	p := b.open(authorizeParams(id, claude, "state", "state-of-the-client"))
	p.allow("password", "nearly-"+ownerPassword)
	p.allow("password", "")
	code := p.allow("password", ownerPassword, "remember", "yes").wantCode(claude)
	b.open(authorizeParams(id, claude, "state", "state-of-the-client")).submit("decision", "deny")
	b.send(http.MethodPost, "/authorize", p.fields.Encode()+"&password="+ownerPassword+"x", "Sec-Fetch-Site", "cross-site")
	b.open(authorizeParams(id, claude, "state", "state-of-the-client", "code_challenge", ""))
	log := r.log.String()
	for name, secret := range map[string]string{"password": ownerPassword, "code": code, "state": "state-of-the-client", "form token": p.fields.Get("form_token"),
		"session": b.cookie("owner"), "form key": b.cookie("form"), "challenge": challengeOf(verifier)} {
		if secret == "" || strings.Contains(log, secret) {
			t.Errorf("the %s (%q) stands in the log:\n%s", name, secret, log)
		}
	}
	audit := fmt.Sprint(r.lastAudit("owner.login"), r.lastAudit("consent.allow"), r.lastAudit("consent.deny"))
	if strings.Contains(audit, ownerPassword) || strings.Contains(audit, code) {
		t.Errorf("a secret stands in the audit log: %s", audit)
	}
}
