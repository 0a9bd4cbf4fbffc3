// Package paseo is a client of the Paseo daemon: one websocket connection to
// one daemon, kept up in the background, with the daemon's requests as Go
// methods and what it pushes as typed events. It serves daemons from 0.1.65 to
// 0.11 by what they say they can do (ServerInfo.Features), never by version
// alone, and decodes leniently: fields it does not know are passed over or kept
// raw, and missing ones are zero.
//
// It promises that an error of a call says what is known of the call's effect:
// [NotSent] never reached the daemon, [Rejected] is the daemon's own no, [Lost]
// was handed to the connection and got no answer, so it may have happened. It
// promises that whoever follows events is told with a [Discontinuity] of every
// place where some may be missing, that a slow follower delays neither reading
// nor other followers, and that a daemon whose identity is not the pinned one
// is sent nothing. It never opens a socket except through Options.Dial, and
// logs neither passwords nor the text of prompts and answers.
//
// It leaves to package agents what a finished run is, receipts, saved results,
// path policy, and the pin of the daemon's identity; it never sends a prompt
// twice, for it repeats nothing on its own.
package paseo

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Options is what a [Client] works with. Only Dial is needed.
type Options struct {
	// HostID names the host in logs.
	HostID string
	// Dial opens a connection to the daemon: a TCP port, a unix socket, or a
	// channel through another connection. It is used for the websocket, and for
	// single HTTP requests to the daemon's MCP endpoint.
	Dial func(ctx context.Context) (net.Conn, error)
	// Password gives the daemon's password at each connection; nil or "" is none.
	Password func() (string, error)
	// Pinned is the serverId the daemon must have; "" accepts any.
	Pinned string
	// OnIdentity sees the identity of each connection before any request is sent
	// over it, in the connecting goroutine. An error drops the connection, which
	// is tried again later. It isn't called for an identity that is not the
	// pinned one. It may call [Client.AcceptIdentity].
	OnIdentity func(ServerInfo) error

	// AppVersion is what the daemon is told this client's version is; below
	// 0.1.45, or not a version, daemons hide custom providers. Default 0.10.3.
	AppVersion string
	// ClientID is this process's name to the daemon, which resumes the session of
	// a name it knows. Default: random.
	ClientID string

	Now  func() time.Time // default time.Now
	Rand func() float64   // in [0,1), for jitter; default math/rand
	Log  *slog.Logger     // default: none

	// BackoffMin and BackoffMax bound the pause between attempts, which doubles
	// and has full jitter. Default 500 ms and 30 s.
	BackoffMin, BackoffMax time.Duration
	// ConnectTimeout bounds one attempt, dial to server_info. Default 15 s.
	ConnectTimeout time.Duration
	// ConnectWait is how long a call waits for a connection that is being made
	// before it ends as [NotSent]. Default 3 s.
	ConnectWait time.Duration
	// PingEvery is the pause between pings (the daemon drops a pinged connection
	// after 45 s without a frame). Default 12 s, at most 15 s.
	PingEvery time.Duration
	// PongWithin is how long the daemon may be silent after a ping before the
	// connection is given up; after half of it the state is Degraded. Default 20 s.
	PongWithin time.Duration
	// CallTimeout bounds a call whose context has no deadline, except
	// [Client.WaitForFinish]. Default 30 s.
	CallTimeout time.Duration
	// MaxFrame is the largest frame read, in bytes. Default 64 MiB.
	MaxFrame int64
	// QueueEvents and QueueBytes bound what waits for one subscriber; beyond it
	// the queue is dropped and a Discontinuity takes its place. Default 4096
	// events, 16 MiB.
	QueueEvents, QueueBytes int
}

// withDefaults fills in what was left zero.
func (o Options) withDefaults() Options {
	set := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	set(&o.BackoffMin, 500*time.Millisecond)
	set(&o.BackoffMax, 30*time.Second)
	set(&o.ConnectTimeout, 15*time.Second)
	set(&o.ConnectWait, 3*time.Second)
	set(&o.PingEvery, 12*time.Second)
	set(&o.PongWithin, 20*time.Second)
	set(&o.CallTimeout, 30*time.Second)
	o.PingEvery = min(o.PingEvery, 15*time.Second)
	if o.AppVersion == "" {
		o.AppVersion = "0.10.3"
	}
	if o.ClientID == "" {
		o.ClientID = "agent-relay-" + uuid.NewString()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Rand == nil {
		o.Rand = rand.Float64
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.MaxFrame <= 0 {
		o.MaxFrame = 64 << 20
	}
	if o.QueueEvents <= 0 {
		o.QueueEvents = 4096
	}
	if o.QueueBytes <= 0 {
		o.QueueBytes = 16 << 20
	}
	return o
}

// Client is one daemon. Its methods may be called from any goroutine, before
// Run too. Every call ends with its context.
type Client struct {
	o Options

	mu      sync.Mutex
	status  Status
	conn    *conn         // nil unless Up or Degraded
	changed chan struct{} // closed and replaced when status changes
	nudge   chan struct{} // ends a pause between attempts
	logged  Code          // of the last line about a failure; Run's own
	pinned  string
	watched map[string]bool
	process *DaemonStatus // of the last connection that told it
	subs    map[*Subscription]struct{}
	closed  bool // Run has ended

	watching sync.Mutex // held while a watch set is on its way
	mcp      mcpEndpoint
}

// New returns a client that does nothing until Run.
func New(o Options) *Client {
	o = o.withDefaults()
	c := &Client{
		o: o, pinned: o.Pinned,
		changed: make(chan struct{}), nudge: make(chan struct{}, 1),
		subs: map[*Subscription]struct{}{},
	}
	now := o.Now()
	c.status = Status{State: Connecting, Since: now, CheckedAt: now, Code: NotTried, Reason: "Connecting to the daemon."}
	c.mcp.configure(o)
	return c
}

// State is how well the daemon is reached.
type State string

// The states, as those of a host: Degraded is a connection that has stopped
// answering and is not given up yet.
const (
	Down       State = "down"
	Connecting State = "connecting"
	Up         State = "up"
	Degraded   State = "degraded"
)

// Code is why a daemon is not Up, for programs.
type Code string

// The codes.
const (
	NotTried         Code = "not_tried"         // Run has not finished its first attempt
	Unreachable      Code = "unreachable"       // dialling failed
	PasswordNeeded   Code = "password_needed"   // the daemon has a password, none is configured
	PasswordWrong    Code = "password_wrong"    // the daemon refused the configured one
	PasswordUnusable Code = "password_unusable" // unreadable, or can't travel in a websocket handshake
	HelloRefused     Code = "hello_refused"     // the daemon does not speak this protocol
	NoAnswer         Code = "no_answer"         // connected, and then silence
	ConnectionLost   Code = "connection_lost"   // an established connection ended
	IdentityNotKept  Code = "identity_not_kept" // OnIdentity failed
	IdentityDiffers  Code = "identity_changed"  // another daemon answers: AcceptIdentity
	Stopped          Code = "stopped"           // Run has ended
)

// Status is what is known of the daemon, and since when.
type Status struct {
	State State
	// Since is when State began.
	Since time.Time
	// CheckedAt is when the daemon last sent something, or was last found not to.
	CheckedAt time.Time
	// Code and Reason say why State is not Up, the latter in one sentence for
	// callers, without paths and secrets; both "" when Up.
	Code   Code
	Reason string
	// Info is the daemon as it last introduced itself; nil before it did.
	Info *ServerInfo
	// Found is, with IdentityDiffers, the daemon that answered instead.
	Found *ServerInfo
	// Generation counts connections; 0 before the first.
	Generation uint64
}

// Status returns what is known now; it asks nobody.
func (c *Client) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.status
	if c.conn != nil {
		s.CheckedAt = c.o.Now().Add(-c.conn.quiet())
	}
	return s
}

// Info returns the daemon as it introduced itself on the present connection;
// ok is false when there is none.
func (c *Client) Info() (info ServerInfo, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return ServerInfo{}, false
	}
	return c.conn.info, true
}

// AcceptIdentity pins serverID from now on, and connects again if the client
// had stopped for another identity. "" accepts whatever daemon answers.
func (c *Client) AcceptIdentity(serverID string) {
	c.mu.Lock()
	c.pinned = serverID
	if c.conn != nil && serverID != "" && c.conn.info.ServerID != serverID {
		c.conn.end(&trouble{IdentityDiffers, "Another daemon was pinned.", nil})
	}
	c.mu.Unlock()
	c.wake()
}

// wake ends the pause between two attempts.
func (c *Client) wake() {
	select {
	case c.nudge <- struct{}{}:
	default:
	}
}
