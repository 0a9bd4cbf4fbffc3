package mailbox

import "agentrelay/internal/store"

// Path is how a reader is told of mail.
type Path string

// The paths, in the order they are preferred.
const (
	Native  Path = "native"  // a prompt to a local agent
	Events  Path = "events"  // an MCP Events subscription
	Webhook Path = "webhook" // a wake-up target of the config
	None    Path = "none"    // the reader checks by hand
)

// DeliveryState says how far a wake-up went. Accepted is never read.
type DeliveryState string

// The states of a delivery.
const (
	DeliveryNone     DeliveryState = "none" // the reader must check by hand
	Queued           DeliveryState = "queued"
	Submitting       DeliveryState = "submitting"
	Submitted        DeliveryState = "submitted"         // native prompt accepted
	CallbackAccepted DeliveryState = "callback_accepted" // Events
	WebhookAccepted  DeliveryState = "webhook_accepted"
	Failed           DeliveryState = "failed"
	Unknown          DeliveryState = "unknown"
	Cancelled        DeliveryState = "cancelled"
)

// Delivery is what is known about waking the recipient of one message.
type Delivery struct {
	Path          Path          `json:"path"`
	State         DeliveryState `json:"state"`
	Attempts      int           `json:"attempts"`
	LastAttemptAt Time          `json:"lastAttemptAt,omitzero"`
	Reason        string        `json:"reason,omitempty"`
}

// Notification is what would happen now to tell a peer of new mail.
type Notification struct {
	Path      Path   `json:"path"`
	Reason    string `json:"reason,omitempty"`
	ExpiresAt Time   `json:"expiresAt,omitzero"`
}

// PeerRef names one generation of a peer for [Wake].
type PeerRef struct {
	Owner      string
	PeerID     string
	Kind       Kind
	Generation int64
	HostID     string // of a local peer
	AgentID    string // of a local peer
}

// Mail is a message for [Wake]: ids only, a wake-up carries no text.
type Mail struct {
	Seq        int64 // order of arrival over all owners, for watermarks
	MessageID  string
	FromPeerID string
	To         PeerRef
	CreatedAt  Time
}

// Wake tells readers of mail. Its methods are called inside transactions and
// must use nothing but what they are given; an error fails the call they serve.
// A Delivery or Notification whose Path is "" or [None] needs no reason: the
// mailbox gives its own.
type Wake interface {
	// Sent is called in the transaction that stores m, after the row exists. It
	// chooses the path, records the delivery and returns it. The path is kept
	// with the message: one that is none stays none.
	Sent(tx *store.Tx, m Mail) (Delivery, error)
	// Ended is called in the transaction that ends this generation of a peer:
	// what waits for it is cancelled.
	Ended(tx *store.Tx, p PeerRef) error
	// Notification says what would wake this peer now.
	Notification(q store.Querier, p PeerRef) (Notification, error)
	// Delivery is the present state of a message whose path is not none.
	Delivery(q store.Querier, owner, messageID string) (Delivery, error)
}

// The reasons of path none, for senders.
const (
	noWakeUp    = "No wake-up is set up for this peer; it reads its mail when it checks."
	stoppedPeer = "The peer is stopped; nothing can be sent to it."
)

type noWake struct{}

func (noWake) Sent(*store.Tx, Mail) (Delivery, error) { return Delivery{}, nil }

func (noWake) Ended(*store.Tx, PeerRef) error { return nil }

func (noWake) Notification(store.Querier, PeerRef) (Notification, error) {
	return Notification{}, nil
}

func (noWake) Delivery(store.Querier, string, string) (Delivery, error) { return Delivery{}, nil }

// notWoken is the delivery of a message whose path is none.
func notWoken(reason string) Delivery {
	if reason == "" {
		reason = noWakeUp
	}
	return Delivery{Path: None, State: DeliveryNone, Reason: reason}
}

// delivery is what is known of a stored message's delivery.
func (s *Service) delivery(q store.Querier, m messageRow) (Delivery, error) {
	if m.path == None {
		return notWoken(m.pathReason), nil
	}
	d, err := s.wake.Delivery(q, m.owner, m.MessageID)
	if err != nil {
		return Delivery{}, err
	}
	if d.Path == "" { // its record is gone with the subscription that made it
		return Delivery{Path: m.path, State: Unknown, Reason: "The record of this delivery is no longer kept."}, nil
	}
	return d, nil
}

// notification measures what would wake p now.
func (s *Service) notification(q store.Querier, p peerRow) (Notification, error) {
	if p.stopped() {
		return Notification{Path: None, Reason: stoppedPeer}, nil
	}
	n, err := s.wake.Notification(q, p.ref())
	if err != nil {
		return Notification{}, err
	}
	if n.Path == "" || n.Path == None {
		n.Path = None
		if n.Reason == "" {
			n.Reason = noWakeUp
		}
	}
	return n, nil
}
