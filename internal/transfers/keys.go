package transfers

import (
	"context"
	"sync"
)

// key is the scope of a requestId, and the id.
type key struct{ owner, hostID, requestID string }

// keys lets one call at a time begin a transfer under a key.
type keys struct {
	mu   sync.Mutex
	held map[key]chan struct{} // closed on release
}

// acquire waits for a key. The caller must call release once.
func (l *keys) acquire(ctx context.Context, k key) (release func(), err error) {
	for {
		l.mu.Lock()
		held := l.held[k]
		if held == nil {
			mine := make(chan struct{})
			l.held[k] = mine
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				defer l.mu.Unlock()
				delete(l.held, k)
				close(mine)
			}, nil
		}
		l.mu.Unlock()
		select {
		case <-held:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// endings counts how often each client was ended, so that a call that was under
// way then does not begin anything afterwards.
type endings struct {
	mu sync.Mutex
	of map[string]int
}

func (e *endings) count(clientID string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.of[clientID]
}

func (e *endings) add(clientID string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.of[clientID]++
}
