package files

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"syscall"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/attributes"
)

// replacement is one change of one file under its lock.
type replacement struct {
	s    *Service
	t    *direct.Tree
	p    *direct.Place
	old  *os.File // open for reading; nil when the file is new
	info fs.FileInfo
	sha  string // of old
}

// open opens and hashes the file to be replaced, and checks that it may be.
func (s *Service) open(ctx context.Context, t *direct.Tree, p *direct.Place) (*replacement, error) {
	r := &replacement{s: s, t: t, p: p}
	var err error
	if r.old, r.info, err = openFile(p, os.O_RDONLY); err != nil {
		return nil, err
	}
	if r.sha, err = hashFile(ctx, r.old, r.info.Size()); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *replacement) close() {
	if r.old != nil {
		r.old.Close()
	}
}

// writable refuses files that must not be changed.
func (r *replacement) writable() error {
	return Writable(r.old, r.info, func() (*os.File, fs.FileInfo, error) { return openFile(r.p, os.O_WRONLY) })
}

// Writable refuses files that must not be changed: read_only_file, privileged_file,
// and what reopen, which opens f anew for writing, is refused by the system.
func Writable(f *os.File, info fs.FileInfo, reopen func() (*os.File, fs.FileInfo, error)) error {
	switch {
	case info.Mode().Perm()&0o222 == 0:
		return ReadOnlyFile.New("The file is read-only.")
	case info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0:
		return PrivilegedFile.New("The file is setuid or setgid.")
	case attributes.HasCapabilities(f):
		return PrivilegedFile.New("The file has file capabilities.")
	}
	w, _, err := reopen() // asks about access lists, owners and immutable files too
	if errors.Is(err, syscall.ETXTBSY) {
		return nil // a program that runs can be replaced, though not written to
	}
	if err != nil {
		return err
	}
	return w.Close()
}

// commit puts the staged content in the file's place, with the file's mode
// changed to perm. On an error the file is as it was.
func (r *replacement) commit(ctx context.Context, st *staged, perm fs.FileMode) error {
	if r.old == nil {
		return r.create(st)
	}
	inPlace := direct.Links(r.info) > 1
	if !inPlace {
		err := attributes.Adopt(st.file, r.old, r.info, perm)
		if inPlace = errors.Is(err, attributes.ErrCannotKeep); err != nil && !inPlace {
			return err
		}
	}
	if !inPlace {
		if err := st.file.Sync(); err != nil {
			return err
		}
	}
	r.s.crash("synced")
	if err := r.unchanged(ctx); err != nil {
		return err
	}
	if inPlace {
		return r.overwrite(st, perm)
	}
	if err := st.dir.Rename(st.name, r.p.Name); err != nil {
		return err
	}
	r.s.crash("renamed")
	return direct.SyncDir(r.p.Dir)
}

// create puts the staged content where nothing is.
func (r *replacement) create(st *staged) error {
	if err := st.file.Sync(); err != nil {
		return err
	}
	r.s.crash("synced")
	err := renameNew(st.dir, st.name, r.p.Name)
	if errors.Is(err, fs.ErrExist) {
		return FileExists.New("path exists already.")
	}
	if err != nil {
		return err
	}
	r.s.crash("renamed")
	return direct.SyncDir(r.p.Dir)
}

// unchanged checks, last of all, that what stands at the place is what the
// caller expected.
func (r *replacement) unchanged(ctx context.Context) error {
	info, err := r.p.Dir.Lstat(r.p.Name)
	if err != nil {
		return err
	}
	f, info, err := openEntry(r.p.Dir, r.p.Name, info, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	sha, err := hashFile(ctx, f, info.Size())
	if err != nil {
		return err
	}
	if sha != r.sha || direct.Identify(info) != direct.Identify(r.info) || direct.Links(info) != direct.Links(r.info) || info.Mode() != r.info.Mode() {
		return HashConflict.New("The file was changed by something else during the call.")
	}
	return nil
}

// renameNew renames within a directory unless the new name exists
// ([fs.ErrExist]). On file systems that can do neither of the two safe ways,
// only other programs can come between the check and the renaming.
func renameNew(dir *os.Root, from, to string) error {
	err := renameExclusive(dir, from, to)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	switch err := dir.Link(from, to); {
	case err == nil:
		return dir.Remove(from)
	case errors.Is(err, fs.ErrExist):
		return err
	}
	if _, err := dir.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fs.ErrExist, err)
	}
	return dir.Rename(from, to)
}
