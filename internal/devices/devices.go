// Package devices is the relay's side of devices: machines that nothing can reach,
// which dial in, say hello with their tools, and run calls that their human allows.
//
// It owns the tables devices and device_calls, pairing codes, the links of connected
// devices, the queue of each device, and the answers of spooky_list, spooky_schema and
// spooky_call, as the public specification has them; wire is the language of the link.
// It promises that a call is stored before it is sent, that one is in flight on a
// device at a time and eight wait, that a call ends once and its caller reads that end
// whatever links and restarts lie between, that no call is sent twice to a device that
// did not promise to run it once, that a denial is never followed by the call on the
// same link, that tokens and codes are kept as hashes or in memory and never logged, and
// that arguments are forgotten when their call ends. It leaves the websocket and HTTP to
// the gateway, which gives it a [Socket]; the human's decision and the running of tools
// to the device, which is the only one who can make either true.
package devices

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"agentrelay/internal/devices/wire"
	"agentrelay/internal/store"
)

// Times are the intervals of a service. The zero value of each is the standard one.
type Times struct {
	Ping       time.Duration // between pings; wire.PingEvery
	Budget     time.Duration // of a call from its sending; wire.CallBudget
	Patience   time.Duration // how long spooky_call waits; 45 s
	FirstFrame time.Duration // for the first frame of a link; 10 s
	Write      time.Duration // for one frame; 10 s
	CodeLife   time.Duration // of a pairing code; 10 minutes
}

func (t Times) withDefaults() Times {
	t.Ping = cmp.Or(t.Ping, wire.PingEvery)
	t.Budget = cmp.Or(t.Budget, wire.CallBudget)
	t.Patience = cmp.Or(t.Patience, 45*time.Second)
	t.FirstFrame = cmp.Or(t.FirstFrame, 10*time.Second)
	t.Write = cmp.Or(t.Write, 10*time.Second)
	t.CodeLife = cmp.Or(t.CodeLife, 10*time.Minute)
	return t
}

// Options says what a [Service] is built from. Only Store is required.
type Options struct {
	Store *store.Store
	// URL is what devices dial, as people are told: wss://relay.example.com/device.
	URL string
	// Times are for tests; the zero value is right.
	Times Times
	// LinksPerSecond is how many links are accepted a second, MaxLinks how many may
	// be there at once; 0 means 50 and 1,280.
	LinksPerSecond int
	MaxLinks       int
	Now            func() time.Time // nil means time.Now
	Rand           io.Reader        // nil means crypto/rand; used by many goroutines at once
	Log            *slog.Logger     // nil discards
}

// Service is the devices of one state directory. It is safe for concurrent use.
type Service struct {
	store *store.Store
	url   string
	times Times
	now   func() time.Time
	rand  io.Reader
	log   *slog.Logger
	gate  *gate
	pairs *pairing

	ctx   context.Context // of links and lanes
	stop  context.CancelFunc
	quiet chan struct{} // closed when callers are no longer made to wait
	wg    sync.WaitGroup

	mu      sync.Mutex
	started bool
	closed  bool
	links   map[string]*link   // by device: the one that is up
	all     map[*link]struct{} // also those that have not said hello
	lanes   map[string]*lane   // by device, while it has open calls
	watches map[string]*watch  // by call
}

// New makes the service; it touches no device before [Service.Start].
func New(o Options) *Service {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Service{
		store: o.Store, url: o.URL, times: o.Times.withDefaults(), now: o.Now, rand: o.Rand, log: o.Log,
		gate:  newGate(cmp.Or(o.LinksPerSecond, 50), cmp.Or(o.MaxLinks, MaxDevices+256)),
		pairs: newPairing(o.Now), quiet: make(chan struct{}),
		links: map[string]*link{}, all: map[*link]struct{}{}, lanes: map[string]*lane{}, watches: map[string]*watch{},
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// Start takes up the calls that were open when the process before ended, and from
// then on devices may come.
func (s *Service) Start(ctx context.Context) error {
	open, err := s.loadOpen(ctx)
	if err != nil {
		return fmt.Errorf("reading the open calls of devices: %w", err)
	}
	s.mu.Lock()
	s.started = true
	s.mu.Unlock()
	for _, c := range open {
		s.enqueue(c)
	}
	return nil
}

// begin counts a goroutine of the service in, unless it is closing. The caller must
// call s.wg.Done if it returns true.
func (s *Service) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.wg.Add(1)
	return true
}

// Close ends all links, telling each device when to come back, and answers waiting
// callers that their call is pending. Calls stay open for the next process. It waits
// until ctx ends at most and may be called twice.
func (s *Service) Close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.quiet)
	}
	links := slices.Collect(maps.Keys(s.all))
	s.mu.Unlock()
	var ends sync.WaitGroup
	for i, l := range links {
		ends.Go(func() { l.end(wire.CloseRestart, wire.RetryReason(s.gate.comeback(i))) })
	}
	said := make(chan struct{})
	go func() { ends.Wait(); close(said) }()
	select {
	case <-said:
	case <-ctx.Done():
	case <-time.After(goodbye):
	}
	s.stop()
	done := make(chan struct{})
	go func() { s.wg.Wait(); ends.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errors.New("links of devices were still open")
	}
}

// goodbye is how long devices have to answer a close frame.
const goodbye = 2 * time.Second

// Count is how many devices are paired and how many of them are connected.
func (s *Service) Count(ctx context.Context) (paired, connected int, err error) {
	err = store.Read(ctx, s.store, func(r *store.Reader) error {
		return r.QueryRow(`SELECT count(*) FROM devices`).Scan(&paired)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	return paired, len(s.links), err
}
