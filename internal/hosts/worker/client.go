package worker

import (
	"context"

	"agentrelay/internal/hosts"
)

// Client is the Direct tools of another machine, and that machine as the
// directory knows it. It is safe for concurrent use.
type Client struct {
	o Options
}

var (
	_ hosts.Host = (*Client)(nil)
)

// New returns the client of a host. It starts nothing. [Client.Close] must be
// called.
func New(o Options) *Client { return &Client{o: o} }

// Close ends the worker and everything that waits for it. Commands go on.
func (c *Client) Close() {}

// LinkChanged tells the client what became of the connection: it
// is for OnChange of package ssh. It does not block.
func (c *Client) LinkChanged(hosts.Status) {}

// ID implements [hosts.Host].
func (c *Client) ID() string { return c.o.ID }

// Name implements [hosts.Host].
func (c *Client) Name() string { return c.o.Name }

// Transport implements [hosts.Host].
func (c *Client) Transport() string { return "ssh" }

// DirectConfigured implements [hosts.Host].
func (c *Client) DirectConfigured() bool { return len(c.o.Settings.Projects) > 0 }

// Status implements [hosts.Host].
func (c *Client) Status() hosts.Status { return c.o.Links.Status() }

// Probe implements [hosts.Host]: it has the worker started, if there is anything
// for it to do.
func (c *Client) Probe(ctx context.Context) hosts.Status { return c.Status() }

// At implements [hosts.Host].
func (c *Client) At(ctx context.Context) (hosts.Workspace, error) {
	return nil, hosts.Unavailable.New("")
}
