package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"agentrelay/internal/client"
	"agentrelay/internal/e2e/rig"
)

// TestDeviceLinksThroughProxies: the websocket of a device passes the files of
// packaging/proxy as they are, both ways, and its end is told.
func TestDeviceLinksThroughProxies(t *testing.T) {
	f := startFronted(t)
	for name, start := range map[string]func(*testing.T, *fronted) *http.Client{"caddy": startCaddy, "nginx": startNginx} {
		t.Run(name, func(t *testing.T) {
			transport := start(t, f).Transport.(*http.Transport).Clone()
			transport.ForceAttemptHTTP2, transport.TLSNextProto = false, map[string]func(string, *tls.Conn) http.RoundTripper{} // websockets are HTTP/1.1
			transport.TLSClientConfig.NextProtos = nil
			t.Cleanup(transport.CloseIdleConnections)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			conn, resp, err := websocket.Dial(ctx, "wss://"+proxyHost+"/device", &websocket.DialOptions{HTTPClient: &http.Client{Transport: transport}})
			if err != nil {
				t.Fatal(err, resp)
			}
			defer conn.CloseNow()
			if err := conn.Write(ctx, websocket.MessageText, []byte(`{"type":"pair","code":"2222-2222-2222","device":"laptop"}`)); err != nil {
				t.Fatal(err)
			}
			_, raw, err := conn.Read(ctx)
			if err != nil || !strings.Contains(string(raw), `"code":"auth"`) {
				t.Fatalf("%s %v", raw, err)
			}
			if _, _, err := conn.Read(ctx); websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
				t.Error(err)
			}
		})
	}
}

// scripted is one link of a device that knows the specification alone.
type scripted struct {
	t    *testing.T
	conn *websocket.Conn
}

func dialScripted(t *testing.T, url string) *scripted {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.CloseNow() })
	return &scripted{t, conn}
}

func (d *scripted) say(f object) {
	d.t.Helper()
	raw, err := json.Marshal(f)
	if err == nil {
		err = d.conn.Write(d.t.Context(), websocket.MessageText, raw)
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

func (d *scripted) hear(kind string) (f object) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), 30*time.Second)
	defer cancel()
	_, raw, err := d.conn.Read(ctx)
	if err != nil || json.Unmarshal(raw, &f) != nil || f["type"] != kind {
		d.t.Fatalf("got %s, %v; want %s", raw, err, kind)
	}
	return f
}

// TestAKilledGatewayLosesNoCall: it is killed while calls are at each place of their
// way; afterwards each is where it was, ran once, and is read under its requestId.
func TestAKilledGatewayLosesNoCall(t *testing.T) {
	home := rig.NewHome(t, binary)
	g := home.Serve()
	c := home.Authorize("harness")
	session, err := c.Connect(t.Context(), "harness", c.Token.AccessToken)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	var code struct{ Code, URL string }
	if err := json.Unmarshal([]byte(home.OK("devices", "pair", "--json")), &code); err != nil {
		t.Fatal(err)
	}
	d := dialScripted(t, code.URL)
	d.say(object{"type": "pair", "code": code.Code, "device": "laptop"})
	token := d.hear("paired")["token"]
	hello := object{"type": "hello", "proto": 1, "token": token, "device": "laptop", "platform": "test", "resume": true, "tools": []object{{"name": "echo", "desc": "Echo."}}}
	connect := func() *scripted {
		d := dialScripted(t, code.URL)
		d.say(hello)
		d.hear("ready")
		return d
	}
	d = connect()
	call := func(session *client.Session, n int) (out struct {
		Output    string
		Duplicate bool
	}, err error) {
		err = session.Call(t.Context(), "spooky_call", object{"device": "laptop", "tool": "echo", "args": object{"n": n}, "reason": "x", "requestId": fmt.Sprintf("call-%d", n)}, &out)
		return out, err
	}
	answer := func(d *scripted, f object) {
		d.say(object{"type": "tool_result", "ref": f["ref"], "ok": true, "output": fmt.Sprint(f["args"])})
	}

	// The first is answered, the second is sent, the third waits.
	first := make(chan error, 3)
	go func() { _, err := call(session, 1); first <- err }()
	answer(d, d.hear("call"))
	if d.hear("ack"); <-first != nil {
		t.Fatal("the first call failed")
	}
	go func() { _, _ = call(session, 2) }()
	sent := d.hear("call")
	go func() { _, _ = call(session, 3) }()
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(home.OK("devices", "calls", "--json"), `"queued"`); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the third call does not wait")
		}
	}
	g.Kill()
	home.Serve()

	d = connect()
	again := d.hear("call")
	if again["ref"] != sent["ref"] || again["resent"] != true || again["args_sha256"] != sent["args_sha256"] {
		t.Fatalf("%v came again as %v", sent, again)
	}
	answer(d, again)
	d.hear("ack")
	third := d.hear("call")
	if third["resent"] != nil || third["ref"] == sent["ref"] {
		t.Error(third)
	}
	answer(d, third)
	d.hear("ack")
	for n := 1; n <= 3; n++ {
		if out, err := call(session, n); err != nil || !out.Duplicate || out.Output != fmt.Sprintf("map[n:%d]", n) {
			t.Errorf("call %d: %+v %v", n, out, err)
		}
	}
	d.say(object{"type": "ping"})
	d.hear("pong") // and no further call
}
