package agents

import (
	"context"
	"fmt"

	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// routesOf lists the live routes of an owner on a host.
func (s *Service) routesOf(q store.Querier, owner, hostID, workspaceID string) ([]Route, error) {
	all, err := s.events.Routes(q, owner)
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	var out []Route
	for _, r := range all {
		if r.HostID == hostID && (workspaceID == "" || r.WorkspaceID == workspaceID) {
			out = append(out, r)
		}
	}
	return out, nil
}

func withID(routes []Route, id string) (Route, bool) {
	for _, r := range routes {
		if r.RouteID == id {
			return r, true
		}
	}
	return Route{}, false
}

// routeFor chooses who is told of a dispatch: the route that the caller names,
// else that of the message it answers, else that of the agent's latest dispatch,
// else the only one of the workspace. One that has lapsed is passed over unless
// the caller names it.
func (s *Service) routeFor(tx *store.Tx, p plan) (string, error) {
	if p.quiet {
		return "", nil
	}
	live, err := s.routesOf(tx, p.owner, p.hostID, p.workspaceID)
	if err != nil {
		return "", err
	}
	if p.route != nil {
		if _, ok := withID(live, *p.route); !ok {
			return "", NoActiveRoute.New("notificationRouteId has no active subscription for this workspace.")
		}
		return *p.route, nil
	}
	if p.replyTo != "" {
		m, err := findMessage(tx, p.owner, p.hostID, p.replyTo)
		if err == nil {
			source, _, err := find(tx, byID, m.dispatch)
			if _, ok := withID(live, source.routeID); err != nil || ok {
				return source.routeID, err
			}
		}
	}
	if p.agentID != "" {
		last, _, err := find(tx, `WHERE host_id = ? AND agent_id = ? AND owner = ? ORDER BY id DESC LIMIT 1`, p.hostID, p.agentID, p.owner)
		if _, ok := withID(live, last.routeID); err != nil || ok {
			return last.routeID, err
		}
	}
	ids := map[string]bool{}
	for _, r := range live {
		ids[r.RouteID] = true
	}
	switch len(ids) {
	case 0:
		return "", nil
	case 1:
		return live[0].RouteID, nil
	}
	return "", AmbiguousRoute.New("More than one route is active for this workspace.")
}

// ListNotificationRoutes lists the caller's live routes on a host.
func (s *Service) ListNotificationRoutes(ctx context.Context, who principal.Principal, in ListNotificationRoutesIn) (ListNotificationRoutesOut, error) {
	out := ListNotificationRoutesOut{Routes: []RouteInfo{}, HostID: in.HostID}
	err := store.Read(ctx, s.store, func(q *store.Reader) error {
		live, err := s.routesOf(q, who.Owner, in.HostID, in.WorkspaceID)
		for _, r := range live {
			out.Routes = append(out.Routes, RouteInfo{r.SubscriptionID, r.WorkspaceID, r.RouteID, Time{r.ExpiresAt}, in.HostID})
		}
		return err
	})
	return out, err
}

// WatchDispatchRequest has a route told of a dispatch, also of what has happened
// by now. It submits nothing. A dispatch whose route has lapsed can be given
// another one.
func (s *Service) WatchDispatchRequest(ctx context.Context, who principal.Principal, in WatchDispatchRequestIn) (WatchDispatchRequestOut, error) {
	if err := checkRequestID("requestId", in.RequestID); err != nil {
		return WatchDispatchRequestOut{}, err
	}
	if err := checkRequestID("notificationRouteId", in.NotificationRouteID); err != nil {
		return WatchDispatchRequestOut{}, err
	}
	return store.Write(ctx, s.store, func(tx *store.Tx) (WatchDispatchRequestOut, error) {
		var out WatchDispatchRequestOut
		r, ok, err := find(tx, byKey, who.Owner, in.HostID, in.RequestID)
		switch {
		case err != nil:
			return out, err
		case !ok || r.tool == createWorkspace:
			return out, UnknownDispatch.New("No dispatch of this owner on this host has this requestId.")
		case r.state == Rejected:
			return out, DispatchRejected.New("The daemon refused this request.")
		case r.agentID == "":
			return out, NoAgentYet.New("Which agent this request created is not known yet.")
		}
		live, err := s.routesOf(tx, who.Owner, in.HostID, r.workspaceID)
		if err != nil {
			return out, err
		}
		route, ok := withID(live, in.NotificationRouteID)
		if !ok {
			return out, NoActiveRoute.New("notificationRouteId has no active subscription for the workspace of this request.")
		}
		if _, bound := withID(live, r.routeID); bound && r.routeID != route.RouteID {
			return out, RouteBound.New("The request is bound to another route.")
		}
		if r.routeID != route.RouteID {
			if err := set(tx, r.id, "route_id", route.RouteID); err != nil {
				return out, err
			}
		}
		return WatchDispatchRequestOut{
			RequestID: r.requestID, AgentID: r.agentID, WorkspaceID: r.workspaceID, NotificationRouteID: route.RouteID, SubscriptionID: route.SubscriptionID,
			Status: "bound", HostID: in.HostID,
		}, s.publishOwed(tx, `d.id = ?`, r.id)
	})
}
