package peeragent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrelay/internal/directtools"
)

// built is peer-agent.
func built(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "peer-agent")
	if out, err := exec.Command("go", "build", "-o", path, "agentrelay/cmd/peer-agent").CombinedOutput(); err != nil {
		t.Fatal(string(out))
	}
	return path
}

// alone is a worker that runs without a gateway.
func alone(t *testing.T, program, policy, state string) (*mcp.ClientSession, error) {
	t.Helper()
	cmd := exec.Command(program, "worker", "--policy", policy, "--state-dir", state)
	s, err := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err == nil {
		t.Cleanup(func() { _ = s.Close() })
	}
	return s, err
}

func call(t *testing.T, s *mcp.ClientSession, name string, arguments map[string]any) map[string]any {
	t.Helper()
	r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: arguments})
	if err != nil {
		t.Fatal(err)
	}
	out, ok := r.StructuredContent.(map[string]any)
	if !ok || r.IsError != (out["error"] != nil && out["state"] == nil) {
		t.Fatalf("%+v", r)
	}
	return out
}

func TestWorkerAlone(t *testing.T) {
	program, dir := built(t), t.TempDir()
	project, state, policy := filepath.Join(dir, "project"), filepath.Join(dir, "state"), filepath.Join(dir, "policy.json")
	if err := os.Mkdir(project, 0o755); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(map[string]any{
		"allowedRoots": []string{dir},
		"projects":     []any{map[string]any{"id": "p", "path": project, "read": true, "write": true, "commandMode": "full"}, map[string]any{"id": "all", "path": dir, "read": true}},
		"commands":     map[string]any{"path": os.Getenv("PATH")},
	})
	if err == nil {
		err = os.WriteFile(policy, raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	s, err := alone(t, program, policy, state)
	if err != nil {
		t.Fatal(err)
	}
	listed, err := s.ListTools(t.Context(), nil)
	if err != nil || len(listed.Tools) != len(directtools.All()) {
		t.Fatalf("%d tools, %v", len(listed.Tools), err)
	}
	if out := call(t, s, "write_direct_file", map[string]any{"projectId": "p", "path": "a", "content": "x", "expectedSha256": nil}); out["created"] != true || out["hostId"] != "local" {
		t.Error(out)
	}
	out := call(t, s, "run_direct_command", map[string]any{"projectId": "p", "requestId": "r", "argv": []string{"sleep", "60"}})
	if out["state"] != "running" {
		t.Error(out)
	}
	for _, tool := range []string{"export_direct_file", "import_direct_file", "get_direct_transfer"} {
		arguments := map[string]any{"requestId": "r"}
		if tool != "get_direct_transfer" {
			arguments["projectId"], arguments["path"] = "p", "a"
		}
		if tool == "import_direct_file" {
			arguments["expectedSha256"], arguments["file"] = nil, map[string]any{"download_url": "https://example.com/", "file_id": "f"}
		}
		if e, ok := call(t, s, tool, arguments)["error"].(map[string]any); !ok || e["code"] != "needs_gateway" || e["hint"] == "" {
			t.Errorf("%s: %v", tool, e)
		}
	}
	for _, path := range []string{"policy.json", "state/worker/lock"} {
		if e, ok := call(t, s, "read_direct_file", map[string]any{"projectId": "all", "path": path})["error"].(map[string]any); !ok || e["code"] != "protected_path" {
			t.Errorf("%s: %v", path, e)
		}
	}
	// Another one does not take its place.
	var stderr bytes.Buffer
	second := exec.Command(program, "worker", "--policy", policy, "--state-dir", state)
	second.Stderr = &stderr
	if err := second.Run(); err == nil || !strings.Contains(stderr.String(), "uses this state directory") || !strings.Contains(stderr.String(), "--state-dir") {
		t.Errorf("%v: %s", err, &stderr)
	}
	// The next one knows what this one ran.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = alone(t, program, policy, state); err != nil {
		t.Fatal(err)
	}
	if out := call(t, s, "cancel_direct_command", map[string]any{"commandId": out["commandId"]}); out["cancelRequested"] != true {
		t.Error(out)
	}
}

func TestBadPolicy(t *testing.T) {
	program := built(t)
	for content, want := range map[string]string{
		`{"projcts": []}`: `unknown field "projcts"`,
		`{} {}`:           "something follows",
		`[]`:              "can't be used",
		`{"projects": [{"id": "p", "path": "relative"}]}`: "projects[0].path must be absolute",
	} {
		path := filepath.Join(t.TempDir(), "policy.json")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(program, "worker", "--policy", path, "--state-dir", t.TempDir()).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) || !strings.Contains(string(out), "docs/worker.md") {
			t.Errorf("%s: %v %s", content, err, out)
		}
	}
}

func TestUsage(t *testing.T) {
	program := built(t)
	for _, args := range [][]string{{}, {"no-such-command"}, {"worker", "--state-dir", "/x"}, {"worker", "extra"}, {"worker", "--nonsense"}, {"bulk"}, {"version", "x"}} {
		err := exec.Command(program, args...).Run()
		exit, ok := err.(*exec.ExitError)
		if !ok || exit.ExitCode() != 2 {
			t.Errorf("%v: %v", args, err)
		}
	}
	typed := exec.Command(program, "worker")
	typed.Stdin = strings.NewReader("help\n")
	if out, err := typed.CombinedOutput(); err == nil || !strings.Contains(string(out), "--policy") {
		t.Errorf("%s, %v", out, err)
	}
	out, err := exec.Command(program, "version").Output()
	if err != nil || !strings.HasSuffix(string(out), ", protocol 1, "+runtime.GOOS+"/"+runtime.GOARCH+"\n") {
		t.Errorf("%s, %v", out, err)
	}
}

// It stays small on the machines where it runs.
func TestLinksNeitherStoreNorAuthorization(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "agentrelay/cmd/peer-agent").Output()
	if err != nil {
		t.Fatal(err)
	}
	links := strings.Fields(string(out))
	for _, p := range []string{"agentrelay/internal/oauth", "agentrelay/internal/store", "agentrelay/internal/gateway", "modernc.org/sqlite", "github.com/ory/fosite"} {
		if slices.ContainsFunc(links, func(l string) bool { return l == p || strings.HasPrefix(l, p+"/") }) {
			t.Errorf("peer-agent links %s", p)
		}
	}
}

// A supervisor is started for each command. The target is 15 ms; the bound
// allows for a machine that is busy.
func TestSupervisorStartsFast(t *testing.T) {
	program := built(t)
	best := time.Hour
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		began := time.Now()
		_ = exec.CommandContext(ctx, program, "supervise", "/nonexistent").Run()
		best = min(best, time.Since(began))
		cancel()
	}
	t.Logf("the fastest start took %v", best)
	if best > 100*time.Millisecond {
		t.Errorf("the fastest start took %v", best)
	}
}

// Calls that are piped in are answered, though the input ends behind them.
func TestWorkerAnswersWhatWasPipedIn(t *testing.T) {
	program, dir := built(t), t.TempDir()
	policy := filepath.Join(dir, "policy.json")
	if err := os.WriteFile(policy, []byte(`{}`), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "worker", "--policy", policy, "--state-dir", filepath.Join(dir, "state"))
	cmd.Stdin = strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"list_direct_projects","arguments":{}}}
`)
	out, err := cmd.Output()
	if err != nil || strings.Count(string(out), "\n") != 2 || !strings.Contains(string(out), `"structuredContent":{"projects":[],"hostId":"local"}`) {
		t.Errorf("%s, %v", out, err)
	}
}
