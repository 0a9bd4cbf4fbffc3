package worker

import (
	"context"
	"errors"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/commands"
	"agentrelay/internal/direct/files"
	"agentrelay/internal/fault"
	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/worker/wire"
	"agentrelay/internal/principal"
)

// ListDirectProjects implements [hosts.Workspace].
func (c *Client) ListDirectProjects(ctx context.Context, in direct.ListDirectProjectsIn) (direct.ListDirectProjectsOut, error) {
	if !c.DirectConfigured() {
		return direct.ListDirectProjectsOut{Projects: []direct.ListedProject{}, HostID: c.o.ID}, nil
	}
	return read[direct.ListDirectProjectsOut](ctx, c, "list_direct_projects", principal.Principal{}, in)
}

// ListDirectFiles implements [hosts.Workspace].
func (c *Client) ListDirectFiles(ctx context.Context, in files.ListDirectFilesIn) (files.ListDirectFilesOut, error) {
	return read[files.ListDirectFilesOut](ctx, c, "list_direct_files", principal.Principal{}, in)
}

// SearchDirectFiles implements [hosts.Workspace].
func (c *Client) SearchDirectFiles(ctx context.Context, in files.SearchDirectFilesIn) (files.SearchDirectFilesOut, error) {
	return read[files.SearchDirectFilesOut](ctx, c, "search_direct_files", principal.Principal{}, in)
}

// ReadDirectFile implements [hosts.Workspace].
func (c *Client) ReadDirectFile(ctx context.Context, in files.ReadDirectFileIn) (files.ReadDirectFileOut, error) {
	return read[files.ReadDirectFileOut](ctx, c, "read_direct_file", principal.Principal{}, in)
}

// WriteDirectFile implements [hosts.Workspace].
func (c *Client) WriteDirectFile(ctx context.Context, in files.WriteDirectFileIn) (files.WriteDirectFileOut, error) {
	return change[files.WriteDirectFileOut](ctx, c, "write_direct_file", principal.Principal{}, in)
}

// EditDirectFile implements [hosts.Workspace].
func (c *Client) EditDirectFile(ctx context.Context, in files.EditDirectFileIn) (files.EditDirectFileOut, error) {
	return change[files.EditDirectFileOut](ctx, c, "edit_direct_file", principal.Principal{}, in)
}

// RunDirectCommand implements [hosts.Workspace].
func (c *Client) RunDirectCommand(ctx context.Context, who principal.Principal, in commands.RunDirectCommandIn) (commands.RunDirectCommandOut, error) {
	return change[commands.RunDirectCommandOut](ctx, c, "run_direct_command", who, in)
}

// ReadDirectCommand implements [hosts.Workspace].
func (c *Client) ReadDirectCommand(ctx context.Context, who principal.Principal, in commands.ReadDirectCommandIn) (commands.ReadDirectCommandOut, error) {
	return read[commands.ReadDirectCommandOut](ctx, c, "read_direct_command", who, in)
}

// WriteDirectCommandInput implements [hosts.Workspace].
func (c *Client) WriteDirectCommandInput(ctx context.Context, who principal.Principal, in commands.WriteDirectCommandInputIn) (commands.WriteDirectCommandInputOut, error) {
	return change[commands.WriteDirectCommandInputOut](ctx, c, "write_direct_command_input", who, in)
}

// CancelDirectCommand implements [hosts.Workspace].
func (c *Client) CancelDirectCommand(ctx context.Context, who principal.Principal, in commands.CancelDirectCommandIn) (commands.CancelDirectCommandOut, error) {
	return change[commands.CancelDirectCommandOut](ctx, c, "cancel_direct_command", who, in)
}

func metaOf(who principal.Principal) mcp.Meta {
	return mcp.Meta{wire.OwnerKey: who.Owner, wire.ClientKey: who.ClientID}
}

// read makes a call that changes nothing. It is refused at once when the
// connection is lost or stops answering.
func read[Out any](ctx context.Context, c *Client, name string, who principal.Principal, in any) (out Out, err error) {
	var none Out
	s, err := c.session(ctx)
	if err != nil {
		return none, err
	}
	ctx, cancel := c.reading(ctx)
	defer cancel()
	if err := s.call(ctx, name, metaOf(who), in, &out); err != nil {
		return none, c.lostRead(err)
	}
	return out, nil
}

// reading returns a context that ends with errStalled when the connection stops
// answering.
func (c *Client) reading(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	c.mu.Lock()
	reads := c.reads
	c.mu.Unlock()
	stop := context.AfterFunc(reads, func() { cancel(context.Cause(reads)) })
	return ctx, func() { stop(); cancel(nil) }
}

// lostRead is the refusal for a read whose connection was lost.
func (c *Client) lostRead(err error) error {
	switch {
	case errors.Is(err, errStalled):
		return c.away(c.o.Links.Status()).Because(err)
	case errors.Is(err, errLost):
		return c.broke("").Because(err)
	}
	return err
}

// brokeTimeout is how long the connection's own account of a loss is waited for.
const brokeTimeout = 100 * time.Millisecond

// broke says that the connection was lost during a call, and why.
func (c *Client) broke(consequence string) *fault.Error {
	news := c.listen()
	s := c.o.Links.Status()
	if s.State == hosts.Up { // or doesn't know yet that it isn't
		select {
		case <-news:
			s = c.o.Links.Status()
		case <-time.After(brokeTimeout):
		}
	}
	if s.State == hosts.Up {
		return hosts.Unavailable.Newf("The connection to the worker on %s was lost during the call.%s", c.o.Name, spaced(consequence))
	}
	e := c.away(s)
	e.Message += spaced(consequence)
	return e
}
