package device

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"agentrelay/internal/device/state"
	"agentrelay/internal/devices/wire"
)

func TestParseTarget(t *testing.T) {
	for _, c := range []struct {
		in      string
		plain   bool
		url     string
		warning string // or the error
	}{
		{"wss://relay.example", false, "wss://relay.example/device", ""},
		{" https://relay.example/ ", false, "wss://relay.example/device", ""},
		{"WSS://relay.example:8443/other?x=1", false, "wss://relay.example:8443/other?x=1", ""},
		{"ws://127.0.0.1:7777", false, "ws://127.0.0.1:7777/device", ""},
		{"http://localhost:6768/device", false, "ws://localhost:6768/device", ""},
		{"ws://[::1]:1", false, "ws://[::1]:1/device", ""},
		{"ws://100.101.102.103:7777", false, "ws://100.101.102.103:7777/device", "tailnet"},
		{"ws://box.tail1234.ts.net", false, "ws://box.tail1234.ts.net/device", "tailnet"},
		{"ws://[fd7a:115c:a1e0::5]", false, "ws://[fd7a:115c:a1e0::5]/device", "tailnet"},
		{"ws://192.168.1.5:7777", false, "", "readable to everybody on the way"},
		{"ws://192.168.1.5:7777", true, "ws://192.168.1.5:7777/device", "not encrypted"},
		{"ws://localhost.example", false, "", "readable to everybody"},
		{"ws://127.0.0.1.example", false, "", "readable to everybody"},
		{"ftp://relay.example", false, "", "must begin with ws"},
		{"relay.example", false, "", "must be like"},
		{"wss://", false, "", "must be like"},
		{"wss://user:secret@relay.example", false, "", "no user"},
	} {
		got, err := ParseTarget(c.in, c.plain)
		said := got.Warning
		if err != nil {
			said = err.Error()
		}
		if got.URL != c.url || !strings.Contains(said, c.warning) || c.warning == "" && said != "" || strings.Contains(said, "secret") {
			t.Errorf("%s: %+v %v", c.in, got, err)
		}
	}
}

func TestParsePin(t *testing.T) {
	hexes := strings.Repeat("ab", 32)
	for in, want := range map[string]string{"": "", hexes: hexes, strings.ToUpper(hexes): hexes, strings.TrimSuffix(strings.Repeat("AB:", 32), ":"): hexes} {
		if got, err := ParsePin(in); err != nil || got != want {
			t.Errorf("%q: %q %v", in, got, err)
		}
	}
	for _, in := range []string{"abc", hexes + "00", strings.Repeat("zz", 32)} {
		if _, err := ParsePin(in); err == nil {
			t.Errorf("%q was taken", in)
		}
	}
}

// pairing answers one pair frame, as a relay does.
func pairing(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer c.CloseNow()
	_, raw, err := c.Read(r.Context())
	if err != nil {
		return
	}
	f, err := wire.Decode(raw)
	answer := wire.Frame{Type: wire.Paired, Ref: "pair", Device: f.Device, Token: "the-token"}
	if err != nil || f.Type != wire.Pair || f.Code != "GOOD" {
		answer = wire.Frame{Type: wire.Err, Code: wire.CodeAuth, Msg: "this code is not valid\x1b[2J"}
	}
	raw, _ = wire.Encode(answer)
	_ = c.Write(r.Context(), websocket.MessageText, raw)
	_ = c.Close(1000, "paired")
}

func TestPairOverTLS(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(pairing))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that end
	server.StartTLS()
	defer server.Close()
	sum := sha256.Sum256(server.Certificate().Raw)
	pin := hex.EncodeToString(sum[:])
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	id := state.Identity{RelayURL: "wss" + strings.TrimPrefix(server.URL, "https") + "/device", Device: "laptop"}
	for _, c := range []struct {
		name, code, pin string
		roots           *x509.CertPool
		want            string
	}{
		{"its authority is trusted", "GOOD", "", roots, ""},
		{"it is pinned", "GOOD", pin, nil, ""},
		{"nobody knows it", "GOOD", "", nil, "can't be trusted"},
		{"another is pinned", "GOOD", strings.Repeat("00", 32), roots, "another certificate"},
		{"the code is wrong", "BAD", pin, nil, "the relay refused (auth): this code is not valid?[2J"},
	} {
		id.Pin = c.pin
		got, err := Dialer{Roots: c.roots}.Pair(t.Context(), id, c.code)
		if c.want == "" && (err != nil || got.Token != "the-token") || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %+v %v", c.name, got, err)
		}
	}
	id.Pin = pin
	if took, err := (Dialer{}).Probe(t.Context(), id); err != nil || took <= 0 {
		t.Error(took, err)
	}
}

func TestWhatIsNoRelay(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"answered HTTP 404": func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) },
		"answered HTTP 302": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) },
	} {
		server := httptest.NewServer(handler)
		_, err := Dialer{}.Probe(t.Context(), state.Identity{RelayURL: "ws" + strings.TrimPrefix(server.URL, "http") + "/device"})
		server.Close()
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := (Dialer{}).Probe(ctx, state.Identity{RelayURL: "ws://127.0.0.1:1/device"}); err == nil || err.Error() != "nothing listens at the relay's address" {
		t.Error(err)
	}
	if end := dialProblem(&httpError{503, 7 * time.Second}); end.retry != 7*time.Second || end.final {
		t.Errorf("%+v", end)
	}
}
