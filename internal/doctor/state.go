package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"agentrelay/internal/oauth/owner"
	"agentrelay/internal/principal"
	"agentrelay/internal/sealing"
	"agentrelay/internal/store"
)

func networkFS(dir string) (string, error) { return store.NetworkFS(dir) }

// freeBytes is what the user may still write.
func freeBytes(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// The limits of what is fine.
const (
	littleSpace = 1 << 30   // bytes free on the disk of the state directory
	noSpace     = 100 << 20 // too few for a backup or an upgrade
	largeWAL    = 256 << 20 // the gateway keeps it below 64 MiB unless a reader holds it
	hugeWAL     = 2 << 30
)

func stateChecks() []check {
	return []check{
		{id: "config.file", why: "Everything else follows from it, and a gateway does not start with one that is wrong.", run: checkConfig},
		{id: "config.mode", needs: needConfig, why: "Whoever can write it decides which programs run and which files are read in your name.", run: checkConfigMode},
		{id: "config.testmode", needs: needConfig, why: "In the test mode of safedial any client can make the gateway connect to programs of this machine.", run: checkTestMode},
		{id: "state.dir", needs: needConfig, why: "It holds every message, token hash and key. A gateway refuses to start when others can enter it.", run: checkStateDir},
		{id: "state.filesystem", needs: needConfig, why: "SQLite's write-ahead log needs a local disk: on a network file system a crash or a second machine damages the database.", run: checkFilesystem},
		{id: "state.space", needs: needConfig, why: "A full disk stops every change, and a backup or an upgrade needs room for a second copy of the database.", run: checkSpace},
		{id: "store.schema", needs: needState, why: "A gateway refuses a database of a newer version, and upgrades one of an older version at its next start.", run: checkSchema},
		{id: "store.wal", needs: needState, why: "The write-ahead log grows without end when something keeps reading the database, and every start then takes longer.", run: checkWAL},
		{
			id: "store.integrity", needs: needState, budget: time.Minute, why: "Damage that is found early costs a restore from yesterday, not from the last month.", run: checkIntegrity,
			late: warn("Run it when the disk is idle: sqlite3 gateway.db 'PRAGMA quick_check' in the state directory.", "The database could not be looked through within a minute."),
		},
		{id: "owner.password", needs: needConfig, why: "Without it no client can be allowed, and a gateway does not start.", run: checkPassword},
		{id: "sealing.key", needs: needState, why: "It opens the secrets of subscriptions. Without it nobody is woken, and with other modes others could sign as you.", run: checkKey},
		{id: "owners.foreign", needs: needStored, why: "Peers and mail belong to an owner. After sharedOwner was changed, what was stored before is not reached by any client.", run: checkOwners},
	}
}

func checkConfig(_ context.Context, v *visit) []finding {
	if errors.Is(v.badCfg, fs.ErrNotExist) {
		return one(fail("Make one with: gateway init. If yours is elsewhere, name it with --config.", "There is no config at %s.", v.o.ConfigPath))
	}
	if v.badCfg != nil {
		return one(fail("Correct what is named; gateway config check says whether it is in order.", "%s", sentence(v.badCfg)))
	}
	var found []finding
	for _, r := range v.remarks {
		if r.Key == "safedial.allowLoopback" {
			continue // config.testmode says it
		}
		found = append(found, warn("Follow it or remove the key; gateway config check shows the whole config as it is read.", "%s", r.String()))
	}
	if len(found) == 0 {
		found = one(pass("%s can be used.", v.o.ConfigPath))
	}
	return found
}

func checkConfigMode(_ context.Context, v *visit) []finding {
	path := v.o.ConfigPath
	for _, p := range []string{path, filepath.Dir(path)} {
		info, err := os.Stat(p)
		if err != nil {
			return one(fail("See why it can't be read.", "%s", sentence(err)))
		}
		if uid, ok := userOf(info); ok && uid != os.Geteuid() && uid != 0 {
			return one(fail("Give it to the user that runs the gateway: chown "+p, "%s belongs to another user, who can change it.", p))
		}
		if info.Mode().Perm()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0 {
			return one(fail("Run: chmod go-w "+p, "%s has mode %04o: others can change it.", p, info.Mode().Perm()))
		}
	}
	return one(pass("Only you can change it."))
}

func checkTestMode(_ context.Context, v *visit) []finding {
	if v.config.Safedial.AllowLoopback {
		return one(warn("Remove safedial.allowLoopback from the config and restart the gateway, unless this is a test.", "safedial.allowLoopback is on: clients can make the gateway connect to this machine."))
	}
	return one(pass("It is off."))
}

func checkStateDir(_ context.Context, v *visit) []finding {
	dir := v.config.StateDir
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return one(fail("The first start makes it: gateway serve. If it was there, its disk may not be mounted.", "There is no state directory at %s.", dir))
	case err != nil:
		return one(fail("See why it can't be read.", "%s", sentence(err)))
	case !info.IsDir():
		return one(fail("Name a directory with stateDir in the config.", "%s is not a directory.", dir))
	}
	if uid, ok := userOf(info); ok && uid != os.Geteuid() {
		return one(fail("Run the doctor as the user that runs the gateway; if that is you, give it back: chown -R "+dir, "%s belongs to the user with number %d, this is number %d.", dir, uid, os.Geteuid()))
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return one(fail("Run: chmod 700 "+dir, "%s has mode %04o: other users can get in.", dir, mode))
	}
	probe, err := os.CreateTemp(dir, ".doctor-*")
	if err != nil {
		return one(fail("See whether the disk is mounted read-only or full.", "Nothing can be written to %s: %s", dir, sentence(err)))
	}
	if err := errors.Join(probe.Close(), os.Remove(probe.Name())); err != nil {
		return one(fail("See whether the disk is mounted read-only or full.", "%s", sentence(err)))
	}
	return one(pass("%s is private and can be written.", dir))
}

func checkFilesystem(_ context.Context, v *visit) []finding {
	name, err := v.o.NetworkFS(v.config.StateDir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return one(skip("There is no state directory yet."))
	case err != nil:
		return one(fail("See why it can't be read.", "%s", sentence(err)))
	case name == "":
		return one(pass("It is on a local disk."))
	case v.config.Store.AllowNetworkFilesystem:
		return one(warn("Move stateDir to a local disk: stop the gateway, gateway backup, change stateDir, gateway restore.", "The state directory is on a network file system (%s), and the config allows that.", name))
	}
	return one(fail("Move stateDir to a local disk; the gateway does not start on this one.", "The state directory is on a network file system (%s).", name))
}

func checkSpace(_ context.Context, v *visit) []finding {
	free, err := v.o.FreeBytes(v.config.StateDir)
	const next = "Make room on that disk, or lower transfers.spoolBytes, commands.storedBytes and backup.keep in the config."
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return one(skip("There is no state directory yet."))
	case err != nil:
		return one(fail("See why it can't be read.", "%s", sentence(err)))
	case free < noSpace:
		return one(fail(next, "The disk of the state directory has %s left.", size(free)))
	case free < littleSpace:
		return one(warn(next, "The disk of the state directory has %s left.", size(free)))
	}
	return one(pass("The disk of the state directory has %s left.", size(free)))
}

func checkSchema(ctx context.Context, v *visit) []finding {
	schema, err := store.SchemaOf(ctx, v.config.StateDir)
	known := store.Schema()
	switch {
	case err != nil:
		return one(fail("See the gateway's log. If the database is damaged, take back a backup: gateway restore.", "%s", sentence(err)))
	case schema > known:
		return one(fail("Use the program that wrote it, or a newer one; to go back, take back a backup from before the upgrade: gateway restore.", "The database has schema %d, and this program knows %d.", schema, known))
	case schema < known && v.running() != nil:
		return one(warn("Restart the gateway, which then upgrades the database: gateway service restart.", "The database has schema %d, and this program knows %d: the gateway that runs is older.", schema, known))
	case schema < known:
		return one(warn("The next start upgrades it, after a backup.", "The database has schema %d, and this program knows %d.", schema, known))
	}
	return one(pass("Schema %d.", schema))
}

func checkWAL(_ context.Context, v *visit) []finding {
	info, err := os.Stat(filepath.Join(v.config.StateDir, store.FileName+"-wal"))
	if errors.Is(err, fs.ErrNotExist) {
		return one(pass("There is none: nothing has the database open."))
	}
	if err != nil {
		return one(fail("See why it can't be read.", "%s", sentence(err)))
	}
	const next = "End whatever else has the database open (lsof shows it), then restart the gateway: gateway service restart."
	switch n := info.Size(); {
	case n > hugeWAL:
		return one(fail(next, "The write-ahead log has %s.", size(uint64(n))))
	case n > largeWAL:
		return one(warn(next, "The write-ahead log has %s.", size(uint64(n))))
	default:
		return one(pass("The write-ahead log has %s.", size(uint64(n))))
	}
}

func checkIntegrity(ctx context.Context, v *visit) []finding {
	err := store.QuickCheck(ctx, v.config.StateDir)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return one(warn("Run it when the disk is idle: sqlite3 gateway.db 'PRAGMA quick_check' in the state directory.", "The database could not be looked through within a minute."))
	case err != nil:
		return one(fail("Stop the gateway and take back the newest backup that is in order: gateway backup list, gateway backup verify, gateway restore.", "%s", sentence(err)))
	}
	return one(pass("No damage was found."))
}

func checkPassword(_ context.Context, v *visit) []finding {
	_, err := owner.LoadPassword(v.config.OwnerTokenFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return one(fail("Make one: gateway owner reset-password", "There is no owner password: %s is missing.", v.config.OwnerTokenFile))
	case err != nil:
		return one(fail("Do what it says, or make a new password: gateway owner reset-password", "%s", sentence(err)))
	}
	return one(pass("%s is private and can be used.", v.config.OwnerTokenFile))
}

func checkKey(_ context.Context, v *visit) []finding {
	_, err := sealing.Load(v.config.StateDir)
	var missing *sealing.MissingError
	switch {
	case errors.As(err, &missing):
		return one(fail("Put it back from the backup that the database is from: gateway restore. If it is lost: gateway events forget-secrets, then let every client subscribe again.", "%s is missing.", missing.File))
	case err != nil:
		return one(fail("Correct its mode, or put it back from a backup: gateway restore.", "%s", sentence(err)))
	}
	return one(pass("It is there and private."))
}

func checkOwners(_ context.Context, v *visit) []finding {
	foreign := 0
	for name, n := range v.stored().owners {
		if (name == principal.SharedOwner) != v.config.SharedOwner {
			foreign += n
		}
	}
	switch {
	case foreign == 0 && v.config.SharedOwner:
		return one(pass("Everything belongs to the shared owner."))
	case foreign == 0:
		return one(pass("Everything belongs to single clients, as sharedOwner false wants it."))
	case v.config.SharedOwner:
		return one(warn("Stop the gateway and see what a migration would do: gateway migrate shared-owner. With --apply it does it, after a backup.", "sharedOwner is true, but %s of single clients are out of reach.", foreignCount(foreign)))
	}
	return one(warn("Set sharedOwner to true in the config to reach them again; there is no way back to single clients.", "sharedOwner is false, but %s of the shared owner are out of reach.", foreignCount(foreign)))
}

func foreignCount(n int) string {
	if n == 1 {
		return "1 peer or subscription"
	}
	return count(int64(n), "peers and subscription")
}
