package agents

import (
	"sync"
)

// news tells waiting calls that something about a name has changed.
type news struct {
	mu      sync.Mutex
	waiting map[string]*bulletin
}

type bulletin struct {
	changed chan struct{}
	readers int
}

// follow returns what closes at the next change of a name. The caller must call
// stop. What is read after follow misses nothing that is told later.
func (n *news) follow(name string) (changed <-chan struct{}, stop func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.waiting == nil {
		n.waiting = map[string]*bulletin{}
	}
	b := n.waiting[name]
	if b == nil {
		b = &bulletin{changed: make(chan struct{})}
		n.waiting[name] = b
	}
	b.readers++
	return b.changed, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if b.readers--; b.readers == 0 && n.waiting[name] == b {
			delete(n.waiting, name)
		}
	}
}

// tell wakes whoever follows a name.
func (n *news) tell(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if b := n.waiting[name]; b != nil {
		close(b.changed)
		delete(n.waiting, name)
	}
}
