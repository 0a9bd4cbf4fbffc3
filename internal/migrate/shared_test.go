package migrate

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"go.uber.org/goleak"
	_ "modernc.org/sqlite"

	"agentrelay/internal/mailbox"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	ann = "local-owner:client-ann"
	bob = "local-owner:client-bob"
)

func open(t *testing.T) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Dir: t.TempDir() + "/state"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func exec(t *testing.T, s *store.Store, query string, args ...any) {
	t.Helper()
	err := store.Exec(context.Background(), s, func(tx *store.Tx) error {
		_, err := tx.Exec(query, args...)
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// dump is every row of every table, as text.
func dump(t *testing.T, s *store.Store) map[string][]string {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(s.Dir(), store.FileName)+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	out := map[string][]string{}
	for _, table := range tables(t, s) {
		rows, err := db.Query(`SELECT * FROM ` + table)
		if err != nil {
			t.Fatal(err)
		}
		columns, _ := rows.Columns()
		for rows.Next() {
			values := make([]any, len(columns))
			dest := make([]any, len(columns))
			for i := range values {
				dest[i] = &values[i]
			}
			if err := rows.Scan(dest...); err != nil {
				t.Fatal(err)
			}
			cells := make([]string, len(columns))
			for i, v := range values {
				if raw, ok := v.([]byte); ok {
					v = string(raw)
				}
				cells[i] = fmt.Sprintf("%s=%v", columns[i], v)
			}
			out[table] = append(out[table], strings.Join(cells, " "))
		}
		rows.Close()
		slices.Sort(out[table])
	}
	return out
}

func tables(t *testing.T, s *store.Store) (names []string) {
	t.Helper()
	err := store.Read(t.Context(), s, func(r *store.Reader) (err error) {
		names, err = texts(r, `SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// A table that gets an owner needs a rule, and a name that is unique for an owner
// needs an answer to the question what becomes of two.
func TestEveryTableWithAnOwnerHasARule(t *testing.T) {
	s := open(t)
	settled := []string{"mailbox_peers (owner, peer_id)", "mailbox_peers (owner, host_id, agent_id)", "event_subscriptions (receiver, owner, name, arguments)", "owner_aliases (former)"}
	err := store.Read(t.Context(), s, func(r *store.Reader) error {
		for _, table := range tables(t, s) {
			columns, err := texts(r, `SELECT name FROM pragma_table_info(?)`, table)
			if err != nil {
				return err
			}
			at := slices.IndexFunc(rules, func(r rule) bool { return r.table == table })
			for _, c := range columns {
				if strings.Contains(strings.ToLower(c), "owner") && (at < 0 || c != "owner") {
					t.Errorf("%s.%s: internal/migrate has no rule for it", table, c)
				}
			}
			if at < 0 || rules[at].history || rules[at].forget {
				continue
			}
			indexes, err := texts(r, `SELECT name FROM pragma_index_list(?) WHERE "unique"`, table)
			if err != nil {
				return err
			}
			for _, index := range indexes {
				on, err := texts(r, `SELECT coalesce(name, '') FROM pragma_index_info(?) ORDER BY seqno`, index)
				if err != nil {
					return err
				}
				if !slices.Contains(on, "owner") || slices.Contains(settled, table+" ("+strings.Join(on, ", ")+")") {
					continue
				}
				rest := slices.DeleteFunc(on, func(c string) bool { return c == "owner" })
				if !slices.Equal(rest, rules[at].unique) {
					t.Errorf("%s: its index is unique by owner and %v, the rule says %v", table, rest, rules[at].unique)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// fill gives an owner a row of everything, under keys that n makes its own.
func fill(t *testing.T, s *store.Store, owner string, n int) {
	t.Helper()
	m := mailbox.New(mailbox.Options{Store: s, LocalHostID: "local"})
	defer m.Close()
	who := principal.Principal{Owner: owner, ClientID: strings.TrimPrefix(owner, "local-owner:"), Permissions: principal.Full()}
	name := func(what string) string { return fmt.Sprintf("%s-%d", what, n) }
	for _, p := range []string{name("chat"), name("dot")} {
		if _, err := m.RegisterPeer(t.Context(), who, mailbox.RegisterPeerIn{PeerID: p, Kind: mailbox.Chat}); err != nil {
			t.Fatal(err)
		}
	}
	first := uuid.NewString()
	_, err := m.SendPeerMessage(t.Context(), who, mailbox.SendPeerMessageIn{MessageID: first, FromPeerID: name("chat"), ToPeerID: name("dot"), Text: "text of " + owner[12:]})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.SendPeerMessage(t.Context(), who, mailbox.SendPeerMessageIn{MessageID: uuid.NewString(), FromPeerID: name("dot"), ToPeerID: name("chat"), Text: "answer", InReplyTo: &first}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.AckPeerMessage(t.Context(), who, mailbox.AckPeerMessageIn{MessageID: first, PeerID: name("dot")}); err != nil {
		t.Fatal(err)
	}
	receiver := n * 10
	for _, row := range []struct {
		query string
		args  []any
	}{
		{`INSERT INTO event_receivers (id, address) VALUES (?, ?)`, []any{receiver, "https://callback.example/" + name("x")}},
		{`INSERT INTO event_receivers (id, address) VALUES (?, ?)`, []any{receiver + 1, "wake " + owner + " " + name("dot")}},
		{`INSERT INTO event_subscriptions (id, owner, receiver, name, arguments, client_id, secret, created_at, refreshed_at, expires_at) VALUES (?, ?, ?, 'peer.message', ?, 'c', x'01', 1, 1, 9)`,
			[]any{name("sub"), owner, receiver, `{"peerId":"` + name("chat") + `"}`}},
		{`INSERT INTO event_verifications (owner, url, verified_at) VALUES (?, ?, 1)`, []any{owner, name("url")}},
		{`INSERT INTO events (id, event_id, owner, name, subject, peer_id, body, created_at) VALUES (?, ?, ?, 'peer.message', ?, ?, x'7b7d', 1)`, []any{n, name("evt"), owner, first, name("chat")}},
		{`INSERT INTO event_deliveries (event, receiver, subscription, state, next_at) VALUES (?, ?, ?, 'queued', 1)`, []any{n, receiver, name("sub")}},
		{`INSERT INTO event_deliveries (event, receiver, state, next_at) VALUES (?, ?, 'accepted', 1)`, []any{n, receiver + 1}},
		{`INSERT INTO event_wake_targets (owner, peer_id, generation, routine_id, watermark, activated_at) VALUES (?, ?, 1, 'r', 42, 1)`, []any{owner, name("dot")}},
		{`INSERT INTO transfers (owner, host_id, request_id, client_id, direction, fingerprint, project_id, path, state, created_at) VALUES (?, 'local', ?, 'c', 'import', x'01', 'p', 'f', 'completed', 1)`, []any{owner, name("import")}},
		{`INSERT INTO agents (host_id, agent_id, owner, source, created_at) VALUES ('local', ?, ?, 'dispatch', 1)`, []any{name("agent"), owner}},
		{`INSERT INTO dispatches (id, owner, host_id, request_id, client_id, tool, fingerprint, content, state, stage, prompt_id, submitted_at, updated_at) VALUES (?, ?, 'local', ?, 'c', 'create_agent', x'01', x'', 'submitted', 'prompting', ?, 1, 1)`,
			[]any{n, owner, name("request"), name("prompt")}},
		{`INSERT INTO agent_messages (owner, host_id, message_id, dispatch, kind, text, created_at) VALUES (?, 'local', ?, ?, 'message', x'74', 1)`, []any{owner, name("message"), n}},
		{`INSERT INTO permission_answers (host_id, agent_id, permission_id, owner, client_id, fingerprint, behavior, state, answered_at) VALUES ('local', ?, 'p', ?, 'c', x'01', 'allow', 'submitted', 1)`, []any{name("agent"), owner}},
		{`INSERT INTO native_deliveries (owner, message_id, peer_id, generation, from_peer, host_id, agent_id, queued_at) VALUES (?, ?, ?, 1, ?, 'local', ?, 1)`, []any{owner, first, name("dot"), name("chat"), name("agent")}},
	} {
		exec(t, s, row.query, row.args...)
	}
}

func shareAll(t *testing.T, s *store.Store, o SharedOptions) Report {
	t.Helper()
	report, err := SharedOwner(t.Context(), s, o)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestEverythingMovesAndNothingElseChanges(t *testing.T) {
	s := open(t)
	fill(t, s, ann, 1)
	fill(t, s, bob, 2)
	fill(t, s, principal.SharedOwner, 3)
	before := dump(t, s)

	rehearsal := shareAll(t, s, SharedOptions{})
	if diff := cmp.Diff(before, dump(t, s)); diff != "" {
		t.Fatalf("a rehearsal changed (-before +after):\n%s", diff)
	}
	report := shareAll(t, s, SharedOptions{Apply: true})
	if rehearsal.Applied || !report.Applied || !slices.Equal(report.Owners, []string{ann, bob}) || len(report.Conflicts)+len(report.Renamed)+len(report.Merged) > 0 {
		t.Fatalf("report %+v", report)
	}
	report.Applied = false
	if diff := cmp.Diff(rehearsal, report); diff != "" {
		t.Errorf("the rehearsal said something else (-rehearsal +report):\n%s", diff)
	}
	after := dump(t, s)
	for table, rows := range after {
		for _, row := range rows {
			if table != "audit_log" && table != "owner_aliases" && (strings.Contains(row, ann) || strings.Contains(row, bob)) {
				t.Errorf("%s still has %s", table, row)
			}
		}
	}
	// Every row is what it was, but for its owner and what is made of it.
	same := strings.NewReplacer(ann, principal.SharedOwner, bob, principal.SharedOwner)
	for table, rows := range before {
		switch table {
		case "audit_log", "mailbox_budgets", "owner_aliases":
			continue
		}
		want := make([]string, len(rows))
		for i, row := range rows {
			want[i] = same.Replace(row)
			for owner, id := range map[string]string{ann: "import-1", bob: "import-2"} {
				if table == "transfers" && strings.Contains(row, "owner="+owner) {
					want[i] = strings.Replace(want[i], "placement_id=", "placement_id="+placementID(owner, id), 1)
				}
			}
		}
		slices.Sort(want)
		if diff := cmp.Diff(want, after[table]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", table, diff)
		}
	}
	if former, err := FormerOwners(t.Context(), s); err != nil || len(former) != 2 {
		t.Errorf("former owners %v, %v", former, err)
	}
	again := shareAll(t, s, SharedOptions{Apply: true})
	if len(again.Owners) != 0 || len(again.Moved) != 0 {
		t.Errorf("a second time there is something left: %+v", again)
	}
}

// Each conflict stops it, names both sides, and leaves all as it was.
func TestConflicts(t *testing.T) {
	peer := func(owner, id, more string) string {
		columns, values := "", ""
		if more != "" {
			columns, values = ", kind, host_id, agent_id", more
		} else {
			columns, values = ", kind, host_id, agent_id", ", 'chat', '', ''"
		}
		return fmt.Sprintf(`INSERT INTO mailbox_peers (owner, peer_id, display_name, generation, generation_from, created_at, last_seen_at%s) VALUES ('%s', '%s', '', 1, 0, 1, 1%s)`, columns, owner, id, values)
	}
	transfer := func(owner, key, print, state string) string {
		return fmt.Sprintf(`INSERT INTO transfers (owner, host_id, request_id, client_id, direction, fingerprint, project_id, path, state, created_at) VALUES ('%s', 'local', '%s', 'c', 'export', x'%s', 'p', 'f', '%s', 1)`, owner, key, print, state)
	}
	subscription := func(owner, id, peer string) string {
		return fmt.Sprintf(`INSERT INTO event_subscriptions (id, owner, receiver, name, arguments, client_id, secret, created_at, refreshed_at, expires_at) VALUES ('%s', '%s', 10, 'peer.message', '{"peerId":"%s"}', 'c', x'01', 1, 1, 9)`, id, owner, peer)
	}
	for name, tt := range map[string]struct {
		sql  []string
		o    SharedOptions
		what string
		next string
	}{
		"two live peers": {sql: []string{peer(ann, "dot", ""), peer(bob, "dot", "")}, what: "peer dot", next: "gateway peers stop dot --owner " + bob},
		"a live peer and one of the shared owner": {
			sql: []string{peer(ann, "dot", ""), peer(principal.SharedOwner, "dot", "")}, what: "peer dot", next: "gateway peers stop dot"},
		"a stopped peer that is still subscribed to": {
			sql:  []string{peer(ann, "dot", ""), peer(bob, "dot", ""), `UPDATE mailbox_peers SET stopped_at = 5 WHERE peer_id = 'dot' AND owner = '` + bob + `'`, subscription(bob, "s", "dot")},
			what: "peer dot"},
		"one agent, two peers": {
			sql:  []string{peer(ann, "one", ", 'local', 'local', 'agent'"), peer(bob, "two", ", 'local', 'local', 'agent'")},
			what: "agent local/agent"},
		"one message id": {
			sql:  []string{`UPDATE mailbox_messages SET message_id = '00000000-0000-4000-8000-000000000000' WHERE hop = 1`, `UPDATE events SET subject = id`, `UPDATE native_deliveries SET message_id = id`},
			what: "message 00000000-0000-4000-8000-000000000000"},
		"one key for two things": {
			sql: []string{transfer(ann, "k", "01", "completed"), transfer(bob, "k", "02", "completed")}, what: "transfer local/k", next: "--archive-keys"},
		"one key, and the older one runs": {
			sql: []string{transfer(ann, "k", "01", "pending"), transfer(bob, "k", "02", "completed")}, o: SharedOptions{ArchiveKeys: true}, what: "transfer local/k", next: "Start the gateway"},
		"one dispatch key": {
			sql: []string{`UPDATE dispatches SET request_id = 'r', fingerprint = CAST(id AS BLOB)`}, what: "dispatch local/r", next: "--archive-keys"},
		"one message of an agent": {sql: []string{`UPDATE agent_messages SET message_id = 'm'`}, what: "message of an agent local/m"},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			fill(t, s, ann, 1)
			fill(t, s, bob, 2)
			for _, statement := range tt.sql {
				exec(t, s, statement)
			}
			before := dump(t, s)
			tt.o.Apply = true
			report := shareAll(t, s, tt.o)
			if diff := cmp.Diff(before, dump(t, s)); diff != "" || report.Applied {
				t.Errorf("applied %v, changed (-before +after):\n%s", report.Applied, diff)
			}
			if len(report.Conflicts) != 1 {
				t.Fatalf("conflicts %+v", report.Conflicts)
			}
			if c := report.Conflicts[0]; c.What+" "+c.Name != tt.what || !strings.Contains(c.Next, tt.next) || c.Why == "" {
				t.Errorf("conflict %+v", c)
			}
		})
	}
}

func TestStoppedPeersOfOneName(t *testing.T) {
	s := open(t)
	fill(t, s, ann, 1)
	fill(t, s, bob, 2)
	exec(t, s, `UPDATE event_subscriptions SET ended_at = 5`)
	exec(t, s, `UPDATE event_wake_targets SET disabled_at = 5`)
	// Both have a peer "dot"; Ann's is stopped, and so are both "chat"s, of which Bob's
	// was seen last.
	for old, id := range map[string]string{"chat": "chat", "dot": "dot"} {
		exec(t, s, `UPDATE mailbox_peers SET peer_id = ? WHERE peer_id IN (? || '-1', ? || '-2')`, id, old, old)
	}
	exec(t, s, `UPDATE events SET peer_id = 'chat'`)
	exec(t, s, `UPDATE native_deliveries SET peer_id = 'dot', from_peer = 'chat'`)
	exec(t, s, `UPDATE event_wake_targets SET peer_id = 'dot'`)
	exec(t, s, `UPDATE event_receivers SET address = replace(replace(address, 'dot-1', 'dot'), 'dot-2', 'dot')`)
	exec(t, s, `UPDATE event_subscriptions SET arguments = '{"peerId":"chat"}'`)
	exec(t, s, `UPDATE mailbox_peers SET stopped_at = 5 WHERE NOT (peer_id = 'dot' AND owner = ?)`, bob)
	exec(t, s, `UPDATE mailbox_peers SET last_seen_at = last_seen_at + 5 WHERE owner = ?`, bob)
	report := shareAll(t, s, SharedOptions{Apply: true})
	want := []Renamed{{"peer", ann, "chat", archived("chat", ann)}, {"peer", ann, "dot", archived("dot", ann)}}
	if diff := cmp.Diff(want, report.Renamed); diff != "" || !report.Applied {
		t.Fatalf("applied %v, conflicts %v, renamed (-want +got):\n%s", report.Applied, report.Conflicts, diff)
	}
	err := store.Read(t.Context(), s, func(r *store.Reader) error {
		for query, want := range map[string][]string{
			`SELECT peer_id FROM mailbox_peers ORDER BY 1`:                                                          {"chat", archived("chat", ann), "dot", archived("dot", ann)},
			`SELECT peer_id FROM events ORDER BY 1`:                                                                 {"chat", archived("chat", ann)},
			`SELECT peer_id FROM event_wake_targets ORDER BY 1`:                                                     {"dot", archived("dot", ann)},
			`SELECT peer_id || ' ' || from_peer FROM native_deliveries ORDER BY 1`:                                  {"dot chat", archived("dot", ann) + " " + archived("chat", ann)},
			`SELECT arguments FROM event_subscriptions ORDER BY 1`:                                                  {`{"peerId":"chat"}`, `{"peerId":"` + archived("chat", ann) + `"}`},
			`SELECT address FROM event_receivers WHERE address LIKE 'wake%' ORDER BY 1`:                             {"wake local-owner:shared dot", "wake local-owner:shared " + archived("dot", ann)},
			`SELECT DISTINCT p.peer_id FROM mailbox_messages m JOIN mailbox_peers p ON p.id = m.to_peer ORDER BY 1`: {"chat", archived("chat", ann), "dot", archived("dot", ann)},
		} {
			got, err := texts(r, query)
			if err != nil {
				return err
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", query, got, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestArchivedNamesStayNames(t *testing.T) {
	long := strings.Repeat("x", maxName)
	for _, name := range []string{"a", long} {
		a, b := archived(name, ann), archived(name, bob)
		if len(a) > maxName || a == b || !strings.HasPrefix(a, name[:1]) || a == name {
			t.Errorf("archived as %q and %q", a, b)
		}
	}
}

func TestTwoSubscriptionsBecomeOne(t *testing.T) {
	s := open(t)
	fill(t, s, ann, 1)
	fill(t, s, bob, 2)
	exec(t, s, `UPDATE event_subscriptions SET receiver = 10, arguments = '{"peerId":"dot"}', refreshed_at = 7 - (id = 'sub-1')`)
	report := shareAll(t, s, SharedOptions{Apply: true})
	if diff := cmp.Diff([]Merged{{"sub-1", ann, "sub-2"}}, report.Merged); diff != "" || !report.Applied {
		t.Fatalf("applied %v, merged (-want +got):\n%s", report.Applied, diff)
	}
	err := store.Read(t.Context(), s, func(r *store.Reader) error {
		ids, err := texts(r, `SELECT id FROM event_subscriptions`)
		if err == nil && !slices.Equal(ids, []string{"sub-2"}) {
			t.Errorf("there are %v", ids)
		}
		waiting, err := texts(r, `SELECT subscription FROM event_deliveries WHERE subscription IS NOT NULL`)
		if err == nil && !slices.Equal(waiting, []string{"sub-2", "sub-2"}) {
			t.Errorf("what waits belongs to %v", waiting)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// One key of two clients: the newer receipt keeps it. Equal ones need no consent.
func TestReceiptsOfOneKey(t *testing.T) {
	for _, tt := range []struct {
		print string
		o     SharedOptions
	}{{"01", SharedOptions{Apply: true}}, {"02", SharedOptions{Apply: true, ArchiveKeys: true}}} {
		s := open(t)
		fill(t, s, ann, 1)
		fill(t, s, bob, 2)
		exec(t, s, `UPDATE transfers SET request_id = 'k'`)
		exec(t, s, `UPDATE transfers SET fingerprint = x'`+tt.print+`' WHERE owner = ?`, bob)
		report := shareAll(t, s, tt.o)
		if diff := cmp.Diff([]Renamed{{"transfer", ann, "k", archived("k", ann)}}, report.Renamed); diff != "" || !report.Applied {
			t.Fatalf("applied %v, %v, renamed (-want +got):\n%s", report.Applied, report.Conflicts, diff)
		}
		err := store.Read(t.Context(), s, func(r *store.Reader) error {
			rows, err := texts(r, `SELECT request_id || ' ' || placement_id FROM transfers ORDER BY id`)
			if want := []string{archived("k", ann) + " " + placementID(ann, "k"), "k " + placementID(bob, "k")}; err == nil && !slices.Equal(rows, want) {
				t.Errorf("there are %v, want %v", rows, want)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
