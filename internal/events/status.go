package events

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"agentrelay/internal/store"
)

const (
	// nearExpiry is when an owner is told that a subscription ends soon; for a
	// short one it is the last tenth of its life.
	nearExpiry = 3 * 24 * time.Hour
	// unreadAfter is when mail that a receiver accepted and nobody read is worth
	// a warning, and unreadWithin how far back that looks.
	unreadAfter  = time.Hour
	unreadWithin = 7 * 24 * time.Hour
	// lapsedWithin is how long an expired subscription is worth a warning.
	lapsedWithin = 7 * 24 * time.Hour
	// maxUnread is how many accepted deliveries are looked at.
	maxUnread = 500
)

// Status is what the owner should know at a glance.
type Status struct {
	Subscriptions int       `json:"subscriptions"` // active ones
	Targets       int       `json:"targets"`       // wake-up targets of the config
	Waiting       int       `json:"waiting"`       // deliveries that are queued or under way
	Dead          int       `json:"dead"`          // deliveries that nothing tries again
	Warnings      []Warning `json:"warnings"`
}

// Warning is something that the owner may want to act on.
type Warning struct {
	Code string `json:"code"` // stable, lower_snake
	Text string `json:"text"` // what is the matter and what to do
}

// Status measures the events of all owners.
func (s *Service) Status(ctx context.Context) (Status, error) {
	out := Status{Targets: len(s.targets), Warnings: []Warning{}}
	now := s.now()
	err := store.Read(ctx, s.store, func(q *store.Reader) error {
		err := q.QueryRow(`SELECT (SELECT count(*) FROM event_subscriptions WHERE ended_at IS NULL AND expires_at > ?),
				(SELECT count(*) FROM event_receivers r JOIN event_deliveries d ON d.receiver = r.id AND d.state IN ('queued', 'submitting')),
				(SELECT count(*) FROM event_deliveries WHERE state IN ('failed', 'unknown'))`, now.UnixMilli()).
			Scan(&out.Subscriptions, &out.Waiting, &out.Dead)
		if err != nil {
			return err
		}
		for _, find := range []func(store.Querier, time.Time) ([]Warning, error){s.expiring, s.failing, s.unread} {
			found, err := find(q, now)
			if err != nil {
				return err
			}
			out.Warnings = append(out.Warnings, found...)
		}
		return nil
	})
	if err != nil {
		return Status{}, fmt.Errorf("measuring events: %w", err)
	}
	targets, err := s.Targets(ctx, "")
	for _, t := range targets {
		if t.State == "disabled" || t.State == "unusable" || t.State == "waiting" {
			out.Warnings = append(out.Warnings, Warning{"wake_target_" + t.State, fmt.Sprintf("The wake-up target of %s wakes nobody: %s", t.PeerID, t.Reason)})
		}
	}
	return out, err
}

const expiringSubscriptions = `SELECT name, arguments, expires_at, refreshed_at FROM event_subscriptions s
	WHERE (ended_at IS NULL OR ended_reason = 'expired') AND expires_at BETWEEN ? AND ?
	AND NOT EXISTS (SELECT 1 FROM event_subscriptions o WHERE o.owner = s.owner AND o.name = s.name AND o.arguments = s.arguments
		AND o.ended_at IS NULL AND o.expires_at > s.expires_at)
	ORDER BY expires_at LIMIT 50`

// expiring warns of subscriptions that end soon or ended lately, unless another
// one does the same for longer.
func (s *Service) expiring(q store.Querier, now time.Time) (list []Warning, err error) {
	err = q.Query(func(row store.Scanner) error {
		var name, arguments string
		var expires, refreshed int64
		if err := row.Scan(&name, &arguments, &expires, &refreshed); err != nil {
			return err
		}
		left := time.UnixMilli(expires).Sub(now)
		switch {
		case left <= 0:
			list = append(list, Warning{"subscription_expired", fmt.Sprintf("The subscription to %s %s expired at %s: nobody is woken by it until its client subscribes again.", name, arguments, at(expires))})
		case left < time.Duration(expires-refreshed)*time.Millisecond/10:
			list = append(list, Warning{"subscription_expires", fmt.Sprintf("The subscription to %s %s expires at %s: ask its client to subscribe again.", name, arguments, at(expires))})
		}
		return nil
	}, expiringSubscriptions, now.Add(-lapsedWithin).UnixMilli(), now.Add(nearExpiry).UnixMilli())
	return list, err
}

// failing warns of receivers whose breaker is open.
func (s *Service) failing(q store.Querier, _ time.Time) (list []Warning, err error) {
	err = q.Query(func(row store.Scanner) error {
		var address, lastError string
		var since int64
		var waiting int
		if err := row.Scan(&address, &since, &lastError, &waiting); err != nil {
			return err
		}
		who := "The receiver " + originOf(address)
		if hostOf(address) == "" {
			who = "A wake-up target"
		}
		list = append(list, Warning{"receiver_failing", fmt.Sprintf("%s has failed since %s: %s. %d deliveries wait; one attempt is made every %s.", who, at(since), phrase(lastError), waiting, probeEvery)})
		return nil
	}, `SELECT address, failed_since, last_error, (SELECT count(*) FROM event_deliveries d WHERE d.receiver = r.id AND d.state = 'queued') AS waiting
		FROM event_receivers r WHERE failures >= ? AND (waiting > 0 OR EXISTS (
			SELECT 1 FROM event_subscriptions s WHERE s.receiver = r.id AND s.ended_at IS NULL)) ORDER BY failed_since LIMIT 50`, breakerAfter)
	return list, err
}

// unread warns of mail that a receiver accepted long ago and its peer did not
// read: accepted is not read.
func (s *Service) unread(q store.Querier, now time.Time) ([]Warning, error) {
	type accepted struct{ owner, subject, peerID string }
	var all []accepted
	err := q.Query(func(row store.Scanner) error {
		var a accepted
		err := row.Scan(&a.owner, &a.subject, &a.peerID)
		all = append(all, a)
		return err
	}, `SELECT e.owner, e.subject, e.peer_id FROM event_deliveries d CROSS JOIN events e ON e.id = d.event
		WHERE d.state = 'accepted' AND d.last_attempt_at BETWEEN ? AND ? AND e.name = ? ORDER BY d.last_attempt_at DESC LIMIT ?`,
		now.Add(-unreadWithin).UnixMilli(), now.Add(-unreadAfter).UnixMilli(), PeerMessage, maxUnread)
	if err != nil {
		return nil, err
	}
	perPeer, counted := map[peerKey]int{}, map[accepted]bool{}
	for _, a := range all {
		if counted[a] { // by another receiver
			continue
		}
		counted[a] = true
		unread, err := s.mailbox.Unread(q, a.owner, a.subject)
		if err != nil {
			return nil, fmt.Errorf("asking whether mail was read: %w", err)
		}
		if unread {
			perPeer[peerKey{a.owner, a.peerID}]++
		}
	}
	var list []Warning
	for _, key := range slices.SortedFunc(maps.Keys(perPeer), peerKey.compare) {
		list = append(list, Warning{"mail_unread", fmt.Sprintf("The receiver of %s accepted %d messages more than an hour ago that were never read: ask that client to look at its mail.", key.peerID, perPeer[key])})
	}
	return list, nil
}

func (k peerKey) compare(other peerKey) int {
	return cmp.Or(cmp.Compare(k.owner, other.owner), cmp.Compare(k.peerID, other.peerID))
}

// sortedTargets are the targets of the config by owner and peer.
func (s *Service) sortedTargets() []Target {
	return slices.SortedFunc(maps.Values(s.targets), func(a, b Target) int {
		return peerKey{a.Owner, a.PeerID}.compare(peerKey{b.Owner, b.PeerID})
	})
}
