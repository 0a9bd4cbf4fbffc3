package gateway

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentrelay/internal/oauth"
)

func TestChallenges(t *testing.T) {
	c := testConfig(t)
	c.PublicBaseURL = "https://gw.test"
	h := start(t, c)
	const where = `resource_metadata="https://gw.test/.well-known/oauth-protected-resource/mcp", scope="local-agents"`
	invalid := `Bearer error="invalid_token", error_description="The access token is malformed, unknown, expired or revoked.", ` + where
	for _, method := range []string{"POST", "GET", "DELETE", "PUT", "HEAD"} {
		for _, c := range []struct {
			name          string
			authorization []string
			want          string
		}{
			{"no credential", nil, "Bearer " + where},
			{"another scheme", []string{"Basic dTpw"}, "Bearer " + where},
			{"empty", []string{"Bearer"}, invalid},
			{"malformed", []string{"Bearer a b"}, invalid},
			{"two lines", []string{"Bearer " + goodToken, "Bearer x"}, invalid},
			{"unknown", []string{"bearer nonsense"}, invalid},
			{"very long", []string{"Bearer " + strings.Repeat("x", 5000)}, invalid},
		} {
			resp, body := h.do(t, request{method: method, path: "/mcp?v=1", header: map[string][]string{"Authorization": c.authorization}})
			if resp.StatusCode != 401 || resp.Header.Get("WWW-Authenticate") != c.want {
				t.Errorf("%s, %s: status %d, %q", method, c.name, resp.StatusCode, resp.Header.Get("WWW-Authenticate"))
			}
			if method != "HEAD" {
				httpFailure(t, resp, body)
			}
		}
	}
	resp, _ := h.do(t, request{path: "/mcp", header: legacy("Authorization", "Bearer "+narrowToken)})
	if got := resp.Header.Get("WWW-Authenticate"); resp.StatusCode != 403 || !strings.HasPrefix(got, `Bearer error="insufficient_scope"`) || !strings.HasSuffix(got, where) {
		t.Errorf("status %d, %q", resp.StatusCode, got)
	}
	resp, body := h.do(t, request{path: "/mcp", header: legacy("Authorization", "Bearer "+brokenToken)})
	if e := httpFailure(t, resp, body); resp.StatusCode != 503 || e.Code != "unavailable" || !e.Retryable || resp.Header.Get("Retry-After") == "" || resp.Header.Get("WWW-Authenticate") != "" {
		t.Errorf("trouble of the store: status %d, %v", resp.StatusCode, resp.Header)
	}
	if strings.Contains(body, "disk") || !strings.Contains(h.log.String(), "disk I/O error") {
		t.Errorf("the cause belongs into the log, not into the answer: %s", body)
	}
}

func TestMethodsOfTheEndpoint(t *testing.T) {
	h := start(t, testConfig(t))
	for _, method := range []string{"GET", "DELETE", "PUT", "PATCH"} {
		resp, body := h.do(t, request{method: method, path: "/mcp", header: legacy()})
		if resp.StatusCode != 405 || resp.Header.Get("Allow") != "POST, OPTIONS" || httpFailure(t, resp, body).Code != "method_not_allowed" {
			t.Errorf("%s: status %d, Allow %q", method, resp.StatusCode, resp.Header.Get("Allow"))
		}
	}
}

func TestUnknownAddresses(t *testing.T) {
	h := start(t, testConfig(t))
	url := h.config.MCPURL()
	for path, hint := range map[string]string{
		"/mcp/": url, "/mcp/sse": url, "/": url, "/sse": url, "/favicon.ico": url,
		"/.well-known/openid-configuration":           "oauth-authorization-server",
		"/.well-known/openid-configuration/mcp":       "oauth-authorization-server",
		"/mcp/.well-known/openid-configuration":       url,
		"/.well-known/anything":                       "oauth-protected-resource",
		"/.well-known/oauth-protected-resource/other": "oauth-protected-resource",
	} {
		for _, method := range []string{"GET", "POST"} {
			resp, body := h.do(t, request{method: method, path: path})
			if e := httpFailure(t, resp, body); resp.StatusCode != 404 || e.Code != "not_found" || !strings.Contains(e.Hint, hint) {
				t.Errorf("%s %s: status %d, %+v", method, path, resp.StatusCode, e)
			}
		}
	}
}

func TestWrongMethods(t *testing.T) {
	h := start(t, testConfig(t))
	for _, c := range []struct{ method, path, allow string }{
		{"POST", "/healthz", "GET, HEAD"},
		{"DELETE", "/.well-known/oauth-protected-resource", "GET, HEAD, OPTIONS"},
		{"GET", "/token", "POST, OPTIONS"},
		{"PUT", "/authorize", "GET, HEAD, POST"},
		{"GET", "/register", "POST, OPTIONS"},
		{"PROPFIND", "/revoke", "POST, OPTIONS"},
	} {
		resp, body := h.do(t, request{method: c.method, path: c.path})
		if resp.StatusCode != 405 || resp.Header.Get("Allow") != c.allow || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: status %d, Allow %q, %s", c.method, c.path, resp.StatusCode, resp.Header.Get("Allow"), body)
		}
		if isOAuthPath(c.path) && !strings.HasPrefix(body, `{"error":"invalid_request","error_description":`) {
			t.Errorf("%s: no OAuth error: %s", c.path, body)
		}
	}
}

func TestMetadataHasTwoAddresses(t *testing.T) {
	h := start(t, testConfig(t))
	for _, name := range []string{"oauth-protected-resource", "oauth-authorization-server"} {
		_, root := h.do(t, request{method: "GET", path: "/.well-known/" + name})
		resp, suffixed := h.do(t, request{method: "GET", path: "/.well-known/" + name + "/mcp"})
		if resp.StatusCode != 200 || root != suffixed || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: status %d\n%s\n%s", name, resp.StatusCode, root, suffixed)
		}
		if !strings.Contains(root, strconv.Quote(h.config.PublicBaseURL)) {
			t.Errorf("%s does not name %s: %s", name, h.config.PublicBaseURL, root)
		}
		if resp, _ := h.do(t, request{method: "HEAD", path: "/.well-known/" + name}); resp.StatusCode != 200 {
			t.Errorf("HEAD %s: %d", name, resp.StatusCode)
		}
	}
}

func TestRateLimits(t *testing.T) {
	h := start(t, testConfig(t))
	register := func(from string) *http.Response {
		resp, body := h.do(t, request{path: "/register", header: map[string][]string{"X-Forwarded-For": {from}, "Content-Type": {"application/json"}}, body: "{}"})
		if resp.StatusCode == 429 && !strings.Contains(body, `"error":"temporarily_unavailable"`) {
			t.Errorf("429: %s", body)
		}
		return resp
	}
	for i := range registerLimit {
		if resp := register("198.51.100.1"); resp.StatusCode == 429 {
			t.Fatalf("request %d of %d was refused", i+1, registerLimit)
		}
	}
	resp := register("198.51.100.1")
	if wait, err := strconv.Atoi(resp.Header.Get("Retry-After")); resp.StatusCode != 429 || err != nil || wait < 1 || wait > 600 {
		t.Errorf("status %d, Retry-After %q", resp.StatusCode, resp.Header.Get("Retry-After"))
	}
	if resp := register("198.51.100.2"); resp.StatusCode == 429 {
		t.Error("one client's limit refuses another")
	}
	for i := range 3 { // one /64
		want := 429
		if i == 0 {
			for j := range registerLimit {
				register(fmt.Sprintf("2001:db8:1:1::%d", j))
			}
		}
		if resp := register(fmt.Sprintf("2001:db8:1:1:%d::", i+1)); resp.StatusCode != want {
			t.Errorf("an IPv6 client escaped its limit: %d", resp.StatusCode)
		}
	}
}

// TestBodyBeforeAuthentication: a sender nobody knows gets its answer without the
// gateway reading what it sends.
func TestBodyBeforeAuthentication(t *testing.T) {
	h := start(t, testConfig(t))
	conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", 3<<20)
	conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || resp.StatusCode != 401 {
		t.Fatalf("no answer before the body: %v, %v", resp, err)
	}
	resp.Body.Close()

	big, body := h.do(t, request{path: "/token", header: map[string][]string{"Content-Type": {"application/x-www-form-urlencoded"}}, body: strings.Repeat("a", maxBodyUnauthenticated+1)})
	if big.StatusCode != 413 && big.StatusCode != 400 || !strings.Contains(body, `"error":"invalid_request"`) {
		t.Errorf("a large form: status %d, %s", big.StatusCode, body)
	}
}

func TestHealth(t *testing.T) {
	h := start(t, testConfig(t))
	for path, want := range map[string]string{"/healthz": `{"status":"ok"}`, "/readyz": `{"status":"ready"}`} {
		if resp, body := h.do(t, request{method: "GET", path: path}); resp.StatusCode != 200 || body != want {
			t.Errorf("%s: %d %s", path, resp.StatusCode, body)
		}
	}
	h.stop()
	resp, body := h.do(t, request{method: "GET", path: "/readyz"})
	if e := httpFailure(t, resp, body); resp.StatusCode != 503 || e.Code != "not_ready" || !strings.Contains(e.Message, "stopping") {
		t.Errorf("while stopping: %d %s", resp.StatusCode, body)
	}
	if resp, _ := h.do(t, request{method: "GET", path: "/healthz"}); resp.StatusCode != 200 {
		t.Error("not alive while stopping")
	}
}

func TestNotReadyWithoutTheStore(t *testing.T) {
	h := start(t, testConfig(t))
	if err := h.store.Close(); err != nil {
		t.Fatal(err)
	}
	resp, body := h.do(t, request{method: "GET", path: "/readyz"})
	if e := httpFailure(t, resp, body); resp.StatusCode != 503 || !strings.Contains(e.Message, "store") || strings.Contains(body, h.config.StateDir) {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if got := h.call(t, goodToken, "list_peers", nil).failure(t); got.Code != "unavailable" || !got.Retryable {
		t.Errorf("a tool without the store: %+v", got)
	}
}

func TestPanicInARouteIsAnAnswer(t *testing.T) {
	log := &logBuffer{}
	g := open(t, testConfig(t), log)
	g.oauth = panics{g.oauth}
	h := serve(t, g, g.Handler())
	resp, body := h.do(t, request{path: "/mcp", header: legacy()})
	if e := httpFailure(t, resp, body); resp.StatusCode != 500 || e.Code != "internal_error" || !strings.Contains(log.String(), e.ID) || !strings.Contains(log.String(), "boom") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

type panics struct{ authorizationServer }

func (panics) Authenticate(context.Context, string) (oauth.Access, error) { panic("boom") }
