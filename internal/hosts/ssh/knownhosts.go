package ssh

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/skeema/knownhosts"
	xssh "golang.org/x/crypto/ssh"
	xknownhosts "golang.org/x/crypto/ssh/knownhosts"
)

// errOffered ends a handshake that was only made to see the host's key.
var errOffered = errors.New("the key was seen")

// verifier checks the key of one machine against known_hosts.
type verifier struct {
	s       *settings
	hostID  string
	db      *knownhosts.HostKeyDB
	revoked map[string]bool
	look    bool // only to see the key: the handshake ends before the login

	offered xssh.PublicKey // what the machine showed
	failed  *failure       // why it was refused
}

func newVerifier(s *settings, hostID string) (*verifier, error) {
	v := &verifier{s: s, hostID: hostID, revoked: map[string]bool{}}
	var files []string
	for _, f := range slices.Concat(s.userKnownHosts, s.globalKnownHosts) {
		if info, err := os.Stat(f); err == nil && !info.IsDir() {
			files = append(files, f)
		}
	}
	var err error
	if v.db, err = knownhosts.NewDB(files...); err != nil {
		return nil, &failure{step: "key", reason: "The known_hosts file of the gateway's machine can't be read.", detail: fmt.Sprintf("known_hosts can't be read: %v.", err),
			next: "Correct the file, or its permissions.", cause: err}
	}
	return v, v.readRevoked()
}

// readRevoked reads RevokedHostKeys. A file that can't be read means that no key
// is accepted, as for OpenSSH.
func (v *verifier) readRevoked() error {
	if v.s.revokedHostKeys == "" {
		return nil
	}
	refuse := func(why string) error {
		return &failure{step: "key", reason: "The RevokedHostKeys of the gateway's ssh configuration can't be read, so no host key is accepted.",
			detail: fmt.Sprintf("RevokedHostKeys %s %s, so no host key is accepted.", v.s.revokedHostKeys, why), next: "Make it a readable file with one public key a line, or remove the setting."}
	}
	raw, err := os.ReadFile(v.s.revokedHostKeys)
	if err != nil {
		return refuse("can't be read")
	}
	if bytes.HasPrefix(raw, []byte("SSHKRL\n")) {
		return refuse("is a binary revocation list, which is not supported")
	}
	for line := range bytes.Lines(raw) {
		if line = bytes.TrimSpace(line); len(line) == 0 || line[0] == '#' {
			continue
		}
		key, _, _, _, err := xssh.ParseAuthorizedKey(line)
		if err != nil {
			return refuse("has a line that is no public key")
		}
		v.revoked[string(key.Marshal())] = true
	}
	return nil
}

// algorithms are those by which the machine may prove itself, best first: of what
// the settings allow and x/crypto has, the types that known_hosts has for the
// machine come before all others. Certificates are asked for only where a
// @cert-authority of the machine is known, for nothing else could vouch for them.
func (v *verifier) algorithms() []string {
	known := v.db.HostKeyAlgorithms(v.s.knownName())
	supported := xssh.SupportedAlgorithms().HostKeys
	allowed := v.s.hostKeyAlgorithms
	if allowed == nil {
		allowed = supported
	} else {
		supported = slices.Concat(supported, xssh.InsecureAlgorithms().HostKeys)
	}
	usable := func(a string) bool {
		return slices.Contains(supported, a) && slices.Contains(allowed, a) && (!strings.Contains(a, "-cert-v01") || slices.Contains(known, a))
	}
	var best, others []string
	for _, a := range slices.Concat(known, allowed) {
		switch {
		case !usable(a), slices.Contains(best, a), slices.Contains(others, a):
		case slices.Contains(known, a):
			best = append(best, a)
		default:
			others = append(others, a)
		}
	}
	return append(best, others...)
}

// check is the callback of the handshake, which comes before anything of a login
// is sent. An error ends the connection.
func (v *verifier) check(name string, _ net.Addr, key xssh.PublicKey) error {
	v.offered = key
	v.failed = v.judge(name, key)
	if v.look {
		return errOffered
	}
	if v.failed != nil {
		return v.failed
	}
	return nil
}

func (v *verifier) judge(name string, key xssh.PublicKey) *failure {
	// The address is not looked up: a machine may change its own.
	err := v.db.HostKeyCallback()(name, &net.TCPAddr{IP: net.IPv4zero}, key)
	var unknown *xknownhosts.KeyError
	var revoked *xknownhosts.RevokedError
	f := &failure{step: "key", cause: err}
	final := func() bool { // until known_hosts says otherwise of this very key
		now, err := newVerifier(v.s, v.hostID)
		return err != nil || now.judge(name, key) != nil
	}
	switch {
	case errors.As(err, &revoked) || v.isRevoked(key):
		f.reason = fmt.Sprintf("The host key of %s (%s) is marked as revoked on the gateway's machine. Nothing was sent to it.", v.s.host, fingerprint(key))
		f.final, f.next = final, "Find out whose machine answers there. Only if it is yours and the mark is wrong, remove the @revoked line from known_hosts, or the key from RevokedHostKeys."
	case err == nil:
		return nil
	case errors.As(err, &unknown) && len(unknown.Want) > 0:
		f.reason = fmt.Sprintf("The host key of %s has changed: it shows %s, and known_hosts has %s. Nothing was sent to it. Only the owner can say whether the machine was set up anew or another one answers: gateway hosts trust %s",
			v.s.host, fingerprint(key), strings.Join(fingerprints(unknown.Want), ", "), v.hostID)
		f.final = final
		f.next = "Find out why. If the machine was set up anew, compare the fingerprint there (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), then run: gateway hosts trust " + v.hostID
	case errors.As(err, &unknown):
		f.reason = fmt.Sprintf("The host key of %s is not known (%s): the owner runs gateway hosts trust %s", v.s.host, fingerprint(key), v.hostID)
		f.next = "Compare the fingerprint with the machine's own (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub there), then run: gateway hosts trust " + v.hostID
	default: // a certificate
		f.reason = fmt.Sprintf("The host certificate of %s is not accepted.", v.s.host)
		f.detail = fmt.Sprintf("The host certificate of %s is not accepted: %s.", v.s.host, strings.TrimPrefix(err.Error(), "ssh: "))
		f.next = "Renew the certificate there, or correct the @cert-authority line of known_hosts."
	}
	return f
}

func (v *verifier) isRevoked(key xssh.PublicKey) bool {
	if c, ok := key.(*xssh.Certificate); ok {
		return v.isRevoked(c.Key) || v.isRevoked(c.SignatureKey)
	}
	return v.revoked[string(key.Marshal())]
}

// changedFrom has what known_hosts has for the machine, where the key it showed is
// another one.
func (v *verifier) changedFrom() []string {
	var unknown *xknownhosts.KeyError
	if v.failed == nil || !errors.As(v.failed.cause, &unknown) {
		return nil
	}
	return fingerprints(unknown.Want)
}

// fingerprint is a key as people compare it: type and SHA256.
func fingerprint(key xssh.PublicKey) string {
	return key.Type() + " " + xssh.FingerprintSHA256(key)
}

func fingerprints(keys []xknownhosts.KnownKey) []string {
	var all []string
	for _, k := range keys {
		all = append(all, fingerprint(k.Key))
	}
	return all
}
