package oauth

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"agentrelay/internal/principal"
)

const trialRedirect = "http://127.0.0.1/doctor"

// registerAs registers a client under a name.
func (r *relay) registerAs(name string) string {
	r.Helper()
	body, _ := json.Marshal(map[string]any{"client_name": name, "redirect_uris": []string{trialRedirect}})
	got := r.post("/register", "application/json", string(body))
	if got.status != http.StatusCreated {
		r.Fatalf("register: %d %s", got.status, got.body)
	}
	return got.text("client_id")
}

func TestTrialGoesTheWayOfAClientAndLeavesNothing(t *testing.T) {
	r := newRelay(t)
	id := r.registerAs(TrialName)
	to, err := r.server.ConsentTrial(t.Context(), authorizeParams(id, trialRedirect))
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(to)
	if err != nil || !strings.HasPrefix(to, trialRedirect+"?") || u.Query().Get("iss") != testBase || u.Query().Get("state") != "s1" {
		t.Fatalf("the redirect is %s, %v", to, err)
	}
	got := r.redeem(id, u.Query().Get("code"))
	if got.status != http.StatusOK {
		t.Fatalf("token: %d %s", got.status, got.body)
	}
	access := r.mustAccess(got.text("access_token"))
	for _, p := range principal.All() {
		if access.Principal.Permissions.Has(p) {
			t.Errorf("the trial may use %s", p)
		}
	}
	if e := r.lastAudit("consent.allow"); e.Detail["doctor"] != true || e.Subject != id {
		t.Errorf("the audit log does not say that it was the doctor: %+v", e)
	}

	if n, err := r.server.EndTrials(t.Context(), id); err != nil || n != 1 {
		t.Fatalf("ended %d, %v", n, err)
	}
	if _, err := r.access(got.text("access_token")); !errors.Is(err, ErrInvalidToken) {
		t.Errorf("the token still works: %v", err)
	}
	if n := r.count(`SELECT (SELECT count(*) FROM oauth_clients) + (SELECT count(*) FROM oauth_grants) + (SELECT count(*) FROM oauth_access_tokens) + (SELECT count(*) FROM oauth_refresh_tokens)`); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	if e := r.lastAudit("doctor.end"); e.Subject != id || e.ClientID != principal.OwnerClientID {
		t.Errorf("the end is not recorded as the owner's: %+v", e)
	}
}

func TestTrialConsentIsForTheDoctorAlone(t *testing.T) {
	r := newRelay(t)
	for name, ask := range map[string]func() url.Values{
		"another client":     func() url.Values { return authorizeParams(r.registerAs("Claude"), trialRedirect) },
		"an unknown client":  func() url.Values { return authorizeParams("nobody", trialRedirect) },
		"an address not its": func() url.Values { return authorizeParams(r.registerAs(TrialName), "https://evil.example/cb") },
		"a request that's bad": func() url.Values {
			return authorizeParams(r.registerAs(TrialName), trialRedirect, "code_challenge", "")
		},
		"one that has consent": func() url.Values {
			v := authorizeParams(r.registerAs(TrialName), trialRedirect)
			if _, err := r.consent(v); err != nil {
				t.Fatal(err)
			}
			return v
		},
		"one that is old": func() url.Values {
			v := authorizeParams(r.registerAs(TrialName), trialRedirect)
			r.clock.advance(trialLife + time.Second)
			return v
		},
	} {
		grants := func() int { return r.count(`SELECT count(*) FROM oauth_grants`) }
		v := ask()
		before := grants()
		if to, err := r.server.ConsentTrial(t.Context(), v); !errors.Is(err, NoTrial) || to != "" || grants() != before {
			t.Errorf("%s: %q, %v", name, to, err)
		}
	}
}

// TestEndOfTrialsTakesOnlyTrials: what an owner has allowed something stays,
// whatever it calls itself, and so does the client of a doctor that runs now.
func TestEndOfTrialsTakesOnlyTrials(t *testing.T) {
	r := newRelay(t)
	left := r.registerAs(TrialName)
	if _, err := r.server.ConsentTrial(t.Context(), authorizeParams(left, trialRedirect)); err != nil {
		t.Fatal(err)
	}
	allowed := r.registerAs(TrialName)
	if _, err := r.consent(authorizeParams(allowed, trialRedirect), principal.Mailbox); err != nil {
		t.Fatal(err)
	}
	r.clock.advance(trialLife + time.Second)
	another, other := r.registerAs(TrialName), r.registerAs("Claude")
	if n, err := r.server.EndTrials(t.Context(), ""); err != nil || n != 1 {
		t.Errorf("ended %d, %v; want the one that was left behind", n, err)
	}
	for _, id := range []string{allowed, another, other} {
		if r.count(`SELECT count(*) FROM oauth_clients WHERE id = ?`, id) != 1 {
			t.Errorf("%s is gone", id)
		}
	}
	if n, err := r.server.EndTrials(t.Context(), allowed); err != nil || n != 0 {
		t.Errorf("ended %d, %v; what is allowed something is not the doctor's", n, err)
	}
}
