package events

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"agentrelay/internal/audit"
	"agentrelay/internal/store"
)

// Scheme is how a wake-up target knows that it is us.
type Scheme string

// The schemes.
const (
	// Bearer sends the token as a bearer token, and 200 accepts: a Grok Bot
	// routine.
	Bearer Scheme = "bearer"
	// StandardWebhooks signs with the token, a whsec_ secret, and 200 or 202
	// accepts: a Grok automation.
	StandardWebhooks Scheme = "standard-webhooks"
)

// acceptedStatuses are those that accept a wake-up.
var acceptedStatuses = map[Scheme][]int{Bearer: {200}, StandardWebhooks: {200, 202}}

// Target is a webhook of the config that wakes one generation of a peer.
type Target struct {
	Owner      string
	PeerID     string
	Generation int64
	RoutineID  string
	// Credential is a file, or env:NAME; see docs/events.md.
	Credential string
	Scheme     Scheme
}

func (t Target) address() string { return "wake " + t.Owner + " " + t.PeerID }

// wakeBody is the body of a wake-up, and the data of peer.message.
type wakeBody struct {
	EventID    string `json:"eventId"`
	MessageID  string `json:"messageId"`
	PeerID     string `json:"peerId"`
	Generation int64  `json:"generation"`
}

// targetRow is a row of event_wake_targets.
type targetRow struct {
	peerKey
	generation int64
	routineID  string
	watermark  int64
	disabledAt int64
}

const selectTargets = `SELECT owner, peer_id, generation, routine_id, watermark, coalesce(disabled_at, 0) FROM event_wake_targets `

func scanTarget(row store.Scanner) (t targetRow, err error) {
	err = row.Scan(&t.owner, &t.peerID, &t.generation, &t.routineID, &t.watermark, &t.disabledAt)
	return t, err
}

// activateTargets makes the table what the config says. A target that is new or
// names another generation or routine starts from now; one that is gone loses
// what waits for it.
func (s *Service) activateTargets(tx *store.Tx) error {
	rows := map[peerKey]targetRow{}
	err := tx.Query(func(row store.Scanner) error {
		t, err := scanTarget(row)
		rows[t.peerKey] = t
		return err
	}, selectTargets)
	if err != nil {
		return fmt.Errorf("reading the wake-up targets: %w", err)
	}
	for key, row := range rows {
		t, ok := s.targets[key]
		if ok && t.Generation == row.generation && t.RoutineID == row.routineID {
			continue
		}
		if err := s.removeTarget(tx, key); err != nil {
			return err
		}
		delete(rows, key)
	}
	for key, t := range s.targets {
		if _, ok := rows[key]; !ok {
			if err := s.addTarget(tx, t); err != nil {
				return err
			}
		}
		generation, active, found, err := s.mailbox.Peer(tx, t.Owner, t.PeerID)
		if err != nil {
			return fmt.Errorf("looking for a peer: %w", err)
		}
		if found && (generation > t.Generation || generation == t.Generation && !active) {
			if err := s.disableTarget(tx, Peer{t.Owner, t.PeerID, t.Generation}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Service) addTarget(tx *store.Tx, t Target) error {
	seq, err := s.mailbox.LastSeq(tx)
	if err != nil {
		return fmt.Errorf("reading the newest message: %w", err)
	}
	_, err = tx.Exec(`INSERT INTO event_wake_targets (owner, peer_id, generation, routine_id, watermark, activated_at) VALUES (?, ?, ?, ?, ?, ?)`,
		t.Owner, t.PeerID, t.Generation, t.RoutineID, seq, tx.Now().UnixMilli())
	if err != nil {
		return fmt.Errorf("activating a wake-up target: %w", err)
	}
	return audit.Record(tx, system(t.Owner), "wake.activate", t.PeerID, audit.OK, "generation", t.Generation, "routine", t.RoutineID, "watermark", seq)
}

func (s *Service) removeTarget(tx *store.Tx, key peerKey) error {
	if _, err := tx.Exec(`DELETE FROM event_wake_targets WHERE owner = ? AND peer_id = ?`, key.owner, key.peerID); err != nil {
		return fmt.Errorf("removing a wake-up target: %w", err)
	}
	if err := cancelTarget(tx, key, targetRemoved); err != nil {
		return err
	}
	return audit.Record(tx, system(key.owner), "wake.remove", key.peerID, audit.OK)
}

// disableTarget ends a target whose generation ended. One that is disabled
// already stays as it is.
func (s *Service) disableTarget(tx *store.Tx, p Peer) error {
	n, err := tx.Exec(`UPDATE event_wake_targets SET disabled_at = ?, disabled_reason = ? WHERE owner = ? AND peer_id = ? AND generation <= ? AND disabled_at IS NULL`,
		tx.Now().UnixMilli(), targetDisabled, p.Owner, p.PeerID, p.Generation)
	if err != nil {
		return fmt.Errorf("disabling a wake-up target: %w", err)
	}
	if n == 0 {
		return nil
	}
	return audit.Record(tx, system(p.Owner), "wake.disable", p.PeerID, audit.OK, "generation", p.Generation)
}

// cancelTarget cancels what waits for a target. An attempt under way ends as it
// ends.
func cancelTarget(tx *store.Tx, key peerKey, reason string) error {
	_, err := tx.Exec(`UPDATE event_deliveries SET state = 'cancelled', reason = ?
		WHERE receiver = (SELECT id FROM event_receivers WHERE address = ?) AND state = 'queued'`, reason, Target{Owner: key.owner, PeerID: key.peerID}.address())
	if err != nil {
		return fmt.Errorf("cancelling wake-ups: %w", err)
	}
	return nil
}

// notActivated is why a target wakes nobody that the config has and the table
// does not have yet.
const notActivated = "The wake-up target of this peer becomes active when the gateway starts."

// targetOf returns the target that wakes this generation of a peer. Without one
// it says why, or "" when the config has none for the peer.
func (s *Service) targetOf(q store.Querier, p Peer) (t Target, watermark int64, why string, err error) {
	t, ok := s.targets[p.key()]
	if !ok {
		return t, 0, "", nil
	}
	row, err := scanTarget(q.QueryRow(selectTargets+`WHERE owner = ? AND peer_id = ?`, p.Owner, p.PeerID))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return t, 0, notActivated, nil
	case err != nil:
		return t, 0, "", fmt.Errorf("reading a wake-up target: %w", err)
	case row.generation != p.Generation:
		return t, 0, fmt.Sprintf("The wake-up target of the config is for generation %d of this peer, which is generation %d now; the owner can change peerWakeTargets.", row.generation, p.Generation), nil
	case row.disabledAt != 0:
		return t, 0, fmt.Sprintf("The wake-up target of the config was disabled at %s, when generation %d of this peer ended; the owner can change peerWakeTargets.", at(row.disabledAt), row.generation), nil
	}
	return t, row.watermark, "", nil
}

// wakeUp is the message of a delivery to a wake-up target. The credential is
// read at each, so that a changed one holds at once.
func (s *Service) wakeUp(d deliveryRow) (m message, failure string) {
	t, ok := s.targets[peerKey{d.owner, d.peerID}]
	if !ok {
		return m, credentialUnusable
	}
	c, err := readCredential(t.Credential, s.getenv)
	if err != nil {
		s.log.Error("the credential of a wake-up target can't be used", "peer", t.PeerID, "error", err)
		return m, credentialUnusable
	}
	m = message{url: c.url, id: d.eventID, body: d.body, bearer: c.token}
	if t.Scheme == StandardWebhooks {
		key, ok := parseSecret(c.token)
		if !ok {
			s.log.Error("the credential of a wake-up target can't be used", "peer", t.PeerID, "error", "the token is no whsec_ secret")
			return m, credentialUnusable
		}
		m.bearer, m.keys = "", [][]byte{key}
	}
	return m, ""
}

func (s *Service) acceptsWakeUp(d deliveryRow) func(int) bool {
	statuses := acceptedStatuses[s.targets[peerKey{d.owner, d.peerID}].Scheme]
	return func(status int) bool { return slices.Contains(statuses, status) }
}
