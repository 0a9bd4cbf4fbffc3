package oauth

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"agentrelay/internal/oauth/cimd"
	"agentrelay/internal/oauth/registration"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// Kind is how a client became known.
type Kind string

// The kinds of client.
const (
	Dynamic    Kind = "dynamic"    // it registered itself (RFC 7591)
	Metadata   Kind = "metadata"   // its id is the URL of its metadata document
	Registered Kind = "registered" // the owner added it
)

// client is a row of oauth_clients.
type client struct {
	id           string
	kind         Kind
	name         string
	redirectURIs []string
	grantTypes   []string
	secretHash   []byte
	permissions  principal.Set // what a consent starts from
	decided      bool          // the owner has set permissions
	createdAt    time.Time
	freshUntil   time.Time
	authorizedAt time.Time // zero when never
	lastUsedAt   time.Time // zero when never
}

const clientColumns = `c.id, c.kind, c.name, c.redirect_uris, c.grant_types, c.secret_hash, c.permissions, c.created_at, c.fresh_until, c.authorized_at, c.last_used_at`

func scanClient(row store.Scanner, more ...any) (client, error) {
	var c client
	var redirects, grants string
	var permissions sql.NullString
	var created int64
	var fresh, authorized, used sql.NullInt64
	dest := []any{&c.id, &c.kind, &c.name, &redirects, &grants, &c.secretHash, &permissions, &created, &fresh, &authorized, &used}
	if err := row.Scan(append(dest, more...)...); err != nil {
		return client{}, err
	}
	if err := errors.Join(json.Unmarshal([]byte(redirects), &c.redirectURIs), json.Unmarshal([]byte(grants), &c.grantTypes)); err != nil {
		return client{}, fmt.Errorf("reading client %s: %w", c.id, err)
	}
	var err error
	if c.permissions, err = permissionsOf(permissions); err != nil {
		return client{}, fmt.Errorf("reading the permissions of client %s: %w", c.id, err)
	}
	c.decided = permissions.Valid
	c.createdAt = time.UnixMilli(created).UTC()
	c.freshUntil, c.authorizedAt, c.lastUsedAt = timeOf(fresh), timeOf(authorized), timeOf(used)
	return c, nil
}

// permissionsOf reads the permissions column. A client that the owner has not
// decided about starts with everything.
func permissionsOf(column sql.NullString) (principal.Set, error) {
	if !column.Valid {
		return principal.Full(), nil
	}
	return principal.ParseSet(column.String)
}

func timeOf(ms sql.NullInt64) time.Time {
	if !ms.Valid {
		return time.Time{}
	}
	return time.UnixMilli(ms.Int64).UTC()
}

// loadClient returns [sql.ErrNoRows] for an unknown id.
func loadClient(q store.Querier, id string) (client, error) {
	return scanClient(q.QueryRow(`SELECT `+clientColumns+` FROM oauth_clients c WHERE c.id = ?`, id))
}

// insertClient writes a new client, or the newer document of a metadata client,
// and makes room for it: of those that never authorised, the oldest go first.
func insertClient(tx *store.Tx, c client) error {
	redirects, err := json.Marshal(append([]string{}, c.redirectURIs...))
	if err != nil {
		return err
	}
	grants, err := json.Marshal(append([]string{}, c.grantTypes...))
	if err != nil {
		return err
	}
	fresh := sql.NullInt64{Int64: c.freshUntil.UnixMilli(), Valid: !c.freshUntil.IsZero()}
	_, err = tx.Exec(`INSERT INTO oauth_clients (id, kind, name, redirect_uris, grant_types, secret_hash, created_at, fresh_until)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET name = excluded.name, redirect_uris = excluded.redirect_uris,
			grant_types = excluded.grant_types, fresh_until = excluded.fresh_until
		WHERE kind = 'metadata' AND excluded.kind = 'metadata'`,
		c.id, c.kind, c.name, string(redirects), string(grants), c.secretHash, tx.Now().UnixMilli(), fresh)
	if err != nil {
		return fmt.Errorf("storing the client: %w", err)
	}
	return evictWaiting(tx)
}

// maxWaiting bounds the clients that never authorised, so that registration,
// which needs no credential, can't fill the disk.
const maxWaiting = 500

// evictWaiting makes room by arrival, not by time: the clock may be set back, and
// a client that was just answered must not be the one that goes.
func evictWaiting(tx *store.Tx) error {
	_, err := tx.Exec(`DELETE FROM oauth_clients WHERE id IN (
		SELECT id FROM oauth_clients WHERE authorized_at IS NULL AND kind <> 'registered'
		ORDER BY rowid DESC LIMIT -1 OFFSET ?)`, maxWaiting)
	if err != nil {
		return fmt.Errorf("making room for a client: %w", err)
	}
	return nil
}

// resolve finds the client of an authorization request. A metadata document is
// fetched when the stored copy is no longer fresh; when its site can't be asked, a
// client that was authorised before continues on the old copy. A site that says
// that the document is gone or changed into none is believed. Errors are not
// cached.
func (s *Server) resolve(ctx context.Context, id string) (client, error) {
	var c client
	err := store.Read(ctx, s.store, func(r *store.Reader) (err error) {
		c, err = loadClient(r, id)
		return err
	})
	known := err == nil
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return client{}, fmt.Errorf("reading the client: %w", err)
	}
	if known && (c.kind != Metadata || s.now().Before(c.freshUntil)) {
		return c, nil
	}
	if !known && (!cimd.IsClientID(id) || s.isOurs(id)) {
		return client{}, &pageError{
			status: http.StatusBadRequest, code: invalidClient.Code,
			message: "This gateway does not know the client that sent you here. It may have been removed, or the gateway's state was replaced.",
			hint:    "Remove the connector in the client and add it again; it then registers anew.",
		}
	}
	doc, err := s.documents.Fetch(ctx, id)
	var refused *cimd.Error
	switch {
	case err == nil:
		return s.remember(ctx, id, doc)
	case !errors.As(err, &refused):
		return client{}, fmt.Errorf("fetching the metadata document: %w", err)
	case known && !c.authorizedAt.IsZero() && refused.Unavailable:
		s.log.Warn("metadata document not refreshed, the stored copy is used", "client_id", id, "error", err)
		return c, nil
	}
	return client{}, &pageError{
		status: http.StatusBadRequest, code: invalidClient.Code, cause: err,
		message: "The metadata document that describes this client could not be used. " + refused.Reason,
		hint:    "Try again in a minute. If it stays so, the client's maker must repair the document, or you add the client with gateway clients add.",
	}
}

// isOurs reports whether id is an address of this gateway, which describes no
// client: to fetch it would be to ask ourselves.
func (s *Server) isOurs(id string) bool {
	theirs, err1 := url.Parse(id)
	ours, err2 := url.Parse(s.issuer)
	return err1 == nil && err2 == nil && theirs.Scheme == ours.Scheme && authority(theirs) == authority(ours)
}

// authority is the host and port of an https or http URL in one form.
func authority(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "http": "80"}[u.Scheme]
	}
	return strings.ToLower(strings.TrimSuffix(u.Hostname(), ".")) + ":" + port
}

// remember stores a metadata document as a client.
func (s *Server) remember(ctx context.Context, id string, doc cimd.Document) (client, error) {
	fetched := fromMetadata(id, Metadata, doc.Metadata)
	fetched.freshUntil = doc.FreshUntil
	return store.Write(ctx, s.store, func(tx *store.Tx) (client, error) {
		if err := insertClient(tx, fetched); err != nil {
			return client{}, err
		}
		return loadClient(tx, id)
	})
}

func fromMetadata(id string, kind Kind, m registration.Metadata) client {
	return client{id: id, kind: kind, name: m.ClientName, redirectURIs: m.RedirectURIs, grantTypes: m.GrantTypes}
}

// redirectHost is what people recognise of a redirect URI.
func redirectHost(uri string) string {
	u, err := url.Parse(uri)
	if err != nil {
		return ""
	}
	if u.Scheme != "https" && u.Scheme != "http" {
		return u.Scheme + "://" + u.Host
	}
	return u.Host
}
