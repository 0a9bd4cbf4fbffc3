// Package device is a machine that dials out to a relay and runs what its human
// allows: one core for the foreground program and for the daemon, which differ in
// their [Sink] alone.
//
// It owns the link and its return after every loss, the life of a call from the
// frame that brings it to the one that takes its result away, and the order of
// checks in between. It promises that a call runs at most once, over dropped links
// and restarts of its own; that nothing runs that was not allowed by the human, the
// policy or a flag, or that was denied, withdrawn, expired or revoked before it
// began; that a result is kept until the relay has it; and that a relay which falls
// silent is noticed within 75 seconds. It leaves files to package state, the running
// to package plugins, and what is allowed to packages policy and approval.
//
// # A call
//
//	call ──▶ checked ──▶ asking ──▶ begun (on disk) ──▶ ended (on disk) ──▶ acknowledged
//	            │           │ denied, expired, withdrawn        ▲
//	            └───────────┴───────────────────────────────────┘ never begun
package device

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"agentrelay/internal/device/approval"
	"agentrelay/internal/device/plugins"
	"agentrelay/internal/device/policy"
	"agentrelay/internal/device/state"
	"agentrelay/internal/devices/wire"
)

// Sink asks for a decision and makes it, or leaves it to time. It is called for one
// approval at a time or for several, and returns at the end of ctx or when the
// approval is decided, whoever decided it. An error means that nobody can be asked.
type Sink interface {
	Ask(ctx context.Context, a *approval.Approval) error
}

// Headless is the sink without a human: it denies.
type Headless struct{}

// NoHuman is why a call is denied where nobody can be asked.
const NoHuman = "no human attached"

// Ask denies at once.
func (Headless) Ask(_ context.Context, a *approval.Approval) error {
	a.Decide(approval.Outcome{State: approval.Denied, Why: NoHuman})
	return nil
}

// Options are what a device is made of.
type Options struct {
	Identity state.Identity
	Root     plugins.Root
	Journal  *state.Journal
	Policy   policy.File
	Sink     Sink
	// Yolo allows everything, Allow the tools that it names.
	Yolo  bool
	Allow map[string]bool
	// Jail is the directory that plugins are told to stay in; nil is none.
	Jail *string
	Log  *slog.Logger

	Now  func() time.Time                  // with a monotonic reading, as time.Now has it
	Rand func(time.Duration) time.Duration // a duration in [0, d)
	Tick time.Duration                     // how often clocks are looked at; 0 is 2 s
	Dial Dialer
}

// Device is one device. Make it with [New], run it once with [Device.Run].
type Device struct {
	o       Options
	started time.Time
	revoked atomic.Bool
	running context.Context // of Run

	mu     sync.Mutex
	set    *plugins.Set
	loaded time.Time
	link   *link // the one that relay and device agreed on, or nil
	note   Link  // what is known of the link
	calls  map[string]*call
	turned chan struct{} // closed and replaced when link or calls change

	work sync.WaitGroup
}

// New is a device that is not connected.
func New(o Options) *Device {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Rand == nil {
		o.Rand = func(d time.Duration) time.Duration { return rand.N(max(d, 1)) }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	d := &Device{o: o, calls: map[string]*call{}, turned: make(chan struct{})}
	d.started = o.Now()
	d.note = Link{State: "connecting", Since: d.started}
	return d
}

// Load reads the plugins anew and offers them. Calls that run go on with what they
// were begun with.
func (d *Device) Load(ctx context.Context) {
	set := d.o.Root.Scan(ctx)
	for _, p := range set.Problems {
		d.o.Log.Warn("a plugin was skipped", "plugin", p.Plugin, "why", p.Why)
	}
	d.mu.Lock()
	before, l := d.set, d.link
	d.set, d.loaded = set, d.o.Now()
	d.mu.Unlock()
	d.o.Log.Info("plugins loaded", "tools", len(set.Tools), "skipped", len(set.Problems))
	if before != nil {
		d.work.Go(before.Close)
	}
	if l != nil {
		l.send(d.hello())
	}
}

func (d *Device) hello() wire.Frame {
	d.mu.Lock()
	defer d.mu.Unlock()
	return wire.Frame{
		Type: wire.Hello, ID: "hello", Token: d.o.Identity.Token, Proto: wire.Proto, Device: d.o.Identity.Device,
		Platform: runtime.GOOS, Tools: d.set.Infos(), Resume: true,
	}
}

// ErrRefused says that the relay does not take this device: nothing changes that but
// its human.
var ErrRefused = errors.New("the relay refuses this device")

// Run keeps the device connected until ctx ends, which is no error, or the relay
// refuses it for good ([ErrRefused]). All calls have ended when it returns.
func (d *Device) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	d.settleFormer()
	d.mu.Lock()
	d.running = ctx
	loaded := d.set != nil
	d.mu.Unlock()
	if !loaded {
		d.Load(ctx)
	}
	err := d.stayConnected(ctx)
	if errors.Is(err, ErrRefused) {
		d.revoked.Store(true)
	}
	cancel(errors.New("the device stops"))
	d.endAll("the device stops")
	d.work.Wait()
	d.mu.Lock()
	set := d.set
	d.mu.Unlock()
	set.Close()
	return err
}

// turn tells those who wait that something has changed. The caller holds the lock.
func (d *Device) turn() {
	close(d.turned)
	d.turned = make(chan struct{})
}

// said is a message of the other side as it may be logged.
func said(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s[:min(len(s), 200)])
}

// Link is what is known of the connection.
type Link struct {
	State     string        `json:"state"` // connecting, connected, waiting or refused
	Since     time.Time     `json:"since"`
	LastHeard time.Time     `json:"lastHeard,omitzero"`
	RoundTrip time.Duration `json:"roundTripNs,omitempty"`
	Reason    string        `json:"reason,omitempty"` // of the last loss
	NextTry   time.Time     `json:"nextTry,omitzero"`
}

// Waiting is a call that has not ended.
type Waiting struct {
	Tool  string    `json:"tool"`
	Phase string    `json:"phase"`
	Since time.Time `json:"since"`
	Until time.Time `json:"until"` // when it is denied or killed
}

// Status is how a device is now.
type Status struct {
	Device   string            `json:"device"`
	Relay    string            `json:"relay"`
	PID      int               `json:"pid"`
	Started  time.Time         `json:"started"`
	Now      time.Time         `json:"now"`
	Link     Link              `json:"link"`
	Tools    []string          `json:"tools"`
	Problems []plugins.Problem `json:"problems"`
	Loaded   time.Time         `json:"loaded"`
	Calls    []Waiting         `json:"calls"`
	Kept     int               `json:"kept"` // results that the relay does not have yet
	Yolo     bool              `json:"yolo"`
	Allow    []string          `json:"allow"`
	Human    bool              `json:"human"` // somebody can be asked
}

// Status says how the device is.
func (d *Device) Status() Status {
	_, headless := d.o.Sink.(Headless)
	s := Status{
		Device: d.o.Identity.Device, Relay: d.o.Identity.RelayURL, Started: d.started, Now: d.o.Now(), Kept: len(d.o.Journal.Kept()),
		Yolo: d.o.Yolo, Human: !headless, Tools: []string{}, Problems: []plugins.Problem{}, Calls: []Waiting{}, Allow: []string{},
	}
	for name := range d.o.Allow {
		s.Allow = append(s.Allow, name)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s.Link, s.Loaded = d.note, d.loaded
	if d.link != nil {
		s.Link.LastHeard = d.link.heard()
		s.Link.RoundTrip = time.Duration(d.link.roundTrip.Load())
	}
	if d.set != nil {
		for _, t := range d.set.Tools {
			s.Tools = append(s.Tools, t.Name)
		}
		s.Problems = append(s.Problems, d.set.Problems...)
	}
	for _, c := range d.calls {
		s.Calls = append(s.Calls, Waiting{c.frame.Tool, c.phase, c.begun, c.until})
	}
	return s
}
