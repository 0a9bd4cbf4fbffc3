package mailbox

import (
	"context"
	"sync"
	"time"
)

// The most waits at one time. Each costs a goroutine of its caller and a channel
// here; an owner's client that waits twice per peer stays far below.
const (
	maxWaits        = 1024
	maxWaitsPerPeer = 16
)

// waiters is who waits for mail of which peer (by row). A commit that may have
// changed a peer's lists signals all of them; what they then read decides.
type waiters struct {
	mu     sync.Mutex
	byPeer map[int64]map[chan struct{}]struct{}
	total  int
}

// join adds a waiter. News is remembered from then on: a signal between join
// and the receive is not lost. ok is false when there are too many.
func (w *waiters) join(peer int64) (news chan struct{}, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.total >= maxWaits || len(w.byPeer[peer]) >= maxWaitsPerPeer {
		return nil, false
	}
	if w.byPeer == nil {
		w.byPeer = map[int64]map[chan struct{}]struct{}{}
	}
	if w.byPeer[peer] == nil {
		w.byPeer[peer] = map[chan struct{}]struct{}{}
	}
	news = make(chan struct{}, 1)
	w.byPeer[peer][news] = struct{}{}
	w.total++
	return news, true
}

func (w *waiters) leave(peer int64, news chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.byPeer[peer], news)
	if len(w.byPeer[peer]) == 0 {
		delete(w.byPeer, peer)
	}
	w.total--
}

// notify signals everybody who waits for one of these peers. It never blocks:
// it runs on the store's writer.
func (w *waiters) notify(peers ...int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range peers {
		for news := range w.byPeer[p] {
			select {
			case news <- struct{}{}:
			default: // it has one to receive already
			}
		}
	}
}

// await holds an empty page of p until there is something to show.
func (s *Service) await(ctx context.Context, l inbox, p peerRow) (ListPeerMessagesOut, error) {
	news, ok := s.waiters.join(p.id)
	if !ok {
		return ListPeerMessagesOut{}, TooManyWaits.New("Too many calls wait for mail already.")
	}
	defer s.waiters.leave(p.id, news)
	timeUp := time.NewTimer(l.wait)
	defer timeUp.Stop()
	for {
		// Read after joining: what was committed before is in the page, what
		// comes later signals.
		page, _, err := s.page(ctx, l)
		if err != nil || len(page.Messages) > 0 {
			return page, err
		}
		select {
		case <-news:
		case <-timeUp.C:
			return page, nil
		case <-s.closing:
			return page, nil
		case <-ctx.Done():
			return ListPeerMessagesOut{}, ctx.Err()
		}
	}
}
