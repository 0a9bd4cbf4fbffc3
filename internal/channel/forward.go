package channel

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"agentrelay/internal/channel/capability"
)

// Link is one live connection to a host, as package hosts/ssh has it.
type Link interface {
	scripts
	// Dial connects to a unix socket on the host.
	Dial(ctx context.Context, network, address string) (net.Conn, error)
	// ListenUnix has the host listen on a new unix socket.
	ListenUnix(ctx context.Context, path string) (net.Listener, error)
	// Done is closed when the connection is gone.
	Done() <-chan struct{}
}

// scripts is what runs scripts on a host.
type scripts interface {
	// Script runs a script by /bin/sh to its end, args as $1 and so on, and returns
	// what it prints, without what the login shell prints when it starts.
	Script(ctx context.Context, script string, args []string, stdin []byte, maxOutput int) ([]byte, error)
}

// ForwardOptions says what a [Forward] keeps. Server and StateDir are required.
type ForwardOptions struct {
	// Server answers the agents of the host.
	Server *Server
	// StateDir is the host's private state directory (remoteStateDir).
	StateDir string
	// Up is called each time the forward has come up: then the state directory is
	// there, and what is missing in it can be put there. Its context ends with the
	// connection. It may be nil.
	Up func(ctx context.Context)
	// Log gets a line when the forward comes up or fails; nil discards them.
	Log *slog.Logger
}

// ForwardStatus is what is known of a host's forward.
type ForwardStatus struct {
	Up    bool      `json:"up"`
	Since time.Time `json:"since"` // when Up became what it is
	// Reason says in one sentence why it is not up, "" when it is; it is for the
	// owner.
	Reason string `json:"reason,omitempty"`
}

// Forward makes the channel of one SSH host reachable there: a fresh socket for
// each connection, and a link of an unchanging name to it. It is safe for
// concurrent use.
type Forward struct {
	o     ForwardOptions
	retry chan struct{}

	mu     sync.Mutex
	status ForwardStatus
	times  uint64 // connections so far: a lost one says nothing about a later
}

// NewForward returns a forward that is not up yet.
func NewForward(o ForwardOptions) *Forward {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Forward{o: o, retry: make(chan struct{}, 1), status: ForwardStatus{Since: o.Server.o.Now(), Reason: "The host is not connected."}}
}

// Status is what is known now.
func (f *Forward) Status() ForwardStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

// Retry has a setup that failed tried again at once.
func (f *Forward) Retry() {
	select {
	case f.retry <- struct{}{}:
	default:
	}
}

func (f *Forward) begin() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.times++
	return f.times
}

// note stores what is known of the connection of that number.
func (f *Forward) note(of uint64, reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	up := reason == ""
	if of != f.times || f.status.Up == up && f.status.Reason == reason {
		return
	}
	if f.status.Up != up {
		f.status.Since = f.o.Server.o.Now()
	}
	f.status.Up, f.status.Reason = up, reason
}

const (
	// setupTimeout bounds each step of a setup.
	setupTimeout = 10 * time.Second
	// healthTimeout is how long a socket of the host may take to answer.
	healthTimeout = 3 * time.Second
	// A setup that failed on a live connection is tried again after firstRetry, then
	// after twice as long each time, up to lastRetry.
	firstRetry = 5 * time.Second
	lastRetry  = 5 * time.Minute
)

// Keep keeps the forward over one connection until that is gone or ctx ends. Call
// it for each new connection.
func (f *Forward) Keep(ctx context.Context, link Link) {
	n := f.begin()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-link.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	defer f.note(n, "The host is not connected.")
	for retry := firstRetry; ctx.Err() == nil; retry = min(2*retry, lastRetry) {
		err := f.hold(ctx, n, link)
		select {
		case <-ctx.Done():
			return
		case <-link.Done():
			return
		default:
		}
		reason := "The channel's socket on the host was closed."
		if err != nil {
			reason = reasonOf(err)
		}
		f.note(n, reason)
		f.o.Log.Warn("agents of a host can't reach the gateway", "host", f.o.Server.o.HostID, "reason", reason, "error", err)
		select {
		case <-time.After(retry):
		case <-f.retry:
			retry = firstRetry
		case <-ctx.Done():
		}
	}
}

// setupError is a step that failed, with the reason for the owner.
type setupError struct {
	reason string
	cause  error
}

func (e *setupError) Error() string { return e.reason + " " + e.cause.Error() }
func (e *setupError) Unwrap() error { return e.cause }

func reasonOf(err error) string {
	if e := (*setupError)(nil); errors.As(err, &e) {
		return e.reason
	}
	return "The channel could not be set up on the host."
}

// hold sets the forward up and serves it until it ends.
func (f *Forward) hold(ctx context.Context, n uint64, link Link) error {
	old, err := f.prepare(ctx, link)
	if err != nil {
		return err
	}
	name := "a-" + newName() + ".sock"
	l, err := f.listen(ctx, link, name)
	if err != nil {
		return err
	}
	defer l.Close()
	serving, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- f.o.Server.Serve(serving, l) }()
	err = f.publish(ctx, link, name, old)
	if err == nil {
		f.note(n, "")
		f.o.Log.Info("agents of a host can reach the gateway", "host", f.o.Server.o.HostID)
		if f.o.Up != nil {
			f.o.Up(ctx)
		}
		return <-done
	}
	stop()
	return errors.Join(err, <-done)
}

// The scripts print a line "! reason" instead of doing what they can't do safely;
// see reasons.
const (
	// stateDir checks the state directory $d, which the owner's installation made.
	stateDir = `[ -e "$d" ] || [ -L "$d" ] || { echo '! missing'; exit; }
` + private
	// checkDir makes and checks the private directory $d.
	checkDir = `[ -e "$d" ] || [ -L "$d" ] || mkdir -- "$d" 2>/dev/null || { echo '! make'; exit; }
` + private
	private = `[ -d "$d" ] && [ ! -L "$d" ] && [ -O "$d" ] || { echo '! private'; exit; }
case $(ls -ld -- "$d") in drwx------*) ;; *) echo '! private'; exit ;; esac
`
	// prepareScript prints the sockets of earlier connections, the one that the link
	// names first.
	prepareScript = `umask 077
d=$1
` + stateDir + `cd -- "$d" || exit 1
l=agent-channel.sock
if [ -L $l ]; then ls -l $l | sed 's/.* -> //'; elif [ -e $l ]; then echo '! taken'; exit; fi
n=0
for s in a-*.sock; do
  [ $n -lt 200 ] || break # the others are for the next time
  [ -S "$s" ] && [ ! -L "$s" ] && printf '%s\n' "$s" && n=$((n+1))
done
exit 0`
	// publishScript moves the link to a socket, at once.
	publishScript = `cd -- "$1" && [ -S "$2" ] || exit 1
l=agent-channel.sock
if [ ! -L $l ] && [ -e $l ]; then echo '! taken'; exit; fi
ln -s -- "$2" "$2.link" && mv -f -- "$2.link" $l`
	// sweepScript removes sockets on which nobody listens.
	sweepScript = `cd -- "$1" || exit 1
shift
for s; do [ -S "$s" ] && [ ! -L "$s" ] && rm -f -- "$s"; done
exit 0`
)

// reasons are what scripts refuse, for the owner.
var reasons = map[string]string{
	"missing": "Nothing is installed on the host yet: the owner runs gateway hosts install.",
	"make":    "A directory in remoteStateDir could not be made on the host.",
	"private": "remoteStateDir on the host, or a directory in it, is not one of that user alone: it must be no link, belong to the user, and have mode 0700.",
	"taken":   "agent-channel.sock in remoteStateDir is none of this gateway's links: move it away, or choose another remoteStateDir.",
	"file":    "A file in remoteStateDir on the host is no private file: remove it.",
}

// prepare returns the names of the sockets of earlier connections.
func (f *Forward) prepare(ctx context.Context, link Link) ([]string, error) {
	if path := f.path(capability.Socket); len(path) > capability.MaxSocketPath {
		return nil, &setupError{fmt.Sprintf("The path of the channel's socket on the host has %d bytes, and may have %d: choose a shorter remoteStateDir.",
			len(path), capability.MaxSocketPath), errors.New("path too long")}
	}
	out, err := f.run(ctx, link, prepareScript, f.o.StateDir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, name := range strings.Fields(string(out)) {
		if strings.HasPrefix(name, "a-") && strings.HasSuffix(name, ".sock") && !strings.Contains(name, "/") && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// newName is a name that nobody has. A socket of that name is no longer than the
// link to it, whose length is checked.
func newName() string { return strings.ToLower(rand.Text()[:11]) }

func (f *Forward) path(name string) string { return strings.TrimRight(f.o.StateDir, "/") + "/" + name }

func (f *Forward) run(ctx context.Context, link Link, script string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	return runScript(ctx, link, script, args, nil)
}

// runScript runs one of the scripts on a host.
func runScript(ctx context.Context, on scripts, script string, args []string, stdin []byte) ([]byte, error) {
	out, err := on.Script(ctx, script, args, stdin, MaxBody)
	if err != nil {
		return nil, &setupError{"A command on the host failed.", err}
	}
	if code, ok := strings.CutPrefix(strings.TrimSpace(string(out)), "! "); ok {
		return nil, &setupError{reasons[code], errors.New("the host refused: " + code)}
	}
	return out, nil
}

func (f *Forward) listen(ctx context.Context, link Link, name string) (net.Listener, error) {
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	l, err := link.ListenUnix(ctx, f.path(name))
	if err != nil {
		return nil, &setupError{"The host's sshd does not forward unix sockets to this gateway: set AllowStreamLocalForwarding yes there (and look that the key's options and DisableForwarding do not forbid it); everything else on this host works without.", err}
	}
	return l, nil
}

// publish sees that the socket answers, lets the link name it, and removes those
// of earlier connections on which nobody listens any more.
func (f *Forward) publish(ctx context.Context, link Link, name string, old []string) error {
	_, err := f.ask(ctx, link, name)
	// sshd that forwards sockets in this direction alone says no more than that it
	// did not connect. Then nothing on the host can be asked.
	var refused *ssh.OpenChannelError
	blind := errors.As(err, &refused)
	if err != nil && !blind {
		return &setupError{"The channel's socket on the host does not answer.", err}
	}
	var dead []string
	if !blind {
		if dead, err = f.dead(ctx, link, old); err != nil {
			return err
		}
	}
	if _, err := f.run(ctx, link, publishScript, f.o.StateDir, name); err != nil {
		return err
	}
	if len(dead) > 0 {
		if _, err := f.run(ctx, link, sweepScript, append([]string{f.o.StateDir}, dead...)...); err != nil {
			f.o.Log.Warn("old sockets could not be removed from a host", "host", f.o.Server.o.HostID, "error", err)
		}
	}
	return nil
}

// dead are those sockets of earlier connections on which nobody listens. They are
// asked at once: behind each connection that was lost without a word a socket takes
// the question and does not answer it, for hours.
func (f *Forward) dead(ctx context.Context, link Link, old []string) (dead []string, err error) {
	type answer struct {
		at  health
		err error
	}
	answers := make([]answer, len(old))
	var asking sync.WaitGroup
	for i, name := range old {
		asking.Go(func() { answers[i].at, answers[i].err = f.ask(ctx, link, name) })
	}
	asking.Wait()
	for i, a := range answers {
		var refused *ssh.OpenChannelError
		switch {
		case a.err == nil && a.at.Instance != f.o.Server.instance:
			return nil, &setupError{"Another gateway serves agents in this remoteStateDir: choose another one for one of the two.", errors.New("the socket answers")}
		case errors.As(a.err, &refused):
			dead = append(dead, old[i])
		}
	}
	return dead, nil
}

// ask asks who serves a socket of the host.
func (f *Forward) ask(ctx context.Context, link Link, name string) (at health, err error) {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return link.Dial(ctx, "unix", f.path(name))
	}}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://channel/v1/health", nil)
	if err != nil {
		return at, err
	}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		return at, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(http.MaxBytesReader(nil, resp.Body, MaxBody)).Decode(&at); err != nil || at.Instance == "" {
		return at, fmt.Errorf("the socket is served by something else: %w", err)
	}
	return at, nil
}
