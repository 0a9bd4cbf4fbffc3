//go:build !linux

package files

import "os"

// readEntries reads a directory.
func readEntries(dir *os.File) ([]entry, error) {
	names, err := dir.Readdirnames(-1)
	out := make([]entry, len(names))
	for i, name := range names {
		out[i] = entry{name, unknown}
	}
	return out, err
}
