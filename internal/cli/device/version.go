package device

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"agentrelay/internal/devices/wire"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Say which version this is",
		Args:  exact(),
		RunE: func(*cobra.Command, []string) error {
			version := "devel"
			if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
				version = info.Main.Version
			}
			_, err := fmt.Fprintf(a.Stdout, "Agent Relay device %s, protocol %d, %s/%s\n", version, wire.Proto, runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
