package transfers

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/files"
	"agentrelay/internal/fault"
)

// childEnv makes a run of this test binary a process that places content and
// kills itself at a step: "<step>:<directory of newBench>:<expected hash>".
const childEnv = "TRANSFERS_TEST_CHILD"

func TestMain(m *testing.M) {
	if child := os.Getenv(childEnv); child != "" {
		place(child)
	}
	goleak.VerifyTestMain(m)
}

// bench is a service with one project, in dir/project.
type bench struct {
	*Service
	t   testing.TB
	dir string
}

func newBench(t testing.TB) *bench {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/project", 0o755); err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, dir: dir}
	b.open()
	return b
}

// open makes the service, as at a start.
func (b *bench) open() {
	b.t.Helper()
	var err error
	if b.Service, err = open(b.dir); err != nil {
		b.t.Fatal(err)
	}
}

func open(dir string) (*Service, error) {
	h := direct.New(direct.Policy{
		HostID: "local", AllowedRoots: []string{dir}, Protected: []string{dir + "/state"},
		Projects: []direct.Project{{ID: "p", Path: dir + "/project", Read: true, Write: true}, {ID: "locked", Path: dir + "/project"}},
	})
	f, err := files.New(files.Options{Host: h, StateDir: dir + "/state/files"})
	if err != nil {
		return nil, err
	}
	return New(Options{Host: h, Files: f, StateDir: dir + "/state/transfers"})
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, "project", name) }

func (b *bench) write(name, content string) {
	b.t.Helper()
	if err := os.WriteFile(b.path(name), []byte(content), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) content(name string) string {
	b.t.Helper()
	raw, err := os.ReadFile(b.path(name))
	if err != nil {
		b.t.Fatal(err)
	}
	return string(raw)
}

// names lists the project's directory.
func (b *bench) names() string {
	b.t.Helper()
	entries, err := os.ReadDir(b.path(""))
	if err != nil {
		b.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func hashText(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func id(n int) string { return fmt.Sprintf("%024x", n) }

// put is content for f; expected is the content that is there, or nil.
func put(n int, content string, expected *string) Placement {
	in := Placement{ID: id(n), ProjectID: "p", Path: "f", Size: int64(len(content)), SHA256: hashText(content)}
	if expected != nil {
		in.ExpectedSHA256 = new(hashText(*expected))
	}
	return in
}

func (b *bench) place(n int, content string, expected *string) (Placed, error) {
	return b.Place(context.Background(), put(n, content, expected), strings.NewReader(content))
}

func refused(t testing.TB, err error, want fault.Kind) {
	t.Helper()
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != want.Code {
		t.Fatalf("got %v, want the refusal %s", err, want.Code)
	}
	if f.Message == "" || f.Hint == "" || strings.Contains(f.Message, "/") {
		t.Errorf("the refusal %+v has no message or hint, or names a path", f)
	}
}

const (
	oldContent = "what was there"
	newContent = "what is to be there"
)

// place is the child process.
func place(spec string) {
	f := strings.SplitN(spec, ":", 3)
	s, err := open(f[1])
	if err != nil {
		panic(err)
	}
	s.crash = func(step string) {
		if step == f[0] {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	var expected *string
	if f[2] != "" {
		expected = new(f[2])
	}
	in := put(1, newContent, nil)
	in.ExpectedSHA256 = expected
	if _, err := s.Place(context.Background(), in, bytes.NewReader([]byte(newContent))); err != nil {
		panic(err)
	}
	os.Exit(0)
}
