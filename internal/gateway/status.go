package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"agentrelay/internal/mailbox"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
	"agentrelay/internal/tool"
)

// Status is what the owner's command line shows of a running gateway.
type Status struct {
	Version   string    `json:"version"`
	StartedAt time.Time `json:"startedAt"`
	UptimeMs  int64     `json:"uptimeMs"`
	MCPURL    string    `json:"mcpUrl"`
	StateDir  string    `json:"stateDir"`
	// Ready is false while the store does not answer; Reason says why.
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"`
	Schema int64  `json:"schema"` // of the database
	// Surface is a hash of the tools that clients see. When it changes, clients
	// must read the list anew: "Refresh" in ChatGPT.
	Surface     string    `json:"surface"`
	Tools       int       `json:"tools"`
	SharedOwner bool      `json:"sharedOwner"`
	Clients     Clients   `json:"clients"`
	Peers       Peers     `json:"peers"`
	Events      Events    `json:"events"`
	Projects    Projects  `json:"projects"`
	Devices     Devices   `json:"devices"`
	Backups     Backups   `json:"backups"`
	Warnings    []Warning `json:"warnings"`
}

// Events counts what is told to the outside, of all owners.
type Events struct {
	Subscriptions int `json:"subscriptions"` // active ones
	Targets       int `json:"targets"`       // wake-up targets of the config
	Waiting       int `json:"waiting"`       // deliveries that are on their way
	Dead          int `json:"dead"`          // deliveries that nothing tries again
}

// Devices counts the paired devices.
type Devices struct {
	Paired    int `json:"paired"`
	Connected int `json:"connected"`
}

// Projects counts the projects of the Direct workspace.
type Projects struct {
	Total       int `json:"total"`
	Unavailable int `json:"unavailable"` // each has a warning that says why
}

// Clients counts the OAuth clients.
type Clients struct {
	Total      int `json:"total"`
	Authorized int `json:"authorized"` // with a grant that is alive
}

// Peers counts the peers of all owners.
type Peers struct {
	Active      int   `json:"active"`
	Stopped     int   `json:"stopped"`
	Unprocessed int64 `json:"unprocessed"` // messages nobody has acknowledged
}

// Warning is something the owner should know while the gateway runs.
type Warning struct {
	Name string `json:"name"` // stable, lower_snake
	Text string `json:"text"`
}

// Status measures the gateway now. An error is trouble of the store.
func (g *Gateway) Status(ctx context.Context) (Status, error) {
	tools := g.tools()
	s := Status{
		Version: g.version, StartedAt: g.started.UTC().Truncate(time.Millisecond), UptimeMs: g.now().Sub(g.started).Milliseconds(),
		MCPURL: g.config.MCPURL(), StateDir: g.config.StateDir, Ready: true,
		Surface: tool.Surface(tools), Tools: len(tools), SharedOwner: g.config.SharedOwner, Warnings: g.warnings(),
	}
	if err := g.ping(ctx); err != nil {
		s.Ready, s.Reason = false, err.Error()
		return s, nil
	}
	var foreign int
	err := errors.Join(g.readSchema(ctx, &s), g.countClients(ctx, &s), g.countPeers(ctx, &s, &foreign), g.measureEvents(ctx, &s))
	g.measureDirect(ctx, &s)
	var counted error
	s.Devices.Paired, s.Devices.Connected, counted = g.devices.Count(ctx)
	err = errors.Join(err, counted)
	g.measureBackups(&s)
	if foreign > 0 {
		s.Warnings = append(s.Warnings, g.foreignWarning(foreign))
	}
	return s, err
}

func (g *Gateway) readSchema(ctx context.Context, s *Status) error {
	err := store.Read(ctx, g.store, func(r *store.Reader) error {
		return r.QueryRow(`SELECT max(version_id) FROM goose_db_version WHERE is_applied`).Scan(&s.Schema)
	})
	if err != nil {
		return fmt.Errorf("reading the schema version: %w", err)
	}
	return nil
}

func (g *Gateway) countClients(ctx context.Context, s *Status) error {
	clients, err := g.clients.List(ctx)
	if err != nil {
		return err
	}
	s.Clients.Total = len(clients)
	for _, c := range clients {
		if c.ActiveGrants > 0 {
			s.Clients.Authorized++
		}
	}
	return nil
}

// countPeers also counts those that no client can reach, because they belong to
// an owner of the other sharedOwner mode.
func (g *Gateway) countPeers(ctx context.Context, s *Status, foreign *int) error {
	limit := mailbox.MaxLimit
	in := mailbox.AllPeersIn{IncludeStopped: true, Limit: &limit}
	for {
		page, err := g.mailbox.AllPeers(ctx, in)
		if err != nil {
			return err
		}
		for _, p := range page.Peers {
			if (p.Owner == principal.SharedOwner) != g.config.SharedOwner {
				*foreign++
			}
			if p.State == mailbox.Stopped {
				s.Peers.Stopped++
			} else {
				s.Peers.Active++
			}
			s.Peers.Unprocessed += p.UnprocessedCount
		}
		if page.NextCursor == "" {
			return nil
		}
		in.Cursor = &page.NextCursor
	}
}

func (g *Gateway) measureEvents(ctx context.Context, s *Status) error {
	e, err := g.events.Status(ctx)
	s.Events = Events{e.Subscriptions, e.Targets, e.Waiting, e.Dead}
	for _, w := range e.Warnings {
		s.Warnings = append(s.Warnings, Warning{w.Code, w.Text})
	}
	return err
}

// warnings are those that the config alone decides.
func (g *Gateway) warnings() []Warning {
	list := []Warning{}
	if g.config.Loopback() {
		list = append(list, Warning{"loopback_only", "publicBaseUrl is a loopback address: only clients on this machine can connect. Put an HTTPS proxy in front and set publicBaseUrl for others."})
	}
	if g.config.Safedial.AllowLoopback {
		list = append(list, Warning{"loopback_receivers_allowed", "safedial.allowLoopback is on: clients can make the gateway connect to this machine. Use it for tests only."})
	}
	if g.config.Store.AllowNetworkFilesystem {
		list = append(list, Warning{"network_filesystem_allowed", "store.allowNetworkFilesystem is on: a crash or a second machine can damage a database on a network file system."})
	}
	return list
}

func (g *Gateway) foreignWarning(peers int) Warning {
	text := "sharedOwner is true, but %d peers belong to single clients and no client can reach them. They are kept: with sharedOwner false their clients see them again."
	if !g.config.SharedOwner {
		text = "sharedOwner is false, but %d peers belong to the shared owner and no client can reach them. They are kept: with sharedOwner true all clients see them again."
	}
	return Warning{"other_owners", fmt.Sprintf(text, peers)}
}

// logStart writes what runs and what the owner should know.
func (g *Gateway) logStart(ctx context.Context) {
	s, err := g.Status(ctx)
	if err != nil {
		g.log.Error("the status could not be read at the start", "error", err)
	}
	g.log.Info("gateway started", "version", s.Version, "url", s.MCPURL, "schema", s.Schema, "surface", s.Surface, "tools", s.Tools)
	for _, w := range s.Warnings {
		g.log.Warn(w.Text, "warning", w.Name)
	}
}
