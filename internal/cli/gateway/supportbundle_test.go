package gateway

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// unpack is the files of a bundle.
func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(raw)
	}
}

// Wherever a secret or a name of the owner's can lie, there is a canary; none gets
// into a bundle.
func TestSupportBundleHasNoSecrets(t *testing.T) {
	h := newHome(t)
	h.init()
	const canary = "canary"
	state := h.stateDir()
	for _, name := range []string{"grok-wake/privateSecret.json", "agent-channels/a.json", "owner-password.txt", "direct/commands/x/spec.json"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(state, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(state, name), []byte(canary), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h.editConfig(fmt.Sprintf(`"oauth": {"redirects": ["https://%[1]s.example/cb"]}, "allowedHosts": ["%[1]s.example"], "allowedOrigins": ["https://%[1]s.example"],
		"allowedRoots": ["/srv/%[1]s/x"], "direct": {"projects": [{"id": "%[1]s", "name": "%[1]s", "path": "/srv/%[1]s/x", "commandMode": "registered", "commands": [{"name": "%[1]s", "argv": ["run", "--password=%[1]s"]}]}]},
		"hosts": [{"id": "%[1]s", "name": "%[1]s", "transport": "ssh", "target": "ssh://%[1]s@%[1]s", "allowedRoots": ["/home/%[1]s/x"], "remoteStateDir": "/home/%[1]s/y"}],
		"peerWakeTargets": [{"owner": "local-owner:%[1]s", "peerId": "%[1]s", "generation": 1, "routineId": "%[1]s", "credentialFile": "env:%[1]s"}]`, canary))
	h.ok("clients", "add", "--name", canary, "--redirect", "https://canary.example/cb")
	lines := []string{
		`{"time":"2026-11-30T01:50:23.212Z","level":"INFO","msg":"request","id":"u6n2rzsr","path":"/mcp","status":200,"ms":3,"address":"198.51.100.7","client":"canary-client","tool":"list_peers","unknown":"canary"}`,
		`{"time":"2026-11-30T01:50:23.212Z","level":"ERROR","msg":"an event could not be sent","error":"Post \"https://canary.example/hook?canary=1\": open /home/canary/x: token canarycanarycanarycanary of canary@example.com at 203.0.113.9"}`,
		"panic: canary", "",
	}
	log := filepath.Join(h.dir, "log")
	if err := os.WriteFile(log, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}

	for _, running := range []bool{false, true} {
		bundle := filepath.Join(h.dir, fmt.Sprint("bundle-", running, ".tar.gz"))
		if running {
			h.serve()
		}
		h.ok("support-bundle", "--to", bundle, "--log", log)
		files := unpack(t, bundle)
		for name, text := range files {
			for _, secret := range []string{canary, "198.51.100.7", "203.0.113.9", h.dir} {
				if strings.Contains(text, secret) {
					t.Errorf("running %v: %s has %q:\n%s", running, name, secret, text)
				}
			}
			if owner, err := os.ReadFile(filepath.Join(state, "owner.json")); err != nil || strings.Contains(text, strings.TrimSpace(string(owner))) {
				t.Errorf("%s has the owner's file, %v", name, err)
			}
		}
		want := []string{"about.json", "config.json", "files.json", "log.jsonl", "remarks.json", "rows.json", "schema.sql", "status.json"}
		if running {
			want = append(want, "metrics.txt")
		}
		for _, name := range want {
			if files[name] == "" {
				t.Errorf("running %v: there is no %s: %v", running, name, sortedKeys(files))
			}
		}
		if !strings.Contains(files["config.json"], `"commandMode": "registered"`) || !strings.Contains(files["config.json"], `"2 words"`) || !strings.Contains(files["config.json"], `"/…/x"`) {
			t.Errorf("the config says nothing any more:\n%s", files["config.json"])
		}
		if !strings.Contains(files["log.jsonl"], `"tool":"list_peers"`) || !strings.Contains(files["log.jsonl"], `an event could not be sent`) {
			t.Errorf("the log says nothing any more:\n%s", files["log.jsonl"])
		}
		if !strings.Contains(files["rows.json"], `"mailbox_peers": 0`) || !strings.Contains(files["schema.sql"], "CREATE TABLE audit_log") {
			t.Errorf("the database is not described:\n%s", files["rows.json"])
		}
		if info, err := os.Stat(bundle); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
		if r := h.run("support-bundle", "--to", bundle); r.code != ExitFailed || !strings.Contains(r.stderr, "--to") {
			t.Errorf("over another file: %+v", r)
		}
	}
}

// A gateway that is not even set up has a bundle too.
func TestSupportBundleOfABrokenGateway(t *testing.T) {
	h := newHome(t)
	bundle := filepath.Join(h.dir, "b.tar.gz")
	var out struct{ Files []string }
	if err := json.Unmarshal([]byte(h.ok("support-bundle", "--json", "--to", bundle)), &out); err != nil || !slices.Contains(out.Files, "about.json") {
		t.Fatalf("%+v, %v", out, err)
	}
	if files := unpack(t, bundle); !strings.Contains(files["about.json"], "there is no config") {
		t.Errorf("it says %s", files["about.json"])
	}
	h.init()
	if err := os.WriteFile(filepath.Join(h.stateDir(), "gateway.db"), []byte("no database"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.ok("support-bundle", "--to", bundle+"2")
	if files := unpack(t, bundle+"2"); files["rows.json.error.txt"] == "" || files["files.json"] == "" {
		t.Errorf("there are %v", sortedKeys(files))
	}
}
