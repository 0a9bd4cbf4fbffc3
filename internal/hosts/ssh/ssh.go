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
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"os/user"
	"time"

	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/ssh/target"
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
	// DefaultConnectTimeout bounds an attempt to connect, all jumps included, for
	// which the owner's ssh settings say no ConnectTimeout.
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

// Host is one machine. Its methods may be called from anywhere at any time.
type Host struct {
	opts Options
	at   target.Target
	bad  error // why Target can't be read; nothing is tried then
}

// New returns a host that is Down. It starts nothing and reads nothing; a target
// that can't be read is the reason that Status gives.
func New(o Options) *Host {
	at, err := target.Parse(o.Target)
	return &Host{opts: o.withDefaults(), at: at, bad: err}
}

// Start connects, and keeps the host connected until Close or the end of ctx. It
// returns at once; what comes of it is seen in Status, OnChange and Link. Further
// calls do nothing.
func (h *Host) Start(ctx context.Context) {}

// Close ends the connection and all that runs over it, and waits for that. It
// may be called without Start, and more than once. Afterwards the host is Down.
func (h *Host) Close() error { return nil }

// Status is what is known now. It asks nobody and never waits. Its Worker is
// nil: that is known to others.
func (h *Host) Status() hosts.Status { return hosts.Status{} }

// Link is the live connection. While one is being made it waits, at most as long
// as ctx; a host that is Down, waiting for its next attempt, refuses at once. The
// refusal is [hosts.Unavailable] and says why, and since when; the error of ctx
// is in its chain when it was that which ended the wait. A link that is Degraded
// is returned: it may yet answer.
func (h *Host) Link(ctx context.Context) (*Link, error) { return nil, hosts.Unavailable.New("") }

// Wake has a host that waits for its next attempt try now. It doesn't wait for
// the attempt. A host whose key has changed isn't tried before Trust or a new
// start.
func (h *Host) Wake() {}

// OnChange has f called after each change of State or Reason with the status it
// changed to, one call at a time and in order. f must not block. It must be
// called before Start.
func (h *Host) OnChange(f func(hosts.Status)) {}

// DaemonAddress is where the agent daemon listens on the host, as the target
// says: "tcp" and 127.0.0.1:port, or "unix" and a path. It is for [Link.Dial].
func (h *Host) DaemonAddress() (network, address string) { return h.at.DaemonAddress() }
