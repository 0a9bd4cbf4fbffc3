package oauth

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"agentrelay/internal/principal"
)

func TestWholeFlowOverRestarts(t *testing.T) {
	r := newRelay(t)
	id := r.register(claude)
	r.restart()
	to, err := r.consent(authorizeParams(id, claude))
	if err != nil {
		t.Fatal(err)
	}
	q := to.Query()
	if !strings.HasPrefix(to.String(), claude+"?") || q.Get("state") != "s1" || q.Get("iss") != testBase || q.Has("scope") || !strings.HasPrefix(q.Get("code"), "ar_code_") {
		t.Fatalf("redirect %s", to)
	}
	r.restart()
	got := r.redeem(id, q.Get("code"), "redirect_uri", claude, "resource", testBase+"/mcp")
	if got.status != http.StatusOK || got.header.Get("Cache-Control") != "no-store" || got.text("token_type") != "Bearer" ||
		got.json["expires_in"] != 3600.0 || got.text("scope") != ScopeAgents {
		t.Fatalf("%d %v %s", got.status, got.header, got.body)
	}
	if !strings.HasPrefix(got.text("access_token"), "ar_at_") || !strings.HasPrefix(got.text("refresh_token"), "ar_rt_") {
		t.Fatal(got.body)
	}
	r.restart()
	a := r.mustAccess(got.text("access_token"))
	if a.Principal.Owner != principal.SharedOwner || a.Principal.ClientID != id || a.Principal.ClientName != "Claude" ||
		a.Principal.Permissions.String() != principal.Full().String() || !a.ExpiresAt.Equal(r.clock.Now().Add(time.Hour)) || len(a.Scopes) != 1 {
		t.Fatalf("%+v", a)
	}
	r.restart()
	next := r.refresh(id, got.text("refresh_token"))
	if next.status != http.StatusOK || next.text("refresh_token") == got.text("refresh_token") || next.text("access_token") == got.text("access_token") {
		t.Fatalf("%d %s", next.status, next.body)
	}
	r.restart()
	r.mustAccess(got.text("access_token"))
	r.mustAccess(next.text("access_token"))
	if e := r.lastAudit("consent.allow"); e.Subject != id || e.ClientID != principal.OwnerClientID {
		t.Fatalf("%+v", e)
	}
}

func TestOwnerOfEachClientWhenNotShared(t *testing.T) {
	r := newRelay(t, func(o *Options) { o.SharedOwner = false })
	id, got := r.login()
	if a := r.mustAccess(got.text("access_token")); a.Principal.Owner != "local-owner:"+id {
		t.Fatal(a.Principal.Owner)
	}
}

func TestCodeRedirectURI(t *testing.T) {
	for name, c := range map[string]struct {
		redirect string
		status   int
	}{
		"left out": {"", 200},
		"the same": {claude, 200},
		"another":  {"https://claude.com/api/mcp/auth_callback", 400},
		"slash":    {claude + "/", 400},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRelay(t)
			id := r.register(claude, "https://claude.com/api/mcp/auth_callback")
			if got := r.redeem(id, r.code(id, claude), "redirect_uri", c.redirect); got.status != c.status {
				t.Fatalf("%d %s", got.status, got.body)
			}
		})
	}
}

func TestCodeIsSingleUseAndItsReuseRevokesTheGrant(t *testing.T) {
	r := newRelay(t)
	id := r.register(claude)
	code := r.code(id, claude)
	first := r.redeem(id, code)
	r.restart()
	r.wantRefused(r.redeem(id, code), 400, "invalid_grant")
	if _, err := r.access(first.text("access_token")); err != ErrInvalidToken {
		t.Fatalf("the access token outlived the reuse of its code: %v", err)
	}
	r.wantRefused(r.refresh(id, first.text("refresh_token")), 400, "invalid_grant")
	if e := r.lastAudit("grant.revoke"); e.ClientID != id || e.Detail["reason"] != "reuse" {
		t.Fatalf("%+v", e)
	}
}

func TestStrangersCannotSpoilACode(t *testing.T) {
	r := newRelay(t)
	id, other := r.register(claude), r.register(claude)
	code := r.code(id, claude)
	r.wantRefused(r.redeem(other, code), 400, "invalid_grant")
	r.wantRefused(r.form("/token", "grant_type", "authorization_code", "client_id", id, "code", code, "code_verifier", strings.Repeat("x", 43)), 400, "invalid_grant")
	first := r.redeem(id, code)
	if first.status != 200 {
		t.Fatalf("%d %s", first.status, first.body)
	}
	r.wantRefused(r.redeem(other, code), 400, "invalid_grant")
	r.mustAccess(first.text("access_token"))
}

func TestCodeExpires(t *testing.T) {
	r := newRelay(t)
	id := r.register(claude)
	code := r.code(id, claude)
	r.clock.advance(codeLife)
	got := r.redeem(id, code)
	r.wantRefused(got, 400, "invalid_grant")
	if !strings.Contains(got.text("error_description"), "expired") {
		t.Fatal(got.body)
	}
	code = r.code(id, claude)
	r.clock.advance(codeLife - time.Millisecond)
	if got := r.redeem(id, code); got.status != 200 {
		t.Fatal(got.body)
	}
}

func TestParallelRedemptionsGiveOneGrant(t *testing.T) {
	r := newRelay(t)
	id := r.register(claude)
	code := r.code(id, claude)
	var wg sync.WaitGroup
	replies := make([]reply, 16)
	for i := range replies {
		wg.Go(func() { replies[i] = r.redeem(id, code) })
	}
	wg.Wait()
	won := 0
	for _, got := range replies {
		if got.status == 200 {
			won++
			continue
		}
		r.wantRefused(got, 400, "invalid_grant")
	}
	if won != 1 {
		t.Fatalf("%d of 16 redemptions won", won)
	}
	if n := r.count(`SELECT count(*) FROM oauth_access_tokens`); n != 1 {
		t.Fatalf("%d access tokens", n)
	}
}

func TestMalformedTokenRequests(t *testing.T) {
	r := newRelay(t)
	id, got := r.login()
	code := r.code(id, claude)
	rt := got.text("refresh_token")
	secret := r.addClient(true)
	const formType = "application/x-www-form-urlencoded"
	redeem := func(pairs ...string) string {
		v := params("grant_type", "authorization_code", "client_id", id, "code", code, "code_verifier", verifier)
		for i := 0; i+1 < len(pairs); i += 2 {
			if v.Del(pairs[i]); pairs[i+1] != "" {
				v.Set(pairs[i], pairs[i+1])
			}
		}
		return v.Encode()
	}
	for name, c := range map[string]struct {
		contentType, body, basic string
		status                   int
		code                     string
	}{
		"empty body":             {formType, "", "", 401, "invalid_client"},
		"not a form":             {formType, "%zz", "", 400, "invalid_request"},
		"no grant type":          {formType, redeem("grant_type", ""), "", 400, "invalid_request"},
		"unknown grant type":     {formType, redeem("grant_type", "password"), "", 400, "unsupported_grant_type"},
		"two grant types":        {formType, redeem("grant_type", "authorization_code refresh_token"), "", 400, "unsupported_grant_type"},
		"no code":                {formType, redeem("code", ""), "", 400, "invalid_request"},
		"unknown code":           {formType, redeem("code", "ar_code_nope"), "", 400, "invalid_grant"},
		"no verifier":            {formType, redeem("code_verifier", ""), "", 400, "invalid_request"},
		"short verifier":         {formType, redeem("code_verifier", "short"), "", 400, "invalid_grant"},
		"long verifier":          {formType, redeem("code_verifier", strings.Repeat("a", 129)), "", 400, "invalid_grant"},
		"verifier with a space":  {formType, redeem("code_verifier", strings.Repeat("a", 43)+" "), "", 400, "invalid_grant"},
		"wrong verifier":         {formType, redeem("code_verifier", strings.Repeat("a", 43)), "", 400, "invalid_grant"},
		"no client":              {formType, redeem("client_id", ""), "", 401, "invalid_client"},
		"unknown client":         {formType, redeem("client_id", "nobody"), "", 401, "invalid_client"},
		"secret for a public":    {formType, redeem("client_secret", "guess"), "", 401, "invalid_client"},
		"assertion":              {formType, redeem("client_assertion", "a.b.c"), "", 401, "invalid_client"},
		"repeated code":          {formType, redeem() + "&code=again", "", 400, "invalid_request"},
		"repeated client":        {formType, redeem() + "&client_id=" + id, "", 400, "invalid_request"},
		"foreign resource":       {formType, redeem("resource", "https://other.test/mcp"), "", 400, "invalid_target"},
		"second resource":        {formType, redeem("resource", testBase) + "&resource=https://other.test", "", 400, "invalid_target"},
		"multipart":              {"multipart/form-data; boundary=x", "--x--", "", 400, "invalid_request"},
		"unreadable type":        {";", redeem(), "", 400, "invalid_request"},
		"json list":              {"application/json", `["code"]`, "", 400, "invalid_request"},
		"json number":            {"application/json", `{"grant_type":1}`, "", 400, "invalid_request"},
		"json nested":            {"application/json", `{"grant_type":{"a":"b"}}`, "", 400, "invalid_request"},
		"json repeated":          {"application/json", `{"grant_type":"refresh_token","grant_type":"refresh_token"}`, "", 400, "invalid_request"},
		"json cut":               {"application/json", `{"grant_type":"refresh_token"`, "", 400, "invalid_request"},
		"json twice":             {"application/json", `{}{}`, "", 400, "invalid_request"},
		"no refresh token":       {formType, params("grant_type", "refresh_token", "client_id", id).Encode(), "", 400, "invalid_request"},
		"unknown refresh token":  {formType, params("grant_type", "refresh_token", "client_id", id, "refresh_token", "ar_rt_x").Encode(), "", 400, "invalid_grant"},
		"access as refresh":      {formType, params("grant_type", "refresh_token", "client_id", id, "refresh_token", got.text("access_token")).Encode(), "", 400, "invalid_grant"},
		"someone's refresh":      {formType, params("grant_type", "refresh_token", "client_id", secret.ID, "client_secret", secret.Secret, "refresh_token", rt).Encode(), "", 400, "invalid_grant"},
		"wrong secret":           {formType, params("grant_type", "refresh_token", "client_id", secret.ID, "client_secret", "guess", "refresh_token", rt).Encode(), "", 401, "invalid_client"},
		"no secret":              {formType, params("grant_type", "refresh_token", "client_id", secret.ID, "refresh_token", rt).Encode(), "", 401, "invalid_client"},
		"wrong basic":            {formType, params("grant_type", "refresh_token", "refresh_token", rt).Encode(), secret.ID + ":guess", 401, "invalid_client"},
		"basic against body":     {formType, params("grant_type", "refresh_token", "refresh_token", rt, "client_id", id).Encode(), secret.ID + ":x", 400, "invalid_request"},
		"basic not form-encoded": {formType, params("grant_type", "refresh_token", "refresh_token", rt).Encode(), "%zz:x", 401, "invalid_client"},
	} {
		t.Run(name, func(t *testing.T) {
			before := r.rows()
			req := httptest.NewRequest("POST", "/token", strings.NewReader(c.body))
			req.Header.Set("Content-Type", c.contentType)
			if id, secret, ok := strings.Cut(c.basic, ":"); ok {
				req.SetBasicAuth(id, secret)
			}
			got := r.do(req)
			r.TB = t
			r.wantRefused(got, c.status, c.code)
			if r.rows() != before {
				t.Error("a refused request stored something")
			}
			if challenge := got.header.Get("WWW-Authenticate"); (challenge != "") != (c.basic != "" && c.status == 401) {
				t.Errorf("WWW-Authenticate: %q", challenge)
			}
		})
	}
	r.TB = t
	if got := r.redeem(id, code); got.status != 200 {
		t.Fatalf("the refused requests used the code up: %s", got.body)
	}
	if got := r.refresh(id, rt); got.status != 200 {
		t.Fatalf("the refused requests used the refresh token up: %s", got.body)
	}
}

func TestTokenEndpointMethodsAndSize(t *testing.T) {
	r := newRelay(t)
	for _, path := range []string{"/token", "/revoke", "/register"} {
		got := r.do(httptest.NewRequest("GET", path, nil))
		r.wantRefused(got, 405, "invalid_request")
		if got.header.Get("Allow") != "POST" {
			t.Error(path, got.header)
		}
	}
	r.wantRefused(r.post("/token", "", "a="+strings.Repeat("x", maxForm)), 413, "invalid_request")
	r.wantRefused(r.post("/register", "", strings.Repeat("x", 64<<10+1)), 413, "invalid_client_metadata")
	if n := r.rows(); n != 0 {
		t.Fatalf("%d rows", n)
	}
}

func TestBodiesThatClientsSend(t *testing.T) {
	r := newRelay(t)
	id := r.register(claude)
	if got := r.post("/token", "application/json; charset=utf-8", `{"grant_type":"authorization_code","client_id":"`+id+`","code":"`+r.code(id, claude)+
		`","code_verifier":"`+verifier+`","client_secret":"","resource":null}`); got.status != 200 {
		t.Fatal(got.body)
	}
	v := params("grant_type", "authorization_code", "client_id", id, "code", r.code(id, claude), "code_verifier", verifier, "client_secret", "", "scope", "x", "resource", testBase, "resource", testBase+"/mcp")
	if got := r.post("/token", "application/x-www-form-urlencoded; charset", v.Encode()); got.status != 200 {
		t.Fatal(got.body)
	}
	v.Set("code", r.code(id, claude))
	v.Del("client_id")
	req := httptest.NewRequest("POST", "/token", strings.NewReader(v.Encode()))
	req.SetBasicAuth(id, "")
	if got := r.do(req); got.status != 200 {
		t.Fatal(got.body)
	}
}

func TestForgottenClientIsToldToRegister(t *testing.T) {
	r := newRelay(t)
	id, got := r.login()
	r.exec(`DELETE FROM oauth_clients`)
	r.wantRefused(r.refresh(id, got.text("refresh_token")), 401, "invalid_client")
	if _, err := r.consent(authorizeParams(id, claude)); err == nil {
		t.Fatal("a forgotten client was authorised")
	}
}

func TestStoreTroubleIsNotARefusal(t *testing.T) {
	r := newRelay(t)
	id, got := r.login()
	r.store.Close()
	reply := r.refresh(id, got.text("refresh_token"))
	r.wantRefused(reply, 503, "temporarily_unavailable")
	if reply.header.Get("Retry-After") == "" {
		t.Fatal(reply.header)
	}
	if _, err := r.access(got.text("access_token")); err == nil || err == ErrInvalidToken {
		t.Fatalf("trouble of the store reads as %v", err)
	}
}
