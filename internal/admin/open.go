package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"agentrelay/internal/backup"
	"agentrelay/internal/channel"
	"agentrelay/internal/config"
	"agentrelay/internal/devices"
	"agentrelay/internal/direct/commands"
	"agentrelay/internal/events"
	"agentrelay/internal/hosts/local"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/oauth"
	"agentrelay/internal/oauth/redirect"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
	"agentrelay/internal/transfers"
	"agentrelay/internal/wake"
)

// Open takes the state lock and returns a backend that works without a running
// gateway, and how to let go of it. The error of a directory that is in use is
// a [store.LockedError].
func Open(ctx context.Context, c *config.Config, now func() time.Time, rand io.Reader, log *slog.Logger) (*Backend, func() error, error) {
	redirects, err := redirect.NewPolicy(c.OAuth.Redirects)
	if err != nil {
		return nil, nil, fmt.Errorf("oauth.redirects: %w", err)
	}
	plan := backup.PlanOf(c, now)
	s, err := store.Open(ctx, store.Options{Dir: c.StateDir, Now: now, AllowNetworkFS: c.Store.AllowNetworkFilesystem, BeforeUpgrade: plan.BeforeUpgrade, Log: log})
	if err != nil {
		return nil, nil, err
	}
	o := wake.EventsOptions(c)
	o.Store, o.Mailbox, o.Allowed, o.Now, o.Rand, o.Log = s, wake.Mailbox{}, oauth.Permits, now, rand, log
	e, err := events.New(o)
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	files, err := transfers.New(ctx, transfers.Options{Store: s, Hosts: noHosts{}, PublicBaseURL: c.PublicBaseURL, Now: now, Rand: rand, Log: log})
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	var opened *commands.Service
	open := sync.OnceValues(func() (*commands.Service, error) {
		var err error
		opened, err = local.OpenCommands(local.Options{Config: c, Now: now, Log: log})
		return opened, err
	})
	m := mailbox.New(mailbox.Options{Store: s, LocalHostID: local.ID(), Wake: wake.New(e, nil), Now: now, Log: log, Limits: mailbox.Limits(c.Mailbox.Limits)})
	agents := channel.NewAgents(channel.AgentsOptions{
		Store: s, StateDir: c.StateDir, LocalHostID: local.ID(), LocalAliases: local.Aliases(), HostIDs: hostIDs(c), Rand: rand, Log: log,
	})
	b := &Backend{
		Store: s, Backups: plan, Mailbox: m, Agents: agents, Hosts: hostsAlone{c, now}, Events: e, Transfers: files, Devices: devices.New(devices.Options{Store: s, Now: now, Rand: rand, Log: log}), Commands: open, OwnerFile: c.OwnerTokenFile, Rand: rand, Log: log,
		Clients: &oauth.Clients{Store: s, SharedOwner: c.SharedOwner, Redirects: redirects, Now: now, Rand: rand, Ended: []func(*store.Tx, string) error{e.EndClient, files.EndClient},
			Permitted: []func(*store.Tx, string, principal.Set) error{files.NarrowClient}},
	}
	return b, func() error {
		m.Close()
		if opened != nil {
			opened.Close()
		}
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		return errors.Join(files.Close(ctx), s.Close())
	}, nil
}

// closeTimeout bounds the end of transfers, of which none runs here.
const closeTimeout = 5 * time.Second

// noHosts are the hosts of transfers while no gateway runs: what became of one is
// asked later.
type noHosts struct{}

// Host implements [transfers.Hosts].
func (noHosts) Host(string) (transfers.Host, error) { return nil, errors.New("no gateway runs") }
