package oauth

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"agentrelay/internal/store"
)

func TestAuthenticateRefuses(t *testing.T) {
	r := newRelay(t)
	_, got := r.login()
	token := got.text("access_token")
	for name, bad := range map[string]string{
		"nothing":       "",
		"refresh token": got.text("refresh_token"),
		"another":       "ar_at_" + strings.Repeat("A", 43),
		"cut":           token[:len(token)-1],
		"longer":        token + "A",
		"other case":    "AR_AT_" + token[6:],
		"huge":          strings.Repeat("x", 1<<20),
	} {
		if _, err := r.access(bad); !errors.Is(err, ErrInvalidToken) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAccessTokenExpiresWithLeeway(t *testing.T) {
	r := newRelay(t)
	_, got := r.login()
	token := got.text("access_token")
	r.clock.advance(accessLife + leeway - time.Millisecond)
	r.sweep()
	r.mustAccess(token)
	r.clock.advance(time.Millisecond)
	if _, err := r.access(token); !errors.Is(err, ErrInvalidToken) {
		t.Fatal(err)
	}
}

func TestTokensAreForThisAddressOnly(t *testing.T) {
	r := newRelay(t)
	id, got := r.login()
	code := r.code(id, claude)
	r.options = func(o *Options) { o.PublicBaseURL = "https://elsewhere.test" }
	r.restart()
	if _, err := r.access(got.text("access_token")); !errors.Is(err, ErrInvalidToken) {
		t.Fatal(err)
	}
	r.wantRefused(r.refresh(id, got.text("refresh_token")), 400, "invalid_grant")
	r.wantRefused(r.redeem(id, code), 400, "invalid_grant")
}

func TestLastUseIsKeptWithoutAWriteForEachRequest(t *testing.T) {
	r := newRelay(t)
	id, got := r.login()
	used := func() time.Time {
		var ms int64
		err := store.Read(context.Background(), r.store, func(q *store.Reader) error {
			return q.QueryRow(`SELECT last_used_at FROM oauth_clients WHERE id = ?`, id).Scan(&ms)
		})
		if err != nil {
			t.Fatal(err)
		}
		return time.UnixMilli(ms).UTC()
	}
	issued := used()
	r.clock.advance(10 * time.Minute)
	for range 100 {
		r.mustAccess(got.text("access_token"))
	}
	if !used().Equal(issued) {
		t.Fatal("a request wrote")
	}
	r.sweep()
	if !used().Equal(r.clock.Now()) {
		t.Fatal(used())
	}
	r.clock.advance(time.Minute)
	r.mustAccess(got.text("access_token"))
	r.restart()
	if !used().Equal(r.clock.Now()) {
		t.Fatal("a clean close lost the last use")
	}
	r.clock.advance(time.Minute)
	r.mustAccess(got.text("access_token"))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.server.Flush(ctx); err == nil {
		t.Fatal("no error")
	}
	if err := r.server.Flush(context.Background()); err != nil || !used().Equal(r.clock.Now()) {
		t.Fatal("a failed flush lost the last use", err)
	}
	r.clock.advance(time.Minute)
	r.mustAccess(got.text("access_token"))
	if shown := r.list()[0].LastUsedAt; !shown.Equal(r.clock.Now()) {
		t.Fatal("the owner's list is behind:", shown)
	}
}

func TestBearerCheckReadsByKeyOnly(t *testing.T) {
	r := newRelay(t)
	var plan []string
	err := store.Read(context.Background(), r.store, func(q *store.Reader) error {
		return q.Query(func(row store.Scanner) error {
			var id, parent, unused int
			var detail string
			err := row.Scan(&id, &parent, &unused, &detail)
			plan = append(plan, detail)
			return err
		}, "EXPLAIN QUERY PLAN "+accessQuery, []byte("x"))
	})
	if err != nil || len(plan) != 3 {
		t.Fatal(plan, err)
	}
	for _, step := range plan {
		if !strings.HasPrefix(step, "SEARCH ") {
			t.Error(step)
		}
	}
}

// BenchmarkAuthenticate reports the cost of the bearer check against the
// cheapest read of the same store.
func BenchmarkAuthenticate(b *testing.B) {
	r := newRelay(b)
	_, got := r.login()
	token := got.text("access_token")
	start := time.Now()
	const baseline = 2000
	for range baseline {
		_ = store.Read(context.Background(), r.store, func(q *store.Reader) error {
			var n int
			return q.QueryRow(`SELECT 1`).Scan(&n)
		})
	}
	bare := time.Since(start) / baseline
	for b.Loop() {
		if _, err := r.access(token); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(bare), "x-bare-read")
}
