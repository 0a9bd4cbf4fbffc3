package device

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"agentrelay/internal/device"
	"agentrelay/internal/device/policy"
	"agentrelay/internal/device/prompt"
	"agentrelay/internal/device/state"
)

// runFlags are what run and daemon have in common, and jail.
type runFlags struct {
	yolo, verbose bool
	allow         []string
	cwd           string
	jail          bool
}

func (f *runFlags) add(c *cobra.Command) {
	c.Flags().BoolVar(&f.yolo, "yolo", false, "run everything without asking")
	c.Flags().StringSliceVar(&f.allow, "allow", nil, "`tools` that run without asking, separated by commas")
	c.Flags().StringVar(&f.cwd, "cwd", "", "`directory` where plugins run (default this one)")
	c.Flags().BoolVar(&f.verbose, "verbose", false, "log more")
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	noJail := false
	c := &cobra.Command{
		Use:   "run",
		Short: "Connect, and ask at this terminal before anything runs",
		Long: `Connects to the relay, comes back after every loss, and asks before a tool runs: y or Enter is yes,
n is no, a is yes from now on (kept in policy.json). No answer in 90 s is a no. Without a terminal it
is like daemon.

Plugins are told to stay in the directory where this was started, or in --cwd, unless --no-jail is
given. That is a check that file tools make, not a sandbox.`,
		Example: `  device run
  device run --allow read-file,job-poll --cwd ~/project`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.jail = !noJail
			keys, isTerminal := terminal(a.Stdin)
			screen, isSeen := terminal(a.Stdout)
			if !isSeen {
				screen, isSeen = terminal(a.Stderr)
			}
			if !isTerminal || !isSeen {
				return a.serve(cmd.Context(), f, device.Headless{}, a.Stderr)
			}
			t := prompt.NewTerminal(keys, screen)
			return a.serve(cmd.Context(), f, t, t)
		},
	}
	f.add(c)
	c.Flags().BoolVar(&noJail, "no-jail", false, "let file tools leave the directory")
	return c
}

// terminal is a stream that a person sits at, if it is one.
func terminal(stream any) (*os.File, bool) {
	f, ok := stream.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd()))
}

func (a *app) daemonCommand() *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "daemon",
		Short: "Connect without a terminal: only what is allowed for good runs",
		Long: `Connects like run, but nobody is asked: what neither policy.json nor --allow nor --yolo allows is
denied. It is meant for systemd and launchd; packaging/ has the units. Plugins get no jail.`,
		Example: `  device daemon
  device daemon --allow read-file --cwd ~/project`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.serve(cmd.Context(), f, device.Headless{}, a.Stderr)
		},
	}
	f.add(c)
	return c
}

// serve is what run and daemon share.
func (a *app) serve(ctx context.Context, f runFlags, sink device.Sink, logTo io.Writer) error {
	allow, err := policy.Names(f.allow)
	if err != nil {
		return usage("%s", err)
	}
	cwd, err := directory(f.cwd)
	if err != nil {
		return usage("--cwd: %s", err)
	}
	s, err := a.state()
	if err != nil {
		return err
	}
	id, err := s.Identity()
	if err != nil {
		return &exitError{code: ExitConfig, err: err, hint: `pair it with "device pair URL CODE --device NAME"; "gateway devices pair" makes a code`}
	}
	lock, err := s.Lock()
	if err != nil {
		return err
	}
	defer lock.Release()
	journal, err := s.Journal(a.Now)
	if err != nil {
		return err
	}
	defer journal.Close()
	level := slog.LevelInfo
	if f.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(logTo, &slog.HandlerOptions{Level: level}))
	o := device.Options{Identity: id, Journal: journal, Sink: sink, Yolo: f.yolo, Allow: allow, Log: log, Now: a.Now, Dial: a.Dial}
	if f.jail {
		o.Jail = &cwd
	}
	if o.Root, err = a.pluginsIn(s, id.Device, cwd); err != nil {
		return err
	}
	o.Root.Log = log
	if o.Policy, err = a.policy(); err != nil {
		return err
	}
	return a.live(ctx, s, o)
}

// live runs a device, answers status, and reloads plugins on SIGHUP.
func (a *app) live(ctx context.Context, s state.Dir, o device.Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	d := device.New(o)
	stop, err := serveStatus(s, d)
	if err != nil {
		o.Log.Warn("\"device status\" can't ask this process", "error", err)
	} else {
		defer stop()
	}
	d.Load(ctx)
	if t, ok := o.Sink.(*prompt.Terminal); ok {
		_, _ = io.WriteString(t, greeting(d.Status(), o))
	}
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	for {
		select {
		case err := <-ended:
			return err
		case <-hangup:
			if t, ok := o.Sink.(*prompt.Terminal); ok && t.Gone() {
				cancel() // the same signal says that the window was closed: nobody can be asked
			} else if ctx.Err() == nil {
				d.Load(ctx)
			}
		}
	}
}

func greeting(st device.Status, o device.Options) string {
	asks := "Each call is asked here, unless it is allowed for good."
	if o.Yolo {
		asks = "Everything runs without asking (--yolo)."
	}
	jail := "File tools may go anywhere."
	if o.Jail != nil {
		jail = "File tools stay in " + *o.Jail + "."
	}
	tools := strings.Join(st.Tools, ", ")
	if tools == "" {
		tools = `none: "device plugins install" has some`
	}
	return fmt.Sprintf("Device %s, relay %s\nTools: %s\n%s %s Ctrl-C ends it.\n", st.Device, st.Relay, tools, asks, jail)
}

// directory is an absolute directory without links.
func directory(path string) (string, error) {
	if path == "" {
		path = "."
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is no directory", path)
	}
	return path, err
}
