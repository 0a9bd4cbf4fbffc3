package files

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"agentrelay/internal/direct"
)

const temporaryDir = "temporary"

// temporaryName is the form of the names of temporary files, which lists and
// searches leave out.
var temporaryName = regexp.MustCompile(`^\.agent-relay-[0-9a-f]{16}\.tmp$`)

// staged is new content in a temporary file beside its target. It is discarded
// unless it was renamed.
type staged struct {
	dir    *os.Root
	name   string
	file   *os.File
	marker string // in the state directory, for the sweep after a crash
	hash   hash.Hash
	size   int64
}

// stage makes a temporary file in the directory of p. mode is subject to the
// umask. The marker is made first and needs no sync: both are names in
// directories, and what a crash leaves without a marker is hidden from lists.
func (s *Service) stage(t *direct.Tree, p *direct.Place, mode os.FileMode) (*staged, error) {
	id := make([]byte, 8)
	rand.Read(id)
	st := &staged{name: ".agent-relay-" + hex.EncodeToString(id) + ".tmp", hash: sha256.New()}
	st.marker = filepath.Join(s.state, temporaryDir, st.name)
	var err error
	if st.dir, err = p.Dir.OpenRoot("."); err != nil {
		return nil, err
	}
	if err = st.mark(filepath.Join(t.Dir(), filepath.Dir(p.Path))); err == nil {
		st.file, err = st.dir.OpenFile(st.name, os.O_CREATE|os.O_EXCL|os.O_RDWR, mode)
	}
	if err != nil {
		st.discard()
		return nil, err
	}
	s.crash("staged")
	return st, nil
}

// marker is where a temporary file is. Another directory can have that path when
// it is swept.
type marker struct {
	Dir string `json:"dir"`
	ID  string `json:"id"`
}

func identity(info os.FileInfo) string { return fmt.Sprint(direct.Identify(info)) }

func (st *staged) mark(dir string) error {
	info, err := st.dir.Stat(".")
	if err != nil {
		return err
	}
	raw, err := json.Marshal(marker{dir, identity(info)})
	if err != nil {
		return err
	}
	return os.WriteFile(st.marker, raw, 0o600)
}

// clear removes a temporary file from where it was made.
func (m marker) clear(name string) error {
	dir, err := os.OpenRoot(m.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	info, err := dir.Stat(".")
	if err != nil {
		return err
	}
	if identity(info) != m.ID {
		return errors.New("its directory is another one by now")
	}
	return dir.Remove(name)
}

// Write appends to the temporary file.
func (st *staged) Write(b []byte) (int, error) {
	n, err := st.file.Write(b)
	st.hash.Write(b[:n])
	st.size += int64(n)
	return n, err
}

func (st *staged) sha256() string { return hex.EncodeToString(st.hash.Sum(nil)) }

// discard removes what is left of the temporary file, which after a rename is
// nothing.
func (st *staged) discard() {
	if st.file != nil {
		st.file.Close()
		st.dir.Remove(st.name)
	}
	if st.dir != nil {
		st.dir.Close()
	}
	os.Remove(st.marker)
}

// sweep removes the temporary files that a crash has left, as far as their
// directories answer in time.
func (s *Service) sweep() {
	s.inTime(temporaryDir, func(path string) {
		name := filepath.Base(path)
		raw, err := os.ReadFile(path)
		if err != nil || !temporaryName.MatchString(name) {
			return
		}
		var m marker
		if json.Unmarshal(raw, &m) == nil { // else the crash came before the temporary file
			if err := m.clear(name); err != nil && !os.IsNotExist(err) {
				s.log.Warn("a temporary file of an interrupted write is left", "name", name, "error", err)
				return
			}
		}
		os.Remove(path)
	})
}

// startBudget is how long New waits for file systems that do not answer.
const startBudget = 2 * time.Second

// inTime calls do for every file of a directory of the state, all at once, and
// goes on without those that take long.
func (s *Service) inTime(sub string, do func(path string)) {
	entries, err := os.ReadDir(filepath.Join(s.state, sub))
	if err != nil {
		s.log.Warn("the state of the file tools can't be listed", "directory", sub, "error", err)
		return
	}
	done := make(chan struct{}, len(entries))
	for _, e := range entries {
		go func() {
			do(filepath.Join(s.state, sub, e.Name()))
			done <- struct{}{}
		}()
	}
	budget := time.After(startBudget)
	for range entries {
		select {
		case <-done:
		case <-budget:
			s.log.Warn("what an interrupted write left is cleared later: its file system does not answer", "directory", sub)
			return
		}
	}
}

var _ io.Writer = (*staged)(nil)
