package agents

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"agentrelay/internal/audit"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// Pinned returns the identity of the daemon that a host is known to have; "" is
// none yet.
func Pinned(ctx context.Context, s *store.Store, hostID string) (serverID string, err error) {
	err = store.Read(ctx, s, func(q *store.Reader) error {
		err := q.QueryRow(`SELECT server_id FROM daemon_identities WHERE host_id = ?`, hostID).Scan(&serverID)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("reading a daemon's identity: %w", err)
		}
		return nil
	})
	return serverID, err
}

// Pin keeps the identity of the first daemon that a host shows. It reports false
// when the host is known to have another.
func Pin(ctx context.Context, s *store.Store, hostID, serverID string) (bool, error) {
	return store.Write(ctx, s, func(tx *store.Tx) (bool, error) {
		var known string
		_, err := tx.Exec(`INSERT INTO daemon_identities (host_id, server_id, pinned_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING`, hostID, serverID, tx.Now().UnixMilli())
		if err == nil {
			err = tx.QueryRow(`SELECT server_id FROM daemon_identities WHERE host_id = ?`, hostID).Scan(&known)
		}
		if err != nil {
			return false, fmt.Errorf("keeping a daemon's identity: %w", err)
		}
		return known == serverID, nil
	})
}

// Identity is the daemon of a host, as it is known and as it is found.
type Identity struct {
	HostID   string `json:"hostId"`
	Pinned   string `json:"pinned,omitempty"`
	Found    string `json:"found,omitempty"`
	Accepted bool   `json:"accepted"`
}

// AcceptIdentity has the daemon that a host shows now take the place of the one
// that was known, by the owner's word. What was dispatched to the other stays on
// record, and its outcome can't be asked any more.
func (s *Service) AcceptIdentity(ctx context.Context, hostID string) (Identity, error) {
	d, err := s.daemons.Daemon(hostID)
	if err != nil {
		return Identity{}, err
	}
	out := Identity{HostID: hostID}
	if out.Pinned, err = Pinned(ctx, s.store, hostID); err != nil {
		return out, err
	}
	switch st := d.Status(); {
	case st.Found != nil:
		out.Found = st.Found.ServerID
	case st.Info != nil:
		out.Found = st.Info.ServerID
		return out, nil
	default:
		return out, HostUnavailable.Newf("No agent daemon has answered on host %s: %s", hostID, st.Reason)
	}
	err = store.Exec(ctx, s.store, func(tx *store.Tx) error {
		_, err := tx.Exec(`INSERT INTO daemon_identities (host_id, server_id, pinned_at) VALUES (?, ?, ?)
			ON CONFLICT (host_id) DO UPDATE SET server_id = excluded.server_id, pinned_at = excluded.pinned_at`, hostID, out.Found, tx.Now().UnixMilli())
		if err == nil { // the new one has no receipts of what the other was given
			_, err = tx.Exec(`UPDATE dispatches SET keyed = 0 WHERE host_id = ? AND closed_at IS NULL AND state = 'unknown'`, hostID)
		}
		if err != nil {
			return fmt.Errorf("keeping a daemon's identity: %w", err)
		}
		return audit.Record(tx, principal.Owner(""), "host.accept-identity", hostID, audit.OK, "before", out.Pinned, "now", out.Found)
	})
	if err != nil {
		return out, err
	}
	d.AcceptIdentity(out.Found)
	out.Accepted = true
	return out, nil
}
