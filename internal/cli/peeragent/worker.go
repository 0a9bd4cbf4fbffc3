package peeragent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"agentrelay/internal/direct"
	"agentrelay/internal/hosts/worker/server"
	"agentrelay/internal/hosts/worker/wire"
)

// workerCommand serves the Direct tools of this machine on standard input and
// output.
func workerCommand(env Env) *cobra.Command {
	var policy, stateDir string
	c := &cobra.Command{
		Use:   "worker",
		Short: "Serve this machine's projects over MCP on standard input and output",
		Long: `Serve this machine's projects, their files and commands, over MCP on standard input and
output. A gateway starts it over SSH and sends its settings first. With --policy it serves
any MCP client that starts it, from the settings in that file; docs/worker.md describes it.

It ends when its input ends. Commands go on.`,
		Example: `  peer-agent worker --policy ~/.config/agent-relay/worker.json`,
		Args:    exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o := server.Options{In: env.Stdin, Out: env.Stdout, Log: slog.New(slog.NewTextHandler(env.Stderr, nil))}
			var err error
			if policy == "" {
				if stateDir != "" {
					return usage("--state-dir needs --policy: a gateway names the directory itself")
				}
				err = server.Serve(cmd.Context(), o)
			} else {
				err = serveAlone(cmd, env, o, policy, stateDir)
			}
			switch {
			case errors.Is(err, server.ErrReplaced):
				return &exitError{code: wire.ExitReplaced, err: err}
			case errors.Is(err, wire.ErrNoGateway):
				return failed("a gateway starts it and speaks first; to run it without one, give it its settings with --policy", "%w", err)
			}
			return err
		},
	}
	c.Flags().StringVar(&policy, "policy", "", "settings `file`, for a worker that runs without a gateway")
	c.Flags().StringVar(&stateDir, "state-dir", "", "private `directory` of that worker (default $XDG_STATE_HOME/agent-relay-worker, or ~/.local/state/agent-relay-worker)")
	return c
}

func serveAlone(cmd *cobra.Command, env Env, o server.Options, policy, stateDir string) error {
	settings, err := readSettings(policy)
	if err != nil {
		return err
	}
	if stateDir == "" {
		if stateDir, err = defaultStateDir(env); err != nil {
			return err
		}
	} else if stateDir, err = filepath.Abs(stateDir); err != nil {
		return err
	}
	file, err := filepath.Abs(policy)
	if err != nil {
		return err
	}
	settings.Protected = append(settings.Protected, file)
	return server.ServeAlone(cmd.Context(), o, settings, stateDir)
}

func defaultStateDir(env Env) (string, error) {
	if dir := env.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "agent-relay-worker"), nil
	}
	home := env.Getenv("HOME")
	if home == "" {
		return "", usage("--state-dir is missing, and HOME is not set")
	}
	return filepath.Join(home, ".local", "state", "agent-relay-worker"), nil
}

// maxPolicy bounds the settings file, in bytes.
const maxPolicy = 4 << 20

// readSettings reads the settings of a worker that runs alone.
func readSettings(path string) (wire.Settings, error) {
	f, err := os.Open(path)
	if err != nil {
		return wire.Settings{}, failed("docs/worker.md has an example of the file", "the settings can't be read: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxPolicy+1))
	if err == nil && len(raw) > maxPolicy {
		err = fmt.Errorf("the file has more than %d bytes", maxPolicy)
	}
	settings := wire.Settings{Policy: direct.Policy{HostID: "local"}}
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.DisallowUnknownFields()
		err = d.Decode(&settings)
		if err == nil && d.More() {
			err = errors.New("something follows the object")
		}
	}
	if err == nil {
		err = settings.Check()
	}
	if err != nil {
		return wire.Settings{}, failed("docs/worker.md describes the file", "the settings in %s can't be used: %w", path, err)
	}
	return settings, nil
}
