package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"agentrelay/internal/admin"
	"agentrelay/internal/devices"
)

// deviceConn is a device of a test.
type deviceConn struct {
	t    *testing.T
	conn *websocket.Conn
}

func dialDevice(t *testing.T, url string) *deviceConn {
	t.Helper()
	conn, _, err := websocket.Dial(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.CloseNow() })
	return &deviceConn{t, conn}
}

// ask sends a frame and returns the next one.
func (d *deviceConn) ask(frame string) (answer map[string]any) {
	d.t.Helper()
	if err := d.conn.Write(d.t.Context(), websocket.MessageText, []byte(frame)); err != nil {
		d.t.Fatal(err)
	}
	return d.next()
}

func (d *deviceConn) next() (f map[string]any) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), 20*time.Second)
	defer cancel()
	_, raw, err := d.conn.Read(ctx)
	if err == nil {
		err = json.Unmarshal(raw, &f)
	}
	if err != nil {
		d.t.Fatal(err)
	}
	return f
}

// pairAndConnect pairs a device with a code and says hello.
func pairAndConnect(t *testing.T, url, code string) *deviceConn {
	t.Helper()
	pairing := dialDevice(t, url)
	paired := pairing.ask(`{"type":"pair","code":"` + code + `","device":"laptop"}`)
	if paired["type"] != "paired" {
		t.Fatal(paired)
	}
	_, _, _ = pairing.conn.Read(t.Context()) // its end
	d := dialDevice(t, url)
	if f := d.ask(fmt.Sprintf(`{"type":"hello","proto":1,"device":"laptop","platform":"linux","token":%q,"tools":[{"name":"run","desc":"Run.","schema":{"type":"object"}}]}`, paired["token"])); f["type"] != "ready" {
		t.Fatal(f)
	}
	return d
}

func TestDevices(t *testing.T) {
	h := newHome(t)
	h.init()
	if r := h.run("devices", "pair"); r.code != ExitFailed || !strings.Contains(r.stderr, "gateway serve") {
		t.Errorf("pair without a gateway: %+v", r)
	}
	if out := h.ok("devices", "list"); !strings.Contains(out, "No device is paired") {
		t.Error(out)
	}
	s := h.serve()
	url := "ws" + strings.TrimSuffix(strings.TrimPrefix(s.url, "http"), "/mcp") + "/device"
	out := h.ok("devices", "pair")
	code, _, _ := strings.Cut(out, "\n")
	if !regexp.MustCompile(`^([2-9A-HJ-NP-Z]{4}-){2}[2-9A-HJ-NP-Z]{4}$`).MatchString(code) || !strings.Contains(out, "device pair "+url+" "+code+" --device <name>") || !strings.Contains(out, "within 10 minutes") {
		t.Errorf("%s", out)
	}
	if again := decode[devices.Code](t, h.ok("devices", "pair", "--json")); again.Code != code {
		t.Errorf("%+v", again)
	}
	d := pairAndConnect(t, url, code)
	list := decode[admin.DevicesOut](t, h.ok("devices", "list", "--json"))
	if len(list.Devices) != 1 || !list.Devices[0].Connected || list.Devices[0].Name != "laptop" || list.Devices[0].Tools != 1 || list.Devices[0].SeenAt == nil {
		t.Errorf("%+v", list)
	}
	if out := h.ok("devices", "list"); !strings.Contains(out, "laptop  for 0 seconds  just now") {
		t.Error(out)
	}
	if out := h.ok("status"); !strings.Contains(out, "Devices   1 paired, 1 connected") {
		t.Error(out)
	}
	if out := h.ok("devices", "calls"); !strings.Contains(out, "There are no calls") {
		t.Error(out)
	}
	if r := h.run("devices", "pair", "--replace", "phone"); r.code != ExitFailed || !strings.Contains(r.stderr, "gateway devices list") {
		t.Errorf("%+v", r)
	}
	if out := h.ok("devices", "pair", "--replace", "laptop"); !strings.Contains(out, "--device laptop") {
		t.Error(out)
	}
	if out := h.ok("devices", "revoke", "laptop"); out != "laptop is revoked; 0 open calls of it failed.\n" {
		t.Error(out)
	}
	if f := d.next(); f["type"] != "err" || f["code"] != "auth" {
		t.Error(f)
	}
	if r := h.run("devices", "revoke", "laptop"); r.code != ExitFailed {
		t.Errorf("%+v", r)
	}
	if strings.Contains(s.stderr.String(), code) {
		t.Error("the log has the pairing code")
	}
}

// harness is a program that starts a relay and speaks MCP with it.
type harness struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr *buffer
	n      int
}

func startHarness(t *testing.T, h *home, dir string) *harness {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	x := &harness{t: t, stderr: &buffer{}, cmd: exec.Command(self, "relay", "--stdio", "--listen", "127.0.0.1:0", "--state-dir", dir)}
	x.cmd.Env = []string{"HOME=" + h.dir, asProgram + "=1"}
	x.cmd.Stderr = x.stderr
	if x.in, err = x.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := x.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	x.out = bufio.NewReader(out)
	if err := x.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.cmd.Process.Kill(); x.cmd.Wait() })
	x.send("initialize", `{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"my-harness","version":"1"}}`)
	if r := x.answer(); r["serverInfo"] == nil {
		t.Fatal(r)
	}
	fmt.Fprintln(x.in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return x
}

func (x *harness) send(method, params string) {
	x.t.Helper()
	x.n++
	if _, err := fmt.Fprintf(x.in, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`+"\n", x.n, method, params); err != nil {
		x.t.Fatal(err)
	}
}

// answer reads the next line, which must be the answer to what was sent last.
func (x *harness) answer() map[string]any {
	x.t.Helper()
	line, err := x.out.ReadString('\n')
	if err != nil {
		x.t.Fatalf("%v: %s", err, x.stderr)
	}
	var m struct {
		JSONRPC string
		ID      int
		Result  map[string]any
	}
	if err := json.Unmarshal([]byte(line), &m); err != nil || m.JSONRPC != "2.0" || m.ID != x.n {
		x.t.Fatalf("standard output has %q, %v", line, err)
	}
	return m.Result
}

func (x *harness) end() {
	x.t.Helper()
	x.in.Close()
	rest, err := io.ReadAll(x.out)
	if err != nil || len(rest) > 0 {
		x.t.Errorf("%q %v", rest, err)
	}
	if err := x.cmd.Wait(); err != nil {
		x.t.Errorf("%v: %s", err, x.stderr)
	}
}

func TestRelay(t *testing.T) {
	h := newHome(t)
	dir := filepath.Join(h.dir, "relay")
	x := startHarness(t, h, dir)
	eventually(t, "the pairing code", func() bool { return strings.Contains(x.stderr.String(), "--device <name>\n") })
	words := regexp.MustCompile(`device pair (ws://\S+) (\S+) --device`).FindStringSubmatch(x.stderr.String())
	if words == nil {
		t.Fatal(x.stderr)
	}
	url, code := words[1], words[2]
	x.send("tools/list", `{}`)
	var names []string
	for _, tool := range x.answer()["tools"].([]any) {
		names = append(names, tool.(map[string]any)["name"].(string))
	}
	if fmt.Sprint(names) != "[spooky_call spooky_list spooky_schema]" {
		t.Error(names)
	}
	d := pairAndConnect(t, url, code)
	x.send("tools/call", `{"name":"spooky_call","arguments":{"device":"laptop","tool":"run","args":{"cmd":"ls"},"reason":"look"}}`)
	call := d.next()
	if call["type"] != "call" || call["agent"] != "my-harness" || call["reason"] != "look" {
		t.Error(call)
	}
	d.conn.Write(t.Context(), websocket.MessageText, fmt.Appendf(nil, `{"type":"tool_result","ref":%q,"ok":true,"output":"file"}`, call["ref"]))
	if r := x.answer(); r["isError"] != nil || r["structuredContent"].(map[string]any)["output"] != "file" {
		t.Error(r)
	}
	x.send("tools/call", `{"name":"spooky_call","arguments":{"device":"phone","tool":"run","reason":"look"}}`)
	if r := x.answer(); r["isError"] != true || !strings.Contains(fmt.Sprint(r), "device phone is not connected") {
		t.Error(r)
	}

	// A cancelled request withdraws the call from the device.
	x.send("tools/call", `{"name":"spooky_call","arguments":{"device":"laptop","tool":"run","args":{},"reason":"look"}}`)
	call = d.next()
	fmt.Fprintf(x.in, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`+"\n", x.n)
	if deny := d.next(); deny["type"] != "deny" || deny["ref"] != call["ref"] || deny["why"] != "cancelled" {
		t.Error(deny)
	}
	if r := x.answer(); r["isError"] != true { // the SDK answers what was cancelled
		t.Error(r)
	}

	// The owner's commands reach a running relay; a second one is refused.
	if out := h.ok("devices", "list", "--relay", dir); !strings.Contains(out, "laptop") {
		t.Error(out)
	}
	if out := h.ok("devices", "pair", "--relay", dir); strings.Contains(out, code) || !strings.Contains(out, url) {
		t.Error(out)
	}
	if r := h.run("relay", "--stdio", "--listen", "127.0.0.1:0", "--state-dir", dir); r.code != ExitFailed || !strings.Contains(r.stderr, "in use by process") || r.stdout != "" {
		t.Errorf("%+v", r)
	}
	x.end()

	// The next one knows its device and prints no code.
	y := startHarness(t, h, dir)
	if out := h.ok("devices", "list", "--relay", dir); !strings.Contains(out, "laptop") {
		t.Error(out)
	}
	if strings.Contains(y.stderr.String(), "Pairing code") {
		t.Error(y.stderr)
	}
	y.end()
	if r := h.run("devices", "list", "--relay", dir); r.code != ExitFailed || !strings.Contains(r.stderr, "no relay runs") {
		t.Errorf("%+v", r)
	}
	for _, args := range [][]string{{"relay", "--stdio"}, {"relay", "--listen", "127.0.0.1:0"}, {"relay", "--stdio", "--listen", "nowhere"}} {
		if r := h.run(args...); r.code != ExitUsage {
			t.Errorf("%v: %+v", args, r)
		}
	}
}
