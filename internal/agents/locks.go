package agents

import (
	"context"
	"sync"
)

// locks lets one call at a time do something under a name.
type locks struct {
	mu   sync.Mutex
	held map[string]chan struct{} // closed on release
}

// acquire waits for a name. The caller must call release once.
func (l *locks) acquire(ctx context.Context, name string) (release func(), err error) {
	for {
		if release, held := l.try(name); held == nil {
			return release, nil
		} else {
			select {
			case <-held:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
}

// try takes a name that is free, else it returns what closes when it may be.
func (l *locks) try(name string) (release func(), held chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if held := l.held[name]; held != nil {
		return nil, held
	}
	mine := make(chan struct{})
	if l.held == nil {
		l.held = map[string]chan struct{}{}
	}
	l.held[name] = mine
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.held, name)
		close(mine)
	}, nil
}

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
