package gateway

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// Whatever the body is, the endpoint answers with JSON that a client can read,
// and never with trouble of its own.
func FuzzBody(f *testing.F) {
	for _, body := range []string{
		``, `null`, `[]`, `{}`, `{"jsonrpc":"2.0","id":1,"method":"ping"}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"list_peers","arguments":{"limit":1e999}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"stop_peer","arguments":{"peerId":"\ud83d"}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`,
		`[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":1,"method":"ping"}]`,
		`{"jsonrpc":"2.0","id":1,"result":{}}`, `{"id":{},"method":5}`, "\xff", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"zzz"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"events/subscribe","params":{"name":"peer.message","arguments":[],"delivery":7}}`,
	} {
		f.Add(body, false)
		f.Add(body, true)
	}
	g := open(f, testConfig(f), io.Discard)
	f.Cleanup(func() { g.Close() })
	handler := g.Handler()
	f.Fuzz(func(t *testing.T, body string, isModern bool) {
		ctx, leave := context.WithTimeout(t.Context(), time.Second) // some calls wait by design
		defer leave()
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1/mcp", strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+goodToken)
		r.Header.Set("Content-Type", "application/json")
		if isModern {
			r.Header.Set("MCP-Protocol-Version", firstStateless)
			r.Header.Set("Mcp-Method", "tools/list")
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		switch {
		case ctx.Err() != nil: // nobody is there to read an answer
		case w.Code >= 500:
			t.Fatalf("status %d: %s", w.Code, w.Body)
		case w.Code == http.StatusAccepted:
			if w.Body.Len() != 0 {
				t.Fatalf("202 with a body: %s", w.Body)
			}
		case !json.Valid(w.Body.Bytes()):
			t.Fatalf("status %d without JSON: %q", w.Code, w.Body)
		}
	})
}
