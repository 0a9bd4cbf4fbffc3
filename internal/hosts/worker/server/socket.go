package server

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"agentrelay/internal/hosts/worker/wire"
)

func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:8])
}

// maxChannels is how many channels a worker serves at once; further ones wait to
// be accepted.
const maxChannels = 64

// socket takes the channels for whole files, and the word that the worker is to
// make way.
type socket struct {
	*net.UnixListener
	w      *worker
	ready  chan struct{} // closed when the workspace is open
	places chan struct{}
	work   sync.WaitGroup
	ctx    context.Context // ends with close
	cancel context.CancelFunc
}

// listen opens the socket. What lies at the path is of an earlier worker, for
// the lock is held.
func listen(at string, w *worker) (*socket, error) {
	if err := os.Remove(at); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("removing an old socket: %w", err)
	}
	l, err := net.Listen("unix", at) // in a directory that is private
	if err == nil {
		err = os.Chmod(at, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("listening for channels: %w", err)
	}
	s := &socket{UnixListener: l.(*net.UnixListener), w: w, ready: make(chan struct{}), places: make(chan struct{}, maxChannels)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.work.Go(s.accept)
	return s, nil
}

func (s *socket) open() { close(s.ready) }

// close drops all channels and waits for what they do.
func (s *socket) close() {
	s.cancel()
	s.UnixListener.Close() // which removes the socket too
	s.work.Wait()
}

func (s *socket) accept() {
	for {
		conn, err := s.AcceptUnix()
		if err != nil {
			if s.ctx.Err() == nil {
				s.w.o.Log.Error("no channels are accepted any more", "error", err)
			}
			return
		}
		s.work.Go(func() {
			defer conn.Close()
			defer context.AfterFunc(s.ctx, func() { conn.Close() })()
			s.serve(conn)
		})
	}
}

// requestTimeout is how long the first line of a channel may take.
const requestTimeout = 10 * time.Second

// pipe is the two ends of a channel: of SSH, or of the socket itself.
type pipe struct {
	in  stream
	out io.WriteCloser
}

type stream interface {
	io.ReadCloser
	SetReadDeadline(time.Time) error
}

func (p pipe) close() {
	p.in.Close()
	p.out.Close()
}

func (s *socket) serve(conn *net.UnixConn) {
	_ = conn.SetReadDeadline(time.Now().Add(requestTimeout))
	in, out, rest, err := wire.ReceiveFiles(conn)
	if err != nil {
		return
	}
	if in == nil { // another worker
		if q, err := wire.ReadRequest(bufio.NewReader(rest)); err == nil && q.Op == wire.OpRetire {
			_ = wire.WriteAnswer(conn, q.Nonce, struct{}{})
			s.w.stop(ErrReplaced)
		}
		return
	}
	p := pipe{in, out}
	defer p.close()
	defer context.AfterFunc(s.ctx, p.close)()
	if err := s.channel(p); err != nil && s.ctx.Err() == nil {
		s.w.o.Log.Debug("a channel broke off", "error", err)
	}
}

// channel serves a gateway.
func (s *socket) channel(p pipe) error {
	r := bufio.NewReaderSize(p.in, wire.FrameSize)
	_ = p.in.SetReadDeadline(time.Now().Add(requestTimeout))
	q, err := wire.ReadRequest(r)
	if err != nil {
		return err
	}
	_ = p.in.SetReadDeadline(time.Time{})
	select {
	case <-s.ready:
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
	select {
	case s.places <- struct{}{}:
		defer func() { <-s.places }()
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
	switch {
	case q.Op == wire.OpOpen:
		return s.sendFile(p, q)
	case q.Op == wire.OpPlace && q.Placement != nil:
		return s.takeFile(p, r, q)
	}
	return fmt.Errorf("a channel asks for %q", q.Op)
}

// sendFile answers a file of a project.
func (s *socket) sendFile(p pipe, q wire.Request) error {
	snap, err := s.w.Placements().Open(s.ctx, q.ProjectID, q.Path)
	if err != nil {
		s.w.internal(err)
		return wire.WriteAnswer(p.out, q.Nonce, wire.Opened{Error: wire.FailureOf(err)})
	}
	defer snap.Content.Close()
	if err := wire.WriteAnswer(p.out, q.Nonce, wire.Opened{Path: snap.Path, Size: snap.Size}); err != nil {
		return err
	}
	h := sha256.New()
	content := wire.NewWriter(p.out)
	if _, err = content.ReadFrom(io.TeeReader(snap.Content, h)); err == nil {
		return content.End(wire.Trailer{SHA256: hex.EncodeToString(h.Sum(nil))})
	}
	var broken *wire.SendError
	if errors.As(err, &broken) {
		return err
	}
	s.w.internal(err)
	return content.End(wire.Trailer{Error: wire.FailureOf(err)})
}

// takeFile puts what the gateway sends in its place. A channel that breaks off
// before the end is content that was cut off, which changes nothing.
func (s *socket) takeFile(p pipe, r *bufio.Reader, q wire.Request) error {
	placed, err := s.w.Placements().Place(s.ctx, *q.Placement, wire.NewReader(r))
	a := wire.PlaceAnswer{Placed: placed}
	if err != nil {
		s.w.internal(err)
		a = wire.PlaceAnswer{Error: wire.FailureOf(err)}
	}
	if err := wire.WriteAnswer(p.out, q.Nonce, a); err != nil {
		return err
	}
	// Closing with unread content would take the answer from the gateway, so it
	// is the one to close.
	_ = p.in.SetReadDeadline(time.Now().Add(requestTimeout))
	_, err = io.Copy(io.Discard, r)
	return err
}
