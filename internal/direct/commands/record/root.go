package record

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"agentrelay/internal/direct/commands/process"
)

// Root is the directory of all commands of a host:
//
//	<commandId>/                          a record
//	active/<commandId>-<owner>            an empty file for each that may not have ended
//	days/<date>/<ms>-<commandId>-<owner>  an empty file for each, to find them by age
//	new-*/                                a record in the making
//
// <owner> is the first 8 hex digits of SHA-256(owner): owners are counted without reading
// records. These lists may name a command that has no record (a crash came
// between), never the other way around.
type Root struct {
	// Dir is absolute and private to the user.
	Dir string
	// RuntimeDir is a short private directory for the sockets of records whose
	// own path is too long for one.
	RuntimeDir string
	// BootID names this boot of the host; nil asks the system.
	BootID func() (string, error)
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// maxSocket is how long the path of a unix socket may be on every system we
// know (104 bytes with the NUL on macOS).
const maxSocket = 103

// ErrExists says that the request has a record already.
var ErrExists = errors.New("the request has a record")

func (r Root) now() time.Time {
	if r.Now == nil {
		return time.Now()
	}
	return r.Now()
}

// Prepare makes the directories.
func (r Root) Prepare() error {
	for _, dir := range []string{r.Dir, filepath.Join(r.Dir, "active"), filepath.Join(r.Dir, "days")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	return nil
}

// Record is the directory of a command, whether or not it exists.
func (r Root) Record(commandID string) Dir { return Dir(filepath.Join(r.Dir, commandID)) }

// OwnerTag stands for an owner in the names of files.
func OwnerTag(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return hex.EncodeToString(sum[:4])
}

// Create makes the record of a command and returns its lock, held, or
// [ErrExists]. It is on disk when it returns. Version, CommandID, CreatedAt and
// Socket are set here.
func (r Root) Create(s Spec) (Spec, *os.File, error) {
	s.Version, s.CommandID, s.CreatedAt = Version, Name(s.Owner, s.RequestID), millis(r.now())
	socket, err := r.socket(s.CommandID)
	if err != nil {
		return Spec{}, nil, err
	}
	s.Socket = socket
	unlist, err := r.list(s)
	if err != nil {
		return Spec{}, nil, err
	}
	held, err := r.publish(s)
	if err != nil {
		unlist()
	}
	return s, held, err
}

// Entomb makes a record that says that the request came to nothing, unless it
// has a record.
func (r Root) Entomb(owner, requestID string) error {
	held, err := r.publish(Spec{
		Version: Version, CommandID: Name(owner, requestID), Owner: owner, RequestID: requestID,
		CreatedAt: millis(r.now()), Tombstone: true,
	})
	if errors.Is(err, ErrExists) {
		return nil
	}
	if err == nil {
		held.Close()
	}
	return err
}

// publish writes a record beside its place and renames it there, which fails
// when there is one: so a record is always whole.
func (r Root) publish(s Spec) (*os.File, error) {
	made, err := os.MkdirTemp(r.Dir, "new-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(made) // nothing is there any more after success
	d := Dir(made)
	if err := d.write(specFile, s, true); err != nil {
		return nil, err
	}
	held, err := d.Lock()
	if err != nil {
		return nil, err
	}
	err = errors.Join(syncDir(made), os.Rename(made, string(r.Record(s.CommandID))))
	if errors.Is(err, fs.ErrExist) {
		err = ErrExists
	}
	if err == nil {
		err = syncDir(r.Dir)
	}
	if err != nil {
		held.Close()
		return nil, err
	}
	return held, nil
}

// socket chooses the path of a record's socket.
func (r Root) socket(commandID string) (string, error) {
	path := r.Record(commandID).file("s")
	if len(path) <= maxSocket {
		return path, nil
	}
	if err := private(r.RuntimeDir); err != nil {
		return "", err
	}
	path = filepath.Join(r.RuntimeDir, commandID)
	if len(path) > maxSocket {
		return "", fmt.Errorf("the state directory and the runtime directory are both too long for a socket of %d bytes", maxSocket)
	}
	return path, nil
}

// private makes a directory that is this user's alone, or refuses what is there.
func private(dir string) error {
	if dir == "" {
		return errors.New("the state directory is too long for a socket, and there is no runtime directory")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() || info.Mode().Perm()&0o077 != 0 || !ours(info) {
		return errors.New("the runtime directory is not a private directory of this user")
	}
	return nil
}

// list enters a command in the lists and returns how to take it out again.
func (r Root) list(s Spec) (unlist func(), err error) {
	day := filepath.Join(r.Dir, "days", time.UnixMilli(s.CreatedAt).UTC().Format(time.DateOnly))
	if err := os.MkdirAll(day, 0o700); err != nil {
		return nil, err
	}
	entry := Entry{s.CreatedAt, s.CommandID, OwnerTag(s.Owner), false}
	paths := []string{r.active(s), filepath.Join(day, entry.String())}
	if _, err := os.Lstat(string(r.Record(s.CommandID))); err == nil {
		return nil, ErrExists
	}
	unlist = func() {
		rec, err := r.Record(s.CommandID).Load()
		if err != nil {
			os.Remove(paths[0])
		}
		if err != nil || rec.CreatedAt != s.CreatedAt {
			os.Remove(paths[1])
		}
	}
	for _, p := range paths {
		f, err := os.OpenFile(p, os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			unlist()
			return nil, err
		}
		f.Close()
	}
	return unlist, nil
}

func (r Root) active(s Spec) string {
	return filepath.Join(r.Dir, "active", s.CommandID+"-"+OwnerTag(s.Owner))
}

// Ended takes a command out of the list of those that may not have ended.
func (d Dir) Ended(s Spec) {
	os.Remove(Root{Dir: filepath.Dir(string(d))}.active(s)) // else it is found to have ended when it is next asked
}

// Active lists the commands that may not have ended: commandId and owner tag.
func (r Root) Active() (map[string]string, error) {
	entries, err := os.ReadDir(filepath.Join(r.Dir, "active"))
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, e := range entries {
		if id, tag, ok := strings.Cut(e.Name(), "-"); ok && IsName(id) {
			out[id] = tag
		}
	}
	return out, nil
}

func (r Root) bootID() (string, error) {
	if r.BootID != nil {
		return r.BootID()
	}
	return process.BootID()
}

// Forget takes a command out of the list of those that may not have ended, when
// it has no record and is not about to get one.
func (r Root) Forget(commandID string) {
	found, _ := filepath.Glob(filepath.Join(r.Dir, "active", commandID+"-*"))
	for _, path := range found {
		if info, err := os.Lstat(path); err == nil && r.now().Sub(info.ModTime()) > time.Minute {
			os.Remove(path)
		}
	}
}
