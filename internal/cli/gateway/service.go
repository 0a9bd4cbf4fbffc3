package gateway

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"agentrelay/internal/admin"
	"agentrelay/internal/shellquote"
)

// serviceEnv names the service manager that started the gateway, when that has to
// know.
const serviceEnv = "AGENT_RELAY_SERVICE"

// service is a gateway that the system's service manager runs.
type service struct {
	system bool   // for all users, else for this one
	user   string // whom it runs as, when system
	home   string // of this user
	uid    string
	// The words of its unit.
	program, config, log string
}

// manager is a service manager.
type manager interface {
	// path is where the unit lies, and text what it says.
	path(service) string
	text(service) string
	// These are command lines.
	start(service) [][]string
	stop(service) [][]string
	restart(service) [][]string
	// state asks for the service's, in lines for people; running is false unless it
	// runs.
	state(ctx context.Context, s service, run runner) (lines [][2]string, running bool, err error)
	// logs is the command line that shows the log.
	logs(s service, lines int, follow bool) []string
	// hint is what the owner should know after an install.
	hint(ctx context.Context, s service, run runner) string
}

// runner runs a program and returns what it prints on standard output.
type runner func(ctx context.Context, argv []string) (string, error)

func (a *app) serviceCommand() *cobra.Command {
	return a.group("service", "Have the system run the gateway",
		`Uses systemd on Linux and launchd on macOS. Without --system the gateway runs for you,
as one of your own services; with it, it is started with the machine, for which you need
to be root. An update of the program is used after "gateway service restart".`,
		`  gateway service install
  gateway service status
  gateway service logs --follow`,
		a.serviceInstallCommand(), a.serviceUninstallCommand(), a.serviceStatusCommand(), a.serviceRestartCommand(), a.serviceLogsCommand())
}

// serviceFlags are what all commands of a service have.
type serviceFlags struct {
	system  bool
	manager string
	dryRun  bool
}

func (f *serviceFlags) add(c *cobra.Command, changes bool) {
	c.Flags().BoolVar(&f.system, "system", false, "the service of the system, not one of yours")
	c.Flags().StringVar(&f.manager, "manager", "", "systemd or launchd (default: this system's)")
	if changes {
		c.Flags().BoolVar(&f.dryRun, "dry-run", false, "print what would be done, and do nothing")
	}
}

// choose finds the manager and whom the service is for.
func (f *serviceFlags) choose(a *app) (manager, service, error) {
	me, err := user.Current()
	if err != nil {
		return nil, service{}, fmt.Errorf("asking who you are: %w", err)
	}
	s := service{system: f.system, user: me.Username, uid: me.Uid, home: a.Getenv("HOME")}
	if s.home == "" {
		s.home = me.HomeDir
	}
	name := f.manager
	if name == "" {
		if name = "systemd"; runtime.GOOS == "darwin" {
			name = launchd
		}
	}
	switch name {
	case "systemd":
		return systemdManager{}, s, nil
	case launchd:
		return launchdManager{}, s, nil
	}
	return nil, s, usage("--manager must be systemd or launchd")
}

func (a *app) serviceInstallCommand() *cobra.Command {
	var flags serviceFlags
	var as string
	c := a.withJSON(&cobra.Command{
		Use:   "install",
		Short: "Write the unit and start the gateway by it",
		Long: `Writes the unit of the service, enables it, and starts the gateway. A unit that is there
already is kept under another name. The config must be in order.`,
		Example: `  gateway service install
  gateway service install --dry-run
  sudo gateway service install --system --user you --config /etc/agent-relay/config.json`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, s, err := flags.choose(a)
			if err != nil {
				return err
			}
			if as != "" {
				if !flags.system {
					return usage("--user goes with --system: without it the service runs as you")
				}
				s.user = as
			}
			return a.installService(cmd.Context(), m, s, flags.dryRun)
		},
	})
	flags.add(c, true)
	c.Flags().StringVar(&as, "user", "", "the `user` whom a service of the system runs as (default: who calls this)")
	return c
}

func (a *app) installService(ctx context.Context, m manager, s service, dryRun bool) (err error) {
	c, _, err := a.load()
	if err != nil {
		return err
	}
	if err := a.checkFiles(c); err != nil {
		return err
	}
	path, _, err := a.path()
	if err != nil {
		return err
	}
	if s.config, err = filepath.Abs(path); err != nil {
		return err
	}
	if s.program, err = stableProgram(); err != nil {
		return err
	}
	s.log = filepath.Join(c.StateDir, "gateway.log")
	out := serviceOut{Unit: m.path(s), Text: m.text(s), Commands: plain(m.start(s)), DryRun: dryRun}
	if dryRun {
		return a.printService(out, "Would write %s:\n\n%s\nWould run:\n\n%s", clean(out.Unit), out.Text, commandLines(out.Commands))
	}
	if err := a.refuseSecond(ctx, c.StateDir, m, s); err != nil {
		return err
	}
	if out.Kept, err = writeUnit(out.Unit, out.Text, a.Now().UTC().Format("20060102T150405Z")); err != nil {
		return failed(privileges(s, err), "the unit can't be written: %w", err)
	}
	if err := runAll(ctx, m.start(s)); err != nil {
		return failed("its log says more: gateway service logs"+systemFlag(s), "the unit %s is written, but the service does not start: %w", out.Unit, err)
	}
	text := "Wrote " + clean(out.Unit) + "\n"
	if out.Kept != "" {
		text += "The unit that was there is kept as " + clean(out.Kept) + "\n"
	}
	text += "The gateway runs, and is started again when it fails.\n"
	if out.Hint = m.hint(ctx, s, run); out.Hint != "" {
		text += "\n" + wrap(out.Hint) + "\n"
	}
	return a.printService(out, "%s", text)
}

// serviceOut is the JSON of what changes a service.
type serviceOut struct {
	Unit     string     `json:"unit"`
	Text     string     `json:"text,omitempty"` // of the unit
	Kept     string     `json:"kept,omitempty"` // the unit that was there
	Commands [][]string `json:"commands"`
	DryRun   bool       `json:"dryRun"`
	Hint     string     `json:"hint,omitempty"`
}

func (a *app) printService(out serviceOut, format string, args ...any) error {
	if a.json {
		return a.printJSON(a.Stdout, out)
	}
	_, err := fmt.Fprintf(a.Stdout, format, args...)
	return err
}

// plain are command lines without the mark of those that may fail.
func plain(all [][]string) [][]string {
	out := make([][]string, len(all))
	for i, argv := range all {
		if out[i] = argv; argv[0] == optional {
			out[i] = argv[1:]
		}
	}
	return out
}

// refuseSecond refuses to start a service beside a gateway that runs by other means.
func (a *app) refuseSecond(ctx context.Context, stateDir string, m manager, s service) error {
	conn, err := admin.DialRunning(ctx, stateDir)
	if err != nil || conn == nil {
		return err
	}
	conn.Close()
	if _, running, err := m.state(ctx, s, run); err == nil && running {
		return nil // it is the service itself, which is started anew
	}
	return failed("end it, then run this again", "a gateway runs already, and not as this service")
}

func privileges(s service, err error) string {
	if s.system && errors.Is(err, fs.ErrPermission) {
		return "run it as root: sudo gateway service install --system --user " + shellquote.Word(s.user)
	}
	return ""
}

func systemFlag(s service) string {
	if s.system {
		return " --system"
	}
	return ""
}

func commandLines(all [][]string) string {
	var out strings.Builder
	for _, argv := range all {
		words := make([]string, len(argv))
		for i, w := range argv {
			words[i] = shellquote.Word(w)
		}
		out.WriteString("  " + strings.Join(words, " ") + "\n")
	}
	return out.String()
}

func (a *app) serviceUninstallCommand() *cobra.Command {
	var flags serviceFlags
	c := a.withJSON(&cobra.Command{
		Use:   "uninstall",
		Short: "Stop the gateway and remove the unit",
		Long:  `Stops the gateway and removes its unit. Config, state and backups stay.`,
		Example: `  gateway service uninstall
  sudo gateway service uninstall --system`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, s, err := flags.choose(a)
			if err != nil {
				return err
			}
			path := m.path(s)
			out := serviceOut{Unit: path, Commands: plain(m.stop(s)), DryRun: flags.dryRun}
			if flags.dryRun {
				return a.printService(out, "Would run:\n\n%s\nWould remove %s\n", commandLines(out.Commands), clean(path))
			}
			if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
				return failed("look for it with --system, or without", "there is no unit at %s", path)
			}
			if err := runAll(cmd.Context(), m.stop(s)); err != nil {
				return failed("", "the service does not stop: %w", err)
			}
			if err := os.Remove(path); err != nil {
				return failed(privileges(s, err), "the unit can't be removed: %w", err)
			}
			if r, ok := m.(interface{ reload(service) [][]string }); ok {
				if err := runAll(cmd.Context(), r.reload(s)); err != nil {
					return err
				}
			}
			return a.printService(out, "The gateway is stopped, and %s is removed. Config, state and backups stay.\n", clean(path))
		},
	})
	flags.add(c, true)
	return c
}

func (a *app) serviceRestartCommand() *cobra.Command {
	var flags serviceFlags
	c := a.withJSON(&cobra.Command{
		Use:   "restart",
		Short: "Restart the gateway, which then runs the program that is there now",
		Long:  `Calls that run get 10 seconds to finish. Commands that clients have started go on.`,
		Example: `  gateway service restart
  sudo gateway service restart --system`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, s, err := flags.choose(a)
			if err != nil {
				return err
			}
			out := serviceOut{Unit: m.path(s), Commands: plain(m.restart(s)), DryRun: flags.dryRun}
			if flags.dryRun {
				return a.printService(out, "Would run:\n\n%s", commandLines(out.Commands))
			}
			if err := runAll(cmd.Context(), m.restart(s)); err != nil {
				return failed("its log says more: gateway service logs"+systemFlag(s), "the service does not restart: %w", err)
			}
			return a.printService(out, "Restarted.\n")
		},
	})
	flags.add(c, true)
	return c
}

func (a *app) serviceStatusCommand() *cobra.Command {
	var flags serviceFlags
	c := a.withJSON(&cobra.Command{
		Use:   "status",
		Short: "Say what the service manager knows of the gateway",
		Long: `Says whether the service is installed and runs, and how it ended if it does not. What the
gateway itself does is in "gateway status". Exit code 1 when it does not run.`,
		Example: `  gateway service status
  gateway service status --system --json`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, s, err := flags.choose(a)
			if err != nil {
				return err
			}
			lines := [][2]string{{"Unit", m.path(s)}}
			running := false
			if _, err := os.Lstat(m.path(s)); errors.Is(err, fs.ErrNotExist) {
				lines = append(lines, [2]string{"Service", "not installed"})
			} else {
				more, up, err := m.state(cmd.Context(), s, run)
				if err != nil {
					return err
				}
				lines, running = append(lines, more...), up
			}
			if err := a.printServiceState(lines, running); err != nil || running {
				return err
			}
			return failed("gateway service logs"+systemFlag(s)+" says why it ended; gateway service install"+systemFlag(s)+" starts it", "the service does not run")
		},
	})
	flags.add(c, false)
	return c
}

func (a *app) printServiceState(lines [][2]string, running bool) error {
	if a.json {
		out := map[string]any{"running": running}
		for _, l := range lines {
			out[strings.ToLower(l[0])] = l[1]
		}
		return a.printJSON(a.Stdout, out)
	}
	for _, l := range lines {
		if _, err := fmt.Fprintf(a.Stdout, "%-9s %s\n", l[0], clean(l[1])); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) serviceLogsCommand() *cobra.Command {
	var flags serviceFlags
	var lines int
	var follow bool
	c := &cobra.Command{
		Use:   "logs",
		Short: "Show the gateway's log",
		Example: `  gateway service logs
  gateway service logs --lines 500 --follow`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, s, err := flags.choose(a)
			if err != nil {
				return err
			}
			if lines < 1 {
				return usage("--lines must be 1 or more")
			}
			if c, _, err := a.load(); err == nil {
				s.log = filepath.Join(c.StateDir, "gateway.log")
			}
			return a.show(cmd.Context(), m.logs(s, lines, follow))
		},
	}
	flags.add(c, false)
	c.Flags().IntVar(&lines, "lines", 100, "show the last `n` lines")
	c.Flags().BoolVar(&follow, "follow", false, "go on with what is written from now on")
	return c
}

// show runs a program whose output is the owner's.
func (a *app) show(ctx context.Context, argv []string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = a.Stdout, a.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	err := cmd.Run()
	if errors.Is(err, exec.ErrNotFound) {
		return failed("look where your service manager keeps it", "there is no %s on this system", argv[0])
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}
