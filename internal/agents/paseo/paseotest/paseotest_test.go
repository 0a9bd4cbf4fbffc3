package paseotest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/agents/paseo/paseotest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// peer is a bare websocket to a double.
type peer struct {
	t  *testing.T
	ws *websocket.Conn
}

func open(t *testing.T, d *paseotest.Daemon, protocols ...string) *peer {
	t.Helper()
	ws, _, err := websocket.Dial(within(t, 10*time.Second), "ws://"+d.Addr().String()+"/ws", &websocket.DialOptions{Subprotocols: protocols})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ws.CloseNow() })
	return &peer{t, ws}
}

func (p *peer) send(v any) {
	data, err := json.Marshal(v)
	if err != nil {
		p.t.Fatal(err)
	}
	_ = p.ws.Write(within(p.t, 10*time.Second), websocket.MessageText, data)
}

// read returns the next frame, or the code of the close.
func (p *peer) read() (map[string]any, websocket.StatusCode) {
	_, data, err := p.ws.Read(within(p.t, 10*time.Second))
	if err != nil {
		return nil, websocket.CloseStatus(err)
	}
	var frame map[string]any
	_ = json.Unmarshal(data, &frame)
	return frame, 0
}

// answer reads up to the session message of a type and returns its payload.
func (p *peer) answer(kind string) map[string]any {
	p.t.Helper()
	for {
		frame, code := p.read()
		if code != 0 {
			p.t.Fatalf("closed with %d while waiting for %s", code, kind)
		}
		if m, ok := frame["message"].(map[string]any); ok && m["type"] == kind {
			return m["payload"].(map[string]any)
		}
	}
}

func (p *peer) ask(kind string, members map[string]any) {
	m := map[string]any{"type": kind, "requestId": "r1"}
	for key, value := range members {
		m[key] = value
	}
	p.send(map[string]any{"type": "session", "message": m})
}

func greeting(change map[string]any) map[string]any {
	h := map[string]any{"type": "hello", "clientId": "c1", "clientType": "mcp", "protocolVersion": 1, "appVersion": "0.10.3"}
	for key, value := range change {
		h[key] = value
	}
	return h
}

func TestGreetingsAreRefusedWithTheDaemonsCodes(t *testing.T) {
	d := paseotest.Start(t, paseotest.Options{HelloTimeout: 50 * time.Millisecond})
	for name, one := range map[string]struct {
		first any
		code  websocket.StatusCode
	}{
		"nothing":            {nil, 4001},
		"no JSON object":     {"hi", 4002},
		"a request":          {map[string]any{"type": "session"}, 4002},
		"unknown clientType": {greeting(map[string]any{"clientType": "gateway"}), 4002},
		"a plugin's id":      {greeting(map[string]any{"clientId": "plugin:x"}), 4002},
		"no clientId":        {greeting(map[string]any{"clientId": ""}), 4002},
		"another protocol":   {greeting(map[string]any{"protocolVersion": 2}), 4003},
	} {
		t.Run(name, func(t *testing.T) {
			p := open(t, d)
			if one.first != nil {
				p.send(one.first)
			}
			if _, code := p.read(); code != one.code {
				t.Fatalf("closed with %d", code)
			}
		})
	}
	guarded := paseotest.Start(t, paseotest.Options{Password: "pw"})
	for _, protocols := range [][]string{nil, {"paseo.bearer.no"}} {
		if _, code := open(t, guarded, protocols...).read(); code != 4401 {
			t.Fatalf("%v: closed with %d", protocols, code)
		}
	}
	p := open(t, guarded, "paseo.bearer.pw")
	p.send(greeting(nil))
	if info := p.answer("status"); info["status"] != "server_info" {
		t.Fatalf("info = %v", info)
	}
}

func TestForeignHostsAndOriginsAreRefused(t *testing.T) {
	d := paseotest.Start(t, paseotest.Options{})
	get := func(path string, change func(*http.Request)) int {
		r, err := http.NewRequestWithContext(within(t, 10*time.Second), http.MethodGet, "http://"+d.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		change(r)
		transport := &http.Transport{DisableKeepAlives: true}
		resp, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	if got := get("/api/health", func(r *http.Request) { r.Host = "evil.example" }); got != http.StatusForbidden {
		t.Errorf("foreign host: %d", got)
	}
	if got := get("/api/status", func(r *http.Request) { r.Host = "x.localhost:1" }); got != http.StatusOK {
		t.Errorf("localhost: %d", got)
	}
	if got := get("/ws", func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") }); got != http.StatusForbidden {
		t.Errorf("foreign origin: %d", got)
	}
}

func TestClientsWithoutAVersionSeeNoCustomProviders(t *testing.T) {
	d := paseotest.Start(t, paseotest.Options{Version: paseotest.V05})
	full := open(t, d)
	full.send(greeting(nil))
	full.ask("create_agent_request", map[string]any{"config": map[string]any{"provider": "fake", "cwd": t.TempDir(), "title": "x"}, "initialPrompt": "sleep 30"})
	full.answer("status")
	id := full.answer("status")["agentId"]
	for _, version := range []string{"", "0.1.44", "gateway-1"} {
		p := open(t, d)
		p.send(greeting(map[string]any{"appVersion": version}))
		p.ask("fetch_agents_request", nil)
		if entries := p.answer("fetch_agents_response")["entries"].([]any); len(entries) != 0 {
			t.Errorf("%q sees %d agents", version, len(entries))
		}
		p.ask("wait_for_finish_request", map[string]any{"agentId": id})
		if got := p.answer("wait_for_finish_response"); got["status"] != "error" || !strings.Contains(got["error"].(string), "disappeared") {
			t.Errorf("%q: %v", version, got)
		}
	}
}

func TestAClientThatHasPingedAndFallsSilentIsDropped(t *testing.T) {
	d := paseotest.Start(t, paseotest.Options{Lease: 100 * time.Millisecond})
	silent, pinged := open(t, d), open(t, d)
	silent.send(greeting(nil))
	pinged.send(greeting(nil))
	pinged.answer("status")
	pinged.send(map[string]any{"type": "ping"})
	if frame, _ := pinged.read(); frame["type"] != "pong" {
		t.Fatalf("frame = %v", frame)
	}
	if _, code := pinged.read(); code != -1 {
		t.Fatalf("closed with %d", code)
	}
	silent.answer("status")
	silent.ask("fetch_agents_request", nil) // it never pinged, so it is still there
	silent.answer("fetch_agents_response")
}

func TestStreamsGoToEverybodyOrToThoseWhoAsked(t *testing.T) {
	d := paseotest.Start(t, paseotest.Options{Version: paseotest.V05})
	legacy, selective := open(t, d), open(t, d)
	legacy.send(greeting(map[string]any{"clientId": "c2"}))
	selective.send(greeting(map[string]any{"capabilities": map[string]any{"selective_agent_timeline": true}}))
	legacy.answer("status")
	selective.answer("status")
	selective.ask("create_agent_request", map[string]any{"config": map[string]any{"provider": "fake", "cwd": t.TempDir(), "title": "x"}, "initialPrompt": "hello"})
	for {
		frame, code := selective.read()
		if code != 0 {
			t.Fatal(code)
		}
		m := frame["message"].(map[string]any)
		if m["type"] == "agent_stream" {
			t.Fatal("a stream that nobody asked for")
		}
		if m["type"] == "agent_attention_required" {
			break
		}
	}
	for {
		event := legacy.answer("agent_stream")["event"].(map[string]any)
		if event["type"] == "turn_completed" && event["turnId"] != "" {
			break
		}
	}
}

func TestAPromptAfterAProviderCrashHangsUntilTheAgentIsKilled(t *testing.T) {
	d := paseotest.Start(t, paseotest.Options{})
	p := open(t, d)
	p.send(greeting(nil))
	p.answer("status")
	p.ask("create_agent_request", map[string]any{"config": map[string]any{"provider": "fake", "cwd": t.TempDir(), "title": "x"}, "initialPrompt": "crash"})
	id := p.answer("status")["agentId"]
	wait := func(ms int) any {
		p.ask("wait_for_finish_request", map[string]any{"agentId": id, "timeoutMs": ms})
		return p.answer("wait_for_finish_response")["status"]
	}
	if got := wait(10_000); got != "error" {
		t.Fatalf("after the crash: %v", got)
	}
	prompt := func() {
		p.ask("send_agent_message_request", map[string]any{"agentId": id, "text": "hello"})
		p.answer("send_agent_message_response")
	}
	prompt()
	if got := wait(100); got != "timeout" {
		t.Fatalf("the next prompt: %v", got)
	}
	p.ask("cancel_agent_request", map[string]any{"agentId": id})
	p.answer("cancel_agent_response")
	if body := tool(t, d, "kill_agent", map[string]any{"agentId": id}); !strings.Contains(body, `"success":true`) {
		t.Fatal(body)
	}
	prompt()
	if got := wait(10_000); got != "idle" {
		t.Fatalf("after cancel and kill: %v", got)
	}
}

func TestAMessageIDUsedTwiceRunsAgainAndHidesTheMessage(t *testing.T) {
	d := paseotest.Start(t, paseotest.Options{Version: paseotest.V05})
	p := open(t, d)
	p.send(greeting(nil))
	p.answer("status")
	p.ask("create_agent_request", map[string]any{"config": map[string]any{"provider": "fake", "cwd": t.TempDir(), "title": "x"}})
	id := p.answer("status")["agentId"]
	for range 2 {
		p.ask("send_agent_message_request", map[string]any{"agentId": id, "text": "hello", "messageId": "m"})
		p.answer("send_agent_message_response")
		p.ask("wait_for_finish_request", map[string]any{"agentId": id})
		p.answer("wait_for_finish_response")
	}
	p.ask("fetch_agent_timeline_request", map[string]any{"agentId": id})
	kinds := map[any]int{}
	for _, e := range p.answer("fetch_agent_timeline_response")["entries"].([]any) {
		kinds[e.(map[string]any)["item"].(map[string]any)["type"]]++
	}
	if prompts, _ := d.Prompts(); len(prompts) != 2 || kinds["user_message"] != 1 || kinds["assistant_message"] != 2 {
		t.Fatalf("%d prompts, rows %v", len(prompts), kinds)
	}
}

// tool posts a tools/call and returns the body of the answer.
func tool(t *testing.T, d *paseotest.Daemon, name string, arguments any) string {
	t.Helper()
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": map[string]any{"name": name, "arguments": arguments}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(within(t, 10*time.Second), http.MethodPost, "http://"+d.Addr().String()+"/mcp/agents", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "application/json, text/event-stream")
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(resp.StatusCode, " ", string(data))
}

func TestTheMCPEndpointOfEachVersion(t *testing.T) {
	old := paseotest.Start(t, paseotest.Options{Version: paseotest.V01})
	if body := tool(t, old, "get_agent_activity", nil); !strings.HasPrefix(body, "400") || !strings.Contains(body, "Initialization request expected") {
		t.Errorf("without a session: %s", body)
	}
	d := paseotest.Start(t, paseotest.Options{})
	if body := tool(t, d, "nonsense", nil); !strings.Contains(body, `"isError":true`) || !strings.Contains(body, "Tool nonsense not found") {
		t.Errorf("unknown tool: %s", body)
	}
	if body := tool(t, d, "get_agent_activity", map[string]any{"agentId": strings.Repeat("x", 110_000)}); !strings.HasPrefix(body, "413 <html>") {
		t.Errorf("too large: %.80s", body)
	}
}

// TestTheDaemonAsAProcess kills it in the middle of a prompt and starts another
// on the same directory.
func TestTheDaemonAsAProcess(t *testing.T) {
	dir, binary := t.TempDir(), filepath.Join(t.TempDir(), "daemon")
	if out, err := exec.Command("go", "build", "-o", binary, "./daemon").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	socket := filepath.Join(dir, "s")
	start := func() (*exec.Cmd, io.WriteCloser, *bufio.Scanner) {
		cmd := exec.Command(binary, "-dir", dir, "-listen", socket)
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		lines := bufio.NewScanner(out)
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), "listening ") {
			t.Fatalf("the daemon said %q", lines.Text())
		}
		return cmd, in, lines
	}
	first, orders, said := start()
	c := paseo.New(paseo.Options{
		BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond,
		Dial: func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", socket) },
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	a, err := c.CreateAgent(within(t, 10*time.Second), paseo.NewAgent{Provider: "fake", CWD: dir, Title: "x", Labels: map[string]string{"k": "v"}})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(orders, `{"request":"send_agent_message_request","stage":"completed","act":"crash"}`+"\n")
	if !said.Scan() || said.Text() != "ordered crash" {
		t.Fatalf("the daemon said %q", said.Text())
	}
	prompt := paseo.Prompt{AgentID: a.ID, Text: "sleep 60", MessageID: "m"}
	if err := c.SendMessage(within(t, 10*time.Second), prompt); !paseo.MaybeHappened(err) {
		t.Fatalf("err = %v", err)
	}
	if err := first.Wait(); err == nil || first.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the daemon ended with %v", err)
	}
	second, _, _ := start()
	deadline := time.Now().Add(10 * time.Second)
	for c.Status().Generation < 2 && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	got, err := c.FetchAgent(within(t, 10*time.Second), a.ID)
	if err != nil || got.Status != paseo.AgentRunning || got.Turn != paseo.TurnAbsent || got.Labels["k"] != "v" {
		t.Fatalf("%v, agent = %+v", err, got)
	}
	if err := c.SendMessage(within(t, 10*time.Second), prompt); err != nil {
		t.Fatalf("the same message again: %v", err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "prompts.jsonl"))
	if err != nil || strings.Count(string(data), "\n") != 1 {
		t.Fatalf("%v, prompts: %s", err, data)
	}
	_ = second.Process.Signal(syscall.SIGTERM)
	if err := second.Wait(); err != nil {
		t.Fatalf("the daemon ended with %v", err)
	}
}
