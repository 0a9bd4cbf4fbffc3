package oauth

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRegistrationAnswer(t *testing.T) {
	r := newRelay(t)
	got := r.post("/register", "application/json", `{"client_name":"Cursor","redirect_uris":["http://localhost:8787/callback","https://www.cursor.com/agents/mcp/oauth/callback","cursor://anysphere.cursor-mcp/oauth/callback"],
		"token_endpoint_auth_method":"client_secret_basic","scope":"mcp","application_type":"web","jwks":{"keys":[]}}`)
	if got.status != 201 || got.header.Get("Cache-Control") != "no-store" {
		t.Fatal(got.status, got.body)
	}
	if got.text("client_id") == "" || got.json["client_id_issued_at"] != float64(r.clock.Now().Unix()) || got.text("token_endpoint_auth_method") != "none" || got.text("scope") != ScopeAgents ||
		got.json["client_secret"] != nil || len(got.json["redirect_uris"].([]any)) != 3 || len(got.json["grant_types"].([]any)) != 2 {
		t.Fatal(got.body)
	}
	if n := r.count(`SELECT count(*) FROM audit_log`); n != 0 {
		t.Fatalf("a stranger wrote %d lines into the audit log", n)
	}
	r.code(got.text("client_id"), "http://localhost:8787/callback")
	r.code(got.text("client_id"), "http://localhost:8787/callback")
	if e := r.lastAudit("client.register"); e.Subject != got.text("client_id") || e.Detail["kind"] != "dynamic" {
		t.Fatalf("%+v", e)
	}
	if n := r.count(`SELECT count(*) FROM audit_log WHERE action = 'client.register'`); n != 1 {
		t.Fatalf("%d lines for one registration", n)
	}
}

func TestMalformedRegistrations(t *testing.T) {
	r := newRelay(t)
	many := make([]string, 1000)
	for i := range many {
		many[i] = fmt.Sprintf("https://claude.ai/%d", i)
	}
	thousand, _ := json.Marshal(many)
	for name, c := range map[string]struct{ body, code string }{
		"empty":           {``, "invalid_client_metadata"},
		"list":            {`[]`, "invalid_client_metadata"},
		"no redirects":    {`{}`, "invalid_redirect_uri"},
		"empty redirects": {`{"redirect_uris":[]}`, "invalid_redirect_uri"},
		"thousand":        {`{"redirect_uris":` + string(thousand) + `}`, "invalid_redirect_uri"},
		"script":          {`{"redirect_uris":["javascript:alert(1)"]}`, "invalid_redirect_uri"},
		"data":            {`{"redirect_uris":["data:text/html,x"]}`, "invalid_redirect_uri"},
		"file":            {`{"redirect_uris":["file:///etc/passwd"]}`, "invalid_redirect_uri"},
		"plain http":      {`{"redirect_uris":["http://example.com/cb"]}`, "invalid_redirect_uri"},
		"fragment":        {`{"redirect_uris":["https://claude.ai/#x"]}`, "invalid_redirect_uri"},
		"one bad":         {`{"redirect_uris":["` + claude + `","javascript:x"]}`, "invalid_redirect_uri"},
		"long name":       {`{"redirect_uris":["` + claude + `"],"client_name":"` + strings.Repeat("x", 60<<10) + `"}`, "invalid_client_metadata"},
		"name no string":  {`{"redirect_uris":["` + claude + `"],"client_name":7}`, "invalid_client_metadata"},
		"implicit only":   {`{"redirect_uris":["` + claude + `"],"grant_types":["implicit"]}`, "invalid_client_metadata"},
		"token only":      {`{"redirect_uris":["` + claude + `"],"response_types":["token"]}`, "invalid_client_metadata"},
	} {
		r.wantRefused(r.post("/register", "application/json", c.body), 400, c.code)
		if n := r.rows(); n != 0 {
			t.Fatalf("%s: %d rows stored", name, n)
		}
	}
}

func TestRegistrationsAreNeverMerged(t *testing.T) {
	r := newRelay(t)
	a, b := r.register(claude), r.register(claude)
	if a == b {
		t.Fatal("two registrations share an id")
	}
	for _, id := range []string{a, b} {
		if got := r.redeem(id, r.code(id, claude)); got.status != 200 {
			t.Fatal(got.body)
		}
	}
}

func TestUnlistedRedirectIsKeptButNotUsed(t *testing.T) {
	r := newRelay(t)
	const unlisted = "https://chat.home.test/callback"
	id := r.register(unlisted, claude)
	_, err := r.consent(authorizeParams(id, unlisted))
	page, ok := err.(*pageError)
	if !ok || page.status != 400 || page.code != "invalid_redirect_uri" || !strings.Contains(page.hint, unlisted) || !strings.Contains(page.hint, "oauth.redirects") {
		t.Fatalf("%#v", err)
	}
	if _, err := r.consent(authorizeParams(id, claude)); err != nil {
		t.Fatal(err)
	}
	r.register(unlisted)
	if !strings.Contains(r.log.String(), unlisted) || !strings.Contains(r.log.String(), "oauth.redirects") {
		t.Fatal("the log does not say what to do about an unlisted redirect")
	}
	open := newRelay(t, func(o *Options) { o.Redirects = []string{unlisted} })
	id = open.register(unlisted)
	if _, err := open.consent(authorizeParams(id, unlisted)); err != nil {
		t.Fatal(err)
	}
}

func TestRegistrationsAreBounded(t *testing.T) {
	r := newRelay(t)
	authorised, got := r.login()
	added := r.addClient(false)
	oldest := r.register(claude)
	for range maxWaiting - 1 {
		r.register(claude)
	}
	if n := r.count(`SELECT count(*) FROM oauth_clients WHERE id = ?`, oldest); n != 1 {
		t.Fatal("evicted below the cap")
	}
	newest := r.register(claude)
	if n := r.count(`SELECT count(*) FROM oauth_clients`); n != maxWaiting+2 {
		t.Fatalf("%d clients", n)
	}
	if n := r.count(`SELECT count(*) FROM oauth_clients WHERE id IN (?, ?, ?)`, authorised, added.ID, newest); n != 3 {
		t.Fatal("the wrong clients were evicted")
	}
	if n := r.count(`SELECT count(*) FROM oauth_clients WHERE id = ?`, oldest); n != 0 {
		t.Fatal("the oldest registration was not evicted")
	}
	if got := r.refresh(authorised, got.text("refresh_token")); got.status != 200 {
		t.Fatal(got.body)
	}
}

func TestSweepOfClients(t *testing.T) {
	r := newRelay(t)
	waiting := r.register(claude)
	idle, _ := r.login()
	busy, got := r.login()
	added := r.addClient(true)
	r.sweep()
	ids := func() (ids []string) {
		for _, c := range r.list() {
			ids = append(ids, c.ID)
		}
		return ids
	}
	if len(ids()) != 4 {
		t.Fatal(ids())
	}
	r.clock.advance(waitingLife + time.Second)
	r.sweep()
	if slices.Contains(ids(), waiting) || len(ids()) != 3 {
		t.Fatal(ids())
	}
	token := got.text("refresh_token")
	for range 4 {
		r.clock.advance(25 * 24 * time.Hour)
		r.sweep()
		next := r.refresh(busy, token)
		if next.status != 200 {
			t.Fatal(next.body)
		}
		token = next.text("refresh_token")
	}
	r.sweep()
	if left := ids(); slices.Contains(left, idle) || !slices.Contains(left, busy) || !slices.Contains(left, added.ID) {
		t.Fatal(left)
	}
	if e := r.lastAudit("client.expire"); e.Subject != idle {
		t.Fatalf("%+v", e)
	}
}
