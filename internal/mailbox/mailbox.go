// Package mailbox owns the peer directory of each owner and the messages
// between peers: registration and generations, sending under a caller key,
// replies and threads, the inbox and its waits, acknowledgement, hourly budgets,
// and what the owner's own commands see and purge.
//
// It promises that an answer is committed to disk before it is given, that a
// messageId takes effect once for ever and its repeats answer the same message
// in its present state, that no owner can tell another's peer or message from
// one that does not exist, that listing and reading never change a message's
// state, and that a page costs what a page costs however long the history is.
// Message text goes to readers and nowhere else: not into logs, errors or the
// audit log.
//
// It leaves to others: permissions and the record of refusals (the edge that
// took the call), waking readers ([Wake]), and which agents and hosts exist
// ([AgentDirectory]). It knows neither MCP nor HTTP.
package mailbox

import (
	"cmp"
	"log/slog"
	"sync"
	"time"

	"agentrelay/internal/store"
)

// Options says what a [Service] works with. Only Store is required.
type Options struct {
	Store *store.Store
	// Limits bounds sending.
	Limits Limits
	// Agents knows the hosts and the agents dispatched on them; nil means that
	// there is only the local host and no agent was ever dispatched.
	Agents AgentDirectory
	// LocalHostID is the canonical id of the local host, which callers may also
	// call "local" or "mac" or leave out; "" means "local".
	LocalHostID string
	// Wake wakes the readers of new mail; nil means that nobody is woken.
	Wake Wake
	// Now is the clock for what is decided outside a transaction (inside, the
	// store's clock counts); nil means time.Now.
	Now func() time.Time
	// Log receives failures that no caller sees; nil discards them.
	Log *slog.Logger
}

// Limits bounds what may be sent in one hour. An hour begins with the first
// message after the previous hour ended, and only messages that were stored
// count: repeats and refusals are free.
type Limits struct {
	// PairPerHour is for two peers, both directions together; 0 is off.
	PairPerHour int
	// OwnerPerHour is for all peers of an owner together; 0 is off.
	OwnerPerHour int
}

// AgentDirectory says which hosts exist and who dispatched which agent.
type AgentDirectory interface {
	// HostIDs lists the configured hosts besides the local one.
	HostIDs() []string
	// OwnsAgent reports whether this owner has dispatched this agent on this
	// host. The host id is canonical. It is called inside a transaction and
	// must read through q only.
	OwnsAgent(q store.Querier, owner, hostID, agentID string) (bool, error)
}

// Service is the mailbox. It is safe for concurrent use.
type Service struct {
	store     *store.Store
	limits    Limits
	agents    AgentDirectory
	localHost string
	wake      Wake
	now       func() time.Time
	log       *slog.Logger

	waiters waiters
	closing chan struct{}
	close   sync.Once
}

// New returns the mailbox of a store. It starts nothing; [Service.Close] ends
// the waits of its callers.
func New(o Options) *Service {
	s := &Service{
		store: o.Store, limits: o.Limits, agents: o.Agents, wake: o.Wake, now: o.Now, log: o.Log,
		localHost: cmp.Or(o.LocalHostID, "local"),
		closing:   make(chan struct{}),
	}
	if s.agents == nil {
		s.agents = noAgents{}
	}
	if s.wake == nil {
		s.wake = noWake{}
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	return s
}

// Close ends every wait at once, with what there is. Later calls work until the
// store closes but no longer wait. Close it before the store.
func (s *Service) Close() { s.close.Do(func() { close(s.closing) }) }

type noAgents struct{}

func (noAgents) HostIDs() []string { return nil }

func (noAgents) OwnsAgent(store.Querier, string, string, string) (bool, error) { return false, nil }
