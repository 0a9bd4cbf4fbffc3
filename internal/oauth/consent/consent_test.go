package consent_test

import (
	"crypto/sha256"
	"encoding/base64"
	"flag"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/html"

	"agentrelay/internal/oauth/consent"
	"agentrelay/internal/principal"
)

var update = flag.Bool("update", false, "write the golden pages")

func question() consent.Question {
	return consent.Question{
		Client:      consent.Client{ID: "3f0c6d0e-8d5d-4a55-9a0f-0b8a3d0d6f10", Name: "Claude", Kind: consent.Dynamic},
		RedirectURI: "https://claude.ai/api/mcp/auth_callback", Resource: "https://relay.example.com/mcp", Scope: "local-agents offline_access",
		Allowed: principal.Full(), Token: "the-form-token", AskPassword: true, OfferRemember: true,
		Params: url.Values{"client_id": {"3f0c6d0e-8d5d-4a55-9a0f-0b8a3d0d6f10"}, "state": {"a\"b<c"}, "resource": {"https://relay.example.com/mcp", ""}},
	}
}

// shown are the pages in every state that looks different.
var shown = map[string]func(*consent.Pages, http.ResponseWriter) error{
	"consent": func(p *consent.Pages, w http.ResponseWriter) error { return p.Consent(w, 200, question()) },
	"consent-wrong-password": func(p *consent.Pages, w http.ResponseWriter) error {
		q := question()
		q.Allowed, q.Remember = principal.Set{principal.Mailbox, principal.FilesRead}, true
		q.Problem = "This is not the owner password. The next try is possible in 4 seconds."
		return p.Consent(w, 401, q)
	},
	"consent-signed-in": func(p *consent.Pages, w http.ResponseWriter) error {
		q := question()
		q.Client = consent.Client{ID: "https://vscode.dev/oauth/client-metadata.json", Name: "Visual Studio Code", Kind: consent.Metadata}
		q.RedirectURI, q.AskPassword, q.Remember = "http://127.0.0.1:33418/", false, true
		return p.Consent(w, 200, q)
	},
	"consent-custom-scheme": func(p *consent.Pages, w http.ResponseWriter) error {
		q := question()
		q.Client = consent.Client{ID: "c1", Name: "Cursor", Kind: consent.Registered}
		q.RedirectURI, q.OfferRemember = "cursor://anysphere.cursor-mcp/oauth/callback", false
		return p.Consent(w, 200, q)
	},
	"consent-hostile": func(p *consent.Pages, w http.ResponseWriter) error {
		q := question()
		q.Client.Name = `</title><script>alert(1)</script>" onload="x` + strings.Repeat("W", 150)
		q.Client.ID = "https://evil.test/<b>"
		q.Client.Kind = consent.Metadata
		return p.Consent(w, 200, q)
	},
	"consent-nameless": func(p *consent.Pages, w http.ResponseWriter) error {
		q := question()
		q.Client.Name = ""
		return p.Consent(w, 200, q)
	},
	"unknown-client": func(p *consent.Pages, w http.ResponseWriter) error {
		pr := consent.UnknownClient("This gateway does not know the client that sent you here. It may have been removed, or the gateway's state was replaced.", "https://relay.example.com/mcp")
		pr.Code, pr.ID = "invalid_client", "k3v9m2qa"
		return p.Problem(w, 400, pr)
	},
	"problem": func(p *consent.Pages, w http.ResponseWriter) error {
		return p.Problem(w, 400, consent.Problem{Heading: "This address is not allowed", Code: "invalid_redirect_uri", ID: "k3v9m2qa",
			Message: "This gateway sends nobody to https://unlisted.example.com/a/rather/long/path/to/oauth/callback: the address is not on its list.",
			Hint:    `If you trust it, add "https://unlisted.example.com/a/rather/long/path/to/oauth/callback" to oauth.redirects in the gateway's config, restart the gateway and start again from the client.`})
	},
	"locked": func(p *consent.Pages, w http.ResponseWriter) error {
		return p.Locked(w, 11500*time.Millisecond, "authorize?client_id=a&state=b")
	},
}

func TestPages(t *testing.T) {
	pages := consent.New()
	for name, show := range shown {
		w := httptest.NewRecorder()
		if err := show(pages, w); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		body := w.Body.String()
		checkPage(t, name, body, w.Header().Get("Content-Security-Policy"))
		golden := filepath.Join("testdata", name+".html")
		// The style is the same on every page, and has a file of its own.
		before, rest, _ := strings.Cut(body, "<style>")
		_, after, _ := strings.Cut(rest, "</style>")
		got := before + "<style></style>" + after
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (go test -update writes it anew): %s", name, diff)
		}
	}
}

// checkPage applies what every page promises.
func checkPage(t *testing.T, name, body, policy string) {
	t.Helper()
	root, err := html.Parse(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	titles, ids, labelled := 0, map[string]bool{}, map[string]bool{}
	for n := range root.Descendants() {
		attrs := map[string]string{}
		for _, a := range n.Attr {
			attrs[a.Key] = a.Val
			if strings.HasPrefix(a.Key, "on") || a.Key == "style" {
				t.Errorf("%s: attribute %s", name, a.Key)
			}
		}
		ids[attrs["id"]] = true
		switch n.Data {
		case "script", "img", "link", "iframe", "object":
			t.Errorf("%s: element %s", name, n.Data)
		case "style":
			sum := sha256.Sum256([]byte(n.FirstChild.Data))
			if hash := "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"; !strings.Contains(policy, "style-src "+hash+";") {
				t.Errorf("%s: the style's hash is %s, the policy %s", name, hash, policy)
			}
		case "title":
			titles++
		case "label":
			labelled[attrs["for"]] = true
		case "input":
			if attrs["type"] == "checkbox" && n.Parent.Data != "label" {
				t.Errorf("%s: a box without a label", name)
			}
		}
		if described := attrs["aria-describedby"]; described != "" && !strings.Contains(body, `id="`+described+`"`) {
			t.Errorf("%s: %s does not exist", name, described)
		}
	}
	if titles != 1 {
		t.Errorf("%s: %d titles", name, titles)
	}
	if ids["password"] && !labelled["password"] {
		t.Errorf("%s: the password has no label", name)
	}
}

func TestWords(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 seconds", time.Millisecond: "1 second", time.Second: "1 second", 1001 * time.Millisecond: "2 seconds", 90 * time.Second: "90 seconds",
		91 * time.Second: "2 minutes", 15 * time.Minute: "15 minutes",
	} {
		if got := consent.Words(d); got != want {
			t.Errorf("Words(%v) = %q", d, got)
		}
	}
}
