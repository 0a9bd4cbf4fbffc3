package plugins_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"agentrelay/internal/device/plugins"
	"agentrelay/internal/devices/wire"
	reference "agentrelay/plugins"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// machine has the reference plugins as they are installed.
type machine struct {
	t    *testing.T
	root plugins.Root
	set  *plugins.Set
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, root: plugins.Root{Dir: filepath.Join(dir, "plugins"), Spill: filepath.Join(dir, "spill"), State: filepath.Join(dir, "state"), Cwd: filepath.Join(dir, "work"), Device: "laptop", Getenv: os.Getenv}}
	if err := os.CopyFS(m.root.Dir, reference.Files); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(m.root.Cwd, 0o755); err != nil {
		t.Fatal(err)
	}
	m.set = m.root.Scan(t.Context())
	t.Cleanup(m.set.Close)
	if len(m.set.Problems) > 0 || len(m.set.Tools) != 8 {
		t.Fatalf("%d tools, %v", len(m.set.Tools), m.set.Problems)
	}
	return m
}

// call calls a plugin, in the jail of its directory if wanted.
func (m *machine) call(tool string, args map[string]any, jailed bool) plugins.Result {
	m.t.Helper()
	raw, err := json.Marshal(args)
	if err != nil {
		m.t.Fatal(err)
	}
	t := m.set.Find(tool)
	canonical, err := wire.Canonical(raw)
	if err != nil {
		m.t.Fatal(err)
	}
	if err := t.Check(canonical); err != nil {
		m.t.Fatalf("%s %s: %v", tool, raw, err)
	}
	c := plugins.Call{Ref: "r", Args: canonical, Timeout: 30 * time.Second}
	if jailed {
		c.Jail = &m.root.Cwd
	}
	return m.root.Bound(tool, m.set.Run(context.Background(), t, c))
}

func (m *machine) ok(tool string, args map[string]any) string {
	m.t.Helper()
	r := m.call(tool, args, true)
	if !r.OK {
		m.t.Fatalf("%s %v: %+v", tool, args, r)
	}
	return r.Output
}

func (m *machine) write(path, text string) {
	m.t.Helper()
	if err := os.WriteFile(filepath.Join(m.root.Cwd, path), []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

func TestRun(t *testing.T) {
	m := newMachine(t)
	for _, c := range []struct {
		args   map[string]any
		ok     bool
		output string
	}{
		{map[string]any{"cmd": "echo out; echo err >&2; cat"}, true, "out\nerr\n"},
		{map[string]any{"cmd": "printf half; exit 3"}, false, "half\n[exit code 3]"},
		{map[string]any{"cmd": "kill -9 $$"}, false, "\n[killed by signal 9]"},
		{map[string]any{"cmd": "printf 'a\\377b'"}, true, "a\ufffdb"},
		{map[string]any{"cmd": "echo begun; sleep 60", "timeout_s": 1}, false, "begun\n\n[ended after 1 s]"},
		{map[string]any{"cmd": "sleep 60 & echo $! >pid; echo done"}, true, "done\n"},
		{map[string]any{"cmd": "pwd"}, true, m.root.Cwd + "\n"},
	} {
		if r := m.call("run", c.args, true); r.OK != c.ok || r.Output != c.output {
			t.Errorf("%v: %+v", c.args, r)
		}
	}
	raw, err := os.ReadFile(filepath.Join(m.root.Cwd, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	fmt.Sscan(string(raw), &pid)
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !strings.Contains(string(stat), ") Z ") {
		t.Error("what the command left in the background lives on")
	}
	if r := m.call("run", map[string]any{"cmd": "head -c 20000000 /dev/zero | tr '\\0' x"}, true); !r.Spilled || !strings.Contains(r.Output, "bytes are in") {
		t.Errorf("%.300s", r.Output)
	}
}

func TestReadFile(t *testing.T) {
	m := newMachine(t)
	m.write("text", "grüße\nzwei\n")
	m.write("bytes", "\xff\x00")
	outside := filepath.Join(filepath.Dir(m.root.Cwd), "outside")
	if err := os.WriteFile(outside, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(m.root.Cwd, "link")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(m.root.Cwd, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args    map[string]any
		output  string
		refused bool
	}{
		{map[string]any{"path": "text"}, "grüße\nzwei\n", false},
		{map[string]any{"path": "./sub/../text", "offset": 3, "limit": 2}, "", false}, // half of ü and half of ß
		{map[string]any{"path": "text", "offset": 4, "limit": 3}, "ße", false},
		{map[string]any{"path": "text", "offset": 500}, "", false},
		{map[string]any{"path": "bytes"}, "not UTF-8", true},
		{map[string]any{"path": "bytes", "encoding": "base64"}, base64.StdEncoding.EncodeToString([]byte("\xff\x00")), false},
		{map[string]any{"path": "gone"}, "No such file", true},
		{map[string]any{"path": "a\x00b"}, "can't be read", true},
		{map[string]any{"path": "."}, "Is a directory", true},
		{map[string]any{"path": "pipe"}, "no regular file", true},
		{map[string]any{"path": "link"}, "outside of the directory", true},
		{map[string]any{"path": "../outside"}, "outside of the directory", true},
		{map[string]any{"path": outside}, "outside of the directory", true},
	} {
		r := m.call("read-file", c.args, true)
		if r.OK == c.refused || c.refused && !strings.Contains(r.Output, c.output) || !c.refused && r.Output != c.output {
			t.Errorf("%v: %+v", c.args, r)
		}
	}
	if r := m.call("read-file", map[string]any{"path": "../outside"}, false); r.Output != "secret" {
		t.Errorf("without a jail: %+v", r)
	}
}

func TestWriteFile(t *testing.T) {
	m := newMachine(t)
	path := filepath.Join(m.root.Cwd, "deep/er/file")
	if r := m.call("write-file", map[string]any{"path": "deep/er/file", "content": "x"}, true); r.OK {
		t.Errorf("%+v", r)
	}
	if got := m.ok("write-file", map[string]any{"path": "deep/er/file", "content": "one\n", "create_parents": true}); got != "created with 4 bytes" {
		t.Error(got)
	}
	if err := os.Chmod(path, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("deep/er/file", filepath.Join(m.root.Cwd, "link")); err != nil {
		t.Fatal(err)
	}
	m.ok("write-file", map[string]any{"path": "link", "content": "two\n"})
	m.ok("write-file", map[string]any{"path": "link", "content": "three\n", "append": true})
	raw, err := os.ReadFile(path)
	info, _ := os.Stat(path)
	link, _ := os.Lstat(filepath.Join(m.root.Cwd, "link"))
	if err != nil || string(raw) != "two\nthree\n" || info.Mode().Perm() != 0o750 || link.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("%q %v %v %v", raw, err, info.Mode(), link.Mode())
	}
	for _, p := range []string{"../out", "/tmp/out-of-the-jail", ".", "deep"} {
		if r := m.call("write-file", map[string]any{"path": p, "content": "x"}, true); r.OK {
			t.Errorf("%s was written", p)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(m.root.Cwd, "deep/er/.*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func (m *machine) start(cmd string) string {
	m.t.Helper()
	id, _, _ := strings.Cut(m.ok("job-start", map[string]any{"cmd": cmd}), "\n")
	m.t.Cleanup(func() { m.call("job-kill", map[string]any{"id": id, "grace_s": 0}, true) })
	return id
}

func TestJobs(t *testing.T) {
	m := newMachine(t)
	for _, c := range []struct{ name, cmd, status, tail string }{
		{"success", "echo one; echo two >&2", "exited with 0", "one\ntwo\n"},
		{"exit", "echo x; exit 7", "exited with 7", "x\n"},
		{"exec", "exec sh -c 'echo y; exit 4'", "exited with 4", "y\n"},
		{"no newline", "printf z", "exited with 0", "z"},
		{"own signal", "kill -TERM $$", "exited with 143", "Terminated\n"},
		{"cwd", "pwd", "exited with 0", m.root.Cwd + "\n"},
	} {
		id := m.start(c.cmd)
		if got := m.ok("job-wait", map[string]any{"id": id}); got != c.status+"\n"+c.tail {
			t.Errorf("%s: %q", c.name, got)
		}
		if got := m.ok("job-poll", map[string]any{"id": id}); got != c.status {
			t.Errorf("%s: %q", c.name, got)
		}
	}
	id := m.start("trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.05; done")
	if got := m.ok("job-wait", map[string]any{"id": id, "timeout_s": 1}); got != "running\nready\n" {
		t.Errorf("%q", got)
	}
	if got := m.ok("job-kill", map[string]any{"id": id}); got != "exited with 9" {
		t.Errorf("%q", got)
	}
	id = m.start("trap '' TERM; while :; do sleep 0.05; done")
	time.Sleep(200 * time.Millisecond) // until the trap is set
	if got := m.ok("job-kill", map[string]any{"id": id, "grace_s": 1}); got != "killed by SIGKILL" {
		t.Errorf("%q", got)
	}
	if got := m.ok("job-kill", map[string]any{"id": id}); got != "it had ended before: killed by SIGKILL" {
		t.Errorf("%q", got)
	}
	if r := m.call("job-poll", map[string]any{"id": "job-00000000"}, true); r.OK || r.Output != "there is no job job-00000000" {
		t.Errorf("%+v", r)
	}
}

// TestAJobsLogIsBounded: of a job that prints 40 MB the end is kept, and found.
func TestAJobsLogIsBounded(t *testing.T) {
	m := newMachine(t)
	id := m.start("i=0; while [ $i -lt 40 ]; do head -c 1000000 /dev/zero | tr '\\0' x; echo; i=$((i+1)); done; echo the end")
	if got := m.ok("job-wait", map[string]any{"id": id, "timeout_s": 25}); !strings.HasPrefix(got, "exited with 0\n") || !strings.HasSuffix(got, "the end\n") || len(got) > 60<<10 {
		t.Errorf("%d bytes: %.100s", len(got), got)
	}
	var size int64
	files, err := filepath.Glob(filepath.Join(m.root.State, "jobs", id, "log*"))
	for _, f := range files {
		if info, err := os.Stat(f); err == nil {
			size += info.Size()
		}
	}
	if err != nil || size > 17<<20 || size < 8<<20 {
		t.Errorf("%d bytes of log, %v", size, err)
	}
	if got := m.ok("job-tail", map[string]any{"id": id, "lines": 1}); got != "the end\n" {
		t.Errorf("%q", got)
	}
}
