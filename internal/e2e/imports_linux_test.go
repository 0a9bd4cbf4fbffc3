package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentrelay/internal/e2e/rig"
	"agentrelay/internal/transfers"
)

// tlsSource is an https server on the loopback interface whose certificate its
// own authority has signed. The file has that authority's certificate.
func tlsSource(t *testing.T, handler http.Handler) (s *httptest.Server, authority string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	certificate := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Test Authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, certificate, certificate, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	authority = filepath.Join(t.TempDir(), "authority.pem")
	if err := os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	s = httptest.NewUnstartedServer(handler)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that are refused
	s.StartTLS()
	t.Cleanup(s.Close)
	return s, authority
}

// TestImportsOverHTTPS: from a source whose authority the machine trusts, through
// redirects, and from no other.
func TestImportsOverHTTPS(t *testing.T) {
	h := rig.NewHome(t, binary)
	dir := withProjects(t, h)
	h.Configure("safedial", object{"allowLoopback": true})
	content := strings.Repeat("0123456789", 300_000)
	routes := http.NewServeMux()
	routes.HandleFunc("/file", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, content) })
	routes.Handle("/moved", http.RedirectHandler("/file", http.StatusFound))
	trusted, authority := tlsSource(t, routes)
	unknown, _ := tlsSource(t, routes)
	routes.Handle("/elsewhere", http.RedirectHandler(unknown.URL+"/file", http.StatusFound))
	routes.Handle("/inward", http.RedirectHandler("https://10.0.0.1/file", http.StatusFound))
	h.Env = append(h.Env, "SSL_CERT_FILE="+authority)
	g := h.Serve()
	s := connect(t, h.Authorize("carrier"))

	for name, c := range map[string]struct{ url, code string }{
		"plain": {trusted.URL + "/file", ""}, "moved": {trusted.URL + "/moved", ""},
		"unknown": {unknown.URL + "/file", "download_failed"}, "elsewhere": {trusted.URL + "/elsewhere", "download_failed"},
		"inward": {trusted.URL + "/inward", "download_refused"}, "missing": {trusted.URL + "/none", "download_failed"},
		"named": {strings.Replace(trusted.URL, "127.0.0.1", "localhost", 1) + "/file", "download_failed"}, // which the certificate does not name
	} {
		out := do[transfers.Transfer](t, s, "import_direct_file", object{
			"projectId": "site", "path": name, "requestId": name, "expectedSha256": nil, "file": object{"download_url": c.url, "file_id": "f"},
		})
		raw, err := os.ReadFile(filepath.Join(dir, name))
		switch {
		case c.code == "" && (out.State != transfers.Completed || string(raw) != content):
			t.Errorf("%s: %+v, %d bytes are there (%v): %+v", name, out, len(raw), err, out.Error)
		case c.code != "" && (out.State != transfers.Failed || out.Error == nil || out.Error.Code != c.code || !os.IsNotExist(err)):
			t.Errorf("%s: %+v: %+v, want %s and nothing there", name, out, out.Error, c.code)
		}
	}
	if code := g.Stop(); code != 0 {
		t.Errorf("the gateway ended with %d", code)
	}
}
