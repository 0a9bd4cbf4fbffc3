package files

import (
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

type owner struct{ uid, gid int }

func ownerOf(info fs.FileInfo) owner {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return owner{int(s.Uid), int(s.Gid)}
	}
	return owner{-1, -1}
}

const capabilities = "security.capability"

// hasCapabilities reports whether a program gets rights from this file (Linux).
func hasCapabilities(f *os.File) bool {
	_, err := attribute(f, capabilities)
	return err == nil
}

// copyAttributes makes the extended attributes of file those of old. Those that
// the system keeps for itself are copied when it allows that; failing at another
// one is errCannotKeep.
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
			return errCannotKeep
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
