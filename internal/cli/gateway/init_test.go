package gateway

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"agentrelay/internal/oauth/owner"
)

func TestInitOutput(t *testing.T) {
	for _, tt := range []struct {
		name     string
		terminal bool
		args     []string
	}{
		{"init-loopback", true, []string{"init"}},
		{"init-public", true, []string{"init", "--public-url", "https://gateway.example.com/", "--port", "7000"}},
		{"init-no-terminal", false, []string{"init"}},
		{"init-json", false, []string{"init", "--json"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHome(t)
			h.terminal = tt.terminal
			h.golden(tt.name, h.ok(tt.args...))
		})
	}
}

func TestInitMakesAWorkingSetup(t *testing.T) {
	h := newHome(t)
	out := decode[map[string]string](t, h.ok("init", "--json"))
	if len(out) != 4 || out["configPath"] != h.configPath() || out["stateDir"] != h.stateDir() || out["mcpUrl"] != "http://127.0.0.1:6768/mcp" {
		t.Errorf("got %v", out)
	}
	if !holds(t, h, out["ownerPassword"]) {
		t.Error("the printed password does not hold")
	}
	for path, want := range map[string]fs.FileMode{
		h.configPath(): 0o600, h.stateDir(): fs.ModeDir | 0o700, filepath.Join(h.stateDir(), "owner.json"): 0o600,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s has mode %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
	for _, name := range []string{pendingName, passwordName} {
		if _, err := os.Lstat(filepath.Join(h.stateDir(), name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s was left: %v", name, err)
		}
	}
	raw, err := os.ReadFile(h.configPath())
	if err != nil || !strings.Contains(string(raw), `"sharedOwner": true`) {
		t.Errorf("the config is %s, %v", raw, err)
	}
	if r := h.run("config", "check"); r.code != ExitOK || strings.Contains(r.stderr, "warning") {
		t.Errorf("config check: %+v", r)
	}
}

// holds reports whether pw is the owner's password.
func holds(t *testing.T, h *home, pw string) bool {
	t.Helper()
	p, err := owner.LoadPassword(filepath.Join(h.stateDir(), "owner.json"))
	if err != nil {
		t.Fatal(err)
	}
	ok, err := p.Verify(t.Context(), pw)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

// Without a terminal the password is in a private file and nowhere else.
func TestInitWithoutTerminal(t *testing.T) {
	h := newHome(t)
	r := h.run("init")
	path := filepath.Join(h.stateDir(), passwordName)
	info, err := os.Stat(path)
	if r.code != ExitOK || err != nil || info.Mode() != 0o600 {
		t.Fatalf("%+v: %v, %v", r, info, err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pw := strings.TrimSpace(string(raw))
	if !holds(t, h, pw) {
		t.Error("the password in the file does not hold")
	}
	if strings.Contains(r.stdout+r.stderr, pw) || !strings.Contains(r.stdout, path) {
		t.Errorf("the output has the password or not its path: %+v", r)
	}
}

func TestInitOverwritesNothing(t *testing.T) {
	h := newHome(t)
	h.ok("init", "--json")
	before := tree(t, h.dir)
	other := filepath.Join(h.dir, "other.json")
	for name, args := range map[string][]string{
		"again":                          {"init"},
		"other flags":                    {"init", "--port", "7000"},
		"another config, the same state": {"init", "--config", other},
	} {
		r := h.run(args...)
		if r.code != ExitFailed || !strings.Contains(r.stderr, "nothing is overwritten") || r.stdout != "" {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if after := tree(t, h.dir); after != before {
		t.Errorf("files changed:\n%s\nwere:\n%s", after, before)
	}
}

// A link is as good as a file, also when it leads nowhere yet.
func TestInitOverwritesNoLink(t *testing.T) {
	h := newHome(t)
	if err := os.MkdirAll(filepath.Dir(h.configPath()), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(h.dir, "nowhere.json"), h.configPath()); err != nil {
		t.Fatal(err)
	}
	if r := h.run("init"); r.code != ExitFailed || !strings.Contains(r.stderr, "nothing is overwritten") {
		t.Errorf("got %+v", r)
	}
	if files, err := os.ReadDir(h.stateDir()); err == nil && len(files) > 0 {
		t.Errorf("half a set-up was left: %v", files)
	}
}

// tree is every file under dir with its mode and content.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		b.WriteString(path + " " + info.Mode().String() + "\n")
		if info.Mode().IsRegular() {
			raw, err := os.ReadFile(path)
			b.Write(raw)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestInitFlags(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		args       []string
	}{
		{"path in the URL", `--public-url must not end in /mcp, which is put behind it: write "https://gateway.example.com"`, []string{"--public-url", "https://gateway.example.com/mcp"}},
		{"http", "--public-url must be https", []string{"--public-url", "http://gateway.example.com"}},
		{"port", "--port must be from 1 to 65535", []string{"--port", "0"}},
		{"no number", "invalid argument", []string{"--port", "x"}},
		{"too long for a socket", "--state-dir is too long", []string{"--state-dir", "/tmp/" + strings.Repeat("d", 100)}},
		{"argument", `unexpected argument "x"`, []string{"x"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHome(t)
			r := h.run(append([]string{"init"}, tt.args...)...)
			if r.code != ExitUsage || !strings.Contains(r.stderr, tt.want) || !strings.Contains(r.stderr, `run "gateway init --help"`) {
				t.Errorf("got %+v, want %q", r, tt.want)
			}
			if files, err := os.ReadDir(h.dir); err != nil || len(files) > 0 {
				t.Errorf("something was written: %v, %v", files, err)
			}
		})
	}
}

func TestInitElsewhere(t *testing.T) {
	h := newHome(t)
	config, state := filepath.Join(h.dir, "etc", "relay.json"), filepath.Join(h.dir, "state")
	out := decode[made](t, h.ok("init", "--json", "--config", config, "--state-dir", state))
	if out.ConfigPath != config || out.StateDir != state {
		t.Errorf("got %+v", out)
	}
	if r := h.run("clients", "list", "--config", config); r.code != ExitOK {
		t.Errorf("the config does not work: %+v", r)
	}
	if r := h.run("clients", "list"); r.code != ExitConfig {
		t.Errorf("the default place has a config: %+v", r)
	}
}

func TestInitRefusesASharedDirectory(t *testing.T) {
	h := newHome(t)
	state := filepath.Join(h.dir, "state")
	if err := os.Mkdir(state, 0o755); err != nil {
		t.Fatal(err)
	}
	if r := h.run("init", "--state-dir", state); r.code != ExitFailed || !strings.Contains(r.stderr, "mode 0755") || !strings.Contains(r.stderr, "chmod 700") {
		t.Errorf("got %+v", r)
	}
}

// A set-up that broke off anywhere can be run again, and then works.
func TestInitAfterACrash(t *testing.T) {
	// What a set-up leaves when it is killed, in the order in which it writes.
	steps := []string{"state directory", "pending note", "password file", "owner file", "config"}
	for i := range steps {
		t.Run("after the "+steps[i], func(t *testing.T) {
			whole := newHome(t)
			whole.ok("init")
			h := newHome(t)
			left := []string{".local/state/agent-relay/init.pending", ".local/state/agent-relay/owner-password.txt", ".local/state/agent-relay/owner.json", ".config/agent-relay/config.json"}
			if err := os.MkdirAll(h.stateDir(), 0o700); err != nil {
				t.Fatal(err)
			}
			for _, name := range left[:i] {
				raw := []byte("begun\n")
				if name != left[0] {
					var err error
					if raw, err = os.ReadFile(filepath.Join(whole.dir, name)); err != nil {
						t.Fatal(err)
					}
				}
				to := filepath.Join(h.dir, name)
				if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
					t.Fatal(err)
				}
				text := strings.ReplaceAll(string(raw), whole.dir, h.dir)
				if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			out := decode[map[string]string](t, h.ok("init", "--json"))
			if !holds(t, h, out["ownerPassword"]) {
				t.Error("the printed password does not hold")
			}
			if _, err := os.Lstat(filepath.Join(h.stateDir(), passwordName)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("an old password file was left: %v", err)
			}
			if r := h.run("init"); r.code != ExitFailed {
				t.Errorf("a third init: %+v", r)
			}
		})
	}
}

// A password that could not be shown is not lost behind a finished set-up.
func TestInitWithABrokenStdout(t *testing.T) {
	h := newHome(t)
	var stderr buffer
	env := h.env(brokenPipe{}, &stderr, "init", "--json")
	if code := Run(t.Context(), env); code != ExitFailed || !strings.Contains(stderr.String(), "run the command again") {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	if r := h.run("serve"); r.code != ExitConfig || !strings.Contains(r.stderr, "gateway owner reset-password") {
		t.Errorf("serve with a password that nobody saw: %+v", r)
	}
	reset := h.env(brokenPipe{}, &stderr, "owner", "reset-password", "--json")
	if code := Run(t.Context(), reset); code != ExitFailed {
		t.Errorf("a reset whose password nobody saw: exit code %d", code)
	}
	if _, err := os.Stat(filepath.Join(h.stateDir(), pendingName)); err != nil {
		t.Errorf("after that reset serve would start with a password that nobody knows: %v", err)
	}
	out := decode[map[string]string](t, h.ok("init", "--json"))
	if !holds(t, h, out["ownerPassword"]) {
		t.Error("the printed password does not hold")
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// Of set-ups at the same time one does the work, and its password holds.
func TestInitAtTheSameTime(t *testing.T) {
	h := newHome(t)
	results := make(chan result)
	for range 8 {
		go func() { results <- h.run("init", "--json") }()
	}
	winners := 0
	for range 8 {
		r := <-results
		switch r.code {
		case ExitOK:
			winners++
			if !holds(t, h, decode[map[string]string](t, r.stdout)["ownerPassword"]) {
				t.Error("the printed password does not hold")
			}
		case ExitFailed:
			if !regexp.MustCompile("nothing is overwritten|is at work").MatchString(r.stderr) {
				t.Errorf("a loser says %q", r.stderr)
			}
		default:
			t.Errorf("got %+v", r)
		}
	}
	if winners != 1 {
		t.Errorf("%d set-ups won", winners)
	}
}
