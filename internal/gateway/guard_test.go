package gateway

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func publicConfig(t *testing.T) *harness {
	c := testConfig(t)
	c.PublicBaseURL = "https://gw.test"
	c.AllowedHosts = []string{"other.test"}
	c.AllowedOrigins = []string{"https://inspector.test"}
	return start(t, c)
}

func TestHosts(t *testing.T) {
	h := publicConfig(t)
	for host, ok := range map[string]bool{
		"gw.test": true, "GW.test:443": true, "gw.test.": true, "gw.test:8443": true,
		"other.test": true, "localhost": true, "localhost:6768": true, "127.0.0.1:1": true, "127.9.9.9": true, "[::1]:80": true,
		"evil.test": false, "gw.test.evil.test": false, "localhost.evil.test": false, "10.0.0.1": false, "127.0.0.1.nip.io": false,
		"xgw.test": false, "[::2]": false,
	} {
		for _, path := range []string{"/mcp", "/healthz", "/.well-known/oauth-authorization-server", "/authorize"} {
			resp, body := h.do(t, request{method: "GET", path: path, header: map[string][]string{"Host": {host}}})
			if refused := resp.StatusCode == http.StatusForbidden; refused == ok {
				t.Errorf("Host %s, %s: status %d", host, path, resp.StatusCode)
			} else if refused && !strings.Contains(body, host) {
				t.Errorf("Host %s, %s: the host is not named: %s", host, path, body)
			}
		}
	}
	resp, body := h.do(t, request{path: "/mcp", header: legacy("Host", "evil.test"), body: rpc(false, "ping", nil)})
	if e := httpFailure(t, resp, body); e.Code != "host_not_allowed" || !strings.Contains(e.Hint, "allowedHosts") || !strings.Contains(e.Hint, "https://gw.test/mcp") {
		t.Errorf("%+v", e)
	}
	long := strings.Repeat("a", 5000)
	if resp, body := h.do(t, request{path: "/mcp", header: legacy("Host", long)}); resp.StatusCode != 403 || len(body) > 600 {
		t.Errorf("a long host: status %d, %d bytes", resp.StatusCode, len(body))
	}
}

func TestOrigins(t *testing.T) {
	h := publicConfig(t)
	for origin, ok := range map[string]bool{
		"https://gw.test": true, "HTTPS://GW.TEST": true, "https://inspector.test": true,
		"http://localhost:6274": true, "http://127.0.0.1:1": true, "https://localhost": true, "http://[::1]:3000": true,
		"https://evil.test": false, "http://gw.test": false, "https://gw.test:444": false, "null": false, "https://localhost.evil.test": false,
		"ftp://localhost": false, "http://user@localhost": false, "": false,
	} {
		header := legacy("Accept", "application/json")
		header["Origin"] = []string{origin}
		resp, body := h.do(t, request{path: "/mcp", header: header, body: rpc(false, "ping", nil)})
		switch {
		case ok && (resp.StatusCode != 200 || resp.Header.Get("Access-Control-Allow-Origin") != origin):
			t.Errorf("Origin %q: status %d, allowed %q", origin, resp.StatusCode, resp.Header.Get("Access-Control-Allow-Origin"))
		case !ok && (resp.StatusCode != 403 || httpFailure(t, resp, body).Code != "origin_not_allowed" || resp.Header.Get("Access-Control-Allow-Origin") != ""):
			t.Errorf("Origin %q: status %d, %s", origin, resp.StatusCode, body)
		}
		if resp.Header.Get("Vary") != "Origin" || resp.Header.Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("Origin %q: %v", origin, resp.Header)
		}
	}
}

func TestPreflights(t *testing.T) {
	h := publicConfig(t)
	for path, wantOrigin := range map[string]string{
		"/mcp": "https://inspector.test", "/token": "*", "/register": "*", "/revoke": "*",
		"/.well-known/oauth-protected-resource": "*", "/.well-known/oauth-authorization-server/mcp": "*",
	} {
		resp, _ := h.do(t, request{method: "OPTIONS", path: path, header: map[string][]string{
			"Origin": {"https://inspector.test"}, "Access-Control-Request-Method": {"POST"},
			"Access-Control-Request-Headers": {"authorization, mcp-protocol-version, mcp-param-region, x-evil, mcp-bad header"},
		}})
		if resp.StatusCode != http.StatusNoContent || resp.Header.Get("Access-Control-Allow-Origin") != wantOrigin {
			t.Errorf("%s: status %d, origin %q", path, resp.StatusCode, resp.Header.Get("Access-Control-Allow-Origin"))
		}
		if got := resp.Header.Get("Access-Control-Allow-Methods"); got != "GET, POST, DELETE, OPTIONS" {
			t.Errorf("%s: methods %q", path, got)
		}
		headers := strings.ToLower(resp.Header.Get("Access-Control-Allow-Headers"))
		for _, name := range []string{"Authorization", "Content-Type", "Accept", "Last-Event-ID", "MCP-Protocol-Version", "Mcp-Session-Id", "Mcp-Method", "Mcp-Name", "Mcp-Param-Region"} {
			if !strings.Contains(headers, strings.ToLower(name)) {
				t.Errorf("%s: header %s is not allowed: %s", path, name, headers)
			}
		}
		if strings.Contains(headers, "x-evil") || strings.Contains(headers, "bad header") {
			t.Errorf("%s: %s", path, headers)
		}
	}
	if resp, _ := h.do(t, request{method: "OPTIONS", path: "/mcp"}); resp.StatusCode != http.StatusNoContent || resp.Header.Get("Allow") == "" {
		t.Errorf("OPTIONS without an origin: %d", resp.StatusCode)
	}
	if resp, _ := h.do(t, request{method: "OPTIONS", path: "/mcp", header: map[string][]string{"Origin": {"https://evil.test"}, "Access-Control-Request-Method": {"POST"}}}); resp.StatusCode != http.StatusForbidden {
		t.Errorf("a preflight of a strange page: %d", resp.StatusCode)
	}
}

// TestErrorsCanBeReadByPages: a browser client must see the challenge to begin
// the login.
func TestErrorsCanBeReadByPages(t *testing.T) {
	h := publicConfig(t)
	for _, c := range []struct {
		name, method, path, token string
		status                    int
		origin                    string
	}{
		{"no token", "GET", "/mcp", "", 401, "http://localhost:6274"},
		{"bad token", "POST", "/mcp", "nonsense", 401, "http://localhost:6274"},
		{"narrow token", "POST", "/mcp", narrowToken, 403, "http://localhost:6274"},
		{"store trouble", "POST", "/mcp", brokenToken, 503, "http://localhost:6274"},
		{"unknown metadata", "GET", "/.well-known/openid-configuration", "", 404, "*"},
		{"metadata", "GET", "/.well-known/oauth-protected-resource/mcp", "", 200, "*"},
		{"a token request without a client", "POST", "/token", "", 401, "*"},
	} {
		header := map[string][]string{"Origin": {"http://localhost:6274"}}
		if c.token != "" {
			header["Authorization"] = []string{"Bearer " + c.token}
		}
		resp, _ := h.do(t, request{method: c.method, path: c.path, header: header})
		if resp.StatusCode != c.status || resp.Header.Get("Access-Control-Allow-Origin") != c.origin {
			t.Errorf("%s: status %d, origin %q", c.name, resp.StatusCode, resp.Header.Get("Access-Control-Allow-Origin"))
		}
		for _, name := range []string{"WWW-Authenticate", "Mcp-Session-Id", "MCP-Protocol-Version", "Retry-After"} {
			if !strings.Contains(resp.Header.Get("Access-Control-Expose-Headers"), name) {
				t.Errorf("%s: %s is not exposed", c.name, name)
			}
		}
	}
}

func TestClientAddress(t *testing.T) {
	c := testConfig(t)
	for _, row := range []struct {
		name, peer string
		forwarded  []string
		want       string
	}{
		{"a client without a proxy", "203.0.113.9:1", []string{"198.51.100.1"}, "203.0.113.9"},
		{"through the local proxy", "127.0.0.1:1", []string{"198.51.100.1"}, "198.51.100.1"},
		{"what the client claims is left of it", "127.0.0.1:1", []string{"1.1.1.1, 198.51.100.1"}, "198.51.100.1"},
		{"several lines", "[::1]:1", []string{"1.1.1.1", "198.51.100.1, 127.0.0.1"}, "198.51.100.1"},
		{"a chain of trusted proxies", "127.0.0.1:1", []string{"127.0.0.5"}, "127.0.0.1"},
		{"a proxy that names nobody", "127.0.0.1:1", nil, "127.0.0.1"},
		{"garbage", "127.0.0.1:1", []string{"198.51.100.1, unknown"}, "127.0.0.1"},
		{"mapped", "127.0.0.1:1", []string{"::ffff:198.51.100.1"}, "198.51.100.1"},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = row.peer
		r.Header["X-Forwarded-For"] = row.forwarded
		got := ""
		findAddress(c.Proxies())(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = clientAddress(r) })).ServeHTTP(httptest.NewRecorder(), r)
		if got != row.want {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
	}
}
