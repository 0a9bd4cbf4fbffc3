package direct

import (
	"io/fs"
	"syscall"
	"time"
)

// ChangedAt is when the content, the attributes or a name of a file last changed
// (ctime). Programs can't set it.
func ChangedAt(info fs.FileInfo) time.Time {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return time.Unix(s.Ctimespec.Unix())
	}
	return info.ModTime()
}
