package ssh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// resolveTimeout bounds ssh -G, which may run commands of the owner (Match exec)
// and ask the name service.
const resolveTimeout = 10 * time.Second

// maxJumps bounds the machines on the way to a host.
const maxJumps = 16

// spec is a machine as a target or a ProxyJump names it.
type spec struct {
	user, host string
	port       int // 0: as the settings say
}

// settings are what the owner's OpenSSH would use for one machine, filled in.
type settings struct {
	scope
	identityFiles, certificateFiles  []string
	identitiesOnly                   bool
	agent                            string // the agent's socket; "" for none
	userKnownHosts, globalKnownHosts []string
	revokedHostKeys                  string
	hashKnownHosts                   bool
	jumps                            []spec
	proxyCommand                     string
	network, bindAddress             string // "tcp", "tcp4" or "tcp6"
	connectTimeout, aliveInterval    time.Duration
	aliveCount                       int
	// Algorithms that may be used; nil is what x/crypto uses.
	ciphers, macs, kex, hostKeyAlgorithms []string
	// notes say, for the owner, which settings are not followed, and why.
	notes []note
}

// note is a setting that is not followed.
type note struct{ text, next string }

// address is where the machine listens.
func (s *settings) address() string { return net.JoinHostPort(s.host, strconv.Itoa(s.port)) }

// knownName is the machine in known_hosts, as host:port. An alias stands without a
// port, which is what 22 says.
func (s *settings) knownName() string {
	if s.keyAlias != "" {
		return net.JoinHostPort(s.keyAlias, "22")
	}
	return net.JoinHostPort(strings.ToLower(s.host), strconv.Itoa(s.port))
}

// route is the way to a machine: jump hosts first, itself last.
func (h *Host) route(ctx context.Context, at spec, jumps int) ([]*settings, error) {
	s, err := h.resolve(ctx, at)
	if err != nil {
		return nil, err
	}
	if len(s.jumps) == 0 {
		return []*settings{s}, nil
	}
	if jumps += len(s.jumps); jumps > maxJumps {
		return nil, &failure{step: "settings", reason: fmt.Sprintf("The ProxyJump settings of %s lead over more than %d machines, or in a circle.", at.host, maxJumps),
			next: "Correct ProxyJump in the ssh configuration: ssh -G shows what it is for each host."}
	}
	// The first has its own way; each further is reached from the one before it.
	way, err := h.route(ctx, s.jumps[0], jumps)
	if err != nil {
		return nil, err
	}
	for _, jump := range s.jumps[1:] {
		hop, err := h.resolve(ctx, jump)
		if err != nil {
			return nil, err
		}
		way = append(way, hop)
	}
	return append(way, s), nil
}

// resolve asks OpenSSH for the settings of one machine.
func (h *Host) resolve(ctx context.Context, at spec) (*settings, error) {
	raw, err := h.ask(ctx, at)
	if err != nil {
		return nil, &failure{step: "settings", reason: fmt.Sprintf("The ssh configuration of the gateway's machine can't be read for %s.", at.host),
			detail: fmt.Sprintf("ssh -G %s failed: %v.", at.host, err), next: "Run it in a terminal and correct what it says.", cause: err}
	}
	s, err := h.settings(at, parseSettings(raw))
	if err != nil {
		return nil, &failure{step: "settings", reason: fmt.Sprintf("The ssh configuration of the gateway's machine has a value for %s that can't be used.", at.host),
			detail: fmt.Sprintf("In the ssh settings for %s, %v.", at.host, err), next: "Correct it in the ssh configuration: ssh -G " + at.host + " shows it.", cause: err}
	}
	return s, nil
}

// ask runs ssh -G. Without an ssh it returns nothing, which stands for defaults.
func (h *Host) ask(ctx context.Context, at spec) ([]byte, error) {
	command := h.opts.Command
	if command == "" {
		var err error
		if command, err = exec.LookPath("ssh"); err != nil {
			return nil, nil
		}
	}
	args := []string{"-G", "-T"}
	if h.opts.ConfigFile != "" {
		args = append(args, "-F", h.opts.ConfigFile)
	}
	if at.port != 0 {
		args = append(args, "-p", strconv.Itoa(at.port))
	}
	if at.user != "" {
		args = append(args, "-l", at.user)
	}
	ctx, cancel := context.WithTimeout(ctx, h.resolveTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, command, append(args, "--", at.host)...)
	var stderr tail
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what Match exec runs ends with it
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("it took longer than %v", h.resolveTimeout)
	}
	if said := stderr.line(); err != nil && said != "" {
		return nil, errors.New(said)
	}
	return out, err
}

// parseSettings reads the lines of ssh -G, "key value", in lower case. A key that
// may be given several times has several values.
func parseSettings(raw []byte) map[string][]string {
	values := map[string][]string{}
	for line := range bytes.Lines(raw) {
		key, value, _ := strings.Cut(strings.TrimRight(string(line), "\r\n"), " ")
		if key = strings.ToLower(key); key != "" {
			values[key] = append(values[key], value)
		}
	}
	return values
}

// first is the value of a key that has one; "" where it says none.
func first(values map[string][]string, key string) string {
	v := values[key]
	if len(v) == 0 || v[0] == "none" {
		return ""
	}
	return v[0]
}

func yes(values map[string][]string, key string) bool {
	v := first(values, key)
	return v == "yes" || v == "true"
}

// settings fills in the values that ssh -G printed; none are the defaults.
func (h *Host) settings(at spec, values map[string][]string) (*settings, error) {
	s := &settings{scope: h.scope(at)}
	if v := first(values, "hostname"); v != "" {
		s.host = v
	}
	var err error
	if s.port, err = number(values, "port", s.port, 65535); err != nil || s.port == 0 {
		return nil, errors.New("the Port is not from 1 to 65535")
	}
	s.keyAlias = first(values, "hostkeyalias")
	s.jump = first(values, "proxyjump")
	if v := first(values, "user"); v != "" {
		s.user = v
		if s.user, err = s.expand(v, userTokens, true); err != nil {
			return nil, fmt.Errorf("the User can't be filled in: %w", err)
		}
	}
	if err := s.readWay(values); err != nil {
		return nil, err
	}
	s.readFiles(values)
	s.readAgent(strings.Join(values["identityagent"], ""))
	s.identitiesOnly = yes(values, "identitiesonly")
	s.hashKnownHosts = yes(values, "hashknownhosts")
	s.ciphers = list(values, "ciphers")
	s.macs = list(values, "macs")
	s.kex = list(values, "kexalgorithms")
	s.hostKeyAlgorithms = list(values, "hostkeyalgorithms")
	s.readNotes(values)
	return s, nil
}

// scope is what is known of a machine before its settings are.
func (h *Host) scope(at spec) scope {
	s := scope{getenv: h.opts.Getenv, home: h.opts.Home, localID: strconv.Itoa(os.Getuid()), alias: at.host, host: at.host, port: at.port, user: at.user}
	if u, err := user.Current(); err == nil {
		s.localUser = u.Username
	}
	s.localHost, _ = os.Hostname()
	if s.user == "" {
		s.user = s.localUser
	}
	if s.port == 0 {
		s.port = 22
	}
	return s
}

// readWay reads how the machine is reached.
func (s *settings) readWay(values map[string][]string) (err error) {
	if s.jump != "" {
		expanded, err := s.expand(s.jump, commandTokens, false)
		if err != nil {
			return fmt.Errorf("ProxyJump can't be filled in: %w", err)
		}
		if s.jumps, err = parseJumps(expanded); err != nil {
			return err
		}
	} else if s.proxyCommand, err = s.expand(first(values, "proxycommand"), commandTokens, false); err != nil {
		return fmt.Errorf("ProxyCommand can't be filled in: %w", err)
	}
	s.network = map[string]string{"inet": "tcp4", "inet6": "tcp6"}[first(values, "addressfamily")]
	if s.network == "" {
		s.network = "tcp"
	}
	s.bindAddress = first(values, "bindaddress")
	timeout, err := number(values, "connecttimeout", 0, 1<<20)
	if err != nil {
		return err
	}
	alive, err := number(values, "serveraliveinterval", 0, 1<<20)
	if err != nil {
		return err
	}
	s.connectTimeout, s.aliveInterval = time.Duration(timeout)*time.Second, time.Duration(alive)*time.Second
	s.aliveCount, err = number(values, "serveralivecountmax", 0, 1<<20)
	return err
}

func number(values map[string][]string, key string, standard, most int) (int, error) {
	v := first(values, key)
	if v == "" {
		return standard, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 || n > most {
		return 0, fmt.Errorf("%s is not a number from 0 to %d", key, most)
	}
	return n, nil
}

func list(values map[string][]string, key string) []string {
	v := first(values, key)
	if v == "" {
		return nil
	}
	return strings.Split(v, ",")
}

// parseJumps reads [ssh://][user@]host[:port], separated by commas.
func parseJumps(s string) ([]spec, error) {
	var jumps []spec
	for part := range strings.SplitSeq(s, ",") {
		bad := fmt.Errorf("ProxyJump has %q, which is not [user@]host[:port]", part)
		rest, isURL := strings.CutPrefix(part, "ssh://")
		if isURL {
			rest = strings.TrimSuffix(rest, "/")
		}
		var j spec
		if i := strings.LastIndexByte(rest, '@'); i >= 0 {
			j.user, rest = rest[:i], rest[i+1:]
			if j.user == "" || j.user[0] == '-' {
				return nil, bad
			}
		}
		host, port := rest, ""
		if strings.HasPrefix(rest, "[") || strings.Count(rest, ":") == 1 {
			var err error
			if inner, bare := strings.CutSuffix(rest, "]"); bare && rest[0] == '[' {
				host = inner[1:]
			} else if host, port, err = net.SplitHostPort(rest); err != nil {
				return nil, bad
			} else if j.port, err = strconv.Atoi(port); err != nil || j.port < 1 || j.port > 65535 {
				return nil, bad
			}
		}
		if j.host = host; host == "" || host[0] == '-' || strings.ContainsAny(host, " \t[]@/") {
			return nil, bad
		}
		jumps = append(jumps, j)
	}
	return jumps, nil
}

// readFiles reads the settings that name files. One that can't be filled in is
// left out and noted, as OpenSSH does.
func (s *settings) readFiles(values map[string][]string) {
	identities := values["identityfile"]
	if len(values) == 0 {
		identities = []string{"~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ecdsa_sk", "~/.ssh/id_ed25519", "~/.ssh/id_ed25519_sk"}
	}
	s.identityFiles = s.files("IdentityFile", identities)
	s.certificateFiles = s.files("CertificateFile", values["certificatefile"])
	s.userKnownHosts = s.fileList(values, "userknownhostsfile", "UserKnownHostsFile", "~/.ssh/known_hosts ~/.ssh/known_hosts2")
	s.globalKnownHosts = s.fileList(values, "globalknownhostsfile", "GlobalKnownHostsFile", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2")
	if v := first(values, "revokedhostkeys"); v != "" {
		s.revokedHostKeys = strings.Join(s.files("RevokedHostKeys", []string{v}), "")
	}
}

func (s *settings) files(name string, paths []string) (files []string) {
	for _, p := range paths {
		if p == "none" || p == "" {
			continue
		}
		file, err := s.file(p)
		if err != nil {
			s.notes = append(s.notes, note{fmt.Sprintf("%s %s is left out: %v.", name, p, err), "Correct it in the ssh configuration."})
			continue
		}
		if !slices.Contains(files, file) {
			files = append(files, file)
		}
	}
	return files
}

// fileList reads a setting that has several files. ssh -G separates them with
// spaces, and doesn't quote those whose name has one: parts that together name a
// file that exists are that file.
func (s *settings) fileList(values map[string][]string, key, name, standard string) (files []string) {
	if v, set := values[key]; set {
		standard = strings.Join(v, " ")
	}
	if standard == "none" {
		return nil
	}
	parts := strings.Split(standard, " ")
	for len(parts) > 0 {
		n := 1
		for k := len(parts); k > 1; k-- {
			if file, err := s.file(strings.Join(parts[:k], " ")); err == nil && exists(file) {
				n = k
				break
			}
		}
		files = append(files, s.files(name, []string{strings.Join(parts[:n], " ")})...)
		parts = parts[n:]
	}
	return files
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// readAgent finds the agent's socket.
func (s *settings) readAgent(v string) {
	switch name, isVariable := strings.CutPrefix(v, "$"); {
	case v == "none":
		s.agent = ""
	case v == "" || v == "SSH_AUTH_SOCK":
		s.agent = s.getenv("SSH_AUTH_SOCK")
	case isVariable && !strings.HasPrefix(name, "{"):
		s.agent = s.getenv(name)
	default:
		s.agent = strings.Join(s.files("IdentityAgent", []string{v}), "")
	}
}

// readNotes finds the settings that this package does not follow.
func (s *settings) readNotes(values map[string][]string) {
	add := func(when bool, text, next string) {
		if when {
			s.notes = append(s.notes, note{text, next})
		}
	}
	preferred := first(values, "preferredauthentications")
	gssapi := yes(values, "gssapiauthentication")
	pubkey := first(values, "pubkeyauthentication")
	add(preferred != "" && !slices.Contains(strings.Split(preferred, ","), "publickey") || pubkey == "no" || pubkey == "false",
		"PreferredAuthentications or PubkeyAuthentication leaves out keys, but the gateway logs in with keys only"+map[bool]string{true: " and not with GSSAPI", false: ""}[gssapi]+".",
		"Give the gateway's user a key that this host accepts.")
	add(first(values, "pkcs11provider") != "", "PKCS11Provider is not supported: the gateway loads no PKCS#11 library.", "Add the token's keys to the agent: ssh-add -s LIBRARY.")
	sk := first(values, "securitykeyprovider")
	add(sk != "" && sk != "internal", "SecurityKeyProvider is not supported: the gateway uses security keys only through the agent.", "Add the key to the agent with ssh-add.")
	add(first(values, "knownhostscommand") != "", "KnownHostsCommand is not supported: the host's key must be in a known_hosts file.", "Run: gateway hosts trust HOST")
	add(yes(values, "usekeychain"), "UseKeychain is not supported: the gateway asks no keychain for a passphrase.", "Put the key into the agent at login: ssh-add --apple-load-keychain.")
	add(yes(values, "proxyusefdpass"), "ProxyUseFdpass is not supported: the ProxyCommand must carry the connection on its standard input and output.", "Use a ProxyCommand such as nc HOST PORT without -F.")
	add(first(values, "bindinterface") != "", "BindInterface is not followed; BindAddress is.", "Use BindAddress.")
	add(yes(values, "verifyhostkeydns"), "VerifyHostKeyDNS is not followed: the host's key must be in a known_hosts file.", "")
	add(yes(values, "hostbasedauthentication"), "HostbasedAuthentication is not supported.", "")
	strict := first(values, "stricthostkeychecking")
	add(strict == "no" || strict == "off" || strict == "false" || strict == "accept-new" || yes(values, "nohostauthenticationforlocalhost"),
		"StrictHostKeyChecking or NoHostAuthenticationForLocalhost asks for less than a known key; the gateway always wants one.", "Run: gateway hosts trust HOST")
}
