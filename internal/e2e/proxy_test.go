package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/oauth2"

	"agentrelay/internal/client"
	"agentrelay/internal/config"
	"agentrelay/internal/gateway"
	"agentrelay/internal/oauth/owner"
)

// proxies is where the files lie that owners put in front of their gateways.
const proxies = "../../packaging/proxy/"

// proxyHost is the name in those files.
const proxyHost = "gateway.example.com"

// holdTime is how long a call is held through a proxy: longer than any default of a
// proxy that we know.
func holdTime() time.Duration {
	if testing.Short() {
		return 3 * time.Second
	}
	return 150 * time.Second
}

// fronted is a gateway whose public address is the one in the proxies' files, with
// two tools that a test of proxies needs: hold answers after a while, or notes that
// its caller has left, and measure answers how long a text is.
type fronted struct {
	password string
	project  string
	port     int
	direct   string // the address of the gateway with its own tools
	left     chan struct{}
	log      *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func startFronted(t *testing.T) *fronted {
	t.Helper()
	home, err := os.MkdirTemp("", "front")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	f := &fronted{project: filepath.Join(home, "project"), left: make(chan struct{}, 16), log: &lockedBuffer{}}
	if err := os.Mkdir(f.project, 0o755); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(object{
		"publicBaseUrl": "https://" + proxyHost, "sharedOwner": true, "stateDir": filepath.Join(home, "state"), "allowedRoots": []string{home},
		"direct": object{"projects": []object{{"id": "p", "path": f.project}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := config.Parse("config.json", raw, func(string) string { return home })
	if err != nil {
		t.Fatal(err)
	}
	c.Port = unusedPort(t)
	if f.password, err = owner.GeneratePassword(rand.Reader); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(c.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := owner.WritePassword(c.OwnerTokenFile, f.password, rand.Reader, false); err != nil {
		t.Fatal(err)
	}
	g, err := gateway.New(t.Context(), gateway.Options{Config: c, Log: slog.New(slog.NewJSONHandler(f.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	ready := make(chan struct{})
	go func() { ended <- g.Run(ctx, func(string) { close(ready) }) }()
	<-ready
	f.direct = fmt.Sprintf("http://127.0.0.1:%d/mcp", c.Port)
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.port = l.Addr().(*net.TCPAddr).Port
	s := &http.Server{Handler: g.HandlerFor(f.tools()), ReadHeaderTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute} // as the gateway's own
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return f
}

func (f *fronted) tools() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "fronted", Version: "1"}, nil)
	s.AddTool(&mcp.Tool{Name: "hold", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		var in struct{ Ms int }
		if err := json.Unmarshal(req.Params.Arguments, &in); err != nil {
			return nil, err
		}
		select {
		case <-time.After(time.Duration(in.Ms) * time.Millisecond):
			return &mcp.CallToolResult{StructuredContent: object{"held": in.Ms}}, nil
		case <-ctx.Done():
			f.left <- struct{}{}
			return nil, ctx.Err()
		}
	})
	s.AddTool(&mcp.Tool{Name: "measure", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		var in struct{ Text string }
		err := json.Unmarshal(req.Params.Arguments, &in)
		return &mcp.CallToolResult{StructuredContent: object{"length": len(in.Text), "back": in.Text}}, err
	})
	return s
}

// program starts a proxy and ends it with the test.
func program(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/" + name) // which is not on everybody's PATH
	}
	if err != nil {
		t.Fatalf("%v: run scripts/test, which installs it", err)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = []string{"HOME=" + dir, "XDG_DATA_HOME=" + dir, "XDG_CONFIG_HOME=" + dir, "PATH=" + os.Getenv("PATH")}
	out := &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt)
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			cmd.Process.Kill()
			<-ended
		}
		if t.Failed() {
			said := out.String()
			t.Logf("%s ends with\n%s", name, said[max(0, len(said)-3000):])
		}
	})
}

func unusedPort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// shipped is a file that owners get, with the gateway's port and other values of the
// owner put in, each of which must be there.
func shipped(t *testing.T, name string, port int, values ...string) string {
	t.Helper()
	text := file(t, proxies+name)
	for i := 0; i < len(values); i += 2 {
		if !strings.Contains(text, values[i]) {
			t.Fatalf("%s does not have %q", name, values[i])
		}
		text = strings.ReplaceAll(text, values[i], values[i+1])
	}
	return strings.ReplaceAll(text, "127.0.0.1:6768", fmt.Sprintf("127.0.0.1:%d", port))
}

// startCaddy serves with packaging/proxy/Caddyfile. What stands around it are the ports
// and the test's own authority.
func startCaddy(t *testing.T, f *fronted) *http.Client {
	t.Helper()
	dir := t.TempDir()
	port := unusedPort(t)
	write(t, dir, "shipped", shipped(t, "Caddyfile", f.port))
	write(t, dir, "Caddyfile", fmt.Sprintf("{\n\tadmin off\n\tlocal_certs\n\tskip_install_trust\n\tauto_https disable_redirects\n\thttps_port %d\n}\nimport %s/shipped\n", port, dir))
	program(t, dir, "caddy", "run", "--config", filepath.Join(dir, "Caddyfile"), "--adapter", "caddyfile")
	root := filepath.Join(dir, "caddy/pki/authorities/local/root.crt")
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if raw, err := os.ReadFile(root); err == nil && len(raw) > 0 {
			return through(t, port, raw)
		}
		if time.Now().After(deadline) {
			t.Fatal("caddy has made no certificate")
		}
	}
}

// startNginx serves with packaging/proxy/nginx.conf.
func startNginx(t *testing.T, f *fronted) *http.Client {
	t.Helper()
	dir := t.TempDir()
	port := unusedPort(t)
	ca := certificate(t, dir)
	write(t, dir, "shipped", shipped(t, "nginx.conf", f.port, "listen 443 ", fmt.Sprintf("listen 127.0.0.1:%d ", port), "/etc/letsencrypt/live/gateway.example.com", dir))
	user := ""
	if os.Getuid() == 0 {
		user = "user root;\n"
	}
	temp := ""
	for _, what := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		temp += fmt.Sprintf("  %s_temp_path %s/%s;\n", what, dir, what)
	}
	write(t, dir, "nginx.conf", fmt.Sprintf("%sdaemon off;\npid %[2]s/pid;\nerror_log stderr;\nevents {}\nhttp {\n  access_log off;\n%[3]s  include %[2]s/shipped;\n}\n", user, dir, temp))
	program(t, dir, "nginx", "-p", dir, "-e", "stderr", "-c", filepath.Join(dir, "nginx.conf"))
	return through(t, port, ca)
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// certificate makes an authority and a certificate of its for the proxy.
func certificate(t *testing.T, dir string) (authority []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, DNSNames: []string{proxyHost}, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	authority = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	write(t, dir, "fullchain.pem", string(authority))
	write(t, dir, "privkey.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	return authority
}

// through is an HTTP client for which the public name leads to the proxy.
func through(t *testing.T, port int, authority []byte) *http.Client {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		t.Fatal("the authority's certificate can't be read")
	}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 16,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if address != proxyHost+":443" {
				return nil, fmt.Errorf("a connection to %s", address)
			}
			var d net.Dialer
			return d.DialContext(ctx, network, "127.0.0.1:"+strconv.Itoa(port))
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	h := &http.Client{Transport: transport}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		resp, err := h.Get("https://" + proxyHost + "/healthz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return h
			}
			err = fmt.Errorf("status %d", resp.StatusCode)
		}
		if time.Now().After(deadline) {
			t.Fatalf("the proxy does not answer: %v", err)
		}
	}
}

// log in as a client does, through the proxy.
func (f *fronted) login(t *testing.T, h *http.Client) (*client.Server, *oauth2.Token) {
	t.Helper()
	server, err := client.Discover(t.Context(), h, "https://"+proxyHost+"/mcp")
	if err != nil {
		t.Fatal(err)
	}
	id, err := server.Register(t.Context(), "Client", flowRedirect)
	if err != nil {
		t.Fatal(err)
	}
	flow := server.Authorize(id, "", flowRedirect)
	to, err := flow.Consent(t.Context(), f.password, client.Allow)
	if err != nil {
		t.Fatal(err)
	}
	token, err := flow.Redeem(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	return server, token
}

// post sends one raw call.
func (f *fronted) post(ctx context.Context, h *http.Client, token, tool string, arguments object, header ...string) (*http.Response, error) {
	body, err := json.Marshal(object{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": object{"name": tool, "arguments": arguments}})
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+proxyHost+"/mcp", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("MCP-Protocol-Version", "2025-11-25")
	r.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return h.Do(r)
}

// The files of packaging/proxy, as they are: a login, calls that wait, uploads and
// downloads go through, and a client that leaves is known to have left.
func TestProxies(t *testing.T) {
	f := startFronted(t)
	content := make([]byte, 64<<20)
	_, _ = rand.Read(content)
	if err := os.WriteFile(filepath.Join(f.project, "large.bin"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	t.Run("each", func(t *testing.T) {
		for name, start := range map[string]func(*testing.T, *fronted) *http.Client{"caddy": startCaddy, "nginx": startNginx} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				h := start(t, f)
				server, token := f.login(t, h)
				var wg sync.WaitGroup
				wg.Go(func() { f.holds(t, server, token) })
				wg.Go(func() {
					f.private(t, h)
					f.streams(t, h, token.AccessToken)
					f.uploads(t, server, token)
					f.downloads(t, h, server, token, hex.EncodeToString(sum[:]))
					f.leaves(t, h, token.AccessToken)
					f.many(t, h, token.AccessToken)
				})
				wg.Wait()
			})
		}
	})
	if strings.Contains(f.log.String(), "203.0.113.66") {
		t.Error("an address that a client claimed is believed")
	}
}

func (f *fronted) holds(t *testing.T, server *client.Server, token *oauth2.Token) {
	s, err := server.Connect(t.Context(), "client", token.AccessToken)
	if err != nil {
		t.Error(err)
		return
	}
	defer s.Close()
	begun := time.Now()
	var out struct{ Held int }
	if err := s.Call(t.Context(), "hold", object{"ms": holdTime().Milliseconds()}, &out); err != nil || int64(out.Held) != holdTime().Milliseconds() {
		t.Errorf("a call of %v: %+v, %v after %v", holdTime(), out, err, time.Since(begun).Round(time.Millisecond))
	}
}

// private sees that what is for this machine is not for those behind a proxy.
func (f *fronted) private(t *testing.T, h *http.Client) {
	resp, err := h.Get("https://" + proxyHost + "/metrics")
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("/metrics through the proxy: status %d", resp.StatusCode)
	}
}

// streams sees that what keeps a stream alive arrives when it is sent.
func (f *fronted) streams(t *testing.T, h *http.Client, token string) {
	begun := time.Now()
	resp, err := f.post(t.Context(), h, token, "hold", object{"ms": 4000}, "Accept", "text/event-stream", "X-Forwarded-For", "203.0.113.66")
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if took := time.Since(begun); err != nil || line != ": ok\n" || took > 3*time.Second {
		t.Errorf("status %d, the first line is %q after %v, %v", resp.StatusCode, line, took, err)
	}
}

func (f *fronted) uploads(t *testing.T, server *client.Server, token *oauth2.Token) {
	s, err := server.Connect(t.Context(), "client", token.AccessToken)
	if err != nil {
		t.Error(err)
		return
	}
	defer s.Close()
	text := strings.Repeat("x", 4<<20-1000)
	var out struct{ Length int }
	if err := s.Call(t.Context(), "measure", object{"text": text}, &out); err != nil || out.Length != len(text) {
		t.Errorf("a call of 4 MiB: %d, %v", out.Length, err)
	}
}

func (f *fronted) downloads(t *testing.T, h *http.Client, server *client.Server, token *oauth2.Token, want string) {
	link := f.export(t, token.AccessToken)
	if link == "" {
		return
	}
	for _, part := range []string{"", "bytes=1000-1999"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, link, nil)
		if err != nil {
			t.Error(err)
			return
		}
		if part != "" {
			r.Header.Set("Range", part)
		}
		resp, err := h.Do(r)
		if err != nil {
			t.Error(err)
			return
		}
		sum := sha256.New()
		n, err := io.Copy(sum, resp.Body)
		resp.Body.Close()
		switch {
		case err != nil:
			t.Error(err)
		case part != "" && (resp.StatusCode != http.StatusPartialContent || n != 1000):
			t.Errorf("a part: status %d, %d bytes", resp.StatusCode, n)
		case part == "" && hex.EncodeToString(sum.Sum(nil)) != want:
			t.Errorf("%d bytes came, and they are others", n)
		}
	}
}

// export makes a link. The tool is one of the gateway's own, which does not stand
// behind the proxy.
func (f *fronted) export(t *testing.T, token string) string {
	body := strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"export_direct_file","arguments":{"projectId":"p","path":"large.bin","requestId":"` + token[len(token)-10:] + `"}}}`)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.direct, body)
	if err != nil {
		t.Error(err)
		return ""
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json")
	r.Header.Set("MCP-Protocol-Version", "2025-11-25")
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer resp.Body.Close()
	var out struct {
		Result struct {
			StructuredContent struct{ DownloadURL string }
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil || out.Result.StructuredContent.DownloadURL == "" {
		t.Errorf("no link: %+v, %v", out, err)
	}
	return out.Result.StructuredContent.DownloadURL
}

func (f *fronted) leaves(t *testing.T, h *http.Client, token string) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(time.Second, cancel)
	if resp, err := f.post(ctx, h, token, "hold", object{"ms": 60000}); err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	select {
	case <-f.left:
	case <-time.After(20 * time.Second):
		t.Error("the gateway does not hear that a client has left")
	}
}

// many makes 500 calls, some of which are refused before their body is read: none is
// cut, and each refusal comes as the gateway said it.
func (f *fronted) many(t *testing.T, h *http.Client, token string) {
	large, over := strings.Repeat("x", 1<<20), strings.Repeat("x", 5<<20)
	calls := make(chan int)
	go func() {
		defer close(calls)
		for i := range 500 {
			calls <- i
		}
	}()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range calls {
				who, text, want := token, "small", http.StatusOK
				switch i % 20 {
				case 3:
					text = large
				case 7:
					who, text, want = "wrong", large, http.StatusUnauthorized
				case 13:
					text, want = over, http.StatusRequestEntityTooLarge
				case 17:
					who, want = "wrong", http.StatusUnauthorized
				}
				resp, err := f.post(t.Context(), h, who, "measure", object{"text": text})
				if err != nil {
					t.Errorf("call %d, want %d: %v", i, want, err)
					continue
				}
				raw, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != want || want == http.StatusOK && !bytes.Contains(raw, []byte(fmt.Sprintf(`"length":%d`, len(text)))) {
					t.Errorf("call %d: status %d, want %d, %d bytes, %v", i, resp.StatusCode, want, len(raw), err)
				}
				if want != http.StatusOK && !bytes.Contains(raw, []byte(`"code"`)) {
					t.Errorf("call %d: the refusal is not the gateway's: %.200s", i, raw)
				}
			}
		})
	}
	wg.Wait()
}
