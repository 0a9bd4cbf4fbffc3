// Package files is the file tools of the Direct workspace: list, search, read,
// write and edit, on the machine that has the files.
//
// It promises that bytes stay bytes: an edit changes the matched span and
// nothing else, and mode, owner, extended attributes, links and further names of
// a file survive. A change is on disk before it is answered, takes effect
// whole or not at all (over a crash too), replaces only the content that the
// caller expected, and is not made twice by a repeat. Cost is bounded by the page
// that is asked for, not by the file or the tree; one bad entry never ends a
// list or a search.
//
// It leaves to others: which projects there are and which paths are out of
// bounds (package direct), permissions of clients, the audit log, and the
// protocol. It runs no program and opens no connection.
//
// A file is replaced by renaming a synced temporary file over it. Where that
// would lose something (further hard links, an owner or an access list that the
// gateway's user can't give to a new file) the file is written in place, behind
// a synced recovery copy from which a torn write is undone at the next start.
// Files with setuid, setgid or file capabilities are refused: changed content
// must not run with them, and removing them silently would break the file.
// Extended attributes are copied. On macOS access lists that are not extended
// attributes are not kept.
package files

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"agentrelay/internal/direct"
	"agentrelay/internal/keylock"
)

// Options says what a [Service] works with. Log and Now may be nil.
type Options struct {
	Host *direct.Host
	// StateDir is a directory of this service alone, which it creates: recovery
	// copies, the names of temporary files in use, the results of edits. It must
	// be protected by the host's policy.
	StateDir string
	Now      func() time.Time
	Log      *slog.Logger
}

// Service is the file tools of one host. It is safe for concurrent use. Two
// services must not share a state directory.
type Service struct {
	host  *direct.Host
	state string
	now   func() time.Time
	log   *slog.Logger

	// locks has one for each directory in which something is being written (so that
	// no spelling of a name and no overlap of projects gets round it) and one for
	// each file with further links.
	locks   keylock.Locks[direct.FileID]
	results results

	scanners sync.Pool

	crash func(step string) // tests end the process here
}

// New returns the file tools of a host, after it has removed what a crash left
// behind: temporary files are deleted and torn writes undone. What can't be
// undone now (a disk that is not mounted) is kept for the next start and logged.
func New(o Options) (*Service, error) {
	s := &Service{host: o.Host, state: o.StateDir, now: o.Now, log: o.Log, crash: func(string) {}}
	if s.now == nil {
		s.now = time.Now
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	for _, sub := range []string{temporaryDir, recoveryDir, resultsDir} {
		if err := os.MkdirAll(filepath.Join(s.state, sub), 0o700); err != nil {
			return nil, fmt.Errorf("making the state directory of the file tools: %w", err)
		}
	}
	s.results = results{dir: filepath.Join(s.state, resultsDir), now: s.now}
	s.results.prune()
	s.sweep()
	s.recover()
	return s, nil
}
