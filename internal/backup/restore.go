package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"agentrelay/internal/audit"
	"agentrelay/internal/principal"
	"agentrelay/internal/sealing"
	"agentrelay/internal/store"
)

// Target is where a set is put back.
type Target struct {
	StateDir  string
	OwnerFile string
	// ConfigFile is written only when there is none. "" writes none.
	ConfigFile string
	Now        func() time.Time // nil is time.Now
}

// Restored says what [Restore] did.
type Restored struct {
	Set Set `json:"backup"`
	// Kept is the state directory as it was, under its new name; "" when there was
	// none.
	Kept string `json:"kept,omitempty"`
	// KeptOwnerFile is the owner's password file as it was, when it lies outside
	// the state directory and was another one.
	KeptOwnerFile string `json:"keptOwnerFile,omitempty"`
	// ConfigWritten is false when there was a config, which stays.
	ConfigWritten bool `json:"configWritten"`
}

// Restore puts a set back. The set is verified first; the new state directory is
// made beside the old one and then takes its place in one step, the old one stays
// under another name. What commands and file placements this machine remembers is
// carried over from the old one, for what ran once must be known after that too.
//
// It fails with [store.LockedError] while a gateway runs, with
// [store.SchemaError] for a set of a newer gateway, and then has changed nothing.
func Restore(ctx context.Context, path string, to Target) (_ Restored, err error) {
	now := time.Now
	if to.Now != nil {
		now = to.Now
	}
	at := now()
	set, err := Verify(ctx, path)
	if err != nil {
		return Restored{}, err
	}
	if newest := store.Schema(); set.Schema > newest {
		return Restored{}, &store.SchemaError{Database: set.Schema, Binary: newest}
	}
	old := exists(to.StateDir)
	if old {
		release, err := store.Lock(to.StateDir)
		if err != nil {
			return Restored{}, err
		}
		defer release()
	}
	parent := filepath.Dir(to.StateDir)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return Restored{}, fmt.Errorf("making the directory of the state: %w", err)
	}
	stage, err := os.MkdirTemp(parent, "."+filepath.Base(to.StateDir)+".restore-") // mode 0700
	if err != nil {
		return Restored{}, fmt.Errorf("making the new state directory: %w", err)
	}
	defer os.RemoveAll(stage) // nothing is there any more after success
	r := &restoring{set: set, to: to, stage: stage, at: at}
	if old {
		r.kept = unique(to.StateDir, "before-restore", at)
	}
	if err := r.fill(ctx, old); err != nil {
		return Restored{}, fmt.Errorf("putting the backup back: %w", err)
	}
	out := Restored{Set: set}
	if out.Kept, err = r.kept, r.swap(); err != nil {
		return Restored{}, fmt.Errorf("putting the new state directory in its place: %w", err)
	}
	if out.KeptOwnerFile, err = r.owner(); err != nil {
		return out, fmt.Errorf("the state is put back, but the owner's password file is not; copy %s by hand: %w", filepath.Join(set.Dir, ownerName), err)
	}
	if out.ConfigWritten, err = r.config(); err != nil {
		return out, fmt.Errorf("the state is put back, but the config is not; copy %s by hand: %w", filepath.Join(set.Dir, configName), err)
	}
	return out, nil
}

// restoring is one restore under way.
type restoring struct {
	set   Set
	to    Target
	stage string
	kept  string // where the old state directory will be
	at    time.Time
}

// carried are the parts of the old state directory that come into the new one.
// The first is what this machine did; the others are no state of the database.
var carried = []string{"direct", "transfer-spool", "bin", "builds", "backups"}

// fill makes the new state directory.
func (r *restoring) fill(ctx context.Context, old bool) error {
	if old {
		for _, name := range carried {
			if err := linkTree(ctx, filepath.Join(r.to.StateDir, name), filepath.Join(r.stage, name)); err != nil {
				return err
			}
		}
	}
	for name, required := range map[string]bool{store.FileName: true, sealing.FileName: false} {
		if required || r.set.has(name) {
			if err := copyLarge(ctx, filepath.Join(r.set.Dir, name), filepath.Join(r.stage, name)); err != nil {
				return err
			}
		}
	}
	if inside, ok := within(r.to.StateDir, r.to.OwnerFile); ok && r.set.has(ownerName) {
		if err := r.put(entry{inside, 0o600, r.at}, filepath.Join(r.set.Dir, ownerName)); err != nil {
			return err
		}
	}
	err := r.set.unpack(ctx, func(e entry, from io.Reader) error {
		path := filepath.Join(r.stage, e.name)
		if r.superseded(e.name) || exists(path) {
			return nil
		}
		return r.write(path, e, from)
	})
	if err != nil {
		return err
	}
	raw, err := json.Marshal(marker{Set: r.set.ID, CreatedAt: r.set.CreatedAt, RestoredAt: r.at.UTC(), Kept: r.kept})
	if err != nil {
		return err
	}
	path := filepath.Join(r.stage, markerName)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // of the set
		return err
	}
	if err := writeFile(path, append(raw, '\n')); err != nil {
		return err
	}
	return syncTree(r.stage)
}

var recordOf = regexp.MustCompile(`^direct/(commands|transfers)/(?:.*/)?(?:[0-9]+-)?([0-9a-f]{24})(?:[-/].*)?$`)

// superseded reports whether a file of the archive belongs to a command or a
// placement that the old state directory knows: what that says is newer, and what
// it says no more (that the command runs) is so no more.
func (r *restoring) superseded(name string) bool {
	m := recordOf.FindStringSubmatch(name)
	return m != nil && exists(filepath.Join(r.to.StateDir, "direct", m[1], m[2]))
}

func (r *restoring) write(path string, e entry, from io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, e.mode|0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Sync(), f.Close(), os.Chtimes(path, e.changed, e.changed))
}

// put copies a file of the set to its place in the new state directory.
func (r *restoring) put(e entry, from string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	return r.write(filepath.Join(r.stage, e.name), e, f)
}

// owner puts back a password file that lies outside the state directory.
func (r *restoring) owner() (kept string, err error) {
	path := r.to.OwnerFile
	if _, inside := within(r.to.StateDir, path); inside || !r.set.has(ownerName) {
		return "", nil
	}
	want, err := os.ReadFile(filepath.Join(r.set.Dir, ownerName))
	if err != nil {
		return "", err
	}
	if have, err := os.ReadFile(path); err == nil {
		if string(have) == string(want) {
			return "", nil
		}
		kept = unique(path, "before-restore", r.at)
		if err := os.Rename(path, kept); err != nil {
			return "", err
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return kept, err
	}
	return kept, errors.Join(writeFile(path, want), syncDir(filepath.Dir(path)))
}

// config puts back the config when there is none.
func (r *restoring) config() (written bool, err error) {
	path := r.to.ConfigFile
	if path == "" || exists(path) || !r.set.has(configName) {
		return false, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return false, err
	}
	return true, errors.Join(copyFile(filepath.Join(r.set.Dir, configName), path), syncDir(filepath.Dir(path)))
}

// swap puts the new state directory in its place.
func (r *restoring) swap() error {
	parent := filepath.Dir(r.to.StateDir)
	if r.kept == "" {
		return errors.Join(os.Rename(r.stage, r.to.StateDir), syncDir(parent))
	}
	err := exchange(r.stage, r.to.StateDir)
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.EINVAL) { // not on this file system
		return errors.Join(os.Rename(r.to.StateDir, r.kept), os.Rename(r.stage, r.to.StateDir), syncDir(parent))
	}
	if errors.Is(err, syscall.EBUSY) {
		return fmt.Errorf("it is a mount point, which can't be replaced, name another stateDir in the config: %w", err)
	}
	if err != nil {
		return err
	}
	return errors.Join(os.Rename(r.stage, r.kept), syncDir(parent))
}

// within is path relative to dir, if it lies in it.
func within(dir, path string) (string, bool) {
	rel, err := filepath.Rel(dir, path)
	return rel, err == nil && filepath.IsLocal(rel) && rel != "."
}

// linkTree makes a second name for each file of a tree. A command that still runs
// keeps its record, its output and its socket by that: they are the same files.
func linkTree(ctx context.Context, from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		there := filepath.Join(to, strings.TrimPrefix(path, from))
		if d.IsDir() {
			return os.MkdirAll(there, 0o700)
		}
		if d.Type()&fs.ModeSymlink != 0 {
			return nil
		}
		if err := os.Link(path, there); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}

func copyLarge(ctx context.Context, from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, reader{ctx, in})
	return errors.Join(err, out.Sync(), out.Close())
}

// syncTree puts the names in a tree on disk; its files are there already.
func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		return syncDir(path)
	})
}

// markerName is the file that says that a state directory was put back and not
// used since.
const markerName = "restored.json"

type marker struct {
	Set        string    `json:"backup"`
	CreatedAt  time.Time `json:"createdAt"`
	RestoredAt time.Time `json:"restoredAt"`
	Kept       string    `json:"kept,omitempty"` // the state directory of before
}

// Settle does, once after a restore, what only the restored gateway can: it makes
// steps from the state directory that was put aside ("" when there was none), which
// are told that the database is older than what has happened, and puts the restore on
// record, in one transaction. Without a restore it does nothing. Call it before
// anything acts on the database.
func Settle(ctx context.Context, s *store.Store, steps func(kept string) []func(*store.Tx) error) error {
	path := filepath.Join(s.Dir(), markerName)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var m marker
	if err == nil {
		err = json.Unmarshal(raw, &m)
	}
	if err != nil {
		return fmt.Errorf("reading which backup was put back: %w", err)
	}
	todo := steps(m.Kept)
	err = store.Exec(ctx, s, func(tx *store.Tx) error {
		for _, step := range todo {
			if err := step(tx); err != nil {
				return err
			}
		}
		return audit.Record(tx, principal.Owner(""), "backup.restore", m.Set, audit.OK,
			"createdAt", m.CreatedAt.UnixMilli(), "restoredAt", m.RestoredAt.UnixMilli())
	})
	if err != nil {
		return fmt.Errorf("settling what a restore made uncertain: %w", err)
	}
	return errors.Join(os.Remove(path), syncDir(s.Dir()))
}

// Config returns the config of the set, unless there is a file at path, which is
// then the one to use.
func (s Set) Config(path string) (raw []byte, own bool, err error) {
	if exists(path) {
		return nil, true, nil
	}
	raw, err = os.ReadFile(filepath.Join(s.Dir, configName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, fmt.Errorf("there is no config at %s, and none in the backup", path)
	}
	return raw, false, err
}
