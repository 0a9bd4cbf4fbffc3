// Package events tells the outside world that something happened: it owns the
// subscriptions that clients make with MCP Events, the wake-up targets of the
// config, the outbox of what is on its way to them, and the workers that POST
// it.
//
// It promises that an event is stored in the transaction of what it reports and
// with everybody it is for, so that a crash loses none and invents none; that
// every attempt is on disk before it is made; that a callback gets the same
// bytes under the same id with a fresh timestamp and signature at every attempt,
// and a wake-up target at most one attempt by itself; that nothing is sent for a
// subscription once its end was answered; that accepted means that a receiver
// said so, and nothing stored while nobody subscribed is ever called delivered;
// and that a receiver which is slow, dead or angry delays no other and is not
// stormed.
//
// It leaves to others: the protocol in which clients subscribe (the edge turns a
// [Refusal] into the numbers of [Number]), which peers exist ([Mailbox]), what a
// client is allowed ([Options].Allowed), and how a connection is made
// (internal/safedial). It knows no text of any message.
package events

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net/http"
	"os"
	"time"

	"agentrelay/internal/principal"
	"agentrelay/internal/sealing"
	"agentrelay/internal/store"
)

// The defaults of [Options].
const (
	DefaultTTL                = 30 * 24 * time.Hour
	DefaultMinTTL             = time.Minute
	DefaultMaxTTL             = 365 * 24 * time.Hour
	DefaultMaxSubscriptions   = 1000
	DefaultChallengePerMinute = 120
	DefaultWorkers            = 32
)

// Options says what a [Service] works with. Store and Mailbox are required, Key
// and Client for everything but the owner's commands.
type Options struct {
	Store *store.Store
	// Key seals the secrets of subscriptions; see [OpenKey].
	Key *sealing.Key
	// Client makes the POSTs. It must follow no redirect and reach nothing that
	// a stranger's URL must not reach: internal/safedial makes one.
	Client *http.Client
	// CheckURL refuses a callback URL before anything is sent there; its error
	// is shown to the client. nil allows every URL that Client takes.
	CheckURL func(url string) error
	// Mailbox knows the peers and the mail.
	Mailbox Mailbox
	// Allowed reports whether the owner allows a client something at this
	// moment; a client that is gone is allowed nothing. It must read through q
	// only. nil allows everything.
	Allowed func(q store.Querier, clientID string, p principal.Permission) (bool, error)
	// ResolveHost gives the canonical id of a host, the local one for "". nil
	// knows the local host only.
	ResolveHost func(hostID string) (string, error)
	// Renewed is told, in the transaction that makes or refreshes it, of each
	// subscription to agent.attention: what is owed to it can be published there.
	// nil owes nothing.
	Renewed func(tx *store.Tx, owner, hostID, workspaceID, routeID string) error
	// Offer names the events that can be subscribed to, for one that nothing
	// publishes is a promise that is not kept; nil offers all.
	Offer []string
	// Targets are the config's peerWakeTargets, at most one for a peer.
	Targets []Target

	TTL TTL
	// MaxSubscriptions is how many an owner may have active at once; 0 means
	// [DefaultMaxSubscriptions].
	MaxSubscriptions int
	// ChallengesPerMinute is how many challenges one host may get, so that
	// nobody uses the gateway to knock at a stranger's door; 0 means
	// [DefaultChallengePerMinute].
	ChallengesPerMinute int
	// Workers is how many POSTs may be under way at once; 0 means
	// [DefaultWorkers].
	Workers int

	// Getenv reads the credentials that are kept in the environment; nil means
	// os.Getenv.
	Getenv func(string) string
	// Now is the clock, the store's; nil means time.Now.
	Now func() time.Time
	// Jitter gives a number in [0, 1) for each delay; nil means a random one.
	Jitter func() float64
	// Rand makes challenges and ids; nil means crypto/rand.
	Rand io.Reader
	// Log gets one line for each receiver that begins to fail or recovers and
	// for each trouble of our own; nil discards them.
	Log *slog.Logger
}

// TTL bounds how long a subscription lives without a refresh.
type TTL struct {
	Default time.Duration // when the client asks for none; 0 means [DefaultTTL]
	Min     time.Duration // 0 means [DefaultMinTTL]
	Max     time.Duration // 0 means [DefaultMaxTTL]
}

// Mailbox is what this package asks of the peer mailbox. The methods read
// through q only.
type Mailbox interface {
	// Peer returns the present generation of a peer and whether it is active;
	// found is false when this owner has no such peer.
	Peer(q store.Querier, owner, peerID string) (generation int64, active, found bool, err error)
	// LastSeq is the [Mail.Seq] of the newest message of all owners.
	LastSeq(q store.Querier) (int64, error)
	// Unread reports whether a message's recipient has neither read nor
	// acknowledged it.
	Unread(q store.Querier, owner, messageID string) (bool, error)
}

// Service is the events of one store. It is safe for concurrent use.
type Service struct {
	store    *store.Store
	key      *sealing.Key
	client   *http.Client
	checkURL func(string) error
	mailbox  Mailbox
	allowed  func(store.Querier, string, principal.Permission) (bool, error)
	host     func(string) (string, error)
	renewed  func(tx *store.Tx, owner, hostID, workspaceID, routeID string) error
	offer    []string
	targets  map[peerKey]Target
	ttl      TTL
	maxSubs  int
	getenv   func(string) string
	now      func() time.Time
	jitter   func() float64
	rand     io.Reader
	log      *slog.Logger

	challenges *challenges
	pending    pending
	sender     *sender
}

// New returns the events of a store. It sends nothing until [Service.Start].
func New(o Options) (*Service, error) {
	if o.Store == nil || o.Mailbox == nil {
		return nil, errors.New("events: Store and Mailbox are needed")
	}
	s := &Service{
		store: o.Store, key: o.Key, client: o.Client, checkURL: o.CheckURL, mailbox: o.Mailbox,
		allowed: o.Allowed, host: o.ResolveHost, renewed: o.Renewed, offer: o.Offer, targets: map[peerKey]Target{},
		ttl: TTL{
			Default: cmp.Or(o.TTL.Default, DefaultTTL), Min: cmp.Or(o.TTL.Min, DefaultMinTTL), Max: cmp.Or(o.TTL.Max, DefaultMaxTTL),
		},
		maxSubs: cmp.Or(o.MaxSubscriptions, DefaultMaxSubscriptions),
		getenv:  o.Getenv, now: o.Now, jitter: o.Jitter, rand: o.Rand, log: o.Log,
		challenges: newChallenges(cmp.Or(o.ChallengesPerMinute, DefaultChallengePerMinute)),
	}
	for _, t := range o.Targets {
		key := peerKey{t.Owner, t.PeerID}
		if _, twice := s.targets[key]; twice {
			return nil, errors.New("events: two wake-up targets are for one peer")
		}
		s.targets[key] = t
	}
	if s.checkURL == nil {
		s.checkURL = func(string) error { return nil }
	}
	if s.allowed == nil {
		s.allowed = func(store.Querier, string, principal.Permission) (bool, error) { return true, nil }
	}
	if s.host == nil {
		s.host = localOnly
	}
	if s.renewed == nil {
		s.renewed = func(*store.Tx, string, string, string, string) error { return nil }
	}
	if s.getenv == nil {
		s.getenv = os.Getenv
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.jitter == nil {
		s.jitter = mathrand.Float64
	}
	if s.rand == nil {
		s.rand = rand.Reader
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.sender = newSender(s, cmp.Or(o.Workers, DefaultWorkers))
	return s, nil
}

// Start settles what the last run left unfinished, activates the wake-up targets
// of the config and begins to send.
func (s *Service) Start(ctx context.Context) error {
	if s.key == nil || s.client == nil {
		return errors.New("events: a Key and a Client are needed to send")
	}
	receivers, err := store.Write(ctx, s.store, func(tx *store.Tx) ([]int64, error) {
		if err := s.settleInterrupted(tx); err != nil {
			return nil, err
		}
		if err := s.activateTargets(tx); err != nil {
			return nil, err
		}
		return receiversWithMail(tx)
	})
	if err != nil {
		return err
	}
	s.sender.start(receivers)
	return nil
}

// Close ends sending. It waits for the POSTs under way until ctx ends, then
// breaks them off: what became of those is unknown, and said so. The store must
// be open until Close returns.
func (s *Service) Close(ctx context.Context) { s.sender.close(ctx) }

func localOnly(hostID string) (string, error) {
	switch hostID {
	case "", "local", "mac":
		return "local", nil
	}
	return "", errors.New("there is no such host")
}
