// Package transfers moves whole files of any kind in and out of the projects of
// one host: it opens a file so that its bytes can be copied as they were at one
// moment, and it puts content that it is given in a file's place.
//
// It promises that content which was read to its end is that of one moment, and
// that a reader hears of a change instead of an end when it is not; that a file
// is replaced whole or not at all, over a crash too, only while it has the
// content that the caller expected, and keeps its mode, owner, extended
// attributes and further links; that the new content is on disk before it is answered; and that it
// can be asked afterwards, for good, whether a placement took effect: to ask is
// to settle, so a placement that is still under way when it was answered as not
// made will not be made.
//
// It leaves to others: where the bytes come from and go to, limits of size,
// receipts, permissions of clients and the audit log. It knows no network and no
// store.
package transfers

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/files"
	"agentrelay/internal/fault"
)

// Corrupted is the one refusal of this package. Placements share the others with
// package direct and with the writes of package files.
var Corrupted = fault.Kind{Code: "transfer_corrupted", Hint: "Nothing was changed. Repeat the import with a new requestId; if it fails again, the owner should look at the connection to that host and at its disk.", Retryable: true}

// Kinds lists the refusals of this package for docs/errors.md.
func Kinds() []fault.Kind { return []fault.Kind{Corrupted} }

// Options says what a [Service] works with. Now and Log may be nil.
type Options struct {
	Host *direct.Host
	// Files is the file tools of the same host. Their locks keep the two apart,
	// and they write what can't be replaced by renaming.
	Files *files.Service
	// StateDir is a directory of this service alone, which it creates: the
	// records of placements. It must be protected by the host's policy.
	StateDir string
	Now      func() time.Time
	Log      *slog.Logger
}

// Service moves files of one host. It is safe for concurrent use. Two services
// must not share a state directory.
type Service struct {
	host    *direct.Host
	files   *files.Service
	now     func() time.Time
	log     *slog.Logger
	records records

	crash func(step string) // tests end the process here
}

// recordsDir is the name of the records' directory in the state directory.
const recordsDir = "placements"

// New returns the service of a host, after it has settled the placements that a
// crash has interrupted. Those whose file system does not answer in time are
// settled when they are asked for.
func New(o Options) (*Service, error) {
	s := &Service{host: o.Host, files: o.Files, now: o.Now, log: o.Log, crash: func(string) {}}
	if s.now == nil {
		s.now = time.Now
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	dir := filepath.Join(o.StateDir, recordsDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the state directory of transfers: %w", err)
	}
	s.records = records{dir: dir, busy: map[string]bool{}}
	s.recover()
	return s, nil
}
