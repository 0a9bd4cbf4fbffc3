package devices

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"agentrelay/internal/devices/wire"
	"agentrelay/internal/store"
)

// Socket is a websocket that the gateway has accepted. Next is called by one
// goroutine; the others may be called by many.
type Socket interface {
	// Next returns the next text message. An error ends the socket.
	Next(ctx context.Context) (io.Reader, error)
	// Write sends one text message. An error ends the socket.
	Write(ctx context.Context, message []byte) error
	// Ping sends a websocket ping and waits for its pong.
	Ping(ctx context.Context) error
	// Close sends a close frame, waits a few seconds for the answer at most, and ends
	// the socket. With the code 0 it only ends it.
	Close(code int, reason string)
}

// link is one connection of a device.
type link struct {
	s      *Service
	sock   Socket
	ctx    context.Context
	cancel context.CancelFunc
	beat   *time.Timer
	missed int // pings without an answer; of the beat alone
	seen   atomic.Int64

	// write is held while frames are written whose order matters: from the hello to
	// the end of ready, and from the look at a call to its frame.
	write sync.Mutex
	once  sync.Once

	// of a device that said hello, guarded by the service's mutex
	device    string
	tokenHash []byte
	platform  string
	resume    bool
	connected time.Time
	tools     []*offered
	gone      bool
}

// Serve runs a link until it ends, in a goroutine of its own. done is called then.
// While the service closes the socket is closed at once.
func (s *Service) Serve(sock Socket, done func()) {
	l := &link{s: s, sock: sock}
	l.ctx, l.cancel = context.WithCancel(s.ctx)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		l.end(wire.CloseRestart, wire.RetryReason(time.Second))
		done()
		return
	}
	s.wg.Add(1)
	s.all[l] = struct{}{}
	s.mu.Unlock()
	go func() {
		defer s.wg.Done()
		defer done()
		defer func() {
			if p := recover(); p != nil {
				s.log.Error("a link of a device ended by a panic", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			}
			l.leave()
		}()
		l.run()
	}()
}

// leave takes the link out of everything.
func (l *link) leave() {
	defer l.end(1000, "")
	s := l.s
	s.mu.Lock()
	l.gone = true
	delete(s.all, l)
	current := l.device != "" && s.links[l.device] == l
	if current {
		delete(s.links, l.device)
	}
	if l.beat != nil {
		l.beat.Stop()
	}
	device := l.device
	s.mu.Unlock()
	if !current {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := store.Exec(ctx, s.store, func(tx *store.Tx) error {
		_, err := tx.Exec(`UPDATE devices SET seen_at = ? WHERE name = ? AND token_hash = ?`, l.seen.Load(), device, l.tokenHash)
		return err
	})
	if err != nil && !errors.Is(err, store.ErrClosed) {
		s.log.Error("the end of a link could not be noted", "device", device, "error", err)
	}
	s.log.Info("a device left", "device", device)
}

// end closes the socket, once.
func (l *link) end(code int, reason string) {
	l.once.Do(func() {
		l.sock.Close(code, reason)
		l.cancel()
	})
}

// refused tells the device why its link ends, and ends it.
func (l *link) refused(e *wire.ProtocolError) {
	_ = l.say(e.Frame())
	l.end(1008, e.Code)
}

// revoked ends the link of a device whose token is no longer valid.
func (l *link) revoked(open []row) {
	for _, c := range open {
		if c.sent != 0 {
			l.deny(c.id, wire.WhyRevoked)
		}
	}
	l.refused(&wire.ProtocolError{Code: wire.CodeAuth, Msg: "the owner has ended this device's access"})
}

// say writes one frame.
func (l *link) say(f wire.Frame) error {
	raw, err := wire.Encode(f)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(l.ctx, l.s.times.Write)
	defer cancel()
	return l.sock.Write(ctx, raw)
}

func (l *link) deny(ref, why string) {
	l.write.Lock()
	defer l.write.Unlock()
	_ = l.say(wire.Frame{Type: wire.Deny, Ref: ref, Why: why}) // a link that fails is ended by its reader
}

// sendCall writes a call unless it is over: whoever ends it denies it after that.
func (l *link) sendCall(c *call, again bool) {
	l.write.Lock()
	defer l.write.Unlock()
	l.s.mu.Lock()
	over := c.over
	f := l.s.frame(c, again)
	l.s.mu.Unlock()
	if over {
		return
	}
	if err := l.say(f); err != nil {
		l.end(0, "")
	}
}

// run reads the frames of a link.
func (l *link) run() {
	f, err := l.first()
	if err == nil {
		switch f.Type {
		case wire.Pair:
			err = l.pair(f)
			if err == nil {
				return
			}
		case wire.Hello:
			err = l.hello(f)
		default:
			err = &wire.ProtocolError{Code: wire.CodeProto, Msg: "the first frame must be pair or hello", Ref: f.Answer("").Ref}
		}
	}
	for err == nil {
		err = l.read()
	}
	var refusal *wire.ProtocolError
	if errors.As(err, &refusal) {
		l.refused(refusal)
	} else if store.IsTrouble(err) {
		l.end(1011, wire.RetryReason(time.Second))
	}
}

// first reads the frame that says who it is, with little time and memory.
func (l *link) first() (wire.Frame, error) {
	ctx, cancel := context.WithTimeout(l.ctx, l.s.times.FirstFrame)
	defer cancel()
	r, err := l.sock.Next(ctx)
	if err != nil {
		return wire.Frame{}, err
	}
	raw, err := io.ReadAll(io.LimitReader(r, maxSmall+1))
	if err == nil && len(raw) > maxSmall {
		release, slot := l.s.gate.large(ctx)
		if slot != nil {
			return wire.Frame{}, slot
		}
		defer release()
		var rest []byte
		rest, err = io.ReadAll(io.LimitReader(r, wire.MaxFrame+1-int64(len(raw))))
		raw = append(raw, rest...)
	}
	if err != nil {
		return wire.Frame{}, err
	}
	return wire.Decode(raw)
}

// maxSkipped is how much of a message over the limit is read to get to the next.
const maxSkipped = 64 << 20

// read takes one frame of a device that said hello. An error ends the link.
func (l *link) read() error {
	r, err := l.sock.Next(l.ctx)
	if err != nil {
		return err
	}
	raw, err := io.ReadAll(io.LimitReader(r, wire.MaxFrame+1))
	if err != nil {
		return err
	}
	l.seen.Store(l.s.now().UnixMilli())
	f, err := wire.Decode(raw)
	var refusal *wire.ProtocolError
	if errors.As(err, &refusal) {
		if refusal.Code == wire.CodeTooLarge {
			if err := l.tooLarge(raw, r); err != nil {
				return err
			}
		}
		return l.say(refusal.Frame())
	}
	return l.take(f)
}

// tooLarge skips the rest of a message that is no frame. If it names the call in
// flight it is that one's result, and the call has failed.
func (l *link) tooLarge(start []byte, rest io.Reader) error {
	id := l.s.inFlight(l.device)
	m := &mention{word: []byte(`"` + id + `"`)}
	_, _ = m.Write(start)
	if n, err := io.Copy(m, io.LimitReader(rest, maxSkipped)); err != nil || n == maxSkipped {
		return errors.Join(err, errors.New("a message without an end"))
	}
	if id == "" || !m.found {
		return nil
	}
	return l.s.result(l.s.ctx, id, l.device, ending{code: ResultTooLarge.Code, ofResult: true})
}

// mention looks for a word in what is written to it.
type mention struct {
	word, tail []byte
	found      bool
}

func (m *mention) Write(p []byte) (int, error) {
	text := append(m.tail, p...)
	m.found = m.found || bytes.Contains(text, m.word)
	m.tail = bytes.Clone(text[max(0, len(text)-len(m.word)):])
	return len(p), nil
}

// take does what a frame asks for.
func (l *link) take(f wire.Frame) error {
	switch f.Type {
	case wire.Ping:
		return l.say(f.Answer(wire.Pong))
	case wire.ToolResult, wire.Deny:
		return l.result(f)
	case wire.Progress:
		l.s.progress(l.device, f.Ref, f.Phase)
		return nil
	case wire.Hello:
		return l.again(f)
	case wire.Pair:
		return l.say((&wire.ProtocolError{Code: wire.CodeProto, Msg: "this link is paired: pair on a link of its own", Ref: f.Answer("").Ref}).Frame())
	}
	return nil // types of later versions
}

// result stores the result of a call, and then says so to a device that wants to know.
func (l *link) result(f wire.Frame) error {
	e := ending{output: f.Output, summary: cutText(f.Summary, maxLine), spilled: f.Spilled, ofResult: true}
	switch {
	case f.Type == wire.Deny, f.Denied:
		e.code = Denied.Code
		if f.Why != "" {
			e.output = f.Why
		}
	case !*f.OK:
		e.code = ToolFailed.Code
	}
	// Not with the link's context: it may end right behind the result.
	if err := l.s.result(l.s.ctx, f.Ref, l.device, e); err != nil {
		return err // the device keeps the result and brings it again
	}
	if l.resume {
		return l.say(wire.Frame{Type: wire.Ack, Ref: f.Ref})
	}
	return nil
}

// pair answers a pairing; the link has done its work then.
func (l *link) pair(f wire.Frame) error {
	token, err := l.s.pair(l.ctx, f)
	if err != nil {
		var refusal *wire.ProtocolError
		if errors.As(err, &refusal) {
			named := *refusal
			named.Ref = f.Answer("").Ref
			return &named
		}
		return err
	}
	answer := f.Answer(wire.Paired)
	answer.Device, answer.Token = f.Device, token
	if err := l.say(answer); err != nil {
		return err
	}
	l.end(1000, "paired")
	return nil
}

// hello lets a device in: it takes over the link that its token holds already.
func (l *link) hello(f wire.Frame) error {
	if err := checkProto(f); err != nil {
		return err
	}
	l.write.Lock() // no call may be written before ready
	defer l.write.Unlock()
	l.device, l.tokenHash, l.resume, l.connected = f.Device, hashToken(f.Token), f.Resume, l.s.now()
	l.platform, l.tools = cutText(f.Platform, maxPlatform), offer(f.Tools)
	l.seen.Store(l.connected.UnixMilli())
	old, err := store.Write(l.ctx, l.s.store, func(tx *store.Tx) (**link, error) { return l.s.attach(tx, l, f) })
	if err != nil {
		return err
	}
	if *old != nil && l.s.begin() {
		go func() {
			defer l.s.wg.Done()
			(*old).end(1000, "taken over by a newer link of this device")
		}()
	}
	l.s.log.Info("a device came", "device", l.device, "tools", len(l.tools), "takeover", *old != nil)
	if err := l.ready(f); err != nil {
		return err
	}
	denials, err := l.s.withdrawn(l.ctx, l.device)
	for _, d := range denials {
		err = errors.Join(err, l.say(d))
	}
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	every := l.s.times.Ping
	l.beat = time.AfterFunc(every/2+rand.N(every/2+1), l.ping) // not all at once after a restart
	return err
}

func checkProto(f wire.Frame) error {
	if f.Proto != wire.Proto {
		return &wire.ProtocolError{Code: wire.CodeProto, Msg: fmt.Sprintf("this relay speaks version %d of the protocol", wire.Proto), Ref: f.Answer("").Ref}
	}
	return nil
}

func (l *link) ready(f wire.Frame) error {
	answer := f.Answer(wire.Ready)
	answer.Device, answer.Proto, answer.PolicyHint, answer.Resume = l.device, wire.Proto, "prompt", l.resume
	return l.say(answer)
}

// attach checks a token and, once that is stored, makes the link the one of its
// device. Both happen in the writer, so that a revocation lies before or after. It
// returns where the link that was there is then found.
func (s *Service) attach(tx *store.Tx, l *link, f wire.Frame) (**link, error) {
	var name string
	err := tx.QueryRow(`SELECT name FROM devices WHERE token_hash = ?`, l.tokenHash).Scan(&name)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("looking for a token: %w", err)
	}
	if name != f.Device {
		s.mu.Lock()
		held := s.links[f.Device] != nil
		s.mu.Unlock()
		if held && name != "" {
			return nil, &wire.ProtocolError{Code: wire.CodeDeviceTaken, Msg: "another device is connected under this name: rename this one, or let the owner revoke the other", Ref: f.Answer("").Ref}
		}
		return nil, &wire.ProtocolError{Code: wire.CodeAuth, Msg: "this token is not valid for this device: pair it again", Ref: f.Answer("").Ref}
	}
	if _, err := tx.Exec(`UPDATE devices SET connected_at = ?1, seen_at = ?1, platform = ?2 WHERE name = ?3`, tx.Now().UnixMilli(), l.platform, name); err != nil {
		return nil, fmt.Errorf("noting a device: %w", err)
	}
	old := new(*link)
	tx.AfterCommit(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if l.gone {
			return // while this was written
		}
		*old, s.links[name] = s.links[name], l
		if lane := s.lanes[name]; lane != nil {
			lane.nudge()
		}
	})
	return old, nil
}

// again takes a hello on a link that has said hello: other tools.
func (l *link) again(f wire.Frame) error {
	if err := checkProto(f); err != nil {
		return err
	}
	if f.Device != l.device || !slices.Equal(hashToken(f.Token), l.tokenHash) {
		return &wire.ProtocolError{Code: wire.CodeAuth, Msg: "this link belongs to another device or token", Ref: f.Answer("").Ref}
	}
	l.s.mu.Lock()
	l.tools, l.platform = offer(f.Tools), cutText(f.Platform, maxPlatform)
	l.s.mu.Unlock()
	return l.ready(f)
}

// ping asks for a sign of life, and ends the link after two without an answer.
func (l *link) ping() {
	if !l.s.begin() {
		return
	}
	defer l.s.wg.Done()
	every := l.s.times.Ping
	start := time.Now()
	ctx, cancel := context.WithTimeout(l.ctx, every)
	err := l.sock.Ping(ctx)
	cancel()
	switch {
	case l.ctx.Err() != nil:
		return
	case err == nil:
		l.missed = 0
		l.seen.Store(l.s.now().UnixMilli())
	default:
		if l.missed++; l.missed >= wire.MissedPings {
			l.s.log.Info("a device did not answer pings", "device", l.device)
			l.end(0, "")
			return
		}
	}
	l.beat.Reset(max(time.Millisecond, every-time.Since(start)))
}
