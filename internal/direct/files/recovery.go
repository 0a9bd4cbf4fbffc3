package files

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"agentrelay/internal/direct"
)

const recoveryDir = "recovery"

// recovery is the first line of a recovery copy. Behind it stand the bytes that
// the file had and then those that it should get: what lies in the file after a
// crash is a mixture of the two, unless something else has written it since.
type recovery struct {
	Path    string `json:"path"` // absolute
	Inode   string `json:"inode"`
	OldSize int64  `json:"oldSize"`
	NewSize int64  `json:"newSize"`
}

// overwrite writes the staged content into the file itself, which keeps its
// further names, owner and access lists.
func (r *replacement) overwrite(st *staged, perm fs.FileMode) error {
	f, _, err := openEntry(r.p.Dir, r.p.Name, r.info, os.O_RDWR)
	if err != nil {
		return err
	}
	defer f.Close()
	rec := recovery{
		Path:  filepath.Join(r.t.Dir(), r.p.Path),
		Inode: inodeOf(r.info), OldSize: r.info.Size(), NewSize: st.size,
	}
	path, err := r.s.keep(rec, r.old, st.file)
	if err != nil {
		return err
	}
	r.s.crash("kept")
	if err := r.s.write(f, st.file, rec); err != nil {
		return errors.Join(err, r.s.restore(f, path, rec))
	}
	if mode := perm | r.info.Mode()&fs.ModeSticky; mode != r.info.Mode() {
		if err := f.Chmod(mode); err != nil {
			return errors.Join(err, r.s.restore(f, path, rec))
		}
	}
	r.s.crash("written")
	return os.Remove(path)
}

// keep makes a recovery copy durable and returns its path.
func (s *Service) keep(rec recovery, old, content io.ReaderAt) (path string, err error) {
	id := make([]byte, 8)
	rand.Read(id)
	path = filepath.Join(s.state, recoveryDir, hex.EncodeToString(id))
	head, err := json.Marshal(rec)
	if err != nil {
		return "", err
	}
	return path, writeSynced(path, io.MultiReader(
		bytes.NewReader(append(head, '\n')),
		io.NewSectionReader(old, 0, rec.OldSize),
		io.NewSectionReader(content, 0, rec.NewSize),
	))
}

// write makes the bytes of f those of content. What may need space comes first,
// before anything is lost.
func (s *Service) write(f *os.File, content io.ReaderAt, rec recovery) error {
	kept := min(rec.OldSize, rec.NewSize)
	if err := s.copyRange(f, content, kept, rec.NewSize); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	s.crash("grown")
	if err := s.copyRange(f, content, 0, kept); err != nil {
		return err
	}
	s.crash("full")
	if err := f.Truncate(rec.NewSize); err != nil {
		return err
	}
	s.crash("cut")
	return f.Sync()
}

func (s *Service) copyRange(f *os.File, content io.ReaderAt, from, to int64) error {
	const block = 64 << 10
	for ; from < to; from += block {
		part := io.NewSectionReader(content, from, min(block, to-from))
		if _, err := io.Copy(io.NewOffsetWriter(f, from), part); err != nil {
			return err
		}
		s.crash("block")
	}
	return nil
}

// restore undoes a write that failed. The old bytes are no longer in the file,
// so they come from the recovery copy.
func (s *Service) restore(f *os.File, path string, rec recovery) error {
	c, _, offset, err := openRecovery(path)
	if err != nil {
		return err
	}
	defer c.Close()
	old := io.NewSectionReader(c, offset, rec.OldSize)
	if err := s.write(f, old, recovery{OldSize: rec.NewSize, NewSize: rec.OldSize}); err != nil {
		return fmt.Errorf("undoing a write that failed, which the next start tries again: %w", err)
	}
	return os.Remove(path)
}

// openRecovery opens a recovery copy and says where the old bytes begin.
func openRecovery(path string) (f *os.File, rec recovery, offset int64, err error) {
	if f, err = os.Open(path); err != nil {
		return nil, rec, 0, err
	}
	head, err := bufio.NewReader(f).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(head, &rec)
	}
	info, err2 := f.Stat()
	if err = errors.Join(err, err2); err == nil && info.Size() != int64(len(head))+rec.OldSize+rec.NewSize {
		err = errors.New("the recovery copy is not whole")
	}
	if err != nil {
		f.Close()
		return nil, rec, 0, err
	}
	return f, rec, int64(len(head)), nil
}

// recover undoes the writes that a crash has torn. A file that something else
// has written since is left alone, and its copy is kept.
func (s *Service) recover() {
	s.inTime(recoveryDir, func(path string) {
		if err := s.recoverOne(path); err != nil {
			s.log.Warn("a write that was interrupted by a crash is not undone; the recovery copy stays", "copy", filepath.Base(path), "error", err)
		}
	})
}

func (s *Service) recoverOne(path string) error {
	if strings.HasSuffix(path, unfinished) { // the file itself was not touched yet
		return os.Remove(path)
	}
	copied, rec, offset, err := openRecovery(path)
	if err != nil {
		return err
	}
	defer copied.Close()
	f, err := os.OpenFile(rec.Path, os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if inodeOf(info) != rec.Inode || !info.Mode().IsRegular() {
		return errors.New("another file stands there now")
	}
	release, err := s.locks.Acquire(context.Background(), direct.Identify(info)) // a slow file system may answer when writing goes on
	if err != nil {
		return err
	}
	defer release()
	if info, err = f.Stat(); err != nil {
		return err
	}
	old := io.NewSectionReader(copied, offset, rec.OldSize)
	content := io.NewSectionReader(copied, offset+rec.OldSize, rec.NewSize)
	switch torn, err := isTorn(f, info.Size(), old, content); {
	case err != nil:
		return err
	case torn:
		s.log.Info("a write that was interrupted by a crash is undone", "copy", filepath.Base(path))
		return s.restore(f, path, rec)
	}
	return os.Remove(path)
}

// isTorn reports whether f is a mixture of old and content but neither of them.
// It is an error when f is something else.
func isTorn(f io.ReaderAt, size int64, old, content *io.SectionReader) (bool, error) {
	isOld, isNew := size == old.Size(), size == content.Size()
	if size < min(old.Size(), content.Size()) || size > max(old.Size(), content.Size()) {
		return false, errors.New("something else has written the file since")
	}
	const block = 256 << 10
	a, b, c := make([]byte, block), make([]byte, block), make([]byte, block)
	for at := int64(0); at < size; at += block {
		n, err := f.ReadAt(a, at)
		if err != nil && err != io.EOF {
			return false, err
		}
		x, err1 := readAt(old, b, at)
		y, err2 := readAt(content, c, at)
		if err := errors.Join(err1, err2); err != nil {
			return false, err
		}
		for i, v := range a[:n] {
			asOld, asNew := i < x && v == b[i], i < y && v == c[i]
			if !asOld && !asNew && (i < x || v != 0) { // growing leaves zeros until the data is on disk
				return false, errors.New("something else has written the file since")
			}
			isOld, isNew = isOld && asOld, isNew && asNew
		}
	}
	return !isOld && !isNew, nil
}

// readAt reads what there is of a block.
func readAt(r *io.SectionReader, b []byte, at int64) (int, error) {
	if at >= r.Size() {
		return 0, nil
	}
	n, err := r.ReadAt(b, at)
	if err == io.EOF {
		err = nil
	}
	return n, err
}

func inodeOf(info fs.FileInfo) string {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return fmt.Sprint(s.Ino)
	}
	return ""
}

// unfinished ends the name of a file that writeSynced is writing.
const unfinished = ".new"

// writeSynced creates a file that is whole or not there, over a crash too.
func writeSynced(path string, content io.Reader) error {
	temp := path + unfinished
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		os.Remove(temp)
		return err
	}
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return direct.SyncDir(dir)
}
