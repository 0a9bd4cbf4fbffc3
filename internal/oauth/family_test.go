package oauth

import (
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// member is one refresh token of a family in the model.
type member struct {
	token      string
	expires    time.Time
	rotated    time.Time
	next       int // index of its successor
	access     string
	accessEnds time.Time
}

// TestFamilyFollowsItsModel plays any order of refreshes, pauses, sweeps and
// restarts, and compares each answer with the rule written down once more.
func TestFamilyFollowsItsModel(t *testing.T) {
	r := newRelay(t)
	rapid.Check(t, func(rt *rapid.T) {
		id, first := r.login()
		family := []member{{token: first.text("refresh_token"), expires: r.clock.Now().Add(refreshLife)}}
		var issued []string // access tokens
		ends := map[string]time.Time{}
		issue := func(token string) time.Time {
			issued = append(issued, token)
			ends[token] = r.clock.Now().Add(accessLife)
			return ends[token]
		}
		issue(first.text("access_token"))
		dead := false
		rt.Repeat(map[string]func(*rapid.T){
			"refresh": func(rt *rapid.T) {
				i := rapid.IntRange(0, len(family)-1).Draw(rt, "token")
				m, now := &family[i], r.clock.Now()
				got := r.refresh(id, m.token)
				switch {
				case dead || !now.Before(m.expires):
					// A client that was silent for 90 days is gone with its tokens.
					if gone := got.status == 401 && r.count(`SELECT count(*) FROM oauth_clients WHERE id = ?`, id) == 0; got.status != 400 && !gone {
						rt.Fatalf("a dead or expired token gave %d", got.status)
					}
				case m.rotated.IsZero():
					if got.status != 200 || slices.Contains(issued, got.text("access_token")) {
						rt.Fatalf("a first use gave %d %s", got.status, got.body)
					}
					m.rotated, m.next = now, len(family)
					m.access = got.text("access_token")
					m.accessEnds = issue(m.access)
					family = append(family, member{token: got.text("refresh_token"), expires: now.Add(refreshLife)})
				case now.Sub(m.rotated) < replayWindow || family[m.next].rotated.IsZero():
					if got.status != 200 || got.text("refresh_token") != family[m.next].token {
						rt.Fatalf("a replay gave %d %s", got.status, got.body)
					}
					if same := got.text("access_token") == m.access; same != (m.accessEnds.Sub(now) >= replayLeft) {
						rt.Fatalf("same access token: %v with %v left", same, m.accessEnds.Sub(now))
					} else if !same {
						m.access = got.text("access_token")
						m.accessEnds = issue(m.access)
					}
					if want := m.accessEnds.Sub(now).Seconds(); got.json["expires_in"] != float64(int64(want)) {
						rt.Fatalf("expires_in %v, want %v", got.json["expires_in"], want)
					}
				default:
					if got.status != 400 {
						rt.Fatalf("reuse gave %d", got.status)
					}
					dead = true
				}
			},
			"pause": func(rt *rapid.T) {
				r.clock.advance(time.Duration(rapid.SampledFrom([]int{1, 60, 120, 3300, 3600, 86400, 15 * 86400}).Draw(rt, "seconds")) * time.Second)
			},
			"sweep": func(*rapid.T) { r.sweep() },
			"restart": func(rt *rapid.T) {
				if rapid.IntRange(0, 9).Draw(rt, "one in ten") == 0 {
					r.restart()
				}
			},
			"": func(rt *rapid.T) {
				token := rapid.SampledFrom(issued).Draw(rt, "access token")
				_, err := r.access(token)
				if alive := !dead && r.clock.Now().Before(ends[token].Add(leeway)); (err == nil) != alive || err != nil && !errors.Is(err, ErrInvalidToken) {
					rt.Fatalf("access token alive %v: %v", alive, err)
				}
			},
		})
	})
}
