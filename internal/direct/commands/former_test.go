package commands_test

import (
	"os"
	"path/filepath"
	"testing"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/commands"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
)

// What single clients ran is the shared owner's after it has taken them over: it can
// be read by either id, is not run again, and one key for two things runs nothing.
func TestTheSharedOwnerHasWhatItTookOver(t *testing.T) {
	h := newHost(t)
	ann, bob := principal.Owner("local-owner:ann"), principal.Owner("local-owner:bob")
	wait := 20000
	run := func(who principal.Principal, requestID, word string) (commands.RunDirectCommandOut, error) {
		t.Helper()
		return h.RunDirectCommand(t.Context(), who, commands.RunDirectCommandIn{
			ProjectID: "p", RequestID: requestID, Argv: []string{"sh", "-c", "echo " + word + " >> ran"}, WaitMs: &wait,
		})
	}
	ids := map[string]string{}
	for _, r := range []struct {
		who             principal.Principal
		requestID, word string
	}{{ann, "a", "ann"}, {bob, "b", "bob"}, {ann, "both", "first"}, {bob, "both", "second"}} {
		out, err := run(r.who, r.requestID, r.word)
		if err != nil {
			t.Fatal(err)
		}
		ids[r.word] = out.CommandID
	}
	never := "never"
	if _, err := h.ReadDirectCommand(t.Context(), ann, commands.ReadDirectCommandIn{RequestID: &never}); err != nil { // a tombstone
		t.Fatal(err)
	}

	policy := direct.Policy{
		HostID: "local", AllowedRoots: []string{filepath.Dir(h.project)}, Protected: []string{h.state}, FormerOwners: []string{ann.Owner, bob.Owner},
		Projects: []direct.Project{{ID: "p", Path: h.project, CommandMode: direct.Full}},
	}
	h.options.Host = direct.New(policy)
	h.restart()
	for word, id := range ids {
		out, err := h.ReadDirectCommand(t.Context(), owner, commands.ReadDirectCommandIn{CommandID: &id})
		if err != nil || out.CommandID != id {
			t.Errorf("%s: %v, %v", word, out.CommandID, err)
		}
	}
	for _, r := range []struct{ requestID, word, want string }{{"a", "ann", "ann"}, {"b", "bob", "bob"}, {"both", "first", "first"}, {"both", "second", "second"}} {
		out, err := run(owner, r.requestID, r.word)
		if err != nil || !out.Duplicate || out.CommandID != ids[r.want] {
			t.Errorf("%s with %s: %+v, %v", r.requestID, r.word, out.Receipt, err)
		}
	}
	both := "both"
	if out, err := h.ReadDirectCommand(t.Context(), owner, commands.ReadDirectCommandIn{RequestID: &both}); err != nil || out.CommandID != ids["second"] {
		t.Errorf("by the key of two: %v, %v; want the newer", out.CommandID, err)
	}
	_, err := run(owner, "a", "another")
	refused(t, err, fault.KeyConflict)
	if out, err := run(owner, "never", "never"); err != nil || !out.Duplicate || out.State != "failed" {
		t.Errorf("what was asked about before it came: %+v, %v", out.Receipt, err)
	}
	if out, err := run(owner, "new", "new"); err != nil || out.Duplicate {
		t.Errorf("a new one: %+v, %v", out.Receipt, err)
	}
	// Nobody else has them.
	carl := principal.Owner("local-owner:carl")
	if _, err := h.ReadDirectCommand(t.Context(), carl, commands.ReadDirectCommandIn{CommandID: new(ids["ann"])}); err == nil {
		t.Error("another owner reads it")
	}
	raw, err := os.ReadFile(filepath.Join(h.project, "ran"))
	if err != nil || string(raw) != "ann\nbob\nfirst\nsecond\nnew\n" {
		t.Errorf("ran %q, %v", raw, err)
	}
}
