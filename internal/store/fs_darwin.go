package store

import "golang.org/x/sys/unix"

// networkFS names the file system of dir if it is shared between hosts or
// served by another process over a protocol; else it returns "".
func networkFS(dir string) (string, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "", err
	}
	if st.Flags&unix.MNT_LOCAL != 0 {
		return "", nil
	}
	return unix.ByteSliceToString(st.Fstypename[:]), nil
}
