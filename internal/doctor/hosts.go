package doctor

import (
	"context"
	"strings"
	"sync"
	"time"

	"agentrelay/internal/admin"
	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/config"
	"agentrelay/internal/hosts/local"
	"agentrelay/internal/hosts/ssh"
)

// hostBudget bounds the look at one machine.
const hostBudget = 90 * time.Second

func hostChecks() []check {
	return []check{
		{id: "hosts.ssh", needs: needConfig, budget: hostBudget, why: "Files, commands and agents of another machine are reached by these steps; gateway hosts check shows each.", run: checkHosts},
		{id: "agents.daemon", needs: needGateway, why: "Agents are dispatched through the Paseo daemon of their machine.", run: checkDaemons},
	}
}

// checkHosts walks the way to each SSH host, all at once. A running gateway does it,
// for its keys and its environment count.
func checkHosts(ctx context.Context, v *visit) []finding {
	if len(v.config.Hosts) == 0 {
		return one(skip("The config has no SSH hosts."))
	}
	ctx, cancel := context.WithTimeout(ctx, hostBudget-5*time.Second)
	defer cancel()
	found := make([]finding, len(v.config.Hosts))
	var wg sync.WaitGroup
	for i, h := range v.config.Hosts {
		wg.Go(func() { found[i] = v.checkHost(ctx, h.ID).of(h.ID) })
	}
	wg.Wait()
	return found
}

func (v *visit) checkHost(ctx context.Context, id string) finding {
	var steps []ssh.Step
	var err error
	if conn := v.running(); conn != nil {
		steps, err = admin.CheckHost.Call(ctx, conn, admin.ByHost{HostID: id})
	} else {
		steps, err = admin.Alone(v.config, v.o.Now).CheckHost(ctx, id)
	}
	if err != nil {
		return fail("Run: gateway hosts check "+id, "The way there could not be walked: %s", sentence(err))
	}
	var passed, warnings []string
	next := ""
	for _, s := range steps {
		switch {
		case s.Name == "daemon": // agents.daemon looks at it
		case s.State == ssh.Fail:
			return fail(s.Next, "Step %s: %s", s.Name, s.Detail)
		case s.State == ssh.Warn:
			warnings = append(warnings, s.Name+": "+s.Detail)
			if next == "" {
				next = s.Next
			}
		case s.State == ssh.Pass:
			passed = append(passed, s.Name)
		}
	}
	if len(warnings) > 0 {
		return warn(next, "%s", strings.Join(warnings, " "))
	}
	return pass("In order: %s.", strings.Join(passed, ", "))
}

func checkDaemons(_ context.Context, v *visit) []finding {
	if !v.config.Tools.Agents {
		return one(skip("tools.agents is off."))
	}
	f := v.facts()
	if f.err != nil {
		return one(skip("The gateway does not say: %s", sentence(f.err)))
	}
	var found []finding
	for _, d := range f.Daemons {
		found = append(found, v.checkDaemon(d).of(d.HostID))
	}
	return found
}

func (v *visit) checkDaemon(d admin.DaemonInfo) finding {
	age := span(v.o.Now().Sub(d.Since))
	if d.Up {
		return pass("Version %s, connected for %s.", d.Version, age)
	}
	where := "agents.passwordFile"
	if d.HostID != local.ID() {
		where = "daemonPasswordFile of the host"
	}
	switch paseo.Code(d.Code) {
	case paseo.PasswordNeeded, paseo.PasswordWrong, paseo.PasswordUnusable:
		return fail("Put the daemon's password into the file that "+where+" names, mode 0600.", "%s", d.Reason)
	case paseo.IdentityDiffers:
		return fail("If Paseo was installed anew there: gateway hosts accept-identity "+d.HostID+". Its earlier agents are gone.", "%s", d.Reason)
	}
	if !v.wantsDaemon(d.HostID) {
		return skip("No Paseo daemon answers, and the config names none: it is needed only to dispatch agents there.")
	}
	return warn("Start Paseo on that machine, or correct upstreamUrl or the host's target.", "Not connected for %s: %s", age, d.Reason)
}

// wantsDaemon reports whether the owner has said something about a host's daemon.
func (v *visit) wantsDaemon(hostID string) bool {
	if hostID == local.ID() {
		return v.config.UpstreamURL != "" || v.config.Agents.PasswordFile != ""
	}
	for _, h := range v.config.Hosts {
		if h.ID == hostID {
			return namesDaemon(h)
		}
	}
	return false
}

func namesDaemon(h config.Host) bool {
	return h.DaemonPasswordFile != "" || strings.Contains(h.Target, "?daemon")
}
