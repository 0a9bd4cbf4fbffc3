package files

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// What a linux_dirent64 holds besides the name, by offset (getdents(2)).
const (
	direntSize = 16 // 2 bytes
	direntType = 18 // 1 byte
	direntName = 19 // ends with a NUL
)

// readEntries reads a directory with the types that it names. [os.File.ReadDir]
// would look at each entry by itself, also at those that lie before the page.
func readEntries(dir *os.File) ([]entry, error) {
	var out []entry
	var buf [16 << 10]byte
	for {
		n, err := unix.Getdents(int(dir.Fd()), buf[:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return out, &fs.PathError{Op: "getdents", Path: dir.Name(), Err: err}
		case n == 0:
			return out, nil
		}
		for rest := buf[:n]; len(rest) > 0; {
			size := binary.NativeEndian.Uint16(rest[direntSize:])
			name, _, _ := bytes.Cut(rest[direntName:size], []byte{0})
			if s := string(name); s != "." && s != ".." {
				out = append(out, entry{s, typeOf(rest[direntType])})
			}
			rest = rest[size:]
		}
	}
}

func typeOf(t byte) fs.FileMode {
	switch t {
	case unix.DT_REG:
		return 0
	case unix.DT_DIR:
		return fs.ModeDir
	case unix.DT_LNK:
		return fs.ModeSymlink
	case unix.DT_FIFO:
		return fs.ModeNamedPipe
	case unix.DT_SOCK:
		return fs.ModeSocket
	case unix.DT_CHR, unix.DT_BLK:
		return fs.ModeDevice
	}
	return unknown // some file systems do not say
}
