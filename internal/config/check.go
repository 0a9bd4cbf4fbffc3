package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"agentrelay/internal/callerid"
	"agentrelay/internal/hosts/ssh/target"
	"agentrelay/internal/oauth/redirect"
)

// AdminSocket is the name of the owner's socket in the state directory.
const AdminSocket = "admin.sock"

// maxSocketPath is what a socket address holds on macOS (104 bytes with the
// closing NUL); Linux holds four more.
const maxSocketPath = target.MaxSocketPath

// remoteSocketName is what the names of sockets in remoteStateDir may add to it,
// the slash included.
const remoteSocketName = 24

var (
	projectID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
	remoteDir = regexp.MustCompile(`^/[A-Za-z0-9/._-]+$`)
	hostID    = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,31}$`)
	envName   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	dnsName   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$`)
	spanForm  = regexp.MustCompile(`^([1-9][0-9]{0,5})([smhd])$`)
)

// check applies every rule that a value's type does not.
func (r *reading) check(c *Config) {
	r.whole("port", c.Port, 1, 65535)
	if base, err := publicBase(c.PublicBaseURL, c.Port); err != nil {
		r.bad("publicBaseUrl", "%v", err)
	} else {
		c.PublicBaseURL = base
	}
	if c.StateDir == "/" {
		r.bad("stateDir", "must not be the root directory: name a directory of its own")
	}
	if n := len(filepath.Join(c.StateDir, AdminSocket)); n > maxSocketPath {
		r.bad("stateDir", "is too long: %s in it would have a path of %d bytes, and a socket's path has at most %d. Choose a shorter directory", AdminSocket, n, maxSocketPath)
	}
	each(r, "oauth.redirects", c.OAuth.Redirects, redirectRule)
	r.whole("mailbox.limits.pairPerHour", c.Mailbox.Limits.PairPerHour, 0, 1_000_000)
	r.whole("mailbox.limits.ownerPerHour", c.Mailbox.Limits.OwnerPerHour, 0, 1_000_000)
	r.events(&c.Events)
	each(r, "trustedProxies", c.TrustedProxies, func(s string) error {
		p, err := prefix(s)
		c.proxies = append(c.proxies, p)
		return err
	})
	each(r, "allowedOrigins", c.AllowedOrigins, originRule)
	each(r, "allowedHosts", c.AllowedHosts, hostRule)
	r.whole("audit.keepDays", c.Audit.KeepDays, 1, 36500)
	r.backup(c)
	r.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	if r.lines["log.format"] > 0 {
		r.oneOf("log.format", c.Log.Format, "text", "json")
	}
	if err := upstreamRule(c.UpstreamURL); err != nil && r.lines["upstreamUrl"] > 0 {
		r.bad("upstreamUrl", "%v", err)
	}
	if c.Agents.PasswordFile != "" {
		r.secret("agents.passwordFile", &c.Agents.PasswordFile)
	}
	r.direct("direct", &c.Direct, func(string) error { return nil }) // complete has checked the path
	r.limits(&c.Commands, &c.Transfers)
	r.hosts(c.Hosts)
	r.wakeTargets(c.PeerWakeTargets)
}

// each applies a rule to the entries of a list.
func each(r *reading, key string, values []string, rule func(string) error) {
	for i, v := range values {
		entry := fmt.Sprintf("%s[%d]", key, i)
		if err := rule(v); err != nil {
			r.bad(entry, "%v", err)
		}
		if slices.Contains(values[:i], v) {
			r.bad(entry, "is there twice: remove one")
		}
	}
}

func (r *reading) whole(key string, v, least, most int) {
	if v < least || v > most {
		r.bad(key, "must be from %d to %d", least, most)
	}
}

func (r *reading) oneOf(key, v string, allowed ...string) {
	if !slices.Contains(allowed, v) {
		r.bad(key, "must be one of %s", strings.Join(allowed, ", "))
	}
}

func (r *reading) matches(key, v string, rule *regexp.Regexp, words string) {
	if !rule.MatchString(v) {
		r.bad(key, "%s", words)
	}
}

// publicBase checks publicBaseUrl and returns its one spelling. The OAuth
// resource is made of it, and clients compare that as a string.
func publicBase(s string, port int) (string, error) {
	local := fmt.Sprintf("http://127.0.0.1:%d or http://localhost:%d", port, port)
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return "", fmt.Errorf("must be an https origin such as https://gateway.example.com, or %s", local)
	}
	host := strings.ToLower(u.Host)
	if u.Scheme == "https" {
		host = strings.TrimSuffix(host, ":443")
	}
	base := u.Scheme + "://" + host
	if u.User != nil || u.RawQuery != "" || u.ForceQuery || strings.Contains(s, "#") {
		return "", fmt.Errorf("must be an origin without user, query or fragment: write %q", base)
	}
	if p := strings.TrimSuffix(u.Path, "/"); p != "" {
		if p == "/mcp" {
			return "", fmt.Errorf("must not end in /mcp, which is put behind it: write %q", base)
		}
		return "", fmt.Errorf("must not have a path, for the gateway answers at the root of its host: write %q and give it a host name of its own", base)
	}
	if u.Scheme == "http" {
		if base != fmt.Sprintf("http://127.0.0.1:%d", port) && base != fmt.Sprintf("http://localhost:%d", port) {
			return "", fmt.Errorf("must be https, unless it is %s for clients on this machine", local)
		}
		return base, nil
	}
	if err := authority(host); err != nil {
		return "", err
	}
	return base, nil
}

// authority checks a host with an optional port.
func authority(s string) error {
	u := url.URL{Host: s}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return errors.New("has a port that is not from 1 to 65535")
		}
	} else if strings.HasSuffix(s, ":") {
		return errors.New("ends in a colon: remove it, or write a port behind it")
	}
	return hostRule(strings.Trim(u.Hostname(), "[]"))
}

// hostRule is a host name or an address, without scheme and port.
func hostRule(s string) error {
	if _, err := netip.ParseAddr(s); err == nil {
		return nil
	}
	if len(s) > 253 || !dnsName.MatchString(s) {
		return errors.New("must be a host name or an address in ASCII, without scheme, port and path, such as gateway.example.com (names in other scripts in their xn-- form)")
	}
	return nil
}

func prefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, errors.New("must be an address such as 10.0.0.7, or a network such as 10.0.0.0/8 or fd00::/8")
	}
	if p != p.Masked() {
		return p, fmt.Errorf("has bits set behind the /%d: write %q", p.Bits(), p.Masked())
	}
	return p, nil
}

func originRule(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Scheme+"://"+u.Host != s || authority(u.Host) != nil {
		return errors.New("must be an origin, scheme and host with an optional port and nothing behind it, such as https://app.example.com")
	}
	if lower := strings.ToLower(s); lower != s {
		return fmt.Errorf("must be in lower case, as browsers send it: write %q", lower)
	}
	return nil
}

// redirectRule is the rule of an entry of oauth.redirects, which is OAuth's.
func redirectRule(s string) error {
	_, err := redirect.NewPolicy([]string{s})
	return err
}

func upstreamRule(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.User != nil || !slices.Contains([]string{"http", "https", "ws", "wss"}, u.Scheme) {
		return errors.New("must be the address of the daemon without user and password, such as http://127.0.0.1:6767/mcp/agents")
	}
	return nil
}

// remotePath is the rule of a path on an SSH host.
func remotePath(s string) error {
	if !path.IsAbs(s) || path.Clean(s) != s || strings.ContainsAny(s, "\x00\r\n") {
		return errors.New("must be an absolute path on that machine, without ~ and without . or .. in it, such as /home/you/project")
	}
	return nil
}

func (r *reading) limits(c *Commands, t *Transfers) {
	for i, dir := range filepath.SplitList(c.Path) {
		if !filepath.IsAbs(dir) {
			r.bad("commands.path", "must be absolute directories with a colon between them; number %d is not absolute", i+1)
		}
	}
	each(r, "commands.passEnvironment", c.PassEnvironment, func(s string) error {
		if !envName.MatchString(s) {
			return errors.New("must be the name of an environment variable, letters, digits and _")
		}
		return nil
	})
	if len(c.PassEnvironment) > 128 {
		r.bad("commands.passEnvironment", "must have at most 128 entries")
	}
	r.whole("commands.runningPerOwner", c.RunningPerOwner, 1, 1000)
	r.whole("commands.runningPerHost", c.RunningPerHost, 1, 1000)
	r.whole("commands.outputBytes", c.OutputBytes, 64<<10, 1<<30)
	r.whole("commands.storedBytes", c.StoredBytes, 1<<20, 1<<40)
	r.whole("commands.keepDays", c.KeepDays, 1, 3650)
	r.whole("transfers.maxFileBytes", t.MaxFileBytes, 1, 1<<40)
	r.whole("transfers.spoolBytes", t.SpoolBytes, 1, 1<<44)
	r.whole("transfers.perOwner", t.PerOwner, 1, 10_000)
	if t.linkLife = r.span("transfers.linkLife", t.LinkLife); t.linkLife > 7*24*time.Hour {
		r.bad("transfers.linkLife", "must be at most 7d: whoever has a link can download the file")
	}
	if t.SpoolBytes < t.MaxFileBytes {
		r.bad("transfers.spoolBytes", "must not be smaller than transfers.maxFileBytes, which is %d", t.MaxFileBytes)
	}
}

func (r *reading) backup(c *Config) {
	b := &c.Backup
	switch {
	case b.Every == "off":
	case !spanForm.MatchString(b.Every):
		r.bad("backup.every", "must be a number and s, m, h or d, such as 1d or 12h, or off")
	default:
		b.every = r.span("backup.every", b.Every)
	}
	r.whole("backup.keep", b.Keep, 1, 10_000)
	if b.Dir == c.StateDir {
		r.bad("backup.dir", "must not be the state directory itself, of which a backup is made: name one in it, or better on another disk")
	}
}

func (r *reading) direct(key string, d *Direct, pathRule func(string) error) {
	if len(d.Projects) > 64 {
		r.bad(key+".projects", "must have at most 64 entries")
	}
	ids := map[string]bool{}
	for i := range d.Projects {
		p := &d.Projects[i]
		k := fmt.Sprintf("%s.projects[%d]", key, i)
		r.matches(k+".id", p.ID, projectID, "must be 1 to 64 letters, digits, _ and -, beginning with a letter or a digit")
		r.unique(k+".id", p.ID, ids)
		if p.Name == "" {
			p.Name = p.ID
		}
		if utf8.RuneCountInString(p.Name) > 100 {
			r.bad(k+".name", "must have at most 100 characters")
		}
		if err := pathRule(p.Path); err != nil {
			r.bad(k+".path", "%v", err)
		}
		r.oneOf(k+".commandMode", p.CommandMode, "disabled", "registered", "full")
		r.commands(k+".commands", p.Commands)
	}
}

func (r *reading) commands(key string, commands []Command) {
	if len(commands) > 64 {
		r.bad(key, "must have at most 64 entries")
	}
	names := map[string]bool{}
	for i, c := range commands {
		k := fmt.Sprintf("%s[%d]", key, i)
		r.matches(k+".name", c.Name, projectID, "must be 1 to 64 letters, digits, _ and -, beginning with a letter or a digit")
		r.unique(k+".name", c.Name, names)
		if size, _ := json.Marshal(c.Argv); len(c.Argv) < 1 || len(c.Argv) > 64 || len(size) > 16384 {
			r.bad(k+".argv", "must have 1 to 64 entries, at most 16384 bytes in all")
			continue
		}
		if c.Argv[0] == "" || c.Argv[0][0] == '-' || strings.ContainsRune(strings.Join(c.Argv, ""), 0) {
			r.bad(k+".argv", "must begin with the program, and no entry may contain a NUL character")
		}
	}
}

func (r *reading) unique(key, v string, seen map[string]bool) {
	if seen[v] {
		r.bad(key, "is there twice: give each its own")
	}
	seen[v] = true
}

func (r *reading) hosts(hosts []Host) {
	ids := map[string]bool{}
	for i := range hosts {
		h := &hosts[i]
		k := fmt.Sprintf("hosts[%d]", i)
		r.matches(k+".id", h.ID, hostID, "must be 1 to 32 lower-case letters, digits, _ and -, beginning with a letter")
		if h.ID == "mac" || h.ID == "local" {
			r.bad(k+".id", "must not be %s, which is this machine: it is there without being listed", h.ID)
		}
		r.unique(k+".id", h.ID, ids)
		if n := utf8.RuneCountInString(h.Name); strings.TrimSpace(h.Name) == "" || n > 80 {
			r.bad(k+".name", "must have 1 to 80 characters")
		}
		if h.Transport != "ssh" {
			r.bad(k+".transport", `must be "ssh"`)
		}
		if _, err := target.Parse(h.Target); err != nil {
			r.bad(k+".target", "%v", err)
		}
		if n := len(h.AllowedRoots); n < 1 || n > 128 {
			r.bad(k+".allowedRoots", "must have 1 to 128 entries")
		}
		each(r, k+".allowedRoots", h.AllowedRoots, remotePath)
		r.remoteStateDir(k+".remoteStateDir", h.RemoteStateDir)
		if h.DaemonPasswordFile != "" {
			r.secret(k+".daemonPasswordFile", &h.DaemonPasswordFile)
		}
		r.direct(k+".direct", &h.Direct, remotePath)
	}
}

// remoteStateDir checks the gateway's directory on an SSH host. Its name stands in
// commands and in the paths of sockets.
func (r *reading) remoteStateDir(key, dir string) {
	if !remoteDir.MatchString(dir) || path.Clean(dir) != dir {
		r.bad(key, "must be an absolute path on that machine of letters, digits and / . _ -, without ~ and without . or .. in it, such as /home/you/.agent-relay")
	}
	if n := len(dir) + remoteSocketName; n > maxSocketPath {
		r.bad(key, "is too long: a socket in it would have a path of %d bytes, and one has at most %d. Choose a directory of at most %d bytes", n, maxSocketPath, maxSocketPath-remoteSocketName)
	}
}

func (r *reading) events(e *Events) {
	e.ttl, e.minTTL, e.maxTTL = r.span("events.defaultTtl", e.DefaultTTL), r.span("events.minTtl", e.MinTTL), r.span("events.maxTtl", e.MaxTTL)
	switch {
	case e.ttl == 0 || e.minTTL == 0 || e.maxTTL == 0: // said already
	case e.maxTTL < e.minTTL:
		r.bad("events.maxTtl", "must not be shorter than events.minTtl, which is %s", e.MinTTL)
	case e.ttl < e.minTTL || e.ttl > e.maxTTL:
		r.bad("events.defaultTtl", "must lie between events.minTtl, which is %s, and events.maxTtl, which is %s", e.MinTTL, e.MaxTTL)
	}
	r.whole("events.maxSubscriptions", e.MaxSubscriptions, 1, 100_000)
	r.whole("events.challengesPerMinute", e.ChallengesPerMinute, 1, 100_000)
	r.whole("events.keepDays", e.KeepDays, 1, 36500)
	r.oneOf("events.errorCodes", e.ErrorCodes, "sketch", "sep")
}

// span reads a length of time such as 30d; 0 when it is none.
func (r *reading) span(key, s string) time.Duration {
	m := spanForm.FindStringSubmatch(s)
	if m == nil {
		r.bad(key, "must be a number and s, m, h or d, such as 30d or 12h")
		return 0
	}
	n, _ := strconv.Atoi(m[1]) // at most six digits
	return time.Duration(n) * map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}[m[2]]
}

func (r *reading) wakeTargets(targets []WakeTarget) {
	peers := map[string]bool{}
	for i := range targets {
		t := &targets[i]
		k := fmt.Sprintf("peerWakeTargets[%d]", i)
		if id, ok := strings.CutPrefix(t.Owner, "local-owner:"); !ok || id == "" {
			r.bad(k+".owner", `must be "local-owner:shared" with sharedOwner, else "local-owner:<clientId>"`)
		}
		r.matches(k+".peerId", t.PeerID, callerid.Form, "must be a peer id: letters, digits, . _ : and -, at most 128")
		r.unique(k+".peerId", t.Owner+"\x00"+t.PeerID, peers)
		if t.Generation < 1 {
			r.bad(k+".generation", "must be the peer's generation, 1 or more: list_peers shows it")
		}
		r.matches(k+".routineId", t.RoutineID, callerid.Form, "must be letters, digits, . _ : and -, at most 128")
		r.secret(k+".credentialFile", &t.CredentialFile)
		r.oneOf(k+".scheme", t.Scheme, "bearer", "standard-webhooks")
	}
}

// secret checks a reference to a secret. The value is not repeated, for it may
// be the secret itself, put in the wrong place.
func (r *reading) secret(key string, ref *string) {
	if name, ok := strings.CutPrefix(*ref, "env:"); ok {
		r.matches(key, name, envName, "must name an environment variable behind env:, letters, digits and _")
		return
	}
	full, err := ExpandPath(strings.TrimPrefix(*ref, "file:"), r.getenv)
	if err != nil {
		r.bad(key, "must be the absolute path of a file (also file:<path>) or env:<NAME>, not the secret itself")
		return
	}
	*ref = full
}
