package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"agentrelay/internal/config"
	"agentrelay/internal/gateway"
	"agentrelay/internal/oauth/owner"
	"agentrelay/internal/store"
)

func (a *app) serveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Run the gateway; the first time, set it up before",
		Long: `Serves clients until it gets SIGINT or SIGTERM, then finishes what is under way and
ends with exit code 0; a second signal ends it at once. When it is ready it prints one
line with its URL on standard output. Its log goes to standard error.

Without a config at the default place it does "gateway init" with the defaults first.

Exit codes: 1 when it can't start now (the port or the state directory is in use), 78
when it can't start before you change something: the config, the mode of a file, a
database of a newer version. A service manager should not restart it after 78.`,
		Example: `  gateway serve
  gateway serve --config ./config.json`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.serve(cmd.Context()) },
	}
}

func (a *app) serve(ctx context.Context) error {
	gateway.TuneMemory(a.Getenv)
	path, named, err := a.path()
	if err != nil {
		return err
	}
	if !named {
		if err := a.firstRun(path); err != nil {
			return err
		}
	}
	c, warnings, err := a.load()
	if err != nil {
		return err
	}
	if err := a.checkFiles(c); err != nil {
		return err
	}
	log := a.logger(c.Log)
	for _, w := range warnings {
		if w.Key == "safedial.allowLoopback" {
			continue // the gateway itself says that this is on
		}
		log.Warn("config: "+w.Text, slog.String("key", w.Key), slog.Int("line", w.Line))
	}
	g, err := gateway.New(ctx, gateway.Options{Config: c, Now: a.Now, Rand: a.Rand, Log: log, Version: thisBuild().Version})
	if err != nil {
		return startError(err, c)
	}
	manager := newNotifier(a.Getenv)
	var watching sync.WaitGroup
	defer watching.Wait()
	running, stopped := context.WithCancel(ctx)
	defer stopped()
	return startError(g.Run(ctx, func(url string) {
		fmt.Fprintf(a.Stdout, "Agent Relay is ready at %s\n", url)
		manager.say("READY=1\nSTATUS=ready at " + url)
		watching.Go(func() {
			manager.watch(running, g.Works)
			<-running.Done()
			manager.say("STOPPING=1")
		})
	}), c)
}

// firstRun does init when there is no config at the default place. What it
// prints goes to a person: to standard output when that is a terminal, for else
// a program waits there for the ready line.
func (a *app) firstRun(path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	setup, err := a.beginSetup(path, initFlags{port: config.DefaultPort})
	if err != nil {
		return err
	}
	w := a.Stderr
	if a.StdoutTerminal {
		w = a.Stdout
	}
	err = a.printSetup(w, setup.made, false)
	if err == nil {
		_, err = io.WriteString(w, "\n")
	}
	return setup.finish(err)
}

// checkFiles finds what stays wrong until the owner changes it, before anything
// is opened.
func (a *app) checkFiles(c *config.Config) error {
	reset := `run "gateway owner reset-password` + a.configFlag() + `"`
	if err := checkPrivate(c.StateDir, ExitConfig); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, err := owner.LoadPassword(c.OwnerTokenFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return badConfig(reset+" to make one", "there is no owner password: %s is missing", c.OwnerTokenFile)
	case err != nil:
		return badConfig("", "%w", err)
	}
	if info, err := os.Stat(filepath.Join(c.StateDir, pendingName)); err == nil && info.Size() > 0 {
		return badConfig(reset+" to get a password, then start again", "the set-up did not get to its end, so its owner password was never shown")
	}
	return nil
}

// startError adds the next step to what keeps a gateway from running.
func startError(err error, c *config.Config) error {
	var locked *store.LockedError
	switch {
	case errors.As(err, &locked):
		return locked // it says all there is to say
	case errors.Is(err, syscall.EADDRINUSE):
		return failed(fmt.Sprintf("if it is another gateway, stop that one; else choose another port in the config (lsof -i :%d shows who has it)", c.Port), "port %d is in use", c.Port)
	case errors.Is(err, syscall.EACCES) && c.Port < 1024:
		return failed("choose a port from 1024 in the config; your HTTPS proxy listens on 443", "port %d may only be opened by the system's administrator", c.Port)
	}
	return err
}

// logger writes to standard error: text for a person, else JSON.
func (a *app) logger(c config.Log) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Level)) // the config has checked it
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, attr slog.Attr) slog.Attr {
		if len(groups) == 0 && attr.Key == slog.TimeKey {
			attr.Value = slog.StringValue(attr.Value.Time().UTC().Format("2006-01-02T15:04:05.000Z"))
		}
		return attr
	}}
	if c.Format == "text" || c.Format == "" && a.StderrTerminal {
		return slog.New(slog.NewTextHandler(a.Stderr, o))
	}
	return slog.New(slog.NewJSONHandler(a.Stderr, o))
}
