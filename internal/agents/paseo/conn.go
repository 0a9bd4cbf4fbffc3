package paseo

import (
	"context"
	"encoding/json"
)

// trouble is why a connection was not made, or ended.
type trouble struct {
	code   Code
	reason string
	cause  error
}

type conn struct{ info ServerInfo }

func (cn *conn) end(*trouble) {}

func (cn *conn) call(context.Context, string, fields) (json.RawMessage, error) {
	return nil, refuse("There is no connection.")
}

func (cn *conn) respond(context.Context, PermissionAnswer, string) error {
	return refuse("There is no connection.")
}

type mcpEndpoint struct{}

func (*mcpEndpoint) configure(Options) {}

func (c *Client) callMCP(ctx context.Context, tool string, arguments fields) (json.RawMessage, error) {
	return nil, refuse("There is no connection.")
}

func (c *Client) listProviders(ctx context.Context, cwd string) ([]Provider, error) {
	return nil, refuse("There is no connection.")
}
