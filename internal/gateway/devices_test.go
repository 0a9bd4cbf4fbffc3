package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"agentrelay/internal/devices"
	"agentrelay/internal/devices/wire"
	"agentrelay/internal/store"
	"agentrelay/internal/tool"
)

// startDevices is a gateway to which devices may come.
func startDevices(t *testing.T) *harness {
	t.Helper()
	h := start(t, testConfig(t))
	if err := h.devices.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return h
}

// deviceLink is a device of a test, written from the specification alone.
type deviceLink struct {
	t    *testing.T
	conn *websocket.Conn
}

func (h *harness) dialDevice(t *testing.T) *deviceLink {
	t.Helper()
	conn, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(h.url, "http")+"/device", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.CloseNow() })
	return &deviceLink{t, conn}
}

// say sends a frame and hear reads the next one, which must have a type.
func (d *deviceLink) say(f map[string]any) {
	d.t.Helper()
	raw, err := json.Marshal(f)
	if err == nil {
		err = d.conn.Write(d.t.Context(), websocket.MessageText, raw)
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

func (d *deviceLink) hear(kind string) (f map[string]any) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), 10*time.Second)
	defer cancel()
	_, raw, err := d.conn.Read(ctx)
	if err != nil || json.Unmarshal(raw, &f) != nil || f["type"] != kind {
		d.t.Fatalf("got %s, %v; want %s", raw, err, kind)
	}
	return f
}

func (h *harness) pairDevice(t *testing.T, name string) (token string) {
	t.Helper()
	code, err := h.devices.PairingCode(t.Context(), devices.PairIn{})
	if err != nil {
		t.Fatal(err)
	}
	d := h.dialDevice(t)
	d.say(map[string]any{"type": "pair", "code": code.Code, "device": name})
	token, _ = d.hear("paired")["token"].(string)
	if _, _, err := d.conn.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Fatal(err)
	}
	return token
}

func deviceHello(name, token string) map[string]any {
	return map[string]any{"type": "hello", "proto": 1, "token": token, "device": name, "platform": "test", "tools": []any{map[string]any{
		"name": "run", "desc": "Run a shell command on this device.", "schema": map[string]any{
			"type": "object", "properties": map[string]any{"cmd": map[string]any{"type": "string", "description": "the command line"}}, "required": []string{"cmd"},
		},
	}}}
}

func (h *harness) connectDevice(t *testing.T, name, token string) *deviceLink {
	t.Helper()
	d := h.dialDevice(t)
	d.say(deviceHello(name, token))
	d.hear("ready")
	return d
}

// TestADeviceServesAClient: a client lists, reads a schema and calls, over the routes
// and guards of the gateway.
func TestADeviceServesAClient(t *testing.T) {
	h := startDevices(t)
	token := h.pairDevice(t, "laptop")
	d := h.connectDevice(t, "laptop", token)
	list := h.call(t, goodToken, "spooky_list", nil)
	list.sameTwice(t)
	if text := string(list.Structured); !strings.Contains(text, `"device":"laptop"`) || !strings.Contains(text, `"seenAt":"20`) || !strings.Contains(text, `{"name":"run","desc":"Run a shell command on this device."}`) {
		t.Error(text)
	}
	schema := h.call(t, goodToken, "spooky_schema", map[string]any{"device": "laptop", "tool": "run"})
	want := `{"device":"laptop","tool":"run","desc":"Run a shell command on this device.","requires":[],"args":[{"name":"cmd","type":"string","required":true,"desc":"the command line"}],"complex":false}`
	if string(schema.Structured) != want {
		t.Errorf("%s", schema.Structured)
	}
	done := make(chan toolResult, 1)
	go func() {
		done <- h.call(t, goodToken, "spooky_call", map[string]any{"device": "laptop", "tool": "run", "args": map[string]any{"cmd": "shred everything"}, "reason": "tidying"})
	}()
	f := d.hear("call")
	if f["agent"] != "Test" || f["reason"] != "tidying" || f["args"].(map[string]any)["cmd"] != "shred everything" {
		t.Errorf("%v", f)
	}
	d.say(map[string]any{"type": "tool_result", "ref": f["ref"], "ok": true, "output": "gone & <done>"})
	got := within(t, "the call", done)
	got.sameTwice(t)
	var out devices.CallOut
	if err := json.Unmarshal(got.Structured, &out); err != nil || got.IsError || out.State != devices.Done || out.Output != "gone & <done>" || out.CallID != f["ref"] {
		t.Errorf("%s %v", got.Structured, err)
	}
	for _, secret := range []string{token, "shred", "gone", "tidying"} {
		if strings.Contains(h.log.String(), secret) {
			t.Errorf("the log has %q", secret)
		}
	}
}

func TestFailuresOfDevicesAreToolResults(t *testing.T) {
	h := startDevices(t)
	d := h.connectDevice(t, "laptop", h.pairDevice(t, "laptop"))
	call := func(device, name string, args map[string]any) tool.Failure {
		return h.call(t, goodToken, "spooky_call", map[string]any{"device": device, "tool": name, "args": args, "reason": "x"}).failure(t)
	}
	for _, c := range []struct {
		got           tool.Failure
		code, message string
	}{
		{call("phone", "run", nil), "device_not_connected", "device phone is not connected"},
		{call("laptop", "jump", nil), "unknown_device_tool", "device laptop has no tool jump: it has run"},
		{call("laptop", "run", map[string]any{"cmd": 5}), "invalid_arguments", "args.cmd must be of type string."},
		{h.call(t, goodToken, "spooky_call", map[string]any{"callId": "call-x"}).failure(t), "unknown_device_call", "There is no call of this callId."},
		{h.call(t, goodToken, "spooky_list", map[string]any{"device": "phone"}).failure(t), "device_not_connected", "device phone is not connected"},
	} {
		if c.got.Code != c.code || c.got.Message != c.message || c.got.Hint == "" || c.got.ID == "" {
			t.Errorf("%+v, want %s: %s", c.got, c.code, c.message)
		}
	}
	failed := make(chan toolResult, 1)
	go func() {
		failed <- h.call(t, goodToken, "spooky_call", map[string]any{"device": "laptop", "tool": "run", "args": map[string]any{"cmd": "x"}, "reason": "x"})
	}()
	f := d.hear("call")
	d.say(map[string]any{"type": "tool_result", "ref": f["ref"], "ok": false, "output": "exit 1"})
	if e := within(t, "the call", failed).failure(t); e.Code != "device_tool_failed" || e.Message != "exit 1" {
		t.Errorf("%+v", e)
	}
}

// TestAClosedRequestWithdrawsTheCall: the client's leaving reaches the device.
func TestAClosedRequestWithdrawsTheCall(t *testing.T) {
	h := startDevices(t)
	d := h.connectDevice(t, "laptop", h.pairDevice(t, "laptop"))
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	go func() {
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, h.url+"/mcp", strings.NewReader(rpc(false, "tools/call", callParams("spooky_call", map[string]any{"device": "laptop", "tool": "run", "args": map[string]any{"cmd": "x"}, "reason": "x"}))))
		req.Header = legacy("Authorization", "Bearer "+goodToken, "Accept", "application/json")
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
		}
	}()
	f := d.hear("call")
	leave()
	if deny := d.hear("deny"); deny["ref"] != f["ref"] || deny["why"] != "cancelled" {
		t.Error(deny)
	}
}

func TestWhoMayOpenADeviceLink(t *testing.T) {
	h := startDevices(t)
	upgrade := func(pairs ...string) map[string][]string {
		return with(map[string][]string{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-WebSocket-Version": {"13"}, "Sec-WebSocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}}, pairs...)
	}
	for name, c := range map[string]struct {
		header map[string][]string
		status int
		code   string
	}{
		"a page of elsewhere": {upgrade("Origin", "https://evil.test"), 403, "origin_not_allowed"},
		"no websocket":        {nil, 426, "not_a_websocket"},
	} {
		resp, body := h.do(t, request{method: http.MethodGet, path: "/device", header: c.header})
		if resp.StatusCode != c.status || httpFailure(t, resp, body).Code != c.code {
			t.Errorf("%s: %d %s", name, resp.StatusCode, body)
		}
	}
	resp, _ := h.do(t, request{method: http.MethodPost, path: "/device", header: upgrade()})
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", resp.StatusCode)
	}
	c := testConfig(t)
	c.Tools.Devices = false
	off := start(t, c)
	if resp, _ := off.do(t, request{method: http.MethodGet, path: "/device", header: upgrade()}); resp.StatusCode != http.StatusNotFound {
		t.Errorf("with the tools off: %d", resp.StatusCode)
	}
	// Before the start and at the stop devices are told to wait.
	early := start(t, testConfig(t))
	resp, body := early.do(t, request{method: http.MethodGet, path: "/device", header: upgrade()})
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" || httpFailure(t, resp, body).Code != "not_ready" {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

// TestTwoHundredDevicesComeBackWithoutAStorm: after a restart all dial at once, and
// those that are turned away come when Retry-After says.
func TestTwoHundredDevicesComeBackWithoutAStorm(t *testing.T) {
	const n = 200
	h := startDevices(t)
	err := store.Exec(t.Context(), h.store, func(tx *store.Tx) error { // pairing lets only some in a minute
		for i := range n {
			hash := sha256.Sum256(fmt.Appendf(nil, "token-%d", i))
			if _, err := tx.Exec(`INSERT INTO devices (name, token_hash, paired_at) VALUES (?, ?, 1)`, fmt.Sprintf("d-%d", i), hash[:]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var refused atomic.Int64
	var mu sync.Mutex
	var accepted []time.Time
	url := "ws" + strings.TrimPrefix(h.url, "http") + "/device"
	start := time.Now()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			for {
				conn, resp, err := websocket.Dial(t.Context(), url, nil)
				if err == nil {
					t.Cleanup(func() { conn.CloseNow() })
					mu.Lock()
					accepted = append(accepted, time.Now())
					mu.Unlock()
					raw, _ := json.Marshal(deviceHello(fmt.Sprintf("d-%d", i), fmt.Sprintf("token-%d", i)))
					_ = conn.Write(t.Context(), websocket.MessageText, raw)
					_, _, _ = conn.Read(t.Context())
					return
				}
				if resp == nil || resp.StatusCode != http.StatusServiceUnavailable {
					t.Errorf("%v", err)
					return
				}
				refused.Add(1)
				after, err := strconv.Atoi(resp.Header.Get("Retry-After"))
				if err != nil || after < 1 || after > 31 {
					t.Errorf("Retry-After %q", resp.Header.Get("Retry-After"))
					return
				}
				time.Sleep(time.Duration(after)*time.Second + rand.N(time.Second))
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	if _, connected, err := h.devices.Count(t.Context()); err != nil || connected != n {
		t.Errorf("%d are connected, %v", connected, err)
	}
	slices.SortFunc(accepted, time.Time.Compare)
	worst := 0
	for i := range accepted {
		j := i
		for j < len(accepted) && accepted[j].Sub(accepted[i]) < time.Second {
			j++
		}
		worst = max(worst, j-i)
	}
	t.Logf("%d devices were back after %v; at most %d in a second, %d dials were put off", len(accepted), took.Round(time.Millisecond), worst, refused.Load())
	if len(accepted) != n || took > 90*time.Second || worst > 101 || refused.Load() > 3*n {
		t.Errorf("%d of %d came, in %v, %d in one second, %d put off", len(accepted), n, took, worst, refused.Load())
	}
}

// TestDevicesAreToldOfAStop with the code that says restart and when to come back.
func TestDevicesAreToldOfAStop(t *testing.T) {
	h := startDevices(t)
	d := h.connectDevice(t, "laptop", h.pairDevice(t, "laptop"))
	end := make(chan error, 1)
	go func() {
		_, _, err := d.conn.Read(context.Background())
		end <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := h.devices.Close(ctx); err != nil {
		t.Fatal(err)
	}
	err := within(t, "the end of the link", end)
	if websocket.CloseStatus(err) != wire.CloseRestart || !strings.Contains(fmt.Sprint(err), "retry_after_ms=") {
		t.Error(err)
	}
}

func TestDevicesNeedTheirPermission(t *testing.T) {
	tools := deviceTools(nil)
	size := 0
	for i := range tools {
		size += len(tool.Encode(tools[i].Definition()))
		if tools[i].Permission != "devices" {
			t.Errorf("%s needs %q", tools[i].Name, tools[i].Permission)
		}
	}
	if len(tools) != 3 || size > 3<<10 {
		t.Errorf("%d tools of %d bytes", len(tools), size)
	}
}

// TestADeviceThatDoesNotAnswerDelaysNoStop: it never reads what it is sent.
func TestADeviceThatDoesNotAnswerDelaysNoStop(t *testing.T) {
	h := startDevices(t)
	h.connectDevice(t, "laptop", h.pairDevice(t, "laptop"))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	begun := time.Now()
	if err := h.devices.Close(ctx); err != nil || time.Since(begun) > farewell+time.Second {
		t.Errorf("%v after %v", err, time.Since(begun))
	}
}
