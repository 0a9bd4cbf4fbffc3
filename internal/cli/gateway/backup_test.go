package gateway

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBackupAndRestore(t *testing.T) {
	bothWays(t, fresh, func(t *testing.T, h *home) {
		if out := h.ok("backup", "list"); !strings.Contains(out, "There is no backup in ") {
			t.Errorf("an empty list says %s", out)
		}
		out := h.ok("backup")
		path, _, _ := strings.Cut(out, "\n")
		if !strings.Contains(out, "It is checked") || !strings.HasPrefix(path, filepath.Join(h.stateDir(), "backups")) {
			t.Fatalf("it says %s", out)
		}
		id := filepath.Base(path)
		if out := h.ok("backup", "list"); !strings.Contains(out, id) {
			t.Errorf("the list is %s", out)
		}
		for _, name := range []string{id, path, filepath.Join(path, "manifest.json")} {
			if out := h.ok("backup", "verify", name); !strings.Contains(out, id+" is whole") {
				t.Errorf("verify %s says %s", name, out)
			}
		}
		var made struct{ Path, Kind string }
		to := filepath.Join(h.dir, "elsewhere")
		if err := json.Unmarshal([]byte(h.ok("backup", "--json", "--to", to)), &made); err != nil || filepath.Dir(made.Path) != to || made.Kind != "manual" {
			t.Errorf("%+v, %v", made, err)
		}
		if err := os.Truncate(filepath.Join(path, "gateway.db"), 100); err != nil {
			t.Fatal(err)
		}
		for _, command := range []string{"backup verify " + id, "restore " + path} {
			if r := h.run(strings.Fields(command)...); r.code != ExitFailed || !strings.Contains(r.stderr, "damaged") {
				t.Errorf("%s: %+v", command, r)
			}
		}
	})
}

func TestBackupCommandLines(t *testing.T) {
	h := newHome(t)
	h.init()
	for _, tt := range []struct {
		args string
		code int
		say  string
	}{
		{"backup verify", ExitUsage, "the backup is missing"},
		{"backup verify nowhere", ExitFailed, "is no backup"},
		{"backup verify /nowhere", ExitFailed, "is no backup"},
		{"backup lisst", ExitUsage, "did you mean"},
		{"backup --frob", ExitUsage, "unknown flag"},
		{"backup --to=", ExitUsage, "--to must name"},
		{"restore", ExitUsage, "the backup is missing"},
		{"restore nowhere", ExitFailed, "is no backup"},
	} {
		if r := h.run(strings.Fields(tt.args)...); r.code != tt.code || !strings.Contains(r.stderr, tt.say) {
			t.Errorf("%s: %+v", tt.args, r)
		}
	}
	// A backup without a config, and none here.
	path, _, _ := strings.Cut(h.ok("backup", "--to", filepath.Join(h.dir, "b")), "\n")
	for _, gone := range []string{h.configPath(), filepath.Join(path, "config.json")} {
		if err := os.Remove(gone); err != nil {
			t.Fatal(err)
		}
	}
	if r := h.run("restore", path); r.code != ExitConfig || !strings.Contains(r.stderr, "gateway init") {
		t.Errorf("without any config: %+v", r)
	}
}
