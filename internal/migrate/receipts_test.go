package migrate

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"agentrelay/internal/store"
)

// What was dispatched after a backup stays known after its restore, as it was, and
// what the backup knows is not touched.
func TestReceiptsOfTheStateOfBefore(t *testing.T) {
	old, restored := open(t), open(t)
	fill(t, old, ann, 1)
	fill(t, old, ann, 2)
	exec(t, old, `UPDATE dispatches SET state = 'unknown', lost = 'changed' WHERE request_id = 'request-1'`)
	exec(t, old, `INSERT INTO device_calls (call_id, owner, client_id, agent, device, tool, request_id, fingerprint, args, args_hash, reason, state, created_at, deadline_at, ended_at, output)
		VALUES ('call-1', '`+ann+`', 'c', '', 'laptop', 'run', 'request-1', x'01', x'', '', '', 'done', 1, 2, 2, x'6F6B')`)
	fill(t, restored, ann, 1)
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	add, err := Receipts(t.Context(), old.Dir())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := store.Exec(t.Context(), restored, add); err != nil {
			t.Fatal(err)
		}
	}
	err = store.Read(t.Context(), restored, func(r *store.Reader) error {
		for query, want := range map[string][]string{
			`SELECT request_id || ' ' || state || ' ' || prompt_id || ' ' || hex(fingerprint) FROM dispatches ORDER BY 1`: {"request-1 submitted prompt-1 01", "request-2 submitted prompt-2 01"},
			`SELECT request_id || ' ' || state || ' ' || CAST(output AS TEXT) FROM device_calls`:                          {"request-1 done ok"},
			`SELECT agent_id || ' ' || owner FROM agents ORDER BY 1`:                                                      {"agent-1 " + ann, "agent-2 " + ann},
		} {
			got, err := texts(r, query)
			if err != nil {
				return err
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", query, got, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(old.Dir(), store.FileName), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Receipts(t.Context(), old.Dir()); err == nil {
		t.Error("a damaged database passes")
	}
}
