// Package backup makes, checks and puts back copies of everything that a gateway
// can't make again: its database, the key that opens the database's secrets, the
// owner's password file, the config, and what the state directory remembers of
// agents, hosts, commands and placed files.
//
// It owns the form of a set (a private directory with a manifest), when sets are
// made by themselves, and which of them are kept. It promises that a set has its
// name only when it is whole, checked and on disk, that the database in it is the
// state of one instant however busy the gateway is, that a restore happens as a
// whole or not at all and never destroys the state it replaces, and that what ran
// once on this machine is known as such after a restore too. It leaves to others
// what the rows mean: which of them a restore makes uncertain is asked of their
// packages.
package backup

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"agentrelay/internal/sealing"
	"agentrelay/internal/store"
)

// Kind is why a set was made. Sets of the kinds that the gateway makes by itself
// are removed when there are newer ones; others stay until the owner removes them.
type Kind string

// The kinds.
const (
	Manual    Kind = "manual"
	Scheduled Kind = "scheduled"
	Upgrade   Kind = "upgrade"   // before the database got a newer schema
	Migration Kind = "migration" // before rows got another owner, or an import
)

// The files of a set.
const (
	manifestName = "manifest.json"
	configName   = "config.json"
	ownerName    = "owner.json"
	stateName    = "state.tar.gz" // the rest of the state directory
)

// format is the version of the form of a set.
const format = 1

// Set is one backup. Its JSON is the manifest, and a contract.
type Set struct {
	Format    int       `json:"format"`
	ID        string    `json:"id"` // the name of its directory
	Kind      Kind      `json:"kind"`
	CreatedAt time.Time `json:"createdAt"` // the database has everything committed before
	Version   string    `json:"version"`   // of the program that made it
	Schema    int64     `json:"schema"`    // of the database
	StateDir  string    `json:"stateDir"`
	Files     []File    `json:"files"`

	// Dir is where it lies.
	Dir string `json:"-"`
}

// File is one file of a set.
type File struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Bytes is the size of all files.
func (s Set) Bytes() (n int64) {
	for _, f := range s.Files {
		n += f.Bytes
	}
	return n
}

func (s Set) has(name string) bool {
	return slices.ContainsFunc(s.Files, func(f File) bool { return f.Name == name })
}

// Source is what is backed up.
type Source struct {
	StateDir   string
	ConfigFile string // "" when there is none
	OwnerFile  string
	// Copy writes the database to a new file; see [store.Store.Copy].
	Copy    func(ctx context.Context, path string) error
	Version string           // of this program
	Now     func() time.Time // nil is time.Now
}

func (s Source) now() time.Time {
	if s.Now == nil {
		return time.Now()
	}
	return s.Now()
}

// BusyError says that another process is writing a backup to the same directory.
type BusyError struct{ Dir string }

func (e *BusyError) Error() string {
	return fmt.Sprintf("another backup is being written to %s: try again when it has ended", e.Dir)
}

// Create makes a set in dir, which it makes when it is absent, and checks what it
// has written. The set is on disk when it returns; a failure leaves nothing. It
// fails with [*BusyError] while another process is at it.
func Create(ctx context.Context, src Source, dir string, kind Kind) (_ Set, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Set{}, fmt.Errorf("making the backup directory: %w", err)
	}
	release, err := begin(dir)
	if err != nil {
		return Set{}, err
	}
	defer release()
	created := src.now().UTC().Truncate(time.Millisecond)
	set := Set{Format: format, ID: created.Format(idTime) + "-" + string(kind), Kind: kind, CreatedAt: created, Version: src.Version, StateDir: src.StateDir}
	if set.Dir = filepath.Join(dir, set.ID); exists(set.Dir) {
		return Set{}, fmt.Errorf("there is a backup of this very moment already, at %s: try again", set.Dir)
	}
	part, err := os.MkdirTemp(dir, partPrefix) // mode 0700
	if err != nil {
		return Set{}, fmt.Errorf("making a backup: %w", err)
	}
	defer os.RemoveAll(part) // nothing is there any more after success
	if err := set.write(ctx, src, part); err != nil {
		return Set{}, fmt.Errorf("writing a backup: %w", err)
	}
	checked := set
	checked.Dir = part
	if err := checked.check(ctx); err != nil {
		return Set{}, fmt.Errorf("the backup that was just written can't be read back: %w", err)
	}
	if err := errors.Join(syncDir(part), os.Rename(part, set.Dir), syncDir(dir)); err != nil {
		return Set{}, fmt.Errorf("storing a backup: %w", err)
	}
	return set, nil
}

// idTime is the time in the name of a set; names sort by it.
const idTime = "20060102T150405.000Z"

// partPrefix begins the name of a set in the making.
const partPrefix = ".part-"

// begin takes the lock of a backup directory and removes what a crash has left.
func begin(dir string) (release func(), err error) {
	l := flock.New(filepath.Join(dir, ".lock"), flock.SetPermissions(0o600))
	ok, err := l.TryLock()
	if err != nil {
		return nil, fmt.Errorf("locking the backup directory: %w", err)
	}
	if !ok {
		return nil, &BusyError{dir}
	}
	left, _ := filepath.Glob(filepath.Join(escape(dir), partPrefix+"*"))
	for _, old := range left {
		if err := os.RemoveAll(old); err != nil {
			l.Close()
			return nil, fmt.Errorf("removing an unfinished backup: %w", err)
		}
	}
	return func() { l.Close() }, nil
}

// escape makes a path match only itself in a pattern of [filepath.Glob].
func escape(path string) string {
	return regexp.MustCompile(`[*?\[\\]`).ReplaceAllString(path, `\$0`)
}

// write fills the directory of a set.
func (s *Set) write(ctx context.Context, src Source, part string) error {
	if err := src.Copy(ctx, filepath.Join(part, store.FileName)); err != nil {
		return err
	}
	var err error
	if s.Schema, err = store.Inspect(ctx, filepath.Join(part, store.FileName)); err != nil {
		return err
	}
	// After the database: a command that the database knows of is then in the
	// records too.
	if err := s.pack(ctx, src, filepath.Join(part, stateName)); err != nil {
		return err
	}
	for name, from := range map[string]string{
		sealing.FileName: filepath.Join(src.StateDir, sealing.FileName), ownerName: src.OwnerFile, configName: src.ConfigFile,
	} {
		if from == "" {
			continue
		}
		if err := copyFile(from, filepath.Join(part, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	entries, err := os.ReadDir(part)
	if err != nil {
		return err
	}
	for _, e := range entries {
		f, err := digest(ctx, part, e.Name())
		if err != nil {
			return err
		}
		s.Files = append(s.Files, f)
	}
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(part, manifestName), append(raw, '\n'))
}

// Verify reads a whole set (its directory, or its manifest) and returns it when
// every file is as it was written, the database is sound and nothing is missing.
func Verify(ctx context.Context, path string) (Set, error) {
	set, err := Open(path)
	if err != nil {
		return Set{}, err
	}
	return set, set.check(ctx)
}

// Open reads the manifest of a set, by the path of its directory or of the
// manifest, and checks nothing else.
func Open(path string) (Set, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return Set{}, err
	}
	if filepath.Base(path) == manifestName {
		path = filepath.Dir(path)
	}
	raw, err := os.ReadFile(filepath.Join(path, manifestName))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotDir) {
		return Set{}, fmt.Errorf("%s is no backup: it is not a directory with a %s", path, manifestName)
	}
	if err != nil {
		return Set{}, fmt.Errorf("reading a backup: %w", err)
	}
	set := Set{Dir: path}
	if err := json.Unmarshal(raw, &set); err != nil {
		return Set{}, fmt.Errorf("the %s of the backup %s is damaged: %w", manifestName, path, err)
	}
	if set.Format != format {
		return Set{}, fmt.Errorf("the backup %s has format %d, this gateway knows %d: use the version that made it, %s", path, set.Format, format, set.Version)
	}
	return set, nil
}

// check compares the files with the manifest and looks into them.
func (s Set) check(ctx context.Context) error {
	if !s.has(store.FileName) || !s.has(stateName) {
		return fmt.Errorf("the %s of the backup %s names no database or no state", manifestName, s.Dir)
	}
	for _, want := range s.Files {
		if want.Name != filepath.Base(want.Name) || want.Name == manifestName {
			return fmt.Errorf("the %s of the backup %s is damaged: %q can't be a file of it", manifestName, s.Dir, want.Name)
		}
		got, err := digest(ctx, s.Dir, want.Name)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("the backup %s is not complete: %s is missing", s.Dir, want.Name)
		}
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("the backup %s is damaged: %s is not what was written (%d bytes, %d were written)", s.Dir, want.Name, got.Bytes, want.Bytes)
		}
	}
	schema, err := store.Inspect(ctx, filepath.Join(s.Dir, store.FileName))
	if err != nil {
		return err
	}
	if schema != s.Schema {
		return fmt.Errorf("the backup %s is damaged: its database has schema %d, its %s says %d", s.Dir, schema, manifestName, s.Schema)
	}
	return s.unpack(ctx, func(entry, io.Reader) error { return nil })
}

// List returns the sets in a directory, newest first. What is no set, and a set
// whose manifest can't be read, is left out; unreadable counts the latter.
func List(dir string) (sets []Set, unreadable int, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("listing backups: %w", err)
	}
	for _, e := range slices.Backward(entries) {
		if !e.IsDir() || !isID.MatchString(e.Name()) {
			continue
		}
		set, err := Open(filepath.Join(dir, e.Name()))
		if err != nil {
			unreadable++
			continue
		}
		sets = append(sets, set)
	}
	return sets, unreadable, nil
}

var isID = regexp.MustCompile(`^[0-9]{8}T[0-9]{6}\.[0-9]{3}Z-[a-z]+$`)

// Prune removes the oldest sets of a kind but keep, and returns their ids. It
// removes nothing of the kind [Manual].
func Prune(dir string, kind Kind, keep int) (removed []string, err error) {
	sets, _, err := List(dir)
	if err != nil || kind == Manual {
		return nil, err
	}
	for _, s := range sets {
		if s.Kind != kind {
			continue
		}
		if keep--; keep >= 0 {
			continue
		}
		// First under a name that is no set's: a crash leaves no half of one.
		gone := filepath.Join(dir, partPrefix+s.ID)
		if err := errors.Join(os.Rename(s.Dir, gone), os.RemoveAll(gone)); err != nil {
			return removed, fmt.Errorf("removing an old backup: %w", err)
		}
		removed = append(removed, s.ID)
	}
	return removed, nil
}

func digest(ctx context.Context, dir, name string) (File, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, reader{ctx, f})
	if err != nil {
		return File{}, fmt.Errorf("reading %s of a backup: %w", name, err)
	}
	return File{name, n, hex.EncodeToString(sum.Sum(nil))}, nil
}

// reader ends with its context.
type reader struct {
	ctx context.Context
	io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// copyFile copies a file of the owner's, whatever its mode, to a private one.
func copyFile(from, to string) error {
	raw, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return writeFile(to, raw)
}

// writeFile makes a private file that is on disk when it returns.
func writeFile(path string, raw []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	return errors.Join(err, f.Sync(), f.Close())
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// unique is a path beside another one that nothing has.
func unique(path, what string, at time.Time) string {
	path = strings.TrimRight(path, "/") + "." + what + "-" + at.UTC().Format("20060102T150405Z")
	for exists(path) {
		path += "-" + strings.ToLower(rand.Text()[:4])
	}
	return path
}
