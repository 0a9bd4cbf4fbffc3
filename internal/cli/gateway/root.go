// Package gateway is the command line of the gateway: one file a command, and
// [Run], which does what the program does.
//
// It owns the words the owner reads, the flags, the exit codes and the two
// forms of output (tables for people, JSON for programs with --json). It
// promises that bad usage and a bad config are told apart from failure by the
// exit code, that every error says what to do next, that a secret is printed
// only where it was asked for, and that text from clients can't control the
// terminal. It leaves the work to internal/gateway, internal/admin and
// internal/config.
package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"agentrelay/internal/config"
	"agentrelay/internal/fault"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/sealing"
	"agentrelay/internal/store"
)

// The exit codes. They are a contract: service managers must not restart a
// gateway that ended with ExitConfig, for it would end the same way again.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2
	// ExitConfig is a bad config, and every other thing that stays wrong until
	// the owner changes something on disk: a state directory that others can
	// read or that lies on a network file system, a database of a newer version,
	// an owner's password file or a key file that is missing or unreadable.
	ExitConfig = 78
)

// Env is everything a command takes from its surroundings.
type Env struct {
	Args   []string // without the program's name
	Getenv func(string) string
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// StdoutTerminal and StderrTerminal say whether a person reads there.
	StdoutTerminal bool
	StderrTerminal bool
	Now            func() time.Time
	Rand           io.Reader
}

// OSEnv is the environment of this process.
func OSEnv() Env {
	return Env{
		Args: os.Args[1:], Getenv: os.Getenv,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		StdoutTerminal: term.IsTerminal(int(os.Stdout.Fd())),
		StderrTerminal: term.IsTerminal(int(os.Stderr.Fd())),
		Now:            time.Now, Rand: rand.Reader,
	}
}

// Run runs one command line and returns its exit code. The end of ctx is a
// request to stop.
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
	if code == ExitConfig && env.Getenv(serviceEnv) == launchd && cmd.Name() == "serve" {
		return ExitOK // launchd would start it again and again
	}
	return code
}

// app is one run of the program.
type app struct {
	Env
	configPath string // of --config, else empty
	json       bool   // of --json
}

func (a *app) root() *cobra.Command {
	root := a.group("gateway", "Run and look after your Agent Relay gateway",
		`One OAuth-protected MCP endpoint for your own AI clients, which find each other, exchange
messages and work in your projects through it.

The config lies at $XDG_CONFIG_HOME/agent-relay/config.json, else at
~/.config/agent-relay/config.json. Exit codes: 0 done, 1 failed, 2 bad usage or a failed
check of the doctor, 78 bad config or another thing that stays wrong until you change it.`,
		`  gateway serve              set up on the first run, then serve
  gateway status             what the running gateway is doing
  gateway clients list       which clients may use it`,
		a.initCommand(),
		a.serveCommand(),
		a.demoCommand(),
		a.statusCommand(),
		a.doctorCommand(),
		a.clientsCommand(),
		a.peersCommand(),
		a.agentsCommand(),
		a.hostsCommand(),
		a.devicesCommand(),
		a.relayCommand(),
		a.messagesCommand(),
		a.eventsCommand(),
		a.commandsCommand(),
		a.transfersCommand(),
		a.backupCommand(),
		a.restoreCommand(),
		a.migrateCommand(),
		a.configCommand(),
		a.ownerCommand(),
		a.serviceCommand(),
		a.supportBundleCommand(),
		a.superviseCommand(),
		a.versionCommand(),
	)
	root.PersistentFlags().StringVar(&a.configPath, "config", "", "config `file` (default ~/.config/agent-relay/config.json)")
	// A command that only holds others is runnable just to explain that.
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), "{{if .Runnable}}", "{{if and .Runnable (not .HasAvailableSubCommands)}}", 1))
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%s", err) })
	return root
}

// group is a command that only holds others.
func (a *app) group(use, short, long, example string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short, Long: long, Example: example,
		SuggestionsMinimumDistance: 2,
		// The flags of a command that does not exist can't be known either.
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		Args:               cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("a command is missing: one of %s", strings.Join(names(cmd), ", "))
			}
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				return usage("unknown command %q: did you mean %q?", args[0], cmd.CommandPath()+" "+near[0])
			}
			return usage("unknown command %q: the commands are %s", args[0], strings.Join(names(cmd), ", "))
		},
	}
	c.AddCommand(commands...)
	return c
}

func names(cmd *cobra.Command) []string {
	var out []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			out = append(out, c.Name())
		}
	}
	return out
}

// withJSON adds --json to a command.
func (a *app) withJSON(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVar(&a.json, "json", false, "print JSON, for programs")
	return c
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

func failed(hint, format string, args ...any) error {
	return &exitError{code: ExitFailed, err: fmt.Errorf(format, args...), hint: hint}
}

func badConfig(hint, format string, args ...any) error {
	return &exitError{code: ExitConfig, err: fmt.Errorf(format, args...), hint: hint}
}

// report prints err and returns its exit code.
func (a *app) report(cmd *cobra.Command, err error) int {
	code, hint, name := ExitFailed, "", ""
	var exit *exitError
	var refusal *fault.Error
	switch {
	case errors.As(err, &exit):
		code, hint = exit.code, exit.hint
	case errors.As(err, &refusal):
		hint, name = refusal.Hint, refusal.Code
		for _, kind := range []fault.Kind{fault.InvalidArguments, mailbox.InvalidCursor} {
			if errors.Is(err, kind) { // of the flags
				code = ExitUsage
			}
			if hint == kind.Hint { // that one speaks of tools
				hint = ""
			}
		}
	default:
		code = permanence(err)
		if store.IsTrouble(err) {
			hint = "see that the disk of the state directory has free space and can be written, then try again; a damaged database has to come back from a backup"
		}
	}
	if code == ExitUsage && hint == "" {
		hint = fmt.Sprintf("run %q for how to use it", cmd.CommandPath()+" --help")
	}
	text := clean(message(err))
	if a.json {
		a.printJSON(a.Stderr, map[string]any{"error": object("code", name, "message", text, "hint", hint)})
		return code
	}
	if hint != "" {
		text += "\n" + hint
	}
	fmt.Fprintln(a.Stderr, "gateway: "+text)
	return code
}

// object is a JSON object without its empty members.
func object(pairs ...string) map[string]string {
	out := map[string]string{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			out[pairs[i]] = pairs[i+1]
		}
	}
	return out
}

// message is what a person reads of an error: of a refusal the message alone.
func message(err error) string {
	var refusal *fault.Error
	if errors.As(err, &refusal) && !errors.Is(refusal, fault.Internal) {
		return refusal.Message
	}
	return err.Error()
}

// permanence tells errors that stay until something on disk is changed from
// those that may pass.
func permanence(err error) int {
	var invalid *config.InvalidError
	var schema *store.SchemaError
	var network *store.NetworkFSError
	var missing *sealing.MissingError
	var damaged *sealing.DamagedError
	if errors.As(err, &invalid) || errors.As(err, &schema) || errors.As(err, &network) || errors.As(err, &missing) || errors.As(err, &damaged) {
		return ExitConfig
	}
	return ExitFailed
}

// path is the config file of this run, and whether the owner named it.
func (a *app) path() (path string, named bool, err error) {
	if a.configPath != "" {
		return a.configPath, true, nil
	}
	path, err = config.DefaultPath(a.Getenv)
	if err != nil {
		return "", false, badConfig("", "%w", err)
	}
	return path, false, nil
}

// load reads the config of this run.
func (a *app) load() (*config.Config, []config.Remark, error) {
	path, _, err := a.path()
	if err != nil {
		return nil, nil, err
	}
	c, warnings, err := config.Load(path, a.Getenv)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, badConfig(`run "gateway init" to make one, or name yours with --config`, "there is no config at %s", path)
	}
	if err != nil {
		return nil, nil, &exitError{code: ExitConfig, err: err}
	}
	return c, warnings, nil
}

// printJSON writes one JSON value, indented.
func (a *app) printJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}
