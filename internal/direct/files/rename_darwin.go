package files

import (
	"os"

	"golang.org/x/sys/unix"
)

// renameExclusive renames within a directory unless the new name exists.
func renameExclusive(dir *os.Root, from, to string) error {
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	fd := int(d.Fd())
	return unix.RenameatxNp(fd, from, fd, to, unix.RENAME_EXCL)
}
