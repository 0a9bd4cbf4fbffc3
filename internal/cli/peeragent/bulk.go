package peeragent

import (
	"io"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"

	"agentrelay/internal/hosts/worker/wire"
)

// bulkCommand gives standard input and output to a worker, for a gateway to send
// and receive whole files beside the worker's MCP. The worker does all the work,
// so that its locks hold.
func bulkCommand(env Env) *cobra.Command {
	return &cobra.Command{
		Use:     "bulk socket",
		Short:   "Give standard input and output to a worker (a gateway starts this itself)",
		Example: `  peer-agent bulk ~/.local/state/agent-relay/worker/s`,
		Hidden:  true,
		Args:    exact("the socket of a worker"),
		RunE:    func(_ *cobra.Command, args []string) error { return giveFiles(env, args[0]) },
	}
}

const dialTimeout = 10 * time.Second

// giveFiles returns when the worker is done with them.
func giveFiles(env Env, socket string) error {
	in, isFile := env.Stdin.(*os.File)
	out, areFiles := env.Stdout.(*os.File)
	if !isFile || !areFiles {
		return failed("", "standard input and output are no files")
	}
	const again = "the worker has ended: the gateway starts another one"
	conn, err := net.DialTimeout("unix", socket, dialTimeout)
	if err != nil {
		return failed(again, "the worker's socket can't be reached: %w", err)
	}
	defer conn.Close()
	if err := wire.SendFiles(conn.(*net.UnixConn), in, out); err != nil {
		return failed(again, "the worker does not take the channel: %w", err)
	}
	_, err = io.Copy(io.Discard, conn)
	return err
}
