package owner_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"agentrelay/internal/oauth/owner"
	"agentrelay/internal/store"
)

// clock is a clock that tests move.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func open(t testing.TB, dir string, c *clock) *store.Store {
	t.Helper()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(t.Context(), store.Options{Dir: dir, Now: c.now, AllowNetworkFS: true})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newStore(t testing.TB) (*store.Store, *clock) {
	c := &clock{t: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	s := open(t, t.TempDir(), c)
	t.Cleanup(func() { s.Close() })
	return s, c
}

func begin(t testing.TB, s *store.Store, address string) owner.Try {
	t.Helper()
	try, err := store.Write(context.Background(), s, func(tx *store.Tx) (owner.Try, error) { return owner.Begin(tx, address) })
	if err != nil {
		t.Fatal(err)
	}
	return try
}

func succeed(t testing.TB, s *store.Store, address string) {
	t.Helper()
	if err := store.Exec(context.Background(), s, func(tx *store.Tx) error { return owner.Succeeded(tx, address) }); err != nil {
		t.Fatal(err)
	}
}

func TestPauseGrows(t *testing.T) {
	s, c := newStore(t)
	const stranger = "198.51.100.7:4711"
	for i, want := range []time.Duration{0, 0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900} {
		want *= time.Second
		try := begin(t, s, stranger)
		if try.Wait != 0 || try.Pause != want {
			t.Fatalf("try %d: %+v, want a pause of %v", i+1, try, want)
		}
		if want == 0 {
			continue
		}
		c.add(want - time.Millisecond)
		if early := begin(t, s, "198.51.100.7"); early.Wait != time.Millisecond {
			t.Fatalf("try %d: %+v just before the end", i+1, early)
		}
		err := store.Read(t.Context(), s, func(r *store.Reader) error {
			wait, err := owner.Pause(r, stranger, c.now())
			if wait != time.Millisecond {
				t.Errorf("Pause = %v", wait)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		c.add(time.Millisecond)
	}
	c.add(24 * time.Hour)
	if try := begin(t, s, stranger); try.Wait != 0 || try.Pause != 0 {
		t.Errorf("a day later: %+v", try)
	}
}

func TestPauseSurvivesRestartAndClockChange(t *testing.T) {
	c := &clock{t: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	dir := t.TempDir()
	s := open(t, dir, c)
	for range 3 {
		begin(t, s, "198.51.100.7")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, c)
	defer s.Close()
	if try := begin(t, s, "198.51.100.7"); try.Wait != time.Second {
		t.Errorf("after a restart: %+v", try)
	}
	c.add(-time.Hour)
	if try := begin(t, s, "198.51.100.7"); try.Wait != time.Second {
		t.Errorf("after the clock was set back an hour: %+v", try)
	}
}

func TestTriesAtOnceCountLikeTriesInARow(t *testing.T) {
	s, _ := newStore(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	allowed := 0
	for range 50 {
		wg.Go(func() {
			if begin(t, s, "198.51.100.7").Wait == 0 {
				mu.Lock()
				allowed++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if allowed != 3 { // two without a pause, and the one that starts the first pause
		t.Errorf("%d of 50 tries at once were allowed", allowed)
	}
}

func TestStrangersCannotKeepTheOwnerOut(t *testing.T) {
	s, c := newStore(t)
	const home = "203.0.113.5"
	attack := func() time.Duration {
		for i := range 60 {
			begin(t, s, fmt.Sprintf("198.51.100.%d", i))
			c.add(31 * time.Second)
		}
		begin(t, s, "198.51.100.250")
		return begin(t, s, home).Wait
	}
	if wait := attack(); wait <= 0 || wait > owner.MaxSharedPause {
		t.Errorf("a new address waits %v under attack, want up to %v", wait, owner.MaxSharedPause)
	}
	c.add(owner.MaxSharedPause)
	if try := begin(t, s, home); try.Wait != 0 {
		t.Fatalf("after the longest pause: %+v", try)
	}
	succeed(t, s, home)
	if wait := attack(); wait != 0 {
		t.Errorf("an address the owner signed in from waits %v", wait)
	}
	c.add(2 * time.Hour)
	if try := begin(t, s, "192.0.2.99"); try.Wait != 0 || try.Pause != 0 {
		t.Errorf("when the attack is long over: %+v", try)
	}
}

func TestSuccessTakesBackItsTry(t *testing.T) {
	s, _ := newStore(t)
	for range 30 {
		if try := begin(t, s, "203.0.113.5"); try.Wait != 0 || try.Pause != 0 {
			t.Fatalf("a right password was counted: %+v", try)
		}
		succeed(t, s, "203.0.113.5")
		if try := begin(t, s, "127.0.0.1:80"); try.Wait != 0 {
			t.Fatalf("%+v", try)
		}
		succeed(t, s, "127.0.0.1:80")
	}
}

func TestAddresses(t *testing.T) {
	s, c := newStore(t)
	for _, address := range []string{"2001:db8:1:2::1", "[2001:db8:1:2::ffff]:443", "2001:db8:1:2:3:4:5:6%eth0"} {
		begin(t, s, address)
	}
	if try := begin(t, s, "2001:db8:1:2:aaaa::"); try.Wait == 0 {
		t.Error("another address of the same /64 is not paused")
	}
	if try := begin(t, s, "2001:db8:1:3::1"); try.Wait != 0 {
		t.Error("another /64 is paused")
	}
	for range 3 {
		begin(t, s, "::ffff:198.51.100.7")
	}
	if try := begin(t, s, "198.51.100.7"); try.Wait == 0 {
		t.Error("the mapped form is another address")
	}
	c.add(time.Hour)
	// A proxy that names nobody: no more than the shared pause.
	for range 60 {
		if try := begin(t, s, "127.0.0.1:5555"); try.Wait > owner.MaxSharedPause || try.Pause > owner.MaxSharedPause {
			t.Fatalf("%+v behind a proxy that names nobody", try)
		}
		c.add(owner.MaxSharedPause)
	}
}

func TestRowsAreBounded(t *testing.T) {
	s, c := newStore(t)
	err := store.Exec(t.Context(), s, func(tx *store.Tx) error {
		_, err := tx.Exec(`WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 4999)
			INSERT INTO owner_attempts SELECT '10.0.' || (i / 256) || '.' || (i % 256), 1, ? - i, 0 FROM n`, c.now().UnixMilli())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	count := func() (n int) {
		store.Read(t.Context(), s, func(r *store.Reader) error {
			return r.QueryRow(`SELECT count(*) FROM owner_attempts WHERE address <> '*'`).Scan(&n)
		})
		return n
	}
	begin(t, s, "198.51.100.7")
	if n := count(); n != 4096 {
		t.Errorf("%d rows", n)
	}
	c.add(25 * time.Hour)
	begin(t, s, "198.51.100.8")
	if n := count(); n != 1 {
		t.Errorf("%d rows a day later", n)
	}
}

// However tries, sign-ins and time are mixed, nobody waits longer than the rules
// say, and what is refused is not counted.
func TestLockoutProperties(t *testing.T) {
	s, c := newStore(t)
	addresses := rapid.SampledFrom([]string{"198.51.100.1", "198.51.100.2", "2001:db8::1", "127.0.0.1", "", "*", "junk"})
	rapid.Check(t, func(t *rapid.T) {
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			address := addresses.Draw(t, "address")
			c.add(time.Duration(rapid.IntRange(-5_000, 100_000).Draw(t, "ms")) * time.Millisecond)
			try, err := store.Write(context.Background(), s, func(tx *store.Tx) (owner.Try, error) { return owner.Begin(tx, address) })
			if err != nil || try.Wait < 0 || try.Wait > 15*time.Minute || try.Pause > 15*time.Minute || try.Wait > 0 && try.Pause > 0 {
				t.Fatalf("%s: %+v %v", address, try, err)
			}
			if try.Wait > 0 {
				again, _ := store.Write(context.Background(), s, func(tx *store.Tx) (owner.Try, error) { return owner.Begin(tx, address) })
				if again != try {
					t.Fatalf("%s: asking again changed %+v to %+v", address, try, again)
				}
			} else if rapid.IntRange(0, 3).Draw(t, "right") == 0 {
				if err := store.Exec(context.Background(), s, func(tx *store.Tx) error { return owner.Succeeded(tx, address) }); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
