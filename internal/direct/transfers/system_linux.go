package transfers

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// clone makes a new file that shares the storage of f.
func clone(f *os.File, path string) error {
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = errors.Join(unix.IoctlFileClone(int(out.Fd()), int(f.Fd())), out.Close())
	if err != nil { // whatever the reason, reading the file can do without
		os.Remove(path)
		return errors.Join(errors.ErrUnsupported, err)
	}
	return nil
}

// renameNew renames within a directory unless the new name exists
// ([fs.ErrExist]). The error is [errors.ErrUnsupported] where that can't be done
// in one step.
func renameNew(dir *os.Root, from, to string) error {
	return rename2(dir, from, to, unix.RENAME_NOREPLACE)
}

// exchange swaps two names of a directory in one step, or fails as [renameNew].
func exchange(dir *os.Root, a, b string) error { return rename2(dir, a, b, unix.RENAME_EXCHANGE) }

func rename2(dir *os.Root, from, to string, flags uint) error {
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	err = unix.Renameat2(int(d.Fd()), from, int(d.Fd()), to, flags)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return errors.Join(errors.ErrUnsupported, err)
	}
	return err
}
