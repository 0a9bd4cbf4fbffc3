package doctor

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"agentrelay/internal/admin"
	"agentrelay/internal/config"
	"agentrelay/internal/gateway"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/oauth/owner"
	"agentrelay/internal/principal"
	"agentrelay/internal/sealing"
	"agentrelay/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const publicName = "gateway.example.com"

// object is a JSON object.
type object = map[string]any

// installation is a gateway's machine with a proxy in front, each part of which a test
// can break before the doctor comes.
type installation struct {
	*testing.T
	dir    string
	config object // written before the doctor or the gateway reads it
	port   int
	o      Options

	// front stands before the proxy; nil lets all through.
	front func(next http.Handler) http.Handler
	cert  tls.Certificate
	roots *x509.CertPool

	mu   sync.Mutex
	seen []string // secrets that went through the proxy
}

// install makes a complete installation that is in order, with nothing running.
func install(t *testing.T) *installation {
	t.Helper()
	dir, err := os.MkdirTemp("", "doc") // short, for the socket's name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	i := &installation{T: t, dir: dir, port: freePort(t)}
	for _, d := range []string{"state", "project", "bin"} {
		i.must(os.Mkdir(filepath.Join(dir, d), 0o700))
	}
	i.config = object{
		"publicBaseUrl": "https://" + publicName, "port": i.port, "sharedOwner": true, "stateDir": i.state(), "allowedRoots": []string{dir},
		"direct":   object{"projects": []object{{"id": "p", "path": filepath.Join(dir, "project"), "commandMode": "registered", "commands": []object{{"name": "list", "argv": []string{"ls"}}}}}},
		"commands": object{"path": "/usr/bin:/bin"},
	}
	i.must(owner.WritePassword(filepath.Join(i.state(), "owner.json"), "correct horse battery staple", rand.Reader, false))
	_, err = sealing.LoadOrCreate(i.state())
	i.must(err)
	i.issue(nil)
	i.o = Options{
		ConfigPath: filepath.Join(dir, "config.json"), Version: "v1", Hold: 2 * time.Second,
		Getenv:   func(name string) string { return map[string]string{"HOME": dir}[name] },
		Dial:     nobody,
		Resolver: resolver{netip.MustParseAddr("93.184.215.14")},
		Units:    func(context.Context) []Unit { return []Unit{i.unit()} }, LogindKills: func(context.Context) (bool, bool) { return false, true },
		FreeBytes: func(string) (uint64, error) { return 50 << 30, nil },
	}
	return i
}

func (i *installation) state() string { return filepath.Join(i.dir, "state") }

func (i *installation) must(err error) {
	i.Helper()
	if err != nil {
		i.Fatal(err)
	}
}

// unit is a service that is as it should be.
func (i *installation) unit() Unit {
	lingers := true
	text := "[Service]\nExecStart=/bin/sh serve\nKillMode=process\n"
	return Unit{Manager: "systemd", Path: "/home/you/.config/systemd/user/agent-relay.service", Text: text + "# mine\nNice=5\n", Shipped: text, Program: "/bin/sh", Enabled: true, Running: true, Lingers: &lingers, KillMode: "process", Version: "v1"}
}

// set changes the config.
func (i *installation) set(key string, value any) { i.config[key] = value }

func (i *installation) write() {
	i.Helper()
	raw, err := json.Marshal(i.config)
	i.must(err)
	i.must(os.WriteFile(i.o.ConfigPath, raw, 0o600))
}

func (i *installation) load() *config.Config {
	i.Helper()
	i.write()
	c, _, err := config.Load(i.o.ConfigPath, i.o.Getenv)
	i.must(err)
	return c
}

// resolver gives every name these addresses, or none.
type resolver []netip.Addr

func (r resolver) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if len(r) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return r, nil
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// serve starts the gateway, and the proxy in front of it.
func (i *installation) serve() {
	i.Helper()
	g, err := gateway.New(i.Context(), gateway.Options{Config: i.load(), Version: "v1", Log: slog.New(slog.DiscardHandler)})
	i.must(err)
	ctx, stop := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- g.Run(ctx, func(string) { close(ready) }) }()
	<-ready
	i.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			i.Error(err)
		}
	})
	i.proxy()
}

// pretend has something in the gateway's place that only tells its status.
func (i *installation) pretend(status gateway.Status) {
	i.Helper()
	c := i.load()
	b, closeBackend, err := admin.Open(i.Context(), c, time.Now, rand.Reader, slog.New(slog.DiscardHandler))
	i.must(err)
	b.Status = func(context.Context) (any, error) { return status, nil }
	l, err := admin.Listen(c.StateDir)
	i.must(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- admin.Serve(ctx, l, b) }()
	i.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			i.Error(err)
		}
		if err := closeBackend(); err != nil {
			i.Error(err)
		}
	})
}

// proxy is what owners have in front of their gateways: it ends TLS and hands on.
func (i *installation) proxy() {
	i.Helper()
	target, err := url.Parse(fmt.Sprintf("http://127.0.0.1:%d", i.port))
	i.must(err)
	transport := &http.Transport{}
	forward := &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			if r.Out.Host = r.In.Host; r.In.Header.Get("X-No-Name") == "" {
				r.SetXForwarded()
			}
			r.Out.Header.Del("X-No-Name")
		},
	}
	var handler http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.mu.Lock()
		i.seen = append(i.seen, r.Header.Get("Authorization"), r.URL.Query().Get("doctor"), r.URL.Query().Get("state"))
		i.mu.Unlock()
		forward.ServeHTTP(w, r)
	})
	if i.front != nil {
		handler = i.front(handler)
	}
	s := httptest.NewUnstartedServer(handler)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{i.cert}}
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	s.StartTLS()
	i.Cleanup(func() {
		s.Close()
		transport.CloseIdleConnections()
	})
	i.o.RootCAs = i.roots
	i.o.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, s.Listener.Addr().String())
	}
}

// issue makes the proxy's certificate; change breaks it.
func (i *installation) issue(change func(*x509.Certificate)) {
	i.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	i.must(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(60 * 24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, DNSNames: []string{publicName}, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	i.must(err)
	leaf, err := x509.ParseCertificate(der)
	i.must(err)
	i.cert = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
	i.roots = x509.NewCertPool()
	i.roots.AddCert(leaf)
}

// run makes checks, all of them without ids.
func (i *installation) run(ids ...string) Report {
	i.Helper()
	if i.config != nil {
		i.write()
	}
	i.o.only = ids
	if len(ids) == 0 {
		i.o.only = nil
	}
	return Run(i.Context(), i.o)
}

// stored opens the store of an installation whose gateway does not run.
func (i *installation) stored(change func(*admin.Backend)) {
	i.Helper()
	b, closeBackend, err := admin.Open(i.Context(), i.load(), time.Now, rand.Reader, slog.New(slog.DiscardHandler))
	i.must(err)
	change(b)
	i.must(closeBackend())
}

// exec changes the database of an installation whose gateway does not run.
func (i *installation) exec(statements ...string) {
	i.Helper()
	i.stored(func(b *admin.Backend) {
		i.must(store.Exec(i.Context(), b.Store, func(tx *store.Tx) error {
			for _, s := range statements {
				if _, err := tx.Exec(s); err != nil {
					return err
				}
			}
			return nil
		}))
	})
}

// peer registers a peer of an owner.
func (i *installation) peer(owner, id string) {
	i.Helper()
	i.stored(func(b *admin.Backend) {
		who := principal.Principal{Owner: owner, ClientID: "x", Permissions: principal.Full()}
		_, err := b.Mailbox.RegisterPeer(i.Context(), who, mailbox.RegisterPeerIn{PeerID: id, Kind: mailbox.Chat})
		i.must(err)
	})
}

// backup makes one.
func (i *installation) backup() (dir string) {
	i.Helper()
	i.stored(func(b *admin.Backend) {
		set, err := b.Backups.Make(i.Context(), b.Store, "", "manual")
		i.must(err)
		dir = set.Dir
	})
	return dir
}

// onPath has the proxy answer one path in its own way.
func onPath(path string, answer http.HandlerFunc) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == path || path == "" {
				answer(w, r)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// answerWith answers with a status and a page.
func answerWith(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(status)
		io.WriteString(w, "<html>the proxy</html>")
	}
}

// rewriting has the proxy change the bodies of a path.
func rewriting(path string, change func(http.Header, []byte) []byte) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != path {
				next.ServeHTTP(w, r)
				return
			}
			rec := httptest.NewRecorder()
			next.ServeHTTP(rec, r)
			for k, v := range rec.Header() {
				if k != "Content-Length" {
					w.Header()[k] = v
				}
			}
			body := change(w.Header(), rec.Body.Bytes())
			w.WriteHeader(rec.Code)
			w.Write(body)
		})
	}
}

// before has the proxy change requests.
func before(change func(*http.Request)) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			change(r)
			next.ServeHTTP(w, r)
		})
	}
}

func find(r Report, id string, status Status) (Result, bool) {
	k := slices.IndexFunc(r.Results, func(x Result) bool { return x.ID == id && x.Status == status })
	if k < 0 {
		return Result{}, false
	}
	return r.Results[k], true
}
