package agents

import (
	"database/sql"
	"errors"
	"fmt"

	"agentrelay/internal/store"
)

// The tools that have receipts.
const (
	createAgent     = "create_agent"
	sendAgentPrompt = "send_agent_prompt"
	createWorkspace = "create_workspace"
)

// The steps of a dispatch: what was last given to the daemon.
const (
	prepared  = "prepared"  // nothing
	creating  = "creating"  // the agent or workspace; of an agent without a key, its prompt with it
	prompting = "prompting" // the prompt
)

// The kinds of ends. Observed is what a snapshot showed, without the daemon's own
// word for this turn.
const (
	turnCompleted = "turn_completed"
	turnFailed    = "turn_failed"
	turnCanceled  = "turn_canceled"
	observedIdle  = "observed_idle"
	observedError = "observed_error"
)

// row is a dispatch as it is stored.
type row struct {
	id                                 int64
	owner, hostID, requestID, clientID string
	tool                               string
	fingerprint, content               []byte
	state                              State
	stage                              string
	keyed                              bool
	errCode, errMessage, errHint       string
	answer                             string
	agentID, workspaceID, cwd          string
	promptID, routeID                  string
	turnID, epoch                      string
	markerSeq                          int64
	terminalKind, terminalText, lost   string
	terminalAt                         int64
	closedAt, submittedAt, updatedAt   int64
}

const selectRow = `SELECT id, owner, host_id, request_id, client_id, tool, fingerprint, content, state, stage, keyed, error_code, error_message, error_hint,
	answer, agent_id, workspace_id, cwd, prompt_id, route_id, turn_id, epoch, coalesce(marker_seq, 0), terminal_kind, terminal_text, lost,
	coalesce(terminal_at, 0), coalesce(closed_at, 0), submitted_at, updated_at FROM dispatches `

func scanRow(sc store.Scanner) (r row, err error) {
	err = sc.Scan(&r.id, &r.owner, &r.hostID, &r.requestID, &r.clientID, &r.tool, &r.fingerprint, &r.content, &r.state, &r.stage, &r.keyed,
		&r.errCode, &r.errMessage, &r.errHint, &r.answer, &r.agentID, &r.workspaceID, &r.cwd, &r.promptID, &r.routeID, &r.turnID, &r.epoch,
		&r.markerSeq, &r.terminalKind, &r.terminalText, &r.lost, &r.terminalAt, &r.closedAt, &r.submittedAt, &r.updatedAt)
	return r, err
}

// The conditions of rows.
const (
	byKey = `WHERE owner = ? AND host_id = ? AND request_id = ?`
	byID  = `WHERE id = ?`
	// byOpenAgent is what is followed of one agent, oldest first.
	byOpenAgent = `WHERE host_id = ? AND agent_id = ? AND closed_at IS NULL AND state IN ('submitted', 'unknown') ORDER BY id`
	// byAgent is that and what is being given to the agent: events can be faster
	// than the daemon's answer.
	byAgent = `WHERE host_id = ? AND agent_id = ? AND closed_at IS NULL AND state IN ('submitting', 'submitted', 'unknown') ORDER BY id`
	// byLostCreation is agents that may have been created, and were not found yet.
	byLostCreation = `WHERE host_id = ? AND closed_at IS NULL AND state = 'unknown' AND tool = 'create_agent' AND agent_id = '' ORDER BY id`
)

func find(q store.Querier, where string, args ...any) (row, bool, error) {
	r, err := scanRow(q.QueryRow(selectRow+where, args...))
	if errors.Is(err, sql.ErrNoRows) {
		return row{}, false, nil
	}
	if err != nil {
		return row{}, false, fmt.Errorf("reading a dispatch: %w", err)
	}
	return r, true, nil
}

func list(q store.Querier, where string, args ...any) (rows []row, err error) {
	err = q.Query(func(sc store.Scanner) error {
		r, err := scanRow(sc)
		rows = append(rows, r)
		return err
	}, selectRow+where, args...)
	if err != nil {
		return nil, fmt.Errorf("listing dispatches: %w", err)
	}
	return rows, nil
}

// insert stores a new dispatch as about to be given to the daemon.
func (r row) insert(tx *store.Tx) (row, error) {
	r.state, r.stage = Submitting, prepared
	r.submittedAt = tx.Now().UnixMilli()
	r.updatedAt = r.submittedAt
	err := tx.QueryRow(`INSERT INTO dispatches (owner, host_id, request_id, client_id, tool, fingerprint, content, state, stage, keyed, agent_id, workspace_id, cwd,
		prompt_id, route_id, submitted_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id`,
		r.owner, r.hostID, r.requestID, r.clientID, r.tool, r.fingerprint, r.content, r.state, r.stage, r.keyed, r.agentID, r.workspaceID, r.cwd,
		r.promptID, r.routeID, r.submittedAt, r.updatedAt).Scan(&r.id)
	if err != nil {
		return r, fmt.Errorf("storing a dispatch: %w", err)
	}
	return r, nil
}

// set changes columns of a dispatch; columns and values alternate.
func set(tx *store.Tx, id int64, pairs ...any) error {
	query, args := "UPDATE dispatches SET updated_at = ?", []any{tx.Now().UnixMilli()}
	for i := 0; i+1 < len(pairs); i += 2 {
		query += ", " + pairs[i].(string) + " = ?"
		args = append(args, pairs[i+1])
	}
	if _, err := tx.Exec(query+" WHERE id = ?", append(args, id)...); err != nil {
		return fmt.Errorf("changing a dispatch: %w", err)
	}
	return nil
}
