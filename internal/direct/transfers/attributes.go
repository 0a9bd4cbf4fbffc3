package transfers

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"agentrelay/internal/direct/files"
)

// errCannotKeep says that a new file would lose something of the old one.
var errCannotKeep = errors.New("a new file can't have all that the old one has")

// adopt gives a new file the owner, mode and extended attributes of the one that
// it will replace.
func adopt(file, old *os.File, info fs.FileInfo) error {
	mine, err := file.Stat()
	if err != nil {
		return err
	}
	if uid, gid := ownerOf(info); !ownedBy(mine, uid, gid) {
		if err := file.Chown(uid, gid); err != nil {
			return errCannotKeep
		}
	}
	if err := file.Chmod(info.Mode().Perm() | info.Mode()&fs.ModeSticky); err != nil {
		return err
	}
	return copyAttributes(file, old)
}

func ownerOf(info fs.FileInfo) (uid, gid int) {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(s.Uid), int(s.Gid)
	}
	return -1, -1
}

func ownedBy(info fs.FileInfo, uid, gid int) bool {
	u, g := ownerOf(info)
	return u == uid && g == gid
}

// hasCapabilities reports whether a program gets rights from this file (Linux).
func hasCapabilities(f *os.File) bool {
	_, err := unix.Fgetxattr(int(f.Fd()), "security.capability", nil)
	return err == nil
}

// copyAttributes makes the extended attributes of file those of old. Those that
// the system keeps for itself are copied when it allows that.
func copyAttributes(file, old *os.File) error {
	want := attributeNames(old)
	for _, name := range attributeNames(file) { // of a default access list
		if !slices.Contains(want, name) {
			unix.Fremovexattr(int(file.Fd()), name)
		}
	}
	for _, name := range want {
		if err := copyAttribute(file, old, name); err != nil && !ofTheSystem(name) {
			return errCannotKeep
		}
	}
	return nil
}

func copyAttribute(file, old *os.File, name string) error {
	size, err := unix.Fgetxattr(int(old.Fd()), name, nil)
	if err != nil {
		return err
	}
	value := make([]byte, size)
	if size > 0 {
		if size, err = unix.Fgetxattr(int(old.Fd()), name, value); err != nil {
			return err
		}
	}
	return unix.Fsetxattr(int(file.Fd()), name, value[:size], 0)
}

func ofTheSystem(name string) bool {
	return slices.ContainsFunc([]string{"security.", "trusted.", "com.apple."}, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// attributeNames is empty on file systems without extended attributes.
func attributeNames(f *os.File) []string {
	size, err := unix.Flistxattr(int(f.Fd()), nil)
	if err != nil || size == 0 {
		return nil
	}
	buf := make([]byte, size+1024)
	if size, err = unix.Flistxattr(int(f.Fd()), buf); err != nil {
		return nil
	}
	return strings.FieldsFunc(string(buf[:size]), func(r rune) bool { return r == 0 })
}

// writable refuses files that must not be changed.
func writable(f *os.File, info fs.FileInfo, reopen func() (*os.File, fs.FileInfo, error)) error {
	switch {
	case info.Mode().Perm()&0o222 == 0:
		return files.ReadOnlyFile.New("The file is read-only.")
	case info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0:
		return files.PrivilegedFile.New("The file is setuid or setgid.")
	case hasCapabilities(f):
		return files.PrivilegedFile.New("The file has file capabilities.")
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
