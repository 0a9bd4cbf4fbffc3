package oauth

import (
	"sync"
	"testing"
	"time"
)

func TestParallelRefreshesGetTheSameTokens(t *testing.T) {
	r := newRelay(t)
	id, first := r.login()
	var wg sync.WaitGroup
	replies := make([]reply, 50)
	for i := range replies {
		wg.Go(func() { replies[i] = r.refresh(id, first.text("refresh_token")) })
	}
	wg.Wait()
	for _, got := range replies {
		if got.status != 200 || got.text("refresh_token") != replies[0].text("refresh_token") || got.text("access_token") != replies[0].text("access_token") {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	r.mustAccess(replies[0].text("access_token"))
	if n := r.count(`SELECT count(*) FROM oauth_refresh_tokens`); n != 2 {
		t.Fatalf("%d refresh tokens", n)
	}
}

func TestLostAnswerIsGivenAgain(t *testing.T) {
	r := newRelay(t)
	id, first := r.login()
	lost := r.refresh(id, first.text("refresh_token"))
	r.clock.advance(30 * time.Minute)
	r.restart()
	again := r.refresh(id, first.text("refresh_token"))
	if again.status != 200 || again.text("refresh_token") != lost.text("refresh_token") || again.text("access_token") != lost.text("access_token") || again.json["expires_in"] != 1800.0 {
		t.Fatalf("%d %s", again.status, again.body)
	}
	r.clock.advance(25*time.Minute + time.Second)
	renewed := r.refresh(id, first.text("refresh_token"))
	if renewed.status != 200 || renewed.text("refresh_token") != lost.text("refresh_token") || renewed.text("access_token") == lost.text("access_token") || renewed.json["expires_in"] != 3600.0 {
		t.Fatalf("%d %s", renewed.status, renewed.body)
	}
	r.mustAccess(lost.text("access_token"))
	r.mustAccess(renewed.text("access_token"))
	same := r.refresh(id, first.text("refresh_token"))
	if same.text("access_token") != renewed.text("access_token") {
		t.Fatal("the new access token was not kept for the next replay")
	}
	if next := r.refresh(id, lost.text("refresh_token")); next.status != 200 {
		t.Fatal(next.body)
	}
}

func TestReuse(t *testing.T) {
	const afterWindow = replayWindow + time.Second
	// Each step presents the nth refresh token of the family after a pause.
	type step struct {
		pause  time.Duration
		token  int
		status int
		same   int // index of the token that must come back; 0 is a new one
	}
	for name, steps := range map[string][]step{
		"within the window although the successor was used": {{0, 0, 200, 0}, {0, 1, 200, 0}, {time.Minute, 0, 200, 1}, {0, 2, 200, 0}},
		"a day later, the successor unused":                 {{0, 0, 200, 0}, {24 * time.Hour, 0, 200, 1}, {0, 1, 200, 0}},
		"after the window, the successor used":              {{0, 0, 200, 0}, {time.Hour, 1, 200, 0}, {0, 0, 400, 0}, {0, 2, 400, 0}, {0, 1, 400, 0}},
		"an ancestor":                                       {{0, 0, 200, 0}, {afterWindow, 1, 200, 0}, {afterWindow, 2, 200, 0}, {0, 0, 400, 0}, {0, 3, 400, 0}},
		"the parent after the window":                       {{0, 0, 200, 0}, {0, 1, 200, 0}, {afterWindow, 1, 200, 2}, {0, 0, 400, 0}, {0, 2, 400, 0}},
		"sliding for a year":                                {{29 * 24 * time.Hour, 0, 200, 0}, {29 * 24 * time.Hour, 1, 200, 0}, {29 * 24 * time.Hour, 2, 200, 0}, {30 * 24 * time.Hour, 3, 400, 0}},
		"an expired ancestor is only refused":               {{0, 0, 200, 0}, {29 * 24 * time.Hour, 1, 200, 0}, {24 * time.Hour, 0, 400, 0}, {0, 2, 200, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRelay(t)
			id, first := r.login()
			family := []string{first.text("refresh_token")}
			access := first.text("access_token")
			for i, s := range steps {
				r.clock.advance(s.pause)
				got := r.refresh(id, family[s.token])
				if got.status != s.status {
					t.Fatalf("step %d: %d %s", i, got.status, got.body)
				}
				switch {
				case s.status != 200:
					r.wantRefused(got, 400, "invalid_grant")
				case s.same > 0 && got.text("refresh_token") != family[s.same]:
					t.Fatalf("step %d gave another successor", i)
				case s.same == 0:
					family = append(family, got.text("refresh_token"))
					access = got.text("access_token")
				}
			}
			last := steps[len(steps)-1]
			if _, err := r.access(access); (err == nil) != (last.status == 200) {
				t.Fatalf("the family's access token: %v", err)
			}
		})
	}
}

func TestReuseIsAudited(t *testing.T) {
	r := newRelay(t)
	id, first := r.login()
	next := r.refresh(id, first.text("refresh_token"))
	r.clock.advance(time.Hour)
	r.refresh(id, next.text("refresh_token"))
	r.wantRefused(r.refresh(id, first.text("refresh_token")), 400, "invalid_grant")
	if e := r.lastAudit("grant.revoke"); e.ClientID != id || e.Detail["reason"] != "reuse" || e.Outcome != "ok" {
		t.Fatalf("%+v", e)
	}
}

func TestAnotherClientCannotEndAFamily(t *testing.T) {
	r := newRelay(t)
	id, first := r.login()
	other := r.register(claude)
	next := r.refresh(id, first.text("refresh_token"))
	r.clock.advance(time.Hour)
	next = r.refresh(id, next.text("refresh_token"))
	r.wantRefused(r.refresh(other, first.text("refresh_token")), 400, "invalid_grant")
	r.wantRefused(r.refresh(other, next.text("refresh_token")), 400, "invalid_grant")
	r.mustAccess(next.text("access_token"))
}

func TestClientsThatDeclareNoRefreshGetNone(t *testing.T) {
	r := newRelay(t)
	for body, want := range map[string]bool{
		`{"redirect_uris":["` + claude + `"]}`:                                                                                     true,
		`{"redirect_uris":["` + claude + `"],"grant_types":["authorization_code","refresh_token"]}`:                                true,
		`{"redirect_uris":["` + claude + `"],"grant_types":["authorization_code"]}`:                                                false,
		`{"redirect_uris":["` + claude + `"],"grant_types":["authorization_code","urn:ietf:params:oauth:grant-type:device_code"]}`: false,
	} {
		id := r.post("/register", "application/json", body).text("client_id")
		got := r.redeem(id, r.code(id, claude))
		if got.status != 200 || (got.text("refresh_token") != "") != want {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
	}
}
