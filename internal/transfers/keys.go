package transfers

import (
	"sync"
)

// key is the scope of a requestId, and the id.
type key struct{ owner, hostID, requestID string }

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
