package transfers

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"syscall"
)

// spool is the directory in which bytes wait, and how much of it is promised to
// whom.
type spool struct {
	dir          string
	quota, share int64 // of all, and of one owner

	mu       sync.Mutex
	promised map[string]promise // by name
	used     int64
	usedBy   map[string]int64 // by owner
	leftover map[string]bool  // found at the start, or could not be removed
}

// promise is space for a file of an owner; the owner is "" until it is known
// whose a file is that was found at the start.
type promise struct {
	owner string
	size  int64
}

// openSpool makes the directory. What lies in it counts until it is removed.
func openSpool(dir string, quota, share int64) (*spool, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the spool of transfers: %w", err)
	}
	p := &spool{dir: dir, quota: quota, share: share, promised: map[string]promise{}, usedBy: map[string]int64{}, leftover: map[string]bool{}}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("listing the spool of transfers: %w", err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && spoolName.MatchString(e.Name()) {
			p.promise(e.Name(), promise{"", info.Size()})
			p.leftover[e.Name()] = true
		}
	}
	return p, nil
}

var spoolName = regexp.MustCompile(`^[0-9a-f]{32}$`)

// reserve promises size bytes to a name of an owner in all, or refuses.
func (p *spool) reserve(name, owner string, size int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	more := size - p.promised[name].size
	switch {
	case more > 0 && p.used+more > p.quota:
		return SpoolFull.New("The gateway's space for transfers is used up.")
	case more > 0 && p.usedBy[owner]+more > p.share:
		return SpoolFull.Newf("This owner's share of the gateway's space for transfers, which is %d bytes, is used up.", p.share)
	}
	p.promise(name, promise{owner, size})
	return nil
}

// promise puts a promise in the place of what a name had. The caller holds mu.
func (p *spool) promise(name string, to promise) {
	was := p.promised[name]
	p.used += to.size - was.size
	p.usedBy[was.owner] -= was.size
	p.usedBy[to.owner] += to.size
	if p.usedBy[was.owner] == 0 {
		delete(p.usedBy, was.owner)
	}
	p.promised[name] = to
}

// belongs says whose a file is that was found at the start.
func (p *spool) belongs(name, owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.promise(name, promise{owner, p.promised[name].size})
}

// remove deletes the file of a name and takes its promise back. Downloads that
// have it open go on.
func (p *spool) remove(name string) error {
	err := os.Remove(p.path(name))
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		p.leftover[name] = true
		return err // it still takes its space
	}
	delete(p.leftover, name)
	p.promise(name, promise{})
	delete(p.promised, name)
	return nil
}

// leftovers returns the names that may be files of no transfer.
func (p *spool) leftovers() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.leftover))
}

func (p *spool) path(name string) string { return filepath.Join(p.dir, name) }

// newName returns a name that nothing has. It is no secret.
func newName() string {
	id := make([]byte, 16)
	rand.Read(id)
	return hex.EncodeToString(id)
}

// sync makes the names in the spool durable.
func (p *spool) sync() error {
	d, err := os.Open(p.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// growBy is the step in which content of unknown length is given space.
const growBy = 8 << 20

// spooled is a file of the spool while it is written.
type spooled struct {
	spool *spool
	name  string
	owner string
	file  *os.File
	hash  hash.Hash
	size  int64
	room  int64 // reserved
	limit int64
}

// create makes the file of a name of an owner, for at most limit bytes.
func (p *spool) create(name, owner string, limit int64) (*spooled, error) {
	f, err := os.OpenFile(p.path(name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, spoolError(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return &spooled{spool: p, name: name, owner: owner, file: f, hash: sha256.New(), room: p.promised[name].size, limit: limit}, nil
}

// spoolError is the refusal for an error of the spool's disk.
func spoolError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return SpoolFull.New("The gateway's disk is full.").Because(err)
	}
	return err
}

// Write implements [io.Writer]. Its errors are refusals or trouble of the
// gateway's disk.
func (w *spooled) Write(b []byte) (int, error) {
	after := w.size + int64(len(b))
	if after > w.limit {
		return 0, tooLarge(w.limit)
	}
	if after > w.room {
		room := min(after+growBy, w.limit)
		if err := w.spool.reserve(w.name, w.owner, room); err != nil {
			return 0, err
		}
		w.room = room
	}
	n, err := w.file.Write(b)
	w.hash.Write(b[:n])
	w.size += int64(n)
	if err != nil {
		return n, &spoolTrouble{spoolError(err)}
	}
	return n, nil
}

// spoolTrouble tells an error of the spool from one of the reader it copies.
type spoolTrouble struct{ error }

func (e *spoolTrouble) Unwrap() error { return e.error }

func tooLarge(limit int64) error {
	return TransferTooLarge.Newf("The file has more than the %d bytes that one transfer may have.", limit)
}

// finish makes the file durable and gives back what it did not need.
func (w *spooled) finish() (size int64, sum string, err error) {
	err = errors.Join(w.file.Sync(), w.file.Close())
	if err == nil {
		err = w.spool.sync()
	}
	if err != nil {
		return 0, "", spoolError(err)
	}
	return w.size, hex.EncodeToString(w.hash.Sum(nil)), w.spool.reserve(w.name, w.owner, w.size)
}

// abandon closes the file; removing it is left to [spool.remove].
func (w *spooled) abandon() { w.file.Close() }

// copyBlock is how much of a transfer is held in memory.
const copyBlock = 1 << 20

func copyInto(w io.Writer, r io.Reader) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, copyBlock))
}
