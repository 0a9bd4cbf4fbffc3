// Package state is what a device keeps on disk: its place at a relay, the calls
// that it has begun, and the sign that it runs.
//
// It owns the state directory, 0700, with token.json, calls.jsonl, device.pid,
// device.sock and what plugins are given to keep (spill, jobs). It promises that a
// call is on disk before it runs, that files are replaced atomically and readable by
// their owner alone, and that two processes never use one directory at a time. It
// leaves the meaning of calls and results to package device.
package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/gofrs/flock"
	"github.com/google/renameio/v2"

	"agentrelay/internal/devices/wire"
)

// Dir is a state directory.
type Dir struct{ path string }

// Open makes the directory if there is none. One that others may enter is closed to
// them.
func Open(path string) (Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return Dir{}, err
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return Dir{}, fmt.Errorf("making the state directory: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return Dir{}, err
	}
	if !info.IsDir() {
		return Dir{}, fmt.Errorf("%s is no directory", path)
	}
	if info.Mode().Perm()&0o077 != 0 {
		if err := os.Chmod(path, 0o700); err != nil {
			return Dir{}, fmt.Errorf("others may enter the state directory: %w", err)
		}
	}
	return Dir{path}, nil
}

// Path is the directory; Spill and Socket lie in it.
func (d Dir) Path() string   { return d.path }
func (d Dir) Spill() string  { return filepath.Join(d.path, "spill") }
func (d Dir) Socket() string { return filepath.Join(d.path, "device.sock") }
func (d Dir) token() string  { return filepath.Join(d.path, "token.json") }
func (d Dir) pid() string    { return filepath.Join(d.path, "device.pid") }

// Identity is a device's place at a relay.
type Identity struct {
	RelayURL string `json:"relay_url"`
	Device   string `json:"device"`
	Token    string `json:"token"`
	// Pin is the SHA-256 of the relay's certificate in hex, or empty.
	Pin string `json:"pin,omitempty"`
	// Plain says that the owner accepted a link without encryption to a host that
	// is neither this machine nor in a tailnet.
	Plain bool `json:"plain,omitempty"`
}

// ErrNotPaired says that there is no identity.
var ErrNotPaired = errors.New("this device is not paired")

// Identity reads token.json.
func (d Dir) Identity() (Identity, error) {
	info, err := os.Stat(d.token())
	if errors.Is(err, fs.ErrNotExist) {
		return Identity{}, ErrNotPaired
	}
	if err != nil {
		return Identity{}, fmt.Errorf("token.json can't be read: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return Identity{}, fmt.Errorf("%s may be read or written by others: chmod 600 it, or pair again", d.token())
	}
	raw, err := os.ReadFile(d.token())
	if err != nil {
		return Identity{}, fmt.Errorf("token.json can't be read: %w", err)
	}
	var id Identity
	// The error of JSON could show what is in the file.
	if json.Unmarshal(raw, &id) != nil || id.RelayURL == "" || id.Token == "" || !wire.NameForm.MatchString(id.Device) {
		return Identity{}, fmt.Errorf("%s is damaged: pair again with --replace", d.token())
	}
	return id, nil
}

// SetIdentity writes token.json, 0600.
func (d Dir) SetIdentity(id Identity) error {
	raw, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(d.token(), append(raw, '\n'), 0o600, renameio.WithStaticPermissions(0o600)); err != nil {
		return fmt.Errorf("writing token.json: %w", err)
	}
	return nil
}

// Forget removes the identity and the calls that belong to it.
func (d Dir) Forget() error {
	for _, path := range []string{d.token(), d.calls()} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Lock is the sign that a process uses the directory.
type Lock struct{ file *flock.Flock }

// ErrRuns says that another process uses the directory.
type ErrRuns struct{ PID int }

func (e *ErrRuns) Error() string {
	if e.PID == 0 {
		return "the device runs already"
	}
	return "the device runs already, as process " + strconv.Itoa(e.PID)
}

// Lock takes the directory for this process; the error is [*ErrRuns] if another has it.
func (d Dir) Lock() (*Lock, error) {
	l := flock.New(d.pid(), flock.SetPermissions(0o600), flock.SetFlag(os.O_CREATE|os.O_RDWR))
	got, err := l.TryLock()
	if err != nil {
		return nil, fmt.Errorf("locking the state directory: %w", err)
	}
	if !got {
		return nil, &ErrRuns{d.recorded()}
	}
	if err := os.WriteFile(d.pid(), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		l.Unlock()
		return nil, fmt.Errorf("writing device.pid: %w", err)
	}
	return &Lock{l}, nil
}

// Release ends the lock. The file stays: removing it would let two processes hold
// locks of two files with one name.
func (l *Lock) Release() { l.file.Unlock() }

// Running is the process that uses the directory, if there is one.
func (d Dir) Running() (pid int, running bool) {
	if _, err := os.Stat(d.pid()); err != nil {
		return 0, false
	}
	l := flock.New(d.pid(), flock.SetFlag(os.O_RDWR))
	got, err := l.TryRLock()
	if err != nil {
		return 0, false
	}
	if got {
		l.Unlock()
		return 0, false
	}
	return d.recorded(), true
}

func (d Dir) recorded() int {
	raw, err := os.ReadFile(d.pid())
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil || pid < 2 {
		return 0
	}
	return pid
}

// Signal sends a signal to the process that uses the directory, and reports whether
// there is one.
func (d Dir) Signal(s syscall.Signal) (bool, error) {
	pid, running := d.Running()
	if !running || pid == 0 {
		return false, nil
	}
	if err := syscall.Kill(pid, s); err != nil {
		return false, fmt.Errorf("signalling process %d: %w", pid, err)
	}
	return true, nil
}
