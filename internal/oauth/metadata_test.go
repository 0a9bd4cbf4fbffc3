package oauth

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMetadataGolden(t *testing.T) {
	r := newRelay(t)
	check := func(path, golden string) {
		t.Helper()
		want, err := os.ReadFile(filepath.Join("testdata", golden))
		if err != nil {
			t.Fatal(err)
		}
		root := r.do(httptest.NewRequest("GET", path, nil))
		suffixed := r.do(httptest.NewRequest("GET", path+"/mcp?x=1", nil))
		head := r.do(httptest.NewRequest("HEAD", path, nil))
		if root.status != 200 || root.body != suffixed.body {
			t.Fatalf("%s: %d\n%s\n%s", path, root.status, root.body, suffixed.body)
		}
		if head.status != 200 || head.body != "" || head.header.Get("Content-Length") != root.header.Get("Content-Length") {
			t.Fatalf("HEAD %s: %d %v", path, head.status, head.header)
		}
		if root.header.Get("Content-Type") != "application/json" || root.header.Get("Cache-Control") != "public, max-age=60" {
			t.Fatal(root.header)
		}
		var got bytes.Buffer
		if err := json.Indent(&got, []byte(root.body), "", "  "); err != nil {
			t.Fatal(err)
		}
		got.WriteByte('\n')
		if d := cmp.Diff(string(want), got.String()); d != "" {
			t.Errorf("%s: %s", golden, d)
		}
		r.wantRefused(r.form(path), 405, "invalid_request")
	}
	check("/.well-known/oauth-protected-resource", "protected-resource.json")
	check("/.well-known/oauth-authorization-server", "authorization-server.json")
	r.addClient(false)
	check("/.well-known/oauth-authorization-server", "authorization-server.json")
	r.addClient(true)
	check("/.well-known/oauth-authorization-server", "authorization-server-with-secrets.json")
}
