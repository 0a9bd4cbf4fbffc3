// Package workspace opens the services of the Direct workspace on the machine
// that it runs on, by a policy: in the gateway's process for the gateway's own
// machine, in a worker for any other.
//
// It promises that the services share their locks and keep their state apart,
// that what a crash has left is settled before they are used, and that a project
// whose directory is missing keeps nothing else from opening. It leaves to others
// where the policy comes from, and the rules of files, commands and transfers
// (packages below internal/direct).
package workspace

import (
	"log/slog"
	"path/filepath"
	"time"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/commands"
	"agentrelay/internal/direct/files"
	"agentrelay/internal/direct/transfers"
	"agentrelay/internal/hosts"
)

var _ hosts.Workspace = (*Workspace)(nil)

// Options says what a [Workspace] works with. Policy and StateDir are required.
type Options struct {
	Policy direct.Policy
	// StateDir is a directory of the workspace alone, which it creates. The policy
	// must protect it. Its user must see that no two workspaces share it.
	StateDir string
	// Commands says how commands run; its Host, StateDir, Now and Log are not
	// used.
	Commands commands.Options
	Now      func() time.Time // nil is time.Now
	Log      *slog.Logger     // nil discards
}

// Workspace is the Direct tools of this machine. It is safe for concurrent use.
type Workspace struct {
	*direct.Host
	Files      *files.Service
	Commands   *commands.Service
	placements *transfers.Service
}

// Open opens the services. [Workspace.Close] must be called.
func Open(o Options) (*Workspace, error) {
	w := &Workspace{Host: direct.New(o.Policy)}
	var err error
	if w.Files, err = files.New(files.Options{Host: w.Host, StateDir: filepath.Join(o.StateDir, "files"), Now: o.Now, Log: o.Log}); err != nil {
		return nil, err
	}
	w.placements, err = transfers.New(transfers.Options{Host: w.Host, StateDir: filepath.Join(o.StateDir, "transfers"), Files: w.Files, Now: o.Now, Log: o.Log})
	if err != nil {
		return nil, err
	}
	if w.Commands, err = openCommands(o, w.Host); err != nil {
		return nil, err
	}
	return w, nil
}

// OpenCommands opens the commands alone, to look at them and to end them.
func OpenCommands(o Options) (*commands.Service, error) { return openCommands(o, direct.New(o.Policy)) }

func openCommands(o Options, host *direct.Host) (*commands.Service, error) {
	c := o.Commands
	c.Host, c.StateDir, c.Now, c.Log = host, filepath.Join(o.StateDir, "commands"), o.Now, o.Log
	return commands.New(c)
}

// Close ends waits and background work. Commands go on under their supervisors.
func (w *Workspace) Close() { w.Commands.Close() }

// Placements implements [hosts.Workspace].
func (w *Workspace) Placements() hosts.Placements { return w.placements }
