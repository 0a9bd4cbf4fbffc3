package oauth

import (
	"database/sql"
	"errors"
	"fmt"

	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// Permits reports whether the owner lets a client do something at this moment,
// for what a client left behind to be done later. A client that is not known any
// more may do nothing. It reads through q only.
func Permits(q store.Querier, clientID string, p principal.Permission) (bool, error) {
	var permissions sql.NullString
	err := q.QueryRow(`SELECT permissions FROM oauth_clients WHERE id = ?`, clientID).Scan(&permissions)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading the permissions of a client: %w", err)
	}
	set, err := permissionsOf(permissions)
	if err != nil {
		return false, fmt.Errorf("reading the permissions of a client: %w", err)
	}
	return set.Has(p), nil
}
