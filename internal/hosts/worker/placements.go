package worker

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

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
	process, err := s.link.Exec(ctx, p.c.o.Command("bulk", s.bulk))
	if err != nil {
		release()
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
	ch, err := p.open(ctx, wire.Request{Op: wire.OpOpen, ProjectID: projectID, Path: path})
	if err != nil {
		return nil, err
	}
	waiting, cancel := p.c.reading(ctx)
	stop := context.AfterFunc(waiting, ch.close)
	var a wire.Opened
	err = wire.ReadAnswer(ch.r, ch.nonce, &a)
	ended := !stop()
	cancel()
	if ended {
		err = p.c.lostRead(context.Cause(waiting))
	} else if err != nil {
		err = p.c.broke("").Because(err)
	} else if a.Error != nil {
		err = a.Error.Err()
	}
	if err != nil {
		ch.close()
		return nil, err
	}
	return &transfers.Snapshot{Path: a.Path, Size: a.Size, Content: &content{c: p.c, ch: ch, r: wire.NewReader(ch.r), hash: sha256.New(), size: a.Size}}, nil
}

// content is what a worker sends of a file.
type content struct {
	c    *Client
	ch   *channel
	r    *wire.Reader
	hash hash.Hash
	read int64
	size int64
}

// Read implements [io.Reader].
func (r *content) Read(b []byte) (int, error) {
	n, err := r.r.Read(b)
	r.hash.Write(b[:n])
	r.read += int64(n)
	switch {
	case errors.Is(err, wire.ErrCutOff):
		return n, r.c.broke("").Because(err)
	case err == io.EOF && (r.read != r.size || hex.EncodeToString(r.hash.Sum(nil)) != r.r.Trailer.SHA256):
		return n, transfers.Corrupted.New("What arrived from the host is not what was sent.").WithHint("Repeat the export with a new requestId; if it fails again, the owner should look at the connection to that host.")
	}
	return n, err
}

// Close implements [io.Closer].
func (r *content) Close() error {
	r.ch.close()
	return nil
}

// Check implements [hosts.Placements].
func (p placements) Check(ctx context.Context, in transfers.Placement) error {
	s, err := p.c.session(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := p.c.reading(ctx)
	defer cancel()
	r, err := mcp.CallCustomMethod[*wire.PlacementParams, *wire.PlacementResult](ctx, s.mcp, wire.CheckMethod, &wire.PlacementParams{Placement: in})
	if err != nil {
		return p.c.lostRead(s.broken(ctx, err))
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
	sent := make(chan error, 1)
	go func() { sent <- send(ch, from) }()
	var a wire.PlaceAnswer
	err = wire.ReadAnswer(ch.r, ch.nonce, &a)
	ch.close() // ends the sending
	failed := <-sent
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
		r, err := mcp.CallCustomMethod[*wire.PlacementParams, *wire.PlacementResult](ctx, s.mcp, wire.SettleMethod, &wire.PlacementParams{Placement: transfers.Placement{ID: id}})
		if err != nil {
			return transfers.Placed{}, false, s.broken(ctx, err)
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
