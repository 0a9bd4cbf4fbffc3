package oauth

import (
	"context"
	"errors"
	"testing"

	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// addClient adds a client as the owner does.
func (r *relay) addClient(secret bool) AddedClient {
	r.Helper()
	added, err := r.server.clients.Add(context.Background(), NewClient{Name: "Gemini", RedirectURIs: []string{claude}, Secret: secret})
	if err != nil {
		r.Fatal(err)
	}
	return added
}

func (r *relay) list() []ClientInfo {
	r.Helper()
	list, err := r.server.clients.List(context.Background())
	if err != nil {
		r.Fatal(err)
	}
	return list
}

func TestPermissionsHoldFromTheNextRequest(t *testing.T) {
	r := newRelay(t)
	ctx := context.Background()
	id, got := r.login()
	token := got.text("access_token")
	has := func(p principal.Permission) bool { return r.mustAccess(token).Principal.Permissions.Has(p) }
	if !has(principal.Commands) {
		t.Fatal("a new client does not start with everything")
	}
	set, err := r.server.clients.SetPermissions(ctx, id, nil, principal.Set{principal.Commands, principal.Agents})
	if err != nil || set.String() != "mailbox,files_read,files_write,devices" || has(principal.Commands) {
		t.Fatal(set, err)
	}
	a, err := r.server.checkAuthorization(ctx, authorizeParams(id, claude))
	if err != nil || a.permissions.String() != set.String() {
		t.Fatalf("a new consent does not start from what the client has: %v %v", a, err)
	}
	if _, err := r.consent(authorizeParams(id, claude), principal.Mailbox); err != nil {
		t.Fatal(err)
	}
	if has(principal.FilesRead) || !has(principal.Mailbox) {
		t.Fatal("what was consented does not hold for the client's other grants")
	}
	if _, err := r.server.clients.SetPermissions(ctx, id, principal.Set{principal.Commands}, nil); err != nil || !has(principal.Commands) {
		t.Fatal(err)
	}
	if e := r.lastAudit("client.permissions"); e.Subject != id || e.ClientID != principal.OwnerClientID || e.Detail["permissions"] != "mailbox,commands" {
		t.Fatalf("%+v", e)
	}
}

func TestRevokeEndsEverythingOfTheClientAtOnce(t *testing.T) {
	var ended []string
	r := newRelay(t, func(o *Options) {
		o.Ended = append(o.Ended, func(tx *store.Tx, id string) error { ended = append(ended, id); return nil })
	})
	ctx := context.Background()
	id, got := r.login()
	_, other := r.login()
	code := r.code(id, claude)
	n, err := r.server.clients.Revoke(ctx, id)
	if err != nil || n != 2 {
		t.Fatal(n, err)
	}
	if len(ended) != 1 || ended[0] != id {
		t.Fatal(ended)
	}
	if _, err := r.access(got.text("access_token")); err != ErrInvalidToken {
		t.Fatal(err)
	}
	r.wantRefused(r.refresh(id, got.text("refresh_token")), 400, "invalid_grant")
	r.wantRefused(r.redeem(id, code), 400, "invalid_grant")
	r.mustAccess(other.text("access_token"))
	if got := r.redeem(id, r.code(id, claude)); got.status != 200 {
		t.Fatalf("a revoked client can't ask again: %s", got.body)
	}
}

// TestWhoKeepsThingsHearsWhatAClientMayDo: at the owner's command and at a
// consent, in their transactions.
func TestWhoKeepsThingsHearsWhatAClientMayDo(t *testing.T) {
	var heard []string
	var refuse error
	r := newRelay(t, func(o *Options) {
		o.Permitted = append(o.Permitted, func(_ *store.Tx, id string, may principal.Set) error {
			heard = append(heard, id+" "+may.String())
			return refuse
		})
	})
	id, _ := r.login()
	if want := id + " " + principal.Full().String(); len(heard) != 1 || heard[0] != want {
		t.Fatalf("at the consent %q was heard, want %q", heard, want)
	}
	if _, err := r.server.clients.SetPermissions(t.Context(), id, nil, principal.Set{principal.FilesRead}); err != nil {
		t.Fatal(err)
	}
	if want := id + " " + principal.Full().Without(principal.FilesRead).String(); len(heard) != 2 || heard[1] != want {
		t.Fatalf("at the command %q was heard, want %q", heard, want)
	}
	refuse = errors.New("refused")
	if _, err := r.server.clients.SetPermissions(t.Context(), id, principal.Set{principal.FilesRead}, nil); !errors.Is(err, refuse) {
		t.Fatal(err)
	}
	var may bool
	err := store.Read(t.Context(), r.server.store, func(q *store.Reader) (err error) {
		may, err = Permits(q, id, principal.FilesRead)
		return err
	})
	if err != nil || may {
		t.Fatalf("a change that failed holds: %v, %v", may, err)
	}
}

func TestRevokeFailsWholeWithItsHooks(t *testing.T) {
	refused := errors.New("refused")
	r := newRelay(t, func(o *Options) {
		o.Ended = append(o.Ended, func(*store.Tx, string) error { return refused })
	})
	id, got := r.login()
	if _, err := r.server.clients.Revoke(context.Background(), id); !errors.Is(err, refused) {
		t.Fatal(err)
	}
	r.mustAccess(got.text("access_token"))
}

func TestOwnerCommandsRefuse(t *testing.T) {
	r := newRelay(t)
	ctx := context.Background()
	if _, err := r.server.clients.Revoke(ctx, "nobody"); !errors.Is(err, UnknownClient) {
		t.Error(err)
	}
	if _, err := r.server.clients.SetPermissions(ctx, "nobody", nil, nil); !errors.Is(err, UnknownClient) {
		t.Error(err)
	}
	for name, n := range map[string]NewClient{
		"no name":      {"", []string{claude}, false},
		"a line break": {"a\nb", []string{claude}, false},
		"no redirect":  {"a", nil, false},
		"not allowed":  {"a", []string{"https://evil.test/cb"}, false},
		"script":       {"a", []string{"javascript:alert(1)"}, false},
	} {
		if _, err := r.server.clients.Add(ctx, n); !errors.Is(err, InvalidClientArguments) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := r.rows(); n != 0 {
		t.Errorf("refused commands stored %d rows", n)
	}
}

func TestClientWithSecret(t *testing.T) {
	r := newRelay(t)
	c := r.addClient(true)
	if got := r.redeem(c.ID, r.code(c.ID, claude), "client_secret", c.Secret); got.status != 200 {
		t.Fatal(got.body)
	}
	info := r.list()[0]
	if !info.HasSecret || info.Kind != Registered || info.Name != "Gemini" || info.RedirectHosts[0] != "claude.ai" || info.ActiveGrants != 1 || info.AuthorizedAt == nil || info.LastUsedAt == nil {
		t.Fatalf("%+v", info)
	}
	if e := r.lastAudit("client.add"); e.Subject != c.ID || e.ClientID != principal.OwnerClientID {
		t.Fatalf("%+v", e)
	}
}
