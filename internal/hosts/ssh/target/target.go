// Package target reads the address of an SSH host in the config.
//
// It owns the grammar ssh://[user@]host[:port][/][?daemonPort=n|daemonSocket=path]
// and promises that what it accepts can stand on a command line of ssh as it is:
// no field begins with a hyphen or has a character that a shell or ssh takes for
// more than itself. It leaves to others what the names mean: a host may be an
// alias of the owner's ssh configuration.
package target

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// DaemonPort is where the agent daemon of a host listens, when its target doesn't
// say.
const DaemonPort = 6767

// MaxSocketPath is the length in bytes of a unix socket's path that every system
// takes: macOS has 104 bytes with the closing NUL.
const MaxSocketPath = 103

var (
	hostName   = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,252}$`)
	userName   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]{0,63}$`)
	plainPath  = regexp.MustCompile(`^/[A-Za-z0-9/._-]+$`)
	errShape   = errors.New("must be ssh://[user@]host[:port][?daemonPort=n], such as ssh://linux-host")
	errOneEach = errors.New("must name daemonPort or daemonSocket at most once, and not both")
)

// Target is the address of an SSH host.
type Target struct {
	User string // "" is what ssh's settings say
	// Host is a name, an alias of the ssh configuration, or an address; IPv6
	// without brackets.
	Host string
	Port int // 0 is what ssh's settings say

	daemonPort   int
	daemonSocket string
}

// Parse reads a target. Its errors say what must be written, for the config.
func Parse(s string) (Target, error) {
	var t Target
	if len(s) > 400 || strings.ContainsAny(s, "%\\ \t\r\n#") {
		return t, errShape
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "ssh" || u.Path != "" && u.Path != "/" || u.Opaque != "" {
		return t, errShape
	}
	if _, has := u.User.Password(); has {
		return t, errors.New("must not contain a password: SSH logs in with your keys")
	}
	if t.User = u.User.Username(); u.User != nil && !userName.MatchString(t.User) {
		return t, errors.New("has a user that is not 1 to 64 letters, digits, _ . and -, beginning with a letter or _")
	}
	t.Host = u.Hostname()
	if a, err := netip.ParseAddr(t.Host); strings.HasPrefix(u.Host, "[") && (err != nil || !a.Is6() || a.Zone() != "") {
		return t, errors.New("has something between [ and ] that is not an IPv6 address")
	} else if !strings.HasPrefix(u.Host, "[") && !hostName.MatchString(t.Host) {
		return t, errShape
	}
	if t.Port, err = port(u.Port()); err != nil || strings.HasSuffix(u.Host, ":") {
		return t, errors.New("has a port that is not from 1 to 65535")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return t, errShape
	}
	return t.daemon(query)
}

// daemon reads the keys behind the question mark.
func (t Target) daemon(query url.Values) (Target, error) {
	if len(query) > 1 {
		return t, errOneEach
	}
	for name, values := range query {
		if len(values) != 1 {
			return t, errOneEach
		}
		v := values[0]
		switch name {
		case "daemonPort":
			n, err := port(v)
			if err != nil || n == 0 {
				return t, errors.New("has a daemonPort that is not from 1 to 65535")
			}
			t.daemonPort = n
		case "daemonSocket":
			if !plainPath.MatchString(v) || path.Clean(v) != v || len(v) > MaxSocketPath {
				return t, fmt.Errorf("has a daemonSocket that is not an absolute path of letters, digits and / . _ -, at most %d bytes", MaxSocketPath)
			}
			t.daemonSocket = v
		default:
			return t, errors.New("has a key behind the ? that is not daemonPort or daemonSocket")
		}
	}
	return t, nil
}

func port(s string) (int, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(s, 10, 16)
	if err == nil && n == 0 {
		err = strconv.ErrRange
	}
	return int(n), err
}

// DaemonAddress is where the agent daemon listens on the host, for a dialer.
func (t Target) DaemonAddress() (network, address string) {
	if t.daemonSocket != "" {
		return "unix", t.daemonSocket
	}
	n := t.daemonPort
	if n == 0 {
		n = DaemonPort
	}
	return "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(n))
}

// String is the target in its one spelling: defaults and the trailing slash left
// out. It identifies the machine in records.
func (t Target) String() string {
	u := url.URL{Scheme: "ssh", Host: t.Host}
	if strings.Contains(t.Host, ":") {
		u.Host = "[" + t.Host + "]"
	}
	if t.User != "" {
		u.User = url.User(t.User)
	}
	if t.Port != 0 {
		u.Host += ":" + strconv.Itoa(t.Port)
	}
	switch {
	case t.daemonSocket != "":
		u.RawQuery = "daemonSocket=" + t.daemonSocket
	case t.daemonPort != 0 && t.daemonPort != DaemonPort:
		u.RawQuery = "daemonPort=" + strconv.Itoa(t.daemonPort)
	}
	return u.String()
}
