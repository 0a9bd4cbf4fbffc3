// Command device lends this machine's tools to a relay that it dials, and asks its
// human first.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"agentrelay/internal/cli/device"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first signal a second one has its usual effect: it ends us at once.
	context.AfterFunc(ctx, stop)
	os.Exit(device.Run(ctx, device.OSEnv()))
}
