package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentrelay/internal/admin"
	"agentrelay/internal/store"
)

// running is a gateway that Run serves, as the command does.
type running struct {
	*harness
	stopIt context.CancelFunc
	ended  chan error
}

func run(t *testing.T, g *Gateway, log *logBuffer) *running {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ready, ended := make(chan string, 1), make(chan error, 1)
	go func() { ended <- g.Run(ctx, func(url string) { ready <- url }) }()
	t.Cleanup(stop)
	select {
	case url := <-ready:
		return &running{&harness{g, strings.TrimSuffix(url, "/mcp"), log}, stop, ended}
	case err := <-ended:
		t.Fatal(err)
		panic("unreachable")
	}
}

func TestRunServesUntilItIsStopped(t *testing.T) {
	c, log := testConfig(t), &logBuffer{}
	r := run(t, open(t, c, log), log)
	if !strings.HasPrefix(r.url, "http://127.0.0.1:") || strings.HasSuffix(r.url, ":0") {
		t.Fatalf("the address is %s", r.url)
	}
	if resp, body := r.do(t, request{method: "GET", path: "/.well-known/oauth-protected-resource"}); resp.StatusCode != 200 || !strings.Contains(body, `"`+r.url+`/mcp"`) {
		t.Errorf("the metadata has another port: %s", body)
	}
	r.call(t, goodToken, "register_peer", map[string]any{"peerId": "a", "kind": "chat"})

	conn, err := admin.DialRunning(t.Context(), c.StateDir)
	if err != nil || conn == nil {
		t.Fatal("the owner's socket does not answer", err)
	}
	raw, err := admin.Status.Call(t.Context(), conn, admin.None{})
	conn.Close()
	var s Status
	if err != nil || json.Unmarshal(raw, &s) != nil {
		t.Fatalf("%s, %v", raw, err)
	}
	if s.MCPURL != r.url+"/mcp" || s.Version != "test" || s.Peers.Active != 1 || s.Schema == 0 || s.Tools != 47 || !s.Ready || len(s.Warnings) != 1 || s.Warnings[0].Name != "loopback_only" {
		t.Errorf("%s", raw)
	}
	info, err := os.Stat(filepath.Join(c.StateDir, "admin.sock"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the owner's socket: %v, %v", info, err)
	}

	// A second gateway touches nothing and says who is there.
	_, err = New(t.Context(), Options{Config: c})
	var locked *store.LockedError
	if !errors.As(err, &locked) || locked.PID != os.Getpid() {
		t.Errorf("a second gateway: %v", err)
	}

	// A call that waits is answered with what there is, not cut off.
	resp := r.open(t, t.Context(), request{path: "/mcp", header: legacy(), body: rpc(false, "tools/call", callParams("list_peer_messages", map[string]any{"peerId": "a", "waitMs": 20000}))})
	defer resp.Body.Close()
	stream := bufio.NewReader(resp.Body)
	readUntil(t, stream, ": ok", 1)
	r.stopIt()
	rest, err := io.ReadAll(stream)
	if err != nil || !strings.Contains(string(rest), `"messages":[]`) {
		t.Errorf("the waiting call got %q, %v", rest, err)
	}
	if err := within(t, "the stop", r.ended); err != nil {
		t.Error(err)
	}
	http.DefaultClient.CloseIdleConnections()
	if _, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://")); err == nil {
		t.Error("the port is still open")
	}
	if _, err := os.Stat(filepath.Join(c.StateDir, "admin.sock")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the owner's socket is still there")
	}
	again, err := New(t.Context(), Options{Config: c})
	if err != nil {
		t.Fatalf("the lock is still held: %v", err)
	}
	if err := errors.Join(again.Close(), again.Close()); err != nil {
		t.Error(err)
	}
}

func TestStopCutsOffWhatDoesNotEnd(t *testing.T) {
	ended := make(chan error, 1)
	log := &logBuffer{}
	g := open(t, testConfig(t), log, slowTool(nil, ended))
	g.drain = 100 * time.Millisecond
	r := run(t, g, log)
	resp := r.open(t, t.Context(), request{path: "/mcp", header: legacy(), body: rpc(false, "tools/call", callParams("test_slow", nil))})
	defer resp.Body.Close()
	readUntil(t, bufio.NewReader(resp.Body), ": ok", 1)
	r.stopIt()
	if err := within(t, "the stop", r.ended); err != nil {
		t.Error(err)
	}
	if err := within(t, "the call", ended); !errors.Is(err, context.Canceled) {
		t.Errorf("the call ended with %v", err)
	}
	if !strings.Contains(log.String(), "were cut off") {
		t.Error("nobody is told")
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestNewSaysWhatIsWrong(t *testing.T) {
	used, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	c := testConfig(t)
	c.Port = used.Addr().(*net.TCPAddr).Port
	if _, err := New(t.Context(), Options{Config: c}); err == nil || !strings.Contains(err.Error(), "port") {
		t.Errorf("a port in use: %v", err)
	}
	c = testConfig(t)
	if err := os.Remove(c.OwnerTokenFile); err != nil {
		t.Fatal(err)
	}
	if _, err := New(t.Context(), Options{Config: c}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no password file: %v", err)
	}
	if _, err := New(t.Context(), Options{}); err == nil {
		t.Error("no config is accepted")
	}
}
