package store

import "golang.org/x/sys/unix"

// networkFS names the file system of dir if it is shared between hosts or
// served by another process over a protocol; else it returns "".
func networkFS(dir string) (string, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "", err
	}
	return map[int64]string{
		unix.NFS_SUPER_MAGIC:   "nfs",
		unix.SMB_SUPER_MAGIC:   "smb",
		unix.SMB2_SUPER_MAGIC:  "smb2",
		unix.CIFS_SUPER_MAGIC:  "cifs",
		unix.V9FS_MAGIC:        "9p",
		unix.FUSE_SUPER_MAGIC:  "fuse",
		unix.CODA_SUPER_MAGIC:  "coda",
		unix.AFS_SUPER_MAGIC:   "afs",
		unix.CEPH_SUPER_MAGIC:  "ceph",
		unix.OCFS2_SUPER_MAGIC: "ocfs2",
	}[int64(st.Type)], nil
}
