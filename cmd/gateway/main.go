// Command gateway is Agent Relay's gateway and its owner's command line.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"agentrelay/internal/cli/gateway"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first signal a second one has its usual effect: it ends us at once.
	context.AfterFunc(ctx, stop)
	os.Exit(gateway.Run(ctx, gateway.OSEnv()))
}
