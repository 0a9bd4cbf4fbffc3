// Package capability is the files by which agents on a machine prove who they
// are: one an agent, with a key that only the user who owns it can read.
//
// It owns where the files and the socket of the channel lie below a state
// directory, their form, and the checks under which they are read and written. It
// promises that no link is followed, that nothing which another user can read or
// change is trusted, that a file is whole or not there, and that no error names a
// key. It leaves to package channel which keys hold, and it links nothing that
// the peer-agent program does not need.
package capability

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"agentrelay/internal/callerid"
)

const (
	// Dir is the directory of the files, in a state directory.
	Dir = "agent-channels"
	// Socket is the name of the channel's socket in a state directory. On an SSH
	// host it is a link to the socket of the present connection.
	Socket = "agent-channel.sock"
	// MaxSocketPath is how many bytes a socket's path may have: macOS has room for
	// 104 with the NUL at the end, Linux for 108.
	MaxSocketPath = 103

	keyBytes = 32
	maxFile  = 1024
	version  = 1
)

// File is what a capability file holds.
type File struct {
	Version int    `json:"version"`
	AgentID string `json:"agentId"`
	Key     string `json:"key"` // 64 lower-case hexadecimal digits
}

// UnsafeError says that a file or directory is not private, or is no file or
// directory at all. Its path is one of this machine.
type UnsafeError struct {
	Path   string
	Reason string // what is wrong, and what to do
}

func (e *UnsafeError) Error() string { return e.Path + " " + e.Reason }

// ErrMalformed is a private file that holds no capability of the agent.
var ErrMalformed = errors.New("the capability file has another form than this version writes")

var (
	uuidForm = regexp.MustCompile(`^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$`)
	keyForm  = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// AgentID is the canonical form of an agent's id: UUIDs are lower case. ok is
// false for what is no id.
func AgentID(s string) (id string, ok bool) {
	if uuidForm.MatchString(s) {
		s = strings.ToLower(s)
	}
	return s, callerid.Valid(s)
}

// IsUUID reports whether s is a UUID of any case.
func IsUUID(s string) bool { return uuidForm.MatchString(s) }

// New makes a capability with a key from random.
func New(agentID string, random io.Reader) (File, error) {
	key := make([]byte, keyBytes)
	if _, err := io.ReadFull(random, key); err != nil {
		return File{}, fmt.Errorf("making a key: %w", err)
	}
	return File{version, agentID, hex.EncodeToString(key)}, nil
}

// Hash is what a store keeps of a key, and nil for what has not a key's form.
func Hash(key string) []byte {
	if !keyForm.MatchString(key) {
		return nil
	}
	sum := sha256.Sum256([]byte(key))
	return sum[:]
}

// Name is the path of an agent's file in a state directory, with slashes. The id
// must be canonical.
func Name(agentID string) string { return Dir + "/" + agentID + ".json" }

// Encode is the content of the file.
func (f File) Encode() []byte {
	raw, err := json.Marshal(f)
	if err != nil {
		panic(err) // three plain members always encode
	}
	return append(raw, '\n')
}

// Decode reads the content of the file of an agent. The error is [ErrMalformed].
func Decode(raw []byte, agentID string) (File, error) {
	var f File
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if d.Decode(&f) != nil || d.More() || f.Version != version || f.AgentID != agentID || !keyForm.MatchString(f.Key) {
		return File{}, ErrMalformed
	}
	return f, nil
}

// Read reads an agent's file in a state directory. stateDir must not be reached
// over a link. Besides [UnsafeError] and [ErrMalformed] the error is
// [fs.ErrNotExist] when there is none.
func Read(stateDir, agentID string) (File, error) {
	if err := CheckDir(stateDir); err != nil {
		return File{}, err
	}
	if err := CheckDir(filepath.Join(stateDir, Dir)); err != nil {
		return File{}, err
	}
	raw, err := readPrivate(filepath.Join(stateDir, Name(agentID)))
	if err != nil {
		return File{}, err
	}
	return Decode(raw, agentID)
}

// readPrivate reads a small file that only this user can read and write. A pipe
// in its place is not waited for.
func readPrivate(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
		return nil, &UnsafeError{path, "is no regular file: remove it"}
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &UnsafeError{path, "is no regular file: remove it"}
	}
	if err := private(path, info); err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	if len(raw) > maxFile {
		return nil, ErrMalformed
	}
	return raw, nil
}

// Write puts an agent's file into a state directory, in place of the one that is
// there. A link or anything else but a private file in its place is left alone,
// with an [UnsafeError]. The directory of the files is made when it is missing.
func Write(stateDir string, f File) error {
	if err := CheckDir(stateDir); err != nil {
		return err
	}
	dir := filepath.Join(stateDir, Dir)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("making %s: %w", dir, err)
	}
	if err := CheckDir(dir); err != nil {
		return err
	}
	path := filepath.Join(stateDir, Name(f.AgentID))
	if _, err := readPrivate(path); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrMalformed) {
		return err
	}
	if err := renameio.WriteFile(path, f.Encode(), 0o600, renameio.IgnoreUmask(), renameio.WithTempDir(dir)); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// Remove removes an agent's file. That it isn't there is no error.
func Remove(stateDir, agentID string) error {
	err := os.Remove(filepath.Join(stateDir, Name(agentID)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// CheckDir refuses what is no directory of this user alone. It does not look at
// what lies above it.
func CheckDir(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return &UnsafeError{path, "is no directory: move it away"}
	}
	return private(path, info)
}

// private refuses what is another user's, or open to other users.
func private(path string, info fs.FileInfo) error {
	if owner, ok := ownerOf(info); !ok || owner != os.Geteuid() {
		return &UnsafeError{path, "belongs to another user: remove it, or run this as that user"}
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return &UnsafeError{path, fmt.Sprintf("has mode %04o, so that other users can use it: run chmod go-rwx on it", mode)}
	}
	return nil
}
