package gateway

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"agentrelay/internal/backup"
	"agentrelay/internal/config"
	"agentrelay/internal/events"
	"agentrelay/internal/hosts/local"
	"agentrelay/internal/migrate"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

func (a *app) migrateCommand() *cobra.Command {
	return a.group("migrate", "Move state: to the shared owner, or from an original gateway",
		`Without --apply a migration is rehearsed: it says what it would do and changes nothing.`,
		`  gateway migrate shared-owner
  gateway migrate shared-owner --apply
  gateway migrate import --from ~/.local/share/local-agents-mcp`,
		a.migrateSharedCommand(), a.migrateImportCommand())
}

// migrateFlags are what the migrations have in common.
type migrateFlags struct {
	stateDir, backupDir string
	apply               bool
}

func (a *app) migrateSharedCommand() *cobra.Command {
	var flags migrateFlags
	var o migrate.SharedOptions
	c := a.withJSON(&cobra.Command{
		Use:   "shared-owner",
		Short: "Make what belongs to single clients everybody's",
		Long: `With sharedOwner false each client has a domain of its own. This moves all of them into
the one that clients share with sharedOwner true: peers, messages, subscriptions,
receipts, commands. Ids, texts, states and watermarks stay as they are. It works while no
gateway runs, makes a backup first, and does everything or nothing.

A stopped peer whose id another one has gets ".archived-" and eight digits behind its id.
Two peers in use with one id, and other things that can't be both, stop it and are listed.`,
		Example: `  gateway migrate shared-owner
  gateway migrate shared-owner --apply
  gateway migrate shared-owner --state-dir /srv/relay --backup-dir /mnt/usb/relay --apply`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Apply = flags.apply
			return a.migrateShared(cmd.Context(), flags, o)
		},
	})
	a.migrateFlags(c, &flags)
	c.Flags().BoolVar(&o.ArchiveKeys, "archive-keys", false, "give the older of two receipts with one key another key")
	return c
}

func (a *app) migrateFlags(c *cobra.Command, flags *migrateFlags) {
	c.Flags().StringVar(&flags.stateDir, "state-dir", "", "state `directory` (default: stateDir of the config)")
	c.Flags().StringVar(&flags.backupDir, "backup-dir", "", "`directory` for the backup (default: backup.dir of the config)")
	c.Flags().BoolVar(&flags.apply, "apply", false, "do it; without this nothing is changed")
}

// migrationConfig is the config of a state directory that flags may name; one
// without a config of its own gets the defaults.
func (a *app) migrationConfig(flags migrateFlags) (*config.Config, error) {
	c, _, err := a.load()
	var exit *exitError
	if a.configPath == "" && flags.stateDir != "" && errors.As(err, &exit) {
		c, err = config.Default(a.Getenv)
	}
	if err != nil {
		return nil, err
	}
	if flags.stateDir == "" {
		return c, nil
	}
	dir, err := filepath.Abs(flags.stateDir)
	if err != nil || dir == c.StateDir {
		return c, err
	}
	other := *c
	other.StateDir, other.OwnerTokenFile, other.Backup.Dir = dir, filepath.Join(dir, "owner.json"), filepath.Join(dir, "backups")
	return &other, nil
}

// openState opens the state directory of a gateway that does not run.
func (a *app) openState(ctx context.Context, c *config.Config, create bool) (*store.Store, error) {
	if _, err := os.Stat(filepath.Join(c.StateDir, store.FileName)); errors.Is(err, fs.ErrNotExist) && !create {
		return nil, failed("name the right one with --state-dir", "there is no gateway's database in %s", c.StateDir)
	}
	s, err := store.Open(ctx, store.Options{
		Dir: c.StateDir, Now: a.Now, AllowNetworkFS: c.Store.AllowNetworkFilesystem,
		BeforeUpgrade: backup.PlanOf(c, a.Now).BeforeUpgrade, Log: slog.New(slog.DiscardHandler),
	})
	var locked *store.LockedError
	if errors.As(err, &locked) {
		return nil, failed("stop the gateway first, then try again; nothing was changed", "%w", err)
	}
	return s, err
}

// sharedOut is the JSON of a migration to the shared owner.
type sharedOut struct {
	migrate.Report
	Backup string `json:"backup,omitempty"` // its directory
}

func (a *app) migrateShared(ctx context.Context, flags migrateFlags, o migrate.SharedOptions) error {
	c, err := a.migrationConfig(flags)
	if err != nil {
		return err
	}
	s, err := a.openState(ctx, c, false)
	if err != nil {
		return err
	}
	defer s.Close()
	rehearse := o
	rehearse.Apply = false
	report, err := migrate.SharedOwner(ctx, s, rehearse)
	if err != nil {
		return err
	}
	out := sharedOut{Report: report}
	if o.Apply && len(report.Conflicts) == 0 && len(report.Owners) > 0 {
		if out.Backup, err = a.backupBefore(ctx, c, s, flags.backupDir); err != nil {
			return err
		}
		if out.Report, err = migrate.SharedOwner(ctx, s, o); err != nil {
			return err
		}
	}
	if a.json {
		err = a.printJSON(a.Stdout, out)
	} else {
		err = a.printShared(out, flags.apply, c)
	}
	if err == nil && len(out.Conflicts) > 0 {
		return failed("resolve them and run this again", "nothing was changed: %s must be resolved first", plural(int64(len(out.Conflicts)), "conflict"))
	}
	return err
}

func (a *app) migrateImportCommand() *cobra.Command {
	var flags migrateFlags
	var from string
	c := a.withJSON(&cobra.Command{
		Use:   "import",
		Short: "Take over the state of an original Node gateway",
		Long: `Reads the state directory of the original gateway, which must be stopped and is not
changed, and adds what it kept: clients, peers, messages, subscriptions, receipts, and the
keys of agents. What can't come along is listed with the reason. Run it again as often as
you like: what is there stays.

Set this gateway up first (gateway init), with the same public address.`,
		Example: `  gateway migrate import --from ~/.local/share/local-agents-mcp
  gateway migrate import --from ~/.local/share/local-agents-mcp --apply`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if from == "" {
				return usage("--from is missing: the original's state directory")
			}
			full, err := filepath.Abs(from)
			if err != nil {
				return err
			}
			return a.migrateImport(cmd.Context(), flags, full)
		},
	})
	a.migrateFlags(c, &flags)
	c.Flags().StringVar(&from, "from", "", "state `directory` of the original gateway")
	c.Flags().StringVar(&flags.stateDir, "to", "", "state `directory` to add to (default: stateDir of the config)")
	_ = c.Flags().MarkHidden("state-dir")
	return c
}

// importOut is the JSON of an import.
type importOut struct {
	migrate.Imported
	Backup string `json:"backup,omitempty"` // its directory
}

func (a *app) migrateImport(ctx context.Context, flags migrateFlags, from string) error {
	c, err := a.migrationConfig(flags)
	if err != nil {
		return err
	}
	if _, err := os.Stat(from); err != nil {
		return failed("name the original's stateDir with --from", "there is nothing to import: %w", err)
	}
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		return err
	}
	s, err := a.openState(ctx, c, true)
	if err != nil {
		return err
	}
	defer s.Close()
	o := migrate.ImportOptions{From: from, LocalHostID: local.ID(), Rand: a.Rand}
	out := importOut{}
	if flags.apply {
		if out.Backup, err = a.backupBefore(ctx, c, s, flags.backupDir); err != nil {
			return err
		}
		if o.Key, err = events.OpenKey(ctx, s); err != nil {
			return err
		}
		o.Apply = true
	}
	out.Imported, err = migrate.Import(ctx, s, o)
	if errors.Is(err, migrate.ErrNoOriginal) {
		return failed("name the original's stateDir with --from", "%w", err)
	}
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(a.Stdout, out)
	}
	return a.printImport(out, c)
}

func (a *app) printImport(out importOut, c *config.Config) error {
	w := a.Stdout
	rows := [][]string{}
	what := map[string]bool{}
	for k := range out.Kept {
		what[k] = true
	}
	for k := range out.Present {
		what[k] = true
	}
	for _, k := range sortedKeys(what) {
		rows = append(rows, []string{k, fmt.Sprint(out.Kept[k]), fmt.Sprint(out.Present[k])})
	}
	if err := table(w, 0, []string{"WHAT", "COMES", "IS THERE"}, rows); err != nil {
		return err
	}
	for _, l := range out.Left {
		fmt.Fprintln(w, wrap(fmt.Sprintf("\nNot: %s. %s", plural(int64(l.Count), clean(l.What)), clean(l.Why))))
	}
	if !out.Applied {
		_, err := fmt.Fprintln(w, "\nNothing was changed. Do it with --apply.")
		return err
	}
	next := "start the gateway, and connect each client again: its id is known, only its tokens are not"
	if c.SharedOwner && len(out.Owners) > 0 && !slices.Equal(out.Owners, []string{principal.SharedOwner}) {
		next = "gateway migrate shared-owner" + a.configFlag() + ", for what came belongs to single clients and this gateway's clients share one domain; then " + next
	}
	_, err := fmt.Fprintf(w, "\nDone. The state of before is in\n  %s\n\n%s\n", clean(out.Backup), wrap("Next: "+next+"."))
	return err
}

// backupBefore makes the backup that a migration goes back to.
func (a *app) backupBefore(ctx context.Context, c *config.Config, s *store.Store, dir string) (string, error) {
	if dir != "" {
		full, err := filepath.Abs(dir)
		if err != nil {
			return "", err
		}
		dir = full
	}
	set, err := backup.PlanOf(c, a.Now).Make(ctx, s, dir, backup.Migration)
	if err != nil {
		return "", fmt.Errorf("nothing was changed, for there is no backup: %w", err)
	}
	return set.Dir, nil
}

func (a *app) printShared(out sharedOut, apply bool, c *config.Config) error {
	w := a.Stdout
	line := func(format string, args ...any) { fmt.Fprintln(w, wrap(clean(fmt.Sprintf(format, args...)))) }
	for _, conflict := range out.Conflicts {
		line("CONFLICT: the %s %q of %s. %s\n  %s", conflict.What, conflict.Name, strings.Join(conflict.Owners, " and "), conflict.Why, conflict.Next)
	}
	for _, r := range out.Renamed {
		line("The %s %q of %s is called %q then.", r.What, r.From, r.Owner, r.To)
	}
	for _, m := range out.Merged {
		line("The subscription %s of %s is the same as %s then, which is newer and stays.", m.ID, m.Owner, m.Into)
	}
	for _, n := range out.Notes {
		line("%s", n)
	}
	if len(out.Conflicts) > 0 || len(out.Owners) == 0 {
		return nil
	}
	rows := make([][]string, 0, len(out.Moved))
	for _, table := range sortedKeys(out.Moved) {
		rows = append(rows, []string{table, fmt.Sprint(out.Moved[table])})
	}
	if err := table(w, 0, []string{"TABLE", "ROWS"}, rows); err != nil {
		return err
	}
	if !apply {
		_, err := fmt.Fprintf(w, "\nOf %s. Nothing was changed. Do it with: gateway migrate shared-owner --apply%s\n", plural(int64(len(out.Owners)), "owner"), a.configFlag())
		return err
	}
	_, err := fmt.Fprintf(w, `
Done: %s have one domain now. The state of before is in
  %s

Next: write "sharedOwner": true into the config, give each entry of peerWakeTargets the
owner "local-owner:shared", start the gateway, and look with "gateway peers list%[3]s".
`, plural(int64(len(out.Owners)), "owner"), clean(out.Backup), a.configFlag())
	return err
}
