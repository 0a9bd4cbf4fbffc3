package devices

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"agentrelay/internal/audit"
	"agentrelay/internal/devices/wire"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// row is a call as it is stored.
type row struct {
	id, owner, clientID, agent, device, tool, requestID string
	fingerprint, args                                   []byte
	argsHash, reason, state                             string
	created, sent, deadline, ended, late                int64
	code, output, summary                               string
	spilled, forgotten                                  bool
}

func (r row) open() bool { return r.ended == 0 }

const columns = `call_id, owner, client_id, agent, device, tool, request_id, fingerprint, args, args_hash, reason, state,
	created_at, coalesce(sent_at, 0), deadline_at, coalesce(ended_at, 0), coalesce(late_at, 0), code, CAST(output AS TEXT), summary, spilled, forgotten`

func scan(s store.Scanner) (r row, err error) {
	err = s.Scan(&r.id, &r.owner, &r.clientID, &r.agent, &r.device, &r.tool, &r.requestID, &r.fingerprint, &r.args, &r.argsHash, &r.reason, &r.state,
		&r.created, &r.sent, &r.deadline, &r.ended, &r.late, &r.code, &r.output, &r.summary, &r.spilled, &r.forgotten)
	return r, err
}

// byCallID and byRequest find a call of an owner.
const (
	byCallID  = `owner = ? AND call_id = ?`
	byRequest = `owner = ? AND device = ? AND request_id = ?`
)

func find(q store.Querier, where string, args ...any) (row, bool, error) {
	r, err := scan(q.QueryRow(`SELECT `+columns+` FROM device_calls WHERE `+where, args...))
	if errors.Is(err, sql.ErrNoRows) {
		return row{}, false, nil
	}
	if err != nil {
		return row{}, false, fmt.Errorf("looking for a call: %w", err)
	}
	return r, true, nil
}

// openOf are the open calls of a device, in their order.
func openOf(q store.Querier, device string) (open []row, err error) {
	err = q.Query(func(s store.Scanner) error {
		r, err := scan(s)
		open = append(open, r)
		return err
	}, `SELECT `+columns+` FROM device_calls WHERE device = ? AND ended_at IS NULL ORDER BY id`, device)
	if err != nil {
		return nil, fmt.Errorf("reading open calls: %w", err)
	}
	return open, nil
}

// loadOpen are the open calls of all devices.
func (s *Service) loadOpen(ctx context.Context) (open []*call, err error) {
	err = store.Read(ctx, s.store, func(r *store.Reader) error {
		open = nil
		return r.Query(func(sc store.Scanner) error {
			c, err := scan(sc)
			open = append(open, c.call())
			return err
		}, `SELECT `+columns+` FROM device_calls WHERE ended_at IS NULL ORDER BY id`)
	})
	return open, err
}

// call is the row as its lane has it.
func (r row) call() *call {
	return &call{
		id: r.id, device: r.device, tool: r.tool, agent: r.agent, reason: r.reason, args: r.args, argsHash: r.argsHash,
		sent: r.sent != 0, deadline: time.UnixMilli(r.deadline),
	}
}

// insert stores a new call.
func insert(tx *store.Tx, r row) error {
	_, err := tx.Exec(`INSERT INTO device_calls (call_id, owner, client_id, agent, device, tool, request_id, fingerprint, args, args_hash, reason, state, created_at, deadline_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'queued', ?, ?)`,
		r.id, r.owner, r.clientID, r.agent, r.device, r.tool, r.requestID, r.fingerprint, r.args, r.argsHash, r.reason, r.created, r.deadline)
	if err != nil {
		return fmt.Errorf("storing a call: %w", err)
	}
	return nil
}

// markSent notes that a call is about to be sent. It reports false when the call has
// ended meanwhile.
func (s *Service) markSent(ctx context.Context, id string, deadline time.Time) (bool, error) {
	n, err := store.Write(ctx, s.store, func(tx *store.Tx) (int64, error) {
		return tx.Exec(`UPDATE device_calls SET state = 'sent', sent_at = ?, deadline_at = ? WHERE call_id = ? AND state = 'queued'`, tx.Now().UnixMilli(), deadline.UnixMilli(), id)
	})
	if err != nil {
		return false, fmt.Errorf("noting that a call is sent: %w", err)
	}
	return n > 0, nil
}

// ending is how a call ends; code "" is well.
type ending struct {
	code, output, summary string
	spilled               bool
	ofResult              bool // it came from the device, which can only end what was sent
}

// settle ends a call in a transaction, unless it has ended, and reports whether it
// did: of all who want to end one, one does.
func (s *Service) settle(tx *store.Tx, id, device string, e ending) (bool, error) {
	state, outcome, allowed := "done", audit.OK, `('queued', 'sent')`
	if e.code != "" {
		state, outcome = "failed", e.code
	}
	if e.ofResult {
		allowed = `('sent')`
	}
	n, err := tx.Exec(`UPDATE device_calls SET state = ?, code = ?, output = ?, summary = ?, spilled = ?, ended_at = ?, args = x'', reason = ''
		WHERE call_id = ? AND device = ? AND state IN `+allowed, state, e.code, []byte(e.output), e.summary, e.spilled, tx.Now().UnixMilli(), id, device)
	if err != nil {
		return false, fmt.Errorf("ending a call: %w", err)
	}
	if n == 0 {
		return false, nil
	}
	var who principal.Principal
	var tool, hash string
	if err := tx.QueryRow(`SELECT owner, client_id, tool, args_hash FROM device_calls WHERE call_id = ?`, id).Scan(&who.Owner, &who.ClientID, &tool, &hash); err != nil {
		return false, fmt.Errorf("reading an ended call: %w", err)
	}
	tx.AfterCommit(func() { s.ended(id, device) })
	return true, audit.Record(tx, who, "device.result", id, outcome, "device", device, "tool", tool, "args", hash)
}

// end is [Service.settle] in a transaction of its own.
func (s *Service) end(ctx context.Context, id, device string, e ending) (bool, error) {
	return store.Write(ctx, s.store, func(tx *store.Tx) (bool, error) { return s.settle(tx, id, device, e) })
}

// result stores what a device answered. A result of a call that ended otherwise is
// noted and discarded; one that was stored before is a repeat.
func (s *Service) result(ctx context.Context, id, device string, e ending) error {
	return store.Exec(ctx, s.store, func(tx *store.Tx) error {
		won, err := s.settle(tx, id, device, e)
		if won || err != nil {
			return err
		}
		n, err := tx.Exec(`UPDATE device_calls SET late_at = ?, late_ok = ? WHERE call_id = ? AND device = ? AND late_at IS NULL AND code IN (?, ?, ?, ?, ?)`,
			tx.Now().UnixMilli(), e.code == "", id, device, TimedOut.Code, Cancelled.Code, Lost.Code, Revoked.Code, NotConnected.Code)
		if err != nil {
			return fmt.Errorf("noting a late result: %w", err)
		}
		if n > 0 {
			return audit.Record(tx, principal.Principal{}, "device.late", id, audit.OK, "device", device, "ok", e.code == "")
		}
		return nil
	})
}

// withdrawn are deny frames for calls that ended while the device could not be told
// and that it may still work on.
func (s *Service) withdrawn(ctx context.Context, device string) (frames []wire.Frame, err error) {
	err = store.Read(ctx, s.store, func(r *store.Reader) error {
		frames = nil
		return r.Query(func(sc store.Scanner) error {
			var id, code string
			err := sc.Scan(&id, &code)
			frames = append(frames, wire.Frame{Type: wire.Deny, Ref: id, Why: why(code)})
			return err
		}, `SELECT call_id, code FROM device_calls WHERE device = ? AND state = 'failed' AND sent_at IS NOT NULL AND deadline_at > ? AND code IN (?, ?) AND late_at IS NULL`,
			device, s.now().UnixMilli(), Cancelled.Code, Revoked.Code)
	})
	return frames, err
}

// why is the reason in a deny frame.
func why(code string) string {
	switch code {
	case TimedOut.Code, Lost.Code:
		return wire.WhyTimeout
	case Revoked.Code:
		return wire.WhyRevoked
	}
	return wire.WhyCancelled
}

const (
	// keepOutput is how long the output of an ended call is kept, and keepCalls how
	// long a call is that nobody gave a key. Others are receipts and stay.
	keepOutput = 7 * 24 * time.Hour
	keepCalls  = 90 * 24 * time.Hour
	sweepRows  = 500
)

// Sweep forgets old outputs, and old calls without a requestId.
func (s *Service) Sweep(ctx context.Context) error {
	for {
		n, err := store.Write(ctx, s.store, func(tx *store.Tx) (int64, error) {
			n, err := tx.Exec(`UPDATE device_calls SET output = x'', summary = '', forgotten = 1 WHERE id IN
				(SELECT id FROM device_calls WHERE forgotten = 0 AND ended_at IS NOT NULL AND ended_at < ? LIMIT ?)`, tx.Now().Add(-keepOutput).UnixMilli(), sweepRows)
			if err != nil {
				return 0, err
			}
			m, err := tx.Exec(`DELETE FROM device_calls WHERE id IN (SELECT id FROM device_calls WHERE forgotten = 1 AND request_id = call_id AND ended_at < ? LIMIT ?)`,
				tx.Now().Add(-keepCalls).UnixMilli(), sweepRows)
			return n + m, err
		})
		if err != nil {
			return fmt.Errorf("forgetting old calls of devices: %w", err)
		}
		if n == 0 {
			return nil
		}
	}
}
