package gateway

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"agentrelay/internal/config"
	"agentrelay/internal/devices"
	"agentrelay/internal/gateway"
	"agentrelay/internal/shellquote"
)

func (a *app) relayCommand() *cobra.Command {
	var listen, stateDir string
	var onStdio bool
	c := &cobra.Command{
		Use:   "relay --stdio --listen <address>",
		Short: "Serve devices alone to a harness that starts this command",
		Long: `Speaks MCP on standard input and output, with the three device tools, and takes devices at an
address of its own. It needs no config and no running gateway, has a state directory of its
own, and ends when the harness closes its input. The pairing code is printed to standard
error on the first start; later:  gateway devices pair --relay <state directory>

There is no login and no encryption: let it listen on loopback or on a network you trust. To
serve clients over HTTP run the gateway itself (gateway serve), which asks them to log in.`,
		Example: `  gateway relay --stdio --listen 127.0.0.1:7777
  gateway relay --stdio --listen 100.64.0.1:7777 --state-dir ~/.local/state/my-relay`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case listen == "":
				return usage("--listen is missing: devices dial in there")
			case !onStdio:
				return &exitError{code: ExitUsage, err: errors.New("--stdio is missing"), hint: `MCP over HTTP is what "gateway serve" does: there clients have to log in`}
			}
			return a.relay(cmd, listen, stateDir)
		},
	}
	c.Flags().BoolVar(&onStdio, "stdio", false, "speak MCP on standard input and output")
	c.Flags().StringVar(&listen, "listen", "", "the `address` at which devices dial in, as 127.0.0.1:7777")
	c.Flags().StringVar(&stateDir, "state-dir", "", "its own state `directory` (default ~/.local/state/agent-relay/relay)")
	return c
}

func (a *app) relay(cmd *cobra.Command, listen, dir string) error {
	if dir == "" {
		base, err := config.DefaultStateDir(a.Getenv)
		if err != nil {
			return badConfig("", "%w", err)
		}
		dir = filepath.Join(base, "relay")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(cmd.Context(), "tcp", listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		return failed("if it is another relay, end that one; else choose another port", "%s is in use", listen)
	}
	if err != nil {
		return usage("--listen %s can't be used: %s", listen, err)
	}
	return gateway.Relay(cmd.Context(), gateway.RelayOptions{
		StateDir: dir, Listener: l, In: readCloser{a.Stdin}, Out: writeCloser{a.Stdout},
		Ready: func(url string, code *devices.Code) {
			if code != nil {
				fmt.Fprintf(a.Stderr, "Pairing code %s: run on the device\n  device pair %s %s --device <name>\n", code.Code, shellquote.Word(url), code.Code)
			}
		},
		Now: a.Now, Rand: a.Rand, Log: slog.New(slog.NewTextHandler(a.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})), Version: thisBuild().Version,
	})
}

// readCloser and writeCloser are standard input and output, which a process closes
// by its end. Input that can be closed is, so that nobody goes on reading it.
type readCloser struct{ io.Reader }

func (r readCloser) Close() error {
	if c, ok := r.Reader.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

type writeCloser struct{ io.Writer }

func (writeCloser) Close() error { return nil }
