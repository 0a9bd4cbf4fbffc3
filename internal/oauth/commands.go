package oauth

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"agentrelay/internal/audit"
	"agentrelay/internal/oauth/redirect"
	"agentrelay/internal/oauth/registration"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// Clients are the owner's commands about clients. They need the store alone, so
// that they work with and without a running server.
type Clients struct {
	Store       *store.Store
	SharedOwner bool
	Redirects   *redirect.Policy
	// Now is the clock, the store's; nil means time.Now.
	Now func() time.Time
	// Rand makes client ids and secrets; nil means crypto/rand.
	Rand io.Reader
	// Ended is called in the transaction that ends a client; see [Options].
	Ended []func(tx *store.Tx, clientID string) error
	// Permitted is called in the transaction that decides what a client may do;
	// see [Options].
	Permitted []func(tx *store.Tx, clientID string, may principal.Set) error

	// flush stores what a running server still keeps in memory.
	flush func(context.Context) error
}

// ClientInfo is one client as the owner sees it.
type ClientInfo struct {
	ID            string        `json:"id"`
	Name          string        `json:"name"`
	Kind          Kind          `json:"kind"`
	RedirectHosts []string      `json:"redirectHosts"`
	Permissions   principal.Set `json:"permissions"`
	HasSecret     bool          `json:"hasSecret"`
	CreatedAt     time.Time     `json:"createdAt"`
	AuthorizedAt  *time.Time    `json:"authorizedAt,omitempty"` // the last consent
	LastUsedAt    *time.Time    `json:"lastUsedAt,omitempty"`   // kept to the minute
	ActiveGrants  int           `json:"activeGrants"`
}

// List returns every client, the one last used first.
func (c Clients) List(ctx context.Context) ([]ClientInfo, error) {
	if c.flush != nil {
		if err := c.flush(ctx); err != nil {
			return nil, err
		}
	}
	list := []ClientInfo{}
	now := time.Now
	if c.Now != nil {
		now = c.Now
	}
	err := store.Read(ctx, c.Store, func(r *store.Reader) error {
		return r.Query(func(row store.Scanner) error {
			var grants int
			found, err := scanClient(row, &grants)
			if err == nil {
				list = append(list, infoOf(found, grants))
			}
			return err
		}, `SELECT `+clientColumns+`, (SELECT count(*) FROM oauth_grants g WHERE g.client_id = c.id AND g.revoked_at IS NULL AND g.expires_at > ?)
			FROM oauth_clients c ORDER BY coalesce(c.last_used_at, c.authorized_at, c.created_at) DESC, c.id`, now().UnixMilli())
	})
	if err != nil {
		return nil, fmt.Errorf("listing the clients: %w", err)
	}
	return list, nil
}

func infoOf(c client, grants int) ClientInfo {
	info := ClientInfo{ID: c.id, Name: c.name, Kind: c.kind, RedirectHosts: []string{}, Permissions: c.permissions,
		HasSecret: len(c.secretHash) > 0, CreatedAt: c.createdAt, ActiveGrants: grants}
	for _, uri := range c.redirectURIs {
		if host := redirectHost(uri); !slices.Contains(info.RedirectHosts, host) {
			info.RedirectHosts = append(info.RedirectHosts, host)
		}
	}
	if !c.authorizedAt.IsZero() {
		info.AuthorizedAt = &c.authorizedAt
	}
	if !c.lastUsedAt.IsZero() {
		info.LastUsedAt = &c.lastUsedAt
	}
	return info
}

// NewClient is what the owner enters to add a client.
type NewClient struct {
	Name         string
	RedirectURIs []string
	// Secret asks for a client secret, for clients that want one to be typed in.
	Secret bool
}

// AddedClient is a client just added. Secret is shown this once: only its hash
// is kept.
type AddedClient struct {
	ID     string `json:"id"`
	Secret string `json:"secret,omitempty"`
}

// Add registers a client for the owner. It needs the owner's consent like any
// other. Redirect addresses must be ones that oauth.redirects allows.
func (c Clients) Add(ctx context.Context, n NewClient) (AddedClient, error) {
	if n.Name == "" || len(n.Name) > registration.MaxClientName || strings.ContainsFunc(n.Name, func(r rune) bool { return r < ' ' }) {
		return AddedClient{}, InvalidClientArguments.Newf("The name must have 1 to %d bytes, without control characters.", registration.MaxClientName)
	}
	if len(n.RedirectURIs) == 0 || len(n.RedirectURIs) > registration.MaxRedirectURIs {
		return AddedClient{}, InvalidClientArguments.Newf("Give 1 to %d redirect addresses.", registration.MaxRedirectURIs)
	}
	for _, uri := range n.RedirectURIs {
		if err := redirect.Registrable(uri); err != nil {
			return AddedClient{}, InvalidClientArguments.Newf("The redirect address %.200q is refused: %v.", uri, err)
		}
		if !c.Redirects.Allows(uri) {
			return AddedClient{}, InvalidClientArguments.Newf("The redirect address %.200q is not allowed.", uri).
				WithHint(fmt.Sprintf("Add %q to oauth.redirects in the config first.", uri))
		}
	}
	var added AddedClient
	var err error
	random := cmp.Or(c.Rand, rand.Reader)
	if added.ID, err = mint(random, clientPrefix, clientIDBytes); err != nil {
		return AddedClient{}, err
	}
	row := client{id: added.ID, kind: Registered, name: n.Name, redirectURIs: n.RedirectURIs,
		grantTypes: []string{registration.AuthorizationCode, registration.RefreshToken}}
	if n.Secret {
		if added.Secret, err = mint(random, secretPrefix, secretBytes); err != nil {
			return AddedClient{}, err
		}
		row.secretHash = digest(added.Secret)
	}
	err = store.Exec(ctx, c.Store, func(tx *store.Tx) error {
		if err := insertClient(tx, row); err != nil {
			return err
		}
		return audit.Record(tx, c.ownerOf(row.id), "client.add", row.id, audit.OK, "secret", n.Secret)
	})
	return added, err
}

// Revoke ends every grant and token of a client and what the client made, in
// one transaction, and returns the number of grants ended. The client stays
// known with its permissions, so that it can ask for consent again without
// registering anew; until the owner consents it can do nothing.
func (c Clients) Revoke(ctx context.Context, clientID string) (int64, error) {
	return store.Write(ctx, c.Store, func(tx *store.Tx) (int64, error) {
		if _, err := c.find(tx, clientID); err != nil {
			return 0, err
		}
		now := tx.Now().UnixMilli()
		n, err := tx.Exec(`UPDATE oauth_grants SET revoked_at = ?1, expires_at = min(expires_at, ?1) WHERE client_id = ?2 AND revoked_at IS NULL`, now, clientID)
		if err != nil {
			return 0, fmt.Errorf("revoking the client: %w", err)
		}
		if err := c.end(tx, clientID); err != nil {
			return 0, err
		}
		return n, audit.Record(tx, c.ownerOf(clientID), "client.revoke", clientID, audit.OK, "grants", n)
	})
}

// SetPermissions adds allow to what a client may do, takes deny away, and
// returns what is left. It holds from the client's next request on. A client
// the owner has not decided about starts with everything.
func (c Clients) SetPermissions(ctx context.Context, clientID string, allow, deny principal.Set) (principal.Set, error) {
	return store.Write(ctx, c.Store, func(tx *store.Tx) (principal.Set, error) {
		row, err := c.find(tx, clientID)
		if err != nil {
			return nil, err
		}
		set := row.permissions.With(allow...).Without(deny...)
		if _, err := tx.Exec(`UPDATE oauth_clients SET permissions = ? WHERE id = ?`, set.String(), clientID); err != nil {
			return nil, fmt.Errorf("storing the permissions: %w", err)
		}
		if err := c.permitted(tx, clientID, set); err != nil {
			return nil, err
		}
		return set, audit.Record(tx, c.ownerOf(clientID), "client.permissions", clientID, audit.OK, "permissions", set.String())
	})
}

func (c Clients) find(tx *store.Tx, id string) (client, error) {
	row, err := loadClient(tx, id)
	if errors.Is(err, sql.ErrNoRows) {
		return client{}, UnknownClient.New("No client has this id.")
	}
	if err != nil {
		return client{}, fmt.Errorf("reading the client: %w", err)
	}
	return row, nil
}

// end tells those who keep things that a client made.
func (c Clients) end(tx *store.Tx, clientID string) error {
	for _, ended := range c.Ended {
		if err := ended(tx, clientID); err != nil {
			return fmt.Errorf("ending what a client made: %w", err)
		}
	}
	return nil
}

// permitted tells those who keep things that a client made what it may do now.
func (c Clients) permitted(tx *store.Tx, clientID string, may principal.Set) error {
	for _, permitted := range c.Permitted {
		if err := permitted(tx, clientID, may); err != nil {
			return fmt.Errorf("ending what a client may not do any more: %w", err)
		}
	}
	return nil
}

// principalOf is a client in the audit log, before and after its consent.
func (c Clients) principalOf(row client) principal.Principal {
	return principal.Principal{Owner: principal.OwnerOf(c.SharedOwner, row.id), ClientID: row.id, ClientName: row.name}
}

// ownerOf is the owner in the audit log, acting on a client.
func (c Clients) ownerOf(clientID string) principal.Principal {
	return principal.Owner(principal.OwnerOf(c.SharedOwner, clientID))
}
