package events

import (
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"

	"agentrelay/internal/store"
)

// maxBody is the longest body of a delivery (OpenAI guide), in bytes.
const maxBody = 256 << 10

// event is something that happened, for whoever subscribed to it.
type event struct {
	owner     string
	eventType eventType
	arguments map[string]string // as canonical makes them
	// subject is what it is about: each is published once for an owner and name.
	subject string
	peerID  string // the peer that is told; '' when it is none
	data    any
}

// Published says what became of an event.
type Published struct {
	EventID string
	// Receivers is how many subscriptions it is sent to. With none the event is
	// not stored, and publishing it again later is not a duplicate.
	Receivers int
	// Duplicate is an event whose subject was published before.
	Duplicate bool
}

// eventID is the id of an event, the same whenever it is asked for.
func eventID(owner, name, subject string) string {
	raw, err := encode([]string{owner, name, subject})
	if err != nil {
		panic(err) // strings always encode
	}
	sum := sha256.Sum256(raw)
	return "evt_" + hex.EncodeToString(sum[:16])
}

// callbackBody is the body of every attempt at a callback.
type callbackBody struct {
	EventID   string  `json:"eventId"`
	Name      string  `json:"name"`
	Timestamp Time    `json:"timestamp"`
	Data      any     `json:"data"`
	Cursor    *string `json:"cursor"` // always null
}

// publish stores an event for every subscription that is live for it now.
func (s *Service) publish(tx *store.Tx, e event) (Published, error) {
	out := Published{EventID: eventID(e.owner, e.eventType.Name, e.subject)}
	err := tx.QueryRow(`SELECT (SELECT count(*) FROM event_deliveries d WHERE d.event = e.id) FROM events e WHERE e.owner = ? AND e.name = ? AND e.subject = ?`,
		e.owner, e.eventType.Name, e.subject).Scan(&out.Receivers)
	if err == nil {
		out.Duplicate = true
		return out, nil
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return out, fmt.Errorf("looking for an event: %w", err)
	}
	subs, err := s.matching(tx, e.owner, e.eventType, e.arguments, tx.Now().UnixMilli())
	if err != nil || len(subs) == 0 {
		return out, err
	}
	body, err := encode(callbackBody{EventID: out.EventID, Name: e.eventType.Name, Timestamp: Time{tx.Now()}, Data: e.data})
	if err != nil {
		return out, fmt.Errorf("writing an event: %w", err)
	}
	if len(body) > maxBody {
		return out, fmt.Errorf("an event of %d bytes is longer than a callback takes", len(body))
	}
	to := make([]destination, len(subs))
	for i, sub := range subs {
		to[i] = destination{sub.receiver, sub.id}
	}
	out.Receivers = len(to)
	return out, s.enqueue(tx, out.EventID, e, body, to)
}

// destination is where one delivery of an event goes.
type destination struct {
	receiver     int64
	subscription string // "" for a wake-up target
}

// enqueue stores an event with its deliveries, due now.
func (s *Service) enqueue(tx *store.Tx, id string, e event, body []byte, to []destination) error {
	now := tx.Now().UnixMilli()
	var row int64
	err := tx.QueryRow(`INSERT INTO events (event_id, owner, name, subject, peer_id, body, created_at) VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id`,
		id, e.owner, e.eventType.Name, e.subject, e.peerID, body, now).Scan(&row)
	if err != nil {
		return fmt.Errorf("storing an event: %w", err)
	}
	for _, d := range to {
		_, err := tx.Exec(`INSERT INTO event_deliveries (event, receiver, subscription, state, next_at) VALUES (?, ?, nullif(?, ''), 'queued', ?)`,
			row, d.receiver, d.subscription, now)
		if err != nil {
			return fmt.Errorf("queueing an event: %w", err)
		}
		tx.AfterCommit(func() { s.sender.kick(d.receiver) })
	}
	return nil
}

// match is a live subscription.
type match struct {
	id        string
	receiver  int64
	clientID  string
	expiresAt int64
}

const liveSubscriptions = `SELECT id, receiver, client_id, expires_at FROM event_subscriptions
	WHERE owner = ? AND name = ? AND arguments = ? AND ended_at IS NULL AND expires_at > ? ORDER BY rowid`

// matching returns the live subscriptions whose clients may still have this.
func (s *Service) matching(q store.Querier, owner string, t eventType, arguments map[string]string, now int64) ([]match, error) {
	var all, out []match
	err := q.Query(func(row store.Scanner) error {
		var m match
		err := row.Scan(&m.id, &m.receiver, &m.clientID, &m.expiresAt)
		all = append(all, m)
		return err
	}, liveSubscriptions, owner, t.Name, canonicalJSON(arguments), now)
	if err != nil {
		return nil, fmt.Errorf("looking for subscriptions: %w", err)
	}
	for _, m := range all {
		ok, err := s.allowed(q, m.clientID, t.permission)
		if err != nil {
			return nil, fmt.Errorf("asking what a client is allowed: %w", err)
		}
		if ok {
			out = append(out, m)
		}
	}
	return out, nil
}

// Attention is one occasion for agent.attention. The fields are those of its
// payload schema; empty pointers are null there.
type Attention struct {
	Owner string
	// Subject names the occasion, once for ever: "<requestId>:result".
	Subject       string
	Kind          string
	RequestID     string
	AgentID       string
	WorkspaceID   string
	RouteID       string
	HostID        string // "" is the local host
	TurnID        *string
	MessageID     string
	Summary       string // cut to 2000 code points
	ReadyForReply bool
	TerminalKind  *string
}

type attentionData struct {
	Kind             string  `json:"kind"`
	RequestID        string  `json:"requestId"`
	AgentID          string  `json:"agentId"`
	WorkspaceID      string  `json:"workspaceId"`
	RouteID          string  `json:"routeId"`
	HostID           string  `json:"hostId,omitempty"`
	TurnID           *string `json:"turnId"`
	MessageID        string  `json:"messageId,omitempty"`
	Summary          string  `json:"summary"`
	ReadyForReply    bool    `json:"readyForReply"`
	TerminalKind     *string `json:"terminalKind"`
	AcceptancePassed *bool   `json:"acceptancePassed"` // always null
}

const maxSummary = 2000

// PublishAttention stores an occasion for every subscription of its route, in
// the transaction of what it reports. Without a subscription nothing is stored
// and Receivers is 0: the caller still owes the notice.
func (s *Service) PublishAttention(tx *store.Tx, a Attention) (Published, error) {
	t, err := findType(AgentAttention)
	if err != nil {
		return Published{}, err
	}
	arguments, err := t.canonical(s, map[string]string{"workspaceId": a.WorkspaceID, "routeId": a.RouteID, "hostId": a.HostID})
	if err != nil {
		return Published{}, err
	}
	local, err := s.host("")
	if err != nil {
		return Published{}, err
	}
	data := attentionData{
		Kind: a.Kind, RequestID: a.RequestID, AgentID: a.AgentID, WorkspaceID: a.WorkspaceID, RouteID: a.RouteID, TurnID: a.TurnID,
		MessageID: a.MessageID, Summary: a.Summary, ReadyForReply: a.ReadyForReply, TerminalKind: a.TerminalKind,
	}
	if host := arguments["hostId"]; host != local { // request ids are a host's own
		data.HostID, a.Subject = host, host+":"+a.Subject
	}
	if characters := []rune(a.Summary); len(characters) > maxSummary {
		data.Summary = string(characters[:maxSummary])
	}
	return s.publish(tx, event{owner: a.Owner, eventType: t, arguments: arguments, subject: a.Subject, data: data})
}
