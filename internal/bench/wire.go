package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// The protocol revisions that calls are made in: before and after the end of
// sessions.
const (
	legacy = "2025-11-25"
	modern = "2026-07-28"
)

// endpoint is an MCP server to call.
type endpoint struct {
	url     *url.URL
	token   string // of the Authorization header; "" sends none
	session string // of a server that keeps sessions; else ""
	version string // protocol revision
}

// request is one call of a tool, as bytes for the connection.
func (e endpoint) request(tool string, arguments any) []byte {
	params := map[string]any{"name": tool, "arguments": arguments}
	if e.version >= modern {
		params["_meta"] = map[string]any{
			"io.modelcontextprotocol/protocolVersion":    e.version,
			"io.modelcontextprotocol/clientInfo":         map[string]string{"name": "bench", "version": "1"},
			"io.modelcontextprotocol/clientCapabilities": map[string]any{},
		}
	}
	return e.post("tools/call", tool, map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
}

func (e endpoint) post(method, name string, message any) []byte {
	body, err := json.Marshal(message)
	if err != nil {
		panic(err) // made of plain values
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: %d\r\n", e.url.Path, e.url.Host, len(body))
	for _, h := range [][2]string{{"Authorization", e.token}, {"Mcp-Session-Id", e.session}, {"Mcp-Protocol-Version", e.version}} {
		if h[1] != "" {
			fmt.Fprintf(&b, "%s: %s\r\n", h[0], h[1])
		}
	}
	if e.version >= modern {
		fmt.Fprintf(&b, "Mcp-Method: %s\r\nMcp-Name: %s\r\n", method, name)
	}
	b.WriteString("\r\n")
	b.Write(body)
	return b.Bytes()
}

// wire is one kept connection. Requests are written as bytes that were made
// before: what the load costs is taken from the server on the same processors.
type wire struct {
	conn net.Conn
	r    *bufio.Reader
}

func dial(host string) (*wire, error) {
	conn, err := net.Dial("tcp", host)
	if err != nil {
		return nil, err
	}
	return &wire{conn, bufio.NewReader(conn)}, nil
}

// call sends a request and reads the whole answer, which must be a result that
// is no refusal.
func (w *wire) call(request []byte) error {
	_, body, err := w.exchange(request)
	if err != nil {
		return err
	}
	if !bytes.Contains(body, []byte(`"result":`)) || bytes.Contains(body, []byte(`"isError":true`)) {
		return fmt.Errorf("a call failed: %.500s", body)
	}
	return nil
}

func (w *wire) exchange(request []byte) (http.Header, []byte, error) {
	if _, err := w.conn.Write(request); err != nil {
		return nil, nil, err
	}
	res, err := http.ReadResponse(w.r, nil)
	if err != nil {
		return nil, nil, err
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, nil, err
	}
	if res.StatusCode/100 != 2 {
		return nil, nil, fmt.Errorf("the server answered %s: %.500s", res.Status, body)
	}
	return res.Header, body, nil
}

// initialize opens a session, for servers that keep them.
func (e *endpoint) initialize() error {
	w, err := dial(e.url.Host)
	if err != nil {
		return err
	}
	defer w.conn.Close()
	header, _, err := w.exchange(e.post("initialize", "", map[string]any{
		"jsonrpc": "2.0", "id": 1, "method": "initialize",
		"params": map[string]any{"protocolVersion": e.version, "capabilities": map[string]any{}, "clientInfo": map[string]string{"name": "bench", "version": "1"}},
	}))
	if err != nil {
		return fmt.Errorf("opening a session: %w", err)
	}
	e.session = header.Get("Mcp-Session-Id")
	_, _, err = w.exchange(e.post("notifications/initialized", "", map[string]any{"jsonrpc": "2.0", "method": "notifications/initialized"}))
	return err
}

// crowd is connections that are kept over several loads, each of which calls as
// fast as it is answered.
type crowd []*wire

func gather(e endpoint, n int) (crowd, error) {
	c := make(crowd, n)
	for i := range c {
		var err error
		if c[i], err = dial(e.url.Host); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c crowd) close() {
	for _, w := range c {
		w.conn.Close()
	}
}

// load makes calls on every connection until done says that it is over, and
// returns how long each call took and how long all took together.
func (c crowd) load(call func(w *wire, conn int) error, done func(calls int, since time.Duration) bool) (times []time.Duration, all time.Duration, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	var errs []error
	begun := time.Now()
	for i, w := range c {
		wg.Go(func() {
			var mine []time.Duration
			var err error
			for err == nil && !done(len(mine), time.Since(begun)) {
				before := time.Now()
				err = call(w, i)
				mine = append(mine, time.Since(before))
			}
			mu.Lock()
			defer mu.Unlock()
			times, errs = append(times, mine...), append(errs, err)
		})
	}
	wg.Wait()
	return times, time.Since(begun), errors.Join(errs...)
}

// sent makes the call whose request next gives.
func sent(next func(conn int) []byte) func(*wire, int) error {
	return func(w *wire, conn int) error { return w.call(next(conn)) }
}

// during loads for a while and returns calls a second.
func (c crowd) during(d time.Duration, next func(conn int) []byte) (rate float64, times []time.Duration, err error) {
	times, all, err := c.load(sent(next), func(_ int, since time.Duration) bool { return since >= d })
	return float64(len(times)) / all.Seconds(), times, err
}

// calls makes n calls on each connection.
func (c crowd) calls(n int, next func(conn int) []byte) ([]time.Duration, error) {
	times, _, err := c.load(sent(next), func(calls int, _ time.Duration) bool { return calls >= n })
	return times, err
}

// always makes the same request.
func always(request []byte) func(int) []byte { return func(int) []byte { return request } }

// withVersion is the same server in another protocol revision.
func (e endpoint) withVersion(version string) endpoint {
	e.version = version
	return e
}

func parseEndpoint(address string) (endpoint, error) {
	u, err := url.Parse(strings.TrimSpace(address))
	return endpoint{url: u, version: legacy}, err
}
