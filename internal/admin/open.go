package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"agentrelay/internal/config"
	"agentrelay/internal/events"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/oauth"
	"agentrelay/internal/oauth/redirect"
	"agentrelay/internal/store"
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
	s, err := store.Open(ctx, store.Options{Dir: c.StateDir, Now: now, AllowNetworkFS: c.Store.AllowNetworkFilesystem, Log: log})
	if err != nil {
		return nil, nil, err
	}
	o := wake.EventsOptions(c)
	o.Store, o.Mailbox, o.Allowed, o.Now, o.Rand, o.Log = s, wake.Mailbox{}, oauth.Permits, now, rand, log
	e, err := events.New(o)
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	m := mailbox.New(mailbox.Options{Store: s, Wake: wake.New(e), Now: now, Log: log, Limits: mailbox.Limits(c.Mailbox.Limits)})
	b := &Backend{
		Store: s, Mailbox: m, Events: e, OwnerFile: c.OwnerTokenFile, Rand: rand, Log: log,
		Clients: &oauth.Clients{Store: s, SharedOwner: c.SharedOwner, Redirects: redirects, Now: now, Rand: rand, Ended: []func(*store.Tx, string) error{e.EndClient}},
	}
	return b, func() error {
		m.Close()
		return s.Close()
	}, nil
}
