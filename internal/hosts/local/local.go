// Package local is the machine on which the gateway runs, as a host of the
// Direct workspace: it makes the policy of the owner's config and opens the
// services that work by it, in the gateway's own process.
//
// It promises that what the config and the state directory hold of the gateway
// itself is protected from every client, and that this machine is always there.
// It leaves to others the services (package workspace), the receipts of
// transfers, who may call what, and the record of what was done.
package local

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"agentrelay/internal/config"
	"agentrelay/internal/direct"
	"agentrelay/internal/direct/commands"
	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/workspace"
)

// ID is the canonical id of the local host.
func ID() string {
	if runtime.GOOS == "darwin" {
		return "mac"
	}
	return "local"
}

// Aliases are what callers may call the local host by.
func Aliases() []string { return []string{"local", "mac"} }

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

// units are the files and directories in which service managers look for the unit
// of a gateway, or for what changes it: whoever can write there runs what he
// likes. Drop-ins are read from the directories of the unit's name, of its
// beginning up to a dash, and of its kind (systemd.unit(5)).
func units(home string) []string {
	var paths []string
	for _, dir := range []string{home + "/.config/systemd/user", home + "/.local/share/systemd/user", "/etc/systemd/user", "/etc/systemd/system"} {
		for _, name := range []string{"agent-relay.service", "agent-relay.service.d", "agent-.service.d", "service.d"} {
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	for _, dir := range []string{home + "/Library/LaunchAgents", "/Library/LaunchAgents", "/Library/LaunchDaemons"} {
		paths = append(paths, filepath.Join(dir, "agent-relay.plist"))
	}
	return paths
}

func protected(c *config.Config) []string {
	paths := []string{c.StateDir, c.OwnerTokenFile, c.Backup.Dir}
	if c.File() != "" {
		paths = append(paths, c.File())
	}
	secrets := []string{c.Agents.PasswordFile}
	for _, target := range c.PeerWakeTargets {
		secrets = append(secrets, target.CredentialFile)
	}
	for _, host := range c.Hosts {
		secrets = append(secrets, host.DaemonPasswordFile)
	}
	for _, ref := range secrets {
		if ref != "" && !strings.HasPrefix(ref, "env:") {
			paths = append(paths, ref)
		}
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = "/" // who has no home has no units of his own
	}
	return append(paths, units(home)...)
}

// Options says what [Open] works with. Only Config is required.
type Options struct {
	Config *config.Config
	// FormerOwners are those whose commands the shared owner has taken over.
	FormerOwners []string
	Now          func() time.Time
	Log          *slog.Logger
}

func (o Options) workspace() workspace.Options {
	c, policy := o.Config.Commands, Policy(o.Config)
	policy.FormerOwners = o.FormerOwners
	return workspace.Options{
		Policy: policy, StateDir: filepath.Join(o.Config.StateDir, "direct"), Now: o.Now, Log: o.Log,
		Commands: commands.Options{Path: c.Path, Pass: c.PassEnvironment, Limits: commands.Limits{
			RunningPerOwner: c.RunningPerOwner, RunningPerHost: c.RunningPerHost, OutputBytes: int64(c.OutputBytes),
			StoredBytes: int64(c.StoredBytes), StoredFor: time.Duration(c.KeepDays) * 24 * time.Hour,
		}},
	}
}

// Host is this machine. It is safe for concurrent use.
type Host struct {
	*workspace.Workspace
	now      func() time.Time
	projects int
}

var _ hosts.Host = (*Host)(nil)

// Open opens the services, after they have settled what a crash has left. The
// caller must hold the lock of the state directory, and call [Host.Close].
func Open(o Options) (*Host, error) {
	w, err := workspace.Open(o.workspace())
	if err != nil {
		return nil, err
	}
	h := &Host{Workspace: w, now: o.Now, projects: len(o.Config.Direct.Projects)}
	if h.now == nil {
		h.now = time.Now
	}
	return h, nil
}

// OpenCommands opens the commands alone, to look at them and to end them.
func OpenCommands(o Options) (*commands.Service, error) {
	w := o.workspace()
	w.Policy = direct.Policy{HostID: ID()}
	if w.Commands.Path == "" {
		w.Commands.Path = "/usr/bin:/bin" // nothing is run with it, so the login shell is not asked
	}
	return workspace.OpenCommands(w)
}

// Name implements [hosts.Host].
func (*Host) Name() string { return Name() }

// Transport implements [hosts.Host].
func (*Host) Transport() string { return "local" }

// DirectConfigured implements [hosts.Host].
func (h *Host) DirectConfigured() bool { return h.projects > 0 }

// Status implements [hosts.Host]: the gateway's own machine is always there.
func (h *Host) Status() hosts.Status {
	now := h.now()
	return hosts.Status{State: hosts.Up, Since: now, CheckedAt: now}
}

// Probe implements [hosts.Host].
func (h *Host) Probe(context.Context) hosts.Status { return h.Status() }

// At implements [hosts.Host].
func (h *Host) At(context.Context) (hosts.Workspace, error) { return h.Workspace, nil }
