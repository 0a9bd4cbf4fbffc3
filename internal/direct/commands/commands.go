// Package commands runs commands in the projects of one host, durably: a
// command belongs to a supervisor process of its own and not to the process
// that started it.
//
// It promises that a requestId executes its command at most once, over
// restarts, crashes and repeats, and that whoever asks later learns what became
// of it: how it ended with its output, that it was interrupted, or that it never
// started, which from then on stays so. It promises that no call waits for a
// command longer than it was asked to, and that a command gets none of the
// gateway's environment but what a program needs of its user's.
//
// It leaves to others: which projects there are (package direct), permissions
// of clients, the audit log, the network and the protocol. It runs unchanged
// inside a worker on another machine. The files of a command are package
// record's, its output package output's, its life package supervisor's.
//
// A command may be any program, so a project's directory is where it starts and
// not what it is confined to. Its whole process group is killed when it ends, is
// cancelled or meets its deadline; a descendant that should live on (a server)
// must leave the group, as with setsid, and send its output elsewhere.
package commands

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/commands/record"
	"agentrelay/internal/keylock"
)

// Options says what a [Service] works with. Host and StateDir are required.
type Options struct {
	Host *direct.Host
	// StateDir is a directory of this service alone, which it creates. It must be
	// protected by the host's policy.
	StateDir string
	// RuntimeDir is a private directory for sockets when StateDir is too long
	// for one; "" is agent-relay in $XDG_RUNTIME_DIR, else agent-relay-<uid> in
	// the directory for temporary files.
	RuntimeDir string
	// Supervisor starts a supervisor, the record's directory appended; nil is
	// [DefaultSupervisor].
	Supervisor []string
	// Path is the PATH of commands; "" asks the user's login shell once.
	Path string
	// Pass names variables of this process that commands get besides those that
	// every program needs (see environment.go).
	Pass []string
	// Getenv looks a variable of this process up; nil is os.LookupEnv.
	Getenv func(string) (string, bool)
	// Limits bounds commands; its zero values are the defaults.
	Limits Limits
	// BootID names this boot of the host; nil asks the system.
	BootID func() (string, error)
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Log receives failures that no caller sees; nil discards them. No command
	// text goes there.
	Log *slog.Logger
}

// Limits bounds commands. A zero value is the default.
type Limits struct {
	RunningPerOwner int // default 16
	RunningPerHost  int // default 32
	// What is kept of the output of commands that have ended, the oldest goes
	// first. Receipts are kept for ever.
	StoredPerOwner int           // commands with output, default 2000
	StoredBytes    int64         // of all owners, default 2 GiB
	StoredFor      time.Duration // default 30 days
	// OutputBytes bounds the output kept of one command, default 16 MiB.
	OutputBytes int64
	// Grace is from TERM to KILL, default 2 s.
	Grace time.Duration
}

func (l Limits) withDefaults() Limits {
	return Limits{
		RunningPerOwner: cmp.Or(l.RunningPerOwner, 16),
		RunningPerHost:  cmp.Or(l.RunningPerHost, 32),
		StoredPerOwner:  cmp.Or(l.StoredPerOwner, 2000),
		StoredBytes:     cmp.Or(l.StoredBytes, 2<<30),
		StoredFor:       cmp.Or(l.StoredFor, 30*24*time.Hour),
		OutputBytes:     cmp.Or(l.OutputBytes, 16<<20),
		Grace:           cmp.Or(l.Grace, 2*time.Second),
	}
}

// Service is the commands of one host. It is safe for concurrent use.
type Service struct {
	host       *direct.Host
	root       record.Root
	supervisor []string
	limits     Limits
	env        *environment
	now        func() time.Time
	log        *slog.Logger

	keys       keylock.Locks[string] // of records
	tombstones tombstones
	start      sync.Mutex // counts running commands and records one more
	waits      chan struct{}

	launches sync.RWMutex    // held for reading while a supervisor is started
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	work     sync.WaitGroup
	sweeps   chan struct{} // asks for a sweep
	started  int           // since the last one; guarded by start
}

// maxWaits is how many calls wait at one time. Each costs a connection to a
// supervisor, which serves more of them than this; a further one is answered at
// once.
const maxWaits = 256

// New prepares the state directory and takes up what an earlier service left:
// commands that run go on, those whose supervisor is gone are settled, in the
// background. [Service.Close] must be called.
func New(o Options) (*Service, error) {
	s := &Service{
		host: o.Host, supervisor: o.Supervisor, limits: o.Limits.withDefaults(), now: o.Now, log: o.Log,
		waits: make(chan struct{}, maxWaits), sweeps: make(chan struct{}, 1),
		tombstones: tombstones{of: map[string]hour{}},
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	getenv := o.Getenv
	if getenv == nil {
		getenv = os.LookupEnv
	}
	dir, err := filepath.Abs(o.StateDir)
	if err != nil {
		return nil, err
	}
	s.root = record.Root{Dir: dir, RuntimeDir: cmp.Or(o.RuntimeDir, runtimeDir(getenv)), BootID: o.BootID, Now: s.now}
	if err := s.root.Prepare(); err != nil {
		return nil, err
	}
	if s.supervisor == nil {
		if s.supervisor, err = DefaultSupervisor(); err != nil {
			return nil, err
		}
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.env = newEnvironment(s.ctx, o.Path, o.Pass, getenv, s.log)
	s.work.Go(s.env.probe)
	s.work.Go(s.takeUp)
	s.work.Go(s.sweepLoop)
	return s, nil
}

// DefaultSupervisor is peer-agent beside this program when it is there, for it
// starts faster, else this program; either with the word supervise.
func DefaultSupervisor() ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	beside := filepath.Join(filepath.Dir(self), "peer-agent")
	if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
		return []string{beside, "supervise"}, nil
	}
	return []string{self, "supervise"}, nil
}

// Close ends every wait and all background work. Commands go on under their
// supervisors.
func (s *Service) Close() {
	s.launches.Lock()
	s.cancel()
	s.launches.Unlock()
	s.work.Wait()
}

// closing refuses calls after Close.
func (s *Service) closing() error {
	if s.ctx.Err() != nil {
		return CommandsClosed.New("The commands of this host are being closed.")
	}
	return nil
}

// takeUp settles the commands of an earlier service and waits for the ends of
// those that run, so that a killed supervisor is noticed.
func (s *Service) takeUp() {
	active, err := s.root.Active()
	if err != nil {
		s.log.Error("could not list the running commands", "error", err)
		return
	}
	for id := range active {
		s.work.Go(func() { s.watch(id) })
	}
}

// watch waits until a command has ended, and settles it.
func (s *Service) watch(id string) {
	rec, err := s.awaitEnd(s.ctx, id)
	switch {
	case err == nil:
		s.root.Record(id).Ended(rec.Spec)
	case s.ctx.Err() != nil:
	case errors.Is(err, os.ErrNotExist):
		s.root.Forget(id)
	default:
		s.log.Error("could not settle a command", "commandId", id, "error", err)
	}
}
