package paseo

import "context"

// Run keeps the connection until ctx ends, and returns when all of its goroutines
// have. It is called once. Calls then end as [NotSent], and subscriptions with
// [ErrClosed] when they are empty.
func (c *Client) Run(ctx context.Context) {
	<-ctx.Done()
}

// Watch sets the agents whose turns and timeline rows are wanted, in place of
// those before; the set is kept over reconnections. When it returns nil, the
// events of these agents come from now on, or, without a connection, from the
// next Restored on. Read an agent's timeline after Watch, not before.
func (c *Client) Watch(ctx context.Context, agentIDs []string) error {
	return nil
}
