package commands

import (
	"sync"
	"time"
)

// MaxUnknownPerHour is how many requests that never arrived one owner may ask
// about in an hour. Each takes its place on disk for ever. One is asked about when
// an answer was lost, which is seldom; this many ask who makes ids up.
const MaxUnknownPerHour = 120

// tombstones counts them. The count begins anew with the process.
type tombstones struct {
	mu sync.Mutex
	of map[string]hour // by owner
}

type hour struct {
	since time.Time
	n     int
}

// another counts one more of an owner, or refuses it.
func (t *tombstones) another(owner string, now time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for o, h := range t.of {
		if age := now.Sub(h.since); age >= time.Hour || age < 0 {
			delete(t.of, o)
		}
	}
	h, ok := t.of[owner]
	if !ok {
		h.since = now
	}
	if h.n == MaxUnknownPerHour {
		return TooManyUnknown.Newf("%d requests that never arrived were asked about within an hour, which is the most. More may be asked about from %s.",
			h.n, h.since.Add(time.Hour).UTC().Format("2006-01-02T15:04:05.000Z"))
	}
	h.n++
	t.of[owner] = h
	return nil
}
