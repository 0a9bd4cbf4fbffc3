package migrate

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"agentrelay/internal/channel/capability"
	"agentrelay/internal/direct/commands/record"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/principal"
)

// addClients keeps the ids of OAuth clients: a client that connects again is then the
// one that it was, with its own domain and its receipts.
func (i *importing) addClients() error {
	now := i.tx.Now().UnixMilli()
	for _, f := range i.clients {
		var c struct {
			Name      string   `json:"client_name"`
			Redirects []string `json:"redirect_uris"`
			Grants    []string `json:"grant_types"`
			Secret    string   `json:"client_secret"`
		}
		id := f.text("client_id")
		if err := json.Unmarshal([]byte(f.text("client_json")), &c); err != nil || id == "" || len(c.Redirects) == 0 {
			i.skip("OAuth client", "Its registration can't be read. It registers anew when it connects.")
			continue
		}
		kind, secret := "dynamic", any(nil)
		if c.Secret != "" {
			sum := sha256.Sum256([]byte(c.Secret))
			kind, secret = "registered", sum[:]
		}
		if c.Grants == nil {
			c.Grants = []string{"authorization_code", "refresh_token"}
		}
		_, err := i.insert("OAuth client", "", `INSERT INTO oauth_clients (id, kind, name, redirect_uris, grant_types, secret_hash, permissions, created_at, authorized_at, last_used_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, id, kind, cmp.Or(c.Name, id), encoded(c.Redirects), encoded(c.Grants), secret, principal.Full().String(),
			cmp.Or(f.number("issued_at")*1000, now), now, now)
		if err != nil {
			return err
		}
	}
	return nil
}

// encoded is compact JSON with keys in order and nothing escaped that need not be.
func encoded(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // strings always encode
	return strings.TrimSuffix(b.String(), "\n")
}

func (i *importing) addPeers() error {
	now := i.tx.Now().UnixMilli()
	for _, f := range i.peers {
		owner, id, kind := f.text("owner"), f.text("peer_id"), f.text("kind")
		host, agent := f.text("host_id"), strings.ToLower(f.text("agent_id"))
		if kind != "local" {
			host, agent = "", ""
		} else if host == "" || host == "mac" {
			host = i.o.LocalHostID
		}
		if !slices.Contains([]string{"chat", "dot", "local"}, kind) || id == "" || owner == "" || kind == "local" && agent == "" {
			i.skip("peer", "Its kind or its binding can't be read. It registers anew with register_peer.")
			continue
		}
		created := cmp.Or(f.at("created_at", "registered_at"), now)
		stopped := any(nil)
		if at := f.at("stopped_at", "revoked_at"); at != 0 {
			stopped = at
		} else if s := f.text("state", "status"); s != "" && s != "active" {
			stopped = cmp.Or(f.at("updated_at"), created)
		}
		_, err := i.insert("peer", owner, `INSERT INTO mailbox_peers (owner, peer_id, kind, display_name, host_id, agent_id, generation, generation_from, created_at, last_seen_at, stopped_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?)`, owner, id, kind, f.text("display_name"), host, agent, max(f.number("generation"), 1), created,
			cmp.Or(f.at("last_seen_at", "updated_at"), created), stopped)
		if err != nil {
			return err
		}
	}
	return nil
}

func (i *importing) addMessages() error {
	sorted := slices.Clone(i.messages)
	slices.SortStableFunc(sorted, func(a, b found) int { return cmp.Compare(a.at("created_at"), b.at("created_at")) })
	for _, f := range sorted {
		if err := i.addMessage(f); err != nil {
			return err
		}
	}
	_, err := i.tx.Exec(`UPDATE mailbox_peers SET
		unprocessed = (SELECT count(*) FROM mailbox_messages m WHERE m.to_peer = mailbox_peers.id AND m.processed_at IS NULL AND m.purged_at IS NULL),
		unprocessed_now = (SELECT count(*) FROM mailbox_messages m WHERE m.to_peer = mailbox_peers.id AND m.processed_at IS NULL AND m.purged_at IS NULL AND m.id > mailbox_peers.generation_from)`)
	if err != nil {
		return fmt.Errorf("counting mail: %w", err)
	}
	return nil
}

// maxHops is how long a thread may be (internal/mailbox).
const maxHops = 8

func (i *importing) addMessage(f found) error {
	owner, id, text := f.text("owner"), strings.ToLower(f.text("message_id")), f.text("text")
	from, to, original := f.text("from_peer_id"), f.text("to_peer_id"), strings.ToLower(f.text("in_reply_to", "in_reply_to_message_id"))
	var sender, recipient, generation, seq int64
	err := errors.Join(
		i.tx.QueryRow(`SELECT coalesce(max(id), 0) FROM mailbox_peers WHERE owner = ? AND peer_id = ?`, owner, from).Scan(&sender),
		i.tx.QueryRow(`SELECT coalesce(max(id), 0), coalesce(max(generation), 1) FROM mailbox_peers WHERE owner = ? AND peer_id = ?`, owner, to).Scan(&recipient, &generation),
		i.tx.QueryRow(`SELECT coalesce(max(id), 0) + 1 FROM mailbox_messages`).Scan(&seq))
	if err != nil {
		return fmt.Errorf("placing a message: %w", err)
	}
	if sender == 0 || recipient == 0 || sender == recipient || id == "" || text == "" {
		i.skip("message", "Its sender or recipient is not there.")
		return nil
	}
	thread, hop, reply := seq, int64(1), any(nil)
	if original != "" {
		var before, first, hops, taken int64
		err := i.tx.QueryRow(`SELECT coalesce(max(m.id), 0), coalesce(max(m.thread), 0), coalesce(max(m.hop), 0), coalesce(max((SELECT count(*) FROM mailbox_messages r WHERE r.in_reply_to = m.id AND r.message_id <> ?3)), 0)
			FROM mailbox_messages m WHERE m.owner = ?1 AND m.message_id = ?2`, owner, original, id).Scan(&before, &first, &hops, &taken)
		if err != nil {
			return fmt.Errorf("placing a reply: %w", err)
		}
		if before != 0 && taken == 0 && hops < maxHops { // else it begins a thread of its own
			thread, hop, reply = first, hops+1, before
		}
	}
	created := cmp.Or(f.at("created_at", "sent_at"), i.tx.Now().UnixMilli())
	processed := any(nil)
	if at := f.at("processed_at", "acked_at"); at != 0 {
		processed = at
	} else if f.number("processed") == 1 || f.text("processing_state", "state") == "processed" {
		processed = created
	}
	added, err := i.insert("message", owner, `INSERT INTO mailbox_messages (id, owner, message_id, fingerprint, from_peer, to_peer, recipient_generation, thread, hop, in_reply_to, created_at, read_at, processed_at, delivery_path, delivery_reason, text_length)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'none', 'It came from another gateway, which may have told of it.', ?)`,
		seq, owner, id, mailbox.Fingerprint(from, to, text, original), sender, recipient, generation, thread, hop, reply, created, processed, processed, utf8.RuneCountInString(text))
	if err != nil || !added {
		return err
	}
	cut, characters := len(text), 0
	for at := range text {
		if characters == mailbox.SummaryLength {
			cut = at
			break
		}
		characters++
	}
	_, err = i.tx.Exec(`INSERT INTO mailbox_texts (id, summary, rest) VALUES (?, ?, ?)`, seq, []byte(text[:cut]), []byte(text[cut:]))
	if err != nil {
		return fmt.Errorf("storing a text: %w", err)
	}
	return nil
}

// addSubscriptions keeps ids and secrets, so that receivers know what they get.
func (i *importing) addSubscriptions() error {
	now := i.tx.Now().UnixMilli()
	for _, h := range i.state {
		for _, f := range h.subscriptions {
			owner, id := f.text("owner"), f.text("id")
			key, ok := signingKey(f.text("secret"))
			arguments := map[string]string{}
			if json.Unmarshal([]byte(f.text("arguments_json")), &arguments) != nil || !ok || id == "" || owner == "" {
				i.skip("subscription", "Its secret or its arguments can't be read. The client subscribes again.")
				continue
			}
			if f.text("state") != "active" || f.number("expires_at") <= now {
				i.skip("subscription", "It had ended.")
				continue
			}
			if arguments["hostId"] == i.o.LocalHostID || arguments["hostId"] == "mac" {
				delete(arguments, "hostId")
			}
			sealed := []byte{}
			if i.o.Key != nil {
				sealed = i.o.Key.Seal(key, id)
			}
			if _, err := i.tx.Exec(`INSERT INTO event_receivers (address) VALUES (?) ON CONFLICT DO NOTHING`, f.text("callback_url")); err != nil {
				return fmt.Errorf("storing a receiver: %w", err)
			}
			created := cmp.Or(f.number("created_at"), now)
			_, err := i.insert("subscription", owner, `INSERT INTO event_subscriptions (id, owner, receiver, name, arguments, client_id, secret, created_at, refreshed_at, expires_at)
				VALUES (?, ?, (SELECT id FROM event_receivers WHERE address = ?), ?, ?, ?, ?, ?, ?, ?)`,
				id, owner, f.text("callback_url"), f.text("name"), encoded(arguments), strings.TrimPrefix(owner, "local-owner:"), sealed, created, cmp.Or(f.number("updated_at"), created), f.number("expires_at"))
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// signingKey is the key of a whsec_ secret (internal/events).
func signingKey(secret string) ([]byte, bool) {
	text, ok := strings.CutPrefix(secret, "whsec_")
	key, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(text, "="))
	return key, ok && err == nil && len(key) >= 24 && len(key) <= 64
}

var (
	dispatchStates = map[string]string{"submitting": "unknown", "submitted": "submitted", "rejected": "rejected", "unknown": "unknown"}
	terminalKinds  = []string{"turn_completed", "turn_failed", "turn_canceled", "observed_idle", "observed_error"}
)

// addDispatches keeps the receipts. Their fingerprints are of another form, so that a
// repeat is refused and shown the receipt: nothing is sent a second time.
func (i *importing) addDispatches() error {
	now := i.tx.Now().UnixMilli()
	for _, h := range i.state {
		requests := map[string]found{}
		for _, r := range h.requests {
			requests[r.text("request_id")] = r
		}
		for _, f := range h.dispatches {
			id := f.text("request_id")
			r, ok := requests[id]
			state, tool := dispatchStates[f.text("state")], f.text("tool")
			if !ok || r.text("owner") == "" || state == "" || tool != "create_agent" && tool != "send_agent_prompt" {
				i.skip("dispatch", "It has no owner, so nobody could read it.")
				continue
			}
			print, err := hex.DecodeString(f.text("fingerprint"))
			if err != nil || len(print) == 0 {
				print = []byte("original")
			}
			kind, lost := r.text("terminal_kind"), ""
			if !slices.Contains(terminalKinds, kind) {
				kind, lost = "", "It was dispatched by another gateway."
			}
			stage := "prompting"
			if tool == "create_agent" {
				stage = "creating"
			}
			terminal := any(nil)
			if at := r.at("terminal_at"); at != 0 && kind != "" {
				terminal = at
			}
			submitted := cmp.Or(f.at("submitted_at"), now)
			_, err = i.insert("dispatch", r.text("owner"), `INSERT INTO dispatches (owner, host_id, request_id, client_id, tool, fingerprint, content, state, stage, agent_id, workspace_id, cwd, prompt_id, route_id, turn_id, terminal_kind, terminal_at, lost, closed_at, submitted_at, updated_at)
				VALUES (?, ?, ?, ?, ?, ?, x'', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
				r.text("owner"), h.hostID, id, strings.TrimPrefix(r.text("owner"), "local-owner:"), tool, print, state, stage, strings.ToLower(f.text("agent_id")),
				r.text("workspace_id"), r.text("cwd"), uuid.NewString(), r.text("route_id"), r.text("turn_id"), kind, terminal, lost, now, submitted, cmp.Or(f.at("updated_at"), submitted))
			if err != nil {
				return err
			}
			if r.text("result_json") != "" {
				i.skip("result of a dispatch", "It has another form. The agent's own timeline has it.")
			}
		}
	}
	return nil
}

func (i *importing) addAgentMessages() error {
	for _, h := range i.state {
		replies := map[string]string{}
		for _, r := range h.replies {
			replies[r.text("message_id")] = r.text("request_id")
		}
		for _, f := range h.messages {
			var dispatch, reply int64
			var owner string
			err := errors.Join(
				i.tx.QueryRow(`SELECT coalesce(max(id), 0), coalesce(max(owner), '') FROM dispatches WHERE host_id = ? AND request_id = ?`, h.hostID, f.text("request_id")).Scan(&dispatch, &owner),
				i.tx.QueryRow(`SELECT coalesce(max(id), 0) FROM dispatches WHERE host_id = ? AND request_id = ?`, h.hostID, replies[f.text("message_id")]).Scan(&reply))
			if err != nil {
				return fmt.Errorf("looking for a dispatch: %w", err)
			}
			kind := f.text("kind")
			if dispatch == 0 || kind != "message" && kind != "needs_input" {
				i.skip("message of an agent", "Its dispatch is not there.")
				continue
			}
			answered := any(nil)
			if reply != 0 {
				answered = reply
			}
			_, err = i.insert("message of an agent", owner, `INSERT INTO agent_messages (owner, host_id, message_id, dispatch, kind, text, created_at, reply) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
				owner, h.hostID, strings.ToLower(f.text("message_id")), dispatch, kind, []byte(f.text("text")), f.at("created_at"), answered)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// addAgents keeps whose an agent is, and the key by which it proves who it is.
func (i *importing) addAgents() error {
	for _, h := range i.state {
		for _, f := range slices.Backward(h.requests) { // the latest says whose it is
			id, ok := capability.AgentID(f.text("agent_id"))
			if !ok || f.text("owner") == "" {
				continue
			}
			hash, issued := any(nil), any(nil)
			if key, ok := i.keys[[2]string{h.hostID, id}]; ok {
				hash, issued = capability.Hash(key.Key), i.tx.Now().UnixMilli()
			}
			var known int
			if err := i.tx.QueryRow(`SELECT count(*) FROM agents WHERE host_id = ? AND agent_id = ?`, h.hostID, id).Scan(&known); err != nil {
				return fmt.Errorf("looking for an agent: %w", err)
			}
			if known > 0 {
				continue
			}
			_, err := i.insert("agent", f.text("owner"), `INSERT INTO agents (host_id, agent_id, owner, source, created_at, key_hash, issued_at) VALUES (?, ?, ?, 'dispatch', ?, ?, ?)`,
				h.hostID, id, f.text("owner"), cmp.Or(f.at("submitted_at"), i.tx.Now().UnixMilli()), hash, issued)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

var transferStates = map[string]string{
	"pending": "interrupted", "ready": "expired", "completed": "completed", "failed": "failed", "interrupted": "interrupted",
	"outcome_unknown": "outcome_unknown", "expired": "expired", "revoked": "revoked",
}

// addTransfers keeps the receipts; links of the original ended with it.
func (i *importing) addTransfers() error {
	for _, h := range i.state {
		for _, f := range h.put {
			owner, id, direction, state := f.text("owner"), f.text("requestId"), f.text("direction"), transferStates[f.text("state")]
			if f.number("resultUnknown") == 1 && state == "interrupted" {
				state = "outcome_unknown"
			}
			if owner == "" || id == "" || state == "" || direction != "export" && direction != "import" {
				i.skip("transfer", "Its receipt can't be read.")
				continue
			}
			host := cmp.Or(f.text("hostId"), h.hostID)
			if host == "mac" {
				host = i.o.LocalHostID
			}
			size := any(nil)
			if n := f.number("bytes"); n > 0 {
				size = n
			}
			if state == "outcome_unknown" { // nothing here could ever settle it
				state = "interrupted"
			}
			code, message := "", ""
			if e, ok := f["error"].(map[string]any); ok {
				code, message = found(e).text("code"), found(e).text("message")
			}
			created := cmp.Or(f.at("createdAt"), f.at("updatedAt"), i.tx.Now().UnixMilli())
			_, err := i.insert("transfer", owner, `INSERT INTO transfers (owner, host_id, request_id, client_id, direction, fingerprint, project_id, path, state, size, sha256, file_name, error_code, error_message, created_at, ended_at)
				VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, owner, host, id, strings.TrimPrefix(owner, "local-owner:"), direction, []byte("original"), f.text("projectId"), f.text("path"), state,
				size, f.text("sha256"), f.text("fileName"), code, message, created, cmp.Or(f.at("updatedAt"), created))
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// commandStates is how a command of the original ended, as it is told here. It ran or
// may have run: never that it did not.
var commandStates = map[string]record.State{
	"exited": record.Exited, "failed": record.Failed, "timed_out": record.TimedOut, "cancelled": record.Cancelled,
	"pending": record.Interrupted, "running": record.Interrupted, "interrupted": record.Interrupted, "unknown": record.Interrupted,
}

// command is a record of a command of the original on this machine.
func (i *importing) command(f found) (spec record.Spec, status record.Status, ok bool) {
	owner, id := f.text("owner"), f.text("request_id")
	state, known := commandStates[f.text("state")]
	if owner == "" || id == "" || !known {
		return spec, status, false
	}
	spec = record.Spec{
		Version: record.Version, CommandID: record.Name(owner, id), Owner: owner, RequestID: id, CreatedAt: f.at("created_at"),
		Fingerprint: "original", ProjectID: f.text("project_id"), Argv: []string{},
	}
	status = record.Status{State: state, EndedAt: cmp.Or(f.at("updated_at"), spec.CreatedAt), Signal: f.text("signal")}
	if f["exit_code"] != nil && state == record.Exited {
		code := int(f.number("exit_code"))
		status.ExitCode = &code
	}
	if state == record.Interrupted || state == record.Failed {
		status.Error = &record.Error{Code: record.CodeInterrupted, Message: "It was run by another gateway, which did not keep how it ended."}
	}
	return spec, status, true
}

func (i *importing) countCommands() error {
	for _, f := range i.state[0].commands {
		if spec, _, ok := i.command(f); ok {
			i.out.Kept["command"]++
			i.out.Owners = append(i.out.Owners, spec.Owner)
		} else {
			i.skip("command", "Its record can't be read.")
		}
	}
	return nil
}

// files writes what is no row: keys of this machine's agents, and records of its
// commands. What is there already stays.
func (i *importing) files() error {
	for at, key := range i.keys {
		if at[0] != i.o.LocalHostID {
			continue // that machine has its own
		}
		if _, err := os.Lstat(filepath.Join(i.stateDir, capability.Name(at[1]))); err == nil {
			continue
		}
		if err := capability.Write(i.stateDir, key); err != nil {
			return err
		}
	}
	root := record.Root{Dir: filepath.Join(i.stateDir, "direct", "commands")}
	if len(i.state[0].commands) == 0 {
		return nil
	}
	if err := root.Prepare(); err != nil {
		return err
	}
	for _, f := range i.state[0].commands {
		if spec, status, ok := i.command(f); ok {
			if err := keepCommand(root, spec, status); err != nil {
				return err
			}
		}
	}
	return nil
}

// keepCommand makes the record of a command that has ended, unless it has one.
func keepCommand(root record.Root, spec record.Spec, status record.Status) error {
	dir := string(root.Record(spec.CommandID))
	if _, err := os.Lstat(dir); err == nil {
		return nil
	}
	made, err := os.MkdirTemp(root.Dir, "new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(made) // nothing is there any more after success
	raw, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(made, "spec.json"), append(raw, '\n'), 0o600); err != nil {
		return err
	}
	if err := record.Dir(made).SetStatus(status); err != nil {
		return err
	}
	day := filepath.Join(root.Dir, "days", time.UnixMilli(spec.CreatedAt).UTC().Format(time.DateOnly))
	if err := os.MkdirAll(day, 0o700); err != nil {
		return err
	}
	entry := record.Entry{CreatedAt: spec.CreatedAt, CommandID: spec.CommandID, OwnerTag: record.OwnerTag(spec.Owner), Swept: true}
	if err := os.WriteFile(filepath.Join(day, entry.String()), nil, 0o600); err != nil {
		return err
	}
	return os.Rename(made, dir)
}
