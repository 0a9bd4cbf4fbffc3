package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "agentrelay/"

// domains know nothing of the protocols they are served over, nor of each
// other's tables.
var domains = []string{"internal/mailbox", "internal/events", "internal/direct", "internal/agents", "internal/devices"}

// protocols are imports that domains must not have.
var protocols = []string{"net/http", "github.com/modelcontextprotocol/", module + "internal/gateway", module + "internal/oauth", module + "internal/cli", module + "internal/admin"}

type source struct {
	dir  string // of the package, slash-separated, relative to the module
	file *ast.File
}

func sources(t *testing.T) []source {
	t.Helper()
	var out []source
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "node_modules" || (strings.HasPrefix(d.Name(), ".") && d.Name() != "..")) {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel("..", filepath.Dir(path))
		out = append(out, source{filepath.ToSlash(dir), f})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestEachPackageSaysWhatItOwns(t *testing.T) {
	comment := map[string]string{}
	for _, s := range sources(t) {
		if s.file.Doc != nil && len(s.file.Doc.Text()) > len(comment[s.dir]) {
			comment[s.dir] = s.file.Doc.Text()
		} else if _, ok := comment[s.dir]; !ok {
			comment[s.dir] = ""
		}
	}
	for dir, text := range comment {
		if strings.HasPrefix(dir, "cmd/") {
			continue
		}
		if n := strings.Count(text+" ", ". ") + strings.Count(text, ".\n"); n < 3 {
			t.Errorf("package %s: its comment has %d sentences, want at least 3: what it owns, promises and leaves to others", dir, n)
		}
	}
}

func TestDomainsKnowNoProtocol(t *testing.T) {
	for _, s := range sources(t) {
		i := slices.IndexFunc(domains, func(d string) bool { return s.dir == d || strings.HasPrefix(s.dir, d+"/") })
		if i < 0 {
			continue
		}
		for _, imp := range s.file.Imports {
			path, _ := strconv.Unquote(imp.Path.Value)
			for _, p := range protocols {
				if p == "net/http" && (domains[i] == "internal/events" || strings.HasPrefix(s.dir, "internal/agents/paseo")) {
					continue // they post to receivers and ask the daemon; they serve nothing
				}
				if strings.HasPrefix(path, p) {
					t.Errorf("%s imports %s", s.dir, path)
				}
			}
			for _, other := range domains {
				if other != domains[i] && strings.HasPrefix(path, module+other) {
					t.Errorf("%s imports the domain %s: take a small interface instead", s.dir, path)
				}
			}
		}
	}
}

func TestNothingRunsBeforeMain(t *testing.T) {
	for _, s := range sources(t) {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				t.Errorf("%s has an init function", s.dir)
			}
		}
	}
}

func TestNamesSayTheJob(t *testing.T) {
	for _, s := range sources(t) {
		if slices.Contains([]string{"util", "utils", "common", "helpers", "models", "misc"}, s.file.Name.Name) {
			t.Errorf("%s: package %s names no job", s.dir, s.file.Name.Name)
		}
	}
}

func TestCommandsAreThin(t *testing.T) {
	for _, s := range sources(t) {
		if !strings.HasPrefix(s.dir, "cmd/") {
			continue
		}
		n := 0
		for _, d := range s.file.Decls {
			if _, ok := d.(*ast.FuncDecl); ok {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s has %d functions, want main only", s.dir, n)
		}
	}
}
