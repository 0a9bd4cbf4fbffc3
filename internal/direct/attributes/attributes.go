// Package attributes is what a file has beside its content, and what must not be
// lost when another file takes its place: owner, mode and extended attributes,
// access lists among them.
//
// It promises that a new file has all of the old one's, or that its caller hears
// that it can't. It leaves to others whether a file may be replaced, and what to do
// when it can't be without a loss.
package attributes

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrCannotKeep says that a new file would lose something of the old one.
var ErrCannotKeep = errors.New("a new file can't have all that the old one has")

// Adopt gives a new file the owner and the extended attributes of the old, which
// info describes, and the mode perm with the old one's sticky bit. The error is
// [ErrCannotKeep] when the system allows that to nobody like us.
func Adopt(file, old *os.File, info fs.FileInfo, perm fs.FileMode) error {
	mine, err := file.Stat()
	if err != nil {
		return err
	}
	if want := ownerOf(info); ownerOf(mine) != want {
		if err := file.Chown(want.uid, want.gid); err != nil {
			return ErrCannotKeep
		}
	}
	if err := file.Chmod(perm | info.Mode()&fs.ModeSticky); err != nil {
		return err
	}
	return copyAttributes(file, old)
}

type owner struct{ uid, gid int }

func ownerOf(info fs.FileInfo) owner {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return owner{int(s.Uid), int(s.Gid)}
	}
	return owner{-1, -1}
}

const capabilities = "security.capability"

// HasCapabilities reports whether a program gets rights from this file (Linux).
func HasCapabilities(f *os.File) bool {
	_, err := attribute(f, capabilities)
	return err == nil
}

// copyAttributes makes the extended attributes of file those of old. Those that
// the system keeps for itself are copied when it allows that; failing at another
// one is ErrCannotKeep.
func copyAttributes(file, old *os.File) error {
	want := attributeNames(old)
	for _, name := range attributeNames(file) { // of a default access list
		if !slices.Contains(want, name) {
			unix.Fremovexattr(int(file.Fd()), name)
		}
	}
	for _, name := range want {
		value, err := attribute(old, name)
		if err == nil {
			err = unix.Fsetxattr(int(file.Fd()), name, value, 0)
		}
		if err != nil && !ofTheSystem(name) {
			return ErrCannotKeep
		}
	}
	return nil
}

func ofTheSystem(name string) bool {
	for _, prefix := range []string{"security.", "trusted.", "com.apple."} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
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

func attribute(f *os.File, name string) ([]byte, error) {
	size, err := unix.Fgetxattr(int(f.Fd()), name, nil)
	if err != nil {
		return nil, err
	}
	buf := make([]byte, size)
	if size > 0 {
		if size, err = unix.Fgetxattr(int(f.Fd()), name, buf); err != nil {
			return nil, err
		}
	}
	return buf[:size], nil
}
