package gateway

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// page reads /metrics as a program of this machine does.
func (h *harness) page(t *testing.T, more ...string) (status int, text string) {
	t.Helper()
	header := http.Header{}
	for i := 0; i < len(more); i += 2 {
		header.Set(more[i], more[i+1])
	}
	resp, body := h.do(t, request{method: "GET", path: "/metrics", header: header})
	return resp.StatusCode, body
}

func TestMetrics(t *testing.T) {
	h := start(t, testConfig(t))
	token := goodToken
	h.call(t, token, "register_peer", map[string]any{"peerId": "secret-peer", "kind": "chat"})
	h.call(t, token, "register_peer", map[string]any{"peerId": "other", "kind": "chat"})
	h.call(t, token, "send_peer_message", map[string]any{"messageId": "11111111-1111-4111-8111-111111111111", "fromPeerId": "secret-peer", "toPeerId": "other", "text": "secret text"})
	h.call(t, token, "get_peer_message", map[string]any{"messageId": "22222222-2222-4222-8222-222222222222"})
	h.do(t, request{path: "/mcp", header: legacy("Authorization", "Bearer "+token, "Accept", "application/json"), body: rpc(false, "tools/call", callParams("no_such_tool", nil))})
	h.do(t, request{method: "GET", path: "/nowhere/secret-path"})

	status, text := h.page(t)
	if status != http.StatusOK {
		t.Fatalf("status %d: %s", status, text)
	}
	for _, want := range []string{
		`agentrelay_build_info{version="`,
		`agentrelay_tool_calls_total{tool="register_peer",outcome="ok"} 2`,
		`agentrelay_tool_calls_total{tool="get_peer_message",outcome="unknown_message"} 1`,
		`agentrelay_tool_calls_total{tool="unknown",`,
		`agentrelay_tool_call_seconds_count{tool="register_peer"} 2`,
		`agentrelay_http_requests_total{route="/mcp",method="POST",status="200"}`,
		`agentrelay_http_requests_total{route="other",method="GET",status="404"} 1`,
		`agentrelay_http_request_seconds_bucket{route="/mcp",le="+Inf"}`,
		`agentrelay_store_commits_total `, `agentrelay_store_writes_total `, `agentrelay_store_busy_seconds_total `, `agentrelay_store_up 1`,
		`agentrelay_peers{is="chat"} 2`, `agentrelay_hosts{state="up"} 1`, `agentrelay_commands_running 0`, `agentrelay_resident_bytes `,
	} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("there is no %s in\n%s", want, text)
		}
	}
	for _, secret := range []string{"secret", "client", "11111111", token, "ar_"} {
		if strings.Contains(text, secret) {
			t.Errorf("%q is in\n%s", secret, text)
		}
	}
	// The form, line by line (exposition format 0.0.4).
	line := regexp.MustCompile(`^(# (HELP|TYPE) [a-z_]+ .+|[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [0-9.e+-]+)$`)
	for _, l := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if !line.MatchString(l) {
			t.Errorf("not of the format: %s", l)
		}
	}
}

// Whoever comes through a proxy finds nothing, whatever the proxy says of him.
func TestMetricsAreForThisMachine(t *testing.T) {
	h := start(t, testConfig(t))
	for _, header := range [][]string{
		{"X-Forwarded-For", "203.0.113.9"}, {"X-Forwarded-For", "127.0.0.1"}, {"X-Forwarded-Proto", "https"}, {"X-Forwarded-Host", "x"},
		{"Forwarded", "for=127.0.0.1"}, {"Via", "1.1 proxy"}, {"X-Real-Ip", "127.0.0.1"},
	} {
		if status, text := h.page(t, header...); status != http.StatusNotFound || strings.Contains(text, "agentrelay") {
			t.Errorf("%v: status %d, %.100s", header, status, text)
		}
	}
	for remote, want := range map[string]bool{"127.0.0.1:1": true, "[::1]:1": true, "192.0.2.1:1": false, "10.0.0.1:5": false, "": false} {
		for host, local := range map[string]bool{"127.0.0.1:6768": true, "localhost": true, "[::1]:6768": true, "gateway.example.com": false, "": false} {
			if got := isDirect(&http.Request{RemoteAddr: remote, Host: host}); got != (want && local) {
				t.Errorf("from %q to %q: %v", remote, host, got)
			}
		}
	}
	if resp, _ := h.do(t, request{path: "/metrics"}); resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: status %d", resp.StatusCode)
	}
}
