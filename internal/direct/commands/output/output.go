// Package output is the log of what one command prints: it is written by the
// command's supervisor and read by anybody, at the same time or years later.
//
// It promises that the log stays below its bound however much is printed, that
// its beginning and its end are kept and the bytes lost between them are
// counted exactly, that neither a character nor an escape sequence is cut where
// bytes are lost or a page ends, and that a page costs what a page costs. It
// leaves to others when to stop a command and who may read.
//
// The log is a file for the beginning, output.log, and files for the end,
// output.<position>.log, of which the oldest is removed when there are too
// many. Each is a sequence of frames: source (1 byte), length (2), position of
// the first byte in all output (8), then the bytes as they were printed. Files
// only grow, so a reader needs no lock, and a frame that a kill has torn off is
// recognised by its length.
package output

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Source is where a command printed something.
type Source byte

// The sources.
const (
	Stdout Source = 'o'
	Stderr Source = 'e'
)

func (s Source) String() string {
	if s == Stderr {
		return "stderr"
	}
	return "stdout"
}

const (
	frameHeader = 1 + 2 + 8
	// frameBytes is the most output in a frame. Loss is in whole frames.
	frameBytes = 8 << 10
	headFile   = "output.log"
	// tailFiles is how many files hold the end. One may be nearly empty, so the
	// end that is kept is at least tailFiles-1 of them.
	tailFiles = 12
	// MinBytes is the least bound of a log.
	MinBytes = 16 * 2 * (frameBytes + frameHeader)
)

// Writer writes the log of one command. It is safe for concurrent use.
type Writer struct {
	dir              string
	headMax, tailMax int64 // bytes of a file
	mu               sync.Mutex
	file             *os.File
	size             int64 // of file
	inTail           bool
	tails            []int64 // positions that name the files of the end, oldest first
	end              int64   // position after the last byte, lost ones too
	grown            chan struct{}
	closed           bool
	buffer           []byte // of the last frame
}

// NewWriter starts the log in dir, of at most bound bytes (at least [MinBytes])
// with all that surrounds the output.
func NewWriter(dir string, bound int64) (*Writer, error) {
	bound = max(bound, MinBytes)
	w := &Writer{dir: dir, headMax: bound / 4, tailMax: bound / 16, grown: make(chan struct{})}
	var err error
	w.file, err = os.OpenFile(filepath.Join(dir, headFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	return w, err
}

// Append writes what was printed. It never fails: what can't be stored (a full
// disk) is counted as lost, for a command must not stop because of its log.
func (w *Writer) Append(source Source, p []byte) {
	if len(p) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(p) > 0 {
		n := len(p)
		if n > frameBytes {
			n = frameBytes - heldBack(p[:frameBytes])
		}
		w.frame(source, p[:n])
		p = p[n:]
	}
	close(w.grown)
	w.grown = make(chan struct{})
}

func (w *Writer) frame(source Source, p []byte) {
	position := w.end
	w.end += int64(len(p))
	if w.closed || !w.room(int64(len(p)+frameHeader), position) {
		return
	}
	frame := append(w.buffer[:0], byte(source))
	frame = binary.BigEndian.AppendUint16(frame, uint16(len(p)))
	frame = binary.BigEndian.AppendUint64(frame, uint64(position))
	frame = append(frame, p...)
	w.buffer = frame
	n, err := w.file.WriteAt(frame, w.size)
	if err == nil {
		w.size += int64(n)
		return
	}
	_ = w.file.Truncate(w.size) // else the next frame overwrites what was written
}

// room makes place for n bytes, in the next file if need be.
func (w *Writer) room(n, position int64) bool {
	bound := w.headMax
	if w.inTail {
		bound = w.tailMax
	}
	if w.size+n <= bound {
		return true
	}
	if len(w.tails) == tailFiles {
		_ = os.Remove(filepath.Join(w.dir, tailName(w.tails[0])))
		w.tails = w.tails[1:]
	}
	next, err := os.OpenFile(filepath.Join(w.dir, tailName(position)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return false
	}
	w.file.Close()
	w.file, w.size, w.inTail = next, 0, true
	w.tails = append(w.tails, position)
	return true
}

func tailName(position int64) string { return fmt.Sprintf("output.%016x.log", position) }

// End is the position after the last byte of output, and a channel that is
// closed when there is more.
func (w *Writer) End() (int64, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.end, w.grown
}

// Close syncs and ends the log. What comes later is counted as lost.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	return errors.Join(w.file.Sync(), w.file.Close())
}

// file is a file of a log on disk.
type file struct {
	name  string
	start int64 // position of its first byte
}

// files lists the files of a log, in order.
func files(dir string) ([]file, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []file
	for _, e := range entries {
		middle, ok := strings.CutPrefix(e.Name(), "output.")
		if !ok {
			continue
		}
		if middle == "log" {
			out = append(out, file{headFile, 0})
			continue
		}
		start, err := strconv.ParseInt(strings.TrimSuffix(middle, ".log"), 16, 64)
		if err == nil {
			out = append(out, file{e.Name(), start})
		}
	}
	slices.SortFunc(out, func(a, b file) int {
		if a.start != b.start {
			return cmp.Compare(a.start, b.start)
		}
		return len(a.name) - len(b.name) // the beginning before an end that starts at 0
	})
	return out, nil
}

// Size is how many bytes of disk a log takes; 0 when there is none.
func Size(dir string) int64 {
	all, _ := files(dir)
	var n int64
	for _, f := range all {
		if info, err := os.Lstat(filepath.Join(dir, f.name)); err == nil {
			n += info.Size()
		}
	}
	return n
}

// Remove removes a log, the beginning last: a log that has one is whole.
func Remove(dir string) error {
	all, err := files(dir)
	if err != nil {
		return err
	}
	for _, f := range slices.Backward(all) {
		if err := os.Remove(filepath.Join(dir, f.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Exists reports whether there is a log.
func Exists(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, headFile))
	return err == nil
}
