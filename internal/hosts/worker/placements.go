package worker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/transfers"
	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/worker/wire"
)

// Placements implements [hosts.Workspace]. An error of Place that is no refusal
// leaves open what became of it: Settle tells.
func (c *Client) Placements() hosts.Placements { return placements{c} }

type placements struct{ c *Client }

// channel is one bulk channel.
type channel struct {
	*Process
	r       *bufio.Reader
	nonce   string
	release func()
	once    sync.Once
	drained chan struct{}
}

// open opens a channel and sends its first line.
func (p placements) open(ctx context.Context, q wire.Request) (*channel, error) {
	s, err := p.c.session(ctx)
	if err != nil {
		return nil, err
	}
	select {
	case p.c.bulk <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	release := func() { <-p.c.bulk }
	// A host that allows fewer sessions than it should would have it wait for ever.
	starting, cancel := context.WithTimeout(ctx, p.c.o.StartTimeout)
	defer cancel()
	process, err := s.link.Exec(starting, p.c.o.Command("bulk", s.bulk))
	if err != nil {
		release()
		if starting.Err() != nil && ctx.Err() == nil {
			return nil, hosts.Unavailable.Newf("The transfer could not be started on %s in time: gateway hosts check %s tells more.", p.c.o.Name, p.c.o.ID).Because(err)
		}
		return nil, p.c.broke("").Because(err)
	}
	ch := &channel{Process: process, r: bufio.NewReaderSize(process.Stdout, wire.FrameSize), nonce: newID(), release: release, drained: make(chan struct{})}
	go func() {
		defer close(ch.drained)
		_, _ = io.Copy(io.Discard, process.Stderr)
	}()
	q.Nonce = ch.nonce
	if err := wire.WriteRequest(process.Stdin, q); err != nil {
		ch.close()
		return nil, p.c.broke("").Because(err)
	}
	return ch, nil
}

// close may be called more than once, from anywhere.
func (ch *channel) close() {
	ch.once.Do(func() {
		_ = ch.Process.Close()
		<-ch.drained
		ch.release()
	})
}

// Open implements [hosts.Placements].
func (p placements) Open(ctx context.Context, projectID, path string) (*transfers.Snapshot, error) {
	r := &content{p: p, q: wire.Request{Op: wire.OpOpen, ProjectID: projectID, Path: path}}
	r.ctx, r.cancel = context.WithCancel(p.c.ctx)
	a, err := r.open(ctx)
	if err != nil {
		r.cancel()
		return nil, err
	}
	r.was = a
	r.idle = time.AfterFunc(parkAfter, r.park)
	return &transfers.Snapshot{Path: a.Path, Size: a.Size, Content: r}, nil
}

// parkAfter is how long content that is not read yet holds a channel, of which
// there are few. Transfers open what they read in their turn.
const parkAfter = time.Second

// content is what a worker sends of a file.
type content struct {
	p      placements
	q      wire.Request
	was    wire.Opened     // when it was opened first
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	idle   *time.Timer

	mu    sync.Mutex
	ch    *channel // nil while it is parked
	begun bool
	r     *wire.Reader
}

// open opens a channel and reads what the worker says of the file.
func (r *content) open(ctx context.Context) (a wire.Opened, err error) {
	ch, err := r.p.open(ctx, r.q)
	if err != nil {
		return a, err
	}
	waiting, cancel := r.p.c.reading(ctx)
	stop := context.AfterFunc(waiting, ch.close)
	err = wire.ReadAnswer(ch.r, ch.nonce, &a)
	ended := !stop()
	cancel()
	switch {
	case ended:
		err = r.p.c.lostRead(context.Cause(waiting))
	case err != nil:
		err = r.p.c.broke("").Because(err)
	case a.Error != nil:
		err = a.Error.Err()
	}
	if err != nil {
		ch.close()
		return a, err
	}
	r.ch, r.r = ch, wire.NewReader(ch.r)
	return a, nil
}

// park gives the channel back until the content is read.
func (r *content) park() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.begun && r.ch != nil {
		r.ch.close()
		r.ch = nil
	}
}

// begin has a channel for the first read. A file that is another one by then has
// changed.
func (r *content) begin() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.begun {
		return nil
	}
	r.idle.Stop()
	if r.ch == nil {
		a, err := r.open(r.ctx)
		if err != nil {
			return err
		}
		if a.Path != r.was.Path || a.Size != r.was.Size {
			return direct.FileChanged.New("The file was changed before it was read.")
		}
	}
	r.begun = true
	return nil
}

// Read implements [io.Reader].
func (r *content) Read(b []byte) (int, error) {
	if err := r.begin(); err != nil {
		return 0, err
	}
	stalled := time.AfterFunc(r.p.c.o.stallTimeout, r.ch.close)
	n, err := r.r.Read(b)
	stalled.Stop()
	if errors.Is(err, wire.ErrCutOff) {
		return n, r.p.c.broke("").Because(err)
	}
	return n, err
}

// SHA256 implements [transfers.Summed].
func (r *content) SHA256() string { return r.r.Trailer.SHA256 }

// Close implements [io.Closer].
func (r *content) Close() error {
	r.cancel()
	r.idle.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ch != nil {
		r.ch.close()
	}
	return nil
}

// placement calls a method of placements.
func (s *session) placement(ctx context.Context, method string, in transfers.Placement) (*wire.PlacementResult, error) {
	return await(ctx, s, func() (*wire.PlacementResult, error) {
		return mcp.CallCustomMethod[*wire.PlacementParams, *wire.PlacementResult](ctx, s.mcp, method, &wire.PlacementParams{Placement: in})
	})
}

// Check implements [hosts.Placements].
func (p placements) Check(ctx context.Context, in transfers.Placement) error {
	s, err := p.c.session(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := p.c.reading(ctx)
	defer cancel()
	r, err := s.placement(ctx, wire.CheckMethod, in)
	if err != nil {
		return p.c.lostRead(err)
	}
	if r.Error != nil {
		return r.Error.Err()
	}
	return nil
}

// Place implements [hosts.Placements].
func (p placements) Place(ctx context.Context, in transfers.Placement, from io.Reader) (transfers.Placed, error) {
	ch, err := p.open(ctx, wire.Request{Op: wire.OpPlace, Placement: &in})
	if err != nil {
		return transfers.Placed{}, err
	}
	defer context.AfterFunc(ctx, ch.close)()
	stalled := time.AfterFunc(p.c.o.stallTimeout, ch.close)
	defer stalled.Stop()
	sent := make(chan error, 1)
	go func() { sent <- send(ch, &steady{from, stalled, p.c.o.stallTimeout}) }()
	var a wire.PlaceAnswer
	err = wire.ReadAnswer(ch.r, ch.nonce, &a)
	ch.close() // ends the sending
	var failed error
	select {
	case failed = <-sent:
	case <-time.After(sendTimeout): // the connection hangs, and ends it later
	}
	var broken *wire.SendError
	switch {
	case err == nil && a.Error == nil:
		return a.Placed, nil
	case failed != nil && !errors.As(failed, &broken):
		return transfers.Placed{}, failed // nor does the worker place what was cut off
	case err == nil:
		return transfers.Placed{}, a.Error.Err()
	case ctx.Err() != nil:
		return transfers.Placed{}, ctx.Err()
	}
	return transfers.Placed{}, fmt.Errorf("%w: %w", errLost, err)
}

// steady is content that is being sent: each part that is taken puts the stall off.
type steady struct {
	io.Reader
	stalled *time.Timer
	timeout time.Duration
}

// Read implements [io.Reader].
func (s *steady) Read(b []byte) (int, error) {
	s.stalled.Reset(s.timeout)
	return s.Reader.Read(b)
}

// sendTimeout is how long a sender may take to notice that its channel is closed.
const sendTimeout = 2 * time.Second

// send sends content with its end. An error of the content itself is sent too.
func send(ch *channel, from io.Reader) error {
	w := wire.NewWriter(ch.Stdin)
	_, err := w.ReadFrom(from)
	var broken *wire.SendError
	if errors.As(err, &broken) {
		return err
	}
	if err != nil {
		_ = w.End(wire.Trailer{Error: wire.FailureOf(err)})
		return err
	}
	return w.End(wire.Trailer{})
}

// busyRetry is how soon a placement that is under way is asked about again.
const busyRetry = 100 * time.Millisecond

// Settle implements [hosts.Placements]. It waits for a placement that is under
// way.
func (p placements) Settle(ctx context.Context, id string) (placed transfers.Placed, ok bool, err error) {
	for {
		s, err := p.c.session(ctx)
		if err != nil {
			return transfers.Placed{}, false, err
		}
		r, err := s.placement(ctx, wire.SettleMethod, transfers.Placement{ID: id})
		if err != nil {
			return transfers.Placed{}, false, err
		}
		if r.Error == nil {
			return r.Placed, r.OK, nil
		}
		if err = r.Error.Err(); !errors.Is(err, transfers.ErrBusy) {
			return transfers.Placed{}, false, err
		}
		select {
		case <-time.After(busyRetry):
		case <-ctx.Done():
			return transfers.Placed{}, false, err
		}
	}
}
