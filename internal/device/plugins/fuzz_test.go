package plugins

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"agentrelay/internal/devices/wire"
)

type httpRequest = http.Request

func nameOK(name string) bool { return wire.NameForm.MatchString(name) }

// FuzzManifest: whatever is in a manifest, it is taken or refused in words that can
// be shown, and what is taken keeps the rules.
func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"name":"run","description":"d","entry":"run.py","interpreter":"python3","schema":{"type":"object"},"timeout_ms":60000,"cwd":"inherit","summary_hint":"cmd","requires":["net","fs"]}`))
	f.Add([]byte(`{"name":"run","description":"d","type":"mcp","command":["a"],"env":{"A":"b"}}`))
	f.Add([]byte(`{"name":"run","description":"d","type":"mcp","url":"http://127.0.0.1:1/mcp","headers":{"A":"b"}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, schema, err := parse(raw, "run")
		if err != nil {
			if s := err.Error(); !utf8.ValidString(s) || len(s) > 4096 {
				t.Fatalf("%q", s)
			}
			return
		}
		if m.Name != "run" || m.Type != "mcp" && (schema == nil || m.Entry == "" || strings.HasPrefix(m.Entry, "/")) || m.timeout() <= 0 || m.timeout() > maxTimeout {
			t.Fatalf("%+v", m)
		}
	})
}

// FuzzOutput: whatever a plugin prints, in whatever pieces, comes to one result that
// fits into a frame.
func FuzzOutput(f *testing.F) {
	f.Add([]byte("x\n{\"ok\":true,\"output\":\"y\",\"summary\":\"z\"}\n[]"), 3)
	f.Add([]byte("{\"ok\":false}\n{\"ok\":"), 1)
	f.Add([]byte("\xff{}\n{\"ok\":true,\"output\":\"\\ud800\"}"), 7)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, raw []byte, piece int) {
		piece = max(1, min(piece, 64))
		whole, pieces := &lastObject{}, &lastObject{}
		whole.Write(raw)
		for rest := raw; len(rest) > 0; {
			n := min(piece, len(rest))
			pieces.Write(rest[:n])
			rest = rest[n:]
		}
		a, b := whole.result(&tail{}), pieces.result(&tail{})
		if a != b {
			t.Fatalf("%+v in one piece, %+v in pieces of %d", a, b, piece)
		}
		ok := a.OK
		got := Root{Spill: dir, Device: "d"}.Bound("t", a)
		frame, err := wire.Encode(wire.Frame{Type: wire.ToolResult, Ref: "r", OK: &ok, Output: got.Output, Summary: got.Summary})
		if err != nil || !json.Valid(frame) || !utf8.ValidString(got.Output+got.Summary) || strings.ContainsAny(got.Summary, "\n\r") {
			t.Fatalf("%v %+v", err, got)
		}
	})
}
