package gateway

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentrelay/internal/doctor"
)

// ExitUnhealthy is what the doctor ends with when a check failed.
const ExitUnhealthy = 2

func (a *app) doctorCommand() *cobra.Command {
	var o doctor.Options
	var explain bool
	c := a.withJSON(&cobra.Command{
		Use:   "doctor",
		Short: "Find out why something does not work",
		Long: `Goes the ways that clients, hosts and backups go, and says what it found: PASS, WARN,
FAIL or SKIP, and what to do next. It registers a client of its own that is allowed
nothing, logs it in without your password, and removes it. It wakes nobody, runs no
command and changes nothing else. It takes about 40 seconds while a gateway runs, for it
holds an answer open through your proxy for 35.

Exit codes: 0 when nothing failed, warnings or not; 2 when something failed.`,
		Example: `  gateway doctor
  gateway doctor --client claude
  gateway doctor --public            hold an answer for 150 seconds
  gateway doctor --json | jq '.results[] | select(.status != "PASS")'`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Client != "" && !slices.Contains(doctor.Clients(), o.Client) {
				return usage("--client must be one of %s", strings.Join(doctor.Clients(), ", "))
			}
			if err := a.doctorOptions(&o); err != nil {
				return err
			}
			if a.StderrTerminal {
				fmt.Fprintln(a.Stderr, "Looking; this takes "+map[bool]string{true: "three minutes", false: "up to a minute"}[o.Public]+".")
			}
			report := doctor.Run(cmd.Context(), o)
			if err := a.printReport(report, explain); err != nil {
				return err
			}
			return verdict(cmd.Context(), report)
		},
	})
	c.Flags().StringVar(&o.Client, "client", "", "also what one `client` needs: "+strings.Join(doctor.Clients(), ", "))
	c.Flags().BoolVar(&o.Public, "public", false, "hold an answer through the proxy for 150 seconds, not 35")
	c.Flags().BoolVar(&explain, "explain", false, "say why each check is made")
	return c
}

// verdict is the end of the command: an error when something failed.
func verdict(ctx context.Context, r doctor.Report) error {
	if err := ctx.Err(); err != nil {
		return failed("run it again for the rest", "the doctor was interrupted")
	}
	if r.Failed == 0 {
		return nil
	}
	hint := "do what stands behind Next, then run it again"
	return &exitError{code: ExitUnhealthy, err: fmt.Errorf("%s failed", plural(int64(r.Failed), "check")), hint: hint}
}

func (a *app) doctorOptions(o *doctor.Options) error {
	path, _, err := a.path()
	if err != nil {
		return err
	}
	if o.ConfigPath, err = filepath.Abs(path); err != nil {
		return err
	}
	o.Getenv, o.Now, o.Version = a.Getenv, a.Now, thisBuild().Version
	o.Units, o.LogindKills = a.installedUnits, logindKills
	return nil
}

// printReport prints the findings, for people in the order of the checks.
func (a *app) printReport(r doctor.Report, explain bool) error {
	if a.json {
		return a.printJSON(a.Stdout, r)
	}
	var out strings.Builder
	width := 0
	for _, f := range r.Results {
		width = max(width, len(f.ID))
	}
	for _, f := range r.Results {
		head := fmt.Sprintf("%s  %-*s  ", f.Status, width, f.ID)
		text := f.Evidence
		if f.Subject != "" {
			text = f.Subject + ": " + text
		}
		indent := strings.Repeat(" ", len(head))
		out.WriteString(head + beside(text, indent) + "\n")
		if f.Next != "" && f.Status != doctor.Pass {
			out.WriteString(indent + beside("Next: "+f.Next, indent) + "\n")
		}
		if explain {
			out.WriteString(indent + beside("Why: "+f.Why, indent) + "\n")
		}
	}
	fmt.Fprintf(&out, "\n%d passed, %s, %d failed, %d skipped.\n", r.Passed, plural(int64(r.Warned), "warning"), r.Failed, r.Skipped)
	_, err := a.Stdout.Write([]byte(out.String()))
	return err
}

// beside breaks text between words so that it fits beside an indentation.
func beside(text, indent string) string {
	var out strings.Builder
	used := len(indent)
	for i, word := range strings.Fields(clean(text)) {
		n := columns(word)
		switch {
		case i == 0:
		case used+1+n > lineWidth:
			out.WriteString("\n" + indent)
			used = len(indent)
		default:
			out.WriteByte(' ')
			used++
		}
		out.WriteString(word)
		used += n
	}
	return out.String()
}

// unitBudget bounds the questions to service managers and programs about one unit.
const unitBudget = 5 * time.Second

// installedUnits are the services of the gateway on this machine.
func (a *app) installedUnits(ctx context.Context) (units []doctor.Unit) {
	me, err := user.Current()
	if err != nil {
		return nil
	}
	var m manager = systemdManager{}
	name := "systemd"
	if runtime.GOOS == "darwin" {
		m, name = launchdManager{}, launchd
	}
	for _, system := range []bool{false, true} {
		s := service{system: system, user: me.Username, uid: me.Uid, home: a.Getenv("HOME")}
		if s.home == "" {
			s.home = me.HomeDir
		}
		if u, ok := a.installedUnit(ctx, m, name, s); ok {
			units = append(units, u)
		}
	}
	return units
}

// installedUnit looks at one unit; ok is false when there is none.
func (a *app) installedUnit(ctx context.Context, m manager, name string, s service) (u doctor.Unit, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, unitBudget)
	defer cancel()
	raw, err := os.ReadFile(m.path(s))
	if err != nil {
		return u, false
	}
	u = doctor.Unit{Manager: name, System: s.system, Path: m.path(s), Text: string(raw)}
	lines, running, err := m.state(ctx, s, run)
	if err != nil {
		u.Trouble = err.Error()
	}
	u.Running = running
	if name == launchd {
		// The program and the paths stand in the text; launchd starts what it has loaded.
		u.Shipped, u.Enabled = u.Text, true
		return u, true
	}
	for _, l := range lines {
		u.Enabled = u.Enabled || l[0] == "At boot" && l[1] == "enabled"
	}
	s.program, s.config, s.user = execStart(u.Text, s.user)
	u.Program, u.Shipped = s.program, m.text(s)
	if start, ok := lineOf(u.Text, "ExecStart="); ok { // with the owner's own words in it
		u.Shipped = setLine(u.Shipped, "ExecStart=", start)
	}
	if out, err := run(ctx, systemdManager{}.ctl(s, "show", unitName, "--property=KillMode", "--value")); err == nil {
		u.KillMode = strings.TrimSpace(out)
	}
	if !s.system {
		if out, err := run(ctx, []string{"loginctl", "show-user", s.user, "--property=Linger", "--value"}); err == nil {
			yes := strings.TrimSpace(out) == "yes"
			u.Lingers = &yes
		}
	}
	u.Version = versionOf(ctx, u.Program)
	return u, true
}

// execStart reads what a unit of systemd starts, as whom.
func execStart(text, me string) (program, config, as string) {
	as = me
	if user, ok := lineOf(text, "User="); ok {
		as = user
	}
	start, _ := lineOf(text, "ExecStart=")
	words := systemdWords(start)
	if len(words) == 0 {
		return "", "", as
	}
	if i := slices.Index(words, "--config"); i >= 0 && i+1 < len(words) {
		config = words[i+1]
	}
	return words[0], config, as
}

// systemdWords undoes [systemdWord].
func systemdWords(line string) (words []string) {
	var word strings.Builder
	quoted, any := false, false
	end := func() {
		if any {
			words = append(words, strings.NewReplacer("%%", "%", "$$", "$").Replace(word.String()))
		}
		word.Reset()
		any = false
	}
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '"':
			quoted, any = !quoted, true
		case c == '\\' && quoted && i+1 < len(line):
			i++
			if c = line[i]; c == 'n' {
				c = '\n'
			}
			word.WriteByte(c)
		case c == ' ' && !quoted:
			end()
		default:
			word.WriteByte(c)
			any = true
		}
	}
	end()
	return words
}

// lineOf is the value of a setting of a unit.
func lineOf(text, key string) (value string, ok bool) {
	for line := range strings.Lines(text) {
		if value, ok = strings.CutPrefix(strings.TrimSpace(line), key); ok {
			return value, true
		}
	}
	return "", false
}

// versionOf asks a program for its version; "" when it does not say.
func versionOf(ctx context.Context, program string) string {
	if !filepath.IsAbs(program) {
		return ""
	}
	out, err := run(ctx, []string{program, "version", "--json"})
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(out, `"version": "`)
	version, _, _ := strings.Cut(rest, `"`)
	return version
}

// logindKills asks systemd-logind whether a logout ends what its user started.
func logindKills(ctx context.Context) (kills, known bool) {
	ctx, cancel := context.WithTimeout(ctx, unitBudget)
	defer cancel()
	out, err := exec.CommandContext(ctx, "busctl", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "KillUserProcesses").Output()
	if err != nil {
		return false, false
	}
	return strings.TrimSpace(string(out)) == "b true", true
}
