package local_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"agentrelay/internal/config"
	"agentrelay/internal/direct"
	"agentrelay/internal/direct/files"
	"agentrelay/internal/hosts/local"
)

// TestTheGatewaysOwnFilesAreProtected: a project that holds everything shows
// nothing of the gateway.
func TestTheGatewaysOwnFilesAreProtected(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(home, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	raw, err := json.Marshal(map[string]any{
		"stateDir": home + "/state", "ownerTokenFile": home + "/owner.json", "allowedRoots": []string{home},
		"direct":          map[string]any{"projects": []any{map[string]any{"id": "home", "path": home, "write": true}}},
		"peerWakeTargets": []any{map[string]any{"owner": "local-owner:shared", "peerId": "p", "generation": 1, "routineId": "r", "credentialFile": home + "/wake.json"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	path := write("config.json", string(raw))
	const units = ".config/systemd/user/"
	own := []string{
		"owner.json", "wake.json", "state/gateway.db", units + "agent-relay.service", units + "agent-relay.service.d/override.conf", units + "service.d/x.conf",
		".local/share/systemd/user/agent-relay.service", ".local/share/systemd/user/agent-.service.d/x.conf", "Library/LaunchAgents/agent-relay.plist",
	}
	for _, name := range append(own, "plain.txt", units+"other.service") {
		write(name, "x")
	}
	c, _, err := config.Load(path, os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	h, err := local.Open(local.Options{Config: c})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	for _, name := range append(own, "config.json") {
		if _, err := h.Files.ReadDirectFile(t.Context(), files.ReadDirectFileIn{ProjectID: "home", Path: name}); !errors.Is(err, direct.ProtectedPath) {
			t.Errorf("reading %s: %v", name, err)
		}
	}
	if _, err := h.Files.ReadDirectFile(t.Context(), files.ReadDirectFileIn{ProjectID: "home", Path: "plain.txt"}); err != nil {
		t.Error(err)
	}
	for _, name := range []string{".local/share/systemd/user/agent-relay.service.d/new.conf", units + "agent-.service.d/new.conf"} {
		in := files.WriteDirectFileIn{ProjectID: "home", Path: name, Content: "x", CreateParents: true}
		if _, err := h.Files.WriteDirectFile(t.Context(), in); !errors.Is(err, direct.ProtectedPath) {
			t.Errorf("making %s: %v", name, err)
		}
	}
}
