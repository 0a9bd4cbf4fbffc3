package gateway

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"agentrelay/internal/admin"
)

func (a *app) ownerCommand() *cobra.Command {
	return a.group("owner", "Look after the owner's password", "", `  gateway owner reset-password`, a.resetPasswordCommand())
}

func (a *app) resetPasswordCommand() *cobra.Command {
	return a.withJSON(&cobra.Command{
		Use:   "reset-password",
		Short: "Make a new owner password",
		Long: `Makes a new owner password and prints it once. The old one no longer holds, at once
and in a running gateway too, and browsers that remembered you ask again. Clients
that are connected stay connected.

Without a terminal on standard output, and without --json, the password goes to a
file of mode 0600 in the state directory, and the file's path is printed.`,
		Example: `  gateway owner reset-password
  gateway owner reset-password --json`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := a.load()
			if err != nil {
				return err
			}
			out, err := call(a, cmd, admin.ResetPassword, admin.None{})
			if err != nil {
				return err
			}
			file, err := a.passwordFile(c.StateDir, out.OwnerPassword)
			if err != nil {
				return err
			}
			if a.json {
				err = a.printJSON(a.Stdout, out)
			} else {
				err = printPassword(a.Stdout, out.OwnerPassword, file)
			}
			if err != nil {
				return fmt.Errorf("the password could not be shown, run the command again: %w", err)
			}
			// A set-up whose password was never shown is settled by one that was.
			if err := os.Remove(filepath.Join(c.StateDir, pendingName)); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		},
	})
}
