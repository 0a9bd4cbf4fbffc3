package doctor

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"agentrelay/internal/gateway"
)

const (
	// fullBody is the longest call that the gateway takes.
	fullBody = 4 << 20
	// tick is how often a held answer says something, as the gateway's own do, and
	// allowedLag how late it may arrive.
	tick       = 15 * time.Second
	allowedLag = 5 * time.Second
	// certificates that end within soon are renewed too late.
	soon = 14 * 24 * time.Hour
	// clocks that are apart by more break tokens and signatures.
	allowedSkew = 30 * time.Second
	badSkew     = 5 * time.Minute
)

func publicChecks() []check {
	hold := PublicHold + 30*time.Second
	return []check{
		{id: "public.url", needs: needConfig, why: "It is the address that clients get, and the name of the resource in their tokens.", run: checkURL},
		{id: "public.dns", needs: needConfig, why: "ChatGPT, Claude and Grok look the name up on the internet.", run: checkDNS},
		{id: "public.tls", needs: needConfig, budget: 30 * time.Second, why: "Clients refuse a certificate that has ended, has another name, or comes without its chain.", run: checkTLS},
		{id: "public.reach", needs: needGateway, budget: 45 * time.Second, why: "The address has to lead to this very gateway: not to a page of the proxy, nor to another gateway.", run: checkReach},
		{id: "public.headers", needs: needPublic, why: "A proxy that drops Authorization or the headers of MCP breaks every call, and one that does not name the client makes everybody share one rate limit.", run: checkHeaders},
		{id: "public.body", needs: needPublic, budget: time.Minute, why: "A call may have 4 MiB. Proxies often stop at 1 MB, with a page that no client understands.", run: checkBody},
		{id: "public.stream", needs: needPublic, budget: hold, why: "Calls wait for news for many seconds. A proxy that collects answers before it hands them on, or gives up a silent one, breaks them.", run: checkStream},
		{id: "public.discovery", needs: needPublic, budget: 30 * time.Second, why: "Clients find out how to log in from these documents, and compare them letter by letter.", run: checkDiscovery},
		{id: "clock.skew", needs: needPublic, why: "Callbacks are signed with the time: receivers refuse one that is five minutes off.", run: checkSkew},
	}
}

func (v *visit) publicURL() *url.URL {
	u, err := url.Parse(v.config.PublicBaseURL)
	if err != nil { // the config has checked it
		return &url.URL{}
	}
	return u
}

func checkURL(_ context.Context, v *visit) []finding {
	u := v.publicURL()
	if v.config.Loopback() {
		return one(warn("For ChatGPT, Claude and Grok put an HTTPS proxy or tunnel in front (packaging/proxy has files for four), and set publicBaseUrl to its address.", "publicBaseUrl is %s: only programs on this machine can connect.", v.config.PublicBaseURL))
	}
	if port := u.Port(); port != "" && port != "443" {
		return one(warn("Serve it on port 443, and leave the port out of publicBaseUrl.", "publicBaseUrl has the port %s: Claude and some networks reach only 443.", port))
	}
	return one(pass("%s", v.config.MCPURL()))
}

func checkDNS(ctx context.Context, v *visit) []finding {
	u := v.publicURL()
	if v.config.Loopback() {
		return one(skip("publicBaseUrl is a loopback address."))
	}
	ips, err := v.o.Resolver.LookupNetIP(ctx, "ip", u.Hostname())
	if err != nil {
		var dns *net.DNSError
		if errors.As(err, &dns) && dns.IsNotFound {
			return one(fail("Make an A or AAAA record for it, or start the tunnel that makes one. A new record can take an hour to be seen.", "The name %s does not exist.", u.Hostname()))
		}
		return one(fail("See that this machine has a name server.", "The name %s could not be looked up.", u.Hostname()))
	}
	var shown []string
	private := 0
	for _, ip := range ips {
		ip = ip.Unmap()
		shown = append(shown, ip.String())
		if !isPublic(ip) {
			private++
		}
	}
	list := strings.Join(shown, ", ")
	switch {
	case len(ips) == 0:
		return one(fail("Make an A or AAAA record for it.", "The name %s has no address.", u.Hostname()))
	case private > 0:
		return one(warn("If your own name server answers differently at home, see that the internet gets a public address; else correct the record.", "%s is %s, which is not an address of the internet.", u.Hostname(), list))
	}
	return one(pass("%s is %s.", u.Hostname(), list))
}

func isPublic(ip netip.Addr) bool {
	cgnat := netip.MustParsePrefix("100.64.0.0/10")
	return ip.IsGlobalUnicast() && !ip.IsPrivate() && !cgnat.Contains(ip)
}

func checkTLS(ctx context.Context, v *visit) []finding {
	u := v.publicURL()
	if u.Scheme != "https" {
		return one(skip("publicBaseUrl is a loopback address."))
	}
	port := u.Port()
	if port == "" {
		port = "443"
	}
	conn, err := v.o.Dial(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return one(fail("Start the proxy or tunnel, and let the firewall pass port "+port+". From inside a home network the own public address is often out of reach: then run the doctor with the name pointing to the proxy in /etc/hosts.", "Nothing answers at %s, port %s: %s", u.Hostname(), port, sentence(err)))
	}
	defer conn.Close()
	c := tls.Client(conn, &tls.Config{ServerName: u.Hostname(), RootCAs: v.o.RootCAs, MinVersion: tls.VersionTLS12})
	if err := c.HandshakeContext(ctx); err != nil {
		return one(judgeTLS(u.Hostname(), err))
	}
	leaf := c.ConnectionState().PeerCertificates[0]
	left := leaf.NotAfter.Sub(v.o.Now())
	if left < soon {
		return one(warn("See why the proxy does not renew it: Caddy and certbot do so 30 days before the end. Its log says more.", "The certificate of %s ends at %s, in %s.", u.Hostname(), when(leaf.NotAfter), span(left)))
	}
	return one(pass("%s, certificate until %s.", tls.VersionName(c.ConnectionState().Version), when(leaf.NotAfter)))
}

func judgeTLS(host string, err error) finding {
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fail("Renew it: Caddy and certbot do so by themselves; their log says why they did not.", "The certificate of %s has ended, or this machine's clock is wrong.", host)
	case errors.As(err, &name):
		return fail("Give the proxy a certificate for this name, or correct publicBaseUrl.", "The certificate that answers is not for %s.", host)
	case errors.As(err, &unknown):
		return fail("Use a certificate of a public authority such as Let's Encrypt, and give the proxy the whole chain (fullchain.pem, not cert.pem).", "The certificate of %s is from an authority that is not known here, or its chain is not complete.", host)
	}
	return fail("See the proxy's log.", "No secure connection to %s: %s", host, sentence(err))
}

// reached is what came of a request with a ticket.
type reached struct {
	err      error
	status   int
	kind     string // of the content
	location string // the host of a redirect
	auth     string // WWW-Authenticate
	date     time.Time
	skew     time.Duration // of the answering clock
	echo     gateway.DoctorEcho
	sent     map[string]string // headers
	code     string            // of our own refusal
}

// probe makes a request with the doctor's ticket.
func (v *visit) probe(ctx context.Context, base string, more url.Values, body io.Reader) (*http.Request, map[string]string, error) {
	q := url.Values{"doctor": {v.ticket().Ticket}}
	for k, vs := range more {
		q[k] = vs
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"?"+q.Encode(), body)
	if err != nil {
		return nil, nil, err
	}
	sent := map[string]string{
		"Accept": "application/json, text/event-stream", "Content-Type": "application/json", "Mcp-Protocol-Version": "2026-07-28",
		"Mcp-Method": "tools/call", "Mcp-Name": "list_hosts", "Mcp-Session-Id": "doctor", "Last-Event-Id": "doctor-1",
		"Authorization": "Bearer doctor-" + rand.Text(),
	}
	for name, value := range sent {
		req.Header.Set(name, value)
	}
	return req, sent, nil
}

// post asks what arrives of a small request.
func (v *visit) post(ctx context.Context, h *http.Client, base string) (r reached) {
	ctx, cancel := context.WithTimeout(ctx, askBudget)
	defer cancel()
	req, sent, err := v.probe(ctx, base, nil, strings.NewReader(`{"doctor":true}`))
	if err != nil {
		return reached{err: err}
	}
	begun := v.o.Now()
	resp, err := h.Do(req)
	if err != nil {
		return reached{err: err}
	}
	defer resp.Body.Close()
	ended := v.o.Now()
	r.sent, r.status, r.auth = sent, resp.StatusCode, resp.Header.Get("WWW-Authenticate")
	r.kind, _, _ = mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if to, err := resp.Location(); err == nil {
		r.location = to.Scheme + "://" + to.Host
	}
	if r.date, err = http.ParseTime(resp.Header.Get("Date")); err == nil {
		// The header is cut to the second.
		r.skew = r.date.Add(500 * time.Millisecond).Sub(begun.Add(ended.Sub(begun) / 2))
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return reached{err: err}
	}
	if r.status == http.StatusOK {
		_ = json.Unmarshal(raw, &r.echo) // an answer without the proof is none
		return r
	}
	var refusal struct{ Error struct{ Code string } }
	_ = json.Unmarshal(raw, &refusal) // so is one without our code
	r.code = refusal.Error.Code
	return r
}

// judge says whether the answer is this gateway's, else whose it seems to be.
func (r reached) judge(v *visit) finding {
	host := v.publicURL().Host
	var dns *net.DNSError
	switch {
	case errors.As(r.err, &dns):
		return fail("See public.dns.", "The name %s could not be looked up.", host)
	case errors.Is(r.err, context.DeadlineExceeded):
		return fail("See that the proxy runs and that the firewall passes its port. From inside a home network the own public address is often out of reach: then run the doctor with the name pointing to the proxy in /etc/hosts.", "%s did not answer within %v.", host, askBudget)
	case r.err != nil:
		return fail("Start the proxy or tunnel; see public.tls too.", "%s could not be asked: %s", host, sentence(r.err))
	case r.status == http.StatusOK && r.echo.Proof == v.ticket().Proof:
		return pass("%s leads to this gateway.", v.config.MCPURL())
	case r.location != "":
		return fail("Set publicBaseUrl to the address that is redirected to, or have the proxy hand requests on instead: clients do not send their token along.", "%s redirects to %s.", host, r.location)
	case r.code == "host_not_allowed":
		return fail("Have the proxy hand on the Host header (nginx: proxy_set_header Host $http_host), or add the name that it sends to allowedHosts in the config.", "The gateway refuses the Host header that the proxy sends.")
	case r.status == http.StatusUnauthorized && strings.Contains(r.auth, "resource_metadata"):
		return fail("See which program the proxy hands requests to. If it is this gateway, the proxy drops the query (?…) of an address.", "A gateway answers at %s, but not the one that runs here.", host)
	case r.status == http.StatusUnauthorized || r.kind == "text/html" && r.status < 500:
		return fail("Switch off challenges, bot checks and logins of the proxy for this name: the servers of clients can't pass them.", "A page or login of the proxy or its provider answers at %s (status %d).", host, r.status)
	case r.status >= 500:
		return fail("Let the proxy hand requests to 127.0.0.1:"+strconv.Itoa(v.config.Port)+". Its log says why it can't.", "The proxy at %s answers with status %d: it does not reach the gateway.", host, r.status)
	}
	return fail("Let the proxy hand every path of this name to 127.0.0.1:"+strconv.Itoa(v.config.Port)+".", "Another program answers at %s (status %d).", host, r.status)
}

func checkReach(_ context.Context, v *visit) []finding {
	if err := v.ticket().err; err != nil {
		return one(fail(restartIt, "The running gateway takes no questions of this doctor: %s", sentence(err)))
	}
	return one(v.reach().judge(v))
}

func checkHeaders(_ context.Context, v *visit) []finding {
	r := v.reach()
	var lost []string
	for _, name := range gateway.DoctorHeaders() {
		if r.echo.Headers[name] != r.sent[name] {
			lost = append(lost, name)
		}
	}
	sum := sha256.Sum256([]byte(r.sent["Authorization"]))
	if r.echo.Authorization != hex.EncodeToString(sum[:]) {
		lost = append(lost, "Authorization")
	}
	if len(lost) > 0 {
		return one(fail("Have the proxy hand on all headers as they come; one with a list of allowed headers needs these on it.", "The proxy drops or changes: %s.", strings.Join(lost, ", ")))
	}
	var found []finding
	host := v.publicURL()
	if r.echo.Host != host.Host && r.echo.Host != host.Hostname()+":443" {
		found = append(found, warn("Have the proxy hand on the Host header: nginx needs proxy_set_header Host $http_host, Caddy does it by itself.", "The Host header arrives as %q.", r.echo.Host))
	}
	if !v.config.Loopback() && !r.echo.Named {
		found = append(found, warn("Have the proxy send X-Forwarded-For: nginx needs proxy_set_header X-Forwarded-For $remote_addr. If the proxy is on another machine, add its address to trustedProxies.", "The proxy does not name the client: all clients and strangers count as one in the rate limits."))
	}
	if len(found) == 0 {
		found = one(pass("All headers arrive, and the client's address as %s.", r.echo.Address))
	}
	return found
}

func checkBody(ctx context.Context, v *visit) []finding {
	body := bytes.Repeat([]byte("agent relay "), fullBody/12+1)[:fullBody]
	req, _, err := v.probe(ctx, v.config.MCPURL(), nil, bytes.NewReader(body))
	if err != nil {
		return one(fail("See public.reach.", "%s", sentence(err)))
	}
	const next = "Raise the proxy's limit to at least 4 MiB: nginx client_max_body_size 8m, Caddy request_body max_size 8MB."
	resp, err := v.browser.Do(req)
	if err != nil {
		return one(fail(next, "A call of 4 MiB does not get through: %s", sentence(err)))
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	var echo gateway.DoctorEcho
	if err == nil && resp.StatusCode == http.StatusOK {
		err = json.Unmarshal(raw, &echo)
	}
	sum := sha256.Sum256(body)
	switch {
	case resp.StatusCode == http.StatusRequestEntityTooLarge:
		return one(fail(next, "The proxy refuses a call of 4 MiB with status 413."))
	case err != nil || resp.StatusCode != http.StatusOK:
		return one(fail(next, "A call of 4 MiB is answered with status %d, and not by the gateway.", resp.StatusCode))
	case echo.SHA256 != hex.EncodeToString(sum[:]):
		return one(fail("See which part of the proxy changes requests, such as a firewall for web applications.", "Of a call of 4 MiB other bytes arrive: %d.", echo.Bytes))
	}
	return one(pass("A call of 4 MiB arrives whole."))
}

func checkStream(ctx context.Context, v *visit) []finding {
	hold := v.o.Hold
	if v.config.Loopback() { // there is no proxy to be tried
		hold = min(hold, 2*time.Second)
	}
	every := min(tick, hold/2)
	q := url.Values{"hold": {strconv.FormatInt(hold.Milliseconds(), 10)}, "tick": {strconv.FormatInt(every.Milliseconds(), 10)}}
	req, _, err := v.probe(ctx, v.config.MCPURL(), q, strings.NewReader("{}"))
	if err != nil {
		return one(fail("See public.reach.", "%s", sentence(err)))
	}
	begun := time.Now()
	const cut = "Let the proxy wait at least 3 minutes for the next bytes of an answer: nginx proxy_read_timeout 1h; load balancers and tunnels have an idle timeout."
	resp, err := v.browser.Do(req)
	if err != nil {
		return one(fail(cut, "An answer that is held for %v fails: %s", hold, sentence(err)))
	}
	defer resp.Body.Close()
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); resp.StatusCode != http.StatusOK || kind != "text/event-stream" {
		return one(fail(cut, "An answer that is held for %v ends with status %d and is no event stream.", hold, resp.StatusCode))
	}
	var last gateway.DoctorTick
	var worst time.Duration
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		raw, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || json.Unmarshal([]byte(raw), &last) != nil {
			continue
		}
		worst = max(worst, time.Since(begun)-time.Duration(last.Ms)*time.Millisecond)
	}
	took := time.Since(begun).Round(100 * time.Millisecond)
	const buffered = "Switch buffering off in the proxy for this name: nginx proxy_buffering off; a compressing or caching stage in front has to leave text/event-stream alone."
	switch {
	case !last.Done:
		return one(fail(cut, "An answer that should be held for %v was cut after %v.", hold, took))
	case worst > min(allowedLag, hold*4/5): // a proxy that collects hands all on at the end
		return one(fail(buffered, "The proxy collects answers: events came up to %v late.", worst.Round(100*time.Millisecond)))
	}
	return one(pass("An answer was held for %v, and its events came at once.", hold))
}

// documents are what clients read to find out how to log in.
func documents() []string {
	return []string{
		"/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp",
		"/.well-known/oauth-authorization-server", "/.well-known/oauth-authorization-server/mcp",
	}
}

func checkDiscovery(ctx context.Context, v *visit) []finding {
	for _, path := range documents() {
		want, err := get(ctx, v.plain, v.localURL()+path)
		if err != nil {
			return one(fail(restartIt, "The gateway itself does not serve %s: %s", path, sentence(err)))
		}
		got, err := get(ctx, v.browser, v.config.PublicBaseURL+path)
		if err != nil {
			return one(fail("Let the proxy hand every path of this name to the gateway, /.well-known/ too.", "%s does not come through the proxy: %s", path, sentence(err)))
		}
		if !bytes.Equal(got, want) {
			return one(fail("See which part of the proxy changes or caches answers, and switch it off for /.well-known/.", "%s is another document at the public address than the gateway's own.", path))
		}
	}
	return one(pass("The %d documents come through the proxy byte by byte.", len(documents())))
}

// get reads a small document.
func get(ctx context.Context, h *http.Client, address string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	resp, err := h.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}
	return io.ReadAll(io.LimitReader(resp.Body, 1<<20))
}

func checkSkew(_ context.Context, v *visit) []finding {
	r := v.reach()
	switch skew := r.skew; {
	case v.config.Loopback():
		return one(skip("publicBaseUrl is a loopback address: both clocks are one."))
	case r.date.IsZero():
		return one(skip("The proxy does not say its time."))
	case skew.Abs() > badSkew:
		return one(fail(setClock, "This machine's clock and the proxy's are %s apart.", span(skew.Abs())))
	case skew.Abs() > allowedSkew:
		return one(warn(setClock, "This machine's clock and the proxy's are %s apart.", span(skew.Abs())))
	}
	return one(pass("This machine's clock and the proxy's agree to the second."))
}

const setClock = "Have the machine keep its time: timedatectl set-ntp true on Linux, Set time automatically on macOS. If the proxy's is wrong, do it there."
