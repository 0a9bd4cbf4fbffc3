package e2e

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"golang.org/x/oauth2"

	"agentrelay/internal/client"
	"agentrelay/internal/e2e/rig"
)

const flowRedirect = "http://127.0.0.1/callback"

// A gateway that goes down after any step of a login, politely or not, is back
// where it was: the login goes on as if nothing had been.
func TestLoginGoesOnAfterEachRestart(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *rig.Gateway){
		"SIGKILL": func(_ *testing.T, g *rig.Gateway) { g.Kill() },
		"SIGTERM": func(t *testing.T, g *rig.Gateway) {
			if code := g.Stop(); code != 0 {
				t.Errorf("the gateway ended with %d", code)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			home := rig.NewHome(t, binary)
			running := home.Serve()
			bounce := func() {
				end(t, running)
				running = home.Serve()
			}
			transport := &http.Transport{}
			t.Cleanup(transport.CloseIdleConnections)
			h := &http.Client{Transport: before{transport, func(r *http.Request) {
				if r.Method == http.MethodPost && r.URL.Path == "/authorize" { // the page is open, the owner presses Allow
					bounce()
				}
			}}}

			server := discover(t, h, home.MCPURL)
			bounce()
			id, err := server.Register(t.Context(), "Traveller", flowRedirect)
			if err != nil {
				t.Fatal(err)
			}
			bounce()
			flow := server.Authorize(id, "", flowRedirect)
			to, err := flow.Consent(t.Context(), home.Password, client.Allow)
			if err != nil {
				t.Fatal(err)
			}
			bounce()
			token, err := flow.Redeem(t.Context(), to)
			if err != nil {
				t.Fatal(err)
			}
			session, err := server.Connect(t.Context(), "Traveller", token.AccessToken)
			if err != nil {
				t.Fatal(err)
			}
			defer session.Close()
			for range 2 { // the second time with the session of before
				if err := session.Call(t.Context(), "list_peers", object{}, nil); err != nil {
					t.Fatal(err)
				}
				bounce()
			}
			next := refresh(t, server, id, token)
			bounce()
			if again := refresh(t, server, id, token); again.AccessToken != next.AccessToken || again.RefreshToken != next.RefreshToken {
				t.Error("the same refresh gives other tokens after the restart")
			}
			next = refresh(t, server, id, next)
			bounce()
			works(t, server, next)
			if err := server.Revoke(t.Context(), id, next.RefreshToken); err != nil {
				t.Fatal(err)
			}
			bounce()
			if _, err := server.Refresh(t.Context(), id, next.RefreshToken); refusedWith(err) != "invalid_grant" {
				t.Errorf("a refresh after the revocation: %v", err)
			}
		})
	}
}

// A gateway that is killed while it works on a request of a login: what had no
// answer is sent again, as clients do, and the login goes on. Only a code may be
// used up by an answer that was lost; the owner is then asked once more.
func TestLoginGoesOnWhenKilledDuringEachStep(t *testing.T) {
	home := rig.NewHome(t, binary)
	c := &crasher{t: t, home: home, gateway: home.Serve(), next: &http.Transport{}}
	t.Cleanup(c.next.CloseIdleConnections)
	server := discover(t, &http.Client{Transport: c}, home.MCPURL)

	const rounds = 12
	for range rounds {
		c.arm("/register", 4*time.Millisecond)
		id, err := server.Register(t.Context(), "Traveller", flowRedirect)
		if err != nil {
			t.Fatal(err)
		}
		c.arm("/authorize", 60*time.Millisecond)
		flow := server.Authorize(id, "", flowRedirect)
		to, err := flow.Consent(t.Context(), home.Password, client.Allow)
		if err != nil {
			t.Fatal(err)
		}
		c.arm("/token", 4*time.Millisecond)
		token, err := flow.Redeem(t.Context(), to)
		if err != nil {
			if !c.lost || refusedWith(err) != "invalid_grant" {
				t.Fatalf("the code, whose first answer was lost: %v: %v", c.lost, err)
			}
			flow = server.Authorize(id, "", flowRedirect)
			if to, err = flow.Consent(t.Context(), home.Password, client.Allow); err != nil {
				t.Fatal(err)
			}
			if token, err = flow.Redeem(t.Context(), to); err != nil {
				t.Fatal(err)
			}
		}
		works(t, server, token)
		for range 2 {
			c.arm("/token", 4*time.Millisecond)
			next := refresh(t, server, id, token)
			if again := refresh(t, server, id, token); again.AccessToken != next.AccessToken || again.RefreshToken != next.RefreshToken {
				t.Error("the same refresh gives other tokens after a crash")
			}
			works(t, server, next)
			token = next
		}
	}
	if c.kills != 5*rounds {
		t.Errorf("the gateway was killed %d times, want %d", c.kills, 5*rounds)
	}
	t.Logf("%d kills, after which %d answers were lost", c.kills, c.losses)
}

func refresh(t *testing.T, s *client.Server, id string, token *oauth2.Token) *oauth2.Token {
	t.Helper()
	next, err := s.Refresh(t.Context(), id, token.RefreshToken)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// works sees that the access token is good for a call.
func works(t *testing.T, s *client.Server, token *oauth2.Token) {
	t.Helper()
	session, err := s.Connect(t.Context(), "Traveller", token.AccessToken)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	if err := session.Call(t.Context(), "list_peers", object{}, nil); err != nil {
		t.Fatal(err)
	}
}

// refusedWith is the code with which the token endpoint refused, "" if it did not.
func refusedWith(err error) string {
	var refused *oauth2.RetrieveError
	if errors.As(err, &refused) {
		return refused.ErrorCode
	}
	return ""
}

// before does something before each request.
type before struct {
	next http.RoundTripper
	do   func(*http.Request)
}

func (b before) RoundTrip(r *http.Request) (*http.Response, error) {
	b.do(r)
	return b.next.RoundTrip(r)
}

// crasher is the way to a gateway that is killed during the next POST to a path.
// When that request has no answer, it is sent again once the gateway is back.
type crasher struct {
	t       *testing.T
	home    *rig.Home
	gateway *rig.Gateway
	next    *http.Transport

	path          string        // "" when no kill is due
	within        time.Duration // of the beginning of the request
	lost          bool          // the last such request had no answer
	kills, losses int
}

func (c *crasher) arm(path string, within time.Duration) { c.path, c.within = path, within }

func (c *crasher) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodPost || r.URL.Path != c.path {
		return c.next.RoundTrip(r)
	}
	c.path = ""
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	first := r.Clone(r.Context())
	first.Body = io.NopCloser(bytes.NewReader(body))
	killed := make(chan struct{})
	time.AfterFunc(rand.N(c.within), func() {
		defer close(killed)
		c.gateway.Kill()
	})
	answer, err := c.whole(first)
	<-killed
	c.kills++
	c.gateway = c.home.Serve()
	if c.lost = err != nil; !c.lost {
		return answer, nil
	}
	c.losses++
	again := r.Clone(r.Context())
	again.Body = io.NopCloser(bytes.NewReader(body))
	return c.next.RoundTrip(again)
}

// whole is an answer that has arrived to its end.
func (c *crasher) whole(r *http.Request) (*http.Response, error) {
	answer, err := c.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	answer.Body = io.NopCloser(bytes.NewReader(body))
	return answer, err
}
