package gateway

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"agentrelay/internal/admin"
	"agentrelay/internal/backup"
)

func (a *app) backupCommand() *cobra.Command {
	c := a.group("backup", "Copy everything that the gateway can't make again",
		`A backup is a private directory with the database, the key that opens the secrets in
it, the owner's password file, the config, and what the state directory remembers of
agents, hosts and commands. Whoever has one can do what you can: keep it as you keep
the state directory. Files that wait for a download and what commands have printed are
not in it.

A running gateway makes one each day and keeps seven (backup.every and backup.keep of
the config), and one before each upgrade of its database.`,
		`  gateway backup
  gateway backup --to /mnt/usb/relay
  gateway backup list
  gateway backup verify <backup>`,
		a.backupListCommand(), a.backupVerifyCommand())
	a.withJSON(c)
	var to string
	c.Flags().StringVar(&to, "to", "", "`directory` for it (default: backup.dir of the config)")
	only := c.RunE
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return only(cmd, args)
		}
		return a.makeBackup(cmd, to)
	}
	c.FParseErrWhitelist.UnknownFlags = false
	return c
}

func (a *app) makeBackup(cmd *cobra.Command, to string) error {
	if cmd.Flags().Changed("to") {
		if to == "" {
			return usage("--to must name a directory")
		}
		full, err := filepath.Abs(to)
		if err != nil {
			return err
		}
		to = full
	}
	out, err := call(a, cmd, admin.MakeBackup, admin.BackupIn{Dir: to})
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(a.Stdout, out)
	}
	_, err = fmt.Fprintf(a.Stdout, "%s\nIt is checked: %s, schema %d. It holds secrets: let nobody but you read it.\n", clean(out.Path), size(out.Bytes()), out.Schema)
	return err
}

// size is a number of bytes for people.
func size(n int64) string {
	const units = "kMGT"
	if n < 1000 {
		return plural(n, "byte")
	}
	f, i := float64(n)/1000, 0
	for f >= 999.5 && i < len(units)-1 {
		f /= 1000
		i++
	}
	return fmt.Sprintf("%.3g %cB", f, units[i])
}

func (a *app) backupListCommand() *cobra.Command {
	var in string
	c := a.withJSON(&cobra.Command{
		Use:   "list",
		Short: "List the backups, newest first",
		Example: `  gateway backup list
  gateway backup list --in /mnt/usb/relay --json`,
		Args: exact(),
		RunE: func(*cobra.Command, []string) error {
			if in == "" {
				c, _, err := a.load()
				if err != nil {
					return err
				}
				in = c.Backup.Dir
			}
			sets, unreadable, err := backup.List(in)
			if err != nil {
				return err
			}
			if a.json {
				if sets == nil {
					sets = []backup.Set{}
				}
				return a.printJSON(a.Stdout, struct {
					Dir        string       `json:"dir"`
					Backups    []backup.Set `json:"backups"`
					Unreadable int          `json:"unreadable"` // without a readable manifest
				}{in, sets, unreadable})
			}
			return a.printBackups(in, sets, unreadable)
		},
	})
	c.Flags().StringVar(&in, "in", "", "`directory` of the backups (default: backup.dir of the config)")
	return c
}

func (a *app) printBackups(dir string, sets []backup.Set, unreadable int) error {
	if len(sets) == 0 {
		if _, err := fmt.Fprintf(a.Stdout, "There is no backup in %s. Make one with: gateway backup%s\n", clean(dir), a.configFlag()); err != nil {
			return err
		}
	} else {
		rows := make([][]string, len(sets))
		for i, s := range sets {
			rows[i] = []string{s.ID, ago(a.Now(), s.CreatedAt), size(s.Bytes()), fmt.Sprint(s.Schema), s.Version}
		}
		if err := table(a.Stdout, 0, []string{"BACKUP", "MADE", "SIZE", "SCHEMA", "VERSION"}, rows); err != nil {
			return err
		}
	}
	if unreadable > 0 {
		fmt.Fprintf(a.Stderr, "%d more in %s can't be read: gateway backup verify says why\n", unreadable, clean(dir))
	}
	return nil
}

func (a *app) backupVerifyCommand() *cobra.Command {
	return a.withJSON(&cobra.Command{
		Use:   "verify <backup>",
		Short: "Read a whole backup and check it",
		Long: `Compares every file of the backup with what was written, and checks the database in it
from end to end. The backup is named by the path of its directory or of the manifest in
it, or by the name that "gateway backup list" shows.`,
		Example: `  gateway backup verify /mnt/usb/relay/20261130T091500.000Z-manual
  gateway backup verify 20261130T091500.000Z-scheduled`,
		Args: exact("the backup"),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := a.backupPath(args[0])
			if err != nil {
				return err
			}
			set, err := backup.Verify(cmd.Context(), path)
			if err != nil {
				return failed("choose another backup: gateway backup list"+a.configFlag(), "%w", err)
			}
			if a.json {
				return a.printJSON(a.Stdout, set)
			}
			_, err = fmt.Fprintf(a.Stdout, "%s is whole: %s, %s, schema %d, made %s by version %s.\n",
				set.ID, plural(int64(len(set.Files)), "file"), size(set.Bytes()), set.Schema, ago(a.Now(), set.CreatedAt), set.Version)
			return err
		},
	})
}

// backupPath finds a backup that the owner names by its path, or by its name in
// the directory of the config.
func (a *app) backupPath(name string) (string, error) {
	if strings.ContainsRune(name, filepath.Separator) {
		return name, nil
	}
	if _, err := backup.Open(name); err == nil {
		return name, nil
	}
	c, _, err := a.load()
	if err != nil {
		return name, nil // it is a path then, and nothing there
	}
	return filepath.Join(c.Backup.Dir, name), nil
}
