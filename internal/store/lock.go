package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"
)

// lockName is the lock file's name in the state directory. It stays when the
// lock is released: removing a locked file would let two processes lock two.
const lockName = "lock"

// LockedError says that another process holds the state directory.
type LockedError struct {
	Dir string
	PID int // 0 when the holder could not be read
}

func (e *LockedError) Error() string {
	holder := "another process"
	if e.PID > 0 {
		holder = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("the state directory %s is in use by %s: stop that gateway first, or give this one another --config", e.Dir, holder)
}

type lock struct{ f *flock.Flock }

// handOver is how long the lock of a process that is gone is waited for. A
// gateway that is killed while it starts a program leaves a copy of its open
// files behind until that program is executed.
const handOver = 2 * time.Second

// acquire takes the exclusive lock of dir and writes our pid into it. It does not
// wait for a process that lives. The kernel drops the lock when the process ends,
// however it ends.
func acquire(dir string) (*lock, error) {
	path := filepath.Join(dir, lockName)
	f := flock.New(path, flock.SetPermissions(0o600))
	for deadline := time.Now().Add(handOver); ; time.Sleep(5 * time.Millisecond) {
		ok, err := f.TryLock()
		if err != nil {
			return nil, fmt.Errorf("locking %s: %w", dir, err)
		}
		if ok {
			break
		}
		if pid := holder(path); pid == 0 || alive(pid) || time.Now().After(deadline) {
			return nil, &LockedError{Dir: dir, PID: pid}
		}
	}
	if err := os.WriteFile(path, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		f.Close()
		return nil, fmt.Errorf("writing the pid to %s: %w", path, err)
	}
	return &lock{f}, nil
}

// alive reports whether a process is there, also one of another user.
func alive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

func holder(path string) int {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return pid
}

func (l *lock) release() { l.f.Close() }
