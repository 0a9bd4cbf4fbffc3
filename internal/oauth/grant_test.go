package oauth

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"agentrelay/internal/oauth/cimd"
	"agentrelay/internal/oauth/registration"
	"agentrelay/internal/store"
)

func TestAuthorizationRefusals(t *testing.T) {
	r := newRelay(t)
	id := r.register(claude)
	two := r.register(claude, "https://claude.com/api/mcp/auth_callback")
	repeat := func(name, value string) url.Values {
		v := authorizeParams(id, claude)
		v.Add(name, value)
		return v
	}
	for name, c := range map[string]struct {
		params url.Values
		page   bool
		code   string
	}{
		"nothing":               {url.Values{}, true, "invalid_request"},
		"unknown client":        {authorizeParams("nobody", claude), true, "invalid_client"},
		"repeated client":       {repeat("client_id", id), true, "invalid_request"},
		"repeated redirect":     {repeat("redirect_uri", claude), true, "invalid_request"},
		"unregistered redirect": {authorizeParams(id, "https://claude.com/api/mcp/auth_callback"), true, "invalid_redirect_uri"},
		"redirect with a slash": {authorizeParams(id, claude+"/"), true, "invalid_redirect_uri"},
		"redirect with a query": {authorizeParams(id, claude+"?x=1"), true, "invalid_redirect_uri"},
		"no redirect of two":    {authorizeParams(two, claude, "redirect_uri", ""), true, "invalid_request"},
		"huge state":            {authorizeParams(id, claude, "state", strings.Repeat("s", maxParameter+1)), true, "invalid_request"},
		"no response type":      {authorizeParams(id, claude, "response_type", ""), false, "invalid_request"},
		"token response":        {authorizeParams(id, claude, "response_type", "token"), false, "unsupported_response_type"},
		"hybrid response":       {authorizeParams(id, claude, "response_type", "code token"), false, "unsupported_response_type"},
		"fragment mode":         {authorizeParams(id, claude, "response_mode", "fragment"), false, "invalid_request"},
		"request object":        {authorizeParams(id, claude, "request", "a.b.c"), false, "request_not_supported"},
		"request uri":           {authorizeParams(id, claude, "request_uri", "https://x.test"), false, "request_uri_not_supported"},
		"no challenge":          {authorizeParams(id, claude, "code_challenge", ""), false, "invalid_request"},
		"no method":             {authorizeParams(id, claude, "code_challenge_method", ""), false, "invalid_request"},
		"plain method":          {authorizeParams(id, claude, "code_challenge_method", "plain"), false, "invalid_request"},
		"short challenge":       {authorizeParams(id, claude, "code_challenge", strings.Repeat("a", 42)), false, "invalid_request"},
		"long challenge":        {authorizeParams(id, claude, "code_challenge", strings.Repeat("a", 129)), false, "invalid_request"},
		"padded challenge":      {authorizeParams(id, claude, "code_challenge", strings.Repeat("a", 43)+"="), false, "invalid_request"},
		"repeated challenge":    {repeat("code_challenge", challengeOf(verifier)), false, "invalid_request"},
		"repeated state":        {repeat("state", "s2"), false, "invalid_request"},
		"repeated extension":    {func() url.Values { v := repeat("x", "1"); v.Add("x", "2"); return v }(), false, "invalid_request"},
		"foreign resource":      {authorizeParams(id, claude, "resource", "https://other.test/mcp"), false, "invalid_target"},
	} {
		t.Run(name, func(t *testing.T) {
			before := r.rows()
			_, err := r.consent(c.params)
			var page *pageError
			var redirected *redirectError
			switch {
			case c.page && errors.As(err, &page):
				if page.code != c.code || page.message == "" || page.hint == "" || page.status != 400 {
					t.Fatalf("%+v", page)
				}
			case !c.page && errors.As(err, &redirected):
				to, err := url.Parse(redirected.location)
				if err != nil {
					t.Fatal(err)
				}
				q := to.Query()
				wantState := "s1"
				if name == "repeated state" {
					wantState = ""
				}
				if !strings.HasPrefix(redirected.location, claude+"?") || q.Get("error") != c.code || q.Get("error_description") == "" || q.Get("iss") != testBase || q.Get("state") != wantState || q.Has("code") {
					t.Fatal(redirected.location)
				}
			default:
				t.Fatalf("%T %v", err, err)
			}
			if r.rows() != before {
				t.Error("a refused request stored something")
			}
		})
	}
}

func TestResourceSpellings(t *testing.T) {
	r := newRelay(t)
	id := r.register(claude)
	for _, c := range []struct {
		authorize, token string
		code             string // "" is success
	}{
		{"", "", ""},
		{testBase + "/mcp", testBase + "/mcp", ""},
		{testBase + "/mcp/", testBase + "/mcp", ""},
		{testBase, testBase + "/", ""},
		{"https://GW.test/mcp", "HTTPS://gw.test:443/mcp", ""},
		{testBase + ":443/mcp", "", ""},
		{"", testBase + "/mcp/", ""},
		{testBase + "/mcp", testBase + "/mcpx", "invalid_target"},
		{testBase + "/mcp", "https://gw.test.evil.test/mcp", "invalid_target"},
		{testBase + "/mcp", "http://gw.test/mcp", "invalid_target"},
		{testBase + "/mcp", testBase + "/mcp?x=1", "invalid_target"},
	} {
		got := r.redeem(id, r.code(id, claude, "resource", c.authorize), "resource", c.token)
		if got.text("error") != c.code {
			t.Errorf("%q then %q: %d %s", c.authorize, c.token, got.status, got.body)
		}
	}
	if n := r.count(`SELECT count(DISTINCT resource) FROM oauth_grants`); n != 1 {
		t.Errorf("%d resources are bound to tokens", n)
	}
}

func TestScopesAreNarrowed(t *testing.T) {
	r := newRelay(t)
	id := r.register(claude)
	for asked, want := range map[string]string{
		"":                                     "local-agents",
		"local-agents":                         "local-agents",
		"claudeai":                             "local-agents",
		"openid profile email":                 "local-agents",
		"offline_access":                       "local-agents offline_access",
		"local-agents offline_access openid":   "local-agents offline_access",
		"offline_access  local-agents":         "local-agents offline_access",
		"LOCAL-AGENTS local-agents:everything": "local-agents",
	} {
		got := r.redeem(id, r.code(id, claude, "scope", asked))
		if got.text("scope") != want || got.text("refresh_token") == "" {
			t.Errorf("%q: %s", asked, got.body)
		}
		if next := r.refresh(id, got.text("refresh_token"), "scope", "local-agents admin"); next.text("scope") != want {
			t.Errorf("%q refreshed: %s", asked, next.body)
		}
	}
}

func TestLoopbackRedirectsOnAnyPort(t *testing.T) {
	r := newRelay(t)
	id := r.register("http://localhost/callback", "http://127.0.0.1:33418/")
	for uri, ok := range map[string]bool{
		"http://localhost:53682/callback":          true,
		"http://localhost/callback":                true,
		"http://127.0.0.1:1/":                      true,
		"http://127.0.0.1:1/callback":              false,
		"http://localhost:1/":                      false,
		"http://localhost.evil.test/callback":      false,
		"http://localhost:80@evil.test/callback":   false,
		"http://127.0.0.1.nip.io/":                 false,
		"http://[::1]:1/callback":                  false,
		"https://localhost:53682/callback":         false,
		"http://localhost:53682/callback/../other": false,
	} {
		to, err := r.consent(authorizeParams(id, uri))
		if (err == nil) != ok {
			t.Errorf("%s: %v", uri, err)
		}
		if err == nil && !strings.HasPrefix(to.String(), uri+"?") {
			t.Errorf("%s became %s", uri, to)
		}
		if err == nil {
			if got := r.redeem(id, to.Query().Get("code"), "redirect_uri", uri); got.status != 200 {
				t.Errorf("%s: %s", uri, got.body)
			}
		}
	}
}

func TestRedirectKeepsTheClientsOwnQueryAndOptionalState(t *testing.T) {
	r := newRelay(t, func(o *Options) { o.Redirects = []string{"https://app.test/cb?tenant=a%20b"} })
	id := r.register("https://app.test/cb?tenant=a%20b")
	to, err := r.consent(authorizeParams(id, "", "redirect_uri", "", "state", ""))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(to.String(), "https://app.test/cb?tenant=a%20b&code=ar_code_") || to.Query().Has("state") {
		t.Fatal(to)
	}
	cursor := r.register("cursor://anysphere.cursor-mcp/oauth/callback")
	to, err = r.consent(authorizeParams(cursor, "cursor://anysphere.cursor-mcp/oauth/callback", "state", "a&b=c d"))
	if err != nil || !strings.HasPrefix(to.String(), "cursor://anysphere.cursor-mcp/oauth/callback?code=") || to.Query().Get("state") != "a&b=c d" {
		t.Fatal(to, err)
	}
}

func TestConsentOnAPageThatOutlivedItsClient(t *testing.T) {
	r := newRelay(t)
	id := r.register(claude)
	a, err := r.server.checkAuthorization(context.Background(), authorizeParams(id, claude))
	if err != nil {
		t.Fatal(err)
	}
	r.clock.advance(2 * time.Hour)
	r.sweep()
	err = store.Exec(context.Background(), r.store, func(tx *store.Tx) error {
		_, err := r.server.issueCode(tx, a, a.permissions)
		return err
	})
	var page *pageError
	if !errors.As(err, &page) || page.code != "invalid_client" {
		t.Fatal(err)
	}
	if n := r.count(`SELECT count(*) FROM oauth_grants`); n != 0 {
		t.Fatal("a grant without a client")
	}
}

func TestDenyTellsTheClientAndTheAuditLog(t *testing.T) {
	r := newRelay(t)
	id := r.register(claude)
	a, err := r.server.checkAuthorization(context.Background(), authorizeParams(id, claude))
	if err != nil {
		t.Fatal(err)
	}
	to, err := store.Write(context.Background(), r.store, func(tx *store.Tx) (string, error) { return r.server.denyConsent(tx, a) })
	if err != nil || !strings.Contains(to, "error=access_denied") || !strings.Contains(to, "state=s1") || !strings.Contains(to, "iss=") {
		t.Fatal(to, err)
	}
	if e := r.lastAudit("consent.deny"); e.Subject != id || e.Outcome != "access_denied" {
		t.Fatalf("%+v", e)
	}
}

// TestOwnAddressIsNoClient: a request that names one of our own addresses must
// not make the gateway ask itself, and so on from there.
func TestOwnAddressIsNoClient(t *testing.T) {
	r := newRelay(t)
	base, err := url.Parse(testBase)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{base.Host, strings.ToUpper(base.Host), base.Host + ":443", base.Host + ".", base.Host + ".:443"} {
		_, err := r.consent(authorizeParams("https://"+host+"/authorize?client_id=x", claude))
		var page *pageError
		if !errors.As(err, &page) || page.code != "invalid_client" {
			t.Errorf("%s: %v", host, err)
		}
	}
	if r.docs.fetches != 0 {
		t.Errorf("%d fetches", r.docs.fetches)
	}
	if _, err := r.consent(authorizeParams("https://"+base.Host+":8443/client.json", claude)); err == nil || r.docs.fetches != 1 {
		t.Errorf("another server of the host was not asked: %v", err)
	}
}

func TestMetadataDocumentClients(t *testing.T) {
	r := newRelay(t)
	const id = "https://claude.ai/oauth/mcp-oauth-client-metadata"
	document := func(redirects ...string) cimd.Document {
		return cimd.Document{Metadata: registration.Metadata{ClientName: "Claude", RedirectURIs: redirects,
			GrantTypes: []string{"authorization_code", "refresh_token"}}, FreshUntil: r.clock.Now().Add(time.Hour)}
	}
	wantPage := func(code string) {
		t.Helper()
		_, err := r.consent(authorizeParams(id, claude))
		var page *pageError
		if !errors.As(err, &page) || page.code != code || page.hint == "" || code == "invalid_client" && !strings.Contains(page.message, "There is no document.") {
			t.Fatalf("%v", err)
		}
	}
	wantPage("invalid_client") // it can't be fetched, and the failure is not kept
	wantPage("invalid_client")
	if r.docs.fetches != 2 || r.rows() != 0 {
		t.Fatalf("%d fetches, %d rows", r.docs.fetches, r.rows())
	}
	r.docs.docs[id] = document("https://not.listed.test/cb", claude)
	got := r.redeem(id, r.code(id, claude))
	if got.status != 200 {
		t.Fatal(got.body)
	}
	if a := r.mustAccess(got.text("access_token")); a.Principal.ClientID != id || a.Principal.ClientName != "Claude" {
		t.Fatalf("%+v", a)
	}
	if _, err := r.consent(authorizeParams(id, "https://not.listed.test/cb")); err == nil {
		t.Fatal("a redirect of a document went round the owner's list")
	}
	r.restart()
	r.code(id, claude)
	if r.docs.fetches != 3 {
		t.Fatalf("%d fetches of a fresh document", r.docs.fetches)
	}
	r.clock.advance(time.Hour)
	r.docs.err = &cimd.Error{Reason: "It is down.", Unavailable: true}
	r.code(id, claude) // authorised before: the old copy is good enough
	if r.docs.fetches != 4 {
		t.Fatalf("%d fetches", r.docs.fetches)
	}
	r.docs.err = &cimd.Error{Reason: "There is no document."}
	wantPage("invalid_client")
	r.docs.err = nil
	r.docs.docs[id] = document("https://claude.com/api/mcp/auth_callback")
	wantPage("invalid_redirect_uri")
	if info := r.list()[0]; info.Kind != Metadata || info.ID != id || info.RedirectHosts[0] != "claude.com" {
		t.Fatalf("%+v", info)
	}
	if got := r.refresh(id, got.text("refresh_token")); got.status != 200 {
		t.Fatal(got.body)
	}
}
