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
	net.Listener
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
	s := &socket{Listener: l, w: w, ready: make(chan struct{}), places: make(chan struct{}, maxChannels)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.work.Go(s.accept)
	return s, nil
}

func (s *socket) open() { close(s.ready) }

// close drops all channels and waits for what they do.
func (s *socket) close() {
	s.cancel()
	s.Listener.Close() // which removes the socket too
	s.work.Wait()
}

func (s *socket) accept() {
	for {
		conn, err := s.Accept()
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

func (s *socket) serve(conn net.Conn) {
	r := bufio.NewReaderSize(conn, wire.FrameSize)
	_ = conn.SetReadDeadline(time.Now().Add(requestTimeout))
	q, err := wire.ReadRequest(r)
	if err != nil {
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	if q.Op == wire.OpRetire {
		_ = wire.WriteAnswer(conn, q.Nonce, struct{}{})
		s.w.stop(ErrReplaced)
		return
	}
	select {
	case <-s.ready:
	case <-s.ctx.Done():
		return
	}
	select {
	case s.places <- struct{}{}:
		defer func() { <-s.places }()
	case <-s.ctx.Done():
		return
	}
	switch {
	case q.Op == wire.OpOpen:
		err = s.sendFile(conn, q)
	case q.Op == wire.OpPlace && q.Placement != nil:
		err = s.takeFile(conn, r, q)
	default:
		err = fmt.Errorf("a channel asks for %q", q.Op)
	}
	if err != nil && s.ctx.Err() == nil && !errors.Is(err, io.ErrClosedPipe) {
		s.w.o.Log.Debug("a channel broke off", "error", err)
	}
}

// sendFile answers a file of a project.
func (s *socket) sendFile(conn net.Conn, q wire.Request) error {
	snap, err := s.w.Placements().Open(s.ctx, q.ProjectID, q.Path)
	if err != nil {
		s.w.internal(err)
		return wire.WriteAnswer(conn, q.Nonce, wire.Opened{Error: wire.FailureOf(err)})
	}
	defer snap.Content.Close()
	if err := wire.WriteAnswer(conn, q.Nonce, wire.Opened{Path: snap.Path, Size: snap.Size}); err != nil {
		return err
	}
	h := sha256.New()
	content := wire.NewWriter(conn)
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
func (s *socket) takeFile(conn net.Conn, r *bufio.Reader, q wire.Request) error {
	placed, err := s.w.Placements().Place(s.ctx, *q.Placement, wire.NewReader(r))
	a := wire.PlaceAnswer{Placed: placed}
	if err != nil {
		s.w.internal(err)
		a = wire.PlaceAnswer{Error: wire.FailureOf(err)}
	}
	if err := wire.WriteAnswer(conn, q.Nonce, a); err != nil {
		return err
	}
	// Closing with unread content would take the answer from the gateway, so it
	// is the one to close.
	_ = conn.SetReadDeadline(time.Now().Add(requestTimeout))
	_, err = io.Copy(io.Discard, r)
	return err
}
