package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrelay/internal/gateway"
	"agentrelay/internal/mailbox"
)

// plainServer is an MCP server with one tool that answers what list_peers
// answers for five peers, and reads nothing to know it.
func plainServer() *mcp.Server {
	now := mailbox.Time{Time: time.Now()}
	var out mailbox.ListPeersOut
	for i := range peers {
		out.Peers = append(out.Peers, mailbox.Peer{
			PeerID: peerID(i), Kind: mailbox.Chat, DisplayName: fmt.Sprintf("Peer %d", i), Generation: 1, State: mailbox.Active,
			CreatedAt: now, LastSeenAt: now,
			Notification: mailbox.Notification{Path: mailbox.None, Reason: "No wake-up is set up for this peer; it reads its mail when it checks."},
		})
	}
	answer, err := json.Marshal(out)
	if err != nil {
		panic(err) // made of plain values
	}
	s := mcp.NewServer(&mcp.Implementation{Name: "plain", Version: "1"}, nil)
	s.AddTool(&mcp.Tool{Name: "list_peers", Description: "List five peers.", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(answer)}}, StructuredContent: json.RawMessage(answer)}, nil
		})
	return s
}

// serveBare is the plain server over HTTP with nothing in front of it: no
// guards, no bearer check, no store, no log. It uses memory as the gateway does.
func serveBare() error {
	gateway.TuneMemory(os.Getenv)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := plainServer()
	fmt.Printf("http://%s/mcp\n", l.Addr())
	return http.Serve(l, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: true}))
}

// serveStdio is the plain server on standard input and output, for mcp-proxy.
func serveStdio(ctx context.Context) error {
	return plainServer().Run(ctx, &mcp.StdioTransport{})
}

// startBare starts this program again as the bare server.
func startBare() (*program, endpoint, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, endpoint{}, err
	}
	p, err := start(exec.Command(self, "bare"))
	if err != nil {
		return nil, endpoint{}, err
	}
	e, err := parseEndpoint(p.line)
	return p, e, err
}

// startProxy starts mcp-proxy, from the packages in modules, in front of the
// plain server on standard input and output.
func startProxy(modules string) (*program, endpoint, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, endpoint{}, err
	}
	port, err := freePort()
	if err != nil {
		return nil, endpoint{}, err
	}
	cmd := exec.Command(node(modules), filepath.Join(modules, "mcp-proxy", "dist", "bin", "mcp-proxy.mjs"),
		"--host", "127.0.0.1", "--port", strconv.Itoa(port), "--server", "stream", "--", self, "stdio")
	if err := cmd.Start(); err != nil {
		return nil, endpoint{}, err
	}
	p := &program{cmd: cmd}
	e, err := parseEndpoint(fmt.Sprintf("http://127.0.0.1:%d/mcp", port))
	if err == nil {
		err = waitFor(e.url.Host)
	}
	if err == nil {
		err = e.initialize()
	}
	if err != nil {
		p.stop()
		return nil, endpoint{}, fmt.Errorf("starting mcp-proxy: %w", err)
	}
	return p, e, nil
}

// node is the Node that scripts/test installs in modules, else the system's.
func node(modules string) string {
	path := filepath.Join(modules, ".bin", "node")
	if _, err := os.Stat(path); err != nil {
		return "node"
	}
	return path
}

// waitFor returns when somebody listens at an address.
func waitFor(address string) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}
