package events

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"time"

	"agentrelay/internal/audit"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// SubscriptionInfo is a subscription as the owner's commands show it: without
// secrets, and of the callback's URL only what is no key.
type SubscriptionInfo struct {
	ID             string          `json:"id"`
	Owner          string          `json:"owner"`
	Name           string          `json:"name"`
	Arguments      json.RawMessage `json:"arguments"`
	Receiver       string          `json:"receiver"` // https://host
	ClientID       string          `json:"clientId"`
	State          string          `json:"state"`            // active, expired or ended
	Reason         string          `json:"reason,omitempty"` // of an end, or of failing deliveries
	CreatedAt      Time            `json:"createdAt"`
	RefreshedAt    Time            `json:"refreshedAt"`
	ExpiresAt      Time            `json:"expiresAt"`
	EndedAt        Time            `json:"endedAt,omitzero"`
	LastAcceptedAt Time            `json:"lastAcceptedAt,omitzero"`
	FailedSince    Time            `json:"failedSince,omitzero"`
	Waiting        int             `json:"waiting"` // deliveries that are queued
}

// TargetInfo is a wake-up target of the config.
type TargetInfo struct {
	Owner      string `json:"owner"`
	PeerID     string `json:"peerId"`
	Generation int64  `json:"generation"`
	RoutineID  string `json:"routineId"`
	Scheme     Scheme `json:"scheme"`
	// Receiver is https://host of the webhook, when its credential can be read.
	Receiver string `json:"receiver,omitempty"`
	// State is active, paused (an Events subscription is active), waiting (no
	// such generation yet), disabled, or unusable (its credential).
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
}

// Page asks for a part of a list.
type Page struct {
	Limit  *int // 1..200, nil is 50
	Cursor *string
}

// read returns the limit, and the row id that the cursor stands for or start.
func (p Page) read(start int64) (limit int, after int64, err error) {
	limit, after = 50, start
	if p.Limit != nil {
		limit = *p.Limit
	}
	if limit < 1 || limit > 200 {
		return 0, 0, fault.InvalidArguments.New("limit must be from 1 to 200.")
	}
	if p.Cursor != nil {
		if after, err = strconv.ParseInt(*p.Cursor, 10, 64); err != nil {
			return 0, 0, fault.InvalidArguments.New("cursor is not one of this list.").WithHint("Pass nextCursor unchanged, or leave cursor out to start again.")
		}
	}
	return limit, after, nil
}

// SubscriptionsIn selects subscriptions.
type SubscriptionsIn struct {
	Owner        string // "" is every owner
	IncludeEnded bool   // also expired and ended ones
	Page
}

// SubscriptionsOut is a page of subscriptions in the order in which they were
// made, with every wake-up target beside the first page.
type SubscriptionsOut struct {
	Subscriptions []SubscriptionInfo `json:"subscriptions"`
	Targets       []TargetInfo       `json:"targets,omitempty"`
	NextCursor    string             `json:"nextCursor,omitempty"`
}

const listSubscriptions = `SELECT s.rowid, s.id, s.owner, s.name, s.arguments, r.address, s.client_id, s.ended_reason, s.created_at, s.refreshed_at, s.expires_at,
		coalesce(s.ended_at, 0), coalesce(s.last_accepted_at, 0), coalesce(r.failed_since, 0), r.last_error,
		(SELECT count(*) FROM event_deliveries d WHERE d.subscription = s.id AND d.state = 'queued')
	FROM event_subscriptions s CROSS JOIN event_receivers r ON r.id = s.receiver
	WHERE s.rowid > ?1 AND (?2 = '' OR s.owner = ?2) AND (?3 OR s.ended_at IS NULL AND s.expires_at > ?4) ORDER BY s.rowid LIMIT ?5`

// Subscriptions answers a page of them, for the owner's own command line.
func (s *Service) Subscriptions(ctx context.Context, in SubscriptionsIn) (SubscriptionsOut, error) {
	limit, after, err := in.Page.read(0)
	if err != nil {
		return SubscriptionsOut{}, err
	}
	out := SubscriptionsOut{Subscriptions: []SubscriptionInfo{}}
	now := s.now()
	var last int64
	err = store.Read(ctx, s.store, func(q *store.Reader) error {
		return q.Query(func(row store.Scanner) error {
			if len(out.Subscriptions) == limit {
				out.NextCursor = strconv.FormatInt(last, 10)
				return nil
			}
			info, rowid, err := scanSubscriptionInfo(row, now)
			last = rowid
			out.Subscriptions = append(out.Subscriptions, info)
			return err
		}, listSubscriptions, after, in.Owner, in.IncludeEnded, now.UnixMilli(), limit+1)
	})
	if err != nil {
		return SubscriptionsOut{}, fmt.Errorf("listing subscriptions: %w", err)
	}
	if in.Cursor == nil {
		out.Targets, err = s.Targets(ctx, in.Owner)
	}
	return out, err
}

func scanSubscriptionInfo(row store.Scanner, now time.Time) (info SubscriptionInfo, rowid int64, err error) {
	var address, arguments, lastError string
	var created, refreshed, expires, ended, acceptedAt, failedSince int64
	err = row.Scan(&rowid, &info.ID, &info.Owner, &info.Name, &arguments, &address, &info.ClientID, &info.Reason, &created, &refreshed, &expires,
		&ended, &acceptedAt, &failedSince, &lastError, &info.Waiting)
	if err != nil {
		return info, 0, err
	}
	info.Arguments, info.Receiver = json.RawMessage(arguments), originOf(address)
	info.CreatedAt, info.RefreshedAt, info.ExpiresAt, info.EndedAt, info.LastAcceptedAt = at(created), at(refreshed), at(expires), at(ended), at(acceptedAt)
	switch {
	case ended > 0 && info.Reason != expired:
		info.State = "ended"
	case ended > 0 || expires <= now.UnixMilli():
		info.State, info.Reason = "expired", ""
	default:
		info.State, info.Reason, info.FailedSince = "active", lastError, at(failedSince)
	}
	return info, rowid, nil
}

// originOf is what the owner sees of a callback: its path can be a key.
func originOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// Targets describes the wake-up targets of the config, of one owner or of all.
// It reads their credentials to see whether they can be used.
func (s *Service) Targets(ctx context.Context, owner string) ([]TargetInfo, error) {
	list := []TargetInfo{}
	for _, t := range s.sortedTargets() {
		if owner != "" && owner != t.Owner {
			continue
		}
		info := TargetInfo{Owner: t.Owner, PeerID: t.PeerID, Generation: t.Generation, RoutineID: t.RoutineID, Scheme: t.Scheme}
		err := store.Read(ctx, s.store, func(q *store.Reader) (err error) {
			info.State, info.Reason, err = s.targetState(q, t)
			return err
		})
		if err != nil {
			return nil, err
		}
		receiver, problem := s.lookAtCredential(t)
		if info.Receiver = receiver; problem != "" && (info.State == "active" || info.State == "paused") {
			info.State, info.Reason = "unusable", problem
		}
		list = append(list, info)
	}
	return list, nil
}

func (s *Service) targetState(q store.Querier, t Target) (state, reason string, err error) {
	generation, active, found, err := s.mailbox.Peer(q, t.Owner, t.PeerID)
	switch {
	case err != nil:
		return "", "", err
	case !found || generation < t.Generation:
		return "waiting", "The peer is not registered in this generation yet.", nil
	case generation == t.Generation && !active:
		return "disabled", "The peer is stopped.", nil
	}
	_, _, why, err := s.targetOf(q, Peer{t.Owner, t.PeerID, generation})
	switch {
	case err != nil:
		return "", "", err
	case why == notActivated:
		return "waiting", why, nil
	case why != "":
		return "disabled", why, nil
	}
	n, err := s.Notification(q, Peer{t.Owner, t.PeerID, generation})
	if n.Path == PathEvents {
		return "paused", "The peer has an active Events subscription.", err
	}
	return "active", n.Reason, err
}

// lookAtCredential reads a target's credential: where it leads, and why it can't be
// used, or "".
func (s *Service) lookAtCredential(t Target) (receiver, problem string) {
	c, err := readCredential(t.Credential, s.getenv)
	if err == nil {
		receiver, err = originOf(c.url), s.checkURL(c.url)
	}
	if err != nil {
		return receiver, err.Error()
	}
	if _, ok := parseSecret(c.token); t.Scheme == StandardWebhooks && !ok {
		return receiver, "the token is no whsec_ secret"
	}
	return receiver, ""
}

// DeliveryInfo is a delivery as the owner's commands show it.
type DeliveryInfo struct {
	EventID        string    `json:"eventId"`
	Owner          string    `json:"owner"`
	Name           string    `json:"name"`
	Subject        string    `json:"subject"` // the messageId of peer.message
	PeerID         string    `json:"peerId,omitempty"`
	Path           Path      `json:"path"`
	SubscriptionID string    `json:"subscriptionId,omitempty"`
	State          State     `json:"state"`
	Reason         string    `json:"reason,omitempty"`
	CreatedAt      Time      `json:"createdAt"`
	NextAttemptAt  Time      `json:"nextAttemptAt,omitzero"` // while queued
	Attempts       []Attempt `json:"attempts"`
}

// Attempt is one POST.
type Attempt struct {
	StartedAt Time   `json:"startedAt"`
	EndedAt   Time   `json:"endedAt,omitzero"`
	Status    int    `json:"status,omitempty"`  // of HTTP
	Outcome   string `json:"outcome,omitempty"` // accepted, or why not; empty while it runs
}

// DeliveriesIn selects deliveries.
type DeliveriesIn struct {
	Owner string // "" is every owner
	// Dead selects those that failed or whose outcome is unknown: nothing tries
	// them again.
	Dead bool
	Page
}

// DeliveriesOut is a page of deliveries, newest first.
type DeliveriesOut struct {
	Deliveries []DeliveryInfo `json:"deliveries"`
	NextCursor string         `json:"nextCursor,omitempty"`
}

const (
	listDeliveries = `SELECT d.id, e.event_id, e.owner, e.name, e.subject, e.peer_id, coalesce(d.subscription, ''), d.state, d.reason, e.created_at, d.next_at
		FROM event_deliveries d CROSS JOIN events e ON e.id = d.event WHERE d.id < ?1 AND (?2 = '' OR e.owner = ?2) `
	everyDelivery   = listDeliveries + `ORDER BY d.id DESC LIMIT ?3`
	deadDeliveries  = listDeliveries + `AND d.state IN ('failed', 'unknown') ORDER BY d.id DESC LIMIT ?3`
	attemptsOfOne   = `SELECT started_at, coalesce(ended_at, 0), coalesce(status, 0), outcome FROM event_attempts WHERE delivery = ? ORDER BY attempt`
	deliveriesOfOne = `SELECT d.id, d.receiver, coalesce(d.subscription, ''), d.state, e.owner, coalesce(s.ended_at, 0), coalesce(s.expires_at, 0)
		FROM events e JOIN event_deliveries d ON d.event = e.id LEFT JOIN event_subscriptions s ON s.id = d.subscription WHERE e.event_id = ?`
	requeueDelivery = `UPDATE event_deliveries SET state = 'queued', reason = '', tries = 0, next_at = ? WHERE id = ?`
)

// Deliveries answers a page of what was and is to be delivered.
func (s *Service) Deliveries(ctx context.Context, in DeliveriesIn) (DeliveriesOut, error) {
	limit, before, err := in.Page.read(math.MaxInt64)
	if err != nil {
		return DeliveriesOut{}, err
	}
	query := everyDelivery
	if in.Dead {
		query = deadDeliveries
	}
	out := DeliveriesOut{Deliveries: []DeliveryInfo{}}
	var ids []int64
	err = store.Read(ctx, s.store, func(q *store.Reader) error {
		err := q.Query(func(row store.Scanner) error {
			if len(ids) == limit {
				out.NextCursor = strconv.FormatInt(ids[limit-1], 10)
				return nil
			}
			id, info, err := scanDeliveryInfo(row)
			ids, out.Deliveries = append(ids, id), append(out.Deliveries, info)
			return err
		}, query, before, in.Owner, limit+1)
		for i := 0; i < len(ids) && err == nil; i++ {
			out.Deliveries[i].Attempts, err = readAttempts(q, ids[i])
		}
		return err
	})
	if err != nil {
		return DeliveriesOut{}, fmt.Errorf("listing deliveries: %w", err)
	}
	return out, nil
}

func scanDeliveryInfo(row store.Scanner) (id int64, info DeliveryInfo, err error) {
	var created, next int64
	err = row.Scan(&id, &info.EventID, &info.Owner, &info.Name, &info.Subject, &info.PeerID, &info.SubscriptionID, &info.State, &info.Reason, &created, &next)
	info.Path = PathEvents
	if info.SubscriptionID == "" {
		info.Path = PathWebhook
	}
	if info.State == Queued {
		info.NextAttemptAt = at(next)
	}
	info.State, info.CreatedAt = shown(info.State, info.Path), at(created)
	return id, info, err
}

func readAttempts(q store.Querier, delivery int64) ([]Attempt, error) {
	list := []Attempt{}
	err := q.Query(func(row store.Scanner) error {
		var a Attempt
		var started, ended int64
		err := row.Scan(&started, &ended, &a.Status, &a.Outcome)
		a.StartedAt, a.EndedAt = at(started), at(ended)
		list = append(list, a)
		return err
	}, attemptsOfOne, delivery)
	return list, err
}

// ResendOut is what [Service.Resend] did.
type ResendOut struct {
	EventID string `json:"eventId"`
	// Resent is how many deliveries have a new round of attempts.
	Resent int `json:"resent"`
}

// Resend gives the deliveries of an event that are at their end without having
// been accepted a new round of attempts, under the same event id: those to a
// subscription that is active, and one to a wake-up target that certainly did
// not arrive. It is the owner's own command.
//
// Refusals: unknown_delivery, not_resendable.
func (s *Service) Resend(ctx context.Context, eventID string) (ResendOut, error) {
	return store.Write(ctx, s.store, func(tx *store.Tx) (ResendOut, error) {
		type row struct {
			deliveryRow
			state   State
			endedAt int64
		}
		var rows []row
		err := tx.Query(func(sc store.Scanner) error {
			var r row
			err := sc.Scan(&r.id, &r.receiver, &r.subscription, &r.state, &r.owner, &r.endedAt, &r.expiresAt)
			rows = append(rows, r)
			return err
		}, deliveriesOfOne, eventID)
		if err != nil {
			return ResendOut{}, fmt.Errorf("looking for an event: %w", err)
		}
		if len(rows) == 0 {
			return ResendOut{}, UnknownDelivery.New("No event that is kept has this id.")
		}
		out, now := ResendOut{EventID: eventID}, tx.Now().UnixMilli()
		var reasons []error
		for _, r := range rows {
			if err := resendable(r.state, r.subscription != "", r.endedAt == 0 && r.expiresAt > now); err != nil {
				reasons = append(reasons, err)
				continue
			}
			if _, err := tx.Exec(requeueDelivery, now, r.id); err != nil {
				return ResendOut{}, fmt.Errorf("queueing a delivery again: %w", err)
			}
			out.Resent++
			tx.AfterCommit(func() { s.sender.kick(r.receiver) })
		}
		if out.Resent == 0 {
			return ResendOut{}, reasons[0]
		}
		return out, audit.Record(tx, principal.Owner(rows[0].owner), "event.resend", eventID, audit.OK, "deliveries", out.Resent)
	})
}

// resendable refuses to send again what need not or must not be.
func resendable(state State, callback, live bool) error {
	switch {
	case state == accepted:
		return NotResendable.New("The receiver accepted this event.")
	case state == Queued || state == Submitting:
		return NotResendable.New("This event is on its way and is tried again by itself.")
	case !callback && state == Unknown:
		return NotResendable.New("Whether this event reached its wake-up target is not known, and a routine must not run twice.")
	case !callback && state == Cancelled:
		return NotResendable.New("The wake-up target of this event no longer serves its peer.")
	case callback && !live:
		return NotResendable.New("The subscription of this event is no longer active.").WithHint("When its client has subscribed again, run this once more.")
	}
	return nil
}
