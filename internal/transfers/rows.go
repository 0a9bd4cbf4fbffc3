package transfers

import (
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"agentrelay/internal/audit"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// row is a transfer in the database.
type row struct {
	id          int64
	owner       string
	client      string
	fingerprint []byte
	expected    string
	placing     bool
	spool       string
	served      string
	expiresAt   int64
	placement   string // "" when owner and requestId name it
	Transfer
}

const columns = `t.id, t.owner, t.host_id, t.request_id, t.client_id, t.direction, t.fingerprint, t.project_id, t.path, t.expected_sha256, t.state, t.placing,
	t.size, t.sha256, t.file_name, t.mime_type, t.spool, coalesce(t.expires_at, 0), t.bytes_served, t.served, t.error_code, t.error_message, t.error_hint, t.created_at, t.placement_id`

func scan(from store.Scanner) (row, error) {
	var r row
	var f Failure
	var created int64
	err := from.Scan(&r.id, &r.owner, &r.HostID, &r.RequestID, &r.client, &r.Direction, &r.fingerprint, &r.ProjectID, &r.Path, &r.expected, &r.State, &r.placing,
		&r.Size, &r.SHA256, &r.FileName, &r.MimeType, &r.spool, &r.expiresAt, &r.BytesServed, &r.served, &f.Code, &f.Message, &f.Hint, &created, &r.placement)
	if err != nil {
		return row{}, err
	}
	r.CreatedAt, r.ExpiresAt = at(created), at(r.expiresAt)
	if f.Code != "" {
		r.Error = &f
	}
	return r, nil
}

const (
	byKey    = `SELECT ` + columns + ` FROM transfers t WHERE owner = ? AND host_id = ? AND request_id = ?`
	byID     = `SELECT ` + columns + ` FROM transfers t WHERE id = ?`
	byTicket = `SELECT ` + columns + ` FROM transfer_tickets k JOIN transfers t ON t.id = k.transfer WHERE k.hash = ?`
)

// find returns the row of a query for at most one; ok is false when there is
// none.
func find(q store.Querier, query string, args ...any) (r row, ok bool, err error) {
	r, err = scan(q.QueryRow(query, args...))
	if errors.Is(err, sql.ErrNoRows) {
		return row{}, false, nil
	}
	if err != nil {
		return row{}, false, fmt.Errorf("reading a transfer: %w", err)
	}
	return r, true, nil
}

// all returns the rows of a query.
func all(q store.Querier, query string, args ...any) ([]row, error) {
	var rows []row
	err := q.Query(func(from store.Scanner) error {
		r, err := scan(from)
		rows = append(rows, r)
		return err
	}, query, args...)
	if err != nil {
		return nil, fmt.Errorf("reading transfers: %w", err)
	}
	return rows, nil
}

// insert stores the receipt of a new transfer.
func insert(tx *store.Tx, who principal.Principal, r request, spool string) (row, error) {
	name := r.named
	if r.direction == Export {
		name = downloadName(r.path)
	}
	_, err := tx.Exec(`INSERT INTO transfers (owner, host_id, request_id, client_id, direction, fingerprint, project_id, path, expected_sha256, state, file_name, mime_type, spool, created_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending', ?, ?, ?, ?)`,
		who.Owner, r.hostID, r.requestID, who.ClientID, r.direction, r.fingerprint(), r.projectID, r.path, r.expected, name, r.mimeType, spool, tx.Now().UnixMilli())
	if err != nil {
		return row{}, fmt.Errorf("storing a transfer: %w", err)
	}
	out, _, err := find(tx, byKey, who.Owner, r.hostID, r.requestID)
	return out, err
}

// linked reports whether the transfer has a link that works at a time.
func (r row) linked(now time.Time) bool {
	return (r.State == Ready || r.State == Completed) && r.Direction == Export && r.spool != "" && now.UnixMilli() < r.expiresAt
}

// record writes an audit entry about the transfer in the name of its client.
func (r row) record(tx *store.Tx, action, outcome string, detail ...any) error {
	who := principal.Principal{Owner: r.owner, ClientID: r.client}
	detail = append([]any{"requestId", r.RequestID, "host", r.HostID, "project", r.ProjectID}, detail...)
	return audit.Record(tx, who, action, r.Path, outcome, detail...)
}

// placementID names the transfer on its host: 24 hexadecimal digits.
func (r row) placementID() string {
	if r.placement != "" {
		return r.placement
	}
	sum := sha256.Sum256([]byte(r.owner + "\x00" + r.RequestID))
	return hex.EncodeToString(sum[:12])
}

// update changes columns of a row while it is in one of two states. It reports
// whether it was.
func update(tx *store.Tx, id int64, from State, set string, args ...any) (bool, error) {
	n, err := tx.Exec(`UPDATE transfers SET `+set+` WHERE id = ? AND state = ?`, append(args, id, from)...)
	if err != nil {
		return false, fmt.Errorf("updating a transfer: %w", err)
	}
	return n == 1, nil
}
