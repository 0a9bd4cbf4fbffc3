package supervisor

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"time"

	"agentrelay/internal/direct/commands/record"
)

const (
	// maxConnections is how many questions are served at one time; further ones
	// wait in the socket. It must be more than a service's waits (256) and its
	// watch on the command, so that readers who wait keep neither a cancellation
	// nor an input out: those are answered at once, a few at a time.
	maxConnections = 320
	// talkTime is how long a client may take to ask, and to take the answer.
	talkTime = 5 * time.Second
)

// serve answers questions until the socket is closed.
func (s *supervisor) serve() {
	defer s.serving.Done()
	for {
		conn, err := s.listen.Accept()
		if err != nil {
			select {
			case <-s.ended:
				return
			case <-time.After(lookEvery): // out of descriptors: those that are there will be closed
				continue
			}
		}
		s.handlers <- struct{}{}
		s.serving.Add(1)
		go func() {
			defer s.serving.Done()
			defer func() { <-s.handlers }()
			defer conn.Close()
			s.answer(conn)
		}()
	}
}

func (s *supervisor) answer(conn net.Conn) {
	conn.SetDeadline(time.Now().Add(talkTime))
	var q record.Request
	if err := json.NewDecoder(io.LimitReader(conn, record.MaxRequest)).Decode(&q); err != nil {
		return
	}
	conn.SetDeadline(time.Time{})
	a, ok := s.do(conn, q)
	if !ok {
		return
	}
	conn.SetWriteDeadline(time.Now().Add(talkTime))
	_ = json.NewEncoder(conn).Encode(a) // a client that has gone asks again
}

// do answers one question; ok is false when there is no answer.
func (s *supervisor) do(conn net.Conn, q record.Request) (a record.Answer, ok bool) {
	switch q.Op {
	case record.OpCancel:
		s.stop(record.Cancelled)
		return record.Answer{}, true
	case record.OpInput:
		if q.Input == nil {
			return record.Answer{}, false
		}
		return s.inputs.add(*q.Input)
	case record.OpWait:
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() {
			defer cancel()
			_, _ = conn.Read(make([]byte, 1)) // ends when the client goes, or with the connection
		}()
		return s.wait(ctx, q.After)
	}
	return record.Answer{}, false
}

// wait returns when there is output after a position, or the end.
func (s *supervisor) wait(ctx context.Context, after int64) (record.Answer, bool) {
	for {
		end, grown := s.log.End()
		if end > after {
			return record.Answer{}, true
		}
		if after == record.UntilEnd {
			grown = nil
		}
		select {
		case <-grown:
		case <-s.ended:
			return record.Answer{Ended: true}, true
		case <-ctx.Done():
			return record.Answer{}, false
		}
	}
}
