package devices

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// gate bounds how fast and how many links come, so that all devices that come back
// after a restart do not come at once.
type gate struct {
	rate *rate.Limiter
	most int
	big  chan struct{} // slots for first frames over maxSmall

	mu    sync.Mutex
	inUse int
	spent int // spread of Retry-After
}

// maxSmall is what is read from a link that has not said who it is without a slot
// for more. A hello may have a whole frame of schemas.
const maxSmall = 64 << 10

func newGate(perSecond, most int) *gate {
	return &gate{rate: rate.NewLimiter(rate.Limit(perSecond), perSecond), most: most, big: make(chan struct{}, 8)}
}

// Admit asks for room for one link. When there is none, retryAfter says when to try
// again, spread over the time that those before need. Else leave must be called once
// the link is gone.
func (s *Service) Admit() (leave func(), retryAfter time.Duration, ok bool) {
	g := s.gate
	s.mu.Lock()
	closed := s.closed || !s.started
	s.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if closed || g.inUse >= g.most || !g.rate.Allow() {
		g.spent++
		return nil, g.comeback(g.spent), false
	}
	g.inUse++
	return sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.inUse--
	}), 0, true
}

// comeback is when the i-th of many may come: at half the rate of the gate, after a
// second, in at most 30 s.
func (g *gate) comeback(i int) time.Duration {
	half := max(1, int(g.rate.Limit())/2)
	return time.Second + time.Duration(i%(29*half))*time.Second/time.Duration(half)
}

// large takes a slot for a long first frame.
func (g *gate) large(ctx context.Context) (release func(), err error) {
	select {
	case g.big <- struct{}{}:
		return func() { <-g.big }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
