package audit_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"agentrelay/internal/audit"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

func open(t *testing.T, now func() time.Time) *store.Store {
	t.Helper()
	s, err := store.Open(context.Background(), store.Options{Dir: t.TempDir() + "/state", Now: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func last(t *testing.T, s *store.Store) []audit.Entry {
	t.Helper()
	var got []audit.Entry
	err := store.Read(context.Background(), s, func(r *store.Reader) (err error) {
		got, err = audit.Last(r, 10)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestEntryLivesAndDiesWithItsEffect(t *testing.T) {
	s := open(t, nil)
	who := principal.Principal{Owner: "local-owner:shared", ClientID: "c1"}
	undone := errors.New("undone")
	err := store.Exec(context.Background(), s, func(tx *store.Tx) error {
		if err := audit.Record(tx, who, "peer.stop", "a", audit.OK); err != nil {
			return err
		}
		return undone
	})
	if !errors.Is(err, undone) {
		t.Fatal(err)
	}
	if got := last(t, s); len(got) != 0 {
		t.Fatalf("an undone effect left %+v", got)
	}
	if err := store.Exec(context.Background(), s, func(tx *store.Tx) error {
		return audit.Record(tx, who, "peer.stop", "a", audit.OK, "generation", 2)
	}); err != nil {
		t.Fatal(err)
	}
	got := last(t, s)
	if len(got) != 1 || got[0].Action != "peer.stop" || got[0].Subject != "a" || got[0].ClientID != "c1" || got[0].Detail["generation"] != 2.0 {
		t.Fatalf("got %+v", got)
	}
}

func TestSweepKeepsWhatIsYoungEnough(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := open(t, func() time.Time { return now })
	add := func(subject string) {
		if err := store.Exec(context.Background(), s, func(tx *store.Tx) error {
			return audit.Record(tx, principal.Owner("o"), "x.y", subject, audit.OK)
		}); err != nil {
			t.Fatal(err)
		}
	}
	add("old")
	now = now.AddDate(1, 0, 0)
	add("young")
	if err := store.Exec(context.Background(), s, func(tx *store.Tx) error {
		_, err := audit.Sweep(tx, now)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if got := last(t, s); len(got) != 1 || got[0].Subject != "young" {
		t.Fatalf("got %+v", got)
	}
}
