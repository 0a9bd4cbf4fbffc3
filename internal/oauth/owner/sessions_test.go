package owner_test

import (
	"crypto/rand"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"agentrelay/internal/oauth/owner"
	"agentrelay/internal/store"
)

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
