package paseo

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
)

// Event is one of the types below. Events of one agent come in the daemon's
// order.
type Event interface{ event() }

// AgentUpdated is a changed snapshot, or with Removed an agent that is gone
// (only Agent.ID is set then). It comes for every agent.
type AgentUpdated struct {
	Agent   Agent
	Removed bool
}

// TurnPhase is how far a turn is.
type TurnPhase string

// The phases. Canceled is not failed, and neither completed nor idle is success.
const (
	TurnStarted   TurnPhase = "started"
	TurnCompleted TurnPhase = "completed"
	TurnFailed    TurnPhase = "failed"
	TurnCanceled  TurnPhase = "canceled"
)

// TurnChanged is the start or end of a turn of a watched agent.
type TurnChanged struct {
	AgentID string
	Phase   TurnPhase
	// TurnID is "" from daemons without turn ids.
	TurnID string
	// Reason is the daemon's text for failed and canceled turns, Code its code.
	Reason, Code string
	Timestamp    string
}

// RowAdded is a new timeline row of a watched agent. One message can arrive as
// several rows; [Client.Timeline] merges them.
type RowAdded struct {
	AgentID   string
	Epoch     string
	Seq       int64
	TurnID    string
	Timestamp string
	Item      Item
}

// PermissionRequested is a question of any agent.
type PermissionRequested struct {
	AgentID    string
	Permission Permission
}

// PermissionResolved is the end of a question of any agent, by whomever.
type PermissionResolved struct {
	AgentID      string
	PermissionID string
	// Behavior is allow or deny, "" if the daemon didn't say.
	Behavior string
	// Resolution is the answer as the daemon sent it.
	Resolution json.RawMessage
}

// AttentionRequired is the daemon's hint that a person should look at an agent,
// for any agent. A cancelled run ends with "finished" too.
type AttentionRequired struct {
	AgentID   string
	Reason    string // finished, error or permission
	Timestamp string // "" when the daemon didn't say
}

// Connected is a new connection, before its subscriptions are in force.
type Connected struct {
	Generation uint64
	Info       ServerInfo
}

// ProcessChange is what is known of a daemon's process across connections.
type ProcessChange string

// The values; Unknown on the first connection and from daemons without
// ServerInfo.StatusRPC.
const (
	ProcessUnknown ProcessChange = "unknown"
	ProcessSame    ProcessChange = "same"
	ProcessChanged ProcessChange = "changed" // it was restarted: runs without a seen end have an unknown outcome
)

// Disconnected is the end of a connection.
type Disconnected struct {
	Generation uint64
	Code       Code
	Reason     string
}

// Discontinuity is a place where events may be missing: read again what you
// follow. With AgentID it concerns that agent only.
type Discontinuity struct {
	AgentID string
	Reason  DiscontinuityReason
	// Process says, with Restored, whether the daemon's process is still the one
	// of the connection before.
	Process ProcessChange
}

// DiscontinuityReason is why events may be missing.
type DiscontinuityReason string

// The reasons. Restored comes once per connection, when its subscriptions are in
// force: what is read from the daemon after it misses nothing that comes later.
const (
	Restored          DiscontinuityReason = "restored"
	SubscriptionError DiscontinuityReason = "subscription_error" // follows a Restored: the daemon refused a part, whose events are missing until the next
	EpochChanged      DiscontinuityReason = "epoch_changed"      // cursors and seqs of before are void
	SequenceReset     DiscontinuityReason = "sequence_reset"
	SequenceGap       DiscontinuityReason = "sequence_gap"
	Replacement       DiscontinuityReason = "replacement" // the daemon replaced the timeline
	Overflow          DiscontinuityReason = "overflow"    // this subscriber was too slow
)

func (AgentUpdated) event()        {}
func (TurnChanged) event()         {}
func (RowAdded) event()            {}
func (PermissionRequested) event() {}
func (PermissionResolved) event()  {}
func (AttentionRequired) event()   {}
func (Connected) event()           {}
func (Disconnected) event()        {}
func (Discontinuity) event()       {}

// ErrClosed ends [Subscription.Next] after Close, or when the client's Run has
// ended and the queue is empty.
var ErrClosed = errors.New("paseo: subscription closed")

// Subscription is a bounded queue of events.
type Subscription struct {
	c       *Client
	mu      sync.Mutex
	queue   []queued
	bytes   int
	closed  bool
	arrived chan struct{} // holds one token while the queue has news
}

type queued struct {
	event Event
	size  int
}

// Subscribe returns a queue of all events from now on. The caller closes it.
func (c *Client) Subscribe() *Subscription {
	s := &Subscription{c: c, arrived: make(chan struct{}, 1)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		s.closed = true
		return s
	}
	c.subs[s] = struct{}{}
	return s
}

// Next waits for the next event. It is for one goroutine at a time.
func (s *Subscription) Next(ctx context.Context) (Event, error) {
	for {
		s.mu.Lock()
		if len(s.queue) > 0 {
			next := s.queue[0]
			s.queue[0] = queued{}
			s.queue = s.queue[1:]
			s.bytes -= next.size
			s.mu.Unlock()
			return next.event, nil
		}
		closed := s.closed
		s.mu.Unlock()
		if closed {
			return nil, ErrClosed
		}
		select {
		case <-s.arrived:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Close ends the subscription and drops what waits in it.
func (s *Subscription) Close() {
	s.c.mu.Lock()
	delete(s.c.subs, s)
	s.c.mu.Unlock()
	s.end(true)
}

// end closes the queue, keeping what waits unless drop is set.
func (s *Subscription) end(drop bool) {
	s.mu.Lock()
	s.closed = true
	if drop {
		s.queue, s.bytes = nil, 0
	}
	s.mu.Unlock()
	s.signal()
}

// put queues an event of about size bytes. A full queue is dropped: its reader
// has to read everything again anyway, and old events would only delay that.
func (s *Subscription) put(e Event, size int) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	if len(s.queue) >= s.c.o.QueueEvents || s.bytes+size > s.c.o.QueueBytes {
		s.queue = append(s.queue[:0:0], queued{event: Discontinuity{Reason: Overflow}})
		s.bytes = 0
	}
	s.queue = append(s.queue, queued{e, size})
	s.bytes += size
	s.mu.Unlock()
	s.signal()
}

func (s *Subscription) signal() {
	select {
	case s.arrived <- struct{}{}:
	default:
	}
}

// publish gives an event of about size bytes to every subscriber.
func (c *Client) publish(e Event, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.subs {
		s.put(e, size)
	}
}
