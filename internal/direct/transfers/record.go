package transfers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"time"

	"github.com/google/renameio/v2"

	"agentrelay/internal/direct"
)

// step is how far a placement has come.
type step string

const (
	staging step = "staging" // a temporary file may exist; the target was not touched
	// armed: the temporary file is complete, and the next thing done is to swap
	// the two names. Which file has the temporary name tells whether it was done.
	armed     step = "armed"
	placed    step = "placed"    // the content is in its place
	withdrawn step = "withdrawn" // it was not placed and will not be
)

// record is the durable memory of one placement, a file named by its id.
type record struct {
	Step step   `json:"step"`
	Dir  string `json:"dir,omitempty"` // absolute; where target and temporary file are
	// DirID identifies Dir: another directory can have its path by the time that
	// this is settled, and nothing is done in that.
	DirID string `json:"dirId,omitempty"`
	Temp  string `json:"temp,omitempty"` // name in Dir
	Name  string `json:"name,omitempty"` // of the target in Dir
	// Staged and Old are the new file and the one it replaces ("" when it
	// creates), once armed; without Temp, when the file is overwritten, the hashes
	// of the two contents.
	Staged string `json:"staged,omitempty"`
	Old    string `json:"old,omitempty"`
	// What is answered.
	Path    string `json:"path,omitempty"`
	Created bool   `json:"created,omitempty"`
}

func (r record) answer() Placed { return Placed{r.Path, r.Created} }

// look describes a file so that another one, or another content, differs.
func look(info fs.FileInfo) string {
	return fmt.Sprintf("%v %d %d", direct.Identify(info), info.Size(), info.ModTime().UnixNano())
}

// records is the directory of records. A record is worked on by one call at a
// time.
type records struct {
	dir string

	mu   sync.Mutex
	busy map[string]bool
}

// ErrBusy is the error for a placement that this process is working on.
var ErrBusy = errors.New("the placement is under way")

// idPattern is the form of ids, which are names of files.
var idPattern = regexp.MustCompile(`^[0-9a-f]{24}$`)

// take begins work on a record, until release.
func (r *records) take(id string) (release func(), err error) {
	if !idPattern.MatchString(id) {
		return nil, errors.New("the id of a placement is not 24 hexadecimal digits")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy[id] {
		return nil, ErrBusy
	}
	r.busy[id] = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.busy, id)
	}, nil
}

func (r *records) path(id string) string { return filepath.Join(r.dir, id) }

// read returns a record; ok is false when there is none.
func (r *records) read(id string) (rec record, ok bool, err error) {
	raw, err := os.ReadFile(r.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, false, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &rec)
	}
	if err != nil {
		return record{}, false, fmt.Errorf("reading the record of a placement: %w", err)
	}
	return rec, true, nil
}

// write makes a record durable.
func (r *records) write(id string, rec record) error {
	raw, err := json.Marshal(rec)
	if err == nil {
		err = renameio.WriteFile(r.path(id), raw, 0o600, renameio.WithTempDir(r.dir))
	}
	if err == nil {
		err = r.sync()
	}
	if err != nil {
		return fmt.Errorf("keeping the record of a placement: %w", err)
	}
	return nil
}

func (r *records) sync() error {
	dir, err := os.OpenRoot(r.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return direct.SyncDir(dir)
}

// Settle answers whether the placement with this id took effect. When it was
// never begun, or begun and not finished, it will not take effect from now on.
// An error means that it can't be told at present; [ErrBusy], that it is under
// way in this process.
func (s *Service) Settle(ctx context.Context, id string) (out Placed, ok bool, err error) {
	release, err := s.records.take(id)
	if err != nil {
		return Placed{}, false, err
	}
	defer release()
	if err := ctx.Err(); err != nil {
		return Placed{}, false, err
	}
	return s.settle(id)
}

// settle is Settle for a record that the caller has taken.
func (s *Service) settle(id string) (out Placed, ok bool, err error) {
	rec, found, err := s.records.read(id)
	switch {
	case err != nil:
		return Placed{}, false, err
	case !found:
		return Placed{}, false, s.records.write(id, record{Step: withdrawn})
	case rec.Step == placed:
		return rec.answer(), true, nil
	case rec.Step == withdrawn:
		return Placed{}, false, nil
	}
	done, err := rec.finish()
	if err != nil {
		return Placed{}, false, err
	}
	if !done {
		return Placed{}, false, s.records.write(id, record{Step: withdrawn})
	}
	return rec.answer(), true, s.records.write(id, record{Step: placed, Path: rec.Path, Created: rec.Created})
}

// finish clears up behind a placement that was interrupted and reports whether
// it took effect. Nobody else removes temporary files, so an armed one that is
// gone was renamed.
func (r record) finish() (done bool, err error) {
	dir, err := r.open()
	if r.Step == staging && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, errMoved)) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for what a placement left: %w", err)
	}
	defer dir.Close()
	if r.Step == armed && r.Temp == "" {
		return r.overwritten(dir)
	}
	temp, err := dir.Lstat(r.Temp)
	if errors.Is(err, fs.ErrNotExist) {
		return r.Step == armed, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for what a placement left: %w", err)
	}
	target, err := dir.Lstat(r.Name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("looking for what a placement left: %w", err)
	}
	mine := target != nil && look(target) == r.Staged
	switch {
	case r.Step == staging:
	case look(temp) == r.Staged:
		done = mine // by a further link
	case look(temp) == r.Old:
		done = true
	case mine: // something else's change was swapped out
		if err := exchange(dir, r.Temp, r.Name); err != nil {
			return false, fmt.Errorf("putting back what a placement swapped out: %w", err)
		}
	}
	return done, errors.Join(dir.Remove(r.Temp), direct.SyncDir(dir))
}

var errMoved = errors.New("its directory is another one by now")

// open opens the directory of the placement, and no other.
func (r record) open() (*os.Root, error) {
	dir, err := os.OpenRoot(r.Dir)
	if err != nil {
		return nil, err
	}
	info, err := dir.Stat(".")
	if err == nil && identity(info) != r.DirID {
		err = errMoved
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

func identity(info fs.FileInfo) string { return fmt.Sprint(direct.Identify(info)) }

// overwritten reports whether a file has the content that was to be written
// into it.
func (r record) overwritten(dir *os.Root) (bool, error) {
	f, err := dir.OpenFile(r.Name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false, fmt.Errorf("looking for what a placement wrote: %w", err)
	}
	defer f.Close()
	sum, err := hashOf(context.Background(), f)
	if err == nil && sum != r.Staged && sum != r.Old {
		err = errors.New("something else has written the file since")
	}
	return sum == r.Staged, err
}

// startBudget is how long New waits for file systems that do not answer, and
// recordAge how long the records of finished placements are kept: their callers
// have stored the answer long before.
const (
	startBudget = 2 * time.Second
	recordAge   = 30 * 24 * time.Hour
)

// recover settles what a crash has interrupted, all at once, and removes old
// records of placements that took effect.
func (s *Service) recover() {
	entries, err := os.ReadDir(s.records.dir)
	if err != nil {
		s.log.Warn("the records of placements can't be listed", "error", err)
		return
	}
	done := make(chan struct{}, len(entries))
	for _, e := range entries {
		go func() {
			defer func() { done <- struct{}{} }()
			if err := s.recoverOne(e); err != nil {
				s.log.Warn("an interrupted placement is not settled yet", "placement", e.Name(), "error", err)
			}
		}()
	}
	budget := time.After(startBudget)
	for range entries {
		select {
		case <-done:
		case <-budget:
			s.log.Warn("interrupted placements are settled later: their file system does not answer")
			return
		}
	}
}

func (s *Service) recoverOne(e fs.DirEntry) error {
	id := e.Name()
	if !idPattern.MatchString(id) { // a temporary file of a record
		return os.Remove(s.records.path(id))
	}
	release, err := s.records.take(id)
	if err != nil {
		return err
	}
	defer release()
	rec, _, err := s.records.read(id)
	if err != nil {
		return err
	}
	info, err := e.Info()
	if err == nil && rec.Step == placed && s.now().Sub(info.ModTime()) > recordAge {
		return os.Remove(s.records.path(id))
	}
	_, _, err = s.settle(id)
	return err
}
