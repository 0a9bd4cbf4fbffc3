package doctor

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"agentrelay/internal/config"
	"agentrelay/internal/direct"
	"agentrelay/internal/hosts/local"
)

func directChecks() []check {
	return []check{
		{id: "direct.projects", needs: needConfig, why: "A project whose directory is gone, unreadable or outside allowedRoots refuses every call.", run: checkProjects},
		{id: "direct.programs", needs: needStored, why: "A registered command whose program is not found fails each time that it is called.", run: checkPrograms},
		{id: "direct.path", needs: needStored, why: "Commands look for programs in this PATH, which under a service manager is not that of your terminal.", run: checkPath},
		{id: "commands.killmode", needs: needConfig, why: "With any KillMode but process, systemd ends every command of your clients when the gateway is restarted.", run: checkKillMode},
		{id: "commands.logind", needs: needConfig, why: "With KillUserProcesses, logging out ends the commands of your clients, and a gateway that was started by hand.", run: checkLogind},
	}
}

// checkProjects looks at this machine's projects, and through a running gateway at
// those of the others.
func checkProjects(ctx context.Context, v *visit) []finding {
	type project struct{ host, id, unavailable string }
	var all []project
	if f := v.facts; v.running() != nil && f().err == nil {
		for _, p := range f().Projects {
			all = append(all, project{p.HostID, p.ProjectID, p.Unavailable})
		}
	} else {
		out, err := direct.New(local.Policy(v.config)).ListDirectProjects(ctx, direct.ListDirectProjectsIn{})
		if err != nil {
			return one(fail("See whether a disk or mount of a project hangs.", "%s", sentence(err)))
		}
		for _, p := range out.Projects {
			all = append(all, project{p.HostID, p.ProjectID, p.Unavailable})
		}
	}
	if len(all) == 0 {
		return one(skip("The config has no projects, or their hosts are not reached."))
	}
	var found []finding
	for _, p := range all {
		if p.unavailable != "" {
			found = append(found, fail("Make the directory, or correct path and allowedRoots of the config. On macOS the gateway may need Full Disk Access.", "%s", p.unavailable).of(p.host+"/"+p.id))
		}
	}
	if len(found) == 0 {
		return one(pass("%s can be used.", count(int64(len(all)), "project")))
	}
	return found
}

// registered is a registered command of this machine.
type registered struct{ project, dir, name, program string }

func registeredCommands(c *config.Config) (list []registered) {
	for _, p := range c.Direct.Projects {
		if p.CommandMode == "disabled" {
			continue
		}
		for _, command := range p.Commands {
			list = append(list, registered{p.ID, p.Path, command.Name, command.Argv[0]})
		}
	}
	return list
}

// programs are those that are looked for in PATH or are absolute.
func programs(c *config.Config) []string {
	names := []string{}
	for _, r := range registeredCommands(c) {
		if (filepath.IsAbs(r.program) || !strings.Contains(r.program, "/")) && !slices.Contains(names, r.program) {
			names = append(names, r.program)
		}
	}
	return names
}

func checkPrograms(_ context.Context, v *visit) []finding {
	list := registeredCommands(v.config)
	if len(list) == 0 {
		return one(skip("No project has registered commands."))
	}
	var found []finding
	for _, r := range list {
		missing := slices.Contains(v.stored().missing, r.program)
		if !filepath.IsAbs(r.program) && strings.Contains(r.program, "/") {
			info, err := os.Stat(filepath.Join(r.dir, r.program))
			missing = err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0
		}
		if missing {
			found = append(found, fail("Install it, write its absolute path into argv, or add its directory to commands.path of the config.", "The program %q is not found, or can't be run.", r.program).of(r.project+"/"+r.name))
		}
	}
	if len(found) == 0 {
		return one(pass("The programs of %s are there.", count(int64(len(list)), "registered command")))
	}
	return found
}

func checkPath(_ context.Context, v *visit) []finding {
	if !v.takesCommands() {
		return one(skip("No project of this machine takes commands."))
	}
	path := v.stored().path
	if v.config.Commands.Path == "" {
		return one(pass("Your login shell's: %s", path))
	}
	var found []finding
	for _, dir := range filepath.SplitList(path) {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() || !filepath.IsAbs(dir) {
			found = append(found, warn("Correct commands.path of the config, or remove it to have the PATH of your login shell.", "commands.path names %q, which is no directory.", dir))
		}
	}
	if len(found) == 0 {
		found = one(pass("%s", path))
	}
	return found
}

// takesCommands reports whether clients may run anything on this machine.
func (v *visit) takesCommands() bool {
	return slices.ContainsFunc(v.config.Direct.Projects, func(p config.Project) bool { return p.CommandMode != "disabled" })
}

func checkKillMode(_ context.Context, v *visit) []finding {
	if !v.takesCommands() {
		return one(skip("No project of this machine takes commands."))
	}
	var found []finding
	for _, u := range v.units() {
		switch {
		case u.Manager != "systemd" || u.KillMode == "":
		case u.KillMode != "process":
			found = append(found, fail("Write it anew: gateway service install, and remove KillMode from drop-ins (systemctl cat agent-relay shows them).", "The unit %s has KillMode=%s.", u.Path, u.KillMode))
		default:
			found = append(found, pass("The unit %s has KillMode=process.", u.Path))
		}
	}
	if len(found) == 0 {
		return one(skip("No unit of systemd runs the gateway."))
	}
	return found
}

func checkLogind(ctx context.Context, v *visit) []finding {
	if !v.takesCommands() {
		return one(skip("No project of this machine takes commands."))
	}
	kills, known := v.o.LogindKills(ctx)
	switch {
	case !known:
		return one(skip("This machine has no systemd-logind, or it does not say."))
	case !kills:
		return one(pass("KillUserProcesses is off."))
	case slices.ContainsFunc(v.units(), func(u Unit) bool { return u.System || u.Lingers != nil && *u.Lingers }):
		return one(pass("KillUserProcesses is on, but does not concern the service."))
	}
	return one(warn("Run the gateway as a service (gateway service install) and let it stay: loginctl enable-linger. Or set KillUserProcesses=no in /etc/systemd/logind.conf.", "systemd-logind has KillUserProcesses on."))
}
