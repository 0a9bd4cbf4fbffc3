package plugins

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrelay/internal/devices/wire"
)

// server is a plugin of type mcp: an MCP server whose tools are offered as ours.
type server struct {
	manifest Manifest
	cwd      string
	env      []string
	path     string
	log      *slog.Logger

	mu      sync.Mutex
	session *mcp.ClientSession // nil when it has to be started
	stop    func()             // what is left of it after the session was closed
	closed  bool
}

// maxTools bounds what is taken of one server's list.
const maxTools = wire.MaxTools

// errServerClosed says that the plugins were loaded anew meanwhile.
var errServerClosed = errors.New("the plugin was unloaded")

func (r Root) loadServer(ctx context.Context, m Manifest, id string, s *server) loaded {
	ctx, cancel := context.WithTimeout(ctx, serverTime)
	defer cancel()
	session, err := s.connected(ctx)
	if err != nil {
		s.close()
		return loaded{problems: []Problem{{m.Name, err.Error()}}}
	}
	out := loaded{server: s}
	seen := map[string]bool{}
	for tool, err := range session.Tools(ctx, nil) {
		if err != nil {
			out.problems = append(out.problems, Problem{m.Name, "the server did not list its tools: " + oneLine(err.Error())})
			break
		}
		if len(seen) == maxTools {
			out.problems = append(out.problems, Problem{m.Name, fmt.Sprintf("only the first %d tools of the server are offered", maxTools)})
			break
		}
		if seen[tool.Name] {
			continue
		}
		seen[tool.Name] = true
		t, err := s.tool(m, id, tool)
		if err != nil {
			out.problems = append(out.problems, Problem{m.Name, fmt.Sprintf("the tool %q of the server was left out: %v", oneLine(tool.Name), err)})
			continue
		}
		out.tools = append(out.tools, t)
	}
	return out
}

func (s *server) tool(m Manifest, id string, from *mcp.Tool) (*Tool, error) {
	raw, err := json.Marshal(from.InputSchema)
	if err != nil {
		return nil, errors.New("its schema is not JSON")
	}
	schema, err := wire.Compile(raw)
	if err != nil {
		return nil, err
	}
	desc := strings.ToValidUTF8(from.Description, "")
	if desc == "" {
		desc = oneLine(from.Title)
	}
	if len(desc) > wire.MaxDesc {
		desc = strings.ToValidUTF8(desc[:wire.MaxDesc-3], "") + "..."
	}
	sum := sha256.Sum256(append([]byte(id+"\x00"+from.Name+"\x00"+from.Description+"\x00"), raw...))
	return &Tool{
		ToolInfo: wire.ToolInfo{Name: exportedName(m.Name, from.Name), Desc: desc, Schema: raw, Requires: m.Requires},
		Plugin:   m.Name, Hint: m.SummaryHint, Timeout: m.timeout(), Digest: hex.EncodeToString(sum[:]), Remote: from.Name, schema: schema,
		run: func(ctx context.Context, c Call) Result { return s.call(ctx, from.Name, c) },
	}, nil
}

// longestName is the length that [wire.NameForm] allows.
const longestName = 32

// exportedName is <plugin>-<tool> in the form that names have: lower case, other
// characters become hyphens. A name that is too long is cut and told apart by a hash.
func exportedName(plugin, tool string) string {
	var b strings.Builder
	b.WriteString(plugin + "-")
	for _, r := range strings.ToLower(tool) {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			b.WriteRune(r)
		case !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	name := b.String()
	if trimmed := strings.TrimRight(name, "-"); len(trimmed) > len(plugin) {
		name = trimmed
	}
	if len(name) > longestName {
		return marked(name, plugin, tool)
	}
	return name
}

// marked ends a name in a hash of where it comes from.
func marked(name, plugin, tool string) string {
	sum := sha256.Sum256([]byte(plugin + "\x00" + tool))
	mark := "-" + hex.EncodeToString(sum[:3])
	return strings.TrimRight(name[:min(len(name), longestName-len(mark))], "-") + mark
}

// rename tells tools apart whose names came out equal. Which get a hash does not
// depend on their order: all that come from servers.
func rename(tools []*Tool) {
	count := map[string]int{}
	for _, t := range tools {
		count[t.Name]++
	}
	for _, t := range tools {
		if count[t.Name] > 1 && t.Remote != "" {
			t.Name = marked(t.Name, t.Plugin, t.Remote)
		}
	}
}

// connected is the session, started if there is none.
func (s *server) connected(ctx context.Context) (*mcp.ClientSession, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errServerClosed
	}
	if s.session != nil {
		return s.session, nil
	}
	transport, stop, err := s.transport()
	if err != nil {
		return nil, err
	}
	// No roots: the server is told nothing of the user's directories.
	client := mcp.NewClient(&mcp.Implementation{Name: "agent-relay-device", Version: "1"}, &mcp.ClientOptions{Capabilities: &mcp.ClientCapabilities{}})
	session, err := client.Connect(ctx, transport, nil)
	if err != nil {
		stop()
		return nil, fmt.Errorf("the MCP server does not answer: %s", oneLine(err.Error()))
	}
	s.session, s.stop = session, stop
	return session, nil
}

func (s *server) transport() (mcp.Transport, func(), error) {
	m := s.manifest
	if m.URL != "" {
		base := http.DefaultTransport.(*http.Transport).Clone()
		client := &http.Client{Transport: withHeaders{base, m.Headers}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		return &mcp.StreamableClientTransport{Endpoint: m.URL, HTTPClient: client, DisableStandaloneSSE: true}, base.CloseIdleConnections, nil
	}
	program, found := lookUp(m.Command[0], s.path)
	if !found {
		return nil, nil, fmt.Errorf("the program %s is not in PATH", clip(m.Command[0], 80))
	}
	cmd := exec.Command(program, m.Command[1:]...)
	cmd.Dir, cmd.Env = s.cwd, s.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = drainGrace
	cmd.Stderr = &tail{} // kept apart from our own; servers log there
	return start(cmd)
}

// start starts a server's program, with a connection to it and what ends it: it may
// end by itself once its input is closed, and is killed with its group if it does
// not. The library's own transport waits for a program in a way that nobody else can
// wait for it, and leaves the group.
func start(cmd *exec.Cmd) (mcp.Transport, func(), error) {
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	stdout, theirs, err := os.Pipe()
	if err != nil {
		return nil, nil, errors.Join(err, stdin.Close())
	}
	cmd.Stdout = theirs
	err = cmd.Start()
	_ = theirs.Close()
	if err != nil {
		_ = stdin.Close()
		_ = stdout.Close()
		return nil, nil, fmt.Errorf("the MCP server could not be started: %s", oneLine(err.Error()))
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // how it ended is nobody's concern
	}()
	stop := func() {
		_ = stdin.Close()
		select {
		case <-done:
		case <-time.After(killGrace):
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-done
		_ = stdout.Close()
	}
	return &mcp.IOTransport{Reader: stdout, Writer: stdin}, stop, nil
}

// withHeaders adds a manifest's headers to requests.
type withHeaders struct {
	base    http.RoundTripper
	headers map[string]string
}

func (w withHeaders) RoundTrip(r *http.Request) (*http.Response, error) {
	if len(w.headers) > 0 {
		r = r.Clone(r.Context())
		for name, value := range w.headers {
			r.Header.Set(name, value)
		}
	}
	return w.base.RoundTrip(r)
}

// call calls a tool of the server.
func (s *server) call(ctx context.Context, tool string, c Call) Result {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	session, err := s.connected(ctx)
	if err != nil {
		return failure("%v", err)
	}
	res, err := session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: c.Args})
	switch {
	case err == nil:
		return Result{OK: !res.IsError, Output: text(res)}
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return failure("the MCP server did not answer within %s", inSeconds(c.Timeout))
	case ctx.Err() != nil:
		return failure("the call of the MCP server was given up: %v", context.Cause(ctx))
	}
	if answered(err) {
		return failure("the MCP server refused: %s", oneLine(err.Error()))
	}
	s.drop(session)
	return failure("the MCP server was lost during the call, which may have had an effect: %s", oneLine(err.Error()))
}

// answered reports whether an error is the server's answer. The codes are those of
// the library for a connection that closes.
func answered(err error) bool {
	var rpc *jsonrpc.Error
	return !errors.Is(err, mcp.ErrConnectionClosed) && errors.As(err, &rpc) && rpc.Code != -32003 && rpc.Code != -32004
}

// drop forgets a session that is lost; the next call starts the server again.
func (s *server) drop(session *mcp.ClientSession) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == session {
		s.end()
	}
}

// end closes the session. The caller holds the lock.
func (s *server) end() {
	if s.session == nil {
		return
	}
	if err := s.session.Close(); err != nil && s.log != nil {
		s.log.Debug("an MCP server did not end by itself", "plugin", s.manifest.Name, "error", err)
	}
	s.stop()
	s.session = nil
}

func (s *server) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.end()
}

// text is what a result says in words.
func text(res *mcp.CallToolResult) string {
	var parts []string
	for _, c := range res.Content {
		switch c := c.(type) {
		case *mcp.TextContent:
			parts = append(parts, c.Text)
		case *mcp.ImageContent:
			parts = append(parts, fmt.Sprintf("[image, %s, %d bytes]", oneLine(c.MIMEType), len(c.Data)))
		case *mcp.AudioContent:
			parts = append(parts, fmt.Sprintf("[audio, %s, %d bytes]", oneLine(c.MIMEType), len(c.Data)))
		case *mcp.ResourceLink:
			parts = append(parts, "[resource "+oneLine(c.URI)+"]")
		case *mcp.EmbeddedResource:
			if c.Resource != nil && c.Resource.Text != "" {
				parts = append(parts, c.Resource.Text)
			} else if c.Resource != nil {
				parts = append(parts, fmt.Sprintf("[resource %s, %d bytes]", oneLine(c.Resource.URI), len(c.Resource.Blob)))
			}
		}
	}
	if len(parts) == 0 && res.StructuredContent != nil {
		if raw, err := json.Marshal(res.StructuredContent); err == nil {
			return string(raw)
		}
	}
	return strings.Join(parts, "\n")
}
