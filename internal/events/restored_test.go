package events_test

import (
	"slices"
	"testing"

	"agentrelay/internal/events"
	"agentrelay/internal/store"
)

// What waited when a backup was made may have been sent since: a wake-up target is
// not told of it again, a callback is.
func TestRestoredTellsNobodyTwice(t *testing.T) {
	s, err := store.Open(t.Context(), store.Options{Dir: t.TempDir() + "/state"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	err = store.Exec(t.Context(), s, func(tx *store.Tx) error {
		for _, statement := range []string{
			`INSERT INTO event_receivers (id, address) VALUES (1, 'https://callback.example/x'), (2, 'wake local-owner:shared p')`,
			`INSERT INTO event_subscriptions (id, owner, receiver, name, arguments, client_id, secret, created_at, refreshed_at, expires_at) VALUES ('s', 'local-owner:shared', 1, 'peer.message', '{}', 'c', x'01', 1, 1, 9)`,
			`INSERT INTO events (id, event_id, owner, name, subject, peer_id, body, created_at) VALUES (1, 'a', 'local-owner:shared', 'peer.message', 'm1', 'p', x'7b7d', 1), (2, 'b', 'local-owner:shared', 'peer.message', 'm2', 'p', x'7b7d', 1), (3, 'c', 'local-owner:shared', 'peer.message', 'm3', 'p', x'7b7d', 1)`,
			`INSERT INTO event_deliveries (event, receiver, subscription, state, next_at) VALUES (1, 1, 's', 'queued', 1), (1, 2, NULL, 'queued', 1), (2, 2, NULL, 'submitting', 1), (3, 2, NULL, 'accepted', 1)`,
		} {
			if _, err := tx.Exec(statement); err != nil {
				return err
			}
		}
		return events.Restored(tx)
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	err = store.Read(t.Context(), s, func(r *store.Reader) error {
		return r.Query(func(row store.Scanner) error {
			var line string
			err := row.Scan(&line)
			got = append(got, line)
			return err
		}, `SELECT event || ' ' || receiver || ' ' || state || ' ' || reason FROM event_deliveries ORDER BY 1`)
	})
	if want := []string{"1 1 queued ", "1 2 unknown restored", "2 2 unknown restored", "3 2 accepted "}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, want %q, %v", got, want, err)
	}
}
