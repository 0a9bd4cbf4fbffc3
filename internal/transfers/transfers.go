// Package transfers moves files between projects and clients in whole, without
// their bytes passing through a model: exports, which become a download link,
// and imports from a public address.
//
// It owns the receipts of transfers, the tickets in download links, the spool in
// which bytes wait, the downloads made for imports, and the handler of
// GET /files/{ticket}/{name}. It promises that a requestId begins one transfer,
// for ever and over restarts, whatever the number of callers; that a receipt
// never claims more than is known (see [State]) and ends truthfully after a
// crash at any instant; that a link gives exactly the bytes the file had at one
// moment; that of a ticket only the hash is stored; that ending a client, or the
// owner's revocation, cuts downloads that are running; and that memory does not
// grow with the size of a file. Imports reach out through internal/safedial
// alone.
//
// It leaves to others: where files lie and how they are replaced ([Host]), which
// hosts there are ([Hosts]), permissions of clients and the record of refused
// calls. It stands beside internal/direct, which knows no network and no store.
package transfers

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"time"

	host "agentrelay/internal/direct/transfers"
	"agentrelay/internal/fault"
	"agentrelay/internal/keylock"
	"agentrelay/internal/safedial"
	"agentrelay/internal/store"
)

// Host is a machine that has files. [host.Service] is one. Its refusals are for
// callers; any other error means that the host could not be asked.
type Host interface {
	// Open opens a file for reading. It is quick: the bytes come with Content.
	Open(ctx context.Context, projectID, path string) (*host.Snapshot, error)
	// Check refuses a placement that would be refused later.
	Check(ctx context.Context, in host.Placement) error
	// Place puts content in its place. Unless it returns nil or a refusal, Settle
	// is asked what became of it.
	Place(ctx context.Context, in host.Placement, content io.Reader) (host.Placed, error)
	// Settle answers whether a placement took effect, for good.
	Settle(ctx context.Context, id string) (placed host.Placed, ok bool, err error)
}

// Hosts finds hosts.
type Hosts interface {
	// Host returns the host with a canonical id, or a refusal (unknown_host,
	// host_unavailable).
	Host(id string) (Host, error)
}

// The defaults of [Limits].
const (
	DefaultFileBytes      = 1 << 30
	DefaultSpoolBytes     = 8 << 30
	DefaultPerOwner       = 64
	DefaultJobs           = 4
	DefaultPerTicket      = 8
	DefaultDownloads      = 64
	DefaultTicketLife     = 10 * time.Minute
	DefaultImportTime     = time.Hour
	DefaultStall          = 30 * time.Second
	minStallBytes         = 16 << 10
	maxRedirects          = 3
	closingBudget         = 5 * time.Second
	spoolDir              = "transfer-spool"
	filesPrefix           = "/files/"
	snapshotTries         = 3
	snapshotRetryInterval = 200 * time.Millisecond
)

// Limits bounds transfers. A zero field means its default.
type Limits struct {
	FileBytes  int64 // of one file
	SpoolBytes int64 // of all that waits in the spool
	// SpoolPerOwner is how much of it one owner may have; 0 is all, where there is
	// one owner.
	SpoolPerOwner int64
	// PerOwner is how many transfers of an owner may be pending or have a live
	// link.
	PerOwner int
	// Jobs is how many exports, and as many imports, work at a time on one host;
	// more wait as pending.
	Jobs int
	// PerTicket and Downloads are how many downloads may run at a time, of one
	// link and of all.
	PerTicket, Downloads int
	// TicketLife is how long a link works. A download that began in time may end
	// later.
	TicketLife time.Duration
	// ImportTime bounds one download for an import.
	ImportTime time.Duration
	// Stall is how long a download in either direction may go without real
	// progress (16 KiB for imports) before it is ended.
	Stall time.Duration
}

func (l Limits) withDefaults() Limits {
	return Limits{
		cmp.Or(l.FileBytes, DefaultFileBytes), cmp.Or(l.SpoolBytes, DefaultSpoolBytes), cmp.Or(l.SpoolPerOwner, l.SpoolBytes, DefaultSpoolBytes), cmp.Or(l.PerOwner, DefaultPerOwner), cmp.Or(l.Jobs, DefaultJobs),
		cmp.Or(l.PerTicket, DefaultPerTicket), cmp.Or(l.Downloads, DefaultDownloads),
		cmp.Or(l.TicketLife, DefaultTicketLife), cmp.Or(l.ImportTime, DefaultImportTime), cmp.Or(l.Stall, DefaultStall),
	}
}

// Options says what a [Service] works with. Store, Hosts and PublicBaseURL are
// required.
type Options struct {
	Store *store.Store
	Hosts Hosts
	// PublicBaseURL is what links begin with, without a slash at its end.
	PublicBaseURL string
	Limits        Limits
	// Safedial says which addresses imports may come from: its AllowLoopback,
	// Resolver and RootCAs are used.
	Safedial safedial.Options
	// Refuse answers a refused download in the form of the edge; nil answers the
	// JSON form of errors without an id.
	Refuse func(w http.ResponseWriter, r *http.Request, status int, e *fault.Error)
	// Now is the clock, the store's; nil means time.Now.
	Now func() time.Time
	// Rand makes tickets; nil means crypto/rand. It is used by many goroutines.
	Rand io.Reader
	// Log gets one line for each download and each trouble; nil discards them.
	Log *slog.Logger
}

// Service is the transfers of a gateway. It is safe for concurrent use.
type Service struct {
	store   *store.Store
	hosts   Hosts
	baseURL string
	limits  Limits
	dialer  *safedial.Dialer
	client  *http.Client
	refuse  func(w http.ResponseWriter, r *http.Request, status int, e *fault.Error)
	now     func() time.Time
	rand    io.Reader
	log     *slog.Logger

	spool   *spool
	keys    keylock.Locks[key] // one call at a time begins a transfer under a key
	endings endings
	jobs    jobs
	streams streams
	tickets tickets

	running context.Context // ends when the service closes
	stop    context.CancelCauseFunc
	gate    sync.Mutex // guards closed against entering work
	closed  bool
	work    sync.WaitGroup

	crash func(step string) // tests end the process here
}

// New opens the spool in the state directory and ends what a crash has
// interrupted: see [StateInterrupted] and [StateUnknown]. Links that were given
// out before still work.
func New(ctx context.Context, o Options) (*Service, error) {
	s := &Service{
		store: o.Store, hosts: o.Hosts, baseURL: strings.TrimRight(o.PublicBaseURL, "/"), limits: o.Limits.withDefaults(),
		refuse: o.Refuse, now: o.Now, rand: cmp.Or(o.Rand, rand.Reader), log: o.Log, crash: func(string) {},
	}
	if s.refuse == nil {
		s.refuse = refuseJSON
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	dial := o.Safedial
	dial.Timeout, dial.MaxBytes, dial.MaxRedirects = s.limits.ImportTime+s.limits.Stall, s.limits.FileBytes, maxRedirects
	s.dialer = safedial.New(dial)
	s.client = s.dialer.Client()
	var err error
	if s.spool, err = openSpool(filepath.Join(o.Store.Dir(), spoolDir), s.limits.SpoolBytes, s.limits.SpoolPerOwner); err != nil {
		return nil, err
	}
	s.endings = endings{of: map[string]int{}}
	s.jobs = newJobs(s.limits.Jobs)
	s.streams = newStreams(s.limits.PerTicket, s.limits.Downloads)
	s.tickets = tickets{of: map[int64]string{}}
	s.running, s.stop = context.WithCancelCause(context.Background())
	if err := s.recover(ctx); err != nil {
		s.stop(errClosing)
		return nil, fmt.Errorf("settling the transfers of the last run: %w", err)
	}
	return s, nil
}

var (
	errClosing = errors.New("the gateway is closing")
	errRevoked = errors.New("the transfer was revoked")
)

// Close ends what is running: waits at once, downloads by cutting them,
// transfers as interrupted unless they are done. It returns when all of that is
// recorded, or when ctx ends. Close it before the store.
func (s *Service) Close(ctx context.Context) error {
	s.gate.Lock()
	s.closed = true
	s.gate.Unlock()
	s.stop(errClosing)
	s.streams.cutAll()
	s.client.CloseIdleConnections()
	done := make(chan struct{})
	go func() {
		s.work.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("transfers are still running: %w", ctx.Err())
	}
}

// enter keeps Close waiting until leave is called; ok is false once it closes.
func (s *Service) enter() (leave func(), ok bool) {
	s.gate.Lock()
	defer s.gate.Unlock()
	if s.closed {
		return nil, false
	}
	s.work.Add(1)
	return s.work.Done, true
}
