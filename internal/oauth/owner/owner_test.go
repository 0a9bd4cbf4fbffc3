package owner_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"agentrelay/internal/oauth/owner"
	"agentrelay/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const password = "abcd-efgh-ijkm-npqr-stuv-wxyz-abcd"

func TestGeneratedPasswords(t *testing.T) {
	form := regexp.MustCompile(`^[a-km-np-z]{4}(-[a-km-np-z]{4}){6}$`)
	seen := map[string]bool{}
	letters := map[rune]int{}
	for range 500 {
		pw, err := owner.GeneratePassword(rand.Reader)
		if err != nil || !form.MatchString(pw) || seen[pw] {
			t.Fatalf("password %q, %v", pw, err)
		}
		seen[pw] = true
		for _, r := range strings.ReplaceAll(pw, "-", "") {
			letters[r]++
		}
	}
	if bits := 28 * math.Log2(float64(len(letters))); bits < 128 {
		t.Errorf("%d letters are used: %.1f bits", len(letters), bits)
	}
	for r, n := range letters { // 583 each are expected; 6 standard deviations
		if n < 440 || n > 726 {
			t.Errorf("letter %c came %d times", r, n)
		}
	}
}

func TestPasswordFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "owner.json")
	if err := owner.WritePassword(path, password, rand.Reader, false); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	raw, _ := os.ReadFile(path)
	if strings.Contains(string(raw), password) || !strings.HasPrefix(string(raw), `{"ownerTokenHash":"$argon2id$v=19$m=19456,t=2,p=1$`) {
		t.Errorf("the file holds %s", raw)
	}
	p, err := owner.LoadPassword(path)
	if err != nil {
		t.Fatal(err)
	}
	check := func(pw string, want bool) {
		t.Helper()
		if got, err := p.Verify(t.Context(), pw); err != nil || got != want {
			t.Errorf("Verify = %v, %v; want %v", got, err, want)
		}
	}
	check(password, true)
	check(" "+password+"\r\n", true)
	check("", false)
	check(password+"x", false)
	check(strings.Repeat("x", 1<<20), false)

	other := strings.ReplaceAll(password, "a", "z")
	if err := owner.WritePassword(path, other, rand.Reader, false); !errors.Is(err, fs.ErrExist) {
		t.Errorf("an existing file was not kept: %v", err)
	}
	check(password, true)
	if err := owner.WritePassword(path, other, rand.Reader, true); err != nil {
		t.Fatal(err)
	}
	check(password, false) // a running gateway hears of it
	check(other, true)
	if files, _ := os.ReadDir(filepath.Dir(path)); len(files) != 1 {
		t.Errorf("files are left over: %v", files)
	}

	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Verify(t.Context(), other); err == nil {
		t.Error("without a file the answer is no error")
	}
	for _, short := range []string{"", "fifteen letters", "          \n      "} {
		if err := owner.WritePassword(path, short, rand.Reader, false); err == nil {
			t.Errorf("%q became a password", short)
		}
	}
}

func TestPlainOwnerFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "owner.json")
	os.WriteFile(path, []byte(`{"ownerToken":"`+password+`"}`+"\n"), 0o600)
	p, err := owner.LoadPassword(path)
	if err != nil {
		t.Fatal(err)
	}
	for pw, want := range map[string]bool{password: true, password + " ": true, password[1:]: false, "": false} {
		if got, err := p.Verify(t.Context(), pw); err != nil || got != want {
			t.Errorf("Verify(%q) = %v, %v", pw, got, err)
		}
	}
}

func TestRefusedOwnerFiles(t *testing.T) {
	hash, err := owner.HashPassword(password, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "owner.json")
	good := `{"ownerTokenHash":"` + hash + `"}`
	for _, c := range []struct {
		name, content string
		mode          os.FileMode
		want          string // in the error
	}{
		{"group may read", good, 0o640, "chmod 600 " + path},
		{"others may read", good, 0o604, "chmod 600 " + path},
		{"empty", "", 0o600, "must be"},
		{"no JSON", password, 0o600, "must be"},
		{"no object", `["` + hash + `"]`, 0o600, "must be"},
		{"no key", `{}`, 0o600, "must be"},
		{"both keys", `{"ownerToken":"` + password + `","ownerTokenHash":"` + hash + `"}`, 0o600, "nothing else"},
		{"other key", `{"ownertoken":"` + password + `"}`, 0o600, `unknown key "ownertoken"`},
		{"short", `{"ownerToken":"hunter2"}`, 0o600, "16 to 1024 bytes"},
		{"number", `{"ownerToken":1234567890123456}`, 0o600, "must be a string"},
		{"bcrypt", `{"ownerTokenHash":"$2b$12$abcdefghijklmnopqrstuv"}`, 0o600, "argon2id"},
		{"argon2i", strings.Replace(good, "argon2id", "argon2i", 1), 0o600, "argon2id"},
		{"old version", strings.Replace(good, "v=19", "v=16", 1), 0o600, "standard form"},
		{"too costly", strings.Replace(good, "m=19456", "m=4194304", 1), 0o600, "out of bounds"},
		{"free", strings.Replace(good, "t=2", "t=0", 1), 0o600, "out of bounds"},
		{"trailing", strings.Replace(good, "p=1", "p=1,x=2", 1), 0o600, "standard form"},
		{"bad base64", strings.Replace(good, "p=1$", "p=1$*", 1), 0o600, "base64"},
		{"huge", good + strings.Repeat(" ", 9000), 0o600, "longer than"},
	} {
		if err := errors.Join(os.WriteFile(path, []byte(c.content), c.mode), os.Chmod(path, c.mode)); err != nil {
			t.Fatal(err)
		}
		_, err := owner.LoadPassword(path)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		} else if strings.Contains(err.Error(), password) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error repeats the password: %v", c.name, err)
		}
		os.Remove(path)
	}
	if _, err := owner.LoadPassword(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := owner.LoadPassword(dir); err == nil || !strings.Contains(err.Error(), "regular") {
		t.Errorf("a directory: %v", err)
	}
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := owner.LoadPassword(path); err == nil || !strings.Contains(err.Error(), "regular") {
		t.Errorf("a pipe: %v", err)
	}
}

func TestVerifyWaitsItsTurn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "owner.json")
	if err := owner.WritePassword(path, password, rand.Reader, false); err != nil {
		t.Fatal(err)
	}
	p, err := owner.LoadPassword(path)
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if ok, err := p.Verify(t.Context(), password); !ok || err != nil {
				t.Errorf("a waiting check: %v %v", ok, err)
			}
			// Whether it got its turn or not, it is never a wrong verdict.
			if ok, err := p.Verify(ended, password); !ok && !errors.Is(err, context.Canceled) {
				t.Errorf("a cancelled check: %v %v", ok, err)
			}
		})
	}
	wg.Wait()
}

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
		for i := range 300 {
			begin(t, s, fmt.Sprintf("198.51.%d.%d", 100+i/256, i%256))
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
	for range 100 {
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
		for i := range 5000 {
			_, err := tx.Exec(`INSERT INTO owner_attempts VALUES (?, 1, ?, 0)`, fmt.Sprintf("10.0.%d.%d", i/256, i%256), c.now().UnixMilli()+int64(i)-5000)
			if err != nil {
				return err
			}
		}
		return nil
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

func TestSessions(t *testing.T) {
	s, c := newStore(t)
	sessions := owner.Sessions{Secure: true, Rand: rand.Reader}
	start := func() string {
		sess, err := store.Write(t.Context(), s, sessions.Start)
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		sessions.SetCookie(w, sess, c.now())
		header := w.Header().Get("Set-Cookie")
		for _, want := range []string{"__Host-agentrelay_owner=", "Path=/", "Max-Age=2592000", "HttpOnly", "Secure", "SameSite=Lax"} {
			if !strings.Contains(header, want) {
				t.Errorf("%s has no %s", header, want)
			}
		}
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Cookie", header[:strings.Index(header, ";")])
		return sessions.Token(r)
	}
	valid := func(token string) (ok bool) {
		t.Helper()
		err := store.Read(t.Context(), s, func(r *store.Reader) (err error) {
			ok, err = sessions.Valid(r, token, c.now())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	use := func(token string) bool {
		t.Helper()
		ok, err := store.Write(t.Context(), s, func(tx *store.Tx) (bool, error) {
			_, ok, err := sessions.Use(tx, token)
			return ok, err
		})
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}

	token := start()
	if !valid(token) || valid("") || valid(strings.Repeat("A", 43)) {
		t.Error("validity is wrong")
	}
	c.add(owner.SessionIdle)
	if valid(token) || use(token) {
		t.Error("an idle session lives on")
	}
	token = start()
	for range 4 {
		c.add(20 * 24 * time.Hour)
		if !use(token) {
			t.Fatal("a used session ended early")
		}
	}
	c.add(10 * 24 * time.Hour)
	if valid(token) || use(token) {
		t.Error("a session lives longer than 90 days")
	}

	token = start()
	if err := store.Exec(t.Context(), s, func(tx *store.Tx) error { return sessions.End(tx, token) }); err != nil || valid(token) {
		t.Error("an ended session lives on")
	}
	one, two := start(), start()
	if err := store.Exec(t.Context(), s, owner.EndSessions); err != nil || valid(one) || valid(two) {
		t.Error("EndSessions left one")
	}

	first := start()
	for range 64 {
		c.add(time.Second)
		start()
	}
	if valid(first) {
		t.Error("the oldest of 65 sessions lives on")
	}
	err := store.Read(t.Context(), s, func(r *store.Reader) error {
		return r.Query(func(row store.Scanner) error {
			var hash []byte
			err := row.Scan(&hash)
			if string(hash) == first || len(hash) != 32 {
				t.Errorf("the database holds %q", hash)
			}
			return err
		}, `SELECT hash FROM owner_sessions`)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestNoSessionWithoutHTTPS(t *testing.T) {
	s, c := newStore(t)
	sess, err := store.Write(t.Context(), s, owner.Sessions{Secure: true, Rand: rand.Reader}.Start)
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	owner.Sessions{Secure: true}.SetCookie(w, sess, c.now())
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Cookie", w.Header().Get("Set-Cookie"))
	plain := owner.Sessions{Rand: rand.Reader}
	if plain.Token(r) != "" {
		t.Error("a session counts on http")
	}
	if _, err := store.Write(t.Context(), s, plain.Start); err == nil {
		t.Error("a session starts on http")
	}
}

func TestForms(t *testing.T) {
	params := url.Values{"client_id": {"a"}, "state": {"s"}}
	for _, secure := range []bool{true, false} {
		forms := owner.Forms{Secure: secure, Rand: rand.Reader}
		show := func(cookie string, params url.Values) (token, set string) {
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/authorize", nil)
			r.Header.Set("Cookie", cookie)
			token, err := forms.Token(w, r, params)
			if err != nil {
				t.Fatal(err)
			}
			return token, w.Header().Get("Set-Cookie")
		}
		check := func(cookie string, params url.Values, token string) bool {
			r := httptest.NewRequest(http.MethodPost, "/authorize", nil)
			r.Header.Set("Cookie", cookie)
			return forms.Check(r, params, token)
		}
		token, set := show("", params)
		name, _, _ := strings.Cut(set, "=")
		if strings.HasPrefix(name, "__Host-") != secure || strings.Contains(set, "Secure") != secure || !strings.Contains(set, "HttpOnly") || !strings.Contains(set, "SameSite=Lax") {
			t.Errorf("cookie %s", set)
		}
		mine, _, _ := strings.Cut(set, ";")
		_, set = show("", params)
		theirs, _, _ := strings.Cut(set, ";")
		again, none := show(mine, params)
		if again != token || none != "" {
			t.Error("a second tab got another key")
		}
		if !check(mine, params, token) {
			t.Error("the right token is refused")
		}
		for why, ok := range map[string]bool{
			"no cookie":         check("", params, token),
			"another browser":   check(theirs, params, token),
			"no token":          check(mine, params, ""),
			"another request":   check(mine, url.Values{"client_id": {"a"}, "state": {"t"}}, token),
			"a field less":      check(mine, url.Values{"client_id": {"a"}}, token),
			"a short cookie":    check(name+"=x", params, token),
			"a field more":      check(mine, url.Values{"client_id": {"a"}, "state": {"s", "s"}}, token),
			"fields run as one": check(mine, url.Values{"client_id": {"a&state=s"}}, token),
		} {
			if ok {
				t.Errorf("%s: accepted", why)
			}
		}
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

func FuzzOwnerFile(f *testing.F) {
	hash, _ := owner.HashPassword(password, rand.Reader)
	f.Add(`{"ownerTokenHash":"` + hash + `"}`)
	f.Add(`{"ownerToken":"` + password + `"}`)
	f.Add(`{"ownerTokenHash":"$argon2id$v=19$m=8,t=1,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAA"}`)
	path := filepath.Join(f.TempDir(), "owner.json")
	f.Fuzz(func(t *testing.T, content string) {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := owner.LoadPassword(path); err == nil && !strings.Contains(content, "ownerToken") && !strings.Contains(content, `\u`) {
			t.Errorf("%q was accepted", content)
		}
	})
}
