package ssh

import "context"

// StepState is how a step of a check went.
type StepState string

// The states of a step.
const (
	Pass StepState = "pass"
	Warn StepState = "warn" // works, but not all of it or not as the settings ask
	Fail StepState = "fail"
	Skip StepState = "skip" // not tried, for an earlier step failed
)

// Step is one step of a check, for the owner's eyes: it may name files of this
// machine.
type Step struct {
	// Name is name, settings, key, auth, forwarding, or shell.
	Name  string
	State StepState
	// Detail says in one sentence what was found.
	Detail string
	// Next is what to do about it; "" when there is nothing to do.
	Next string
}

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

// CheckConnection connects anew, apart from the connection that is kept, and says
// of each step how it went: the name and the settings (with what of them is not
// supported, by name), the host's key, the login, the forwarding of unix sockets,
// and the login shell. It changes nothing on the host.
func (h *Host) CheckConnection(ctx context.Context) []Step { return nil }

// OfferedKey asks the host for its key, without logging in. It is that of the
// first machine on the way (jump hosts come first) which is not known or has
// changed, else the host's own, which is known then. changedFrom has the fingerprints that
// known_hosts has in its place.
func (h *Host) OfferedKey(ctx context.Context) (key HostKey, known bool, changedFrom []string, err error) {
	return HostKey{}, false, nil, ErrLost
}

// Trust puts a key that OfferedKey returned into known_hosts, in place of those
// that the file has for that host, and has the host tried at once. The file is
// replaced atomically, with mode 0600. A key that the host doesn't offer any more
// is refused.
func (h *Host) Trust(ctx context.Context, key HostKey) error { return nil }
