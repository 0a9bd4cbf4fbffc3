//go:build unix

package direct

import (
	"io/fs"
	"syscall"
)

// FileID identifies a file on its host while it exists.
type FileID struct{ dev, ino uint64 }

// Identify returns what identifies the file of info.
func Identify(info fs.FileInfo) FileID {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return FileID{uint64(s.Dev), s.Ino}
	}
	return FileID{}
}

// Links is how many names a file has.
func Links(info fs.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(s.Nlink)
	}
	return 1
}
