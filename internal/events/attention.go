package events

import (
	"encoding/json"
	"fmt"

	"agentrelay/internal/store"
)

// Route is a live subscription to agent.attention.
type Route struct {
	SubscriptionID               string
	HostID, WorkspaceID, RouteID string
	ExpiresAt                    Time
}

// Routes lists an owner's live subscriptions to agent.attention whose clients may
// still have it, in the order in which they were made.
func (s *Service) Routes(q store.Querier, owner string) ([]Route, error) {
	t, err := findType(AgentAttention)
	if err != nil {
		return nil, err
	}
	type live struct {
		Route
		clientID string
	}
	var all []live
	err = q.Query(func(row store.Scanner) error {
		var r live
		var arguments string
		var expiresAt int64
		if err := row.Scan(&r.SubscriptionID, &arguments, &r.clientID, &expiresAt); err != nil {
			return err
		}
		r.ExpiresAt = at(expiresAt)
		all = append(all, r)
		return json.Unmarshal([]byte(arguments), &all[len(all)-1].Route)
	}, `SELECT id, arguments, client_id, expires_at FROM event_subscriptions WHERE owner = ? AND name = ? AND ended_at IS NULL AND expires_at > ? ORDER BY rowid`,
		owner, AgentAttention, s.now().UnixMilli())
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	var out []Route
	for _, r := range all {
		ok, err := s.allowed(q, r.clientID, t.permission)
		if err != nil {
			return nil, fmt.Errorf("asking what a client is allowed: %w", err)
		}
		if ok {
			out = append(out, r.Route)
		}
	}
	return out, nil
}
