package files_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/files"
)

// crashEnv makes the test binary the process that is killed: it holds the base
// directory, the step and how often the step is passed before.
const crashEnv = "AGENT_RELAY_FILES_CRASH"

const (
	crashOld, crashNew = 200_000, 150_000 // bytes; several blocks
)

func oldText() string { return strings.Repeat("old ", crashOld/4) }
func newText() string { return strings.Repeat("newer", crashNew/5) }

// crashHelper writes over a file and kills itself on the way.
func crashHelper() {
	fields := strings.SplitN(os.Getenv(crashEnv), ",", 4)
	base, file, step := fields[0], fields[1], fields[2]
	left, err := strconv.Atoi(fields[3])
	if err != nil {
		panic(err)
	}
	host := direct.New(direct.Policy{
		Projects:     []direct.Project{{ID: "p", Path: filepath.Join(base, "p"), Read: true, Write: true}},
		AllowedRoots: []string{base},
	})
	s, err := files.New(files.Options{Host: host, StateDir: filepath.Join(base, "state", "files")})
	if err != nil {
		panic(err)
	}
	s.OnStep(func(at string) {
		if at == step {
			if left--; left < 0 {
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		}
	})
	in := files.WriteDirectFileIn{ProjectID: "p", Path: file, Content: newText()}
	if file != "new" {
		in.ExpectedSHA256 = new(sha(oldText()))
	}
	if strings.HasPrefix(file, "grow") {
		in.ExpectedSHA256 = new(sha("old"))
	}
	if _, err := s.WriteDirectFile(context.Background(), in); err != nil {
		panic(err)
	}
	os.Exit(0)
}

// crash runs the helper and reports whether it was killed.
func (b *bench) crash(file, step string, passed int) bool {
	b.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s,%s,%s,%d", crashEnv, b.base, file, step, passed))
	out, err := cmd.CombinedOutput()
	if err == nil {
		return false
	}
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		b.t.Fatalf("the helper failed: %v\n%s", err, out)
	}
	return true
}

func TestCrashLeavesTheOldOrTheNewFile(t *testing.T) {
	renamed := []string{"staged", "synced", "renamed"}
	inPlace := []string{"staged", "synced", "kept", "grown", "block", "full", "cut", "written"}
	for file, steps := range map[string][]string{"plain": renamed, "new": renamed, "linked": inPlace, "grow-linked": inPlace} {
		for _, step := range steps {
			for passed := range 6 {
				b := newBench(t)
				before := oldText()
				if strings.HasPrefix(file, "grow") {
					before = "old"
				}
				if file != "new" {
					b.put(file, before)
				}
				if strings.HasSuffix(file, "linked") {
					check(t, os.Link(b.dir+"/"+file, b.dir+"/twin"))
				}
				killed := b.crash(file, step, passed)
				b.open() // the next start
				name := fmt.Sprintf("%s, %s %d", file, step, passed)
				data, err := os.ReadFile(b.dir + "/" + file)
				got := string(data)
				switch {
				case file == "new" && os.IsNotExist(err) && killed:
				case err != nil:
					t.Fatal(err)
				case got != newText() && (got != before || !killed):
					t.Errorf("%s: the file has %d bytes that are neither the old nor the new", name, len(got))
				}
				if strings.HasSuffix(file, "linked") && b.get("twin") != got {
					t.Errorf("%s: the names have come apart", name)
				}
				if left := b.leftovers(); len(left) > 0 {
					t.Errorf("%s: left %v", name, left)
				}
				if !killed {
					break // the step is not passed that often
				}
			}
		}
	}
}

func TestTornFileThatWasChangedSinceIsLeftAlone(t *testing.T) {
	b := newBench(t)
	b.put("linked", oldText())
	check(t, os.Link(b.dir+"/linked", b.dir+"/twin"))
	if !b.crash("linked", "block", 1) {
		t.Fatal("the helper was not killed")
	}
	torn := b.get("linked")
	if torn == oldText() || torn == newText() {
		t.Fatal("the file is not torn")
	}
	f := must(os.OpenFile(b.dir+"/linked", os.O_WRONLY, 0))(t)
	must(f.WriteAt([]byte("by hand"), 100))(t)
	check(t, f.Close())
	changed := b.get("linked")
	b.open()
	if b.get("linked") != changed {
		t.Error("what something else has written was undone")
	}
	if left := b.leftovers(); len(left) != 1 || !strings.Contains(left[0], "recovery") {
		t.Errorf("left %v, want the recovery copy", left)
	}
	// Once it is put right by hand, the copy goes.
	check(t, os.WriteFile(b.dir+"/linked", []byte(torn), 0o644))
	b.open()
	if b.get("linked") != oldText() || len(b.leftovers()) > 0 {
		t.Errorf("the torn write was not undone; left %v", b.leftovers())
	}
}

func TestDamagedStateStopsNoStart(t *testing.T) {
	b := newBench(t)
	for _, f := range []string{"temporary/.agent-relay-0123456789abcdef.tmp", "temporary/other", "recovery/0123", "recovery/4567.new", "edits/x"} {
		for _, content := range []string{"", "{}\n", `"/nowhere/at/all"`, "\x00\xff"} {
			check(t, os.WriteFile(filepath.Join(b.state, "files", f), []byte(content), 0o600))
			b.open()
		}
	}
	if _, err := b.write("f", "x", nil); err != nil {
		t.Fatal(err)
	}
}
