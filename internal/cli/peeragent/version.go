package peeragent

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"agentrelay/internal/hosts/worker/wire"
)

// versionCommand says which version this is, and with --digest which file.
func versionCommand(env Env) *cobra.Command {
	digest := false
	c := &cobra.Command{
		Use:   "version",
		Short: "Say which version this is",
		Example: `  peer-agent version
  peer-agent version --digest    the SHA-256 of this program's file`,
		Args: exact(),
		RunE: func(*cobra.Command, []string) error {
			if !digest {
				_, err := fmt.Fprintf(env.Stdout, "Agent Relay peer-agent %s, protocol %d, %s/%s\n", wire.ProgramVersion(), wire.Protocol, runtime.GOOS, runtime.GOARCH)
				return err
			}
			sum, err := digestOfSelf(env)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(env.Stdout, sum)
			return err
		},
	}
	c.Flags().BoolVar(&digest, "digest", false, "print the SHA-256 of this program's file instead")
	return c
}

func digestOfSelf(env Env) (string, error) {
	path, err := env.Executable()
	if err != nil {
		return "", err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
