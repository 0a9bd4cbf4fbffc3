package ssh

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/skeema/knownhosts"
	xssh "golang.org/x/crypto/ssh"
	xknownhosts "golang.org/x/crypto/ssh/knownhosts"

	"agentrelay/internal/fault"
)

// HostKey is a host's public key.
type HostKey struct {
	// Host is the machine whose key it is, as known_hosts writes it: the host
	// itself, or a jump host on the way to it that isn't known.
	Host string
	// Type is the key's type, such as ssh-ed25519.
	Type string
	// SHA256 is its fingerprint, SHA256: and base64, as ssh-keygen -l shows it.
	SHA256 string
	// Line is the line for known_hosts.
	Line string
	// File is the known_hosts file that Trust would write.
	File string
}

// OfferedKey asks the host for its key, without logging in to it. It is that of
// the first machine on the way (jump hosts come first) which is not known or has
// changed, else the host's own, which is known then. changedFrom has the types and
// fingerprints that known_hosts has in its place. A host that can't be asked, or
// shows a key that is marked as revoked, is [hosts.Unavailable] with the owner's next
// step.
func (h *Host) OfferedKey(ctx context.Context) (key HostKey, known bool, changedFrom []string, err error) {
	v, err := h.look(ctx)
	if err != nil {
		return HostKey{}, false, nil, err
	}
	return v.hostKey(), v.failed == nil, v.changedFrom(), nil
}

// look walks to the first machine whose key is not accepted, or to the host's.
func (h *Host) look(ctx context.Context) (*verifier, error) {
	if h.bad != nil {
		return nil, h.badTarget().fault()
	}
	way, err := h.route(ctx, spec{h.at.User, h.at.Host, h.at.Port}, 0)
	if err != nil {
		return nil, asFailure(err, "settings").fault()
	}
	p, err := h.walk(ctx, way, true)
	if p.at == nil || p.at.failed == nil && !errors.Is(err, errOffered) {
		return nil, asFailure(err, "name").fault()
	}
	if _, certified := p.at.offered.(*xssh.Certificate); p.at.failed != nil && (certified || !p.at.unknown()) {
		return nil, p.at.failed.fault()
	}
	return p.at, nil
}

// unknown reports whether trusting the key is all that is wrong with it.
func (v *verifier) unknown() bool {
	var e *xknownhosts.KeyError
	return v.failed != nil && errors.As(v.failed.cause, &e) && !v.isRevoked(v.offered)
}

func (v *verifier) hostKey() HostKey {
	name := knownhosts.Normalize(v.s.knownName())
	k := HostKey{Host: name, Type: v.offered.Type(), SHA256: xssh.FingerprintSHA256(v.offered)}
	if len(v.s.userKnownHosts) > 0 {
		k.File = v.s.userKnownHosts[0]
	}
	if v.s.hashKnownHosts {
		name = xknownhosts.HashHostname(name)
	}
	k.Line = name + " " + string(bytes.TrimSpace(xssh.MarshalAuthorizedKey(v.offered)))
	return k
}

// Trust puts a key that OfferedKey returned into known_hosts, in place of those
// that the file has for that host if it is another one, and has the host tried at
// once. The file is replaced atomically, with mode 0600. A key that the host
// doesn't offer any more is refused with [fault.InvalidArguments].
func (h *Host) Trust(ctx context.Context, key HostKey) error {
	v, err := h.look(ctx)
	if err != nil {
		return err
	}
	now := v.hostKey()
	if now.Host != key.Host || now.SHA256 != key.SHA256 || now.Type != key.Type {
		return fault.InvalidArguments.Newf("%s shows %s %s now, not the key that was to be trusted; nothing was changed.", now.Host, now.Type, now.SHA256)
	}
	if now.File == "" {
		return fault.InvalidArguments.New("UserKnownHostsFile is none in the ssh configuration: there is no file to put the key into.").WithHint("Name a file there, or put the key where the configuration looks for it.")
	}
	if v.failed != nil {
		if err := writeKnownHost(now, v.s.knownName(), len(v.changedFrom()) > 0); err != nil {
			return err
		}
	}
	h.Wake()
	return nil
}

// writeKnownHost adds the key's line to its file. With replace it takes the host's
// other keys out.
func writeKnownHost(key HostKey, name string, replace bool) error {
	file := key.File
	if real, err := filepath.EvalSymlinks(file); err == nil {
		file = real // a link to where the owner keeps it stays one
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("known_hosts: %w", err)
	}
	old, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("known_hosts: %w", err)
	}
	var b bytes.Buffer
	for line := range bytes.Lines(old) {
		if replace {
			line = without(line, name)
		}
		b.Write(line)
	}
	if n := b.Len(); n > 0 && b.Bytes()[n-1] != '\n' {
		b.WriteByte('\n')
	}
	b.WriteString(key.Line + "\n")
	if err := renameio.WriteFile(file, b.Bytes(), 0o600, renameio.IgnoreUmask()); err != nil {
		return fmt.Errorf("known_hosts: %w", err)
	}
	return nil
}

// without is a line of known_hosts less one host: nil when it was for that host
// alone. Marked lines, comments and patterns stay as they are: they are about more
// than one host's key, and a pattern's key does no harm beside the right one.
func without(line []byte, name string) []byte {
	fields := bytes.Fields(line)
	if len(fields) < 3 || fields[0][0] == '@' || fields[0][0] == '#' {
		return line
	}
	want := knownhosts.Normalize(name)
	hosts := strings.Split(string(fields[0]), ",")
	kept := slices.DeleteFunc(slices.Clone(hosts), func(h string) bool {
		return strings.EqualFold(h, want) || hashMatches(h, want)
	})
	switch {
	case len(kept) == len(hosts):
		return line
	case len(kept) == 0:
		return nil
	}
	return bytes.Replace(line, fields[0], []byte(strings.Join(kept, ",")), 1)
}

// hashMatches reports whether a hashed name, |1|salt|hash, is this one.
func hashMatches(hashed, name string) bool {
	parts := strings.Split(hashed, "|")
	if len(parts) != 4 || parts[1] != "1" {
		return false
	}
	salt, err := base64.StdEncoding.DecodeString(parts[2])
	if err != nil {
		return false
	}
	mac := hmac.New(sha1.New, salt)
	mac.Write([]byte(name))
	return base64.StdEncoding.EncodeToString(mac.Sum(nil)) == parts[3]
}
