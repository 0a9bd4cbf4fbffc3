package gateway

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"agentrelay/internal/backup"
	"agentrelay/internal/config"
	"agentrelay/internal/store"
)

func (a *app) restoreCommand() *cobra.Command {
	return a.withJSON(&cobra.Command{
		Use:   "restore <backup>",
		Short: "Put a backup back",
		Long: `Puts a backup back into the state directory of the config. It checks the backup first,
refuses while a gateway runs, and keeps the state directory that was there under
another name. A config that is there stays; without one, that of the backup is used,
which is how a gateway moves to another machine.

Everything after the backup is gone: messages, new clients, and what you changed with
gateway clients, also what you denied or revoked. Clients whose tokens were renewed
since then have to connect again.`,
		Example: `  gateway backup list
  gateway restore 20261130T091500.000Z-scheduled
  gateway restore /mnt/usb/relay/20261130T091500.000Z-manual --config /etc/relay.json`,
		Args: exact("the backup"),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := a.backupPath(args[0])
			if err != nil {
				return err
			}
			c, file, err := a.restoreConfig(path)
			if err != nil {
				return err
			}
			out, err := backup.Restore(cmd.Context(), path, backup.Target{StateDir: c.StateDir, OwnerFile: c.OwnerTokenFile, ConfigFile: file, Now: a.Now})
			var locked *store.LockedError
			if errors.As(err, &locked) {
				return failed("stop the gateway first, then try again; nothing was changed", "%w", err)
			}
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, struct {
					backup.Restored
					StateDir   string `json:"stateDir"`
					ConfigPath string `json:"configPath"`
				}{out, c.StateDir, file})
			}
			return a.printRestored(a.Stdout, out, c, file)
		},
	})
}

// restoreConfig is the config that says where to put a backup: that of this run,
// else that of the backup.
func (a *app) restoreConfig(path string) (c *config.Config, file string, err error) {
	if file, _, err = a.path(); err != nil {
		return nil, "", err
	}
	set, err := backup.Open(path)
	if err != nil {
		return nil, "", failed("gateway backup list"+a.configFlag()+" shows the backups", "%w", err)
	}
	raw, own, err := set.Config(file)
	if err != nil {
		return nil, "", badConfig("write a config first: gateway init, with --state-dir for a directory that is not there yet", "%w", err)
	}
	if own {
		c, _, err = a.load()
		return c, file, err
	}
	c, _, err = config.Parse(file, raw, a.Getenv)
	if err != nil {
		return nil, "", &exitError{code: ExitConfig, err: err}
	}
	return c, file, nil
}

func (a *app) printRestored(w io.Writer, out backup.Restored, c *config.Config, file string) error {
	fmt.Fprintf(w, "The state of %s is back in %s.\n", ago(a.Now(), out.Set.CreatedAt), clean(c.StateDir))
	if out.Kept != "" {
		fmt.Fprintf(w, "What was there is kept in %s.\n", clean(out.Kept))
	}
	if out.KeptOwnerFile != "" {
		fmt.Fprintf(w, "The owner's password file that was there is kept as %s.\n", clean(out.KeptOwnerFile))
	}
	if out.ConfigWritten {
		fmt.Fprintf(w, "The config of the backup is now %s: see that its paths are right on this machine.\n", clean(file))
	}
	_, err := fmt.Fprintf(w, `
  - The owner's password is the one of the backup.
  - Clients that renewed their tokens since the backup have to connect again: in the
    client, disconnect and connect, and allow it on the page that opens.
  - Clients that you revoked or restricted since then may again what they might:
    look at "gateway clients list%[1]s".
  - Messages sent since then are gone.

Start the gateway: gateway serve%[1]s
`, a.configFlag())
	return err
}
