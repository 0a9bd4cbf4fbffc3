package plugins

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrelay/internal/devices/wire"
)

// asServer makes the test binary be an MCP server on stdio.
const asServer = "AGENT_RELAY_TEST_AS_MCP_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(asServer) != "" {
		if err := testServer().Run(context.Background(), &mcp.StdioTransport{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// testServer has tools with names that need mapping, and one that ends the process.
func testServer() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	type in struct {
		Text string `json:"text"`
	}
	for _, name := range []string{"Echo_It", "echo.it", "a_tool_with_a_name_that_is_far_too_long_1", "a_tool_with_a_name_that_is_far_too_long_2"} {
		mcp.AddTool(s, &mcp.Tool{Name: name, Description: "Says it again as " + name + "."}, func(_ context.Context, _ *mcp.CallToolRequest, i in) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: name + ": " + i.Text}}}, nil, nil
		})
	}
	mcp.AddTool(s, &mcp.Tool{Name: "fail", Description: "Fails."}, func(context.Context, *mcp.CallToolRequest, in) (*mcp.CallToolResult, any, error) {
		return nil, nil, fmt.Errorf("it failed")
	})
	mcp.AddTool(s, &mcp.Tool{Name: "die", Description: "Ends the server."}, func(context.Context, *mcp.CallToolRequest, in) (*mcp.CallToolResult, any, error) {
		os.Exit(3)
		return nil, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "hang", Description: "Answers too late."}, func(ctx context.Context, _ *mcp.CallToolRequest, _ in) (*mcp.CallToolResult, any, error) {
		select { // over HTTP the server isn't always told that nobody waits
		case <-ctx.Done():
		case <-time.After(2 * time.Second):
		}
		return nil, nil, errors.New("given up")
	})
	return s
}

// root is a plugin root with its own state.
type root struct {
	Root
	t testing.TB
}

func newRoot(t testing.TB) root {
	t.Helper()
	dir := t.TempDir()
	r := root{Root{Dir: filepath.Join(dir, "plugins"), Spill: filepath.Join(dir, "state", "spill"), State: filepath.Join(dir, "state"),
		Cwd: filepath.Join(dir, "work"), Device: "laptop", Getenv: os.Getenv}, t}
	for _, d := range []string{r.Dir, r.State, r.Cwd} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// write puts a file below the plugin root.
func (r root) write(path, text string, mode os.FileMode) {
	r.t.Helper()
	path = filepath.Join(r.Dir, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		r.t.Fatal(err)
	}
}

// script makes a plugin whose program is a shell script.
func (r root) script(name, body string) {
	r.t.Helper()
	r.write(name+"/manifest.json", fmt.Sprintf(`{"name":%q,"description":"A test.","entry":"main.sh","interpreter":"sh"}`, name), 0o644)
	r.write(name+"/main.sh", body, 0o644)
}

func (r root) scan() *Set {
	r.t.Helper()
	s := r.Scan(context.Background())
	r.t.Cleanup(s.Close)
	return s
}

// call calls a tool as a device does.
func (r root) call(s *Set, tool, args string, timeout time.Duration) Result {
	r.t.Helper()
	return r.callIn(context.Background(), s, tool, args, timeout, nil)
}

func (r root) callIn(ctx context.Context, s *Set, tool, args string, timeout time.Duration, jail *string) Result {
	r.t.Helper()
	t := s.Find(tool)
	if t == nil {
		r.t.Fatalf("there is no tool %s; problems: %v", tool, s.Problems)
	}
	canonical, err := wire.Canonical(json.RawMessage(args))
	if err != nil {
		r.t.Fatal(err)
	}
	if err := t.Check(canonical); err != nil {
		r.t.Fatalf("%s: %v", args, err)
	}
	return r.Bound(tool, s.Run(ctx, t, Call{Ref: "ref-1", Args: canonical, Timeout: timeout, Jail: jail}))
}

func (s *Set) names() string {
	var out []string
	for _, t := range s.Tools {
		out = append(out, t.Name)
	}
	return strings.Join(out, " ")
}
