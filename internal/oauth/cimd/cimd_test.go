package cimd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"go.uber.org/goleak"

	"agentrelay/internal/oauth/cimd"
	"agentrelay/internal/oauth/redirect"
	"agentrelay/internal/safedial"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestIsClientID(t *testing.T) {
	for id, want := range map[string]bool{
		"https://claude.ai/oauth/mcp-oauth-client-metadata": true,
		"https://chatgpt.com/oauth/abc/client.json":         true,
		"https://a.test:8443/x":                             true,
		"https://a.test/x?y=z":                              true,
		"https://a.test/x/":                                 true,
		"http://127.0.0.1:7/x":                              true,
		"http://[::1]:7/x":                                  true,
		"https://a.test":                                    false,
		"https://a.test/":                                   false,
		"https://a.test?x=/y":                               false,
		"https://a.test/x#":                                 false,
		"https://a.test/x#y":                                false,
		"https://u@a.test/x":                                false,
		"https://u:p@a.test/x":                              false,
		"https://a.test/x/../y":                             false,
		"https://a.test/./y":                                false,
		"https://a.test/..":                                 false,
		"https://a.test/x/%2e%2E/y":                         false,
		"https://a.test/x/.%2e/y":                           false,
		"https:///x":                                        false,
		"https:a.test/x":                                    false,
		"https://a.test\\x":                                 false,
		"https://a.test/x y":                                false,
		"https://xn--laude-2ve.test/x":                      true,
		"https://\u0441laude.test/x":                        false, // a Cyrillic letter, which a person takes for a c
		"https://%D1%81laude.test/x":                        false, // the same host to net/url
		"https://a.test/\u0441":                             false,
		"https://a.test/\u202ex":                            false,
		"http://a.test/x":                                   false,
		"http://localhost/x":                                false,
		"ftp://a.test/x":                                    false,
		"3f0c6d0e-8d5d-4a55-9a0f-0b8a3d0d6f10":              false,
		"":                                                  false,
		"https://a.test/" + strings.Repeat("x", 1024):       false,
	} {
		if got := cimd.IsClientID(id); got != want {
			t.Errorf("IsClientID(%q) = %v", id, got)
		}
	}
}

const id = "https://app.test/client.json"

// site answers every request of a Fetcher.
type site func(*http.Request) (*http.Response, error)

func (s site) RoundTrip(r *http.Request) (*http.Response, error) { return s(r) }

func answer(status int, body string, header ...string) site {
	return func(*http.Request) (*http.Response, error) {
		h := http.Header{"Content-Type": {"application/json"}}
		for i := 0; i+1 < len(header); i += 2 {
			h.Set(header[i], header[i+1])
		}
		return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body))}, nil
	}
}

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func fetcher(s site) *cimd.Fetcher {
	return cimd.New(cimd.Options{Client: &http.Client{Transport: s}, Now: func() time.Time { return now }})
}

func document(more string) string {
	return `{"client_id":"` + id + `","client_name":"App","redirect_uris":["https://app.test/cb"]` + more + `}`
}

func TestFetch(t *testing.T) {
	for name, body := range map[string]string{
		"plain":               document(""),
		"none":                document(`,"token_endpoint_auth_method":"none"`),
		"none among others":   document(`,"token_endpoint_auth_method":"private_key_jwt","token_endpoint_auth_methods_supported":["none","private_key_jwt"]`),
		"none beside secrets": document(`,"token_endpoint_auth_methods":["client_secret_basic","none"]`),
		"device code":         document(`,"grant_types":["authorization_code","refresh_token","urn:ietf:params:oauth:grant-type:device_code"]`),
		"unknown members":     document(`,"jwks_uri":"https://app.test/jwks","x":{"y":[1]}`),
	} {
		doc, err := fetcher(answer(200, body)).Fetch(t.Context(), id)
		if err != nil || doc.Metadata.ClientName != "App" || !slices.Equal(doc.Metadata.RedirectURIs, []string{"https://app.test/cb"}) || !doc.FreshUntil.Equal(now.Add(time.Hour)) {
			t.Errorf("%s: %+v, %v", name, doc, err)
		}
	}
	for _, contentType := range []string{"", "application/json; charset=utf-8", "application/oauth-client-metadata+json", "text/plain", "application/octet-stream"} {
		if _, err := fetcher(answer(200, document(""), "Content-Type", contentType)).Fetch(t.Context(), id); err != nil {
			t.Errorf("type %q: %v", contentType, err)
		}
	}
}

func TestRefusedDocuments(t *testing.T) {
	const marker = "SITE-TEXT"
	for name, c := range map[string]struct {
		site site
		want string
	}{
		"another id":         {answer(200, strings.Replace(document(""), id, id+"/", 1)), "client_id"},
		"id in another case": {answer(200, strings.Replace(document(""), `"client_id"`, `"Client_ID"`, 1)), "client_id"},
		"no id":              {answer(200, `{"client_name":"App","redirect_uris":["https://app.test/cb"]}`), "client_id"},
		"id is a number":     {answer(200, strings.Replace(document(""), `"`+id+`"`, "7", 1)), "client_id"},
		"no name":            {answer(200, strings.Replace(document(""), "App", "", 1)), "client_name"},
		"no redirects":       {answer(200, `{"client_id":"`+id+`","client_name":"App"}`), "redirect_uris"},
		"bad redirect":       {answer(200, strings.Replace(document(""), "https://app.test/cb", "javascript:alert(1)", 1)), "redirect_uris[0]"},
		"a secret":           {answer(200, document(`,"client_secret":"`+marker+`"`)), "client_secret"},
		"secret post only":   {answer(200, document(`,"token_endpoint_auth_method":"client_secret_post"`)), "none"},
		"jwt only":           {answer(200, document(`,"token_endpoint_auth_method":"private_key_jwt"`)), "none"},
		"not JSON":           {answer(200, marker), "valid"},
		"a page":             {answer(200, "<html>"+marker, "Content-Type", "text/html; charset=utf-8"), "page"},
		"bad type":           {answer(200, document(""), "Content-Type", "/;"), "page"},
		"too large":          {answer(200, document(`,"x":"`+strings.Repeat("x", 64<<10)+`"`)), "65536 bytes"},
		"cut off": {func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: io.NopCloser(iotest.ErrReader(errors.New("reset")))}, nil
		}, "read to its end"},
		"404":       {answer(404, marker), "status 404"},
		"500":       {answer(500, marker), "status 500"},
		"201":       {answer(201, document("")), "status 201"},
		"redirect":  {answer(302, "", "Location", "https://app.test/other-"+marker), "redirects are not followed"},
		"no answer": {func(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") }, "could not be fetched"},
	} {
		_, err := fetcher(c.site).Fetch(t.Context(), id)
		var refused *cimd.Error
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		} else if strings.Contains(err.Error(), marker) {
			t.Errorf("%s: the error repeats the site: %v", name, err)
		}
	}
	for _, bad := range []string{"", "x", "https://app.test", "http://127.0.0.1:1/x"} {
		if _, err := fetcher(answer(200, document(""))).Fetch(t.Context(), bad); err == nil {
			t.Errorf("%q was fetched", bad)
		}
	}
}

func TestErrorsAreNotKept(t *testing.T) {
	calls := 0
	f := fetcher(func(r *http.Request) (*http.Response, error) {
		if calls++; calls == 1 {
			return answer(503, "")(r)
		}
		return answer(200, document(""))(r)
	})
	if _, err := f.Fetch(t.Context(), id); err == nil {
		t.Fatal("503 was a document")
	}
	if _, err := f.Fetch(t.Context(), id); err != nil {
		t.Errorf("a moment later: %v", err)
	}
}

func TestFreshness(t *testing.T) {
	date := now.Add(-90 * time.Minute).Format(http.TimeFormat) // the site's clock is slow
	at := func(d time.Duration) string { return now.Add(-90 * time.Minute).Add(d).Format(http.TimeFormat) }
	for _, c := range []struct {
		header []string
		want   time.Duration
	}{
		{nil, time.Hour},
		{[]string{"Cache-Control", "max-age=7200"}, 2 * time.Hour},
		{[]string{"Cache-Control", `public, Max-Age="7200", immutable`}, 2 * time.Hour},
		{[]string{"Cache-Control", "max-age=7200", "Age", "3600"}, time.Hour},
		{[]string{"Cache-Control", "max-age=7200", "Age", "9999"}, 5 * time.Minute},
		{[]string{"Cache-Control", "max-age=0"}, 5 * time.Minute},
		{[]string{"Cache-Control", "max-age=junk"}, 5 * time.Minute},
		{[]string{"Cache-Control", "max-age=99999999999999"}, 5 * time.Minute},
		{[]string{"Cache-Control", "no-store"}, 5 * time.Minute},
		{[]string{"Cache-Control", "no-cache, max-age=7200"}, 5 * time.Minute},
		{[]string{"Cache-Control", "max-age=31536000"}, 24 * time.Hour},
		{[]string{"Cache-Control", "public"}, time.Hour},
		{[]string{"Expires", at(3 * time.Hour), "Date", date}, 3 * time.Hour},
		{[]string{"Expires", at(-time.Hour), "Date", date}, 5 * time.Minute},
		{[]string{"Expires", "0"}, 5 * time.Minute},
		{[]string{"Expires", now.Add(3 * time.Hour).Format(http.TimeFormat)}, 3 * time.Hour},
		{[]string{"Expires", at(3 * time.Hour), "Date", date, "Cache-Control", "max-age=600"}, 10 * time.Minute},
	} {
		doc, err := fetcher(answer(200, document(""), c.header...)).Fetch(t.Context(), id)
		if got := doc.FreshUntil.Sub(now); err != nil || got != c.want {
			t.Errorf("%v: fresh for %v, want %v (%v)", c.header, got, c.want, err)
		}
	}
}

func TestPinnedCopies(t *testing.T) {
	policy, err := redirect.NewPolicy(nil)
	if err != nil {
		t.Fatal(err)
	}
	challenge := answer(403, "<html>checking your browser", "Content-Type", "text/html")
	for id, name := range map[string]string{
		"https://claude.ai/oauth/mcp-oauth-client-metadata":   "Claude",
		"https://claude.ai/oauth/claude-code-client-metadata": "Claude Code",
		"https://chatgpt.com/oauth/client.json":               "ChatGPT",
		"https://chatgpt.com/oauth/codex/client.json":         "Codex",
		"https://vscode.dev/oauth/client-metadata.json":       "Visual Studio Code",
	} {
		doc, err := fetcher(challenge).Fetch(t.Context(), id)
		if err != nil || doc.Metadata.ClientName != name || !doc.FreshUntil.Equal(now.Add(5*time.Minute)) {
			t.Errorf("%s: %+v, %v", id, doc, err)
		}
		for _, uri := range doc.Metadata.RedirectURIs {
			if !policy.Allows(uri) {
				t.Errorf("%s: %s is not on the shipped list", id, uri)
			}
		}
		if _, err := fetcher(answer(410, "")).Fetch(t.Context(), id); err == nil {
			t.Errorf("%s: a withdrawn document lives on", id)
		}
		if _, err := fetcher(answer(200, document(""))).Fetch(t.Context(), id); err == nil {
			t.Errorf("%s: a document that is wrong was replaced", id)
		}
	}
	if _, err := fetcher(challenge).Fetch(t.Context(), id); err == nil {
		t.Error("an unknown id has a copy")
	}
}

func TestOverRealHTTP(t *testing.T) {
	var hits []string
	mux := http.NewServeMux()
	s := httptest.NewServer(mux)
	defer s.Close()
	mux.HandleFunc("/c.json", func(w http.ResponseWriter, r *http.Request) {
		hits = append(hits, r.URL.Path)
		fmt.Fprintf(w, `{"client_id":"%s/c.json","client_name":"Local","redirect_uris":["http://127.0.0.1/cb"]}`, s.URL)
	})
	mux.HandleFunc("/moved.json", func(w http.ResponseWriter, r *http.Request) {
		hits = append(hits, r.URL.Path)
		http.Redirect(w, r, "/c.json", http.StatusFound)
	})
	stop := make(chan struct{})
	defer close(stop)
	mux.HandleFunc("/slow.json", func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-stop:
		case <-r.Context().Done():
		}
	})
	client := safedial.New(safedial.Options{AllowLoopback: true, MaxRedirects: 3}).Client()
	defer client.CloseIdleConnections()
	f := cimd.New(cimd.Options{Client: client, AllowLoopback: true})
	doc, err := f.Fetch(t.Context(), s.URL+"/c.json")
	if err != nil || doc.Metadata.ClientName != "Local" {
		t.Errorf("%+v, %v", doc, err)
	}
	if _, err := f.Fetch(t.Context(), s.URL+"/moved.json"); err == nil {
		t.Error("a redirect was followed")
	}
	if fmt.Sprint(hits) != "[/c.json /moved.json]" {
		t.Errorf("requests %v", hits)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := f.Fetch(ctx, s.URL+"/slow.json"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a slow site: %v", err)
	}

	strict := safedial.New(safedial.Options{}).Client()
	_, err = cimd.New(cimd.Options{Client: strict, AllowLoopback: true}).Fetch(t.Context(), s.URL+"/c.json")
	var refused *safedial.RefusedError
	if !errors.As(err, &refused) {
		t.Errorf("without safedial's mode: %v", err)
	}
}

// Anybody may name an id, so the number of fetches at one time is bounded, and
// more wait instead of failing.
func TestFetchesAtOnce(t *testing.T) {
	var mu sync.Mutex
	running, most := 0, 0
	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	f := fetcher(func(r *http.Request) (*http.Response, error) {
		mu.Lock()
		running++
		most = max(most, running)
		if running == 8 {
			open()
		}
		mu.Unlock()
		<-gate
		mu.Lock()
		running--
		mu.Unlock()
		return answer(404, "")(r)
	})
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() { f.Fetch(t.Context(), id) })
	}
	wg.Wait()
	if most != 8 {
		t.Errorf("%d fetches ran at once", most)
	}
}

func FuzzDocument(f *testing.F) {
	f.Add(id, document(""))
	f.Add("http://127.0.0.1:1/x", `{"client_id":"http://127.0.0.1:1/x"}`)
	f.Fuzz(func(t *testing.T, id, body string) {
		doc, err := fetcher(answer(200, body)).Fetch(t.Context(), id)
		if err != nil {
			return
		}
		if !strings.HasPrefix(strings.ToLower(id), "https://") || doc.Metadata.ClientName == "" || len(doc.Metadata.RedirectURIs) == 0 || !strings.Contains(body, "client_") && !strings.Contains(body, `\u`) {
			t.Fatalf("%q gives %+v", id, doc)
		}
	})
}
