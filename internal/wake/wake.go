// Package wake joins the mailbox to what wakes its readers.
//
// It owns nothing but the translation between them: [Mailbox] is the mailbox as
// internal/events asks for it, [New] is internal/events and internal/agents as the
// mailbox asks for them, [Attention] is internal/events as the agents ask for it,
// and [EventsOptions] is the config as internal/events takes it. It promises to
// change no meaning on the way. The gateway and the owner's commands without a
// gateway both build with it, so that a peer that is stopped offline stops waking
// offline too. The rules are in the packages it joins.
package wake

import (
	"agentrelay/internal/config"
	"agentrelay/internal/events"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/store"
)

// Mailbox is what internal/events may ask of the mailbox.
type Mailbox = mailbox.Lookup

// EventsOptions is what the config says about events. It offers none: which are
// published is for the caller to know, as is all the rest.
func EventsOptions(c *config.Config) events.Options {
	o := events.Options{Offer: []string{}, MaxSubscriptions: c.Events.MaxSubscriptions, ChallengesPerMinute: c.Events.ChallengesPerMinute}
	o.TTL.Default, o.TTL.Min, o.TTL.Max = c.Events.TTL()
	for _, t := range c.PeerWakeTargets {
		o.Targets = append(o.Targets, events.Target{
			Owner: t.Owner, PeerID: t.PeerID, Generation: int64(t.Generation), RoutineID: t.RoutineID,
			Credential: t.CredentialFile, Scheme: events.Scheme(t.Scheme),
		})
	}
	return o
}

// adapter is the ways of internal/events.
type adapter struct{ events *events.Service }

func peer(p mailbox.PeerRef) events.Peer {
	return events.Peer{Owner: p.Owner, PeerID: p.PeerID, Generation: p.Generation}
}

func delivery(d events.Delivery, err error) (mailbox.Delivery, error) {
	return mailbox.Delivery{
		Path: mailbox.Path(d.Path), State: mailbox.DeliveryState(d.State), Attempts: d.Attempts,
		LastAttemptAt: mailbox.Time(d.LastAttemptAt), Reason: d.Reason,
	}, err
}

// Sent implements [mailbox.Wake].
func (a adapter) Sent(tx *store.Tx, m mailbox.Mail) (mailbox.Delivery, error) {
	return delivery(a.events.Sent(tx, events.Mail{Seq: m.Seq, MessageID: m.MessageID, To: peer(m.To)}))
}

// Ended implements [mailbox.Wake].
func (a adapter) Ended(tx *store.Tx, p mailbox.PeerRef) error { return a.events.Ended(tx, peer(p)) }

// Notification implements [mailbox.Wake].
func (a adapter) Notification(q store.Querier, p mailbox.PeerRef) (mailbox.Notification, error) {
	n, err := a.events.Notification(q, peer(p))
	return mailbox.Notification{Path: mailbox.Path(n.Path), Reason: n.Reason, ExpiresAt: mailbox.Time(n.ExpiresAt)}, err
}

// Delivery implements [mailbox.Wake].
func (a adapter) Delivery(q store.Querier, owner, messageID string) (mailbox.Delivery, error) {
	return delivery(a.events.Delivery(q, owner, messageID))
}
