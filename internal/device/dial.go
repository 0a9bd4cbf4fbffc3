package device

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/coder/websocket"

	"agentrelay/internal/device/state"
	"agentrelay/internal/devices/wire"
)

// Dialer makes connections to a relay. The zero value uses the system's network and
// authorities.
type Dialer struct {
	// Roots are the authorities instead of the system's.
	Roots *x509.CertPool
	// Net makes the connections instead of [net.Dialer].
	Net func(ctx context.Context, network, address string) (net.Conn, error)
}

// Target is a relay's address as it was checked.
type Target struct {
	URL string
	// Warning says what the owner should know of the way there; it may be empty.
	Warning string
}

// pinForm is the form of a pin, after colons were taken out.
var pinForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// ParsePin reads a SHA-256 in hex, with or without colons.
func ParsePin(s string) (string, error) {
	pin := strings.ToLower(strings.ReplaceAll(strings.TrimSpace(s), ":", ""))
	if pin != "" && !pinForm.MatchString(pin) {
		return "", errors.New("a pin is the SHA-256 of the relay's certificate: 64 hexadecimal digits")
	}
	return pin, nil
}

// tailnets are the addresses that Tailscale gives out.
var tailnets = []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fd7a:115c:a1e0::/48")}

// ParseTarget reads the address of a relay. http and https are taken for ws and wss,
// and no path for [wire.Path]. Without encryption it must be this machine, or a
// tailnet, which encrypts, unless plain says that the owner wants it.
func ParseTarget(raw string, plain bool) (Target, error) {
	u, err := url.Parse(strings.TrimSpace(raw))
	if err != nil || u.Host == "" || u.Hostname() == "" {
		return Target{}, errors.New("the relay's URL must be like wss://relay.example/device")
	}
	switch strings.ToLower(u.Scheme) {
	case "ws", "http":
		u.Scheme = "ws"
	case "wss", "https":
		u.Scheme = "wss"
	default:
		return Target{}, errors.New("the relay's URL must begin with ws:// or wss://")
	}
	if u.User != nil || u.Fragment != "" {
		return Target{}, errors.New("the relay's URL must have no user and no fragment")
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = wire.Path
	}
	t := Target{URL: u.String()}
	if u.Scheme == "wss" || loopback(u.Hostname()) {
		return t, nil
	}
	if tailnet(u.Hostname()) {
		t.Warning = "ws:// is not encrypted by itself; this is a tailnet's address, and the tailnet encrypts"
		return t, nil
	}
	if !plain {
		return Target{}, fmt.Errorf("ws:// to %s would send this device's token readable to everybody on the way: use wss://, a tailnet's address, or --insecure if you trust the way", u.Hostname())
	}
	t.Warning = "ws:// is not encrypted: everybody on the way to " + u.Hostname() + " can read this device's token and answer in its place"
	return t, nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

func tailnet(host string) bool {
	if strings.HasSuffix(strings.ToLower(host), ".ts.net") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	for _, p := range tailnets {
		if p.Contains(ip.Unmap()) {
			return true
		}
	}
	return false
}

// errPin says that another certificate was shown than the one that was pinned.
var errPin = errors.New("the relay showed another certificate than the one that is pinned")

// dial makes the websocket. heard is called at each ping of the relay.
func (d Dialer) dial(ctx context.Context, id state.Identity, heard func()) (*websocket.Conn, error) {
	target, err := ParseTarget(id.RelayURL, id.Plain)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, TLSHandshakeTimeout: connectTime,
		DialContext: d.Net, TLSClientConfig: d.tls(id.Pin),
	}
	conn, resp, err := websocket.Dial(ctx, target.URL, &websocket.DialOptions{
		HTTPClient:     &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		OnPingReceived: func(context.Context, []byte) bool { heard(); return true },
	})
	if err != nil {
		if resp != nil {
			return nil, &httpError{resp.StatusCode, retryAfter(resp.Header)}
		}
		return nil, err
	}
	conn.SetReadLimit(wire.MaxFrame + 1)
	return conn, nil
}

func (d Dialer) tls(pin string) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: d.Roots}
	if pin == "" {
		return c
	}
	// The pin takes the place of authorities: who has it knows the very certificate.
	c.InsecureSkipVerify = true
	c.VerifyConnection = func(s tls.ConnectionState) error {
		sum := sha256.Sum256(s.PeerCertificates[0].Raw)
		if hex.EncodeToString(sum[:]) != pin {
			return errPin
		}
		return nil
	}
	return c
}

// httpError is an answer that is no websocket.
type httpError struct {
	status int
	after  time.Duration
}

func (e *httpError) Error() string {
	return "the relay's address answered HTTP " + strconv.Itoa(e.status) + " instead of a websocket"
}

func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.ParseUint(h.Get("Retry-After"), 10, 31)
	if err != nil {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, 5*time.Minute)
}

// dialProblem says why there is no connection.
func dialProblem(err error) lost {
	var status *httpError
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var dns *net.DNSError
	switch {
	case errors.As(err, &status):
		return lost{why: status.Error(), retry: status.after}
	case errors.Is(err, errPin):
		return lost{why: errPin.Error() + ": if the owner has changed it, pair again with the new --pin", slow: true}
	case errors.As(err, &unknown), errors.As(err, &invalid), errors.As(err, &host):
		return lost{why: "the relay's certificate can't be trusted: " + said(err.Error()) + "; --pin of device pair takes a certificate without an authority", slow: true}
	case errors.As(err, &dns):
		return lost{why: "the relay's name is not known"}
	case errors.Is(err, syscall.ECONNREFUSED):
		return lost{why: "nothing listens at the relay's address"}
	case errors.Is(err, context.DeadlineExceeded):
		return lost{why: "the relay's address does not answer"}
	}
	return lost{why: "the relay can't be reached: " + said(err.Error())}
}

// Probe says whether a relay's address takes websockets, and how long that took. It
// does not say who we are.
func (d Dialer) Probe(ctx context.Context, id state.Identity) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	begun := time.Now()
	conn, err := d.dial(ctx, id, func() {})
	if err != nil {
		return 0, errors.New(dialProblem(err).why)
	}
	took := time.Since(begun)
	_ = conn.Close(websocket.StatusNormalClosure, "")
	return took, nil
}

// Pair exchanges a pairing code for a token.
func (d Dialer) Pair(ctx context.Context, id state.Identity, code string) (state.Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*connectTime)
	defer cancel()
	conn, err := d.dial(ctx, id, func() {})
	if err != nil {
		return id, errors.New(dialProblem(err).why)
	}
	defer conn.CloseNow()
	raw, err := wire.Encode(wire.Frame{Type: wire.Pair, ID: "pair", Code: code, Device: id.Device})
	if err != nil {
		return id, err
	}
	if err := conn.Write(ctx, websocket.MessageText, raw); err != nil {
		return id, errors.New("the connection broke before the code was sent")
	}
	for {
		_, raw, err := conn.Read(ctx)
		if err != nil {
			return id, errors.New("the relay ended the link without an answer: ask for a new code and try again")
		}
		f, err := wire.Decode(raw)
		switch {
		case err != nil:
			return id, errors.New("the relay's answer was not understood")
		case f.Type == wire.Err:
			return id, fmt.Errorf("the relay refused (%s): %s", said(f.Code), said(f.Msg))
		case f.Type == wire.Paired && f.Device != id.Device:
			return id, errors.New("the relay paired another name than was asked for")
		case f.Type == wire.Paired:
			id.Token = f.Token
			return id, nil
		}
	}
}
