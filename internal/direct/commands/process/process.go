// Package process asks the operating system about processes: what is in a
// session, when something started, which boot this is, what has exited.
//
// It promises that a process is signalled only while it is still the one that
// was looked at: identity is the pid together with the start time, and on Linux
// the signal goes through a descriptor of the process. It sends no signal on its
// own judgement. It leaves to its callers which processes are theirs, and it
// links nothing but the system calls, since the supervisor of every command
// loads it.
package process

import (
	"errors"
	"os"
	"syscall"
)

// Process is one process as it was when it was looked at.
type Process struct {
	PID, Group, Session int
	// Start orders processes of one boot by their start; with PID it is the
	// identity of a process. Its unit is the system's.
	Start uint64
	// Zombie says that it has ended and only its parent's wait is missing.
	Zombie bool
}

// Kill sends SIGKILL to p if it is still the same process, and reports whether
// it was.
func Kill(p Process) (bool, error) {
	held, err := os.FindProcess(p.PID)
	if err != nil {
		return false, nil //nolint:nilerr // there is no such process any more
	}
	defer held.Release()
	// The identity is checked after the process is held, so that what is killed
	// is what was checked.
	now, err := Find(p.PID)
	if err != nil || now.Start != p.Start || now.Zombie {
		return false, nil //nolint:nilerr // it has ended
	}
	err = held.Signal(syscall.SIGKILL)
	if errors.Is(err, os.ErrProcessDone) || errors.Is(err, syscall.ESRCH) {
		return false, nil
	}
	return err == nil, err
}
