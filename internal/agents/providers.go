package agents

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/principal"
)

// ListProfiles lists the daemon's agent profiles.
func (s *Service) ListProfiles(ctx context.Context, _ principal.Principal, in OnHost) (ListProfilesOut, error) {
	d, ctx, cancel, err := s.reading(ctx, in.HostID)
	if err != nil {
		return ListProfilesOut{}, err
	}
	defer cancel()
	all, err := d.ListProfiles(ctx)
	return ListProfilesOut{shown(all), in.HostID}, refusal(ctx, err, in.HostID, false)
}

// ListProviders lists the kinds of agents that the daemon can run.
func (s *Service) ListProviders(ctx context.Context, _ principal.Principal, in OnHost) (ListProvidersOut, error) {
	d, ctx, cancel, err := s.reading(ctx, in.HostID)
	if err != nil {
		return ListProvidersOut{}, err
	}
	defer cancel()
	all, err := d.ListProviders(ctx, "")
	out := ListProvidersOut{Providers: []Provider{}, HostID: in.HostID}
	for _, p := range all {
		out.Providers = append(out.Providers, Provider{p.ID, p.Label, p.Description, p.Enabled, p.Status, shownText(p.Error, 500), shown(p.Modes)})
	}
	return out, refusal(ctx, err, in.HostID, false)
}

// ListModels lists the models of a provider.
func (s *Service) ListModels(ctx context.Context, _ principal.Principal, in ListModelsIn) (ListModelsOut, error) {
	d, ctx, cancel, err := s.reading(ctx, in.HostID)
	if err != nil {
		return ListModelsOut{}, err
	}
	defer cancel()
	all, err := d.ListModels(ctx, in.Provider, "")
	raw := make([]json.RawMessage, len(all))
	for i, m := range all {
		raw[i] = m.Raw
	}
	return ListModelsOut{in.Provider, shown(raw), in.HostID}, refusal(ctx, err, in.HostID, false)
}

// InspectProvider reads how a provider would run with some settings.
func (s *Service) InspectProvider(ctx context.Context, _ principal.Principal, in InspectProviderIn) (map[string]any, error) {
	d, ctx, cancel, err := s.reading(ctx, in.HostID)
	if err != nil {
		return nil, err
	}
	defer cancel()
	cwd, err := s.within(ctx, in.HostID, in.CWD)
	if err != nil {
		return nil, err
	}
	raw, err := d.InspectProvider(ctx, paseo.ProviderInspection{Provider: in.Provider, CWD: cwd, Settings: in.Settings})
	if err != nil {
		return nil, refusal(ctx, err, in.HostID, false)
	}
	out, ok := withoutPaths(raw).(map[string]any)
	if !ok {
		return nil, fmt.Errorf("the daemon answered inspect_provider with no object")
	}
	out["hostId"] = in.HostID
	return out, nil
}

// shown is what a daemon sent, without paths of its machine.
func shown(raw []json.RawMessage) []any {
	out := []any{}
	for _, r := range raw {
		if v := withoutPaths(r); v != nil {
			out = append(out, v)
		}
	}
	return out
}

// machinePath is a text that is nothing but a path into a machine.
var machinePath = regexp.MustCompile(`^(~|[A-Za-z]:)?[/\\][^/\\\s]+[/\\][^\n]*$`)

// withoutPaths decodes JSON and leaves out every member and item that is nothing
// but an absolute path. What is no JSON is nil.
func withoutPaths(raw json.RawMessage) any {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return nil
	}
	return pathless(v)
}

func pathless(v any) any {
	isPath := func(v any) bool {
		s, ok := v.(string)
		return ok && machinePath.MatchString(s)
	}
	switch v := v.(type) {
	case map[string]any:
		for k, member := range v {
			if isPath(member) {
				delete(v, k)
			} else {
				v[k] = pathless(member)
			}
		}
	case []any:
		v = slices.DeleteFunc(v, isPath)
		for i := range v {
			v[i] = pathless(v[i])
		}
		return v
	}
	return v
}
