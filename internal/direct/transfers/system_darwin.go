package transfers

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// clone makes a new file that shares the storage of f.
func clone(f *os.File, path string) error {
	err := unix.Fclonefileat(int(f.Fd()), unix.AT_FDCWD, path, 0)
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil { // whatever the reason, reading the file can do without
		os.Remove(path)
		return errors.Join(errors.ErrUnsupported, err)
	}
	return nil
}

// renameNew renames within a directory unless the new name exists
// ([fs.ErrExist]). The error is [errors.ErrUnsupported] where that can't be done
// in one step.
func renameNew(dir *os.Root, from, to string) error { return renameX(dir, from, to, unix.RENAME_EXCL) }

// exchange swaps two names of a directory in one step, or fails as [renameNew].
func exchange(dir *os.Root, a, b string) error { return renameX(dir, a, b, unix.RENAME_SWAP) }

func renameX(dir *os.Root, from, to string, flags uint32) error {
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	err = unix.RenameatxNp(int(d.Fd()), from, int(d.Fd()), to, flags)
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EINVAL) {
		return errors.Join(errors.ErrUnsupported, err)
	}
	return err
}
