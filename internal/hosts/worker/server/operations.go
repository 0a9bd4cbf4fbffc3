package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"agentrelay/internal/direct"
	"agentrelay/internal/hosts/worker/wire"
)

// state is how far a change has come.
type state string

const (
	unknown   state = ""          // it never arrived
	begun     state = "begun"     // it may have been made
	done      state = "done"      // it was made, or refused, as the record says
	withdrawn state = "withdrawn" // it was answered as not made, and won't be
)

// operation is a line in the record of a change; the last whole one counts.
type operation struct {
	State state `json:"state"`
	// Known is of a run: the command was there before.
	Known  bool            `json:"known,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *wire.Failure   `json:"error,omitempty"`
}

// operations is the memory of changes, a file for each. A change is on record
// before it is made. Its end may be lost with the power, and is then read off
// what it changed; what was never on disk was never made.
type operations struct {
	dir string
	now func() time.Time

	mu   sync.Mutex
	busy map[string]chan struct{} // closed when it is free again
	made int                      // since the last sweep
}

const (
	// operationAge is how long a record is kept. Whoever would ask is long gone,
	// and so is the connection on which a change could still be under way.
	operationAge = 7 * 24 * time.Hour
	sweepEvery   = 4096
)

var operationID = regexp.MustCompile(`^[0-9a-f]{24}$`)

func newOperations(dir string, now func() time.Time) (*operations, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the directory of changes: %w", err)
	}
	o := &operations{dir: dir, now: now, busy: map[string]chan struct{}{}}
	o.sweep()
	return o, nil
}

func (o *operations) sweep() {
	entries, err := os.ReadDir(o.dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && o.now().Sub(info.ModTime()) > operationAge {
			_ = os.Remove(o.path(e.Name()))
		}
	}
}

func (o *operations) path(id string) string { return filepath.Join(o.dir, id) }

// take waits until nobody else works on a change.
func (o *operations) take(ctx context.Context, id string) (release func(), err error) {
	if !operationID.MatchString(id) {
		return nil, errors.New("the id of a change is not 24 hexadecimal digits")
	}
	for {
		o.mu.Lock()
		free, taken := o.busy[id]
		if !taken {
			free = make(chan struct{})
			o.busy[id] = free
			o.mu.Unlock()
			return func() {
				o.mu.Lock()
				defer o.mu.Unlock()
				delete(o.busy, id)
				close(free)
			}, nil
		}
		o.mu.Unlock()
		select {
		case <-free:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// read returns the record of a change. A line that a crash has torn was not
// written.
func (o *operations) read(id string) (op operation, err error) {
	raw, err := os.ReadFile(o.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return operation{}, nil
	}
	if err != nil {
		return operation{}, fmt.Errorf("reading the record of a change: %w", err)
	}
	for line := range bytes.Lines(raw) {
		var next operation
		if bytes.HasSuffix(line, []byte("\n")) && json.Unmarshal(line, &next) == nil {
			op = next
		}
	}
	return op, nil
}

// add appends a line. durable puts it on disk, with the name of the file.
func (o *operations) add(id string, op operation, durable bool) error {
	raw, err := json.Marshal(op)
	if err == nil {
		err = o.append(id, append(raw, '\n'), durable)
	}
	if err != nil {
		return fmt.Errorf("keeping the record of a change: %w", err)
	}
	return nil
}

func (o *operations) append(id string, line []byte, durable bool) error {
	f, err := os.OpenFile(o.path(id), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	// Behind what a crash has torn, the line needs one of its own.
	if info, err := f.Stat(); err != nil {
		return err
	} else if n := info.Size(); n > 0 {
		var last [1]byte
		if _, err := f.ReadAt(last[:], n-1); err != nil {
			return err
		}
		if last[0] != '\n' {
			line = append([]byte{'\n'}, line...)
		}
	}
	if _, err := f.Write(line); err != nil || !durable {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	dir, err := os.OpenRoot(o.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return direct.SyncDir(dir)
}

// begin records that a change is about to be made. One that was settled before
// is refused, or has an answer.
func (o *operations) begin(id string, op operation, durable bool) (before operation, err error) {
	if before, err = o.read(id); err != nil || before.State != unknown {
		return before, err
	}
	op.State = begun
	o.mu.Lock()
	o.made++
	sweep := o.made%sweepEvery == 0
	o.mu.Unlock()
	if sweep {
		o.sweep()
	}
	return operation{}, o.add(id, op, durable)
}
