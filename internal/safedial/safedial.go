// Package safedial is the only way out of the gateway to the public internet.
//
// It owns the rules for URLs that somebody else chose: callbacks, wake-ups,
// client metadata documents and imports. It promises that a client made here
// sends no packet to an address that is not globally routable, whatever the URL
// says and however the name resolves, because it connects to the very address
// it has checked and checks that address again in the socket's control hook;
// that it uses no proxy, follows no redirect it was not told to, and reads no
// more and waits no longer than its [Options] say. It leaves to its callers
// what they send, how often they try, and what they tell their own callers: an
// error here names no resolved address and no part of an answer.
package safedial

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"code.dny.dev/ssrf"
)

// Resolver turns a name into addresses. [net.Resolver] is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// The defaults of [Options].
const (
	DefaultTimeout        = 10 * time.Second
	DefaultMaxBytes       = 1 << 20
	DefaultMaxHeaderBytes = 64 << 10
)

const (
	// maxAddresses and dialTimeout bound one connection: how many addresses of
	// a name are tried, and how long each may take.
	maxAddresses = 8
	dialTimeout  = 3 * time.Second
	// idlePerHost and idleTimeout bound what is kept open. A kept connection
	// goes to an address that was checked.
	idlePerHost = 2
	idleTimeout = 30 * time.Second
)

// Options says what may be reached, and how much may come back.
type Options struct {
	// AllowLoopback also reaches 127.0.0.0/8 and [::1], by https, and by http
	// when the URL's host is the literal 127.0.0.1 or [::1]. It is the explicit
	// test mode of the config.
	AllowLoopback bool
	// Resolver resolves names; nil means the system's.
	Resolver Resolver
	// Timeout bounds a request from its first look-up to the last byte of its
	// answer, redirects included; 0 means [DefaultTimeout].
	Timeout time.Duration
	// MaxBytes bounds the body of an answer; 0 means [DefaultMaxBytes]. A longer
	// one fails with [ErrTooLarge], at once when it announces its length.
	MaxBytes int64
	// MaxHeaderBytes bounds the header of an answer; 0 means
	// [DefaultMaxHeaderBytes].
	MaxHeaderBytes int64
	// MaxRedirects is how many redirects are followed, each checked anew. A
	// further one is an error. With 0 none is followed and the caller sees the
	// redirect's own status.
	MaxRedirects int
	// RootCAs are the certificate authorities; nil means the system's.
	RootCAs *x509.CertPool
}

// RefusedError is a request that was not made because its destination is not
// allowed. Its text may be shown to whoever chose the URL.
type RefusedError struct {
	// Reason is a clause such as "the URL is not https".
	Reason string
}

func (e *RefusedError) Error() string { return "destination refused: " + e.Reason }

func refuse(reason string) error { return &RefusedError{reason} }

// ErrTooLarge is the error of reading an answer that is longer than
// [Options.MaxBytes].
var ErrTooLarge = errors.New("the answer is too large")

// Dialer makes guarded connections and clients. It is safe for concurrent use.
type Dialer struct {
	o     Options
	guard *ssrf.Guardian
	dial  func(ctx context.Context, network, address string) (net.Conn, error)
}

// New returns a Dialer.
func New(o Options) *Dialer {
	if o.Resolver == nil {
		o.Resolver = net.DefaultResolver
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.MaxHeaderBytes == 0 {
		o.MaxHeaderBytes = DefaultMaxHeaderBytes
	}
	d := &Dialer{o: o, guard: ssrf.New(ssrf.WithAnyPort(),
		// The address at which Azure's host answers every virtual machine is
		// public by the registries.
		ssrf.WithDeniedV4Prefixes(netip.MustParsePrefix("168.63.129.16/32")))}
	d.dial = (&net.Dialer{Timeout: dialTimeout, Control: d.control}).DialContext
	return d
}

// control is the last check, on the address the kernel is about to be given.
func (d *Dialer) control(network, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || network != "tcp4" && network != "tcp6" {
		return refuse("the connection is not TCP to an address")
	}
	return d.check(at.Addr())
}

// check refuses an address that is not globally routable.
func (d *Dialer) check(ip netip.Addr) error {
	if d.o.AllowLoopback && ip.IsLoopback() && ip.Zone() == "" && !ip.Is4In6() {
		return nil
	}
	if ip.Zone() != "" || d.guard.SafeAddr(ip) != nil {
		return refuse("the address is not on the public internet")
	}
	return nil
}

// CheckURL refuses a URL that no request of this Dialer would be made for: not
// https (or http to a literal loopback address in loopback mode), without a
// host, with credentials or a fragment, or with an address that is not globally
// routable in place of a name. Names are not resolved: that is done at each
// connection. The error is a [*RefusedError].
func (d *Dialer) CheckURL(raw string) error {
	if strings.Contains(raw, "#") {
		return refuse("the URL has a fragment")
	}
	u, err := url.Parse(raw)
	if err != nil {
		return refuse("the URL cannot be read")
	}
	return d.checkURL(u)
}

func (d *Dialer) checkURL(u *url.URL) error {
	host := u.Hostname()
	literalLoopback := host == "127.0.0.1" || host == "::1"
	switch {
	case u.Scheme != "https" && u.Scheme != "http":
		return refuse("the URL is not https")
	case u.Scheme == "http" && !(d.o.AllowLoopback && literalLoopback):
		return refuse("the URL is not https")
	case u.User != nil:
		return refuse("the URL has credentials")
	case u.Fragment != "":
		return refuse("the URL has a fragment")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return refuse("the URL's port is not a number from 1 to 65535")
		}
	}
	ip, err := literal(host)
	if err != nil || !ip.IsValid() {
		return err
	}
	return d.check(ip)
}

// literal returns the address that host is, or the zero Addr when host is a
// name. A host that some resolvers would read as an address although it is not
// one in standard form (0x7f.1, 127.1, 2130706433) is refused.
func literal(host string) (netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip, nil
	}
	labels := strings.Split(strings.TrimSuffix(host, "."), ".")
	last := labels[len(labels)-1]
	switch {
	case last == "" || len(host) > 253 || strings.ContainsAny(host, ":%/\\@ "):
		return netip.Addr{}, refuse("the URL's host is not a name or an address")
	case numeric(last):
		return netip.Addr{}, refuse("the URL's host is an address in a form that is not standard")
	}
	return netip.Addr{}, nil
}

// numeric reports whether a last label makes its host an IPv4 address to a
// browser (WHATWG URL, "ends in a number").
func numeric(label string) bool {
	if rest, ok := strings.CutPrefix(strings.ToLower(label), "0x"); ok {
		return strings.Trim(rest, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

// DialContext connects to address, which is host:port. It resolves the host,
// drops every answer that is not globally routable, and connects to one of the
// rest. When none is left the error is a [*RefusedError] and nothing was sent.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, refuse("the URL's host is not a name or an address")
	}
	ips, err := d.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	var lastErr error
	for _, ip := range ips {
		conn, err := d.dial(ctx, "tcp", net.JoinHostPort(ip.String(), port))
		if err == nil {
			return conn, nil
		}
		if lastErr = err; ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("connecting to %s: %w", host, withoutAddress(lastErr))
}

// resolve returns the addresses of host that may be reached, at least one.
func (d *Dialer) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	ip, err := literal(host)
	if err != nil {
		return nil, err
	}
	if ip.IsValid() {
		return []netip.Addr{ip}, d.check(ip)
	}
	found, err := d.o.Resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("looking up %s: %w", host, lookupError(ctx, err))
	}
	var ips []netip.Addr
	for _, ip := range found {
		// The standard resolver gives IPv4 addresses in their mapped form.
		if ip = ip.Unmap(); d.check(ip) == nil && len(ips) < maxAddresses {
			ips = append(ips, ip)
		}
	}
	if len(ips) == 0 {
		return nil, refuse("the name has no address on the public internet")
	}
	return ips, nil
}

var (
	errNoSuchName   = errors.New("the name does not exist")
	errLookupFailed = errors.New("the look-up failed")
)

// lookupError is err without the address of the name server.
func lookupError(ctx context.Context, err error) error {
	var dns *net.DNSError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &dns) && dns.IsNotFound:
		return errNoSuchName
	}
	return errLookupFailed
}

// withoutAddress drops the address that net adds to an error of a dial.
func withoutAddress(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// Client returns a client whose every request keeps this package's promises.
// Its answers are not decompressed.
func (d *Dialer) Client() *http.Client {
	return &http.Client{
		Timeout:       d.o.Timeout,
		CheckRedirect: d.checkRedirect,
		Transport: &transport{d: d, base: &http.Transport{
			Proxy:                  nil,
			DialContext:            d.DialContext,
			TLSClientConfig:        &tls.Config{RootCAs: d.o.RootCAs, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    d.o.Timeout,
			ResponseHeaderTimeout:  d.o.Timeout,
			MaxResponseHeaderBytes: d.o.MaxHeaderBytes,
			MaxIdleConnsPerHost:    idlePerHost,
			IdleConnTimeout:        idleTimeout,
			DisableCompression:     true,
			ForceAttemptHTTP2:      true,
		}},
	}
}

func (d *Dialer) checkRedirect(req *http.Request, via []*http.Request) error {
	if d.o.MaxRedirects == 0 {
		return http.ErrUseLastResponse
	}
	if len(via) > d.o.MaxRedirects {
		return refuse(fmt.Sprintf("it redirects more than %d times", d.o.MaxRedirects))
	}
	req.Header.Del("Referer") // a URL may hold a key
	return d.checkURL(req.URL)
}

// Cause returns err without the URL that [http.Client] puts in front of it. URLs
// that others choose hold keys, so this is what a log or a caller may see.
func Cause(err error) error {
	var e *url.Error
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}
