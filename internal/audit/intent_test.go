package audit_test

import (
	"testing"

	"agentrelay/internal/audit"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

func TestAnIntentIsThereBeforeItsEnd(t *testing.T) {
	s, err := store.Open(t.Context(), store.Options{Dir: t.TempDir() + "/state"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	last := func() audit.Entry {
		t.Helper()
		var entries []audit.Entry
		err := store.Read(t.Context(), s, func(r *store.Reader) (err error) { entries, err = audit.Last(r, 2); return err })
		if err != nil || len(entries) != 1 {
			t.Fatalf("%+v, %v", entries, err)
		}
		return entries[0]
	}
	intent, err := audit.Begin(t.Context(), s, principal.Owner("o"), "file.write", "a/b.txt", "project", "site")
	if err != nil {
		t.Fatal(err)
	}
	if e := last(); e.Outcome != audit.Begun || e.Subject != "a/b.txt" || e.Detail["project"] != "site" {
		t.Errorf("before the effect: %+v", e)
	}
	if err := intent.End(t.Context(), audit.OK, "size", 7); err != nil {
		t.Fatal(err)
	}
	if e := last(); e.Outcome != audit.OK || e.Detail["project"] != "site" || e.Detail["size"] != 7.0 {
		t.Errorf("after it: %+v", e)
	}
}
