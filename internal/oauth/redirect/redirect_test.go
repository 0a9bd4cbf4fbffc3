package redirect_test

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"agentrelay/internal/oauth/redirect"
)

// known are the redirect URIs that clients send.
var known = []string{
	"https://chatgpt.com/connector_platform_oauth_redirect",
	"https://chatgpt.com/connector/oauth/conn_68a1B-c.d~e",
	"https://chat.openai.com/connector_platform_oauth_redirect",
	"https://chat.openai.com/connector/oauth/abc",
	"https://claude.ai/api/mcp/auth_callback",
	"https://claude.com/api/mcp/auth_callback",
	"http://localhost:53682/callback", // Claude Code, Codex
	"http://127.0.0.1:1455/callback/abc",
	"http://[::1]:9/callback",
	"http://localhost/callback",
	"https://grok.com/connectors-oauth-exchange-code/",
	"cursor://anysphere.cursor-mcp/oauth/callback",
	"https://www.cursor.com/agents/mcp/oauth/callback",
	"http://localhost:8787/callback",
	"http://127.0.0.1:33418/", // VS Code
	"http://127.0.0.1:33418",
	"https://vscode.dev/redirect",
	"https://insiders.vscode.dev/redirect",
	"https://oauth-redirect.googleusercontent.com/r/my-project-1",
	"https://www.perplexity.ai/rest/connections/oauth_callback",
	"https://callback.mistral.ai/v1/integrations_auth/oauth2_callback",
	"http://127.0.0.1:19876/mcp/oauth/callback", // opencode
}

func newPolicy(t *testing.T, extra ...string) *redirect.Policy {
	t.Helper()
	p, err := redirect.NewPolicy(extra)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestKnownClientsPass(t *testing.T) {
	p := newPolicy(t)
	for _, uri := range known {
		if err := redirect.Registrable(uri); err != nil {
			t.Errorf("%s can't be registered: %v", uri, err)
		}
		if !p.Allows(uri) {
			t.Errorf("%s may not receive a code", uri)
		}
	}
}

func TestUnlistedMayRegisterButNotAuthorise(t *testing.T) {
	p := newPolicy(t)
	for _, uri := range []string{
		"https://evil.test/callback", "https://claude.ai/api/mcp/auth_callback/", "https://claude.ai/api/mcp/auth_callback?x=1",
		"https://CLAUDE.ai/api/mcp/auth_callback", "https://claude.ai:443/api/mcp/auth_callback", "https://claude.ai.evil.test/api/mcp/auth_callback",
		"https://chatgpt.com/connector/oauth/", "https://chatgpt.com/connector/oauth/a/b", "https://chatgpt.com/connector/oauth/a?b", "https://chatgpt.com/connector/oauth/..",
		"https://chatgpt.com/connector/oauth/%2e%2e", "https://chatgpt.com/connector/oauth", "https://chatgpt.com/connector/oauth/" + strings.Repeat("a", 300),
		"https://grok.com/connectors-oauth-exchange-code", "cursor://anysphere.other/oauth/callback", "com.example.app://host/cb", "vscode://vscode.github/cb",
	} {
		if err := redirect.Registrable(uri); err != nil {
			t.Errorf("%s can't be registered: %v", uri, err)
		}
		if p.Allows(uri) {
			t.Errorf("%s may receive a code", uri)
		}
	}
}

var refused = []string{
	"", "x", "/callback", "//evil.test/callback", "localhost:8080/callback", "javascript:alert(1)", "JavaScript:alert(1)", "javascript://claude.ai/%0aalert(1)",
	"data:text/html,x", "data://x/y", "file:///etc/passwd", "file://host/etc", "vbscript:x", "vbscript://h/x", "blob:https://claude.ai/x", "about:blank",
	"view-source://x/", "intent://x/#Intent;end", "ws://localhost/", "ftp://x/", "mailto:a@b.test", "com.example.app:/callback", "cursor:callback", "cursor:///callback",
	"http://evil.test/callback", "http://claude.ai/api/mcp/auth_callback", "http://192.168.1.5/callback", "http://10.0.0.1:80/", "http://0.0.0.0/", "http://127.0.0.2/",
	// look-alikes of loopback
	"http://localhost.evil.test/callback", "http://localhost:80@evil.test/", "http://localhost@evil.test/", "http://127.0.0.1.nip.io/", "http://127.0.0.1@evil.test/",
	"http://evil.test\\@localhost/", "http://localhost\\.evil.test/", "http://localhost%2eevil.test/", "http://[::1].evil.test/", "http://[::1%25lo]/", "http://[::ffff:127.0.0.1]/",
	"http://[0:0:0:0:0:0:0:1]/", "http://localhost./", "http://LOCALHOST/cb", "http://0x7f.1/", "http://127.1/", "http://2130706433/",
	"http://user@localhost/", "http://:pw@localhost/", "http://@localhost/", "http://localhost:/cb", "http://localhost:0/cb", "http://localhost:65536/cb", "http://localhost:8a/cb",
	"https://evil.test:70000/", "https://user:pw@claude.ai/api/mcp/auth_callback", "https://claude.ai/api/mcp/auth_callback#", "https://claude.ai/#x",
	"https://", "https:///path", "https:claude.ai/x", "https://?x", "https://evil.test;script-src/", "https://*/", "https://'self'/", "https://a,b/",
	// bytes that browsers rewrite or drop
	"https://claude.ai/\x00", "https://claude.ai/a b", " https://claude.ai/", "https://claude.ai/\r\nLocation: x", "https://claude.ai/\t", "https://claude.ai/é", "https://clаude.ai/",
	"https://claude.ai/\u202e", "https://claude.ai\\.evil.test/", "https://claude.ai/<script>", "https://claude.ai/\"", "https://claude.ai/%", "https://claude.ai/%zz", "https://claude.ai/{id}",
	"https://claude.ai/" + strings.Repeat("a", redirect.MaxLength),
}

func TestRefused(t *testing.T) {
	p := newPolicy(t)
	for _, uri := range refused {
		err := redirect.Registrable(uri)
		if err == nil {
			t.Errorf("%q can be registered", uri)
		} else if len(uri) > 20 && strings.Contains(err.Error(), uri) {
			t.Errorf("the error repeats the URI: %v", err)
		}
		if p.Allows(uri) || redirect.IsLoopback(uri) {
			t.Errorf("%q may receive a code", uri)
		}
	}
}

func TestMatch(t *testing.T) {
	registered := []string{"http://localhost/callback", "http://127.0.0.1:33418/", "https://localhost:1/tls", "http://localhost:5/q?a=b", "https://app.test/cb", "cursor://anysphere.cursor-mcp/oauth/callback"}
	for requested, want := range map[string]bool{
		"http://localhost/callback":                      true,
		"http://localhost:53682/callback":                true,
		"http://127.0.0.1:1/callback":                    false, // localhost is not 127.0.0.1
		"http://[::1]:1/callback":                        false,
		"https://localhost:53682/callback":               false,
		"http://localhost:53682/callback/":               false,
		"http://localhost:53682/Callback":                false,
		"http://localhost:53682/callback?x":              false,
		"http://localhost:53682/callback?":               false,
		"http://localhost:53682/%63allback":              false,
		"http://localhost:53682/x/../callback":           false,
		"http://localhost.evil.test/callback":            false,
		"http://localhost:80@evil.test/callback":         false,
		"http://127.0.0.1.nip.io/":                       false,
		"http://127.0.0.1/":                              true,
		"http://127.0.0.1":                               true, // the same request
		"http://127.0.0.1:65535":                         true,
		"http://127.0.0.1:65536":                         false,
		"https://localhost:2/tls":                        true,
		"http://localhost/q?a=b":                         true,
		"http://localhost/q?a=c":                         false,
		"https://app.test/cb":                            true,
		"https://app.test:443/cb":                        false,
		"https://app.test:8443/cb":                       false,
		"https://APP.test/cb":                            false,
		"https://app.test/cb#":                           false,
		"cursor://anysphere.cursor-mcp/oauth/callback":   true,
		"cursor://anysphere.cursor-mcp:1/oauth/callback": false,
		"": false,
	} {
		if got := redirect.Match(registered, requested); got != want {
			t.Errorf("Match(%q) = %v", requested, got)
		}
	}
	if redirect.Match(nil, "http://localhost/") {
		t.Error("something matches nothing")
	}
}

func TestEntries(t *testing.T) {
	p := newPolicy(t, "https://app.test/cb", "https://app.test/x/{id}", "myapp://host/{id}")
	for uri, want := range map[string]bool{
		"https://app.test/cb": true, "https://app.test/cb2": false, "https://app.test/x/1": true, "https://app.test/x/": false, "https://app.test/x/{id}": false,
		"https://app.test/x/1/2": false, "myapp://host/7": true, "myapp://host/": false,
	} {
		if got := p.Allows(uri); got != want {
			t.Errorf("Allows(%q) = %v", uri, got)
		}
	}
	bad := []string{"https://app.test/{id}/x", "https://app.test/a{id}", "https://app.test{id}", "https://{id}", "https://app.test/?x={id}", "https://app.test/?x=/{id}", "https://app.test/{id}/{id}", "{id}", "http://app.test/cb", "*", "https://*.app.test/cb", "https://app.test/*#"}
	_, err := redirect.NewPolicy(append(slices.Clone(bad), "https://fine.test/"))
	if err == nil {
		t.Fatal("bad entries were accepted")
	}
	for _, entry := range bad {
		if !strings.Contains(err.Error(), `"`+entry+`"`) {
			t.Errorf("the error does not name %q: %v", entry, err)
		}
	}
	if strings.Contains(err.Error(), "fine.test") {
		t.Errorf("the error names a good entry: %v", err)
	}
}

// Whatever port a loopback client takes, it matches itself, and moving the host
// never does.
func TestLoopbackPortProperty(t *testing.T) {
	hosts := []string{"localhost", "127.0.0.1", "[::1]"}
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.SampledFrom(hosts).Draw(t, "registered"), rapid.SampledFrom(hosts).Draw(t, "requested")
		path := rapid.StringMatching(`(/[a-z0-9._-]{0,8}){0,3}(\?[a-z=&]{0,6})?`).Draw(t, "path")
		port := func(name string) string {
			if n := rapid.IntRange(0, 65535).Draw(t, name); n > 0 {
				return ":" + strconv.Itoa(n)
			}
			return ""
		}
		registered, requested := "http://"+a+port("p1")+path, "http://"+b+port("p2")+path
		if got := redirect.Match([]string{registered}, requested); got != (a == b) {
			t.Fatalf("Match(%s, %s) = %v", registered, requested, got)
		}
	})
}

// FuzzRedirect checks that what is allowed is safe to put in a header, and leads
// where it seems to.
func FuzzRedirect(f *testing.F) {
	for _, uri := range slices.Concat(known, refused) {
		f.Add(uri)
	}
	p, err := redirect.NewPolicy(nil)
	if err != nil {
		f.Fatal(err)
	}
	listed := []string{}
	for _, entry := range redirect.Shipped() {
		u, _ := url.Parse(strings.TrimSuffix(entry, "{id}"))
		listed = append(listed, u.Scheme+"://"+u.Host)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		allowed, registrable := p.Allows(uri), redirect.Registrable(uri) == nil
		if allowed && !registrable {
			t.Fatalf("%q is allowed but can't be registered", uri)
		}
		if !registrable {
			return
		}
		u, err := url.Parse(uri)
		if err != nil || u.User != nil || u.Host == "" || strings.ContainsAny(uri, "\r\n\t \\\"<>") || strings.ContainsAny(u.Host, ";, '*") {
			t.Fatalf("%q can be registered", uri)
		}
		if allowed && !slices.Contains(listed, u.Scheme+"://"+u.Host) && !slices.Contains([]string{"localhost", "127.0.0.1", "::1"}, u.Hostname()) {
			t.Fatalf("%q is allowed", uri)
		}
		if !redirect.Match([]string{uri}, uri) {
			t.Fatalf("%q does not match itself", uri)
		}
	})
}
