package files

import (
	"errors"
	"io/fs"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"agentrelay/internal/direct"
)

// entry is what a directory says of one of its entries.
type entry struct {
	name string
	typ  fs.FileMode // unknown where the directory does not say
}

const unknown = ^fs.FileMode(0)

// sharedDir is a directory that closes with its last user.
type sharedDir struct {
	*os.Root
	file  *os.File // the same
	users atomic.Int32
}

// share takes root over, also when it fails.
func share(root *os.Root) (*sharedDir, error) {
	file, err := root.Open(".")
	if err != nil {
		root.Close()
		return nil, err
	}
	d := &sharedDir{Root: root, file: file}
	d.users.Store(1)
	return d, nil
}

func (d *sharedDir) retain() { d.users.Add(1) }

func (d *sharedDir) release() {
	if d.users.Add(-1) == 0 {
		d.file.Close()
		d.Close()
	}
}

// openPlain opens the plain file name, and never what a link leads to, without
// looking at it before as os.Root has to: that takes a search a fifth more time.
func (d *sharedDir) openPlain(name string) (*os.File, fs.FileInfo, error) {
	fd, err := openat(d.file, name)
	if errors.Is(err, unix.ELOOP) {
		return nil, nil, notPlain()
	}
	if err != nil {
		return nil, nil, &fs.PathError{Op: "openat", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = notPlain()
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

func openat(dir *os.File, name string) (fd int, err error) {
	for {
		fd, err = unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

func notPlain() error { return direct.NotRegularFile.New("path is not a plain file.") }
