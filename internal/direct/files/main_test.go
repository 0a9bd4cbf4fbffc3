package files_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/files"
	"agentrelay/internal/fault"
)

func TestMain(m *testing.M) {
	if os.Getenv(crashEnv) != "" {
		crashHelper()
		return
	}
	goleak.VerifyTestMain(m)
}

// bench is a project on disk with its tools.
type bench struct {
	*files.Service
	t     testing.TB
	base  string // holds the project, the state and what is outside
	dir   string // the project
	state string
	host  *direct.Host
}

// newBench makes an empty project p that may be read and written.
func newBench(t testing.TB) *bench {
	base, err := filepath.EvalSymlinks(t.TempDir())
	check(t, err)
	return benchIn(t, base, direct.Project{Read: true, Write: true})
}

func benchIn(t testing.TB, base string, p direct.Project) *bench {
	t.Helper()
	b := &bench{t: t, base: base, dir: filepath.Join(base, "p"), state: filepath.Join(base, "state")}
	check(t, os.MkdirAll(b.dir, 0o755))
	check(t, os.MkdirAll(b.state, 0o700))
	p.ID, p.Path = "p", b.dir
	b.host = direct.New(direct.Policy{
		HostID: "local", Projects: []direct.Project{p},
		AllowedRoots: []string{base}, Protected: []string{b.state},
	})
	b.open()
	return b
}

// open starts the service, as a start of the gateway does.
func (b *bench) open() {
	b.t.Helper()
	s, err := files.New(files.Options{Host: b.host, StateDir: filepath.Join(b.state, "files")})
	check(b.t, err)
	b.Service = s
}

// put writes a file of the project, with its parents.
func (b *bench) put(rel, content string) string {
	b.t.Helper()
	path := filepath.Join(b.dir, rel)
	check(b.t, os.MkdirAll(filepath.Dir(path), 0o755))
	check(b.t, os.WriteFile(path, []byte(content), 0o644))
	return path
}

func (b *bench) get(rel string) string {
	b.t.Helper()
	data, err := os.ReadFile(filepath.Join(b.dir, rel))
	check(b.t, err)
	return string(data)
}

func (b *bench) write(rel, content string, expected *string) (files.WriteDirectFileOut, error) {
	return b.WriteDirectFile(b.t.Context(), files.WriteDirectFileIn{ProjectID: "p", Path: rel, Content: content, ExpectedSHA256: expected})
}

// edit edits what the file has now.
func (b *bench) edit(rel, from, to string) (files.EditDirectFileOut, error) {
	return b.edit2(rel, sha(b.get(rel)), from, to)
}

func (b *bench) edit2(rel, expected, from, to string) (files.EditDirectFileOut, error) {
	return b.EditDirectFile(b.t.Context(), files.EditDirectFileIn{ProjectID: "p", Path: rel, ExpectedSHA256: expected, OldText: from, NewText: to})
}

func (b *bench) read(in files.ReadDirectFileIn) files.ReadDirectFileOut {
	b.t.Helper()
	in.ProjectID = "p"
	return must(b.ReadDirectFile(b.t.Context(), in))(b.t)
}

func (b *bench) list(in files.ListDirectFilesIn) files.ListDirectFilesOut {
	b.t.Helper()
	in.ProjectID = "p"
	return must(b.ListDirectFiles(b.t.Context(), in))(b.t)
}

func (b *bench) search(in files.SearchDirectFilesIn) files.SearchDirectFilesOut {
	b.t.Helper()
	in.ProjectID = "p"
	return must(b.SearchDirectFiles(b.t.Context(), in))(b.t)
}

// leftovers are the temporary files in the project, and what is kept for a
// recovery.
func (b *bench) leftovers() []string {
	b.t.Helper()
	var out []string
	for _, pattern := range []string{b.dir + "/.agent-relay-*", b.dir + "/*/.agent-relay-*", b.state + "/files/temporary/*", b.state + "/files/recovery/*"} {
		found, err := filepath.Glob(pattern)
		check(b.t, err)
		out = append(out, found...)
	}
	return out
}

func sha(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		check(t, err)
		return v
	}
}

func refused(t testing.TB, err error, kind fault.Kind) *fault.Error {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("got %v, want %s", err, kind.Code)
	}
	return fault.From(err)
}
