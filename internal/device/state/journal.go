package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/google/renameio/v2"
)

const (
	// keepRefs is how long it is remembered that a call was begun. A relay sends an
	// open call again, and calls are open for two minutes.
	keepRefs = 7 * 24 * time.Hour
	// maxKept bounds the results that wait for a relay, the oldest go first.
	maxKept = 64
	// maxJournal is the size of the file, in bytes, from which on it is rewritten
	// when most of it is of no more use.
	maxJournal = 4 << 20
)

// Call is what is known of one call.
type Call struct {
	Ref string `json:"ref"`
	// Print identifies what was asked: the same ref with another is another call.
	Print string `json:"print,omitempty"`
	At    int64  `json:"at"` // milliseconds UTC
	// PID and Start identify the process that was started for it, if one was.
	PID   int    `json:"pid,omitempty"`
	Start uint64 `json:"start,omitempty"`
	// Result is the frame of its result, once there is one and until it is acknowledged.
	Result json.RawMessage `json:"result,omitempty"`
	Ended  bool            `json:"ended,omitempty"`
}

// Journal remembers calls over restarts, in a file to which lines are appended. It
// is safe for concurrent use.
type Journal struct {
	now func() time.Time

	mu    sync.Mutex
	path  string
	file  *os.File
	size  int64
	calls map[string]Call
}

func (d Dir) calls() string { return filepath.Join(d.path, "calls.jsonl") }

// Journal opens the journal. A line that a crash cut off is dropped: what it would
// have said had not been promised.
func (d Dir) Journal(now func() time.Time) (*Journal, error) {
	j := &Journal{now: now, path: d.calls(), calls: map[string]Call{}}
	raw, err := os.ReadFile(j.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading the journal of calls: %w", err)
	}
	for line := range bytes.Lines(raw) {
		var c Call
		if line[len(line)-1] == '\n' && json.Unmarshal(line, &c) == nil && c.Ref != "" {
			j.calls[c.Ref] = c
		}
	}
	if err := j.rewrite(); err != nil {
		return nil, err
	}
	return j, nil
}

// rewrite leaves in the file what still counts. The caller holds the lock, or is
// alone.
func (j *Journal) rewrite() error {
	oldest := j.now().Add(-keepRefs).UnixMilli()
	var b bytes.Buffer
	for ref, c := range j.calls {
		if c.At < oldest {
			delete(j.calls, ref)
			continue
		}
		line, err := json.Marshal(c)
		if err != nil {
			return err
		}
		b.Write(append(line, '\n'))
	}
	if err := renameio.WriteFile(j.path, b.Bytes(), 0o600, renameio.WithStaticPermissions(0o600)); err != nil {
		return fmt.Errorf("writing the journal of calls: %w", err)
	}
	file, err := os.OpenFile(j.path, os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("opening the journal of calls: %w", err)
	}
	if j.file != nil {
		j.file.Close()
	}
	j.file, j.size = file, int64(b.Len())
	return syncDir(filepath.Dir(j.path))
}

// syncDir makes the name of a new file last over a loss of power.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// Find is what is known of a call.
func (j *Journal) Find(ref string) (Call, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	c, ok := j.calls[ref]
	return c, ok
}

// ErrKnown says that a call was begun before.
var ErrKnown = errors.New("this call was begun before")

// Begin records that a call is about to run. It is on disk when Begin returns; the
// error is [ErrKnown] if it was there already.
func (j *Journal) Begin(ref, print string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, known := j.calls[ref]; known {
		return ErrKnown
	}
	return j.append(Call{Ref: ref, Print: print, At: j.now().UnixMilli()}, true)
}

// Started records the process of a call that was begun, so that it can be found
// after a crash.
func (j *Journal) Started(ref string, pid int, start uint64) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	c, known := j.calls[ref]
	if !known || c.Ended {
		return nil
	}
	c.PID, c.Start = pid, start
	return j.append(c, false)
}

// End records the result of a call, begun or not. A second result is dropped, and
// the first one returned.
func (j *Journal) End(ref, print string, result json.RawMessage) (json.RawMessage, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	c, known := j.calls[ref]
	if known && c.Ended {
		return c.Result, nil
	}
	if !known {
		c = Call{Ref: ref, Print: print, At: j.now().UnixMilli()}
	}
	c.Ended, c.Result = true, result
	c.PID, c.Start = 0, 0
	if err := j.append(c, true); err != nil {
		return result, err
	}
	return result, j.bound()
}

// Ack drops the result of a call that needs it no more, and remembers the call.
func (j *Journal) Ack(ref string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	c, known := j.calls[ref]
	if !known || !c.Ended || c.Result == nil {
		return nil
	}
	c.Result = nil
	return j.append(c, false)
}

// Kept are the calls with results that wait for a relay, the oldest first.
func (j *Journal) Kept() []Call { return j.list(func(c Call) bool { return c.Result != nil }) }

// Open are the calls that were begun and have not ended.
func (j *Journal) Open() []Call { return j.list(func(c Call) bool { return !c.Ended }) }

func (j *Journal) list(want func(Call) bool) []Call {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.sorted(want)
}

func (j *Journal) sorted(want func(Call) bool) (out []Call) {
	for _, c := range j.calls {
		if want(c) {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b Call) int { return int(a.At - b.At) })
	return out
}

// bound drops the oldest results above the limit.
func (j *Journal) bound() error {
	kept := j.sorted(func(c Call) bool { return c.Result != nil })
	for _, c := range kept[:max(0, len(kept)-maxKept)] {
		c.Result = nil
		if err := j.append(c, false); err != nil {
			return err
		}
	}
	return nil
}

// append writes one line. What isn't on disk isn't known: a failed write leaves the
// journal as it was, but for a line that reading drops.
func (j *Journal) append(c Call, sync bool) error {
	if j.file == nil {
		return errors.New("the journal of calls is closed")
	}
	line, err := json.Marshal(c)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	_, err = j.file.Write(line)
	if err == nil && sync {
		err = j.file.Sync()
	}
	if err != nil {
		_ = j.file.Truncate(j.size) // else the next line would be joined to what is left of this one
		return fmt.Errorf("writing the journal of calls: %w", err)
	}
	j.calls[c.Ref] = c
	if j.size += int64(len(line)); j.size > maxJournal && j.size > 2*j.useful() {
		return j.rewrite()
	}
	return nil
}

// useful is about how large the file would be without what counts no more.
func (j *Journal) useful() (n int64) {
	for _, c := range j.calls {
		n += int64(len(c.Result)) + 200
	}
	return n
}

// Close ends the use of the file.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file == nil {
		return nil
	}
	err := j.file.Close()
	j.file = nil
	return err
}
