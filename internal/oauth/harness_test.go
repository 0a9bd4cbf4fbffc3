package oauth

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"agentrelay/internal/audit"
	"agentrelay/internal/oauth/cimd"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testBase = "https://gw.test"
	claude   = "https://claude.ai/api/mcp/auth_callback"
	verifier = "the-verifier-of-this-test-has-more-than-43-characters"
)

func challengeOf(verifier string) string {
	sum := sha256.Sum256([]byte(verifier))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// clock is a time that tests move.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// documents is a Source that tests fill.
type documents struct {
	mu      sync.Mutex
	docs    map[string]cimd.Document
	fetches int
	err     error
}

func (d *documents) Fetch(_ context.Context, id string) (cimd.Document, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fetches++
	if doc, ok := d.docs[id]; ok && d.err == nil {
		return doc, nil
	}
	if d.err != nil {
		return cimd.Document{}, d.err
	}
	return cimd.Document{}, &cimd.Error{Reason: "There is no document."}
}

// syncBuffer is a log that handlers of many goroutines write to.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// relay is a server over a real store, with the clock in the test's hands.
type relay struct {
	testing.TB
	dir     string
	clock   *clock
	docs    *documents
	log     *syncBuffer
	options func(*Options)
	store   *store.Store
	server  *Server
	mux     *http.ServeMux
}

func newRelay(t testing.TB, options ...func(*Options)) *relay {
	t.Helper()
	r := &relay{TB: t, dir: t.TempDir() + "/state", clock: &clock{t: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)},
		docs: &documents{docs: map[string]cimd.Document{}}, log: &syncBuffer{},
		options: func(o *Options) {
			for _, f := range options {
				f(o)
			}
		}}
	r.open()
	t.Cleanup(func() { r.store.Close() })
	return r
}

func (r *relay) open() {
	r.Helper()
	var err error
	if r.store, err = store.Open(context.Background(), store.Options{Dir: r.dir, Now: r.clock.Now}); err != nil {
		r.Fatal(err)
	}
	o := Options{Store: r.store, PublicBaseURL: testBase, SharedOwner: true, Documents: r.docs, Now: r.clock.Now,
		Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	r.options(&o)
	if r.server, err = New(o); err != nil {
		r.Fatal(err)
	}
	r.mux = http.NewServeMux()
	r.mux.HandleFunc("/token", r.server.Token)
	r.mux.HandleFunc("/revoke", r.server.Revoke)
	r.mux.HandleFunc("/register", r.server.RegisterClient)
	for _, suffix := range []string{"", "/mcp"} {
		r.mux.HandleFunc("/.well-known/oauth-authorization-server"+suffix, r.server.ServerMetadata)
		r.mux.HandleFunc("/.well-known/oauth-protected-resource"+suffix, r.server.ResourceMetadata)
	}
}

// restart is what a restart of the gateway is to this package.
func (r *relay) restart() {
	r.Helper()
	if err := r.server.Close(context.Background()); err != nil {
		r.Fatal(err)
	}
	if err := r.store.Close(); err != nil {
		r.Fatal(err)
	}
	r.open()
}

type reply struct {
	status int
	header http.Header
	body   string
	json   map[string]any
}

func (r *relay) do(req *http.Request) reply {
	w := httptest.NewRecorder()
	r.mux.ServeHTTP(w, req)
	res := w.Result()
	body, _ := io.ReadAll(res.Body)
	out := reply{status: res.StatusCode, header: res.Header, body: string(body)}
	_ = json.Unmarshal(body, &out.json)
	return out
}

func (r *relay) post(path, contentType, body string) reply {
	req := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	return r.do(req)
}

func (r *relay) form(path string, pairs ...string) reply {
	return r.post(path, "application/x-www-form-urlencoded", params(pairs...).Encode())
}

func params(pairs ...string) url.Values {
	v := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		v.Add(pairs[i], pairs[i+1])
	}
	return v
}

func (r reply) text(name string) string {
	s, _ := r.json[name].(string)
	return s
}

// register registers a client and returns its id.
func (r *relay) register(redirects ...string) string {
	r.Helper()
	body, _ := json.Marshal(map[string]any{"client_name": "Claude", "redirect_uris": redirects})
	got := r.post("/register", "application/json", string(body))
	if got.status != http.StatusCreated {
		r.Fatalf("register: %d %s", got.status, got.body)
	}
	return got.text("client_id")
}

func authorizeParams(clientID, redirectURI string, more ...string) url.Values {
	v := params("response_type", "code", "client_id", clientID, "redirect_uri", redirectURI, "state", "s1",
		"code_challenge", challengeOf(verifier), "code_challenge_method", "S256", "scope", ScopeAgents)
	for i := 0; i+1 < len(more); i += 2 {
		if v.Del(more[i]); more[i+1] != "" {
			v.Set(more[i], more[i+1])
		}
	}
	return v
}

// consent plays the front door: the owner allows perms, or what is offered.
func (r *relay) consent(v url.Values, perms ...principal.Permission) (*url.URL, error) {
	r.Helper()
	a, err := r.server.checkAuthorization(context.Background(), v)
	if err != nil {
		return nil, err
	}
	set := a.permissions
	if len(perms) > 0 {
		set = principal.Set{}.With(perms...)
	}
	to, err := store.Write(context.Background(), r.store, func(tx *store.Tx) (string, error) { return r.server.issueCode(tx, a, set) })
	if err != nil {
		return nil, err
	}
	return url.Parse(to)
}

// code registers nothing and asks nobody: it returns a fresh code of the client.
func (r *relay) code(clientID, redirectURI string, more ...string) string {
	r.Helper()
	to, err := r.consent(authorizeParams(clientID, redirectURI, more...))
	if err != nil {
		r.Fatal(err)
	}
	return to.Query().Get("code")
}

func (r *relay) redeem(clientID, code string, more ...string) reply {
	return r.form("/token", append([]string{"grant_type", "authorization_code", "client_id", clientID, "code", code, "code_verifier", verifier}, more...)...)
}

func (r *relay) refresh(clientID, token string, more ...string) reply {
	return r.form("/token", append([]string{"grant_type", "refresh_token", "client_id", clientID, "refresh_token", token}, more...)...)
}

// login is a whole flow; it returns the client and its tokens.
func (r *relay) login(more ...string) (clientID string, got reply) {
	r.Helper()
	clientID = r.register(claude)
	got = r.redeem(clientID, r.code(clientID, claude, more...))
	if got.status != http.StatusOK {
		r.Fatalf("token: %d %s", got.status, got.body)
	}
	return clientID, got
}

func (r *relay) access(token string) (Access, error) {
	return r.server.Authenticate(context.Background(), token)
}

func (r *relay) mustAccess(token string) Access {
	r.Helper()
	a, err := r.access(token)
	if err != nil {
		r.Fatalf("the access token is refused: %v", err)
	}
	return a
}

func (r *relay) wantRefused(got reply, status int, code string) {
	r.Helper()
	if got.status != status || got.text("error") != code {
		r.Fatalf("got %d %s, want %d %s", got.status, got.body, status, code)
	}
	for _, member := range []string{"error_description", "hint", "id"} {
		if got.text(member) == "" {
			r.Errorf("%s is missing in %s", member, got.body)
		}
	}
	if !strings.Contains(r.log.String(), "id="+got.text("id")) {
		r.Errorf("the log has no line with id %s", got.text("id"))
	}
	if got.header.Get("Cache-Control") != "no-store" || got.header.Get("Content-Type") != "application/json" {
		r.Errorf("headers of a refusal: %v", got.header)
	}
}

func (r *relay) count(query string, args ...any) (n int) {
	r.Helper()
	err := store.Read(context.Background(), r.store, func(q *store.Reader) error { return q.QueryRow(query, args...).Scan(&n) })
	if err != nil {
		r.Fatal(err)
	}
	return n
}

func (r *relay) exec(query string, args ...any) {
	r.Helper()
	err := store.Exec(context.Background(), r.store, func(tx *store.Tx) error {
		_, err := tx.Exec(query, args...)
		return err
	})
	if err != nil {
		r.Fatal(err)
	}
}

// rows counts everything this package stores.
func (r *relay) rows() int {
	return r.count(`SELECT (SELECT count(*) FROM oauth_clients) + (SELECT count(*) FROM oauth_grants) + (SELECT count(*) FROM oauth_codes)
		+ (SELECT count(*) FROM oauth_access_tokens) + (SELECT count(*) FROM oauth_refresh_tokens) + (SELECT count(*) FROM audit_log)`)
}

func (r *relay) lastAudit(action string) audit.Entry {
	r.Helper()
	var all []audit.Entry
	err := store.Read(context.Background(), r.store, func(q *store.Reader) (err error) {
		all, err = audit.Last(q, 100)
		return err
	})
	if err != nil {
		r.Fatal(err)
	}
	for _, e := range all {
		if e.Action == action {
			return e
		}
	}
	r.Fatalf("no %s in the audit log: %+v", action, all)
	return audit.Entry{}
}
