package gateway

import (
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "modernc.org/sqlite"
)

func TestMigrateWithNothingToDo(t *testing.T) {
	h := newHome(t)
	h.init()
	if r := h.run("migrate", "shared-owner"); r.code != ExitFailed || !strings.Contains(r.stderr, "no gateway's database") {
		t.Errorf("before the first start: %+v", r)
	}
	h.ok("clients", "list") // makes the database
	if out := h.ok("migrate", "shared-owner", "--apply"); !strings.Contains(out, "Nothing belongs to single clients.") {
		t.Errorf("it says %s", out)
	}
	if _, err := os.Stat(filepath.Join(h.stateDir(), "backups")); err == nil {
		t.Error("a backup was made for nothing")
	}
}

func TestImportCommand(t *testing.T) {
	h := newHome(t)
	h.init()
	from := t.TempDir()
	for _, tt := range []struct {
		args string
		code int
		say  string
	}{
		{"migrate import", ExitUsage, "--from is missing"},
		{"migrate import --from " + from, ExitFailed, "none of the databases"},
		{"migrate import --from /nowhere", ExitFailed, "nothing to import"},
	} {
		if r := h.run(strings.Fields(tt.args)...); r.code != tt.code || !strings.Contains(r.stderr, tt.say) {
			t.Errorf("%s: %+v", tt.args, r)
		}
	}
	db, err := sql.Open("sqlite", filepath.Join(from, "devspace.sqlite"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.Exec(`CREATE TABLE oauth_clients (client_id TEXT PRIMARY KEY, client_json TEXT, issued_at INTEGER);
		INSERT INTO oauth_clients VALUES ('devspace-1', '{"client_name":"ChatGPT","redirect_uris":["https://chatgpt.com/cb"]}', 1760000000)`)
	if err != nil {
		t.Fatal(err)
	}
	db.Close()
	if out := h.ok("migrate", "import", "--from", from); !strings.Contains(out, "OAuth client") || !strings.Contains(out, "Nothing was changed") {
		t.Errorf("the rehearsal says %s", out)
	}
	if out := h.ok("clients", "list"); strings.Contains(out, "devspace-1") {
		t.Error("a rehearsal wrote")
	}
	if out := h.ok("migrate", "import", "--from", from, "--apply"); !strings.Contains(out, "connect each client again") {
		t.Errorf("it says %s", out)
	}
	if out := h.ok("clients", "list"); !strings.Contains(out, "devspace-1") {
		t.Errorf("the clients are %s", out)
	}
	if out := h.ok("backup", "list"); !strings.Contains(out, "-migration") {
		t.Errorf("the backups are %s", out)
	}
}
