package events

import (
	"context"
	"errors"
	"sync"
	"time"

	"agentrelay/internal/store"
)

// troublePause is how long a worker waits when our own store fails.
const troublePause = 5 * time.Second

// sender runs a worker for each receiver that something waits for. A worker
// makes one attempt at a time; slots bounds those of all workers together.
type sender struct {
	s     *Service
	slots chan struct{}

	mu       sync.Mutex
	running  bool
	hurry    bool // attempts are broken off
	stop     chan struct{}
	workers  map[int64]chan struct{}     // by receiver: news for its worker
	flights  map[*job]context.CancelFunc // attempts under way
	landings map[*job]chan struct{}
	busy     sync.WaitGroup
}

func newSender(s *Service, slots int) *sender {
	return &sender{
		s: s, slots: make(chan struct{}, slots), stop: make(chan struct{}),
		workers: map[int64]chan struct{}{}, flights: map[*job]context.CancelFunc{}, landings: map[*job]chan struct{}{},
	}
}

func (d *sender) start(receivers []int64) {
	d.mu.Lock()
	d.running = true
	d.mu.Unlock()
	for _, id := range receivers {
		d.kick(id)
	}
}

// kick tells the worker of a receiver that something new waits. It is quick and
// does not use the store.
func (d *sender) kick(receiver int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.running {
		return
	}
	news, ok := d.workers[receiver]
	if !ok {
		news = make(chan struct{}, 1)
		d.workers[receiver] = news
		d.busy.Add(1)
		go d.work(receiver, news)
	}
	select {
	case news <- struct{}{}:
	default:
	}
}

// work sends what waits for a receiver until nothing does.
func (d *sender) work(receiver int64, news chan struct{}) {
	defer d.busy.Done()
	for {
		select {
		case <-news: // everything up to here is found by what follows
		default:
		}
		next, sent := d.step(receiver)
		if d.stopped() {
			return
		}
		if sent {
			continue
		}
		if next.IsZero() {
			if d.leave(receiver, news) {
				return
			}
			continue
		}
		timer := time.NewTimer(next.Sub(d.s.now()))
		select {
		case <-timer.C:
		case <-news:
		case <-d.stop:
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

func (d *sender) stopped() bool {
	select {
	case <-d.stop:
		return true
	default:
		return false
	}
}

// leave takes a worker off the list, unless there is news for it.
func (d *sender) leave(receiver int64, news chan struct{}) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(news) > 0 {
		return false
	}
	delete(d.workers, receiver)
	return true
}

// step makes the next attempt that is due. Without one it returns when to look
// again: never, for the zero time.
func (d *sender) step(receiver int64) (next time.Time, sent bool) {
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
	case <-d.stop:
	}
	if d.stopped() {
		return time.Time{}, false
	}
	type claimed struct {
		job  *job
		next time.Time
	}
	c, err := store.Write(context.Background(), d.s.store, func(tx *store.Tx) (claimed, error) {
		j, next, err := d.s.claim(tx, receiver)
		if j != nil && err == nil {
			tx.AfterCommit(func() { d.takeOff(j) })
		}
		return claimed{j, next}, err
	})
	if err != nil {
		return d.trouble("a delivery could not be claimed", err), false
	}
	if c.job == nil {
		return c.next, false
	}
	defer c.job.done()
	answer, verdict := d.s.attempt(c.job)
	for {
		changed, err := store.Write(context.Background(), d.s.store, func(tx *store.Tx) (bool, error) { return d.s.settle(tx, c.job, answer, verdict) })
		if changed && err == nil {
			d.s.log.Warn("a receiver began to fail, or works again", "receiver", receiver, "host", hostOf(c.job.row.address), "failing", verdict.blames, "outcome", verdict.outcome)
		}
		if err == nil {
			return time.Time{}, true
		}
		again := d.trouble("what came of an attempt could not be stored", err)
		if again.IsZero() || !d.pause(again) {
			return time.Time{}, false // the next start settles it as interrupted
		}
	}
}

// trouble logs a failure of our own store and returns when to try again; never
// when it is closed.
func (d *sender) trouble(what string, err error) time.Time {
	if errors.Is(err, store.ErrClosed) {
		return time.Time{}
	}
	d.s.log.Error(what, "error", err)
	return d.s.now().Add(troublePause)
}

// pause waits until a time; false when the sender stops first.
func (d *sender) pause(until time.Time) bool {
	t := time.NewTimer(until.Sub(d.s.now()))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-d.stop:
		return false
	}
}

// takeOff registers an attempt as soon as its claim is on disk, so that what
// ends its subscription from then on breaks it off.
func (d *sender) takeOff(j *job) {
	d.mu.Lock()
	defer d.mu.Unlock()
	landed := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	j.ctx = ctx
	d.flights[j], d.landings[j] = cancel, landed
	if d.hurry {
		cancel()
	}
	j.done = func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		cancel()
		close(landed)
		delete(d.flights, j)
		delete(d.landings, j)
	}
}

// abort breaks off the attempts of a subscription.
func (d *sender) abort(subscription string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for j, cancel := range d.flights {
		if j.row.subscription == subscription {
			cancel()
		}
	}
}

// wait returns when no attempt of a subscription is under way, or ctx ends.
func (d *sender) wait(ctx context.Context, subscription string) {
	d.mu.Lock()
	var landings []chan struct{}
	for j, landed := range d.landings {
		if j.row.subscription == subscription {
			landings = append(landings, landed)
		}
	}
	d.mu.Unlock()
	for _, landed := range landings {
		select {
		case <-landed:
		case <-ctx.Done():
			return
		}
	}
}

// close ends the workers. Attempts under way may finish until ctx ends.
func (d *sender) close(ctx context.Context) {
	d.mu.Lock()
	if d.running {
		d.running = false
		close(d.stop)
	}
	d.mu.Unlock()
	finished := make(chan struct{})
	go func() {
		d.busy.Wait()
		close(finished)
	}()
	select {
	case <-finished:
		return
	case <-ctx.Done():
	}
	d.mu.Lock()
	d.hurry = true
	for _, cancel := range d.flights {
		cancel()
	}
	d.mu.Unlock()
	<-finished
}
