package gateway

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"agentrelay/packaging"
)

// plist reads a property list into Go values. It takes what a property list may
// consist of and nothing else.
func plist(t *testing.T, text string) map[string]any {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(text))
	next := func() xml.Token {
		for {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				t.Fatalf("not XML: %v\n%s", err, text)
			}
			switch v := token.(type) {
			case xml.StartElement, xml.EndElement:
				return v
			case xml.CharData:
				if strings.TrimSpace(string(v)) != "" {
					t.Fatalf("stray text %q", v)
				}
			}
		}
	}
	content := func(name string) string {
		var s string
		for {
			token, err := d.Token()
			if err != nil {
				t.Fatal(err)
			}
			switch v := token.(type) {
			case xml.CharData:
				s += string(v)
			case xml.EndElement:
				return s
			default:
				t.Fatalf("%T in %s", v, name)
			}
		}
	}
	var value func(xml.StartElement) any
	value = func(e xml.StartElement) any {
		switch e.Name.Local {
		case "string", "integer", "key":
			return content(e.Name.Local)
		case "true", "false":
			content(e.Name.Local)
			return e.Name.Local == "true"
		case "array":
			var out []any
			for {
				if s, ok := next().(xml.StartElement); ok {
					out = append(out, value(s))
					continue
				}
				return out
			}
		case "dict":
			out := map[string]any{}
			for {
				k, ok := next().(xml.StartElement)
				if !ok {
					return out
				}
				if k.Name.Local != "key" {
					t.Fatalf("%s where a key should be", k.Name.Local)
				}
				key := content("key")
				v, ok := next().(xml.StartElement)
				if _, twice := out[key]; !ok || twice {
					t.Fatalf("the key %s has no value, or two", key)
				}
				out[key] = value(v)
			}
		}
		t.Fatalf("%s is no part of a property list", e.Name.Local)
		return nil
	}
	root, ok := next().(xml.StartElement)
	if !ok || root.Name.Local != "plist" {
		t.Fatalf("the root is %v", root.Name)
	}
	dict, ok := next().(xml.StartElement)
	if !ok {
		t.Fatal("it is empty")
	}
	return value(dict).(map[string]any)
}

func TestLaunchdPropertyList(t *testing.T) {
	shipped := plist(t, packaging.Launchd)
	for key, want := range map[string]any{
		"Label": unitName, "RunAtLoad": true, "KeepAlive": map[string]any{"SuccessfulExit": false}, "AbandonProcessGroup": true,
		"EnvironmentVariables": map[string]any{serviceEnv: launchd}, "Umask": "63",
	} {
		if !reflect.DeepEqual(shipped[key], want) {
			t.Errorf("%s is %v, want %v", key, shipped[key], want)
		}
	}
	s := service{program: `/opt/a & b/<gateway>`, config: "/Users/you/it's.json", log: "/Users/you/log", user: "you"}
	mine := plist(t, launchdManager{}.text(s))
	if want := []any{s.program, "serve", "--config", s.config}; !reflect.DeepEqual(mine["ProgramArguments"], want) {
		t.Errorf("it runs %v, want %v", mine["ProgramArguments"], want)
	}
	if mine["StandardErrorPath"] != s.log || mine["UserName"] != nil {
		t.Errorf("log %v, user %v", mine["StandardErrorPath"], mine["UserName"])
	}
	s.system = true
	if mine = plist(t, (launchdManager{}).text(s)); mine["UserName"] != "you" {
		t.Errorf("it runs as %v", mine["UserName"])
	}
	for key := range shipped {
		if mine[key] == nil {
			t.Errorf("%s is lost", key)
		}
	}
}

func TestSystemdWords(t *testing.T) {
	for word, want := range map[string]string{
		"/usr/bin/gateway": "/usr/bin/gateway",
		"/a b/c":           `"/a b/c"`,
		`/a"b\c`:           `"/a\"b\\c"`,
		"/100%/$HOME":      "/100%%/$$HOME",
		"/a;b":             `"/a;b"`,
		"/it's":            `"/it's"`,
	} {
		if got := systemdWord(word); got != want {
			t.Errorf("%s becomes %s, want %s", word, got, want)
		}
	}
}

// fakes are programs that write down how they were called.
func fakes(t *testing.T, scripts map[string]string) (calls func() string) {
	t.Helper()
	dir := t.TempDir()
	log := filepath.Join(dir, "calls")
	for name, script := range scripts {
		text := "#!/bin/sh\necho \"" + name + " $*\" >> " + log + "\n" + script
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	return func() string {
		raw, _ := os.ReadFile(log)
		os.Remove(log)
		return string(raw)
	}
}

func TestServiceOfSystemd(t *testing.T) {
	h := newHome(t)
	if r := h.run("service", "install", "--manager", "systemd"); r.code != ExitConfig {
		t.Errorf("without a config: %+v", r)
	}
	h.init()
	calls := fakes(t, map[string]string{
		"systemctl": `[ "$2" != show ] || printf 'ActiveState=active\nSubState=running\nExecMainPID=42\nNRestarts=1\nUnitFileState=enabled\nActiveEnterTimestamp=Mon\n'`,
		"loginctl":  "echo no",
	})
	unit := filepath.Join(h.dir, ".config/systemd/user/agent-relay.service")

	dry := h.ok("service", "install", "--manager", "systemd", "--dry-run")
	if _, err := os.Stat(unit); err == nil || calls() != "" || !strings.Contains(dry, "KillMode=process") || !strings.Contains(dry, "systemctl --user enable agent-relay") {
		t.Errorf("a rehearsal says\n%s", dry)
	}
	out := h.ok("service", "install", "--manager", "systemd")
	if want := "systemctl --user daemon-reload\nsystemctl --user enable agent-relay\nsystemctl --user reset-failed agent-relay\nsystemctl --user restart agent-relay\n"; !strings.HasPrefix(calls(), want) {
		t.Errorf("it calls another than\n%s", want)
	}
	if !strings.Contains(out, "loginctl enable-linger") {
		t.Errorf("it does not speak of lingering:\n%s", out)
	}
	raw, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(raw), "serve --config "+h.configPath()+"\n") || strings.Count(string(raw), "ExecStart=") != 1 {
		t.Errorf("the unit is\n%s", raw)
	}

	// Again: another unit is kept, the same is left.
	if err := os.WriteFile(unit, []byte("the owner's"), 0o644); err != nil {
		t.Fatal(err)
	}
	h.ok("service", "install", "--manager", "systemd")
	h.ok("service", "install", "--manager", "systemd")
	kept, _ := filepath.Glob(unit + ".before-*")
	if len(kept) != 1 {
		t.Fatalf("kept are %v", kept)
	}
	if raw, _ := os.ReadFile(kept[0]); string(raw) != "the owner's" {
		t.Errorf("kept is %q", raw)
	}
	if out := h.ok("service", "status", "--manager", "systemd"); !strings.Contains(out, "active (running), process 42") {
		t.Errorf("status says\n%s", out)
	}
	calls()
	h.ok("service", "restart", "--manager", "systemd")
	if got := calls(); got != "systemctl --user restart agent-relay\n" {
		t.Errorf("restart calls %s", got)
	}
	h.ok("service", "uninstall", "--manager", "systemd")
	if got := calls(); got != "systemctl --user disable --now agent-relay\nsystemctl --user daemon-reload\n" {
		t.Errorf("uninstall calls %s", got)
	}
	if _, err := os.Stat(unit); err == nil {
		t.Error("the unit is still there")
	}
	if r := h.run("service", "status", "--manager", "systemd"); r.code != ExitFailed || !strings.Contains(r.stdout, "not installed") {
		t.Errorf("afterwards: %+v", r)
	}
	if r := h.run("service", "uninstall", "--manager", "systemd"); r.code != ExitFailed || !strings.Contains(r.stderr, "no unit") {
		t.Errorf("twice: %+v", r)
	}
}

func TestServiceThatDoesNotStart(t *testing.T) {
	h := newHome(t)
	h.init()
	fakes(t, map[string]string{
		"systemctl": `case "$2" in restart) echo "Job failed" >&2; exit 1;; show) printf 'ActiveState=failed\nSubState=failed\nResult=exit-code\nExecMainStatus=78\n';; esac`,
		"loginctl":  "echo yes",
	})
	if r := h.run("service", "install", "--manager", "systemd"); r.code != ExitFailed || !strings.Contains(r.stderr, "Job failed") || !strings.Contains(r.stderr, "gateway service logs") {
		t.Errorf("got %+v", r)
	}
	if r := h.run("service", "status", "--manager", "systemd"); r.code != ExitFailed || !strings.Contains(r.stdout, "something has to be changed on disk") {
		t.Errorf("got %+v", r)
	}
}

func TestServiceOfLaunchd(t *testing.T) {
	h := newHome(t)
	h.init()
	calls := fakes(t, map[string]string{"launchctl": `[ "$1" != print ] || printf '\tstate = running\n\tpid = 7\n\truns = 2\n'`, "tail": "echo the log"})
	h.ok("service", "install", "--manager", "launchd")
	if got := calls(); !strings.Contains(got, "launchctl bootstrap gui/") || !strings.Contains(got, "Library/LaunchAgents/agent-relay.plist") {
		t.Errorf("install calls\n%s", got)
	}
	if out := h.ok("service", "status", "--manager", "launchd", "--json"); !strings.Contains(out, `"running": true`) {
		t.Errorf("status says %s", out)
	}
	if out := h.ok("service", "logs", "--manager", "launchd", "--lines", "5"); out != "the log\n" {
		t.Errorf("the log is %q", out)
	}
	if got := calls(); !strings.Contains(got, "tail -n 5 "+filepath.Join(h.stateDir(), "gateway.log")) {
		t.Errorf("logs calls %s", got)
	}
	h.ok("service", "restart", "--manager", "launchd")
	if got := calls(); !strings.Contains(got, "kickstart -k gui/") {
		t.Errorf("restart calls %s", got)
	}
	h.ok("service", "uninstall", "--manager", "launchd")
}

func TestNoServiceBesideARunningGateway(t *testing.T) {
	h := newHome(t)
	h.init()
	h.serve()
	fakes(t, map[string]string{"systemctl": `[ "$2" != show ] || echo ActiveState=inactive`})
	if r := h.run("service", "install", "--manager", "systemd"); r.code != ExitFailed || !strings.Contains(r.stderr, "runs already") {
		t.Errorf("got %+v", r)
	}
}

// launchd starts again whatever fails: what stays wrong must not look like a failure.
func TestExitCodeForLaunchd(t *testing.T) {
	h := newHome(t)
	for service, want := range map[string]int{"": ExitConfig, launchd: ExitOK} {
		var out strings.Builder
		env := h.env(&out, &out, "serve", "--config", filepath.Join(h.dir, "none.json"))
		getenv := env.Getenv
		env.Getenv = func(name string) string {
			if name == serviceEnv {
				return service
			}
			return getenv(name)
		}
		if code := Run(t.Context(), env); code != want || !strings.Contains(out.String(), "no config") {
			t.Errorf("under %q: exit code %d, %s", service, code, &out)
		}
	}
}
