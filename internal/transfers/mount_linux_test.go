package transfers_test

import "syscall"

// mountSmall makes dir a disk of one MiB.
func mountSmall(dir string) error {
	return syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m,mode=0700")
}

func unmount(dir string) error { return syscall.Unmount(dir, 0) }
