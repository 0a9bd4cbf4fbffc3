//go:build unix

package capability

import (
	"io/fs"
	"syscall"
)

// ownerOf is the user id of a file's owner.
func ownerOf(info fs.FileInfo) (int, bool) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(s.Uid), true
}
