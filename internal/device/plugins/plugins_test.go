package plugins

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestBadPluginsAreReportedAndSkipped(t *testing.T) {
	r := newRoot(t)
	r.script("good", `echo '{"ok":true,"output":"fine"}'`)
	for name, c := range map[string]struct{ manifest, want string }{
		"not-json":     {`{"name":`, "is not JSON"},
		"list":         {`[]`, "is not an object"},
		"other-name":   {`{"name":"other","description":"d","entry":"main.sh"}`, "must be equal"},
		"no-entry":     {`{"name":"no-entry","description":"d"}`, "entry is missing"},
		"no-desc":      {`{"name":"no-desc","entry":"main.sh"}`, "description is missing"},
		"typo":         {`{"name":"typo","description":"d","entrie":"main.sh"}`, `unknown key "entrie"`},
		"kind":         {`{"name":"kind","description":"d","entry":5}`, "number where entry belongs"},
		"escape":       {`{"name":"escape","description":"d","entry":"../good/main.sh","interpreter":"sh"}`, "inside the plugin's directory"},
		"absolute":     {`{"name":"absolute","description":"d","entry":"/bin/sh"}`, "inside the plugin's directory"},
		"linked":       {`{"name":"linked","description":"d","entry":"link.sh","interpreter":"sh"}`, "a link out of"},
		"missing":      {`{"name":"missing","description":"d","entry":"gone.sh","interpreter":"sh"}`, "entry is not there"},
		"interpreter":  {`{"name":"interpreter","description":"d","entry":"main.sh","interpreter":"no-such-thing"}`, "not in PATH"},
		"relative":     {`{"name":"relative","description":"d","entry":"main.sh","interpreter":"./sh"}`, "not in PATH"},
		"not-exec":     {`{"name":"not-exec","description":"d","entry":"main.sh"}`, "not executable"},
		"schema":       {`{"name":"schema","description":"d","entry":"main.sh","interpreter":"sh","schema":{"$ref":"#"}}`, "refers to itself"},
		"time":         {`{"name":"time","description":"d","entry":"main.sh","interpreter":"sh","timeout_ms":0}`, "timeout_ms"},
		"needs":        {`{"name":"needs","description":"d","entry":"main.sh","interpreter":"sh","requires":["root"]}`, "requires may have"},
		"cwd":          {`{"name":"cwd","description":"d","entry":"main.sh","interpreter":"sh","cwd":"work"}`, "cwd must be"},
		"cwd-gone":     {`{"name":"cwd-gone","description":"d","entry":"main.sh","interpreter":"sh","cwd":"/no/such/directory"}`, "cwd is no directory"},
		"env":          {`{"name":"env","description":"d","entry":"main.sh","interpreter":"sh","env":{"A=B":"c"}}`, "env has a name"},
		"type":         {`{"name":"type","description":"d","type":"wasm"}`, "type must be"},
		"server-both":  {`{"name":"server-both","description":"d","type":"mcp","command":["x"],"url":"http://127.0.0.1/"}`, "either command or url"},
		"server-none":  {`{"name":"server-none","description":"d","type":"mcp"}`, "either command or url"},
		"server-entry": {`{"name":"server-entry","description":"d","type":"mcp","command":["x"],"entry":"main.sh"}`, "not for type mcp"},
		"server-url":   {`{"name":"server-url","description":"d","type":"mcp","url":"file:///etc/passwd"}`, "http or https"},
		"server-gone":  {`{"name":"server-gone","description":"d","type":"mcp","command":["no-such-thing"]}`, "not in PATH"},
		"server-dead":  {`{"name":"server-dead","description":"d","type":"mcp","command":["false"]}`, "does not answer"},
		"anybody":      {`{"name":"anybody","description":"d","entry":"main.sh","interpreter":"sh"}`, "may be written by anybody"},
	} {
		r.write(name+"/manifest.json", c.manifest, 0o644)
		r.write(name+"/main.sh", "", 0o644)
	}
	if err := os.Symlink("/bin/sh", filepath.Join(r.Dir, "linked", "link.sh")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(r.Dir, "anybody", "main.sh"), 0o666); err != nil {
		t.Fatal(err)
	}
	r.write("empty/readme", "", 0o644)
	r.write("__pycache__/x.pyc", "", 0o644) // no plugin, no problem
	r.write("joblib.py", "", 0o644)
	s := r.scan()
	if s.names() != "good" {
		t.Errorf("tools: %s", s.names())
	}
	problems := map[string]string{}
	for _, p := range s.Problems {
		problems[p.Plugin] = p.Why
	}
	for name, want := range map[string]string{"not-json": "is not JSON", "empty": "there is no manifest.json", "anybody": "may be written by anybody"} {
		if !strings.Contains(problems[name], want) {
			t.Errorf("%s: %q, want %q", name, problems[name], want)
		}
	}
	if len(problems) != 29 {
		t.Errorf("%d problems: %v", len(problems), problems)
	}
	if s := (Root{Dir: filepath.Join(r.Dir, "gone"), Getenv: os.Getenv}).Scan(context.Background()); len(s.Tools)+len(s.Problems) != 0 {
		t.Errorf("a root that is not there: %+v", s)
	}
}

// TestManifestProblems names each rule on its own.
func TestManifestProblems(t *testing.T) {
	base := map[string]any{"name": "x", "description": "d", "entry": "main.sh"}
	for want, change := range map[string]map[string]any{
		"":                    {},
		"name must match":     {"name": "run/exec"},
		"they must be equal":  {"name": "y"},
		"description":         {"description": " "},
		"bytes":               {"description": strings.Repeat("d", 5000)},
		"timeout_ms must be":  {"timeout_ms": 120001},
		"url and headers":     {"url": "http://127.0.0.1/"},
		"refers to itself":    {"schema": map[string]any{"$ref": "#"}},
		"string where schema": nil,
	} {
		m := map[string]any{}
		for k, v := range base {
			m[k] = v
		}
		for k, v := range change {
			m[k] = v
		}
		raw, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if change == nil {
			raw = []byte(`{"name":"x","description":"d","entry":"main.sh","schema":"{}"}`)
			want = "must be an object"
		}
		_, _, err = parse(raw, "x")
		if got := fmt.Sprint(err); want == "" && err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: %v, want %q", raw, err, want)
		}
	}
}

func TestTheContract(t *testing.T) {
	r := newRoot(t)
	r.script("talk", `echo "starting"; echo '{"ok":false,"output":"not this"}'; echo '[1]'; echo '{"ok":true,"output":"this","summary":" two
 words "}' | tr '\n' ' '; echo; echo "after"; echo "to stderr" >&2`)
	r.script("last", `printf '{"ok":true,"output":"no newline"}'`)
	r.script("nothing", `echo "why" >&2`)
	r.script("words", `echo hello`)
	r.script("no-ok", `echo '{"output":"x"}'`)
	r.script("kind", `echo '{"ok":true,"output":{"a":1}}'`)
	r.script("exit", `echo '{"ok":true,"output":"x"}'; echo "the reason" >&2; exit 3`)
	r.script("killed", `kill -SEGV $$`)
	r.script("said-no", `echo '{"ok":false,"output":"no such thing"}'`)
	r.script("deaf", `exec <&-; echo '{"ok":true,"output":"heard nothing"}'`)
	s := r.scan()
	for _, c := range []struct {
		tool string
		want Result
	}{
		{"talk", Result{OK: true, Output: "this", Summary: "two words"}},
		{"last", Result{OK: true, Output: "no newline"}},
		{"nothing", Result{Output: "the plugin answered nothing\nstderr: why"}},
		{"words", Result{Output: "the plugin answered no line that is a JSON object"}},
		{"no-ok", Result{Output: "the plugin answered an object without ok, or with output or summary that are no strings"}},
		{"kind", Result{Output: "the plugin answered an object without ok, or with output or summary that are no strings"}},
		{"exit", Result{Output: "the plugin ended with exit code 3\nstderr: the reason"}},
		{"killed", Result{Output: "the plugin ended with signal segmentation fault"}},
		{"said-no", Result{Output: "no such thing"}},
		{"deaf", Result{OK: true, Output: "heard nothing"}},
	} {
		args := `{"long":"` + strings.Repeat("x", 300<<10) + `"}` // more than a pipe takes
		if got := r.call(s, c.tool, args, 10*time.Second); got != c.want {
			t.Errorf("%s: %+v\nwant %+v", c.tool, got, c.want)
		}
	}
}

func TestWhatAPluginIsGiven(t *testing.T) {
	t.Setenv("SPOOKY_PLUGIN_ROOT", "/somewhere")
	t.Setenv("AGENT_RELAY_SECRET", "token-of-the-device")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "of the shell")
	t.Setenv("PATH", ".:"+os.Getenv("PATH")+"::relative")
	r := newRoot(t)
	r.write("give/manifest.json", `{"name":"give","description":"d","entry":"main.py","interpreter":"python3","env":{"MINE":"1","TERM":"x"}}`, 0o644)
	r.write("give/main.py", `
import json, os, sys
call = json.load(sys.stdin)
call["env"], call["cwd"], call["sid"] = dict(os.environ), os.getcwd(), os.getsid(0) == os.getpid()
try:
    open("/dev/tty")
    call["tty"] = True
except OSError:
    call["tty"] = False
print(json.dumps({"ok": True, "output": json.dumps(call)}))
`, 0o644)
	s := r.scan()
	jail := r.Cwd
	res := r.callIn(context.Background(), s, "give", `{"a": "<&>é"}`, 10*time.Second, &jail)
	var got struct {
		Args    map[string]string
		Context map[string]any
		Env     map[string]string
		Cwd     string
		Sid     bool
		TTY     bool
	}
	if err := json.Unmarshal([]byte(res.Output), &got); err != nil {
		t.Fatalf("%+v: %v", res, err)
	}
	if got.Args["a"] != "<&>é" || got.Context["device"] != "laptop" || got.Context["call_ref"] != "ref-1" || got.Context["jail"] != jail ||
		got.Context["cwd"] != r.Cwd || got.Context["state"] != r.State || got.Context["timeout_ms"] != 10000.0 || got.Cwd != r.Cwd || !got.Sid || got.TTY {
		t.Errorf("%+v", got)
	}
	for _, name := range []string{"SPOOKY_PLUGIN_ROOT", "AGENT_RELAY_SECRET", "AWS_SECRET_ACCESS_KEY"} {
		if v, there := got.Env[name]; there {
			t.Errorf("%s=%s was handed on", name, v)
		}
	}
	if got.Env["MINE"] != "1" || got.Env["TERM"] != "x" || got.Env["HOME"] != os.Getenv("HOME") {
		t.Errorf("env %v", got.Env)
	}
	for _, dir := range filepath.SplitList(got.Env["PATH"]) {
		if !filepath.IsAbs(dir) {
			t.Errorf("PATH has %q", dir)
		}
	}
	if res := r.call(s, "give", `{}`, 10*time.Second); !strings.Contains(res.Output, `"jail": null`) {
		t.Errorf("without a jail: %s", res.Output)
	}
}

// alive reports whether a process lives on: one that was killed takes a moment to
// go on a busy machine.
func alive(t *testing.T, pid int) bool {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); lives(pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return true
		}
	}
	return false
}

// lives reports whether a process is there and no zombie.
func lives(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	if err != nil {
		return syscall.Kill(pid, 0) == nil
	}
	_, after, _ := strings.Cut(string(raw), ") ")
	return !strings.HasPrefix(after, "Z")
}

func pidIn(t *testing.T, path string) int {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestNothingOfAGroupIsLeft(t *testing.T) {
	r := newRoot(t)
	r.script("slow", `sleep 300 & echo $! >child; trap '' TERM; echo "busy" >&2; wait; sleep 300`)
	r.script("leaves", `sleep 300 & echo $! >child; echo '{"ok":true,"output":"done"}'`)
	s := r.scan()
	child := filepath.Join(r.Cwd, "child")

	begun := time.Now()
	res := r.call(s, "slow", `{}`, 300*time.Millisecond)
	if took := time.Since(begun); res.OK || res.Output != "the plugin was killed after 0.3 s, its limit\nstderr: busy" || took > 5*time.Second {
		t.Errorf("%+v after %v", res, took)
	}
	if alive(t, pidIn(t, child)) {
		t.Error("a child lives on after the deadline")
	}

	begun = time.Now()
	res = r.call(s, "leaves", `{}`, 20*time.Second)
	if took := time.Since(begun); !res.OK || res.Output != "done" || took > 5*time.Second {
		t.Errorf("%+v after %v", res, took)
	}
	if alive(t, pidIn(t, child)) {
		t.Error("a child lives on after the end")
	}

	os.Remove(child)
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		for {
			if _, err := os.Stat(child); err == nil {
				cancel(errors.New("cancelled"))
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	if res := r.callIn(ctx, s, "slow", `{}`, 20*time.Second, nil); res.OK || !strings.HasPrefix(res.Output, "the plugin was killed: cancelled") {
		t.Errorf("%+v", res)
	}
}

func TestLongOutputIsSpilled(t *testing.T) {
	r := newRoot(t)
	r.write("long/manifest.json", `{"name":"long","description":"d","entry":"main.py","interpreter":"python3"}`, 0o644)
	r.write("long/main.py", `
import json, sys
args = json.load(sys.stdin)["args"]
sys.stderr.write("e" * 1000000)
print("noise" * 1000000)
print(json.dumps({"ok": True, "output": "".join("line %d%s\n" % (i, args["pad"]) for i in range(args["n"]))}))
`, 0o644)
	s := r.scan()
	res := r.call(s, "long", `{"n": 100000, "pad": ""}`, 20*time.Second)
	path := filepath.Join(r.Spill, "laptop-long.txt")
	raw, err := os.ReadFile(path)
	if err != nil || !res.Spilled || !res.OK {
		t.Fatalf("%+v %v", res, err)
	}
	lines := strings.Split(res.Output, "\n")
	if len(lines) != 64+1+64+1 || lines[0] != "line 0" || lines[63] != "line 63" || lines[65] != "line 99936" || lines[128] != "line 99999" {
		t.Errorf("%d lines: %.200s", len(lines), res.Output)
	}
	if want := fmt.Sprintf("all %d bytes are in %s", len(raw), path); !strings.Contains(res.Output, want) {
		t.Errorf("%s is not in %s", want, lines[64])
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	res = r.call(s, "long", fmt.Sprintf(`{"n": 3, "pad": %q}`, strings.Repeat("é", 500000)), 20*time.Second)
	if !res.Spilled || len(res.Output) > maxOutput {
		t.Errorf("%d bytes of long lines", len(res.Output))
	}
	if again, _ := os.ReadFile(path); len(again) != 3*(1000000+7) {
		t.Errorf("the second output did not replace the first: %d bytes", len(again))
	}
	if res := r.call(s, "long", `{"n": 10, "pad": ""}`, 20*time.Second); res.Spilled {
		t.Error("a short output was spilled")
	}
}

func TestServerOverStdio(t *testing.T) {
	r := newRoot(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r.write("srv/manifest.json", fmt.Sprintf(`{"name":"srv","description":"d","type":"mcp","command":[%q],"env":{%q:"1"},"requires":["net"],"summary_hint":"text"}`, self, asServer), 0o644)
	r.script("srv-fail", `echo '{"ok":true,"output":"the script"}'`)
	s := r.scan()
	checkServer(t, r, s)
	if got := s.Find("srv-fail"); got == nil || got.Remote != "" {
		t.Error("a script lost its name to a server's tool")
	}
	// The server dies; the next call starts it again.
	if res := r.call(s, "srv-die", `{"text":""}`, 10*time.Second); res.OK || !strings.Contains(res.Output, "may have had an effect") {
		t.Errorf("%+v", res)
	}
	if res := r.call(s, namedFor(s, "Echo_It"), `{"text":"again"}`, 10*time.Second); res.Output != "Echo_It: again" {
		t.Errorf("after its death: %+v", res)
	}
	s.Close()
	if res := r.call(s, "srv-die", `{"text":""}`, 10*time.Second); res.Output != "the plugin was unloaded" {
		t.Errorf("%+v", res)
	}
}

func TestServerOverHTTP(t *testing.T) {
	handler := mcp.NewStreamableHTTPHandler(func(*httpRequest) *mcp.Server { return testServer() }, nil)
	web := httptest.NewServer(handler)
	defer web.Close()
	r := newRoot(t)
	r.write("srv/manifest.json", fmt.Sprintf(`{"name":"srv","description":"d","type":"mcp","url":%q,"requires":["net"],"summary_hint":"text"}`, web.URL), 0o644)
	s := r.scan()
	checkServer(t, r, s)
	s.Close()
}

// namedFor is the name that a tool of a server got.
func namedFor(s *Set, remote string) string {
	for _, t := range s.Tools {
		if t.Remote == remote {
			return t.Name
		}
	}
	return ""
}

func checkServer(t *testing.T, r root, s *Set) {
	t.Helper()
	if len(s.Problems) > 0 {
		t.Fatalf("%v", s.Problems)
	}
	seen := map[string]bool{}
	for _, tool := range s.Tools {
		if !nameOK(tool.Name) || seen[tool.Name] {
			t.Errorf("the name %q", tool.Name)
		}
		seen[tool.Name] = true
	}
	for _, remote := range []string{"Echo_It", "echo.it", "a_tool_with_a_name_that_is_far_too_long_1", "a_tool_with_a_name_that_is_far_too_long_2"} {
		name := namedFor(s, remote)
		if res := r.call(s, name, `{"text":"hello"}`, 10*time.Second); !res.OK || res.Output != remote+": hello" {
			t.Errorf("%s as %s: %+v", remote, name, res)
		}
	}
	if err := s.Find(namedFor(s, "Echo_It")).Check(json.RawMessage(`{"text":5}`)); err == nil {
		t.Error("the schema of the server is not checked")
	}
	if tool := s.Find(namedFor(s, "Echo_It")); tool.Hint != "text" || len(tool.Requires) != 1 {
		t.Errorf("%+v", tool)
	}
	if res := r.call(s, namedFor(s, "fail"), `{"text":""}`, 10*time.Second); res.OK || res.Output != "it failed" {
		t.Errorf("%+v", res)
	}
	if res := r.call(s, namedFor(s, "hang"), `{"text":""}`, 200*time.Millisecond); res.OK || res.Output != "the MCP server did not answer within 0.2 s" {
		t.Errorf("%+v", res)
	}
}

func TestExportedNames(t *testing.T) {
	for tool, want := range map[string]string{
		"read_file": "fs-read-file", "Read": "fs-read", "a..b": "fs-a-b", "日本": "fs-", "x-": "fs-x",
	} {
		got := exportedName("fs", tool)
		if got != want || !nameOK(got) {
			t.Errorf("%s: %q, want %q", tool, got, want)
		}
	}
	long := exportedName(strings.Repeat("p", 32), "tool")
	if !nameOK(long) || long == exportedName(strings.Repeat("p", 32), "other") {
		t.Errorf("%q", long)
	}
}
