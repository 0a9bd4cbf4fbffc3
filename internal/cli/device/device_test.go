package device

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"agentrelay/internal/devices/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// owner is somebody at a command line with a home of their own.
type owner struct {
	t    *testing.T
	home string
	env  map[string]string
	url  string
}

type result struct {
	code           int
	stdout, stderr string
}

// newOwner has a relay that pairs with the code GOOD and takes every device.
func newOwner(t *testing.T) *owner {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			_, raw, err := c.Read(context.Background())
			if err != nil {
				return
			}
			f, _ := wire.Decode(raw)
			answer := f.Answer(wire.Pong)
			switch {
			case f.Type == wire.Pair && f.Code == "GOOD":
				answer = wire.Frame{Type: wire.Paired, Device: f.Device, Token: "the-secret-token"}
			case f.Type == wire.Pair:
				answer = wire.Frame{Type: wire.Err, Code: wire.CodeAuth, Msg: "this code is not valid"}
			case f.Type == wire.Hello:
				answer = wire.Frame{Type: wire.Ready, Device: f.Device, Proto: 1, Resume: true}
			}
			raw, _ = wire.Encode(answer)
			if c.Write(context.Background(), websocket.MessageText, raw) != nil {
				return
			}
		}
	}))
	home, err := os.MkdirTemp("", "device") // not t.TempDir: the name of a socket must fit
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		os.RemoveAll(home)
	})
	return &owner{t, home, map[string]string{"HOME": home, "PATH": os.Getenv("PATH")}, "ws" + strings.TrimPrefix(server.URL, "http")}
}

func (o *owner) with(ctx context.Context, stdin string, args ...string) result {
	var stdout, stderr bytes.Buffer
	code := Run(ctx, Env{Args: args, Getenv: func(n string) string { return o.env[n] }, Stdin: strings.NewReader(stdin), Stdout: &stdout, Stderr: &stderr, Now: time.Now})
	return result{code, stdout.String(), stderr.String()}
}

func (o *owner) run(args ...string) result { return o.with(context.Background(), "", args...) }

func (o *owner) ok(args ...string) string {
	o.t.Helper()
	r := o.run(args...)
	if r.code != 0 {
		o.t.Fatalf("%v: %+v", args, r)
	}
	return r.stdout
}

func TestUsage(t *testing.T) {
	o := newOwner(t)
	for args, want := range map[string]string{
		"":                        "a command is missing: one of pair, run, daemon, plugins, status, unpair, policy, version",
		"pear":                    `unknown command "pear"`,
		"policy":                  "a command is missing: one of list, revoke",
		"pair":                    "the relay's URL is missing",
		"pair ws://127.0.0.1:1":   "the pairing code is missing",
		"pair ws://127.0.0.1:1 X": "--device must be a name",
		"pair ws://127.0.0.1:1 X --device My_Laptop":        "--device must be a name",
		"pair ws://192.168.0.1 X --device laptop":           "--insecure",
		"pair wss://relay.example X --device a --pin short": "64 hexadecimal digits",
		"run --allow Nope!":                                 "is not the name of a tool",
		"run --cwd /no/such/place":                          "--cwd",
		"run --colour":                                      "unknown flag",
		"status more":                                       `unexpected argument "more"`,
		"plugins install":                                   "name some plugins, or give --all",
		"plugins install nonesuch":                          `there is no plugin "nonesuch"`,
	} {
		if r := o.run(strings.Fields(args)...); r.code != ExitUsage || !strings.Contains(r.stderr, want) || r.stdout != "" {
			t.Errorf("%q: %+v, want %q", args, r, want)
		}
	}
	for _, args := range []string{"run", "daemon", "status", "unpair", "policy revoke run"} {
		if r := o.run(strings.Fields(args)...); r.code != ExitConfig || !strings.Contains(r.stderr, "not paired") {
			t.Errorf("%q: %+v", args, r)
		}
	}
	o.env["AGENT_RELAY_SERVICE"] = "launchd"
	if r := o.run("daemon"); r.code != ExitOK || !strings.Contains(r.stderr, "not paired") {
		t.Errorf("under launchd: %+v", r)
	}
	if out := o.ok("version"); !strings.HasPrefix(out, "Agent Relay device ") {
		t.Errorf("%q", out)
	}
}

func TestPairAndUnpair(t *testing.T) {
	o := newOwner(t)
	if r := o.run("pair", o.url, "BAD", "--device", "laptop"); r.code != ExitFailed || !strings.Contains(r.stderr, "the relay refused (auth): this code is not valid") {
		t.Errorf("%+v", r)
	}
	if r := o.with(context.Background(), " GOOD \n", "pair", o.url, "-", "--device", "laptop"); r.code != 0 || !strings.HasPrefix(r.stdout, "Paired as laptop with "+o.url+"/device.\n") {
		t.Fatalf("%+v", r)
	}
	path := filepath.Join(o.home, ".local/share/agent-relay-device/token.json")
	info, err := os.Stat(path)
	raw, _ := os.ReadFile(path)
	var token map[string]string
	if err != nil || info.Mode().Perm() != 0o600 || json.Unmarshal(raw, &token) != nil || token["device"] != "laptop" || token["relay_url"] != o.url+"/device" || token["token"] != "the-secret-token" {
		t.Errorf("%v %s %v", info.Mode(), raw, err)
	}
	if r := o.run("pair", o.url, "GOOD", "--device", "other"); r.code != ExitFailed || !strings.Contains(r.stderr, "paired already, as laptop") {
		t.Errorf("%+v", r)
	}
	o.ok("pair", o.url, "GOOD", "--device", "other", "--replace")
	if out := o.ok("unpair"); !strings.Contains(out, "gateway devices revoke other") {
		t.Errorf("%q", out)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestPluginsAndPolicy(t *testing.T) {
	o := newOwner(t)
	o.ok("pair", o.url, "GOOD", "--device", "laptop")
	if out := o.ok("plugins", "list"); !strings.HasPrefix(out, "No plugins in ") {
		t.Errorf("%q", out)
	}
	o.ok("plugins", "install", "run", "job-poll")
	root := filepath.Join(o.home, ".config/agent-relay-device/plugins")
	if _, err := os.Stat(filepath.Join(root, "joblib.py")); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(root, "run/run.py"), []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := o.run("plugins", "install", "run"); r.code != ExitFailed || !strings.Contains(r.stderr, "is there already, and differs") {
		t.Errorf("%+v", r)
	}
	o.ok("plugins", "install", "run", "--force")
	if err := os.MkdirAll(filepath.Join(root, "broken"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out := o.ok("plugins", "list"); !strings.Contains(out, "run       shell,net,fs  Run a shell command") || !strings.Contains(out, "Skipped broken: there is no manifest.json\n") {
		t.Errorf("%s", out)
	}
	o.env["SPOOKY_PLUGIN_ROOT"] = filepath.Join(o.home, "elsewhere")
	if out := o.ok("plugins", "list"); !strings.Contains(out, filepath.Join(o.home, "elsewhere")) {
		t.Errorf("%q", out)
	}

	o.env["SPOOKY_POLICY"] = filepath.Join(o.home, "p.json")
	if out := o.ok("policy", "list"); out != "Nothing is allowed for good.\n" {
		t.Errorf("%q", out)
	}
	if err := os.WriteFile(o.env["SPOOKY_POLICY"], []byte(`{"autoallow":["laptop:run","phone:run"],"approval_timeout_ms":30000}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := o.ok("policy", "list"); out != "laptop:run\nphone:run\n" {
		t.Errorf("%q", out)
	}
	o.ok("policy", "revoke", "run")
	if out := o.ok("policy", "list"); out != "phone:run\n" {
		t.Errorf("%q", out)
	}
	if r := o.run("policy", "revoke", "run"); r.code != ExitFailed || !strings.Contains(r.stderr, `"laptop:run" is not allowed for good`) {
		t.Errorf("%+v", r)
	}
	if err := os.WriteFile(o.env["SPOOKY_POLICY"], []byte(`{`), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := o.run("policy", "list"); r.code != ExitConfig || !strings.Contains(r.stderr, "nothing is allowed by it") {
		t.Errorf("%+v", r)
	}
}

// TestADeviceThatRuns is asked how it is, reads its plugins again, and lets nobody
// else into its directory.
func TestADeviceThatRuns(t *testing.T) {
	o := newOwner(t)
	o.ok("pair", o.url, "GOOD", "--device", "laptop")
	if r := o.run("status"); r.code != ExitFailed || !strings.Contains(r.stdout, "the device does not run; the relay can be reached") {
		t.Errorf("%+v", r)
	}
	if r := o.run("plugins", "reload"); r.code != ExitFailed || !strings.Contains(r.stderr, "the device does not run") {
		t.Errorf("%+v", r)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var ended result
	var all sync.WaitGroup
	all.Go(func() { ended = o.with(ctx, "", "run", "--allow", "run") }) // no terminal: as daemon
	defer all.Wait()
	defer cancel()
	var status string
	for until := time.Now().Add(20 * time.Second); !strings.Contains(status, "connected for "); time.Sleep(5 * time.Millisecond) {
		if status = o.run("status").stdout; time.Now().After(until) {
			t.Fatalf("it does not connect:\n%s", status)
		}
	}
	for _, want := range []string{"Device   laptop\n", "last heard ", "nobody can be asked", "--allow run", "Tools    none in "} {
		if !strings.Contains(status, want) {
			t.Errorf("%q is not in\n%s", want, status)
		}
	}
	if r := o.run("daemon"); r.code != ExitFailed || !strings.Contains(r.stderr, "the device runs already, as process ") {
		t.Errorf("%+v", r)
	}
	if r := o.run("pair", o.url, "GOOD", "--device", "other", "--replace"); r.code != ExitFailed || !strings.Contains(r.stderr, "runs already") {
		t.Errorf("%+v", r)
	}
	o.ok("plugins", "install", "run")
	if err := os.MkdirAll(filepath.Join(o.home, ".config/agent-relay-device/plugins/broken"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out := o.ok("plugins", "reload"); out != "Tools: run\nSkipped broken: there is no manifest.json\n" {
		t.Errorf("%q", out)
	}
	var st struct {
		Running bool
		Live    struct {
			Link  struct{ State string }
			Tools []string
		}
	}
	if err := json.Unmarshal([]byte(o.ok("status", "--json")), &st); err != nil || !st.Running || st.Live.Link.State != "connected" || len(st.Live.Tools) != 1 {
		t.Errorf("%+v %v", st, err)
	}
	cancel()
	all.Wait()
	if ended.code != 0 || strings.Contains(ended.stderr+status, "the-secret-token") || !strings.Contains(ended.stderr, "msg=connected") {
		t.Errorf("%+v", ended)
	}
}

// TestUnits: what packagers install is well-formed and starts the daemon.
func TestUnits(t *testing.T) {
	unit, err := os.ReadFile("../../../packaging/systemd/agent-relay-device.service")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"device daemon\n", "RestartPreventExitStatus=78\n", "KillMode=process\n"} {
		if !strings.Contains(string(unit), want) {
			t.Errorf("the unit lacks %q", want)
		}
	}
	plist, err := os.Open("../../../packaging/launchd/agent-relay-device.plist")
	if err != nil {
		t.Fatal(err)
	}
	defer plist.Close()
	text := ""
	for d := xml.NewDecoder(plist); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if c, ok := token.(xml.CharData); ok {
			text += string(c)
		}
	}
	if !strings.Contains(text, "/device") || !strings.Contains(text, "daemon") || !strings.Contains(text, "AGENT_RELAY_SERVICE") {
		t.Error(text)
	}
}
