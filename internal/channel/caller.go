package channel

import (
	"context"
	"crypto/subtle"
	"fmt"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"log/slog"

	"golang.org/x/time/rate"

	"agentrelay/internal/audit"
	"agentrelay/internal/channel/capability"
	"agentrelay/internal/fault"
	"agentrelay/internal/store"
	"agentrelay/internal/tool"
)

// agentHeader names the agent whose capability a request has.
const agentHeader = "Agent-Id"

// seenEvery is how exact lastSeenAt is, and so how often a request writes it.
const seenEvery = time.Minute

// authenticate finds the agent of this host that a request comes from.
func (s *Server) authenticate(r *http.Request) (Agent, error) {
	key := bearer(r)
	if key == "" || r.Header.Get(agentHeader) == "" {
		return Agent{}, noCapability.New("The request has no capability.")
	}
	refused := badCapability.New("The capability does not hold: it is another host's or an earlier one, or the owner revoked the agent.")
	id, ok := capability.AgentID(r.Header.Get(agentHeader))
	hash := capability.Hash(key)
	if !ok || hash == nil {
		return Agent{}, refused
	}
	var a Agent
	err := store.Read(r.Context(), s.o.Store, func(q *store.Reader) (err error) {
		a, _, err = findAgent(q, s.o.HostID, id)
		return err
	})
	if err != nil {
		return Agent{}, err
	}
	if subtle.ConstantTimeCompare(hash, a.keyHash) != 1 {
		return Agent{}, refused
	}
	return a, nil
}

// admit lets an agent in, if it does not come too often. The caller calls done at
// the end of the request.
func (s *Server) admit(r *http.Request, rec *record) (who Caller, done func(), err error) {
	a, err := s.authenticate(r)
	if err != nil {
		return Caller{}, nil, err
	}
	rec.agent = a.AgentID
	if done, err = s.limits.take(a.AgentID); err != nil {
		return Caller{}, nil, err
	}
	s.saw(r.Context(), a)
	return Caller{HostID: a.HostID, AgentID: a.AgentID, Owner: a.Owner}, done, nil
}

// saw notes that an agent came. The request doesn't depend on it, so a failure is
// for the log, and a stalled disk holds it up for a second at most.
func (s *Server) saw(ctx context.Context, a Agent) {
	if age := s.o.Now().Sub(a.LastSeenAt); age >= 0 && age < seenEvery {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err := store.Exec(ctx, s.o.Store, func(tx *store.Tx) error {
		_, err := tx.Exec(`UPDATE agents SET last_seen_at = ? WHERE host_id = ? AND agent_id = ?`, tx.Now().UnixMilli(), a.HostID, a.AgentID)
		return err
	})
	if err != nil {
		s.o.Log.Warn("when an agent was last seen could not be stored", "error", err)
	}
}

const (
	// An agent may ask ratePerSecond times a second, and rateBurst times at once.
	ratePerSecond = 20
	rateBurst     = 200
	// maxAtOnce bounds the requests of one agent that run at the same time.
	maxAtOnce = 128
	// keepLimits is from how many agents on the counts of idle ones are dropped.
	keepLimits = 256
)

// limits keeps one agent from disturbing the others.
type limits struct {
	now func() time.Time
	mu  sync.Mutex
	of  map[string]*limit
}

type limit struct {
	rate    *rate.Limiter
	running int
}

// take counts a request of an agent that has proved who it is.
func (l *limits) take(agentID string) (done func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if l.of == nil {
		l.of = map[string]*limit{}
	}
	if len(l.of) >= keepLimits {
		for id, a := range l.of {
			if a.running == 0 && a.rate.TokensAt(now) >= rateBurst {
				delete(l.of, id)
			}
		}
	}
	a := l.of[agentID]
	if a == nil {
		a = &limit{rate: rate.NewLimiter(ratePerSecond, rateBurst)}
		l.of[agentID] = a
	}
	if a.running >= maxAtOnce {
		return nil, tooFast.Newf("This agent has %d requests running, as many as it may.", a.running)
	}
	if !a.rate.AllowN(now, 1) {
		return nil, tooFast.Newf("This agent asks more than %d times a second.", ratePerSecond)
	}
	a.running++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		a.running--
	}, nil
}

// auditTimeout bounds the wait for the audit entry of a refusal.
const auditTimeout = 5 * time.Second

// recordRefusal also works for an agent that has left by now: that it asked is
// what the record is for.
func (s *Server) recordRefusal(ctx context.Context, who Caller, toolName string, e *fault.Error, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditTimeout)
	defer cancel()
	err := store.Exec(ctx, s.o.Store, func(tx *store.Tx) error {
		return audit.Record(tx, who.Principal(), "tool.refuse", toolName, e.Code, "id", id)
	})
	if err != nil {
		return fmt.Errorf("recording a refusal: %w", err)
	}
	return nil
}

// record is what one request leaves in the log.
type record struct {
	id    string
	agent string // once it has proved who it is
}

// observed answers a route with what answer returns, and writes the request's log
// line. A panic is a failed call.
func (s *Server) observed(route string, answer func(http.ResponseWriter, *http.Request, *record) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		start := s.o.Now()
		rec := &record{id: newID(s.o.Rand)}
		out, err := guarded(func() (any, error) { return answer(w, r, rec) })
		code, attrs, level := http.StatusOK, []slog.Attr(nil), slog.LevelInfo
		if err != nil {
			e := faultOf(err)
			out, code = tool.Envelope{Error: tool.NewFailure(e, rec.id)}, status(e)
			attrs = append(attrs, slog.String("refused", e.Code))
			if cause := e.Unwrap(); cause != nil {
				attrs = append(attrs, slog.String("cause", cause.Error()))
			}
			if code >= http.StatusInternalServerError {
				level = slog.LevelError
			}
		}
		if r.Context().Err() != nil {
			attrs, level = append(attrs, slog.Bool("gone", true)), slog.LevelInfo // the agent left before the answer
		}
		if route == "health" {
			level = slog.LevelDebug
		}
		s.o.Log.LogAttrs(r.Context(), level, "agent request", append([]slog.Attr{
			slog.String("id", rec.id), slog.String("host", s.o.HostID), slog.String("agent", rec.agent), slog.String("route", route),
			slog.Int("status", code), slog.Int64("ms", s.o.Now().Sub(start).Milliseconds()),
		}, attrs...)...)
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // only a recorder can't
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		w.Write(append(tool.Encode(out), '\n')) // the agent is gone if this fails
	}
}

func guarded(answer func() (any, error)) (out any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fault.Internal.New("The gateway failed to finish this call.").Because(fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
		}
	}()
	return answer()
}
