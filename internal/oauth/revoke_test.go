package oauth

import "testing"

func TestRevokeEndsTheWholeGrant(t *testing.T) {
	for name, pick := range map[string]func(first, next reply) string{
		"access token":          func(_, next reply) string { return next.text("access_token") },
		"older access token":    func(first, _ reply) string { return first.text("access_token") },
		"refresh token":         func(_, next reply) string { return next.text("refresh_token") },
		"rotated refresh token": func(first, _ reply) string { return first.text("refresh_token") },
	} {
		for _, hint := range []string{"", "access_token", "refresh_token", "nonsense"} {
			t.Run(name+" "+hint, func(t *testing.T) {
				r := newRelay(t)
				id, first := r.login()
				next := r.refresh(id, first.text("refresh_token"))
				got := r.form("/revoke", "client_id", id, "token", pick(first, next), "token_type_hint", hint)
				if got.status != 200 || got.body != "" {
					t.Fatal(got.status, got.body)
				}
				for _, token := range []string{first.text("access_token"), next.text("access_token")} {
					if _, err := r.access(token); err != ErrInvalidToken {
						t.Fatal(err)
					}
				}
				r.wantRefused(r.refresh(id, next.text("refresh_token")), 400, "invalid_grant")
				if e := r.lastAudit("grant.revoke"); e.ClientID != id || e.Detail["reason"] != "asked" {
					t.Fatalf("%+v", e)
				}
			})
		}
	}
}

func TestRevokeRefuses(t *testing.T) {
	r := newRelay(t)
	id, got := r.login()
	other := r.register(claude)
	token := got.text("access_token")
	r.wantRefused(r.form("/revoke", "client_id", other, "token", token), 400, "unauthorized_client")
	r.wantRefused(r.form("/revoke", "client_id", other, "token", got.text("refresh_token")), 400, "unauthorized_client")
	r.wantRefused(r.form("/revoke", "client_id", "nobody", "token", token), 401, "invalid_client")
	r.wantRefused(r.form("/revoke", "token", token), 401, "invalid_client")
	r.wantRefused(r.form("/revoke", "client_id", id), 400, "invalid_request")
	if got := r.form("/revoke", "client_id", id, "token", "ar_at_unknown"); got.status != 200 {
		t.Fatalf("an unknown token: %d %s", got.status, got.body)
	}
	r.mustAccess(token)
}
