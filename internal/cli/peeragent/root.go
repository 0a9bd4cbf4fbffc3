// Package peeragent is the command line of peer-agent: one file a command, and
// [Run], which does what the program does.
//
// It owns the words, flags and exit codes. It promises that a supervisor of a
// command starts without anything that it does not need, that bad usage is told
// apart from failure by the exit code, and that nothing but MCP goes to the
// standard output of a worker. It leaves the work to the packages of workers and
// supervisors, and what agents say to each other to package channel. It knows
// neither the gateway's store nor its authorization, so that it stays small on
// the machines where it runs.
package peeragent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"agentrelay/internal/direct/commands/supervisor"
	"agentrelay/internal/fault"
)

// The exit codes.
const (
	ExitOK     = 0
	ExitFailed = 1 // refused, or it is not known what happened
	ExitUsage  = 2
)

// Env is everything a command takes from its surroundings.
type Env struct {
	Args   []string // without the program's name
	Getenv func(string) string
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Now    func() time.Time

	// StdinTerminal says whether a person types there.
	StdinTerminal bool
	Executable    func() (string, error)
	Rand          io.Reader
}

func (e Env) peer() peerEnv {
	return peerEnv{Getenv: e.Getenv, Stdin: e.Stdin, Stdout: e.Stdout, StdinTerminal: e.StdinTerminal, Executable: e.Executable, Rand: e.Rand}
}

// Main runs the command line of this process and returns its exit code.
func Main() int {
	env := Env{
		Args: os.Args[1:], Getenv: os.Getenv, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Now: time.Now,
		StdinTerminal: term.IsTerminal(int(os.Stdin.Fd())), Executable: os.Executable, Rand: rand.Reader,
	}
	// A supervisor is started for each command, so it goes ahead of the rest.
	if len(env.Args) == 2 && env.Args[0] == "supervise" && !strings.HasPrefix(env.Args[1], "-") {
		return supervisor.Supervise(context.Background(), env.Args[1:], supervisor.Stdio{In: env.Stdin, Out: env.Stdout, Err: env.Stderr})
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// After the first signal a second one has its usual effect: it ends us at once.
	context.AfterFunc(ctx, stop)
	return Run(ctx, env)
}

// Run runs one command line and returns its exit code. The end of ctx is a
// request to stop.
func Run(ctx context.Context, env Env) int {
	root := rootCommand(env)
	root.SetArgs(env.Args)
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return ExitOK
	}
	return report(env, cmd, err)
}

func rootCommand(env Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "peer-agent",
		Short: "Agent Relay on the machines where agents and files are",
		Long: `The worker of a machine, the supervisor of its commands, and the command line with which
agents on it reach their peers.

Exit codes: 0 done, 1 failed or refused, 2 bad usage.`,
		Example: `  peer-agent worker --policy policy.json   serve this machine's projects over MCP on stdio
  peer-agent version                       say which version this is`,
		SilenceErrors: true, SilenceUsage: true,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			var names []string
			for _, c := range cmd.Commands() {
				if c.IsAvailableCommand() {
					names = append(names, c.Name())
				}
			}
			if len(args) == 0 {
				return usage("a command is missing: one of %s", strings.Join(names, ", "))
			}
			return usage("unknown command %q: the commands are %s", args[0], strings.Join(names, ", "))
		},
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%s", err) })
	root.AddCommand(workerCommand(env), bulkCommand(env), superviseCommand(env), versionCommand(env))
	root.AddCommand(peerCommands(env.peer())...)
	return root
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

// exitError is an error with its exit code.
type exitError struct {
	code int
	err  error
	hint string
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// errSaid is an error that was reported already.
var errSaid = errors.New("")

func usage(format string, args ...any) error {
	return &exitError{code: ExitUsage, err: fmt.Errorf(format, args...)}
}

func failed(hint, format string, args ...any) error {
	return &exitError{code: ExitFailed, err: fmt.Errorf(format, args...), hint: hint}
}

// report prints err and returns its exit code. An error without text was
// reported before.
func report(env Env, cmd *cobra.Command, err error) int {
	code, hint, text := ExitFailed, "", err.Error()
	var said exit
	var exit *exitError
	var refusal *fault.Error
	switch {
	case errors.As(err, &said):
		return int(said)
	case errors.As(err, &exit):
		code, hint = exit.code, exit.hint
	case errors.As(err, &refusal):
		text, hint = refusal.Message, refusal.Hint
	}
	if code == ExitUsage && hint == "" {
		hint = fmt.Sprintf("run %q for how to use it", cmd.CommandPath()+" --help")
	}
	if hint != "" {
		text += "\n" + hint
	}
	if text != "" {
		fmt.Fprintln(env.Stderr, "peer-agent: "+text)
	}
	return code
}
