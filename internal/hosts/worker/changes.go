package worker

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrelay/internal/fault"
	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/worker/wire"
	"agentrelay/internal/principal"
)

// asked is a change that was sent, and all that is needed to settle it.
type asked struct {
	name string
	meta mcp.Meta // with its id
	in   any
	out  func() any // a new place for the answer
}

// change makes a call that changes something, and answers what became of it.
func change[Out any](ctx context.Context, c *Client, name string, who principal.Principal, in any) (Out, error) {
	var none Out
	s, err := c.session(ctx)
	if err != nil {
		return none, err
	}
	meta := metaOf(who)
	meta[wire.OperationKey] = newID()
	a := &asked{name, meta, in, func() any { return new(Out) }}
	out := a.out()
	switch err = c.callChange(ctx, s, a, out); {
	case errors.Is(err, errLost):
		out, err = c.settleWithin(ctx, a)
	case errors.Is(err, errStalled):
		err = c.undecided()
	}
	if err == nil {
		return *out.(*Out), nil
	}
	if settled, ok := ctx.Value(settledKey{}).(func(any, error)); ok && (ctx.Err() != nil || errors.Is(err, errUnsettled)) {
		c.later(a, func(out any, err error) {
			if err != nil {
				settled(nil, err)
				return
			}
			settled(*out.(*Out), nil)
		})
	}
	return none, err
}

// callChange makes the call of a change. On a connection that has stopped
// answering it waits as long as for one that was lost, and ends with errStalled.
func (c *Client) callChange(ctx context.Context, s *session, a *asked, out any) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c.mu.Lock()
	reads := c.reads
	c.mu.Unlock()
	defer context.AfterFunc(reads, func() {
		timer := time.NewTimer(c.o.SettleTimeout)
		defer timer.Stop()
		for news := c.listen(); c.isStalled(); news = c.listen() {
			select {
			case <-news:
			case <-timer.C:
				cancel(errStalled)
				return
			case <-ctx.Done():
				return
			}
		}
	})()
	return s.call(ctx, a.name, a.meta, a.in, out)
}

func (c *Client) isStalled() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stalled != nil
}

// undecided is the answer to a change of which nobody knows yet.
func (c *Client) undecided() error {
	return hosts.OutcomeUnknown.New("The connection was lost before the host answered, and it has not come back in time. " + c.away(c.o.Links.Status()).Message).Because(errUnsettled)
}

// errUnsettled is in the chain of a refusal that says that nobody knows yet.
var errUnsettled = errors.New("it is not known yet what became of the change")

// settleWithin settles a change as soon as the host answers, within the time that
// the call has.
func (c *Client) settleWithin(ctx context.Context, a *asked) (any, error) {
	limited, cancel := context.WithTimeout(ctx, c.o.SettleTimeout)
	defer cancel()
	if w, ok := c.o.Links.(interface{ Wake() }); ok {
		w.Wake()
	}
	out, err := c.settle(limited, a)
	switch {
	case ctx.Err() != nil && limited.Err() != nil:
		return nil, ctx.Err()
	case limited.Err() != nil && !isRefusal(err):
		return nil, c.undecided()
	}
	return out, err
}

func isRefusal(err error) bool {
	var refused *fault.Error
	return errors.As(err, &refused)
}

// settleRetry is how long to wait at most before a host that isn't there is asked
// again; news of it come sooner.
const settleRetry = time.Second

// settle asks what became of a change until the host answers. The error is a
// refusal, or that of ctx.
func (c *Client) settle(ctx context.Context, a *asked) (any, error) {
	meta := maps.Clone(a.meta)
	meta[wire.SettleKey] = true
	for {
		news := c.listen()
		s, err := c.session(ctx)
		if err == nil {
			out := a.out()
			err = s.call(ctx, a.name, meta, a.in, out)
			switch {
			case err == nil:
				return out, nil
			case errors.Is(err, wire.Withdrawn):
				return nil, c.broke("Nothing was changed: the host had not got this yet.").Because(err)
			case ctx.Err() == nil && !errors.Is(err, errLost):
				return nil, err
			}
		}
		select {
		case <-news:
		case <-time.After(settleRetry):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// listen returns a channel that is closed at the next change of the connection
// or the worker.
func (c *Client) listen() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.news
}

// maxPending bounds the changes whose end is still to be learnt, of which each
// holds its arguments.
const maxPending = 128

// pending are changes whose callers are gone.
type pending struct {
	mu    sync.Mutex
	count int
}

// later settles a change for the record, when the host is back.
func (c *Client) later(a *asked, settled func(any, error)) {
	c.pending.mu.Lock()
	full := c.pending.count >= maxPending
	if !full {
		c.pending.count++
	}
	c.pending.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if full || c.closed {
		c.o.Log.Warn("what became of a change will not be learnt", "tool", a.name, "operation", a.meta[wire.OperationKey])
		return
	}
	c.work.Go(func() {
		defer func() {
			c.pending.mu.Lock()
			defer c.pending.mu.Unlock()
			c.pending.count--
		}()
		if out, err := c.settle(c.ctx, a); err == nil || isRefusal(err) {
			settled(out, err)
		}
	})
}
