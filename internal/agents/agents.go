// Package agents has coding agents do work on the owner's machines, through the
// agent daemon of each: dispatch under a caller's key and its receipt, results
// kept in the database, routes and attention events, answers to permissions,
// messages from agents to the chat that dispatched them, and the prompts that
// tell an agent of its mail.
//
// It promises that a requestId has its effect once, over retries, restarts and
// lost connections: a receipt is on disk before a byte leaves, one that was
// surely not sent says not_sent and may be sent again, and one that may have run
// says unknown until the daemon is found to have it. It promises that nothing is
// called finished that isn't known to be: the end of a turn is claimed only for
// the turn of that prompt, an outcome that a restart of the daemon has taken with
// it is called lost, and no answer says that a task succeeded. A result is in the
// database as soon as it is seen and stays readable without the daemon. No rule
// compares the clocks of two machines. Prompts are not stored and, like all
// other text, never logged.
//
// It leaves to others: how a daemon is reached and spoken to (package paseo
// below it), which hosts there are ([Daemons]), what directories may be worked in
// ([Roots]), who is told how ([Events]), whose agent is whose ([Agents]), and who
// may call what. It knows neither MCP nor HTTP.
package agents

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"agentrelay/internal/keylock"
	"agentrelay/internal/store"
)

// Options says what a [Service] works with. Store, Daemons and Roots are required.
type Options struct {
	Store   *store.Store
	Daemons Daemons
	Roots   Roots
	// Events tells chats of their agents; nil means that nobody can subscribe.
	Events Events
	// Agents keeps the owners of agents; nil keeps none.
	Agents Agents
	// Mailbox knows what mail was read; nil means that none ever is.
	Mailbox Mailbox
	// PeerAgent is the path of the peer-agent program on a host, for prompts; ""
	// or nil means that it has none there.
	PeerAgent func(hostID string) string

	// AllowAutoAccept lets callers switch on settings by which an agent approves
	// its own actions.
	AllowAutoAccept bool
	// PromptOverPermission lets callers prompt an agent that waits for a
	// permission, which cancels the question.
	PromptOverPermission bool

	// Now is the clock, the store's; nil means time.Now.
	Now func() time.Time
	// Rand makes ids; nil means crypto/rand.
	Rand io.Reader
	// Log gets what no caller sees; nil discards it.
	Log *slog.Logger

	// crash, in tests, is called at each step of a dispatch and can end the
	// goroutine there, as a crash of the process would.
	crash func(step string)
}

// Service is the agents of all hosts. It is safe for concurrent use.
type Service struct {
	store     *store.Store
	daemons   Daemons
	roots     Roots
	events    Events
	agents    Agents
	mailbox   Mailbox
	peerAgent func(string) string

	allowAutoAccept      bool
	promptOverPermission bool

	now   func() time.Time
	rand  io.Reader
	log   *slog.Logger
	crash func(string)

	keys    keylock.Locks[string] // of requestIds and of replies
	prompts keylock.Locks[string] // of agents: one prompt at a time
	news    news

	followers map[string]*follower // by host; fixed after New

	life    context.Context // ends with Close
	end     context.CancelFunc
	closing sync.Mutex // guards working.Add against Close
	closed  bool
	working sync.WaitGroup
}

// New returns the agents of a store. It asks nobody anything until
// [Service.Start].
func New(o Options) (*Service, error) {
	if o.Store == nil || o.Daemons == nil || o.Roots == nil {
		return nil, errors.New("agents: Store, Daemons and Roots are needed")
	}
	s := &Service{
		store: o.Store, daemons: o.Daemons, roots: o.Roots, events: o.Events, agents: o.Agents, mailbox: o.Mailbox, peerAgent: o.PeerAgent,
		allowAutoAccept: o.AllowAutoAccept, promptOverPermission: o.PromptOverPermission,
		now: o.Now, rand: o.Rand, log: o.Log, crash: o.crash, followers: map[string]*follower{},
	}
	if s.events == nil {
		s.events = nobody{}
	}
	if s.agents == nil {
		s.agents = unrecorded{}
	}
	if s.mailbox == nil {
		s.mailbox = neverRead{}
	}
	if s.peerAgent == nil {
		s.peerAgent = func(string) string { return "" }
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.rand == nil {
		s.rand = rand.Reader
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.crash == nil {
		s.crash = func(string) {}
	}
	s.life, s.end = context.WithCancel(context.Background())
	for _, id := range s.daemons.HostIDs() {
		s.followers[id] = newFollower(s, id)
	}
	return s, nil
}

// Start settles what the last run left unfinished and begins to follow the
// daemons. It waits for none of them.
func (s *Service) Start(ctx context.Context) error {
	if err := s.settleInterrupted(ctx); err != nil {
		return err
	}
	for _, f := range s.followers {
		if err := f.start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Close ends every wait at once, with what there is, and stops following.
// Dispatches under way are waited for until ctx ends; what becomes of the rest
// is asked at the next start. Close it before the store.
func (s *Service) Close(ctx context.Context) error {
	s.closing.Lock()
	s.closed = true
	s.closing.Unlock()
	s.end()
	done := make(chan struct{})
	go func() {
		s.working.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// work runs f in the background; [Service.Close] waits for it. It reports false
// when the service is closing.
func (s *Service) work(f func()) bool {
	s.closing.Lock()
	defer s.closing.Unlock()
	if s.closed {
		return false
	}
	s.working.Go(f)
	return true
}

type nobody struct{}

func (nobody) PublishAttention(*store.Tx, Attention) (bool, error) { return false, nil }

func (nobody) Routes(store.Querier, string) ([]Route, error) { return nil, nil }

type unrecorded struct{}

func (unrecorded) Record(*store.Tx, string, string, string) error { return nil }

func (unrecorded) Owner(store.Querier, string, string) (string, error) { return "", nil }

func (unrecorded) Issue(context.Context, string, string) error { return nil }

type neverRead struct{}

func (neverRead) Unread(store.Querier, string, string) (bool, error) { return true, nil }
