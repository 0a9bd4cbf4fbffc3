package client_test

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"agentrelay/internal/client"
	"agentrelay/internal/config"
	"agentrelay/internal/gateway"
	"agentrelay/internal/oauth/owner"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const callback = "http://127.0.0.1/callback"

// relay is a gateway that serves until the test ends.
type relay struct {
	mcpURL, password string
	http             *http.Client
}

func start(t *testing.T) relay {
	t.Helper()
	home := t.TempDir()
	c, err := config.Default(func(string) string { return home })
	if err != nil {
		t.Fatal(err)
	}
	c.StateDir, c.OwnerTokenFile, c.Port = filepath.Join(home, "state"), filepath.Join(home, "owner.json"), 0
	password, err := owner.GeneratePassword(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.WritePassword(c.OwnerTokenFile, password, rand.Reader, false); err != nil {
		t.Fatal(err)
	}
	g, err := gateway.New(t.Context(), gateway.Options{Config: c, Rand: rand.Reader, Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ready, ended := make(chan string, 1), make(chan error, 1)
	go func() { ended <- g.Run(ctx, func(url string) { ready <- url }) }()
	transport := &http.Transport{}
	r := relay{password: password, http: &http.Client{Transport: transport}}
	select {
	case r.mcpURL = <-ready:
	case err := <-ended:
		stop()
		t.Fatalf("the gateway did not start: %v", err)
	}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r relay) register(t *testing.T) (*client.Server, string) {
	t.Helper()
	s, err := client.Discover(t.Context(), r.http, r.mcpURL)
	if err != nil {
		t.Fatal(err)
	}
	id, err := s.Register(t.Context(), "Test", callback)
	if err != nil {
		t.Fatal(err)
	}
	return s, id
}

func TestFromTheURLToACallAndBack(t *testing.T) {
	r, ctx := start(t), t.Context()
	s, id := r.register(t)
	flow := s.Authorize(id, "", callback)
	to, err := flow.Consent(ctx, r.password, client.Allow)
	if err != nil {
		t.Fatal(err)
	}
	token, err := flow.Redeem(ctx, to)
	if err != nil {
		t.Fatal(err)
	}
	session, err := s.Connect(ctx, "test", token.AccessToken)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	names, err := session.Tools(ctx)
	if err != nil || len(names) < 7 {
		t.Errorf("the tools are %v, %v", names, err)
	}
	var out struct{ Created bool }
	if err := session.Call(ctx, "register_peer", map[string]any{"peerId": "a", "kind": "chat"}, &out); err != nil || !out.Created {
		t.Errorf("got %+v, %v", out, err)
	}
	var refused *client.ToolError
	if err := session.Call(ctx, "stop_peer", map[string]any{"peerId": "b"}, nil); !errors.As(err, &refused) || refused.Code != "unknown_peer" || refused.Hint == "" || refused.ID == "" {
		t.Errorf("a refusal is %+v, %v", refused, err)
	}
	if err := session.Call(ctx, "no_such_tool", nil, nil); err == nil || errors.As(err, &refused) && refused.Code == "" {
		t.Errorf("an unknown tool: %v", err)
	}

	next, err := s.Refresh(ctx, id, token.RefreshToken)
	if err != nil || next.AccessToken == token.AccessToken || next.RefreshToken == token.RefreshToken {
		t.Fatalf("refreshing: %v", err)
	}
	if err := s.Revoke(ctx, id, next.RefreshToken); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Refresh(ctx, id, next.RefreshToken); err == nil || !strings.Contains(err.Error(), "invalid_grant") {
		t.Errorf("refreshing after the revocation: %v", err)
	}
	if _, err := s.Connect(ctx, "test", next.AccessToken); err == nil {
		t.Error("the access token outlived the revocation")
	}
}

func TestConsentThatIsNotGiven(t *testing.T) {
	r, ctx := start(t), t.Context()
	s, id := r.register(t)

	flow := s.Authorize(id, "", callback)
	to, err := flow.Consent(ctx, r.password, client.Deny)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := flow.Redeem(ctx, to); err == nil || !strings.Contains(err.Error(), "access_denied") {
		t.Errorf("after a denial: %v", err)
	}

	var page *client.PageError
	if _, err := s.Authorize(id, "", callback).Consent(ctx, "wrong", client.Allow); !errors.As(err, &page) || page.Text == "" {
		t.Errorf("a wrong password: %v", err)
	}
	if _, err := s.Authorize("nobody", "", callback).Consent(ctx, r.password, client.Allow); !errors.As(err, &page) || page.Status/100 != 4 {
		t.Errorf("an unknown client: %v", err)
	}
}

func TestRedirectsThatAreNotTrusted(t *testing.T) {
	r, ctx := start(t), t.Context()
	s, id := r.register(t)
	flow := s.Authorize(id, "", callback)
	to, err := flow.Consent(ctx, r.password, client.Allow)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"state", "iss"} {
		forged := *to
		q := forged.Query()
		q.Set(name, "https://evil.example")
		forged.RawQuery = q.Encode()
		if _, err := flow.Redeem(ctx, &forged); err == nil || !strings.Contains(err.Error(), "the redirect") {
			t.Errorf("a forged %s: %v", name, err)
		}
	}
	if _, err := s.Authorize(id, "", callback).Redeem(ctx, to); err == nil {
		t.Error("the redirect of another flow was taken")
	}
	if _, err := flow.Redeem(ctx, to); err != nil {
		t.Errorf("the true redirect: %v", err)
	}
}

// What is not a gateway is told apart, each with what is missing.
func TestDiscoverWhatIsNoGateway(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter, r *http.Request, base string)
		want   string
	}{
		"open to everybody": {func(w http.ResponseWriter, r *http.Request, _ string) {}, "want 401"},
		"a web site":        {func(w http.ResponseWriter, r *http.Request, _ string) { http.NotFound(w, r) }, "404"},
		"no challenge":      {func(w http.ResponseWriter, r *http.Request, _ string) { w.WriteHeader(401) }, "no resource_metadata"},
		"another challenge": {func(w http.ResponseWriter, r *http.Request, _ string) {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(401)
		}, "no resource_metadata"},
		"no metadata": {func(w http.ResponseWriter, r *http.Request, base string) {
			w.Header().Set("WWW-Authenticate", `Bearer resource_metadata="`+base+`/meta"`)
			w.WriteHeader(401)
		}, "401"},
		"metadata of another resource": {func(w http.ResponseWriter, r *http.Request, base string) {
			if r.URL.Path == "/meta" {
				w.Header().Set("Content-Type", "application/json")
				w.Write([]byte(`{"resource":"https://other.example/mcp","authorization_servers":["https://other.example"]}`))
				return
			}
			w.Header().Set("WWW-Authenticate", `Bearer resource_metadata="`+base+`/meta"`)
			w.WriteHeader(401)
		}, "resource"},
		"no authorization server": {func(w http.ResponseWriter, r *http.Request, base string) {
			if r.URL.Path == "/meta" {
				w.Header().Set("Content-Type", "application/json")
				w.Write([]byte(`{"resource":"` + base + `/mcp"}`))
				return
			}
			w.Header().Set("WWW-Authenticate", `Bearer resource_metadata="`+base+`/meta"`)
			w.WriteHeader(401)
		}, "no authorization server"},
	} {
		t.Run(name, func(t *testing.T) {
			var front *httptest.Server
			front = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.answer(w, r, front.URL) }))
			defer front.Close()
			if _, err := client.Discover(t.Context(), front.Client(), front.URL+"/mcp"); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	if _, err := client.Discover(t.Context(), http.DefaultClient, (&url.URL{Scheme: "http", Host: "127.0.0.1:1", Path: "/mcp"}).String()); err == nil {
		t.Error("nobody listens, and it is a gateway")
	}
}
