package wake

import (
	"agentrelay/internal/agents"
	"agentrelay/internal/events"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/store"
)

// New makes the mailbox's [mailbox.Wake] of an events service and the agents: mail
// for local peers is told to their agents, all other goes the ways of events. With
// nil in the place of the agents, as for commands without a gateway, no mail can be
// sent to local peers, and what waits for them is cancelled all the same.
func New(e *events.Service, a *agents.Service) mailbox.Wake { return native{adapter{e}, a} }

type native struct {
	adapter
	agents *agents.Service
}

func nativeDelivery(d agents.NativeDelivery) mailbox.Delivery {
	return mailbox.Delivery{
		Path: mailbox.Native, State: mailbox.DeliveryState(d.State), Attempts: d.Attempts, LastAttemptAt: mailbox.Time(d.LastAttemptAt), Reason: d.Reason,
	}
}

// Sent implements [mailbox.Wake].
func (n native) Sent(tx *store.Tx, m mailbox.Mail) (mailbox.Delivery, error) {
	if m.To.Kind != mailbox.Local || n.agents == nil {
		return n.adapter.Sent(tx, m)
	}
	d, err := n.agents.QueueMail(tx, agents.NativeMail{
		Owner: m.To.Owner, MessageID: m.MessageID, FromPeerID: m.FromPeerID, PeerID: m.To.PeerID, Generation: m.To.Generation, HostID: m.To.HostID, AgentID: m.To.AgentID,
	})
	return nativeDelivery(d), err
}

// Ended implements [mailbox.Wake].
func (n native) Ended(tx *store.Tx, p mailbox.PeerRef) error {
	if p.Kind == mailbox.Local {
		if err := agents.CancelMail(tx, p.Owner, p.PeerID, p.Generation); err != nil {
			return err
		}
	}
	return n.adapter.Ended(tx, p)
}

// Notification implements [mailbox.Wake].
func (n native) Notification(q store.Querier, p mailbox.PeerRef) (mailbox.Notification, error) {
	if p.Kind != mailbox.Local || n.agents == nil {
		return n.adapter.Notification(q, p)
	}
	return mailbox.Notification{Path: mailbox.Native, Reason: n.agents.MailPath(p.HostID)}, nil
}

// Delivery implements [mailbox.Wake].
func (n native) Delivery(q store.Querier, owner, messageID string) (mailbox.Delivery, error) {
	d, found, err := agents.MailDelivery(q, owner, messageID)
	if err != nil {
		return mailbox.Delivery{}, err
	}
	if !found {
		return n.adapter.Delivery(q, owner, messageID)
	}
	if n.agents != nil {
		n.agents.Explain(&d)
	}
	return nativeDelivery(d), nil
}

// Attention is internal/events as the agents ask for it.
func Attention(e *events.Service) agents.Events { return attention{e} }

type attention struct{ events *events.Service }

// PublishAttention implements [agents.Events].
func (a attention) PublishAttention(tx *store.Tx, o agents.Attention) (told bool, err error) {
	p, err := a.events.PublishAttention(tx, events.Attention(o))
	return p.Receivers > 0 || p.Duplicate, err
}

// Routes implements [agents.Events].
func (a attention) Routes(q store.Querier, owner string) ([]agents.Route, error) {
	live, err := a.events.Routes(q, owner)
	out := make([]agents.Route, len(live))
	for i, r := range live {
		out[i] = agents.Route{SubscriptionID: r.SubscriptionID, WorkspaceID: r.WorkspaceID, RouteID: r.RouteID, HostID: r.HostID, ExpiresAt: r.ExpiresAt.Time}
	}
	return out, err
}
