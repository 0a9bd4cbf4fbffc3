package migrate

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrelay/internal/channel/capability"
	"agentrelay/internal/direct/commands/record"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/principal"
	"agentrelay/internal/sealing"
	"agentrelay/internal/store"
)

// The tables of the original gateway, as it made them.
const (
	originalOAuth = `CREATE TABLE oauth_clients (client_id TEXT PRIMARY KEY, client_json TEXT, issued_at INTEGER);
		CREATE TABLE oauth_access_tokens (token_hash TEXT PRIMARY KEY, client_id TEXT REFERENCES oauth_clients ON DELETE CASCADE, scopes_json TEXT, expires_at INTEGER, resource TEXT);
		CREATE TABLE oauth_refresh_tokens (token_hash TEXT PRIMARY KEY, client_id TEXT REFERENCES oauth_clients ON DELETE CASCADE, scopes_json TEXT, expires_at INTEGER, resource TEXT);`
	originalEvents = `CREATE TABLE event_subscriptions (id TEXT PRIMARY KEY, owner TEXT, name TEXT, arguments_json TEXT, callback_url TEXT, secret TEXT, previous_secret TEXT, previous_secret_until INTEGER, state TEXT, expires_at INTEGER, created_at INTEGER, updated_at INTEGER);
		CREATE TABLE events (event_id TEXT PRIMARY KEY, name TEXT, body TEXT, identity TEXT, created_at INTEGER);
		CREATE TABLE event_outbox (subscription_id TEXT, event_id TEXT, state TEXT, attempts INTEGER DEFAULT 0, next_at INTEGER, last_at INTEGER, http_status INTEGER, reason TEXT, received_at INTEGER, PRIMARY KEY (subscription_id, event_id));`
	originalDispatch      = `CREATE TABLE dispatch_requests (request_id TEXT PRIMARY KEY, fingerprint TEXT, tool TEXT, submitted_at TEXT, updated_at TEXT, state TEXT, agent_id TEXT, result_json TEXT);`
	originalCollaboration = `CREATE TABLE collaboration_requests (request_id TEXT PRIMARY KEY, owner TEXT NOT NULL, workspace_id TEXT NOT NULL, cwd TEXT NOT NULL, route_id TEXT, subscription_id TEXT, agent_id TEXT, submitted_at TEXT NOT NULL, state TEXT NOT NULL, turn_id TEXT, marker_seq INTEGER, epoch TEXT, terminal_kind TEXT, terminal_at TEXT, result_json TEXT);
		CREATE TABLE agent_messages (message_id TEXT PRIMARY KEY, request_id TEXT, agent_id TEXT, kind TEXT, text TEXT, created_at TEXT, emitted INTEGER DEFAULT 0, fingerprint TEXT);
		CREATE TABLE source_events (source_key TEXT PRIMARY KEY, seen_at TEXT);
		CREATE TABLE message_replies (message_id TEXT PRIMARY KEY, request_id TEXT UNIQUE, fingerprint TEXT, claimed_at TEXT);`
	originalDirect = `CREATE TABLE direct_commands (command_id TEXT PRIMARY KEY, owner TEXT, host_id TEXT, project_id TEXT, request_id TEXT, fingerprint TEXT, state TEXT, created_at TEXT, updated_at TEXT, exit_code INTEGER, signal TEXT, error TEXT);
		CREATE TABLE direct_inputs (command_id TEXT, input_id TEXT, fingerprint TEXT, state TEXT, PRIMARY KEY (command_id, input_id));`
	originalPeers = `CREATE TABLE peers (owner TEXT, peer_id TEXT, kind TEXT, display_name TEXT, host_id TEXT, agent_id TEXT, generation INTEGER, state TEXT, created_at TEXT);
		CREATE TABLE peer_messages (owner TEXT, message_id TEXT, from_peer_id TEXT, to_peer_id TEXT, text TEXT, in_reply_to TEXT, processed_at TEXT, created_at TEXT);`
)

const (
	agentID  = "6a1f0000-0000-4000-8000-00000000000a"
	agentKey = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
	messageA = "b0bd3f0e-08d7-4bf6-9764-58e8ef83f85a"
	messageB = "a0ebd6ce-e25f-4e14-88de-12e2c6cf6277"
	whsec    = "whsec_QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="
)

// makeOriginal makes a state directory as an original gateway leaves it.
func makeOriginal(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	crashed := map[string][]byte{}
	database := func(name, schema string, rows ...string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		db, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if name == "peers.sqlite" { // as after a crash: what is in its log alone counts too
			defer func() {
				for _, suffix := range []string{"", "-wal"} {
					raw, err := os.ReadFile(path + suffix)
					if err != nil {
						t.Fatal(err)
					}
					crashed[path+suffix] = raw
				}
			}()
		}
		for _, statement := range append([]string{`PRAGMA journal_mode = WAL`, schema}, rows...) {
			if _, err := db.Exec(statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
	}
	later := time.Now().Add(24 * time.Hour).UnixMilli()
	database("devspace.sqlite", originalOAuth,
		`INSERT INTO oauth_clients VALUES ('devspace-1', '{"client_name":"ChatGPT","redirect_uris":["https://chatgpt.com/connector_platform_oauth_redirect"],"token_endpoint_auth_method":"none"}', 1760000000)`,
		`INSERT INTO oauth_clients VALUES ('devspace-2', '{"client_name":"Cursor","redirect_uris":["http://localhost/cb"],"client_secret":"shared secret"}', 1760000000)`,
		`INSERT INTO oauth_clients VALUES ('devspace-3', 'damaged', 1760000000)`,
		`INSERT INTO oauth_access_tokens VALUES ('h', 'devspace-1', '[]', 1, NULL)`,
		`INSERT INTO oauth_refresh_tokens VALUES ('h', 'devspace-1', '[]', 1, NULL)`)
	database("events.sqlite", originalEvents,
		fmt.Sprintf(`INSERT INTO event_subscriptions VALUES ('sub_1', 'local-owner:devspace-1', 'agent.attention', '{"workspaceId":"w","routeId":"r"}', 'https://callback.example/x', '%s', NULL, NULL, 'active', %d, 5, 6)`, whsec, later),
		fmt.Sprintf(`INSERT INTO event_subscriptions VALUES ('sub_2', 'local-owner:devspace-1', 'agent.attention', '{"workspaceId":"w","routeId":"old"}', 'https://callback.example/x', '%s', NULL, NULL, 'stopped', %d, 5, 6)`, whsec, later),
		fmt.Sprintf(`INSERT INTO event_subscriptions VALUES ('sub_3', 'local-owner:devspace-1', 'agent.attention', '{"workspaceId":"w","routeId":"z"}', 'https://callback.example/x', 'no secret', NULL, NULL, 'active', %d, 5, 6)`, later),
		`INSERT INTO event_outbox VALUES ('sub_1', 'evt_1', 'queued', 0, 1, NULL, NULL, NULL, NULL)`)
	database("dispatch.sqlite", originalDispatch,
		`INSERT INTO dispatch_requests VALUES ('make', '`+strings.Repeat("ab", 32)+`', 'create_agent', '2026-03-01T10:00:00.000Z', '2026-03-01T10:00:05.000Z', 'submitted', '`+agentID+`', '{}')`,
		`INSERT INTO dispatch_requests VALUES ('ask', '`+strings.Repeat("cd", 32)+`', 'send_agent_prompt', '2026-03-01T11:00:00.000Z', '2026-03-01T11:00:05.000Z', 'submitting', '`+agentID+`', NULL)`,
		`INSERT INTO dispatch_requests VALUES ('nobodys', 'ef', 'create_agent', '2026-03-01T11:00:00.000Z', '2026-03-01T11:00:05.000Z', 'submitted', NULL, NULL)`)
	database("collaboration.sqlite", originalCollaboration,
		`INSERT INTO collaboration_requests VALUES ('make', 'local-owner:devspace-1', 'w', '/srv/x', 'r', 'sub_1', '`+agentID+`', '2026-03-01T10:00:00.000Z', 'submitted', 't1', 3, 'e', 'turn_completed', '2026-03-01T10:10:00.000Z', '{"entries":[]}')`,
		`INSERT INTO collaboration_requests VALUES ('ask', 'local-owner:devspace-1', 'w', '/srv/x', NULL, NULL, '`+agentID+`', '2026-03-01T11:00:00.000Z', 'submitting', NULL, NULL, NULL, NULL, NULL, NULL)`,
		`INSERT INTO agent_messages VALUES ('`+strings.ToUpper(messageA)+`', 'make', '`+agentID+`', 'needs_input', 'which colour?', '2026-03-01T10:05:00.000Z', 1, 'f')`,
		`INSERT INTO agent_messages VALUES ('`+messageB+`', 'gone', '`+agentID+`', 'message', 'lost', '2026-03-01T10:05:00.000Z', 1, 'f')`,
		`INSERT INTO message_replies VALUES ('`+strings.ToUpper(messageA)+`', 'ask', 'f', '2026-03-01T11:00:00.000Z')`)
	database("hosts/wsl/dispatch.sqlite", originalDispatch,
		`INSERT INTO dispatch_requests VALUES ('make', 'ab', 'create_agent', '2026-03-01T10:00:00.000Z', '2026-03-01T10:00:05.000Z', 'rejected', NULL, NULL)`)
	database("hosts/wsl/collaboration.sqlite", originalCollaboration,
		`INSERT INTO collaboration_requests VALUES ('make', 'local-owner:devspace-2', 'w', '/home/x', NULL, NULL, NULL, '2026-03-01T10:00:00.000Z', 'rejected', NULL, NULL, NULL, NULL, NULL, NULL)`)
	database("hosts/wsl/direct.sqlite", originalDirect,
		`INSERT INTO direct_commands VALUES ('c9', 'local-owner:devspace-2', 'wsl', 'p', 'far', 'f', 'exited', '2026-03-01T10:00:00.000Z', '2026-03-01T10:00:01.000Z', 0, NULL, NULL)`)
	database("direct.sqlite", originalDirect,
		`INSERT INTO direct_commands VALUES ('c1', 'local-owner:devspace-1', 'mac', 'p', 'build', 'f', 'exited', '2026-03-01T10:00:00.000Z', '2026-03-01T10:00:01.000Z', 7, NULL, NULL)`,
		`INSERT INTO direct_commands VALUES ('c2', 'local-owner:devspace-1', 'mac', 'p', 'serve', 'f', 'running', '2026-03-01T10:00:00.000Z', '2026-03-01T10:00:01.000Z', NULL, NULL, NULL)`,
		`INSERT INTO direct_inputs VALUES ('c1', 'i', 'f', 'accepted')`)
	database("peers.sqlite", originalPeers,
		`INSERT INTO peers VALUES ('local-owner:shared', 'chat-main', 'chat', 'Main', NULL, NULL, 1, 'active', '2026-03-01T10:00:00.000Z')`,
		`INSERT INTO peers VALUES ('local-owner:shared', 'dot', 'dot', NULL, NULL, NULL, 3, 'stopped', '2026-03-01T10:00:00.000Z')`,
		`INSERT INTO peers VALUES ('local-owner:shared', 'worker', 'local', NULL, 'mac', '`+agentID+`', 1, 'active', '2026-03-01T10:00:00.000Z')`,
		`INSERT INTO peer_messages VALUES ('local-owner:shared', '`+messageB+`', 'dot', 'chat-main', 'I reviewed it.', '`+messageA+`', NULL, '2026-03-01T10:02:00.000Z')`,
		`INSERT INTO peer_messages VALUES ('local-owner:shared', '`+messageA+`', 'chat-main', 'dot', '`+strings.Repeat("ä", 300)+`', NULL, '2026-03-01T10:03:00.000Z', '2026-03-01T10:01:00.000Z')`)
	for path, raw := range crashed {
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"agent-channels/" + agentID + ".json": `{"version":1,"agentId":"` + agentID + `","key":"` + agentKey + `"}`,
		"agent-channels/broken.json":          `{`,
		"direct-transfer-receipts.json": `[{"owner":"local-owner:devspace-1","hostId":"mac","requestId":"x1","transferId":"aa","projectId":"p","direction":"export","state":"ready","path":"f","bytes":5,"sha256":"ab","fileName":"f","createdAt":"2026-03-01T10:00:00.000Z","updatedAt":"2026-03-01T10:00:01.000Z"},
			{"owner":"local-owner:devspace-1","hostId":"mac","requestId":"x2","transferId":"bb","projectId":"p","direction":"import","state":"pending","path":"g","createdAt":"2026-03-01T10:00:00.000Z","updatedAt":"2026-03-01T10:00:01.000Z"}]`,
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// tree is every file of a directory with its content's hash.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		sum := sha256.Sum256(raw)
		out[strings.TrimPrefix(path, dir)] = hex.EncodeToString(sum[:])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestImport(t *testing.T) {
	from := makeOriginal(t)
	before := tree(t, from)
	s := open(t)
	key, err := sealing.LoadOrCreate(s.Dir())
	if err != nil {
		t.Fatal(err)
	}
	empty := dump(t, s)
	run := func(apply bool) Imported {
		t.Helper()
		out, err := Import(t.Context(), s, ImportOptions{From: from, LocalHostID: "local", Key: key, Rand: rand.Reader, Apply: apply})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	rehearsal := run(false)
	if diff := cmp.Diff(empty, dump(t, s)); diff != "" {
		t.Fatalf("a rehearsal wrote (-before +after):\n%s", diff)
	}
	out := run(true)
	if diff := cmp.Diff(before, tree(t, from)); diff != "" {
		t.Errorf("the original was changed (-before +after):\n%s", diff)
	}
	rehearsal.Applied = true
	if diff := cmp.Diff(rehearsal, out); diff != "" {
		t.Errorf("the rehearsal said something else (-rehearsal +import):\n%s", diff)
	}
	want := map[string]int{"OAuth client": 2, "peer": 3, "message": 2, "subscription": 1, "dispatch": 3, "message of an agent": 1, "agent": 1, "transfer": 2, "command": 2}
	if diff := cmp.Diff(want, out.Kept); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
	left := map[string]int{}
	for _, l := range out.Left {
		left[l.What] += l.Count
		if l.Why == "" {
			t.Errorf("%s is left without a reason", l.What)
		}
	}
	wantLeft := map[string]int{"OAuth client": 1, "access and refresh token": 2, "event on its way": 1, "input of a command": 1, "command of wsl": 1, "subscription": 2, "dispatch": 1, "result of a dispatch": 1, "message of an agent": 1, "capability file": 1}
	if diff := cmp.Diff(wantLeft, left); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	if want := []string{"local-owner:devspace-1", "local-owner:devspace-2", principal.SharedOwner}; !slices.Equal(out.Owners, want) {
		t.Errorf("owners %v, want %v", out.Owners, want)
	}

	// A second time nothing is doubled.
	once := dump(t, s)
	delete(once, "audit_log")
	again := run(true)
	twice := dump(t, s)
	delete(twice, "audit_log")
	if diff := cmp.Diff(once, twice); diff != "" {
		t.Errorf("a second import changed (-before +after):\n%s", diff)
	}
	if again.Kept["peer"] != 0 || again.Present["peer"] != 3 {
		t.Errorf("a second import says %+v", again)
	}
	checkImported(t, s, key)
}

func checkImported(t *testing.T, s *store.Store, key *sealing.Key) {
	// The mailbox is one that its own package works with.
	m := mailbox.New(mailbox.Options{Store: s, LocalHostID: "local"})
	defer m.Close()
	who := principal.Principal{Owner: principal.SharedOwner, ClientID: "c", Permissions: principal.Full()}
	peers, err := m.ListPeers(t.Context(), who, mailbox.ListPeersIn{IncludeStopped: true})
	if err != nil || len(peers.Peers) != 3 {
		t.Fatalf("peers %+v, %v", peers, err)
	}
	got, err := m.GetPeerMessage(t.Context(), who, mailbox.GetPeerMessageIn{MessageID: messageB})
	if err != nil || got.Message.Text != "I reviewed it." || got.Message.InReplyTo != messageA || got.Message.Hop != 2 {
		t.Errorf("the reply is %+v, %v", got.Message, err)
	}
	first, err := m.GetPeerMessage(t.Context(), who, mailbox.GetPeerMessageIn{MessageID: messageA})
	if err != nil || first.Message.Text != strings.Repeat("ä", 300) || first.Message.ProcessedAt.IsZero() {
		t.Errorf("the first is %+v, %v", first.Message, err)
	}
	inbox, err := m.ListPeerMessages(t.Context(), who, mailbox.ListPeerMessagesIn{PeerID: "chat-main"})
	if err != nil || len(inbox.Messages) != 1 || inbox.UnprocessedCount != 1 {
		t.Errorf("the inbox is %+v, %v", inbox, err)
	}

	err = store.Read(t.Context(), s, func(r *store.Reader) error {
		for query, want := range map[string][]string{
			`SELECT id || ' ' || kind || ' ' || (secret_hash IS NOT NULL) FROM oauth_clients ORDER BY 1`:                                                                                            {"devspace-1 dynamic 0", "devspace-2 registered 1"},
			`SELECT id || ' ' || arguments FROM event_subscriptions`:                                                                                                                                {`sub_1 {"routeId":"r","workspaceId":"w"}`},
			`SELECT host_id || ' ' || request_id || ' ' || state || ' ' || terminal_kind || ' ' || (closed_at IS NOT NULL) FROM dispatches ORDER BY 1`:                                              {"local ask unknown  1", "local make submitted turn_completed 1", "wsl make rejected  1"},
			`SELECT a.message_id || ' ' || d.request_id || ' ' || coalesce(r.request_id, '') FROM agent_messages a JOIN dispatches d ON d.id = a.dispatch LEFT JOIN dispatches r ON r.id = a.reply`: {messageA + " make ask"},
			`SELECT host_id || ' ' || agent_id || ' ' || hex(key_hash) FROM agents`:                                                                                                                 {"local " + agentID + " " + strings.ToUpper(hex.EncodeToString(capability.Hash(agentKey)))},
			`SELECT host_id || ' ' || request_id || ' ' || state FROM transfers ORDER BY 1`:                                                                                                         {"local x1 expired", "local x2 interrupted"},
		} {
			rows, err := texts(r, query)
			if err != nil {
				return err
			}
			if !slices.Equal(rows, want) {
				t.Errorf("%s:\n%q, want\n%q", query, rows, want)
			}
		}
		var id string
		var box []byte
		if err := r.QueryRow(`SELECT id, secret FROM event_subscriptions`).Scan(&id, &box); err != nil {
			return err
		}
		plain, err := key.Open(box, id)
		if string(plain) != strings.Repeat("A", 32) {
			t.Errorf("the secret is %q", plain)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if f, err := capability.Read(s.Dir(), agentID); err != nil || f.Key != agentKey {
		t.Errorf("the agent's key is %+v, %v", f, err)
	}
	root := record.Root{Dir: filepath.Join(s.Dir(), "direct", "commands")}
	for requestID, want := range map[string]record.State{"build": record.Exited, "serve": record.Interrupted} {
		rec, alive, err := root.Settle(record.Name("local-owner:devspace-1", requestID))
		if err != nil || alive || rec.Status.State != want || rec.Tombstone {
			t.Errorf("%s: %+v, %v", requestID, rec.Status, err)
		}
	}
}

func TestImportOfSomethingElse(t *testing.T) {
	s := open(t)
	if _, err := Import(context.Background(), s, ImportOptions{From: t.TempDir(), LocalHostID: "local"}); !errors.Is(err, ErrNoOriginal) {
		t.Errorf("got %v", err)
	}
	dir := makeOriginal(t)
	if err := os.WriteFile(filepath.Join(dir, "events.sqlite"), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := dump(t, s)
	if _, err := Import(context.Background(), s, ImportOptions{From: dir, LocalHostID: "local", Apply: true}); err == nil {
		t.Error("a damaged database passes")
	}
	if diff := cmp.Diff(before, dump(t, s)); diff != "" {
		t.Errorf("something was written:\n%s", diff)
	}
}
