package process

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// BootID names this boot of the machine.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}

// Find looks at one process; the error is [fs.ErrNotExist] when there is none.
func Find(pid int) (Process, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, syscall.ESRCH) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return Process{}, err
	}
	// The name, in parentheses, may hold anything; the last one closes it.
	end := bytes.LastIndexByte(stat, ')')
	fields := strings.Fields(string(stat[end+1:]))
	if end < 0 || len(fields) < 20 {
		return Process{}, fmt.Errorf("process %d: unknown form of stat", pid)
	}
	p := Process{PID: pid, Zombie: fields[0] == "Z" || fields[0] == "X"}
	p.Group, _ = strconv.Atoi(fields[2])
	p.Session, _ = strconv.Atoi(fields[3])
	p.Start, err = strconv.ParseUint(fields[19], 10, 64)
	return p, err
}

// All looks at every process that this user can see.
func All() ([]Process, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var out []Process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, err := Find(pid); err == nil {
			out = append(out, p)
		}
	}
	return out, nil
}

// HasEnv reports whether a process was started with this NAME=value in its
// environment. It is false when that can't be seen.
func HasEnv(pid int, entry string) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	return err == nil && bytes.Contains(append([]byte{0}, env...), []byte("\x00"+entry+"\x00"))
}

// AdoptOrphans makes this process the parent of its descendants whose own
// parent ends, and reports whether the system can do that.
func AdoptOrphans() bool {
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == nil
}

// WaitExit returns when the child leader has ended, without reaping it: until
// then neither its pid nor its group can be used again. Other children, which
// were adopted, are reaped meanwhile.
func WaitExit(leader int) error {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		// The pid is the first member of the union, which is aligned as a pointer.
		word := unsafe.Sizeof(uintptr(0))
		offset := (unsafe.Offsetof(info.Code) + 4 + word - 1) &^ (word - 1)
		pid := int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), offset)))
		if pid == leader {
			return nil
		}
		if _, err := unix.Wait4(pid, nil, 0, nil); err != nil && err != unix.EINTR && err != unix.ECHILD {
			return err
		}
	}
}
