package peeragent

import (
	"io"
	"net"
	"time"

	"github.com/spf13/cobra"
)

// bulkCommand joins standard input and output to the socket of a worker, for a
// gateway to send and receive whole files beside the worker's MCP. The worker
// does all the work, so that its locks hold.
func bulkCommand(env Env) *cobra.Command {
	return &cobra.Command{
		Use:     "bulk socket",
		Short:   "Join standard input and output to a worker's socket (a gateway starts this itself)",
		Example: `  peer-agent bulk ~/.local/state/agent-relay/worker/s`,
		Hidden:  true,
		Args:    exact("the socket of a worker"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return joinSocket(env, args[0])
		},
	}
}

const dialTimeout = 10 * time.Second

// joinSocket returns when the worker has closed its side.
func joinSocket(env Env, socket string) error {
	conn, err := net.DialTimeout("unix", socket, dialTimeout)
	if err != nil {
		return failed("the worker has ended: the gateway starts another one", "the worker's socket can't be reached: %w", err)
	}
	defer conn.Close()
	go func() {
		_, _ = io.Copy(conn, env.Stdin) // the worker learns by the end that it was cut off
		_ = conn.(*net.UnixConn).CloseWrite()
	}()
	_, err = io.Copy(env.Stdout, conn)
	return err
}
