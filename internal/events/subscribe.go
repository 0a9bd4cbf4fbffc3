package events

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strings"
	"time"

	"agentrelay/internal/audit"
	"agentrelay/internal/principal"
	"agentrelay/internal/safedial"
	"agentrelay/internal/store"
)

const (
	// forever is the least that a client gets that asked for no expiry.
	forever = 7 * 24 * time.Hour
	// rotation is how long the secret before also signs after a change.
	rotation = time.Hour
	// verifiedFor is how long a passed challenge speaks for an owner and a URL.
	verifiedFor = 24 * time.Hour
	maxURL      = 2048
)

// SubscribeIn is the parameters of events/subscribe, read but not checked.
type SubscribeIn struct {
	Name      string
	Arguments json.RawMessage
	Mode      string
	URL       string
	Secret    string
	// TTL is what the client asked for; Forever means that it asked for no
	// expiry. Without both the default is granted.
	TTL     *time.Duration
	Forever bool
}

// ReadSubscribe reads the parameters of events/subscribe. Members that it does
// not know are left for later versions of MCP Events, and so is cursor: no event
// is replayed. Its refusals are those of [Service.Subscribe].
func ReadSubscribe(raw json.RawMessage) (SubscribeIn, error) {
	var p struct {
		target
		TTLMs json.RawMessage `json:"ttlMs"`
	}
	if err := p.read(raw, &p); err != nil {
		return SubscribeIn{}, err
	}
	in := SubscribeIn{Name: p.Name, Arguments: p.Arguments, Mode: p.Delivery.Mode, URL: p.Delivery.URL, Secret: p.Delivery.Secret}
	switch {
	case p.TTLMs == nil:
	case string(p.TTLMs) == "null":
		in.Forever = true
	default:
		var ms float64
		if err := json.Unmarshal(p.TTLMs, &ms); err != nil || ms != math.Trunc(ms) {
			return SubscribeIn{}, invalid("ttlMs", "must be an integer or null")
		}
		const most = math.MaxInt64 / int64(time.Millisecond)
		ttl := time.Duration(max(min(ms, float64(most)/2), 0)) * time.Millisecond
		in.TTL = &ttl
	}
	return in, nil
}

// target is what subscribe and unsubscribe have in common.
type target struct {
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
	Delivery  struct {
		Mode   string `json:"mode"`
		URL    string `json:"url"`
		Secret string `json:"secret"`
	} `json:"delivery"`
}

func (*target) read(raw json.RawMessage, into any) error {
	if len(raw) == 0 {
		return invalid("params", "must be an object")
	}
	err := json.Unmarshal(raw, into)
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field != "" {
		return invalid(strings.TrimPrefix(wrong.Field, "target."), "must be "+article(wrong.Type.Kind().String()))
	}
	if err != nil {
		return invalid("params", "must be an object")
	}
	return nil
}

func article(kind string) string {
	if kind == "struct" {
		return "an object"
	}
	return "a " + kind
}

// SubscribeOut is the answer of events/subscribe.
type SubscribeOut struct {
	ID string `json:"id"`
	// RefreshBefore is when the subscription expires.
	RefreshBefore Time `json:"refreshBefore"`
	// Cursor is always null: nothing is replayed.
	Cursor         *string        `json:"cursor"`
	Truncated      bool           `json:"truncated"`
	DeliveryStatus DeliveryStatus `json:"deliveryStatus"`
}

// DeliveryStatus is how delivery went up to now.
type DeliveryStatus struct {
	Active         bool    `json:"active"`
	LastDeliveryAt *Time   `json:"lastDeliveryAt"`
	LastError      *string `json:"lastError"` // one of MCP Events' six words
	FailedSince    *Time   `json:"failedSince,omitempty"`
	Throttled      bool    `json:"throttled,omitempty"`
	RetryAfterMs   int64   `json:"retryAfterMs,omitempty"`
}

// subKey is what a subscription is: the same four are the same subscription.
type subKey struct{ owner, url, name, arguments string }

// id is the one that a subscription gets when it is made. The row keeps it.
func (k subKey) id() string {
	raw, err := encode([]string{k.owner, k.url, k.name, k.arguments})
	if err != nil {
		panic(err) // strings always encode
	}
	sum := sha256.Sum256(raw)
	return "sub_" + hex.EncodeToString(sum[:16])
}

// subscription is a checked request for one.
type subscription struct {
	subKey
	eventType eventType
	arguments map[string]string
	id        string
	secret    []byte
	ttl       time.Duration
	verified  bool // by a challenge of this request
}

// Subscribe makes or refreshes a subscription: the same owner, url, name and
// arguments are always one, with one id. A refresh grants the time anew, takes
// another secret (the one before also signs for an hour), and resumes delivery
// to a receiver that had failed, ended the subscription or let it expire: what
// it missed by that is sent. Before the answer the callback has passed a
// verification challenge, in this call or within the last day.
//
// Refusals: invalid_arguments, not_permitted, unknown_event,
// unknown_event_subject, unsupported_delivery, subscription_limit,
// challenge_limit, callback_failed, subscription_withdrawn.
func (s *Service) Subscribe(ctx context.Context, who principal.Principal, in SubscribeIn) (SubscribeOut, error) {
	r, err := s.checkSubscribe(who, in)
	if err != nil {
		return SubscribeOut{}, err
	}
	withdrawn, done := s.pending.begin(r.subKey, who.ClientID)
	defer done()
	unlock, err := s.challenges.lock(ctx, r.owner+"\x00"+r.url)
	if err != nil {
		return SubscribeOut{}, err
	}
	defer unlock()
	err = store.Read(ctx, s.store, func(q *store.Reader) error {
		now := s.now()
		stored, err := s.admit(q, who, r, now)
		if err != nil {
			return err
		}
		r.id = stored.id
		r.verified, err = isVerified(q, r.owner, r.url, now)
		return err
	})
	if err != nil {
		return SubscribeOut{}, err
	}
	challenged := !r.verified
	if challenged {
		if err := s.challenge(ctx, r); err != nil {
			return SubscribeOut{}, err
		}
	}
	return store.Write(ctx, s.store, func(tx *store.Tx) (SubscribeOut, error) {
		if withdrawn() {
			return SubscribeOut{}, refuse(Withdrawn.New("The subscription was ended while its callback was verified."), "kind", "subscription")
		}
		if challenged {
			if err := recordVerified(tx, r.owner, r.url); err != nil {
				return SubscribeOut{}, err
			}
		}
		return s.subscribe(tx, who, r)
	})
}

func (s *Service) checkSubscribe(who principal.Principal, in SubscribeIn) (subscription, error) {
	r := subscription{}
	if s.key == nil || s.client == nil {
		return r, errors.New("events: a Key and a Client are needed to subscribe")
	}
	if in.Name == "" {
		return r, invalid("name", "is required")
	}
	t, err := findType(in.Name)
	if err == nil && !s.offers(in.Name) {
		err = unknownEvent()
	}
	if err != nil {
		return r, err
	}
	if !who.Permissions.Has(t.permission) {
		return r, forbidden(who, t.permission)
	}
	switch in.Mode {
	case "webhook":
	case "poll", "push":
		return r, refuse(Unsupported.Newf("delivery.mode %s is not offered.", in.Mode), "feature", "deliveryMode", "value", in.Mode)
	default:
		return r, invalid("delivery.mode", "must be webhook")
	}
	arguments, err := t.arguments(s, in.Arguments)
	if err != nil {
		return r, err
	}
	key, ok := parseSecret(in.Secret)
	if !ok {
		return r, invalid("delivery.secret", fmt.Sprintf("must be whsec_ and the standard base64 of %d to %d random bytes", minSecret, maxSecret))
	}
	if err := s.checkCallback(in.URL); err != nil {
		return r, err
	}
	return subscription{
		subKey:    subKey{who.Owner, in.URL, t.Name, canonicalJSON(arguments)},
		eventType: t, arguments: arguments, secret: key, ttl: s.grant(in),
	}, nil
}

func (s *Service) checkCallback(raw string) error {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || len(raw) > maxURL {
		return invalid("delivery.url", fmt.Sprintf("must be an https URL of at most %d bytes", maxURL))
	}
	err = s.checkURL(raw)
	var refused *safedial.RefusedError
	if errors.As(err, &refused) {
		return invalid("delivery.url", "is refused: "+refused.Reason)
	}
	return err
}

// grant is how long the client gets: what it asked for, within the bounds.
func (s *Service) grant(in SubscribeIn) time.Duration {
	want := s.ttl.Default
	switch {
	case in.Forever:
		want = max(forever, want)
	case in.TTL != nil:
		want = *in.TTL
	}
	return min(max(want, s.ttl.Min), s.ttl.Max)
}

// admit refuses a request that this owner can't have now, and returns the row
// that it refreshes, or a new one's id.
func (s *Service) admit(q store.Querier, who principal.Principal, r subscription, now time.Time) (subRow, error) {
	ok, err := s.allowed(q, who.ClientID, r.eventType.permission)
	if err != nil {
		return subRow{}, fmt.Errorf("asking what a client is allowed: %w", err)
	}
	if !ok {
		return subRow{}, forbidden(who, r.eventType.permission)
	}
	if r.eventType.exists != nil {
		if err := r.eventType.exists(s, q, r.owner, r.arguments); err != nil {
			return subRow{}, err
		}
	}
	stored, err := findSubscription(q, r.subKey)
	if err != nil || stored.live(now) {
		return stored, err
	}
	n, err := countLive(q, r.owner, now)
	if err != nil {
		return subRow{}, err
	}
	if n >= s.maxSubs {
		return subRow{}, refuse(TooMany.Newf("This owner has %d active subscriptions; that is the most there can be.", n), "limit", "subscriptions", "max", s.maxSubs)
	}
	return stored, nil
}

// subscribe stores an admitted and verified request.
func (s *Service) subscribe(tx *store.Tx, who principal.Principal, r subscription) (SubscribeOut, error) {
	now := tx.Now()
	stored, err := s.admit(tx, who, r, now)
	if err != nil {
		return SubscribeOut{}, err
	}
	receiver, err := receiverOf(tx, r.url)
	if err != nil {
		return SubscribeOut{}, err
	}
	row := subRow{
		id: stored.id, receiver: receiver, clientID: who.ClientID,
		secret: s.key.Seal(r.secret, stored.id), expiresAt: now.Add(r.ttl).UnixMilli(),
	}
	if stored.live(now) {
		if stored.oldUntil > now.UnixMilli() {
			row.oldSecret, row.oldUntil = stored.oldSecret, stored.oldUntil
		}
		if before, err := s.key.Open(stored.secret, stored.id); err == nil && !bytes.Equal(before, r.secret) {
			row.oldSecret, row.oldUntil = stored.secret, now.Add(rotation).UnixMilli()
		}
	}
	if err := row.save(tx, r.subKey); err != nil {
		return SubscribeOut{}, err
	}
	status, err := deliveryStatus(tx, stored, now)
	if err != nil {
		return SubscribeOut{}, err
	}
	if err := resume(tx, row); err != nil {
		return SubscribeOut{}, err
	}
	if a := r.arguments; r.name == AgentAttention {
		if err := s.renewed(tx, r.owner, a["hostId"], a["workspaceId"], a["routeId"]); err != nil {
			return SubscribeOut{}, err
		}
	}
	err = audit.Record(tx, who, "event.subscribe", row.id, audit.OK,
		"name", r.name, "refresh", stored.found, "expiresAt", at(row.expiresAt).String(), "rotated", row.oldUntil > stored.oldUntil)
	if err != nil {
		return SubscribeOut{}, err
	}
	tx.AfterCommit(func() { s.sender.kick(receiver) })
	return SubscribeOut{ID: row.id, RefreshBefore: at(row.expiresAt), DeliveryStatus: status}, nil
}

// UnsubscribeIn is the parameters of events/unsubscribe, read but not checked.
type UnsubscribeIn struct {
	Name      string
	Arguments json.RawMessage
	URL       string
}

// ReadUnsubscribe reads the parameters of events/unsubscribe.
func ReadUnsubscribe(raw json.RawMessage) (UnsubscribeIn, error) {
	var p target
	if err := p.read(raw, &p); err != nil {
		return UnsubscribeIn{}, err
	}
	return UnsubscribeIn{Name: p.Name, Arguments: p.Arguments, URL: p.Delivery.URL}, nil
}

// Unsubscribe ends a subscription and cancels what waits for it. When it
// returns, no further attempt begins and those under way have been broken off.
// found is false when there was no active one, which is what the caller wanted
// all the same. It needs no permission.
//
// Refusals: invalid_arguments, unknown_event.
func (s *Service) Unsubscribe(ctx context.Context, who principal.Principal, in UnsubscribeIn) (found bool, err error) {
	if in.Name == "" {
		return false, invalid("name", "is required")
	}
	if in.URL == "" {
		return false, invalid("delivery.url", "is required")
	}
	t, err := findType(in.Name)
	if err != nil {
		return false, err
	}
	arguments, err := t.arguments(s, in.Arguments)
	if err != nil {
		return false, err
	}
	key := subKey{who.Owner, in.URL, t.Name, canonicalJSON(arguments)}
	s.pending.withdraw(func(c *pendingCall) bool { return c.key == key })
	id, err := store.Write(ctx, s.store, func(tx *store.Tx) (string, error) {
		row, err := findSubscription(tx, key)
		if err != nil || !row.live(tx.Now()) {
			return "", err
		}
		return row.id, s.end(tx, row.id, unsubscribed, who)
	})
	if id != "" {
		s.sender.wait(ctx, id)
	}
	return id != "", err
}

// EndClient ends every subscription that a client made or is making, in the
// transaction that revokes it.
func (s *Service) EndClient(tx *store.Tx, clientID string) error {
	s.pending.withdraw(func(c *pendingCall) bool { return c.clientID == clientID })
	type ended struct{ id, owner string }
	var all []ended
	err := tx.Query(func(row store.Scanner) error {
		var e ended
		err := row.Scan(&e.id, &e.owner)
		all = append(all, e)
		return err
	}, subscriptionsOfClient, clientID)
	if err != nil {
		return fmt.Errorf("looking for a client's subscriptions: %w", err)
	}
	for _, e := range all {
		if err := s.end(tx, e.id, clientEnded, system(e.owner)); err != nil {
			return err
		}
	}
	return nil
}

// system is the gateway itself in the audit log.
func system(owner string) principal.Principal { return principal.Principal{Owner: owner} }

// end ends a subscription: its secrets go, what waits for it is cancelled, and
// attempts under way are broken off after the commit.
func (s *Service) end(tx *store.Tx, id, reason string, who principal.Principal) error {
	if err := endSubscription(tx, id, reason); err != nil {
		return err
	}
	if err := audit.Record(tx, who, "event.end", id, audit.OK, "reason", reason); err != nil {
		return err
	}
	tx.AfterCommit(func() { s.sender.abort(id) })
	return nil
}
