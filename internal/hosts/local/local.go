// Package local is the machine on which the gateway runs, as a host of the
// Direct workspace: it makes the policy of the owner's config and opens the
// services that work by it, in the gateway's own process.
//
// It promises that what the config and the state directory hold of the gateway
// itself is protected from every client, that the services share their locks and
// keep their state apart, and that a project whose directory is missing keeps
// nothing else from opening. It leaves to others the rules of files, commands and
// transfers (packages below internal/direct), the receipts of transfers, who may
// call what, and the record of what was done.
package local

import (
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"agentrelay/internal/config"
	"agentrelay/internal/direct"
	"agentrelay/internal/direct/commands"
	"agentrelay/internal/direct/files"
	"agentrelay/internal/direct/transfers"
)

// ID is the canonical id of the local host. Callers may also call it local or
// mac, or leave it out.
func ID() string {
	if runtime.GOOS == "darwin" {
		return "mac"
	}
	return "local"
}

// Name is what people call the local host.
func Name() string {
	if runtime.GOOS == "darwin" {
		return "Mac"
	}
	return "This machine"
}

// Policy is what the config says about this machine.
func Policy(c *config.Config) direct.Policy {
	p := direct.Policy{HostID: ID(), AllowedRoots: c.AllowedRoots, Protected: protected(c)}
	for _, conf := range c.Direct.Projects {
		project := direct.Project{
			ID: conf.ID, Name: conf.Name, Path: conf.Path, Read: conf.Read, Write: conf.Write, CommandMode: direct.CommandMode(conf.CommandMode),
		}
		for _, command := range conf.Commands {
			project.Commands = append(project.Commands, direct.Command(command))
		}
		p.Projects = append(p.Projects, project)
	}
	return p
}

// units are the places, below the home directory or absolute, in which service
// managers look for the unit of a gateway. Whoever can write it runs what he
// likes.
var units = []string{
	".config/systemd/user/agent-relay.service", "Library/LaunchAgents/agent-relay.plist",
	"/etc/systemd/system/agent-relay.service", "/Library/LaunchDaemons/agent-relay.plist",
}

func protected(c *config.Config) []string {
	paths := []string{c.StateDir, c.OwnerTokenFile}
	if c.File() != "" {
		paths = append(paths, c.File())
	}
	for _, target := range c.PeerWakeTargets {
		if !strings.HasPrefix(target.CredentialFile, "env:") {
			paths = append(paths, target.CredentialFile)
		}
	}
	home, err := os.UserHomeDir()
	for _, unit := range units {
		if filepath.IsAbs(unit) {
			paths = append(paths, unit)
		} else if err == nil {
			paths = append(paths, filepath.Join(home, unit))
		}
	}
	return paths
}

// Options says what [Open] works with. Only Config is required.
type Options struct {
	Config *config.Config
	Now    func() time.Time
	Log    *slog.Logger
}

// Host is this machine. It is safe for concurrent use.
type Host struct {
	*direct.Host
	Files      *files.Service
	Commands   *commands.Service
	Placements *transfers.Service
}

// Open opens the services, after they have settled what a crash has left. The
// caller must hold the lock of the state directory, and call [Host.Close].
func Open(o Options) (*Host, error) {
	h := &Host{Host: direct.New(Policy(o.Config))}
	var err error
	if h.Files, err = files.New(files.Options{Host: h.Host, StateDir: stateDir(o.Config, "files"), Now: o.Now, Log: o.Log}); err != nil {
		return nil, err
	}
	h.Placements, err = transfers.New(transfers.Options{Host: h.Host, StateDir: stateDir(o.Config, "transfers"), Files: h.Files, Now: o.Now, Log: o.Log})
	if err != nil {
		return nil, err
	}
	if h.Commands, err = openCommands(o, h.Host, o.Config.Commands.Path); err != nil {
		return nil, err
	}
	return h, nil
}

// OpenCommands opens the commands alone, to look at them and to end them.
func OpenCommands(o Options) (*commands.Service, error) {
	path := o.Config.Commands.Path
	if path == "" {
		path = "/usr/bin:/bin" // nothing is run with it, so the login shell is not asked
	}
	return openCommands(o, direct.New(direct.Policy{HostID: ID()}), path)
}

func openCommands(o Options, host *direct.Host, path string) (*commands.Service, error) {
	c := o.Config.Commands
	return commands.New(commands.Options{
		Host: host, StateDir: stateDir(o.Config, "commands"), Path: path, Pass: c.PassEnvironment, Now: o.Now, Log: o.Log,
		Limits: commands.Limits{
			RunningPerOwner: c.RunningPerOwner, RunningPerHost: c.RunningPerHost, OutputBytes: int64(c.OutputBytes),
			StoredBytes: int64(c.StoredBytes), StoredFor: time.Duration(c.KeepDays) * 24 * time.Hour,
		},
	})
}

func stateDir(c *config.Config, service string) string {
	return filepath.Join(c.StateDir, "direct", service)
}

// Close ends waits and background work. Commands go on under their supervisors.
func (h *Host) Close() { h.Commands.Close() }
