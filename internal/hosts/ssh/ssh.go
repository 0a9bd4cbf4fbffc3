// Package ssh reaches the owner's other machines over SSH: one connection a
// host, kept alive in the background, on which everything else is a channel.
//
// OpenSSH resolves and Go connects. "ssh -G" gives the settings that the owner's
// own ssh would use for the target (Match, Include and all), this package fills
// in the tokens which that leaves, and then connects with them: jump hosts, proxy
// commands, keys, certificates and the agent. It promises that a host key is
// always verified against known_hosts before anything is sent that could log in,
// that a changed key is reported with both fingerprints and not tried again, that
// no agent is forwarded and no password asked for, that a link which stops
// answering is noticed in under 45 seconds, and that nothing at start-up waits
// for a machine. Whatever is wrong is one sentence that a person can act on.
//
// It leaves to others what is done over the connection: the worker and its
// installation, the channel of agents, the agent daemon. It never sends anything
// twice: what was under way on a link that is lost ends with [ErrLost].
package ssh

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"os/user"
	"time"
)

// ErrLost is in the chain of the error of whatever was under way on a link when
// it was lost, or was asked of one that is gone. How that ended on the host is
// not known.
var ErrLost = errors.New("the connection to the host was lost")

// The defaults of Options.
const (
	// DefaultKeepaliveInterval is how long after the host's last answer it is
	// asked again.
	DefaultKeepaliveInterval = 15 * time.Second
	// DefaultKeepaliveTimeout is how long an answer may take. A link that stops
	// answering is Degraded after an interval and a timeout, 25 s.
	DefaultKeepaliveTimeout = 10 * time.Second
	// DefaultKeepaliveCount is how many unanswered questions in a row end a link:
	// three, after 75 s at most.
	DefaultKeepaliveCount = 3
	// DefaultBackoffMin and DefaultBackoffMax bound the wait before the next
	// attempt to connect, which doubles with each and of which a random part is
	// waited.
	DefaultBackoffMin = 500 * time.Millisecond
	DefaultBackoffMax = 30 * time.Second
	// DefaultHeld is how long a connection must have held for the backoff to
	// start again at its shortest.
	DefaultHeld = time.Minute
	// DefaultConnectTimeout bounds connecting and logging in to each machine on the
	// way for which the owner's ssh settings say no ConnectTimeout.
	DefaultConnectTimeout = 15 * time.Second
)

// Options says which host it is and how patiently it is reached. Only HostID and
// Target are needed.
type Options struct {
	// HostID is the host's id in the config, for reasons and hints.
	HostID string
	// Target is ssh://[user@]host[:port][?daemonPort=n|daemonSocket=path], as
	// [target.Parse] reads it.
	Target string
	// Command is the OpenSSH client that resolves the owner's settings; "" is ssh
	// from PATH. Without one the target's own fields and OpenSSH's defaults are
	// used.
	Command string
	// ConfigFile is the ssh configuration that is read in place of the owner's and
	// the system's; "" is those two.
	ConfigFile string
	// Getenv reads the environment (SSH_AUTH_SOCK, SHELL and what the settings
	// name); nil is os.Getenv.
	Getenv func(string) string
	// Home is the directory that ~ in the settings is; "" is that of the user
	// database, as for OpenSSH.
	Home string
	// Now is the clock of what is reported; nil is time.Now.
	Now func() time.Time
	// Rand is a random number of [0, 1) for the backoff; nil is a real one.
	Rand func() float64
	// Log gets a line whenever the state changes; nil drops them.
	Log *slog.Logger

	// Zero is the default, for each. The intervals are real time, whatever Now
	// is. ServerAliveInterval and ServerAliveCountMax of the owner's settings may
	// make the first and the third smaller, never larger.
	KeepaliveInterval, KeepaliveTimeout time.Duration
	KeepaliveCount                      int
	BackoffMin, BackoffMax, Held        time.Duration
	ConnectTimeout                      time.Duration
}

func (o Options) withDefaults() Options {
	fill(&o.KeepaliveInterval, DefaultKeepaliveInterval)
	fill(&o.KeepaliveTimeout, DefaultKeepaliveTimeout)
	fill(&o.KeepaliveCount, DefaultKeepaliveCount)
	fill(&o.BackoffMin, DefaultBackoffMin)
	fill(&o.BackoffMax, DefaultBackoffMax)
	fill(&o.Held, DefaultHeld)
	fill(&o.ConnectTimeout, DefaultConnectTimeout)
	fill(&o.Log, slog.New(slog.DiscardHandler))
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Rand == nil {
		o.Rand = random
	}
	if o.Home == "" {
		if u, err := user.Current(); err == nil {
			o.Home = u.HomeDir
		}
	}
	return o
}

func fill[T comparable](v *T, standard T) {
	var zero T
	if *v == zero {
		*v = standard
	}
}

func random() float64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return float64(binary.BigEndian.Uint64(b[:])>>11) / (1 << 53)
}
