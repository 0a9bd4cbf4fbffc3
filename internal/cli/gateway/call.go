package gateway

import (
	"context"
	"log/slog"

	"github.com/spf13/cobra"

	"agentrelay/internal/admin"
)

// call runs one of the owner's commands in the running gateway, else here.
func call[In, Out any](a *app, cmd *cobra.Command, c admin.Command[In, Out], in In) (Out, error) {
	var none Out
	conn, err := a.dial(cmd.Context())
	if err != nil {
		return none, err
	}
	defer conn.Close()
	return c.Call(cmd.Context(), conn, in)
}

func (a *app) dial(ctx context.Context) (*admin.Conn, error) {
	c, _, err := a.load()
	if err != nil {
		return nil, err
	}
	return admin.Dial(ctx, c.StateDir, func(ctx context.Context) (*admin.Backend, func() error, error) {
		return admin.Open(ctx, c, a.Now, a.Rand, slog.New(slog.DiscardHandler))
	})
}
