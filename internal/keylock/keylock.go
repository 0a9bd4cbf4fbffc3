// Package keylock is locks by key: one holder a key, and any number of keys.
//
// It promises that waiting ends with its context, that a key which nobody holds
// or waits for takes no memory, and that the zero value is ready. It leaves to
// others what the keys are, and in which order one takes several.
package keylock

import (
	"context"
	"sync"
)

// Locks is a set of locks. It is safe for concurrent use and must not be copied
// after its first use.
type Locks[K comparable] struct {
	mu   sync.Mutex
	held map[K]*lock
}

type lock struct {
	place chan struct{} // has room for the holder
	users int           // who holds it or waits for it
}

// Acquire waits within ctx for the lock of a key; a free one is taken at once,
// whatever became of ctx. The caller must call release once. The error is that of ctx.
func (l *Locks[K]) Acquire(ctx context.Context, key K) (release func(), err error) {
	if release, ok := l.Try(key); ok {
		return release, nil
	}
	k := l.enter(key)
	select {
	case k.place <- struct{}{}:
		return func() { l.release(key, k) }, nil
	case <-ctx.Done():
		l.leave(key, k)
		return nil, ctx.Err()
	}
}

// Try takes the lock of a key if it is free.
func (l *Locks[K]) Try(key K) (release func(), ok bool) {
	k := l.enter(key)
	select {
	case k.place <- struct{}{}:
		return func() { l.release(key, k) }, true
	default:
		l.leave(key, k)
		return nil, false
	}
}

func (l *Locks[K]) enter(key K) *lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held == nil {
		l.held = map[K]*lock{}
	}
	k := l.held[key]
	if k == nil {
		k = &lock{place: make(chan struct{}, 1)}
		l.held[key] = k
	}
	k.users++
	return k
}

func (l *Locks[K]) release(key K, k *lock) {
	<-k.place
	l.leave(key, k)
}

func (l *Locks[K]) leave(key K, k *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.users--; k.users == 0 {
		delete(l.held, key)
	}
}
