package e2e

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/oauth2"

	"agentrelay/internal/client"
	"agentrelay/internal/e2e/rig"
	"agentrelay/internal/principal"
)

// looks are the browsers in which each page is seen. The phone runs no scripts.
var looks = map[string]look{"desktop": desktop, "phone": phone}

// visitor is an OAuth client whose owner is asked in the browser.
type visitor struct {
	t        *testing.T
	server   *client.Server
	id       string
	redirect string
	flow     *client.Flow
}

func visit(t *testing.T, s *client.Server, name, redirect string) *visitor {
	t.Helper()
	id, err := s.Register(t.Context(), name, redirect)
	if err != nil {
		t.Fatal(err)
	}
	return &visitor{t: t, server: s, id: id, redirect: redirect}
}

// begin is the address of a new authorization request.
func (v *visitor) begin() string {
	v.flow = v.server.Authorize(v.id, "", v.redirect)
	return v.flow.URL
}

// redeem checks the redirect and exchanges its code.
func (v *visitor) redeem(redirected string) *oauth2.Token {
	v.t.Helper()
	if !strings.HasPrefix(redirected, v.redirect+"?") {
		v.t.Fatalf("the browser was sent to %s, want %s", redirected, v.redirect)
	}
	to, err := url.Parse(redirected)
	if err != nil {
		v.t.Fatal(err)
	}
	token, err := v.flow.Redeem(v.t.Context(), to)
	if err != nil {
		v.t.Fatal(err)
	}
	return token
}

// call returns the code of a tool's refusal, "" for success.
func (v *visitor) call(token *oauth2.Token, tool string, arguments any) string {
	v.t.Helper()
	session, err := v.server.Connect(v.t.Context(), "visitor", token.AccessToken)
	if err != nil {
		v.t.Fatal(err)
	}
	defer session.Close()
	return refusalOf(v.t, session.Call(v.t.Context(), tool, arguments, nil))
}

// readable checks what holds for every page in every browser.
func readable(t *testing.T, v view) {
	t.Helper()
	if v.TooWide > 0 {
		t.Errorf("%s: %d pixels stand out to the right", v.Title, v.TooWide)
	}
	if len(v.Small) > 0 {
		t.Errorf("%s: too low to be touched: %q", v.Title, v.Small)
	}
	if v.Smallest < 13 {
		t.Errorf("%s: a text of %v pixels", v.Title, v.Smallest)
	}
	if v.Scripts > 0 {
		t.Errorf("%s: %d scripts", v.Title, v.Scripts)
	}
	if len(v.Complaints) > 0 {
		t.Errorf("%s: the browser complains: %q", v.Title, v.Complaints)
	}
}

func says(t *testing.T, v view, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(strings.Join(strings.Fields(v.Text), " "), text) {
			t.Errorf("%q does not say %q:\n%s", v.Title, text, v.Text)
		}
	}
}

// discover finds a gateway through a transport that is closed with the test.
func discover(t *testing.T, h *http.Client, mcpURL string) *client.Server {
	t.Helper()
	s, err := client.Discover(t.Context(), h, mcpURL)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// loopbackClient is an HTTP client that leaves no connection behind.
func loopbackClient(t *testing.T) *http.Client {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// app is a program on the owner's machine that waits for the redirect.
func app(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("You can close this page.\n"))
	}))
	t.Cleanup(s.Close)
	return s.URL + "/callback"
}

// On the owner's own machine, over plain HTTP.
func TestConsentOnLoopback(t *testing.T) {
	home := rig.NewHome(t, binary)
	home.Configure("safedial", object{"allowLoopback": true})
	home.Serve()
	server := discover(t, loopbackClient(t), home.MCPURL)
	b := startBrowser(t, startFront(t))
	for name, look := range looks {
		t.Run(name, func(t *testing.T) {
			p := b.newPage(t, look)
			v := visit(t, server, "Review desk", app(t))

			seen := p.open(v.begin())
			p.shot(name + "-question")
			readable(t, seen)
			says(t, seen, "Allow Review desk to use this gateway?", "its own claim", strings.TrimPrefix(strings.TrimSuffix(v.redirect, "/callback"), "http://"),
				"a program on your own computer", home.MCPURL, "local-agents", "Run commands")
			if len(seen.Ticked) != len(principal.All()) || !seen.AsksPassword {
				t.Errorf("the page offers %v, asks for the password: %v", seen.Ticked, seen.AsksPassword)
			}
			if strings.Contains(seen.Text, "Stay signed in") {
				t.Error("a session is offered over plain HTTP, where any program of the machine reads the cookie")
			}

			p.tick("Messages", false)
			p.tick("Run commands", false)
			p.fill("Owner password", "not the password")
			seen = p.press("Allow")
			p.shot(name + "-wrong-password")
			readable(t, without(seen, "401"))
			says(t, seen, "This is not the owner password.")
			if seen.last().Status != http.StatusUnauthorized || seen.Focus != "password" || seen.Ticked["mailbox"] || seen.Ticked["commands"] || !seen.Ticked["agents"] {
				t.Errorf("after a wrong password: status %d, focus on %q, ticked %v", seen.last().Status, seen.Focus, seen.Ticked)
			}

			p.fill("Owner password", home.Password)
			seen = p.key("Enter")
			if refusal := v.call(v.redeem(seen.URL), "list_peers", object{}); refusal != "not_permitted" {
				t.Errorf("a call that was not allowed is answered %q", refusal)
			}

			seen = p.open(v.begin())
			if seen.Ticked["mailbox"] || seen.Ticked["commands"] || !seen.Ticked["agents"] {
				t.Errorf("the second question starts from %v, not from what the client has", seen.Ticked)
			}
			p.tick("Messages", true)
			p.fill("Owner password", home.Password)
			seen = p.press("Allow")
			if refusal := v.call(v.redeem(seen.URL), "list_peers", object{}); refusal != "" {
				t.Errorf("an allowed call is refused: %s", refusal)
			}

			p.open(v.begin())
			seen = p.press("Deny")
			to, err := url.Parse(seen.URL)
			if err != nil || to.Query().Get("error") != "access_denied" || to.Query().Get("state") == "" || to.Query().Get("iss") != server.Meta.Issuer || to.Query().Has("code") {
				t.Errorf("deny sends the browser to %s", seen.URL)
			}
			problems(t, p, server, name)
			unusualClients(t, p, server, name)
		})
	}
}

// without drops what the browser says about a status that is meant to be.
func without(v view, status string) view {
	v.Complaints = slices.DeleteFunc(slices.Clone(v.Complaints), func(s string) bool {
		return strings.HasPrefix(s, "Failed to load resource: the server responded with a status of "+status)
	})
	return v
}

// problems are the pages of requests that are refused before any redirect can
// be trusted.
func problems(t *testing.T, p *page, server *client.Server, name string) {
	t.Helper()
	stranger := visitor{t: t, server: server, id: "nobody", redirect: "https://elsewhere.example.net/cb"}
	seen := p.open(stranger.begin())
	p.shot(name + "-unknown-client")
	readable(t, without(seen, "400"))
	says(t, seen, "This client is not known here", "Remove the connector", "Add it again, with the address "+server.Resource, "invalid_client")
	if seen.last().Status != http.StatusBadRequest {
		t.Errorf("an unknown client gets status %d", seen.last().Status)
	}

	unlisted := visit(t, server, "Elsewhere", "https://elsewhere.example.net/cb")
	seen = p.open(unlisted.begin())
	p.shot(name + "-unlisted-address")
	readable(t, without(seen, "400"))
	says(t, seen, "This address is not allowed", "https://elsewhere.example.net/cb", "oauth.redirects")
}

// unusualClients are those whose words strain the page.
func unusualClients(t *testing.T, p *page, server *client.Server, name string) {
	t.Helper()
	long := visit(t, server, strings.Repeat("Unbroken", 25), "http://127.0.0.1/callback")
	seen := p.open(long.begin())
	p.shot(name + "-long-name")
	readable(t, seen)

	tricky := visit(t, server, `</h1><script>alert(1)</script> "&amp;`, "http://127.0.0.1/callback")
	seen = p.open(tricky.begin())
	readable(t, seen)
	says(t, seen, `Allow </h1><script>alert(1)</script> "&amp; to use this gateway?`)

	nameless := visit(t, server, "", "http://127.0.0.1/callback")
	seen = p.open(nameless.begin())
	readable(t, seen)
	says(t, seen, "Allow a client without a name")

	described := &visitor{t: t, server: server, redirect: "http://127.0.0.1:4711/callback"}
	described.id = serveDocument(t, `{"client_name": "Paper desk", "redirect_uris": ["http://127.0.0.1/callback"], "token_endpoint_auth_method": "none"}`)
	seen = p.open(described.begin())
	p.shot(name + "-metadata-document")
	readable(t, seen)
	says(t, seen, "Allow Paper desk to use this gateway?", described.id)
}

// publicHost is the public name of a gateway behind the front. Clients made by
// the front's server reach any name in this domain.
const publicHost = "relay.example.com"

// startPublic starts a gateway that clients reach by HTTPS through the front.
func startPublic(t *testing.T, f *front) (*rig.Home, *url.URL) {
	t.Helper()
	home := rig.NewHome(t, binary)
	local, err := url.Parse(strings.TrimSuffix(home.MCPURL, "/mcp"))
	if err != nil {
		t.Fatal(err)
	}
	f.proxy(publicHost, local, nil)
	home.Configure("publicBaseUrl", "https://"+publicHost)
	home.MCPURL = "https://" + publicHost + "/mcp"
	home.Serve()
	return home, local
}

// Over HTTPS, where the owner may stay signed in, and from where the browser goes
// on to the sites and apps of the clients.
func TestConsentOverHTTPS(t *testing.T) {
	f := startFront(t)
	home, _ := startPublic(t, f)
	server := discover(t, f.server.Client(), home.MCPURL)
	b := startBrowser(t, f)
	for name, look := range looks {
		t.Run(name, func(t *testing.T) {
			chatgpt := visit(t, server, "ChatGPT", "https://chatgpt.com/connector/oauth/Ab-12_x")
			cursor := visit(t, server, "Cursor", "cursor://anysphere.cursor-mcp/oauth/callback")
			p := b.newPage(t, look)

			seen := p.open(chatgpt.begin())
			p.shot(name + "-https-question")
			readable(t, seen)
			says(t, seen, "Allow ChatGPT to use this gateway?", "chatgpt.com", "Stay signed in")
			if strings.Contains(seen.Text, "on your own computer") {
				t.Error("a page that leads to a site warns of programs on this computer")
			}
			f.arrived()
			p.tick("Stay signed in", true)
			p.fill("Owner password", home.Password)
			seen = p.press("Allow")
			arrived := f.arrived()
			if len(arrived) != 1 || arrived[0].String() != seen.URL || len(seen.Complaints) > 0 {
				t.Fatalf("the browser is at %s and complains %q; the client's site got %v", seen.URL, seen.Complaints, arrived)
			}
			if refusal := chatgpt.call(chatgpt.redeem(seen.URL), "list_peers", object{}); refusal != "" {
				t.Errorf("the first call: %s", refusal)
			}

			// A client that is an app gets its code by a scheme of its own, and
			// the signed-in owner is not asked for the password again.
			seen = p.open(cursor.begin())
			p.shot(name + "-signed-in")
			readable(t, seen)
			says(t, seen, "anysphere.cursor-mcp", "The app on your device", "You are signed in on this browser")
			if seen.AsksPassword || !seen.Ticked["yes"] {
				t.Errorf("signed in, the page asks for the password: %v, keeps the session: %v", seen.AsksPassword, seen.Ticked["yes"])
			}
			seen = p.press("Allow")
			readable(t, seen)
			if seen.last().Failure != "net::ERR_ABORTED" { // it left the browser
				t.Errorf("the way to the app: %+v", seen.Trips)
			}
			cursor.redeem(seen.last().URL)

			// Without the tick the session ends. The browser's question whether to
			// open the app stands in front of the first page.
			p = p.tab()
			p.open(cursor.begin())
			p.tick("Stay signed in", false)
			seen = p.press("Allow")
			cursor.redeem(seen.last().URL)
			if seen = p.tab().open(cursor.begin()); !seen.AsksPassword {
				t.Error("the owner signed out and is not asked for the password")
			}
		})
	}
	night := b.newPage(t, look{Width: 390, Height: 844, Phone: true, Dark: true})
	readable(t, night.open(visit(t, server, "ChatGPT", "https://chatgpt.com/connector/oauth/night").begin()))
	night.shot("phone-dark")
}

// The redirects above succeed because the policy of the page names their target:
// without it Chromium drops them, and these tests would see that.
func TestBrowserDropsRedirectsThatThePolicyDoesNotName(t *testing.T) {
	f := startFront(t)
	home, local := startPublic(t, f)
	server := discover(t, f.server.Client(), home.MCPURL)
	formAction := regexp.MustCompile(`form-action [^;]*`)
	f.proxy(publicHost, local, func(r *http.Response) error {
		if policy := r.Header.Get("Content-Security-Policy"); policy != "" {
			r.Header.Set("Content-Security-Policy", formAction.ReplaceAllString(policy, "form-action 'self'"))
		}
		return nil
	})
	p := startBrowser(t, f).newPage(t, desktop)
	for _, redirect := range []string{"https://chatgpt.com/connector/oauth/x", "cursor://anysphere.cursor-mcp/oauth/callback"} {
		f.arrived()
		p.open(visit(t, server, "Client", redirect).begin())
		p.fill("Owner password", home.Password)
		seen := p.press("Allow")
		complains := slices.ContainsFunc(seen.Complaints, func(s string) bool { return strings.Contains(s, "Content Security Policy") })
		if len(f.arrived()) > 0 || strings.HasPrefix(seen.last().URL, redirect) || !complains {
			t.Errorf("%s: %+v, complaints %q", redirect, seen.Trips, seen.Complaints)
		}
	}
}

// Guessing costs time that grows, and does not keep the owner out who is signed
// in elsewhere.
func TestConsentLockOut(t *testing.T) {
	f := startFront(t)
	home, _ := startPublic(t, f)
	server := discover(t, f.server.Client(), home.MCPURL)
	b := startBrowser(t, f)
	for name, look := range looks {
		t.Run(name, func(t *testing.T) {
			address := map[string]string{"desktop": "203.0.113.7", "phone": "203.0.113.8"}[name]
			v := visit(t, server, "Claude", "https://claude.ai/api/mcp/auth_callback")
			owner := b.newPage(t, look.from(address))
			owner.open(v.begin())
			owner.tick("Stay signed in", true)
			owner.fill("Owner password", home.Password)
			v.redeem(owner.press("Allow").URL)

			p := b.newPage(t, look.from(address))
			seen := p.open(v.begin())
			for tries := 1; seen.last().Status != http.StatusTooManyRequests; tries++ {
				if tries > 10 {
					t.Fatalf("ten wrong passwords, and still no pause: %+v", seen.Trips)
				}
				p.fill("Owner password", "a guess")
				seen = p.press("Allow")
				if tries == 3 {
					says(t, seen, "The next try is possible in 1 second.")
					p.shot(name + "-pause")
				}
			}
			p.shot(name + "-locked")
			readable(t, without(seen, "429"))
			says(t, seen, "Too many wrong passwords", "Nothing was allowed", "gateway owner reset-password")

			owner.open(v.begin())
			v.redeem(owner.press("Allow").URL)

			question := v.begin()
			p.open(question)
			for until := time.Now().Add(time.Minute); ; {
				p.fill("Owner password", home.Password)
				if seen = p.press("Allow"); strings.HasPrefix(seen.URL, v.redirect) {
					break
				}
				if seen.last().Status != http.StatusTooManyRequests || time.Now().After(until) {
					t.Fatalf("the right password after the pause: %+v\n%s", seen.Trips, seen.Text)
				}
				if seen = p.press("Back to the request"); !seen.AsksPassword {
					t.Fatalf("the way back leads to %s", seen.Text)
				}
			}
			v.redeem(seen.URL)
		})
	}
}
