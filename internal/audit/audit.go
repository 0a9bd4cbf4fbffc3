// Package audit owns the record of what was done, by which client.
//
// It promises that an entry written with [Record] is committed with the effect
// it describes or not at all, that one made with [Begin] is committed before its
// effect, and that entries carry ids, numbers and paths, never message text,
// command text or secrets. It leaves to its callers what is
// worth an entry (docs/architecture.md lists the actions) and to the gateway
// the calls of [Sweep].
package audit

import (
	"encoding/json"
	"fmt"
	"time"

	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// OK is the outcome of an action that was done. A refused one has the code of
// its refusal.
const OK = "ok"

// Entry is one line of the audit log.
type Entry struct {
	ID       int64          `json:"id"`
	At       time.Time      `json:"at"`
	Owner    string         `json:"owner,omitempty"`    // empty before anyone is authenticated
	ClientID string         `json:"clientId,omitempty"` // the OAuth client, or "owner"
	Action   string         `json:"action"`             // noun.verb: "message.send", "consent.allow"
	Subject  string         `json:"subject,omitempty"`  // the id acted on
	Outcome  string         `json:"outcome"`            // OK or a refusal's code
	Detail   map[string]any `json:"detail,omitempty"`   // ids and numbers
}

// Record writes an entry for who in the transaction of its effect. Detail is
// given as alternating names and values; only ids, numbers, booleans and paths
// belong in it.
func Record(tx *store.Tx, who principal.Principal, action, subject, outcome string, detail ...any) error {
	raw, err := encode(detail)
	if err != nil {
		return fmt.Errorf("audit detail of %s: %w", action, err)
	}
	_, err = tx.Exec(`INSERT INTO audit_log (at, owner, client_id, action, subject, outcome, detail) VALUES (?, ?, ?, ?, ?, ?, ?)`,
		tx.Now().UnixMilli(), who.Owner, who.ClientID, action, subject, outcome, raw)
	if err != nil {
		return fmt.Errorf("writing the audit log: %w", err)
	}
	return nil
}

// encode makes a JSON object of alternating names and values.
func encode(detail []any) (string, error) {
	d := map[string]any{}
	for i := 0; i+1 < len(detail); i += 2 {
		d[fmt.Sprint(detail[i])] = detail[i+1]
	}
	raw, err := json.Marshal(d)
	return string(raw), err
}

// Last returns the newest entries, newest first, at most limit.
func Last(q store.Querier, limit int) ([]Entry, error) {
	entries := []Entry{}
	err := q.Query(func(row store.Scanner) error {
		var e Entry
		var at int64
		var detail string
		if err := row.Scan(&e.ID, &at, &e.Owner, &e.ClientID, &e.Action, &e.Subject, &e.Outcome, &detail); err != nil {
			return err
		}
		e.At = time.UnixMilli(at).UTC()
		entries = append(entries, e)
		return json.Unmarshal([]byte(detail), &entries[len(entries)-1].Detail)
	}, `SELECT id, at, owner, client_id, action, subject, outcome, detail FROM audit_log ORDER BY id DESC LIMIT ?`, limit)
	if err != nil {
		return nil, fmt.Errorf("reading the audit log: %w", err)
	}
	return entries, nil
}

// sweepRows bounds one sweep, so that no commit waits for a year's backlog.
const sweepRows = 1000

// Sweep removes the oldest entries from before the given time, at most a
// thousand, and returns how many it removed.
func Sweep(tx *store.Tx, before time.Time) (int64, error) {
	return tx.Exec(`DELETE FROM audit_log WHERE id IN (SELECT id FROM audit_log WHERE at < ? ORDER BY at LIMIT ?)`, before.UnixMilli(), sweepRows)
}
