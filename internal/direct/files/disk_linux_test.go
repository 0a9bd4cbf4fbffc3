package files_test

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"agentrelay/internal/direct"
	"agentrelay/internal/fault"
)

// smallDisk is a project on a file system of 64 KiB, or else, for want of the
// right to mount one, one in which nothing can be made; and the refusal that a
// write in it gets.
func smallDisk(t *testing.T) (*bench, fault.Kind) {
	b := newBench(t)
	if os.Geteuid() != 0 {
		return b, direct.PermissionDenied
	}
	check(t, unix.Mount("tmpfs", b.dir, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { unix.Unmount(b.dir, 0) })
	return b, direct.NoSpace
}
