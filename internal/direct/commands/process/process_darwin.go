package process

import (
	"bytes"
	"io/fs"

	"golang.org/x/sys/unix"
)

// zombie is SZOMB of <sys/proc.h>.
const zombie = 5

// BootID names this boot of the machine.
func BootID() (string, error) { return unix.Sysctl("kern.bootsessionuuid") }

// Find looks at one process; the error is [fs.ErrNotExist] when there is none.
func Find(pid int) (Process, error) {
	info, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		return Process{}, fs.ErrNotExist
	}
	return of(info), nil
}

func of(info *unix.KinfoProc) Process {
	p := Process{
		PID: int(info.Proc.P_pid), Group: int(info.Eproc.Pgid), Zombie: info.Proc.P_stat == zombie,
		Start: uint64(info.Proc.P_starttime.Sec)*1e6 + uint64(info.Proc.P_starttime.Usec),
	}
	p.Session, _ = unix.Getsid(p.PID) // 0 of one that has ended
	return p
}

// All looks at every process that this user can see.
func All() ([]Process, error) {
	infos, err := unix.SysctlKinfoProcSlice("kern.proc.all")
	if err != nil {
		return nil, err
	}
	out := make([]Process, 0, len(infos))
	for i := range infos {
		out = append(out, of(&infos[i]))
	}
	return out, nil
}

// HasEnv reports whether a process was started with this NAME=value in its
// environment. It is false when that can't be seen.
func HasEnv(pid int, entry string) bool {
	args, err := unix.SysctlRaw("kern.procargs2", pid)
	return err == nil && bytes.Contains(append(args, 0), []byte("\x00"+entry+"\x00"))
}

// AdoptOrphans makes this process the parent of its descendants whose own
// parent ends, and reports whether the system can do that: macOS can't.
func AdoptOrphans() bool { return false }

// WaitExit returns when the child leader has ended, without reaping it: until
// then neither its pid nor its group can be used again.
func WaitExit(leader int) error {
	queue, err := unix.Kqueue()
	if err != nil {
		return err
	}
	defer unix.Close(queue)
	watch := []unix.Kevent_t{{Ident: uint64(leader), Filter: unix.EVFILT_PROC, Flags: unix.EV_ADD | unix.EV_ONESHOT, Fflags: unix.NOTE_EXIT}}
	events := make([]unix.Kevent_t, 1)
	for {
		n, err := unix.Kevent(queue, watch, events, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.ESRCH, n == 1 && events[0].Flags&unix.EV_ERROR != 0 && events[0].Data == int64(unix.ESRCH):
			return nil // it had ended before
		case err != nil:
			return err
		}
		return nil
	}
}
