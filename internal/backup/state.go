package backup

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"agentrelay/internal/sealing"
	"agentrelay/internal/store"
)

// errNotDir is the error of a path below something that is no directory.
var errNotDir = syscall.ENOTDIR

// left says which parts of a state directory are in no archive: what can be made
// again, what belongs to a process that runs, what lies in a set by its own name,
// and what only helps this machine over its last crash.
var left = regexp.MustCompile(`^(` + strings.Join([]string{
	regexp.QuoteMeta(store.FileName) + `(-wal|-shm|-journal)?`,
	regexp.QuoteMeta(sealing.FileName),
	`owner-password\.txt`, `init\.pending`,
	`lock`, `backups`, `transfer-spool`, `bin`, `builds`,
	`direct/files`,
	`direct/commands/new-[^/]*`,
	`direct/commands/[0-9a-f]{24}/output[^/]*\.log`,
	`(.*/)?\.[^/]*`, // temporary files
	`.*\.new`,
}, "|") + `)$`)

// maxSmall is what is read into memory at once. A larger file is copied as long as
// it was when it was looked at.
const maxSmall = 8 << 20

// pack writes the rest of a state directory into an archive.
func (s Set) pack(ctx context.Context, src Source, path string) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	zip := gzip.NewWriter(f)
	w := tar.NewWriter(zip)
	root := src.StateDir
	err = filepath.WalkDir(root, func(at string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, fs.ErrNotExist) { // gone since its directory was read
			return nil
		}
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(strings.TrimPrefix(at, root), "/")
		switch {
		case name == "":
			return nil
		case left.MatchString(filepath.ToSlash(name)), at == filepath.Dir(filepath.Dir(path)), d.IsDir() && isID.MatchString(d.Name()):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.IsDir(), !d.Type().IsRegular(), at == src.OwnerFile, at == src.ConfigFile:
			return nil
		}
		return add(w, at, filepath.ToSlash(name))
	})
	return errors.Join(err, w.Close(), zip.Close(), f.Sync())
}

// add writes one file, if it is there.
func add(w *tar.Writer, path, name string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	var from io.Reader = f
	size := info.Size()
	if size <= maxSmall {
		raw, err := io.ReadAll(f)
		if err != nil {
			return err
		}
		from, size = bytes.NewReader(raw), int64(len(raw))
	}
	err = w.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: name, Size: size, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX,
	})
	if err != nil {
		return err
	}
	if _, err := io.CopyN(w, from, size); err != nil {
		return fmt.Errorf("copying %s: %w", name, err)
	}
	return nil
}

// entry is a file of the archive.
type entry struct {
	name    string // relative and clean
	mode    fs.FileMode
	changed time.Time
}

// unpack calls each for every file of the archive. It fails when the archive is
// not whole, or has a name that leads out of a state directory.
func (s Set) unpack(ctx context.Context, each func(entry, io.Reader) error) error {
	f, err := os.Open(filepath.Join(s.Dir, stateName))
	if err != nil {
		return err
	}
	defer f.Close()
	damaged := func(err error) error {
		return fmt.Errorf("the backup %s is damaged: %s: %w", s.Dir, stateName, err)
	}
	zip, err := gzip.NewReader(reader{ctx, f})
	if err != nil {
		return damaged(err)
	}
	r := tar.NewReader(zip)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return damaged(err)
		}
		if h.Typeflag != tar.TypeReg || !filepath.IsLocal(h.Name) || path.Clean(h.Name) != h.Name {
			return damaged(fmt.Errorf("%q is not a file of a state directory", h.Name))
		}
		if err := each(entry{h.Name, fs.FileMode(h.Mode).Perm() &^ 0o077, h.ModTime}, r); err != nil {
			return err
		}
	}
	if _, err := io.Copy(io.Discard, zip); err != nil { // the checksum is behind the end
		return damaged(err)
	}
	return nil
}
