package doctor

import (
	"context"
	"os"
	"slices"
	"strings"
)

func serviceChecks() []check {
	return []check{
		{id: "service.unit", needs: needConfig, why: "A service starts the gateway with the machine and after a crash, and stops trying when only you can help.", run: checkUnit},
		{id: "service.linger", needs: needConfig, why: "Services of a user end with his last session, unless he lingers.", run: checkLinger},
	}
}

const installIt = "Run: gateway service install"

func checkUnit(_ context.Context, v *visit) []finding {
	units := v.units()
	if len(units) == 0 {
		return one(warn(installIt+". If another service manager runs the gateway, leave it.", "No service of the gateway is installed: after a restart of the machine it does not run."))
	}
	var found []finding
	for _, u := range units {
		found = append(found, judgeUnit(u))
	}
	if len(units) > 1 {
		found = append(found, warn("Keep one: gateway service uninstall, with or without --system.", "The gateway is installed as %d services, of which one at a time can run.", len(units)))
	}
	return found
}

func judgeUnit(u Unit) finding {
	again := installIt
	if u.System {
		again = "Run: sudo gateway service install --system --user <user>"
	}
	switch info, err := os.Stat(u.Program); {
	case u.Trouble != "":
		return warn("See that the service manager of this user runs; over SSH it may need: export XDG_RUNTIME_DIR=/run/user/$(id -u)", "The unit %s is there, but %s", u.Path, u.Trouble)
	case u.Program != "" && (err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0):
		return fail(again, "The unit %s starts %s, which is not there or can't be run.", u.Path, u.Program)
	case !u.Enabled:
		return warn(again, "The unit %s is not enabled: it does not start by itself.", u.Path)
	}
	if keys := differences(u.Text, u.Shipped); len(keys) > 0 {
		return warn(again+". What you want otherwise belongs into a drop-in: systemctl edit agent-relay", "The unit %s is not the one of this version; it differs in %s.", u.Path, strings.Join(keys, ", "))
	}
	if !u.Running {
		return warn("If it should run: gateway service restart, and gateway service logs says why it did not.", "The unit %s is in order, but does not run.", u.Path)
	}
	return pass("%s is enabled, runs, and is the one of this version.", u.Path)
}

// differences are the settings that an installed unit lacks or has otherwise. What it
// has beside them is its owner's.
func differences(have, want string) []string {
	own := settings(have)
	var keys []string
	for _, line := range settings(want) {
		if slices.Contains(own, line) {
			continue
		}
		key, _, _ := strings.Cut(line, "=")
		if !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// settings are the lines of a unit without comments and headings.
func settings(text string) (lines []string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == ';' || line[0] == '[' {
			continue
		}
		lines = append(lines, line)
	}
	return lines
}

func checkLinger(_ context.Context, v *visit) []finding {
	for _, u := range v.units() {
		if u.System || u.Lingers == nil {
			continue
		}
		if !*u.Lingers {
			return one(warn("Run: loginctl enable-linger", "The gateway ends when you log out."))
		}
		return one(pass("Your services run without a login."))
	}
	return one(skip("No service of a user of systemd is installed."))
}
