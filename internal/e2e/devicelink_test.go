package e2e

import (
	"context"
	"crypto/tls"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
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
