package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentrelay/internal/config"
	"agentrelay/internal/oauth"
	"agentrelay/internal/store"
)

func TestServe(t *testing.T) {
	h := newHome(t)
	h.init()
	s := h.serve()
	if want := "Agent Relay is ready at " + s.url + "\n"; s.stdout != want {
		t.Errorf("standard output is %q, want %q", s.stdout, want)
	}
	resp, err := http.Get(strings.TrimSuffix(s.url, "/mcp") + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("/healthz answers %d", resp.StatusCode)
	}
	info, err := os.Lstat(filepath.Join(h.stateDir(), config.AdminSocket))
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("the owner's socket: %v, %v", info, err)
	}
	s.end(t)
	for _, line := range strings.Split(strings.TrimSpace(s.stderr.String()), "\n") {
		var entry struct{ Time, Level, Msg string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Msg == "" || !regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`).MatchString(entry.Time) {
			t.Errorf("a log line is not JSON or has no time in UTC with milliseconds: %s", line)
		}
	}
	h.serve().end(t) // and once more
}

// setPort changes the port in the config that serve made.
func (h *home) setPort(port int) {
	h.t.Helper()
	raw, err := os.ReadFile(h.configPath())
	if err != nil {
		h.t.Fatal(err)
	}
	text := strings.ReplaceAll(string(raw), strconv.Itoa(config.DefaultPort), strconv.Itoa(port))
	if err := os.WriteFile(h.configPath(), []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// The first serve sets up. Its port is taken here, so that the test needs none
// of its own; then it says so, and the set-up stays.
func TestServeSetsUpFirst(t *testing.T) {
	if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", config.DefaultPort)); err == nil {
		defer l.Close()
	} // else somebody else has it, which is as good
	for _, terminal := range []bool{true, false} {
		t.Run(fmt.Sprintf("terminal %v", terminal), func(t *testing.T) {
			h := newHome(t)
			h.terminal = terminal
			r := h.run("serve")
			if r.code != ExitFailed || !strings.Contains(r.stderr, "port 6768 is in use") || !strings.Contains(r.stderr, "choose another port in the config") {
				t.Errorf("got %+v", r)
			}
			shown, silent := r.stdout, r.stderr
			if !terminal {
				shown, silent = r.stderr, r.stdout // a program waits for the ready line there
			}
			if !strings.Contains(shown, "Owner password: ") || strings.Contains(silent, "Owner password") {
				t.Errorf("the set-up is shown in the wrong place: %+v", r)
			}
			if _, err := os.Stat(filepath.Join(h.stateDir(), passwordName)); (err == nil) == terminal {
				t.Errorf("the password file: %v", err)
			}
			h.setPort(freePort(t))
			s := h.serve()
			if strings.Contains(s.stdout+s.stderr.String(), "Owner password") {
				t.Error("the second start sets up again")
			}
			s.end(t)
		})
	}
}

func TestServeOnALockedState(t *testing.T) {
	h := newHome(t)
	h.init()
	h.serve()
	r := h.run("serve")
	if r.code != ExitFailed || !strings.Contains(r.stderr, fmt.Sprintf("in use by process %d", os.Getpid())) || r.stdout != "" {
		t.Errorf("got %+v", r)
	}
	h.ok("status") // the first one is unharmed
}

// What stays wrong until the owner changes it ends with 78, so that a service
// manager does not start it again and again.
func TestServeEndsForGood(t *testing.T) {
	for _, tt := range []struct {
		name   string
		breaks func(t *testing.T, h *home)
		stderr string
	}{
		{"no owner file", func(t *testing.T, h *home) { must(t, os.Remove(filepath.Join(h.stateDir(), "owner.json"))) }, "gateway owner reset-password"},
		{"an owner file that others can read", func(t *testing.T, h *home) {
			must(t, os.Chmod(filepath.Join(h.stateDir(), "owner.json"), 0o644))
		}, "chmod 600"},
		{"a state directory that others can read", func(t *testing.T, h *home) { must(t, os.Chmod(h.stateDir(), 0o750)) }, "chmod 700"},
		{"a newer database", func(t *testing.T, h *home) {
			s, err := store.Open(t.Context(), store.Options{Dir: h.stateDir()})
			must(t, err)
			must(t, store.Exec(t.Context(), s, func(tx *store.Tx) error {
				_, err := tx.Exec(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, 1)`)
				return err
			}))
			must(t, s.Close())
		}, "the database has schema 9999"},
		{"a config that is not one", func(t *testing.T, h *home) {
			must(t, os.WriteFile(h.configPath(), []byte("{"), 0o600))
		}, "line 1: is not complete JSON"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHome(t)
			h.init()
			tt.breaks(t, h)
			if r := h.run("serve"); r.code != ExitConfig || !strings.Contains(r.stderr, tt.stderr) || r.stdout != "" {
				t.Errorf("got %+v, want %d and %q", r, ExitConfig, tt.stderr)
			}
		})
	}
}

// The next step names the config that was named, or it would be taken in another
// gateway.
func TestNextStepsKeepTheConfig(t *testing.T) {
	h := newHome(t)
	other := filepath.Join(h.dir, "other.json")
	h.ok("init", "--json", "--config", other)
	must(t, os.Remove(filepath.Join(h.stateDir(), "owner.json")))
	if r := h.run("serve", "--config", other); !strings.Contains(r.stderr, "gateway owner reset-password --config "+other) {
		t.Errorf("without an owner file: %s", r.stderr)
	}
	h.ok("owner", "reset-password", "--json", "--config", other)
	must(t, os.WriteFile(filepath.Join(h.stateDir(), pendingName), []byte("begun\n"), 0o600))
	if r := h.run("serve", "--config", other); !strings.Contains(r.stderr, "gateway owner reset-password --config "+other) {
		t.Errorf("after a set-up that broke off: %s", r.stderr)
	}
}

// What SQLite says of a disk or a file is no next step.
func TestTroubleOfTheDatabaseHasANextStep(t *testing.T) {
	h := newHome(t)
	h.init()
	must(t, os.WriteFile(filepath.Join(h.stateDir(), store.FileName), bytes.Repeat([]byte("no database "), 1000), 0o600))
	for _, args := range [][]string{{"serve"}, {"clients", "list"}, {"status"}} {
		if r := h.run(args...); r.code != ExitFailed || !strings.Contains(r.stderr, "free space") || !strings.Contains(r.stderr, "backup") {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestNetworkFilesystemIsForGood(t *testing.T) {
	if got := permanence(fmt.Errorf("opening: %w", &store.NetworkFSError{Dir: "/x", FS: "nfs"})); got != ExitConfig {
		t.Errorf("got %d", got)
	}
}

func TestWarningsAreLoggedOnce(t *testing.T) {
	h := newHome(t)
	h.init()
	raw, err := os.ReadFile(h.configPath())
	must(t, err)
	text := strings.Replace(string(raw), "{", `{"paseoCommand": "/bin/paseo", "safedial": {"allowLoopback": true},`, 1)
	must(t, os.WriteFile(h.configPath(), []byte(text), 0o600))
	s := h.serve()
	s.end(t)
	log := s.stderr.String()
	for _, key := range []string{"paseoCommand", "safedial.allowLoopback"} {
		if n := strings.Count(log, key); n != 1 {
			t.Errorf("%s is named %d times in the log:\n%s", key, n, log)
		}
	}
	if r := h.run("clients", "list"); strings.Contains(r.stderr, "paseoCommand") {
		t.Errorf("other commands warn too: %s", r.stderr)
	}
}

func TestLogForm(t *testing.T) {
	for _, tt := range []struct {
		config   config.Log
		terminal bool
		want     string
	}{
		{config.Log{Level: "info"}, true, `level=WARN msg=hello`},
		{config.Log{Level: "info"}, false, `"level":"WARN","msg":"hello"`},
		{config.Log{Level: "info", Format: "json"}, true, `"level":"WARN","msg":"hello"`},
		{config.Log{Level: "info", Format: "text"}, false, `level=WARN msg=hello`},
		{config.Log{Level: "error"}, false, ``},
	} {
		var out strings.Builder
		a := &app{Env: Env{Stderr: &out, StderrTerminal: tt.terminal}}
		a.logger(tt.config).Warn("hello")
		if got := out.String(); !strings.Contains(got, tt.want) || (tt.want == "") != (got == "") {
			t.Errorf("%+v, terminal %v: %q", tt.config, tt.terminal, got)
		}
	}
	var out strings.Builder
	(&app{Env: Env{Stderr: &out}}).logger(config.Log{Level: "debug"}).Debug("hello", slog.Group("g", slog.Time("time", time.Now())))
	if !strings.Contains(out.String(), "hello") {
		t.Errorf("debug is not written: %s", out.String())
	}
}

func TestSignals(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			h := newHome(t)
			h.init()
			c, stdout, stderr := h.program("serve")
			eventually(t, "the gateway is ready", func() bool { return strings.Contains(stdout.String(), "ready at") })
			must(t, c.Process.Signal(sig))
			if err := c.Wait(); err != nil {
				t.Errorf("it ended with %v: %s", err, stderr)
			}
			if _, err := os.Lstat(filepath.Join(h.stateDir(), config.AdminSocket)); err == nil {
				t.Error("the owner's socket was left")
			}
		})
	}
}

// After SIGKILL the owner's commands and the next start work, and what was done
// before is there.
func TestAfterAKill(t *testing.T) {
	h := newHome(t)
	h.init()
	c, stdout, _ := h.program("serve")
	eventually(t, "the gateway is ready", func() bool { return strings.Contains(stdout.String(), "ready at") })
	id := decode[oauth.AddedClient](t, h.ok("clients", "add", "--name", "App", "--redirect", "http://localhost/cb", "--json")).ID
	must(t, c.Process.Kill())
	if err := c.Wait(); err == nil {
		t.Fatal("it was not killed")
	}
	if _, err := os.Lstat(filepath.Join(h.stateDir(), config.AdminSocket)); err != nil {
		t.Fatalf("the killed gateway left no socket, so nothing is tested: %v", err)
	}
	if r := h.run("status"); r.code != ExitFailed || !strings.Contains(r.stdout, "not running") {
		t.Errorf("status says %+v", r)
	}
	if out := h.ok("clients", "list"); !strings.Contains(out, id) {
		t.Errorf("the client is gone: %s", out)
	}
	h.serve()
	if out := h.ok("status", "--json"); !decode[statusOut](t, out).Running {
		t.Errorf("status says %s", out)
	}
	if out := h.ok("clients", "list"); !strings.Contains(out, id) {
		t.Errorf("the client is gone: %s", out)
	}
}
