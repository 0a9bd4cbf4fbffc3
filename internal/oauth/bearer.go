package oauth

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// ErrInvalidToken says that a bearer token gives no access: it is not one of
// ours, has expired, or was revoked. The client must refresh or authorize anew.
var ErrInvalidToken = errors.New("the access token is not valid")

// Access is what a bearer token gives.
type Access struct {
	Principal principal.Principal
	Scopes    []string
	// ExpiresAt is when the token ends, without leeway.
	ExpiresAt time.Time
}

// accessQuery is the whole of the bearer check: three rows by their keys.
const accessQuery = `SELECT t.expires_at, g.scope, g.resource, c.id, c.name, c.permissions
	FROM oauth_access_tokens t JOIN oauth_grants g ON g.id = t.grant_id JOIN oauth_clients c ON c.id = g.client_id
	WHERE t.hash = ? AND g.revoked_at IS NULL`

// Authenticate checks a bearer token with one indexed read, so revocations and
// changed permissions hold at once. It honours a token for 30 seconds past its
// end. The error is [ErrInvalidToken] or trouble of the store or of ctx, which
// says nothing about the token and must be answered with 503, never 401.
func (s *Server) Authenticate(ctx context.Context, token string) (Access, error) {
	if !plausible(accessPrefix, token) {
		return Access{}, ErrInvalidToken
	}
	var a Access
	var scope, resource string
	var expires int64
	var permissions sql.NullString
	err := store.Read(ctx, s.store, func(r *store.Reader) error {
		return r.QueryRow(accessQuery, digest(token)).
			Scan(&expires, &scope, &resource, &a.Principal.ClientID, &a.Principal.ClientName, &permissions)
	})
	if errors.Is(err, sql.ErrNoRows) {
		return Access{}, ErrInvalidToken
	}
	if err != nil {
		return Access{}, fmt.Errorf("checking an access token: %w", err)
	}
	now := s.now()
	a.ExpiresAt = time.UnixMilli(expires).UTC()
	if !now.Before(a.ExpiresAt.Add(leeway)) || resource != s.resource.String() {
		return Access{}, ErrInvalidToken
	}
	if a.Principal.Permissions, err = permissionsOf(permissions); err != nil {
		return Access{}, fmt.Errorf("checking an access token: %w", err)
	}
	a.Principal.Owner = principal.OwnerOf(s.clients.SharedOwner, a.Principal.ClientID)
	a.Scopes = strings.Fields(scope)
	s.usage.saw(a.Principal.ClientID, now)
	return a, nil
}

// usage is when each client was last seen, until the next [Server.Flush]. It
// has at most one entry for each client with a valid token.
type usage struct {
	mu   sync.Mutex
	seen map[string]time.Time
}

func (u *usage) saw(clientID string, at time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.seen == nil {
		u.seen = map[string]time.Time{}
	}
	if u.seen[clientID].Before(at) {
		u.seen[clientID] = at
	}
}

// take empties the map.
func (u *usage) take() map[string]time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	seen := u.seen
	u.seen = nil
	return seen
}

// Flush stores when each client was last seen: one transaction, however many
// requests there were since the last one. [Server.Sweep] and [Server.Close] do
// it too. What it can't store it keeps for the next time.
func (s *Server) Flush(ctx context.Context) error {
	seen := s.usage.take()
	if len(seen) == 0 {
		return nil
	}
	err := store.Exec(ctx, s.store, func(tx *store.Tx) error {
		for id, at := range seen {
			if err := touchClient(tx, id, at); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		for id, at := range seen {
			s.usage.saw(id, at)
		}
		return fmt.Errorf("storing when clients were last seen: %w", err)
	}
	return nil
}

func touchClient(tx *store.Tx, id string, at time.Time) error {
	_, err := tx.Exec(`UPDATE oauth_clients SET last_used_at = ? WHERE id = ? AND coalesce(last_used_at, 0) < ?`, at.UnixMilli(), id, at.UnixMilli())
	if err != nil {
		return fmt.Errorf("storing when a client was last seen: %w", err)
	}
	return nil
}
