package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"agentrelay/internal/admin"
	"agentrelay/internal/audit"
	"agentrelay/internal/backup"
	"agentrelay/internal/direct/commands"
	"agentrelay/internal/events"
	"agentrelay/internal/store"
)

const (
	// drainTimeout is how long running calls may take to finish after a stop.
	// Waiting ones are answered at once.
	drainTimeout = 10 * time.Second

	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	// routeTimeout bounds the answers of all routes but the MCP endpoint, which
	// sets its own deadline for each write.
	routeTimeout = time.Minute
	maxHeader    = 64 << 10

	oauthSweep  = time.Minute
	auditSweep  = time.Hour
	eventSweep  = time.Hour
	deviceSweep = time.Hour

	transferSweep = time.Minute
)

// Run serves until ctx ends, then stops: no new connections, waiting calls
// answered with what there is, running ones given 10 seconds, everything closed.
// It calls ready once, with the address for clients, when requests are answered.
// A stop that was asked for is no error.
func (g *Gateway) Run(ctx context.Context, ready func(mcpURL string)) (err error) {
	defer func() { err = errors.Join(err, g.Close()) }()
	socket, err := admin.Listen(g.config.StateDir)
	if err != nil {
		return err
	}
	if err := g.events.Start(ctx); err != nil {
		return fmt.Errorf("starting the events: %w", errors.Join(err, socket.Close()))
	}
	if err := g.dispatch.agents.Start(ctx); err != nil {
		return fmt.Errorf("starting the agents: %w", errors.Join(err, socket.Close()))
	}
	if err := g.devices.Start(ctx); err != nil {
		return errors.Join(err, socket.Close())
	}
	g.logStart(ctx)

	serving, stopServing := context.WithCancel(ctx)
	defer stopServing()
	var wg sync.WaitGroup
	errs := make(chan error, 2)
	wg.Go(func() {
		errs <- g.serve(serving, g.listener)
		stopServing() // if it ended by itself, so does the rest
	})
	wg.Go(func() {
		errs <- admin.Serve(serving, socket, g.backend())
		stopServing()
	})
	wg.Go(func() { g.serveAgents(serving) })
	wg.Go(func() { g.serveRemotes(serving) })
	wg.Go(func() { g.serveDispatch(serving) })
	wg.Go(func() { g.rest(serving, restAfter) })
	wg.Go(func() { g.backups.Run(serving) })
	wg.Go(func() { g.sweep(serving, "oauth", oauthSweep, g.oauth.Sweep) })
	wg.Go(func() { g.sweep(serving, "audit", auditSweep, g.sweepAudit) })
	wg.Go(func() { g.sweep(serving, "events", eventSweep, g.sweepEvents) })
	wg.Go(func() { g.sweep(serving, "devices", deviceSweep, g.devices.Sweep) })
	wg.Go(func() { g.sweep(serving, "transfers", transferSweep, g.direct.transfers.Sweep) })
	ready(g.config.MCPURL())
	wg.Wait()
	return errors.Join(<-errs, <-errs)
}

// serve answers HTTP on l until ctx ends, and lets running calls finish.
func (g *Gateway) serve(ctx context.Context, l net.Listener) error {
	s := &http.Server{
		Handler:           g.Handler(),
		ReadHeaderTimeout: headerTimeout,
		WriteTimeout:      routeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(g.log.Handler(), slog.LevelWarn),
	}
	drained := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(drained)
		g.stop()
		g.mailbox.Close()
		bound, cancel := context.WithTimeout(context.Background(), g.drain)
		defer cancel()
		if err := g.dispatch.close(bound); err != nil {
			g.log.Warn("dispatches were still under way at the end of the stop", "error", err)
		}
		if err := g.devices.Close(bound); err != nil {
			g.log.Warn("devices were still connected at the end of the stop", "error", err)
		}
		if err := g.direct.close(bound); err != nil {
			g.log.Warn("the Direct workspace was still busy at the end of the stop", "error", err)
		}
		if err := s.Shutdown(bound); err != nil {
			g.log.Warn("calls were still running at the end of the stop and were cut off", "after", g.drain.String())
			s.Close()
		}
	})
	err := s.Serve(l)
	if stop() { // it ended before ctx did
		return fmt.Errorf("serving: %w", err)
	}
	<-drained
	return nil
}

// sweep runs f now and then until ctx ends.
func (g *Gateway) sweep(ctx context.Context, name string, every time.Duration, f func(context.Context) error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := f(ctx); err != nil && ctx.Err() == nil {
			g.log.Error("a sweep failed and will be tried again", "sweep", name, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sweepAudit removes what is older than the config keeps, in short steps.
func (g *Gateway) sweepAudit(ctx context.Context) error {
	before := g.now().AddDate(0, 0, -g.config.Audit.KeepDays)
	for {
		n, err := store.Write(ctx, g.store, func(tx *store.Tx) (int64, error) { return audit.Sweep(tx, before) })
		if err != nil {
			return fmt.Errorf("removing old entries of the audit log: %w", err)
		}
		if n == 0 {
			return nil
		}
	}
}

// sweepEvents removes deliveries that are older than the config keeps.
func (g *Gateway) sweepEvents(ctx context.Context) error {
	before := g.now().AddDate(0, 0, -g.config.Events.KeepDays)
	for {
		n, err := store.Write(ctx, g.store, func(tx *store.Tx) (int64, error) { return events.Sweep(tx, before) })
		if err != nil || n == 0 {
			return err
		}
	}
}

// backend is what the owner's commands act on.
func (g *Gateway) backend() *admin.Backend {
	return &admin.Backend{
		Store: g.store, Backups: backup.PlanOf(g.config, g.now), Clients: g.clients, Mailbox: g.mailbox, Agents: g.agents, Hosts: ownersHosts{g}, Events: g.events, Transfers: g.direct.transfers, Devices: g.devices, OwnerFile: g.config.OwnerTokenFile, Rand: g.rand, Log: g.log,
		Commands: func() (*commands.Service, error) { return g.direct.local.Commands, nil },
		Status:   func(ctx context.Context) (any, error) { return g.Status(ctx) },
		Doctor:   doctored{g},
	}
}
