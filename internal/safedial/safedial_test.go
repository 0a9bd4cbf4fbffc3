package safedial

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// names is a resolver whose every name has a list of answers, given in turn;
// the last one repeats.
type names map[string][][]string

func (n names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	answers, ok := n[host]
	if !ok {
		return nil, &net.DNSError{Err: "no such host", Name: host, Server: "192.0.2.53:53", IsNotFound: true}
	}
	if len(answers) > 1 {
		n[host] = answers[1:]
	}
	var ips []netip.Addr
	for _, a := range answers[0] {
		ips = append(ips, netip.MustParseAddr(a))
	}
	return ips, nil
}

// listener counts the connections to a port that is open on both loopbacks.
func listener(t *testing.T) (port string, count *atomic.Int32) {
	t.Helper()
	count = &atomic.Int32{}
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ = net.SplitHostPort(first.Addr().String())
	listeners := []net.Listener{first}
	if second, err := net.Listen("tcp", "[::1]:"+port); err == nil {
		listeners = append(listeners, second)
	}
	done := make(chan struct{})
	for _, l := range listeners {
		go func() {
			defer func() { done <- struct{}{} }()
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				count.Add(1)
				c.Close()
			}
		}()
	}
	t.Cleanup(func() {
		for _, l := range listeners {
			l.Close()
			<-done
		}
	})
	return port, count
}

// refusedAddresses are addresses that are not the public internet, in every form
// a URL or a name server could give them.
var refusedAddresses = []string{
	// loopback
	"127.0.0.1", "127.0.0.2", "127.255.255.254", "[::1]", "localhost", "LOCALHOST", "localhost.", "ip6-localhost.test",
	// forms that only some resolvers read
	"127.1", "127.0.1", "0x7f.1", "0x7f000001", "2130706433", "0177.0.0.1", "017700000001", "127.0.0.1.", "0", "00.0.0.0", "１２７.0.0.1",
	// this network, private, shared, link local
	"0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "100.127.255.255", "169.254.1.1",
	// metadata services
	"169.254.169.254", "168.63.129.16", "100.100.100.200", "192.0.0.192", "[fd00:ec2::254]",
	// protocol assignments, documentation, benchmarks, relays, multicast, reserved
	"192.0.0.1", "192.0.2.1", "198.51.100.1", "203.0.113.1", "198.18.0.1", "198.19.255.255", "192.88.99.1", "192.31.196.1", "192.52.193.1", "192.175.48.1",
	"224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
	// IPv6: unspecified, local, documentation, discard, multicast
	"[::]", "[fe80::1]", "[fe80::1%25lo]", "[fec0::1]", "[fc00::1]", "[fd12:3456::1]", "[2001:db8::1]", "[3fff::1]", "[100::1]", "[ff02::1]", "[5f00::1]",
	// IPv6 that carries IPv4: mapped, compatible, NAT64, 6to4, Teredo
	"[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::ffff:10.0.0.1]", "[::ffff:169.254.169.254]", "[::ffff:8.8.8.8]", "[::127.0.0.1]", "[::7f00:1]",
	"[64:ff9b::7f00:1]", "[64:ff9b::808:808]", "[64:ff9b:1::7f00:1]", "[2002:7f00:1::]", "[2002:a00:1::1]", "[2001:0:7f00:1::]", "[2001:10::1]",
}

func TestNoPacketLeavesForARefusedAddress(t *testing.T) {
	if len(refusedAddresses) < 60 {
		t.Fatalf("only %d forms", len(refusedAddresses))
	}
	port, accepted := listener(t)
	d := New(Options{Resolver: names{
		"localhost": {{"127.0.0.1", "::1"}}, "LOCALHOST": {{"127.0.0.1"}}, "localhost.": {{"127.0.0.1"}}, "ip6-localhost.test": {{"::1"}},
	}})
	dials := 0
	d.dial = func(context.Context, string, string) (net.Conn, error) {
		dials++
		return nil, errors.New("dialled")
	}
	client := d.Client()
	for _, host := range refusedAddresses {
		for _, scheme := range []string{"https", "http"} {
			resp, err := client.Get(scheme + "://" + host + ":" + port + "/latest/meta-data")
			var refused *RefusedError
			if err == nil {
				resp.Body.Close()
				t.Errorf("%s://%s was answered", scheme, host)
			} else if !errors.As(err, &refused) {
				t.Errorf("%s://%s: %v, want a refusal", scheme, host, err)
			}
		}
	}
	if dials != 0 || accepted.Load() != 0 {
		t.Errorf("%d dials, %d connections", dials, accepted.Load())
	}
}

// Every address a name server may give is refused as it is when written out.
func TestNamesWithRefusedAddresses(t *testing.T) {
	for _, host := range refusedAddresses {
		ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
		if err != nil || ip.Unmap() == netip.MustParseAddr("8.8.8.8") {
			continue
		}
		d := New(Options{Resolver: names{"evil.test": {{ip.String()}}}})
		if ips, err := d.resolve(t.Context(), "evil.test"); err == nil {
			t.Errorf("a name with %s may be reached at %v", host, ips)
		}
	}
}

func TestPublicAddressesAreAllowed(t *testing.T) {
	d := New(Options{})
	for _, host := range []string{"8.8.8.8", "1.1.1.1", "160.79.104.10", "100.63.255.255", "172.32.0.1", "[2606:4700::1111]", "[2a00:1450:4001::1]", "chatgpt.com", "a.b-c.example", "1e100.net"} {
		for _, tail := range []string{"", ":443", ":8443/x?y=z"} {
			if err := d.CheckURL("https://" + host + tail); err != nil {
				t.Errorf("https://%s%s: %v", host, tail, err)
			}
		}
	}
}

func TestRefusedURLs(t *testing.T) {
	d := New(Options{AllowLoopback: true})
	for _, raw := range []string{
		"", "/", "chatgpt.com", "//chatgpt.com/", "http://chatgpt.com/", "ftp://chatgpt.com/", "file:///etc/passwd", "javascript:alert(1)", "gopher://x/", "HTTP://chatgpt.com",
		"https://", "https:///x", "https://user@chatgpt.com/", "https://user:pw@chatgpt.com/", "https://@chatgpt.com/", "https://chatgpt.com/#x", "https://chatgpt.com/#",
		"https://chatgpt.com:0/", "https://chatgpt.com:65536/", "https://chatgpt.com:x/", "https://chat gpt.com/", "https://.", "https://a..", "https://[::1", "https://%31/",
		// http in loopback mode needs the literal
		"http://localhost/", "http://127.0.0.2/", "http://127.1/", "http://[::ffff:127.0.0.1]/", "http://10.0.0.1/",
	} {
		var refused *RefusedError
		if err := d.CheckURL(raw); !errors.As(err, &refused) {
			t.Errorf("CheckURL(%q) = %v, want a refusal", raw, err)
		}
	}
	for _, raw := range []string{"http://127.0.0.1:1/x", "http://[::1]:1/", "https://127.0.0.1/", "https://localhost/"} {
		if err := d.CheckURL(raw); err != nil {
			t.Errorf("CheckURL(%q) in loopback mode: %v", raw, err)
		}
		if err := New(Options{}).CheckURL(raw); err == nil && !strings.Contains(raw, "localhost") {
			t.Errorf("CheckURL(%q) without loopback mode succeeded", raw)
		}
	}
}

// The control hook refuses even when every earlier check was passed.
func TestControlIsTheLastCheck(t *testing.T) {
	port, accepted := listener(t)
	d := New(Options{})
	for _, host := range []string{"127.0.0.1", "::1"} {
		conn, err := d.dial(t.Context(), "tcp", net.JoinHostPort(host, port))
		var refused *RefusedError
		if err == nil {
			conn.Close()
		}
		if !errors.As(err, &refused) {
			t.Errorf("dialling %s: %v, want a refusal", host, err)
		}
	}
	if n := accepted.Load(); n != 0 {
		t.Errorf("%d connections", n)
	}
}

// A name that is public when it is checked and private when it is used gains
// nothing: what is resolved is what is dialled.
func TestChangingAnswers(t *testing.T) {
	d := New(Options{Resolver: names{
		"flip.test":  {{"93.184.216.34"}, {"127.0.0.1"}, {"::ffff:10.0.0.1"}, {"93.184.216.34"}},
		"mixed.test": {{"127.0.0.1", "::ffff:93.184.216.34", "fd00::1", "2606:4700::1"}},
	}})
	var dialled []string
	d.dial = func(_ context.Context, _, address string) (net.Conn, error) {
		dialled = append(dialled, address)
		return nil, errors.New("down")
	}
	client := d.Client()
	for i, wantRefusal := range []bool{false, true, true, false} {
		_, err := client.Get("https://flip.test/")
		var refused *RefusedError
		if errors.As(err, &refused) != wantRefusal {
			t.Errorf("request %d: %v", i, err)
		}
	}
	_, err := client.Get("https://mixed.test/")
	if got := fmt.Sprint(dialled); got != "[93.184.216.34:443 93.184.216.34:443 93.184.216.34:443 [2606:4700::1]:443]" {
		t.Errorf("dialled %s", got)
	}
	if text := Cause(err).Error(); strings.Contains(text, "93.184") || strings.Contains(text, "2606") {
		t.Errorf("the error names an address: %s", text)
	}
}

func TestLookupErrorsNameNoServer(t *testing.T) {
	_, err := New(Options{Resolver: names{}}).Client().Get("https://nowhere.test/?key=hidden")
	if got := Cause(err).Error(); got != "looking up nowhere.test: the name does not exist" {
		t.Errorf("error %q", got)
	}
}

// public starts a TLS server that the returned Dialer takes for
// https://public.test.
func public(t *testing.T, o Options, h http.HandlerFunc) *Dialer {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	o.RootCAs = x509.NewCertPool()
	o.RootCAs.AddCert(s.Certificate())
	o.Resolver = names{"example.com": {{"93.184.216.34"}}} // the name in httptest's certificate
	d := New(o)
	d.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if address != "93.184.216.34:443" {
			return nil, fmt.Errorf("dialled %s", address)
		}
		return (&net.Dialer{}).DialContext(ctx, network, s.Listener.Addr().String())
	}
	return d
}

func get(t *testing.T, d *Dialer, url string) (*http.Response, string, error) {
	t.Helper()
	client := d.Client()
	t.Cleanup(client.CloseIdleConnections)
	resp, err := client.Get(url)
	if err != nil {
		return resp, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}

func TestRedirects(t *testing.T) {
	port, accepted := listener(t)
	handler := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Referer") != "" {
			t.Error("a redirect told where it came from")
		}
		if to := r.URL.Query().Get("to"); to != "" {
			http.Redirect(w, r, to, http.StatusFound)
			return
		}
		io.WriteString(w, "here")
	}
	const back = "https://example.com/?to="
	t.Run("none by default", func(t *testing.T) {
		resp, _, err := get(t, public(t, Options{}, handler), back+"/b")
		if err != nil || resp.StatusCode != http.StatusFound {
			t.Errorf("%v %v, want the redirect itself", resp, err)
		}
	})
	t.Run("up to a number", func(t *testing.T) {
		d := public(t, Options{MaxRedirects: 2}, handler)
		if _, body, err := get(t, d, back+"/%3Fto%3D/b"); err != nil || body != "here" {
			t.Errorf("two: %q %v", body, err)
		}
		var refused *RefusedError
		if _, _, err := get(t, d, back+"/%3Fto%3D/%253Fto%253D/b"); !errors.As(err, &refused) {
			t.Errorf("three: %v", err)
		}
	})
	t.Run("each is checked", func(t *testing.T) {
		d := public(t, Options{MaxRedirects: 3}, handler)
		for _, to := range []string{
			"https://127.0.0.1:" + port, "http://127.0.0.1:" + port, "https://[::1]:" + port, "https://[::ffff:127.0.0.1]:" + port, "https://0x7f.1:" + port,
			"http://example.com/", "https://user:pw@example.com/", "file:///etc/passwd", "https://169.254.169.254/latest",
		} {
			var refused *RefusedError
			if _, _, err := get(t, d, back+strings.ReplaceAll(to, ":", "%3A")); !errors.As(err, &refused) {
				t.Errorf("redirect to %s: %v, want a refusal", to, err)
			}
		}
	})
	if n := accepted.Load(); n != 0 {
		t.Errorf("%d connections to loopback", n)
	}
}

func TestBounds(t *testing.T) {
	t.Run("body", func(t *testing.T) {
		for _, c := range []struct {
			size, announced int
			wantErr         bool
		}{{99, 99, false}, {100, 100, false}, {101, 101, true}, {100, 0, false}, {101, 0, true}, {100000, 0, true}} {
			d := public(t, Options{MaxBytes: 100}, func(w http.ResponseWriter, _ *http.Request) {
				if c.announced == 0 {
					w.(http.Flusher).Flush()
				}
				w.Write(make([]byte, c.size))
			})
			_, body, err := get(t, d, "https://example.com/")
			if got := errors.Is(err, ErrTooLarge); got != c.wantErr || !got && len(body) != c.size {
				t.Errorf("%d bytes (announced %d): %d bytes, %v", c.size, c.announced, len(body), err)
			}
			if len(body) > 100 {
				t.Errorf("%d bytes were read", len(body))
			}
		}
	})
	t.Run("header", func(t *testing.T) {
		d := public(t, Options{MaxHeaderBytes: 1000}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Long", strings.Repeat("x", 8000))
		})
		if _, _, err := get(t, d, "https://example.com/"); err == nil {
			t.Error("a long header was accepted")
		}
	})
	t.Run("time", func(t *testing.T) {
		stop := make(chan struct{})
		defer close(stop)
		d := public(t, Options{Timeout: 50 * time.Millisecond}, func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			select {
			case <-stop:
			case <-r.Context().Done():
			}
		})
		if _, _, err := get(t, d, "https://example.com/"); err == nil {
			t.Error("a body that never ends was waited for")
		}
	})
	t.Run("compression", func(t *testing.T) {
		d := public(t, Options{}, func(_ http.ResponseWriter, r *http.Request) {
			if got := r.Header.Get("Accept-Encoding"); got != "" {
				t.Errorf("Accept-Encoding %q", got)
			}
		})
		if _, _, err := get(t, d, "https://example.com/"); err != nil {
			t.Error(err)
		}
	})
}

func TestProxyEnvironmentIsIgnored(t *testing.T) {
	port, accepted := listener(t)
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:"+port)
	t.Setenv("https_proxy", "http://127.0.0.1:"+port)
	d := public(t, Options{}, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "direct") })
	if _, body, err := get(t, d, "https://example.com/"); err != nil || body != "direct" || accepted.Load() != 0 {
		t.Errorf("%q %v, %d connections to the proxy", body, err, accepted.Load())
	}
}

func TestLoopbackMode(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") }))
	defer plain.Close()
	if _, body, err := get(t, New(Options{AllowLoopback: true}), plain.URL); err != nil || body != "ok" {
		t.Errorf("http to a literal loopback address: %q %v", body, err)
	}
	var refused *RefusedError
	if _, _, err := get(t, New(Options{}), plain.URL); !errors.As(err, &refused) {
		t.Errorf("without the mode: %v", err)
	}
	secure := httptest.NewTLSServer(plain.Config.Handler)
	defer secure.Close()
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	d := New(Options{AllowLoopback: true, RootCAs: roots})
	if _, body, err := get(t, d, secure.URL); err != nil || body != "ok" {
		t.Errorf("https to a loopback address: %q %v", body, err)
	}
}

// FuzzCheckURL looks for a URL that passes the check although net/http would
// connect it to a loopback name or address.
func FuzzCheckURL(f *testing.F) {
	for _, h := range refusedAddresses {
		f.Add("https://" + h + "/")
	}
	f.Add("https://example.com\\@127.0.0.1/")
	f.Add("https://127.0.0.1:443:443/")
	d := New(Options{})
	f.Fuzz(func(t *testing.T, raw string) {
		if d.CheckURL(raw) != nil {
			return
		}
		req, err := http.NewRequest(http.MethodGet, raw, nil)
		if err != nil {
			return
		}
		if req.URL.Scheme != "https" || req.URL.User != nil || req.URL.Fragment != "" {
			t.Fatalf("%q passed", raw)
		}
		if ip, err := netip.ParseAddr(req.URL.Hostname()); err == nil && (ip.IsLoopback() || ip.IsPrivate() || ip.IsLinkLocalUnicast() || ip.Is4In6()) {
			t.Fatalf("%q passed", raw)
		}
	})
}
