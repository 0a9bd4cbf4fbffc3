// Package server is the worker: the Direct tools of the machine it runs on, over
// MCP on its standard input and output, for a gateway elsewhere or for any local
// client.
//
// It promises that one worker at a time uses a state directory, also when an
// older one hangs on a connection that is dead; that it ends when its input ends,
// after what it is changing is changed, while commands go on under their
// supervisors; that a gateway can ask afterwards what became of every change, and
// that to ask is to settle; and that nothing but the protocol goes to its output.
//
// It leaves to others the rules of files, commands and transfers (packages below
// internal/direct), the definitions of the tools (package directtools), what the
// two say to each other (package wire), and who may call what: who can start it
// may do all that its settings allow.
package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofrs/flock"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrelay/internal/fault"
	"agentrelay/internal/hosts/worker/wire"
	"agentrelay/internal/hosts/workspace"
)

// Options says what a worker works with. In and Out are required.
type Options struct {
	In  io.Reader
	Out io.Writer
	// Version is that of the program; "" asks the Go tool.
	Version string
	// Home is what ~ means in the settings; "" is the user's.
	Home string
	// Getenv looks up XDG_RUNTIME_DIR, for a socket whose path would be too long in
	// the state directory; nil is os.LookupEnv.
	Getenv func(string) (string, bool)
	// Supervisor starts the supervisor of a command; nil is that of package
	// commands.
	Supervisor []string
	// Patience is how long an older worker is given to finish what it changes
	// before it is told to end by a signal, and again before it is killed; 0 is
	// 10 s.
	Patience time.Duration
	Now      func() time.Time // nil is time.Now
	// Log receives what no caller sees. It must not write to Out. nil discards.
	Log *slog.Logger

	protocol int // tests speak another one
	sdkLog   *slog.Logger
}

// quiet drops what the SDK says of each session.
type quiet struct{ slog.Handler }

// Enabled implements [slog.Handler].
func (q quiet) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && q.Handler.Enabled(ctx, l)
}

func (o Options) withDefaults() Options {
	if o.Version == "" {
		o.Version = wire.ProgramVersion()
	}
	if o.Home == "" {
		o.Home, _ = os.UserHomeDir() // "" expands to /
	}
	if o.Getenv == nil {
		o.Getenv = os.LookupEnv
	}
	if o.Patience == 0 {
		o.Patience = 10 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.sdkLog = slog.New(quiet{o.Log.Handler()})
	if o.protocol == 0 {
		o.protocol = wire.Protocol
	}
	return o
}

// ErrReplaced is the error of a worker that made way for another one.
var ErrReplaced = errors.New("another worker has taken this one's place")

// Kinds lists the refusals of this package for docs/errors.md.
func Kinds() []fault.Kind { return []fault.Kind{NeedsGateway, Busy, StateDir, wire.Withdrawn} }

// The refusals of this package.
var (
	// NeedsGateway refuses the transfers of a worker that runs alone.
	NeedsGateway = fault.Kind{
		Code: "needs_gateway",
		Hint: "Read and write text with read_direct_file, write_direct_file and edit_direct_file. Links for downloads, and imports from addresses, are made by a gateway: connect to one that has this machine.",
	}
	// Busy refuses to start beside another worker.
	Busy = fault.Kind{
		Code: wire.CodeBusy,
		Hint: "End that worker, or give this one a state directory of its own with --state-dir.",
	}
	// StateDir refuses a state directory that others could change or read.
	StateDir = fault.Kind{
		Code: wire.CodeStateDir,
		Hint: "Make it a directory of the user that the worker runs as, with mode 0700, or name another one.",
	}
)

// Serve is the worker of a gateway, which speaks first. It returns when the input
// has ended, ctx has, or another worker takes its place ([ErrReplaced]). An error
// is told to the gateway too.
func Serve(ctx context.Context, o Options) error {
	o = o.withDefaults()
	in := bufio.NewReaderSize(o.In, 64<<10)
	hello, err := wire.ReadHello(in)
	if err != nil {
		return err
	}
	if hello.PatienceMs > 0 {
		o.Patience = time.Duration(hello.PatienceMs) * time.Millisecond
	}
	reply := wire.Reply{Protocol: min(o.protocol, hello.Protocol), Version: o.Version}
	var w *worker
	if reply.Protocol < wire.Oldest(o.protocol) {
		err = (fault.Kind{Code: wire.CodeGatewayOutdated}).Newf("The worker is of version %s, which does not serve this gateway's protocol %d any more.", o.Version, hello.Protocol)
	} else {
		w, err = start(ctx, o, hello.Settings, hello.StateDir, false)
	}
	if err != nil {
		reply.Error = wire.FailureOf(err)
		return errors.Join(err, wire.WriteAnswer(o.Out, hello.Nonce, reply))
	}
	defer w.close()
	reply.Bulk = w.socket.Addr().String()
	if err := wire.WriteAnswer(o.Out, hello.Nonce, reply); err != nil {
		return err
	}
	o.Log.Info("working for a gateway", "gateway", hello.Gateway, "protocol", reply.Protocol)
	return w.serve(ctx, in)
}

// ServeAlone is a worker that any MCP client on this machine starts. All it does
// belongs to one owner.
func ServeAlone(ctx context.Context, o Options, settings wire.Settings, stateDir string) error {
	o = o.withDefaults()
	w, err := start(ctx, o, settings, stateDir, true)
	if err != nil {
		return err
	}
	defer w.close()
	return w.serve(ctx, o.In)
}

// worker is one that has its state directory.
type worker struct {
	*workspace.Workspace
	o      Options
	alone  bool
	former []string // owners whose commands the shared one has taken over
	lock   *flock.Flock
	socket *socket
	ops    *operations

	end     chan struct{} // closed when the worker is to end
	endOnce sync.Once
	reason  error // of end; read when it is closed
}

// start takes the state directory and opens what is in it.
func start(ctx context.Context, o Options, settings wire.Settings, stateDir string, alone bool) (_ *worker, err error) {
	if stateDir, err = wire.Absolute(stateDir); err != nil {
		return nil, StateDir.New("The user of the worker has no home directory.").Because(err)
	}
	if err := private(stateDir); err != nil {
		return nil, err
	}
	if err := settings.Check(); err != nil {
		return nil, (fault.Kind{Code: wire.CodeBadSettings}).New("The settings can't be used: " + err.Error() + ".")
	}
	dir := filepath.Join(stateDir, "worker")
	if err := private(dir); err != nil {
		return nil, err
	}
	w := &worker{o: o, alone: alone, former: settings.FormerOwners, end: make(chan struct{})}
	at, err := socketPath(dir, o.Getenv)
	if err != nil {
		return nil, err
	}
	if w.lock, err = takeOver(ctx, dir, holder{Socket: at, Alone: alone}, o.Patience); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	// It can be asked to make way from here on, for what follows may take long.
	if w.socket, err = listen(at, w); err != nil {
		return nil, err
	}
	if w.ops, err = newOperations(filepath.Join(dir, "operations"), o.Now); err != nil {
		return nil, err
	}
	settings.Projects, settings.AllowedRoots = slices.Clone(settings.Projects), slices.Clone(settings.AllowedRoots)
	settings.Protected = append(slices.Clone(settings.Protected), stateDir)
	settings.Expand(o.Home)
	options := settings.Commands.Options()
	options.Supervisor = o.Supervisor
	w.Workspace, err = workspace.Open(workspace.Options{
		Policy: settings.Policy, StateDir: filepath.Join(dir, "direct"), Commands: options, Now: o.Now, Log: o.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("opening the workspace: %w", err)
	}
	w.socket.open()
	return w, nil
}

// close ends all but the commands, and gives the state directory up last.
func (w *worker) close() {
	if w.socket != nil {
		w.socket.close()
	}
	if w.Workspace != nil {
		w.Workspace.Close()
	}
	_ = w.lock.Unlock() // the end of the process does it too
}

// stop has serve return when what is being changed is changed.
func (w *worker) stop(reason error) {
	w.endOnce.Do(func() {
		w.reason = reason
		close(w.end)
	})
}

// lastAnswers is how long a worker that runs alone goes on for the answers to
// what came before the end of its input.
const lastAnswers = 30 * time.Second

// serve speaks MCP until the input ends or the worker is to end. The calls that
// are under way then are cancelled, and changes finished.
func (w *worker) serve(ctx context.Context, in io.Reader) error {
	defer context.AfterFunc(ctx, func() { w.stop(nil) })()
	t := &transport{in: in, out: w.o.Out}
	if w.alone { // nobody asks later what became of a call
		t.whole = lastAnswers
	}
	session, err := w.server().Connect(context.WithoutCancel(ctx), t, nil)
	if err != nil {
		return err
	}
	done := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		select {
		case <-w.end:
			_ = t.conn.Close() // reads as the end of the input
		case <-done:
		}
	})
	err = session.Wait()
	close(done)
	work.Wait()
	w.stop(nil)
	if w.reason != nil {
		return w.reason
	}
	if err != nil && !errors.Is(err, io.EOF) {
		w.o.Log.Warn("the connection broke off", "error", err)
	}
	return nil
}

// transport is a stream that the SDK must not close: a call under way still
// answers when the input has ended.
type transport struct {
	in    io.Reader
	out   io.Writer
	whole time.Duration // how long answers are waited for when the input has ended
	conn  mcp.Connection
}

// Connect implements [mcp.Transport].
func (t *transport) Connect(ctx context.Context) (mcp.Connection, error) {
	conn, err := (&mcp.IOTransport{Reader: io.NopCloser(t.in), Writer: unclosed{t.out}}).Connect(ctx)
	t.conn = &connection{Connection: conn, whole: t.whole, closed: make(chan struct{}), answered: make(chan struct{}, 1)}
	return t.conn, err
}

// connection keeps the end of the input from the SDK, which cancels all calls at
// it, until those that came before have their answers.
type connection struct {
	mcp.Connection
	whole    time.Duration
	open     atomic.Int64 // calls without an answer
	answered chan struct{}
	closed   chan struct{}
	once     sync.Once
}

// Read implements [mcp.Connection].
func (c *connection) Read(ctx context.Context) (jsonrpc.Message, error) {
	m, err := c.Connection.Read(ctx)
	if r, ok := m.(*jsonrpc.Request); ok && r.IsCall() {
		c.open.Add(1)
	}
	if !errors.Is(err, io.EOF) {
		return m, err
	}
	end := time.NewTimer(c.whole)
	defer end.Stop()
	for c.whole > 0 && c.open.Load() > 0 {
		select {
		case <-c.answered:
		case <-end.C:
			return m, err
		case <-c.closed:
			return m, err
		}
	}
	return m, err
}

// Write implements [mcp.Connection].
func (c *connection) Write(ctx context.Context, m jsonrpc.Message) error {
	err := c.Connection.Write(ctx, m)
	if _, ok := m.(*jsonrpc.Response); ok {
		c.open.Add(-1)
		select {
		case c.answered <- struct{}{}:
		default:
		}
	}
	return err
}

// Close implements [mcp.Connection].
func (c *connection) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Connection.Close()
}

type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }

// private makes a directory that only this user can use, or refuses the one that
// is there.
func private(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return StateDir.Newf("The state directory %s can't be made.", dir).Because(err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return StateDir.Newf("The state directory %s can't be used.", dir).Because(err)
	}
	switch {
	case !info.IsDir():
		return StateDir.Newf("%s is not a directory, or a link to one.", dir)
	case !owned(info):
		return StateDir.Newf("%s belongs to another user.", dir)
	case info.Mode().Perm()&0o077 != 0:
		return StateDir.Newf("%s can be used by other users (mode %04o).", dir, info.Mode().Perm())
	}
	return nil
}
