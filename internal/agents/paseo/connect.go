package paseo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/coder/websocket"

	"agentrelay/internal/fault"
)

// subprotocol is how a password travels: browsers can't set headers, and the
// daemon takes no other way.
const subprotocol = "paseo.bearer."

// connect makes one connection and reads who answers. What it returns has passed
// the pin.
func (c *Client) connect(ctx context.Context) (*conn, *trouble) {
	ctx, cancel := context.WithTimeout(ctx, c.o.ConnectTimeout)
	defer cancel()
	var protocols []string
	if c.o.Password != nil {
		password, err := c.o.Password()
		if err != nil {
			return nil, &trouble{PasswordUnusable, "The daemon's password can't be read from where the config says it is.", err}
		}
		if !isToken(password) {
			return nil, &trouble{PasswordUnusable, "The daemon's password has characters that can't be sent in a websocket handshake. Set a password of letters, digits and !#$%&'*+-.^_`|~ for the daemon.", nil}
		}
		if password != "" {
			protocols = []string{subprotocol + password}
		}
	}
	ws, t := c.dial(ctx, protocols)
	if t != nil {
		return nil, t
	}
	info, t := c.greet(ctx, ws, len(protocols) > 0)
	if t != nil {
		_ = ws.CloseNow()
		return nil, t
	}
	c.mu.Lock()
	pinned := c.pinned
	c.mu.Unlock()
	if pinned != "" && pinned != info.ServerID {
		_ = ws.CloseNow()
		c.note(func(s *Status) { s.Found = &info })
		return nil, &trouble{IdentityDiffers, "Another daemon answers than the one that was pinned. The owner can accept it.", nil}
	}
	if c.o.OnIdentity != nil {
		if err := c.o.OnIdentity(info); err != nil {
			_ = ws.CloseNow()
			return nil, &trouble{IdentityNotKept, "The daemon's identity could not be recorded.", err}
		}
	}
	return newConn(c, ws, info), nil
}

// dial makes the websocket. The host name is one that every daemon accepts, over
// TCP, a socket or a tunnel; no Origin is sent, for that would be checked.
func (c *Client) dial(ctx context.Context, protocols []string) (*websocket.Conn, *trouble) {
	var reached atomic.Bool
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := dialThrough(ctx, c.o.Dial)
			reached.Store(err == nil)
			return conn, err
		},
	}
	ws, resp, err := websocket.Dial(ctx, "ws://localhost:6767/ws", &websocket.DialOptions{
		HTTPClient:   &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		Subprotocols: protocols,
	})
	switch {
	case err == nil:
		ws.SetReadLimit(c.o.MaxFrame)
		return ws, nil
	case errors.Is(err, errDial), !reached.Load(): // the latter if dialling goes on beyond its time
		return nil, &trouble{Unreachable, unreachable(err), err}
	case ctx.Err() != nil:
		return nil, &trouble{NoAnswer, "The daemon's address takes connections, but nothing answers there.", err}
	case resp == nil:
		return nil, &trouble{NoAnswer, "What listens at the daemon's address is no Paseo daemon, or it stopped during the handshake.", err}
	case resp.StatusCode == http.StatusUnauthorized:
		return nil, passwordTrouble(len(protocols) > 0, err)
	}
	return nil, &trouble{HelloRefused, "What listens at the daemon's address refused a websocket with HTTP " + resp.Status + ".", err}
}

// errDial marks a request whose connection was never made.
var errDial = errors.New("dialling")

func dialThrough(ctx context.Context, dial func(context.Context) (net.Conn, error)) (net.Conn, error) {
	conn, err := dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDial, err)
	}
	return conn, nil
}

// unreachable is the public reason for a failed dial: a fault's own words, else a
// sentence without addresses and paths.
func unreachable(err error) string {
	var f *fault.Error
	switch {
	case errors.As(err, &f):
		return f.Message
	case errors.Is(err, syscall.ECONNREFUSED):
		return "Nothing listens at the daemon's address: is the daemon running?"
	case errors.Is(err, fs.ErrNotExist):
		return "The daemon's socket does not exist: is the daemon running?"
	case errors.Is(err, fs.ErrPermission):
		return "The daemon's socket may not be opened by this user."
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "The daemon could not be reached in time."
	}
	return "The daemon could not be reached."
}

// greet sends hello and waits for server_info.
func (c *Client) greet(ctx context.Context, ws *websocket.Conn, withPassword bool) (ServerInfo, *trouble) {
	hello, err := json.Marshal(map[string]any{
		"type": "hello", "clientId": c.o.ClientID, "clientType": "mcp", "protocolVersion": 1, "appVersion": c.o.AppVersion,
		// The first two change what is pushed and are used where the daemon offers
		// them; the third lets old daemons send item merges unabridged, and with the
		// last newer ones need no version to show custom providers.
		"capabilities": map[string]bool{
			"selective_agent_timeline": true, "timeline_replacement_invalidation": true, "reasoning_merge_enum": true, "all_providers": true,
		},
	})
	if err != nil {
		return ServerInfo{}, &trouble{HelloRefused, "The greeting can't be written.", err}
	}
	// A daemon that refuses the password may close before it reads, so what counts
	// is what reading says.
	writeErr := ws.Write(ctx, websocket.MessageText, hello)
	for {
		_, data, err := ws.Read(ctx)
		if err != nil {
			if websocket.CloseStatus(err) != -1 {
				return ServerInfo{}, refusal(err, withPassword)
			}
			return ServerInfo{}, &trouble{NoAnswer, "The daemon did not answer the greeting.", errors.Join(err, writeErr)}
		}
		m, session := decodeFrame(data)
		if m.kind == "hello.rejected" {
			return ServerInfo{}, helloRejected(data, withPassword)
		}
		var status struct {
			Status text `json:"status"`
		}
		if !session || m.kind != "status" || json.Unmarshal(m.payload, &status) != nil || status.Status != "server_info" {
			continue
		}
		info, ok := decodeInfo(m.payload)
		if !ok {
			return ServerInfo{}, &trouble{HelloRefused, "The daemon did not say who it is.", nil}
		}
		return info, nil
	}
}

// refusal reads the close code of a daemon that refused the greeting.
func refusal(err error, withPassword bool) *trouble {
	switch websocket.CloseStatus(err) {
	case 4401:
		return passwordTrouble(withPassword, err)
	case 4001:
		return &trouble{NoAnswer, "The daemon did not get the greeting in time.", err}
	case 4003:
		return &trouble{HelloRefused, "The daemon speaks another protocol version.", err}
	case 4002:
		return &trouble{HelloRefused, "The daemon does not understand the greeting; it may be too old or too new.", err}
	}
	return &trouble{HelloRefused, "The daemon closed the connection during the greeting.", err}
}

func passwordTrouble(withPassword bool, cause error) *trouble {
	if withPassword {
		return &trouble{PasswordWrong, "The daemon refused the configured password.", cause}
	}
	return &trouble{PasswordNeeded, "The daemon wants a password and none is configured.", cause}
}

// helloRejected reads the refusal that newer daemons send as a message.
func helloRejected(data []byte, withPassword bool) *trouble {
	var w struct {
		Reason text `json:"reason"`
	}
	_ = json.Unmarshal(data, &w)
	if strings.Contains(string(w.Reason), "password") {
		return passwordTrouble(withPassword, nil)
	}
	return &trouble{HelloRefused, "The daemon speaks another protocol version.", nil}
}

// isToken reports whether s can stand in a subprotocol (RFC 9110 token).
func isToken(s string) bool {
	for _, r := range s {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", r) {
			return false
		}
	}
	return true
}
