package gateway

import (
	"context"
	"encoding/xml"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"agentrelay/internal/shellquote"
	"agentrelay/packaging"
)

// unitName is the name of the service. internal/hosts/local protects its files by it.
const unitName = "agent-relay"

// systemdManager is systemd.
type systemdManager struct{}

func (systemdManager) path(s service) string {
	if s.system {
		return "/etc/systemd/system/" + unitName + ".service"
	}
	return filepath.Join(s.home, ".config/systemd/user", unitName+".service")
}

func (systemdManager) text(s service) string {
	text := packaging.SystemdUser
	if s.system {
		text = setLine(packaging.SystemdSystem, "User=", s.user)
	}
	return setLine(text, "ExecStart=", systemdWord(s.program)+" serve --config "+systemdWord(s.config))
}

// systemdWord quotes a word of ExecStart (systemd.service(5), systemd.syntax(7)).
func systemdWord(w string) string {
	w = strings.NewReplacer(`%`, `%%`, `$`, `$$`).Replace(w)
	if !strings.ContainsAny(w, " \t\n\"'\\;") {
		return w
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(w) + `"`
}

func (systemdManager) ctl(s service, words ...string) []string {
	if s.system {
		return append([]string{"systemctl"}, words...)
	}
	return append([]string{"systemctl", "--user"}, words...)
}

func (m systemdManager) reload(s service) [][]string { return [][]string{m.ctl(s, "daemon-reload")} }

func (m systemdManager) start(s service) [][]string {
	return [][]string{m.ctl(s, "daemon-reload"), m.ctl(s, "enable", unitName), append([]string{optional}, m.ctl(s, "reset-failed", unitName)...), m.ctl(s, "restart", unitName)}
}

func (m systemdManager) stop(s service) [][]string {
	return [][]string{m.ctl(s, "disable", "--now", unitName)}
}

func (m systemdManager) restart(s service) [][]string {
	return [][]string{m.ctl(s, "restart", unitName)}
}

func (m systemdManager) state(ctx context.Context, s service, run runner) ([][2]string, bool, error) {
	out, err := run(ctx, m.ctl(s, "show", unitName, "--property=ActiveState,SubState,Result,ExecMainStatus,ExecMainPID,NRestarts,UnitFileState,ActiveEnterTimestamp"))
	if err != nil {
		return nil, false, err
	}
	p := map[string]string{}
	for _, line := range strings.Split(out, "\n") {
		if key, value, ok := strings.Cut(line, "="); ok {
			p[key] = value
		}
	}
	running := p["ActiveState"] == "active"
	state := p["ActiveState"] + " (" + p["SubState"] + ")"
	switch {
	case running:
		state += ", process " + p["ExecMainPID"] + ", since " + p["ActiveEnterTimestamp"]
	case p["ExecMainStatus"] == strconv.Itoa(ExitConfig):
		state += ": it ended with exit code 78, so something has to be changed on disk before it can start"
	case p["Result"] != "" && p["Result"] != "success":
		state += ": " + p["Result"] + ", exit code " + p["ExecMainStatus"]
	}
	return [][2]string{{"Service", state}, {"At boot", p["UnitFileState"]}, {"Restarts", p["NRestarts"]}}, running, nil
}

func (systemdManager) logs(s service, lines int, follow bool) []string {
	argv := []string{"journalctl", "--unit", unitName, "--output", "cat", "--lines", strconv.Itoa(lines)}
	if !s.system {
		argv[1] = "--user-unit"
	}
	if follow {
		argv = append(argv, "--follow")
	}
	return argv
}

// hint is about lingering: without it a user's services end with the last session
// and don't begin before the first.
func (systemdManager) hint(ctx context.Context, s service, run runner) string {
	if s.system {
		return ""
	}
	if out, err := run(ctx, []string{"loginctl", "show-user", s.user, "--property=Linger", "--value"}); err == nil && strings.TrimSpace(out) == "yes" {
		return ""
	}
	return "It ends when you log out and begins when you log in. To have it run always: loginctl enable-linger " + shellquote.Word(s.user)
}

// launchd is the name of macOS's service manager.
const launchd = "launchd"

// launchdManager is launchd.
type launchdManager struct{}

func (launchdManager) path(s service) string {
	if s.system {
		return "/Library/LaunchDaemons/" + unitName + ".plist"
	}
	return filepath.Join(s.home, "Library/LaunchAgents", unitName+".plist")
}

func (launchdManager) text(s service) string {
	word := func(w string) string {
		var b strings.Builder
		_ = xml.EscapeText(&b, []byte(w)) // a builder takes all
		return "<string>" + b.String() + "</string>"
	}
	text := strings.Replace(packaging.Launchd, "\t\t<string>/usr/local/bin/gateway</string>\n\t\t<string>serve</string>\n",
		"\t\t"+word(s.program)+"\n\t\t<string>serve</string>\n\t\t<string>--config</string>\n\t\t"+word(s.config)+"\n", 1)
	text = strings.Replace(text, "<string>/tmp/agent-relay.log</string>", word(s.log), 1)
	if s.system {
		text = strings.Replace(text, "\t<key>RunAtLoad</key>", "\t<key>UserName</key>\n\t"+word(s.user)+"\n\t<key>RunAtLoad</key>", 1)
	}
	return text
}

func (launchdManager) domain(s service) string {
	if s.system {
		return "system"
	}
	return "gui/" + s.uid
}

func (m launchdManager) target(s service) string { return m.domain(s) + "/" + unitName }

func (m launchdManager) start(s service) [][]string {
	return [][]string{
		{optional, "launchctl", "bootout", m.target(s)},
		{"launchctl", "enable", m.target(s)},
		{"launchctl", "bootstrap", m.domain(s), m.path(s)},
	}
}

func (m launchdManager) stop(s service) [][]string {
	return [][]string{{optional, "launchctl", "bootout", m.target(s)}}
}

func (m launchdManager) restart(s service) [][]string {
	return [][]string{{"launchctl", "kickstart", "-k", m.target(s)}}
}

func (m launchdManager) state(ctx context.Context, s service, run runner) ([][2]string, bool, error) {
	out, err := run(ctx, []string{"launchctl", "print", m.target(s)})
	if err != nil {
		return [][2]string{{"Service", "not loaded"}}, false, nil
	}
	find := func(key string) string {
		for _, line := range strings.Split(out, "\n") {
			if k, value, ok := strings.Cut(strings.TrimSpace(line), " = "); ok && k == key {
				return value
			}
		}
		return ""
	}
	running := find("state") == "running"
	state := find("state")
	if running {
		state += ", process " + find("pid")
	} else if code := find("last exit code"); code != "" {
		state += fmt.Sprintf(", last exit code %s: 0 also means that something has to be changed on disk before it can start", code)
	}
	return [][2]string{{"Service", state}, {"Runs", find("runs")}}, running, nil
}

func (launchdManager) logs(s service, lines int, follow bool) []string {
	argv := []string{"tail", "-n", strconv.Itoa(lines)}
	if follow {
		argv = append(argv, "-F")
	}
	return append(argv, s.log)
}

func (launchdManager) hint(_ context.Context, s service, _ runner) string {
	if s.system {
		return ""
	}
	return "It begins when you log in. Without a login, after a restart of the machine, it does not run: for that install it with --system."
}
