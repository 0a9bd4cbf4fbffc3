// Package record is what a host keeps of its commands on disk: one directory
// per command, which the service that starts it, the supervisor that runs it
// and whoever asks later share.
//
// It promises that a directory, once there, is there for ever and holds a whole
// spec, so that a key is used once; that each record ends in one final status,
// written under the lock that the supervisor holds for life; and that to ask is
// to settle: a question about a command that nobody runs any more decides what
// became of it, and about one that nobody knows makes a tombstone that a start
// still on its way meets. It leaves to others what may run (package commands)
// and the running (package supervisor). It links neither.
package record

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"time"
)

// State is the state of a command.
type State string

// The states. All from Exited on are final.
const (
	Pending     State = "pending" // recorded, not known to run yet
	Running     State = "running"
	Exited      State = "exited"      // ended by itself, whatever its exit code
	Failed      State = "failed"      // never ran: Error says why
	TimedOut    State = "timed_out"   // ended by its deadline
	Cancelled   State = "cancelled"   // ended on request
	Interrupted State = "interrupted" // the host rebooted or the supervisor was killed
	Unknown     State = "unknown"     // the host can't be asked; never on disk
)

// Final reports whether a state stays.
func (s State) Final() bool { return s != Pending && s != Running && s != Unknown }

// Spec is what a command is, written once.
type Spec struct {
	Version   int    `json:"version"`
	CommandID string `json:"commandId"`
	Owner     string `json:"owner"`
	RequestID string `json:"requestId"`
	CreatedAt int64  `json:"createdAt"` // Unix milliseconds, as all times here
	// Tombstone says that this request came to nothing: it was asked about
	// before it was here, and must not run any more. Nothing below is set then.
	Tombstone   bool     `json:"tombstone,omitempty"`
	Fingerprint string   `json:"fingerprint,omitempty"` // of the caller's arguments, hex
	ProjectID   string   `json:"projectId,omitempty"`
	Argv        []string `json:"argv,omitempty"` // what is executed
	// Named is argv[0] as callers see it, when it is a path that does not count
	// from Dir: Argv has it absolute then.
	Named       string `json:"named,omitempty"`
	CWD         string `json:"cwd,omitempty"` // project-relative
	Dir         string `json:"dir,omitempty"` // the same, absolute
	TimeoutMs   int64  `json:"timeoutMs,omitempty"`
	OpenStdin   bool   `json:"openStdin,omitempty"`
	GraceMs     int64  `json:"graceMs,omitempty"`     // from TERM to KILL
	OutputBytes int64  `json:"outputBytes,omitempty"` // bound of the log
	Socket      string `json:"socket,omitempty"`      // absolute
}

// Version is the form of the files. A supervisor refuses another one.
const Version = 1

// Started is written and synced before the command is executed.
type Started struct {
	BootID string `json:"bootId"`
	// PID and Start are the supervisor, which is the leader of the session that
	// the command and its descendants are in.
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
	At    int64  `json:"at"`
}

// Status is how far a command is.
type Status struct {
	State State `json:"state"`
	// PID and Start are the command itself, the leader of its group.
	PID       int    `json:"pid,omitempty"`
	Start     uint64 `json:"start,omitempty"`
	StartedAt int64  `json:"startedAt,omitempty"` // when it was executed
	EndedAt   int64  `json:"endedAt,omitempty"`
	ExitCode  *int   `json:"exitCode,omitempty"`
	Signal    string `json:"signal,omitempty"` // such as SIGKILL
	// Detached says that descendants outlived the command.
	Detached bool   `json:"detached,omitempty"`
	Output   int64  `json:"output,omitempty"` // bytes printed, lost ones too; of a final status
	Error    *Error `json:"error,omitempty"`
}

// Error is why a command did not run or did not end by itself. The hint that
// callers get belongs to the code.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Record is one command.
type Record struct {
	Spec
	Started *Started
	Status  Status
}

// The files of a record. Output is package output's.
const (
	specFile    = "spec.json"
	startedFile = "started"
	statusFile  = "status.json"
	cancelFile  = "cancel"
	inputsFile  = "inputs"
)

// Dir is the directory of one record.
type Dir string

func (d Dir) file(name string) string { return filepath.Join(string(d), name) }

// Name is the name of the directory of a request, which is also its commandId:
// 24 hex digits of SHA-256(owner, NUL, requestId).
func Name(owner, requestID string) string {
	sum := sha256.Sum256([]byte(owner + "\x00" + requestID))
	return hex.EncodeToString(sum[:12])
}

var name = regexp.MustCompile(`^[0-9a-f]{24}$`)

// IsName reports whether s has the form of a commandId.
func IsName(s string) bool { return name.MatchString(s) }

// Load reads a record as it is. The error is [fs.ErrNotExist] when there is none.
func (d Dir) Load() (Record, error) {
	var r Record
	if err := readJSON(d.file(specFile), &r.Spec); err != nil {
		return Record{}, err
	}
	r.Status.State = Pending
	if r.Tombstone {
		r.Status = notStarted(r.CreatedAt)
		return r, nil
	}
	// The status is read last and wins: it is written after started.
	var started Started
	switch err := readJSON(d.file(startedFile), &started); {
	case err == nil:
		r.Started = &started
	case !errors.Is(err, fs.ErrNotExist):
		return Record{}, err
	}
	if err := readJSON(d.file(statusFile), &r.Status); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Record{}, err
	}
	return r, nil
}

func readJSON(path string, v any) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("%s of a command is damaged: %w", filepath.Base(path), err)
	}
	return nil
}

// SetStarted writes and syncs that the command is about to be executed.
func (d Dir) SetStarted(s Started) error { return d.replace(startedFile, s, true) }

// SetStatus replaces the status. A final one is on disk when it returns.
func (d Dir) SetStatus(s Status) error { return d.replace(statusFile, s, s.State.Final()) }

// replace writes a file so that it is whole whenever it is there. The caller
// holds the lock.
func (d Dir) replace(name string, v any, sync bool) error {
	made := name + ".new"
	if err := os.Remove(d.file(made)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // a kill may have left one
	}
	if err := d.write(made, v, sync); err != nil {
		return err
	}
	if err := os.Rename(d.file(made), d.file(name)); err != nil {
		return err
	}
	if sync {
		return syncDir(string(d))
	}
	return nil
}

// write makes a file that must not exist.
func (d Dir) write(name string, v any, sync bool) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(d.file(name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(raw, '\n'))
	if sync {
		err = errors.Join(err, f.Sync())
	}
	return errors.Join(err, f.Close())
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// RequestCancel leaves word for a supervisor that does not listen yet. The
// supervisor listens first and then looks for it, so that one of the two ways
// reaches it.
func (d Dir) RequestCancel() error {
	f, err := os.OpenFile(d.file(cancelFile), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// CancelRequested reports whether there is word of a cancellation.
func (d Dir) CancelRequested() bool {
	_, err := os.Lstat(d.file(cancelFile))
	return err == nil
}

// ErrHeld says that another process holds the lock of a record.
var ErrHeld = errors.New("the command's record is held by another process")

// Lock takes the lock of a record or answers [ErrHeld] at once. Closing the
// file gives it back. A supervisor may inherit the file and with it the lock.
func (d Dir) Lock() (*os.File, error) {
	f, err := os.Open(d.file(specFile))
	if err != nil {
		return nil, err
	}
	if err := lock(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func lock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return ErrHeld
		default:
			return err
		}
	}
}

// Inherited takes the lock through a descriptor that this process was started
// with, if that is the spec of this record.
func (d Dir) Inherited(fd uintptr) (*os.File, error) {
	var there syscall.Stat_t
	if err := syscall.Fstat(int(fd), &there); err != nil {
		return nil, err
	}
	info, err := os.Stat(d.file(specFile))
	if err != nil {
		return nil, err
	}
	if here, ok := info.Sys().(*syscall.Stat_t); !ok || here.Dev != there.Dev || here.Ino != there.Ino {
		return nil, fs.ErrInvalid
	}
	syscall.CloseOnExec(int(fd))
	f := os.NewFile(fd, specFile)
	return f, lock(f)
}

func millis(t time.Time) int64 { return t.UnixMilli() }
