package oauth

import (
	"context"
	"testing"
	"time"
)

func (r *relay) sweep() {
	r.Helper()
	if err := r.server.Sweep(context.Background()); err != nil {
		r.Fatal(err)
	}
}

func TestSweepKeepsWhatIsAliveAndRemovesTheRest(t *testing.T) {
	r := newRelay(t)
	id, got := r.login()
	r.code(id, claude) // never redeemed
	revoked, other := r.login()
	if _, err := r.server.clients.Revoke(context.Background(), revoked); err != nil {
		t.Fatal(err)
	}
	counts := func() [4]int {
		return [4]int{r.count(`SELECT count(*) FROM oauth_grants`), r.count(`SELECT count(*) FROM oauth_codes`),
			r.count(`SELECT count(*) FROM oauth_access_tokens`), r.count(`SELECT count(*) FROM oauth_refresh_tokens`)}
	}
	for _, c := range []struct {
		pause time.Duration
		want  [4]int
	}{
		{0, [4]int{3, 3, 2, 2}},
		{accessLife + leeway, [4]int{3, 3, 2, 2}},
		{time.Millisecond, [4]int{3, 3, 0, 2}},
		{graveLife, [4]int{1, 1, 0, 1}},
	} {
		r.clock.advance(c.pause)
		r.sweep()
		if got := counts(); got != c.want {
			t.Fatalf("after %v: %v, want %v", c.pause, got, c.want)
		}
	}
	r.wantRefused(r.refresh(revoked, other.text("refresh_token")), 400, "invalid_grant")
	if got := r.refresh(id, got.text("refresh_token")); got.status != 200 {
		t.Fatal(got.body)
	}
	r.clock.advance(refreshLife + graveLife + time.Second)
	r.sweep()
	if got := counts(); got != [4]int{} {
		t.Fatalf("%v", got)
	}
}

func TestSweepGoesOnBeyondOneStep(t *testing.T) {
	r := newRelay(t)
	r.login()
	r.exec(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO oauth_access_tokens SELECT randomblob(32), (SELECT id FROM oauth_grants), 1 FROM n`, 2*sweepStep+1)
	r.sweep()
	if n := r.count(`SELECT count(*) FROM oauth_access_tokens`); n != 1 {
		t.Fatalf("%d left", n)
	}
}

func TestSweepStopsWithItsContext(t *testing.T) {
	r := newRelay(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.server.Sweep(ctx); err == nil {
		t.Fatal("no error")
	}
}
