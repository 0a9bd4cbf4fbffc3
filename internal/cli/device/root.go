// Package device is the command line of the device program: one file a command, and
// [Run], which does what the program does.
//
// It owns the words, flags, exit codes and the places of files. It promises that bad
// usage is told apart from failure by the exit code, that a service manager can tell
// what stays wrong until somebody acts (78), and that no command shows a token or a
// pairing code. It leaves the link, the calls, plugins and approval to
// internal/device.
package device

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentrelay/internal/device"
	"agentrelay/internal/device/plugins"
	"agentrelay/internal/device/policy"
	"agentrelay/internal/device/state"
)

// The exit codes.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2
	ExitConfig = 78 // EX_CONFIG of <sysexits.h>: it stays wrong until somebody acts
)

// Env is everything a command takes from its surroundings.
type Env struct {
	Args   []string // without the program's name
	Getenv func(string) string
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Now    func() time.Time
	Dial   device.Dialer
}

// OSEnv is the environment of this process.
func OSEnv() Env {
	return Env{Args: os.Args[1:], Getenv: os.Getenv, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Now: time.Now}
}

// app is one run of the program.
type app struct {
	Env
	stateDir string // of --state-dir, else empty
	json     bool   // of --json
}

// Run runs one command line and returns its exit code. The end of ctx is a request
// to stop.
func Run(ctx context.Context, env Env) int {
	a := &app{Env: env}
	root := a.root()
	root.SetArgs(env.Args)
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return ExitOK
	}
	code := a.report(cmd, err)
	if code == ExitConfig && env.Getenv("AGENT_RELAY_SERVICE") == "launchd" && cmd.Name() == "daemon" {
		return ExitOK // launchd would start it again and again
	}
	return code
}

func (a *app) root() *cobra.Command {
	root := a.group("device", "Lend this machine's tools to your own AI clients, and say yes or no to each call",
		`This machine dials out to your gateway, so nothing has to reach it. Tools are plugins in a
directory; whatever isn't allowed for good is asked here first.

State lies in $XDG_DATA_HOME/agent-relay-device (~/.local/share/agent-relay-device), plugins and
policy.json in $XDG_CONFIG_HOME/agent-relay-device (~/.config/agent-relay-device). $SPOOKY_PLUGIN_ROOT
and $SPOOKY_POLICY name others. Exit codes: 0 done, 1 failed, 2 bad usage, 78 not paired, refused by
the relay, or another thing that stays wrong until you act.`,
		`  device pair wss://relay.example CODE --device laptop   with a code of "gateway devices pair"
  device plugins install run read-file                   take some of the tools that come along
  device run                                             connect, and answer in this terminal
  device status                                          how it is`,
		a.pairCommand(), a.runCommand(), a.daemonCommand(), a.pluginsCommand(), a.statusCommand(), a.unpairCommand(), a.policyCommand(), a.versionCommand())
	root.PersistentFlags().StringVar(&a.stateDir, "state-dir", "", "state `directory` instead of the usual one, for a second device on one machine")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%s", err) })
	return root
}

// group is a command that only holds others.
func (a *app) group(name, short, long, example string, commands ...*cobra.Command) *cobra.Command {
	var names []string
	for _, c := range commands {
		names = append(names, c.Name())
	}
	g := &cobra.Command{
		Use: name, Short: short, Long: long, Example: example, Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("a command is missing: one of %s", strings.Join(names, ", "))
			}
			return usage("unknown command %q: the commands are %s", args[0], strings.Join(names, ", "))
		},
	}
	g.AddCommand(commands...)
	return g
}

// exact is cobra.ExactArgs with errors that name what is missing.
func exact(what ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < len(what) {
			return usage("%s is missing", what[len(args)])
		}
		if len(args) > len(what) {
			return usage("unexpected argument %q", args[len(what)])
		}
		return nil
	}
}

// exitError is an error with its exit code and the next step.
type exitError struct {
	code int
	err  error
	hint string
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func usage(format string, args ...any) error {
	return &exitError{code: ExitUsage, err: fmt.Errorf(format, args...)}
}

func failed(code int, hint, format string, args ...any) error {
	return &exitError{code: code, err: fmt.Errorf(format, args...), hint: hint}
}

// report prints err and returns its exit code.
func (a *app) report(cmd *cobra.Command, err error) int {
	code, hint := ExitFailed, ""
	var exit *exitError
	var runs *state.ErrRuns
	switch {
	case errors.As(err, &exit):
		code, hint = exit.code, exit.hint
	case errors.Is(err, state.ErrNotPaired):
		code, hint = ExitConfig, `pair it with "device pair URL CODE --device NAME"; "gateway devices pair" makes a code`
	case errors.Is(err, device.ErrRefused):
		code, hint = ExitConfig, `if it was revoked, pair it again with "device pair --replace" and a code of "gateway devices pair"`
	case errors.As(err, &runs):
		hint = `"device status" says how it is`
	}
	if code == ExitUsage && hint == "" {
		hint = fmt.Sprintf("run %q for how to use it", cmd.CommandPath()+" --help")
	}
	text := err.Error()
	if hint != "" {
		text += "\n" + hint
	}
	fmt.Fprintln(a.Stderr, "device: "+text)
	return code
}

func (a *app) home() (string, error) {
	if home := a.Getenv("HOME"); filepath.IsAbs(home) {
		return home, nil
	}
	return "", failed(ExitConfig, "set it to your home directory", "HOME is not set")
}

// place is a directory of ours in one that XDG names, or in its usual place.
func (a *app) place(variable, usual string) (string, error) {
	if dir := a.Getenv(variable); filepath.IsAbs(dir) {
		return filepath.Join(dir, "agent-relay-device"), nil
	}
	home, err := a.home()
	return filepath.Join(home, usual, "agent-relay-device"), err
}

func (a *app) state() (state.Dir, error) {
	path := a.stateDir
	if path == "" {
		var err error
		if path, err = a.place("XDG_DATA_HOME", ".local/share"); err != nil {
			return state.Dir{}, err
		}
	}
	return state.Open(path)
}

func (a *app) pluginRoot() (string, error) {
	if dir := a.Getenv("SPOOKY_PLUGIN_ROOT"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := a.place("XDG_CONFIG_HOME", ".config")
	return filepath.Join(dir, "plugins"), err
}

func (a *app) policy() (policy.File, error) {
	if path := a.Getenv("SPOOKY_POLICY"); path != "" {
		path, err := filepath.Abs(path)
		return policy.File{Path: path}, err
	}
	dir, err := a.place("XDG_CONFIG_HOME", ".config")
	return policy.File{Path: filepath.Join(dir, "policy.json")}, err
}

// pluginsIn is the plugin root of a device.
func (a *app) pluginsIn(s state.Dir, name, cwd string) (plugins.Root, error) {
	dir, err := a.pluginRoot()
	return plugins.Root{Dir: dir, Spill: s.Spill(), State: s.Path(), Cwd: cwd, Device: name, Getenv: a.Getenv}, err
}

func (a *app) withJSON(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVar(&a.json, "json", false, "print JSON")
	return c
}

func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.Stdout)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
