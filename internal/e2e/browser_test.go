package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"agentrelay/internal/e2e/rig"
)

// browser is a headless Chromium. It is used by one goroutine at a time.
type browser struct {
	t     *testing.T
	to    io.Writer
	from  *bufio.Reader
	pages int
	shots string // directory of the screenshots
}

// startBrowser starts Chromium. Every https address that it opens is answered by
// front, and every other address but those of this machine by nobody.
func startBrowser(t *testing.T, front *front) *browser {
	t.Helper()
	executable, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("%v: run ./scripts/test, which installs it", err)
	}
	settings, err := json.Marshal(map[string]any{
		"executable": executable,
		"args": []string{
			"--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
			"--disable-component-update", "--disable-sync",
			"--host-resolver-rules=MAP *:443 " + front.address() + ", MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := rig.Node(t, "browser.mjs", string(settings))
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	cmd.Stderr = os.Stderr
	to, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	from, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		to.Close() // which ends it
		if err := cmd.Wait(); err != nil {
			t.Errorf("the browser ended with %v", err)
		}
	})
	b := &browser{t: t, to: to, from: bufio.NewReader(from), shots: os.Getenv("AGENT_RELAY_SCREENSHOTS")}
	if b.shots == "" {
		b.shots = t.ArtifactDir()
	}
	if err := os.MkdirAll(b.shots, 0o755); err != nil {
		t.Fatal(err)
	}
	return b
}

// look is what kind of browser a page is seen in.
type look struct {
	Width  int  `json:"width"`
	Height int  `json:"height"`
	Phone  bool `json:"phone"`
	Dark   bool `json:"dark"`
	// Script lets scripts run.
	Script bool `json:"script"`
	// Headers are sent with each request.
	Headers map[string]string `json:"headers,omitempty"`
}

var (
	desktop = look{Width: 1280, Height: 900, Script: true}
	phone   = look{Width: 390, Height: 844, Phone: true}
)

// from says that the browser has this address.
func (l look) from(address string) look {
	l.Headers = map[string]string{"X-Forwarded-For": address}
	return l
}

// page is one page of a browser.
type page struct {
	b       *browser
	t       *testing.T
	id      int
	context int
}

// newPage opens an empty page in a browser that has no cookies yet.
func (b *browser) newPage(t *testing.T, l look) *page {
	t.Helper()
	b.pages++
	p := &page{b, t, b.pages, b.pages}
	p.do("page", struct {
		look
		Context int `json:"context"`
	}{l, p.context})
	return p
}

// tab opens a further page beside this one, with its cookies.
func (p *page) tab() *page {
	p.t.Helper()
	p.b.pages++
	tab := &page{p.b, p.t, p.b.pages, p.context}
	tab.do("page", object{"context": p.context})
	return tab
}

// trip is one request for a document.
type trip struct {
	URL     string
	Status  int    // 0 when there was no answer
	Failure string // why there is none
}

// view is what is on a page after an action, and what happened on the way.
type view struct {
	URL, Title, Text string
	Trips            []trip
	Complaints       []string        // of the browser's console
	Ticked           map[string]bool // check boxes by their value
	AsksPassword     bool
	Focus            string   // id of the element that has it
	Scripts          int      // elements that would run one
	TooWide          int      // pixels that do not fit
	Small            []string // buttons, fields and boxes lower than 44 pixels
	Smallest         float64  // font size in pixels
	Failed           string
}

// last is where the last trip went.
func (v view) last() trip {
	if len(v.Trips) == 0 {
		return trip{}
	}
	return v.Trips[len(v.Trips)-1]
}

func (p *page) do(action string, with any) view {
	p.t.Helper()
	raw, err := json.Marshal(with)
	if err != nil {
		p.t.Fatal(err)
	}
	members := map[string]any{"do": action, "id": p.id}
	if err := json.Unmarshal(raw, &members); err != nil {
		p.t.Fatal(err)
	}
	line, err := json.Marshal(members)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := fmt.Fprintf(p.b.to, "%s\n", line); err != nil {
		p.t.Fatalf("the browser is gone: %v", err)
	}
	answer, err := p.b.from.ReadBytes('\n')
	if err != nil {
		p.t.Fatalf("the browser is gone: %v", err)
	}
	var v view
	if err := json.Unmarshal(answer, &v); err != nil {
		p.t.Fatal(err)
	}
	if v.Failed != "" {
		p.t.Fatalf("%s %s: %s", action, raw, v.Failed)
	}
	return v
}

func (p *page) open(url string) view { return p.do("open", map[string]any{"url": url}) }

// press presses a button or follows a link.
func (p *page) press(name string) view { return p.do("press", map[string]any{"name": name}) }

func (p *page) fill(label, value string) view {
	return p.do("fill", map[string]any{"label": label, "value": value})
}

// tick sets the check box whose label begins with these words.
func (p *page) tick(label string, on bool) view {
	return p.do("tick", map[string]any{"label": label, "on": on})
}

// key presses a key that leads away from the page.
func (p *page) key(key string) view { return p.do("key", map[string]any{"key": key}) }

// shot takes a picture of the whole page.
func (p *page) shot(name string) {
	p.do("shot", map[string]any{"path": filepath.Join(p.b.shots, name+".png")})
}

// front is an HTTPS server with a self-made certificate that stands for the whole
// internet: some hosts lead to a gateway, as the owner's reverse proxy would, and
// all others to a page that notes the request.
type front struct {
	server    *httptest.Server
	transport *http.Transport // to the gateways

	mu       sync.Mutex
	proxies  map[string]http.Handler
	arrivals []*url.URL
}

func startFront(t *testing.T) *front {
	f := &front{transport: &http.Transport{}, proxies: map[string]http.Handler{}}
	f.server = httptest.NewUnstartedServer(f)
	f.server.Config.ErrorLog = log.New(io.Discard, "", 0) // of connections that a browser gives up
	f.server.StartTLS()
	t.Cleanup(func() {
		f.server.Close()
		f.transport.CloseIdleConnections()
	})
	return f
}

func (f *front) address() string { return f.server.Listener.Addr().String() }

// proxy leads a host to a gateway on loopback. A client's own X-Forwarded-For is
// kept, as by proxies that stand behind others. change may be nil.
func (f *front) proxy(host string, gateway *url.URL, change func(*http.Response) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.proxies[host] = &httputil.ReverseProxy{
		Transport: f.transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(gateway)
			r.Out.Host = r.In.Host
			r.Out.Header["X-Forwarded-For"] = r.In.Header["X-Forwarded-For"]
			r.SetXForwarded()
		},
		ModifyResponse: change,
	}
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	proxy := f.proxies[r.Host]
	if proxy == nil && r.URL.Path != "/favicon.ico" {
		u := *r.URL
		u.Scheme, u.Host = "https", r.Host
		f.arrivals = append(f.arrivals, &u)
	}
	f.mu.Unlock()
	if proxy != nil {
		proxy.ServeHTTP(w, r)
		return
	}
	io.WriteString(w, "You are connected. You can close this page.\n")
}

// arrived returns what came to hosts that are no gateway since the last call.
func (f *front) arrived() []*url.URL {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.arrivals
	f.arrivals = nil
	return all
}
