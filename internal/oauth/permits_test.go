package oauth

import (
	"context"
	"testing"

	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

func TestPermitsIsWhatTheOwnerSaysNow(t *testing.T) {
	r := newRelay(t)
	id := r.addClient(false).ID
	permits := func(id string, p principal.Permission) (ok bool) {
		t.Helper()
		err := store.Read(context.Background(), r.server.store, func(q *store.Reader) (err error) {
			ok, err = Permits(q, id, p)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if !permits(id, principal.Mailbox) || permits("nobody", principal.Mailbox) {
		t.Error("a new client starts with everything, an unknown one with nothing")
	}
	if _, err := r.server.clients.SetPermissions(context.Background(), id, nil, principal.Set{principal.Mailbox}); err != nil {
		t.Fatal(err)
	}
	if permits(id, principal.Mailbox) || !permits(id, principal.Agents) {
		t.Error("a change does not hold")
	}
}
