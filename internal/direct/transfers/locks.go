package transfers

import (
	"context"
	"sync"

	"agentrelay/internal/direct"
)

// locks lets one placement at a time swap names in a directory: each could undo
// its own swap safely, two that cross could not.
type locks struct {
	mu   sync.Mutex
	held map[direct.FileID]chan struct{} // closed on release
}

// acquire waits for the lock of a directory. The caller must call release once.
func (l *locks) acquire(ctx context.Context, dir direct.FileID) (release func(), err error) {
	for {
		l.mu.Lock()
		held := l.held[dir]
		if held == nil {
			mine := make(chan struct{})
			l.held[dir] = mine
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				defer l.mu.Unlock()
				delete(l.held, dir)
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
