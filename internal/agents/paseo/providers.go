package paseo

import (
	"context"
	"encoding/json"
	"slices"
)

// Provider is a kind of agent the daemon can run.
type Provider struct {
	ID, Label, Description string
	Enabled                bool
	// Status is ready, loading, error, unavailable, or newer.
	Status string
	Error  string
	// Modes are {id, label, description?} objects.
	Modes []json.RawMessage
	// Raw is the whole entry; in it, from some versions, models.
	Raw json.RawMessage
}

// ListProviders reads all providers, as seen from cwd if that is not "". Daemons
// without snapshots tell only names and whether they are available.
func (c *Client) ListProviders(ctx context.Context, cwd string) ([]Provider, error) {
	payload, err := c.call(ctx, "get_providers_snapshot_request", fields{"cwd": omitZero(cwd)})
	if RejectedAs(err, CodeUnknownSchema) {
		payload, err = c.call(ctx, "list_available_providers_request", nil)
	}
	if err != nil {
		return nil, err
	}
	return decodeProviders(payload)
}

// decodeProviders reads the entries of a snapshot, or the plainer providers.
func decodeProviders(payload []byte) ([]Provider, error) {
	var w struct {
		Entries   lenient[[]json.RawMessage] `json:"entries"`
		Providers lenient[[]json.RawMessage] `json:"providers"`
		Error     text                       `json:"error"`
	}
	if json.Unmarshal(payload, &w) != nil {
		return nil, unreadable("list of providers")
	}
	if w.Error != "" {
		return nil, rejected(string(w.Error), "")
	}
	list := w.Entries.v
	if !w.Entries.set {
		list = w.Providers.v
	}
	if !w.Entries.set && !w.Providers.set {
		return nil, unreadable("list of providers")
	}
	out := make([]Provider, 0, len(list))
	for _, raw := range list {
		if p, ok := decodeProvider(raw); ok {
			out = append(out, p)
		}
	}
	return out, nil
}

func decodeProvider(raw json.RawMessage) (Provider, bool) {
	var w struct {
		ID          text                       `json:"provider"`
		Label       text                       `json:"label"`
		Description text                       `json:"description"`
		Enabled     lenient[bool]              `json:"enabled"`
		Available   lenient[bool]              `json:"available"`
		Status      text                       `json:"status"`
		Error       text                       `json:"error"`
		Modes       lenient[[]json.RawMessage] `json:"modes"`
	}
	if json.Unmarshal(raw, &w) != nil || w.ID == "" {
		return Provider{}, false
	}
	p := Provider{
		ID: string(w.ID), Label: string(w.Label), Description: string(w.Description), Status: string(w.Status),
		Error: string(w.Error), Modes: w.Modes.v, Raw: slices.Clone(raw),
		Enabled: !w.Enabled.set || w.Enabled.v,
	}
	if p.Label == "" {
		p.Label = p.ID
	}
	if p.Status == "" && w.Available.set {
		p.Status = "unavailable"
		if w.Available.v {
			p.Status = "ready"
		}
	}
	return p, true
}

// Model is a model of a provider.
type Model struct {
	ID, Label, Description string
	Default                bool
	// Raw is the whole entry, with thinking options.
	Raw json.RawMessage
}

// ListModels reads a provider's models, as seen from cwd if that is not "".
func (c *Client) ListModels(ctx context.Context, provider, cwd string) ([]Model, error) {
	payload, err := c.call(ctx, "list_provider_models_request", fields{"provider": provider, "cwd": omitZero(cwd)})
	if err != nil {
		return nil, err
	}
	var w struct {
		Models lenient[[]json.RawMessage] `json:"models"`
		Error  text                       `json:"error"`
	}
	if json.Unmarshal(payload, &w) != nil {
		return nil, unreadable("list of models")
	}
	if w.Error != "" {
		return nil, rejected(string(w.Error), "")
	}
	out := make([]Model, 0, len(w.Models.v))
	for _, raw := range w.Models.v {
		var m struct {
			ID          text          `json:"id"`
			Label       text          `json:"label"`
			Description text          `json:"description"`
			Default     lenient[bool] `json:"isDefault"`
		}
		if json.Unmarshal(raw, &m) == nil && m.ID != "" {
			out = append(out, Model{string(m.ID), string(m.Label), string(m.Description), m.Default.v, slices.Clone(raw)})
		}
	}
	return out, nil
}

// ListProfiles reads the daemon's agent profiles, over MCP. Daemons without
// ServerInfo.Profiles are [Unsupported].
func (c *Client) ListProfiles(ctx context.Context) ([]json.RawMessage, error) {
	if err := c.checkFeature(ctx, ServerInfo.Profiles, "list_profiles"); err != nil {
		return nil, err
	}
	raw, err := c.callMCP(ctx, "list_profiles", nil)
	if err != nil {
		return nil, err
	}
	var w struct {
		Profiles lenient[[]json.RawMessage] `json:"profiles"`
	}
	if json.Unmarshal(raw, &w) != nil || !w.Profiles.set {
		return nil, unreadable("list of profiles")
	}
	return w.Profiles.v, nil
}

// ProviderInspection asks how a provider would run with some settings.
type ProviderInspection struct {
	Provider string
	CWD      string
	// Settings are modeId, model, thinkingOptionId and features; nil is none.
	Settings map[string]any
}

// InspectProvider reads {provider, label, description, enabled, status, modes,
// selectedModel, features} as the daemon sent it, over MCP. Daemons without it
// are [Unsupported].
func (c *Client) InspectProvider(ctx context.Context, q ProviderInspection) (json.RawMessage, error) {
	arguments := fields{"provider": q.Provider, "cwd": omitZero(q.CWD)}
	if len(q.Settings) > 0 {
		arguments["settings"] = q.Settings
	}
	return c.callMCP(ctx, "inspect_provider", arguments)
}

// DaemonStatus is the daemon's process.
type DaemonStatus struct {
	ServerID, Version string
	// PID changes with a restart of the worker, StartedAt with one of the daemon.
	PID       int64
	StartedAt string
	Raw       json.RawMessage
}

// DaemonStatus asks for it. Daemons without ServerInfo.StatusRPC are [Unsupported].
func (c *Client) DaemonStatus(ctx context.Context) (DaemonStatus, error) {
	if err := c.checkFeature(ctx, ServerInfo.StatusRPC, "daemon status"); err != nil {
		return DaemonStatus{}, err
	}
	payload, err := c.call(ctx, "daemon.get_status.request", nil)
	if err != nil {
		return DaemonStatus{}, err
	}
	return decodeDaemonStatus(payload)
}

func decodeDaemonStatus(payload []byte) (DaemonStatus, error) {
	var w struct {
		ServerID  text           `json:"serverId"`
		Version   text           `json:"version"`
		PID       lenient[int64] `json:"pid"`
		StartedAt text           `json:"startedAt"`
	}
	if json.Unmarshal(payload, &w) != nil {
		return DaemonStatus{}, unreadable("daemon status")
	}
	return DaemonStatus{string(w.ServerID), string(w.Version), w.PID.v, string(w.StartedAt), slices.Clone(payload)}, nil
}
