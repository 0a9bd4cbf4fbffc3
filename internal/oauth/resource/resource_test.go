package resource_test

import (
	"net/url"
	"strings"
	"testing"

	"agentrelay/internal/oauth/resource"
)

var spellings = []struct {
	base, s string
	want    bool
}{
	{"https://gw.test", "", true},
	{"https://gw.test", "https://gw.test/mcp", true},
	{"https://gw.test", "https://gw.test/mcp/", true},
	{"https://gw.test", "https://gw.test", true},
	{"https://gw.test", "https://gw.test/", true},
	{"https://gw.test", "HTTPS://GW.Test/mcp", true},
	{"https://gw.test", "https://gw.test:443/mcp", true},
	{"https://gw.test", "https://gw.test:443", true},
	{"https://GW.test:443/", "https://gw.test/mcp", true},
	{"https://gw.test:8443", "https://gw.test:8443/mcp", true},
	{"http://127.0.0.1:6768", "http://127.0.0.1:6768/", true},
	{"http://127.0.0.1", "http://127.0.0.1:80/mcp", true},
	{"http://[::1]:6768", "http://[::1]:6768/mcp", true},
	{"https://gw.test/relay", "https://gw.test/relay/mcp", true},
	{"https://gw.test/relay", "https://gw.test/relay", true},

	{"https://gw.test", "https://gw.test/mcpx", false},
	{"https://gw.test", "https://gw.test/mcp//", false},
	{"https://gw.test", "https://gw.test//mcp", false},
	{"https://gw.test", "https://gw.test/MCP", false},
	{"https://gw.test", "https://gw.test/%6dcp", false},
	{"https://gw.test", "https://gw.test/x/../mcp", false},
	{"https://gw.test", "https://gw.test/mcp?", false},
	{"https://gw.test", "https://gw.test/mcp?x=1", false},
	{"https://gw.test", "https://gw.test/mcp#", false},
	{"https://gw.test", "https://gw.test/mcp#x", false},
	{"https://gw.test", "http://gw.test/mcp", false},
	{"https://gw.test", "http://gw.test:443/mcp", false},
	{"https://gw.test", "https://gw.test:8443/mcp", false},
	{"https://gw.test", "https://gw.test:/mcp", false},
	{"https://gw.test", "https://gw.test:0443/mcp", false},
	{"https://gw.test", "https://gw.test./mcp", false},
	{"https://gw.test", "https://gw.test.evil.test/mcp", false},
	{"https://gw.test", "https://evil.test/mcp", false},
	{"https://gw.test", "https://user@gw.test/mcp", false},
	{"https://gw.test", "https://@gw.test/mcp", false},
	{"https://gw.test", "https:gw.test/mcp", false},
	{"https://gw.test", "gw.test/mcp", false},
	{"https://gw.test", "/mcp", false},
	{"https://gw.test", "//gw.test/mcp", false},
	{"https://gw.test", " https://gw.test/mcp", false},
	{"https://gw.test", "https://gw.test/mcp ", false},
	{"https://gw.test", "https://gw.test\\mcp", false},
	{"https://gw.test", "urn:gw.test", false},
	{"https://gw.test/relay", "https://gw.test/mcp", false},
	{"https://gw.test/relay", "https://gw.test", false},
	{"http://[::1]:6768", "http://127.0.0.1:6768/mcp", false},
}

func TestAccepts(t *testing.T) {
	for _, c := range spellings {
		if got := resource.New(c.base).Accepts(c.s); got != c.want {
			t.Errorf("%s accepts %q: %v", c.base, c.s, got)
		}
	}
}

func TestCanonical(t *testing.T) {
	for base, want := range map[string]string{
		"https://gw.test": "https://gw.test/mcp", "https://gw.test/": "https://gw.test/mcp", "http://127.0.0.1:6768": "http://127.0.0.1:6768/mcp",
	} {
		if got := resource.New(base).String(); got != want || !resource.New(base).Accepts(want) {
			t.Errorf("New(%q) = %q", base, got)
		}
	}
}

func FuzzAccepts(f *testing.F) {
	for _, c := range spellings {
		f.Add(c.s)
	}
	r := resource.New("https://gw.test")
	f.Fuzz(func(t *testing.T, s string) {
		if !r.Accepts(s) || s == "" {
			return
		}
		u, err := url.Parse(s)
		if err != nil || !strings.EqualFold(u.Scheme, "https") || !strings.EqualFold(u.Hostname(), "gw.test") || u.Port() != "" && u.Port() != "443" ||
			u.User != nil || strings.ContainsAny(s, "?#%\\ ") || len(s) > len("https://gw.test:443/mcp/") {
			t.Fatalf("%q was accepted", s)
		}
	})
}
