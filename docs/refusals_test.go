package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/commands"
	"agentrelay/internal/direct/files"
	hosttransfers "agentrelay/internal/direct/transfers"
	"agentrelay/internal/fault"
	"agentrelay/internal/transfers"
)

// refusing are the packages of the Direct workspace that declare refusals, and
// what they list for the page.
var refusing = map[string][]string{
	"internal/direct":           codes(direct.Kinds()),
	"internal/direct/files":     codes(files.Kinds()),
	"internal/direct/commands":  codes(commands.Kinds()),
	"internal/direct/transfers": codes(hosttransfers.Kinds()),
	"internal/transfers":        codes(transfers.Kinds()),
}

func codes(kinds []fault.Kind) (out []string) {
	for _, k := range kinds {
		out = append(out, k.Code)
	}
	return out
}

// declaration is a variable of the kind of a refusal.
type declaration struct{ dir, name, code string }

// TestEachRefusalOfDirectIsMetInATest: a kind that is declared is on the page, is
// made somewhere, and is what some test wants: by its variable or by its code.
// A test that only lists kinds, as this one, is none.
func TestEachRefusalOfDirectIsMetInATest(t *testing.T) {
	declared, made := declarations(t)
	for dir, listed := range refusing {
		for _, code := range listed {
			if !slices.ContainsFunc(declared, func(d declaration) bool { return d.dir == dir && d.code == code }) {
				t.Errorf("%s lists %s, whose declaration was not found", dir, code)
			}
		}
	}
	met := wanted(t)
	for _, d := range declared {
		if !slices.Contains(refusing[d.dir], d.code) {
			t.Errorf("%s.%s (%s) is not listed by Kinds, and so not in errors.md", d.dir, d.name, d.code)
		}
		if made[d.dir+"."+d.name] == 0 {
			t.Errorf("%s.%s (%s) is never made", d.dir, d.name, d.code)
		}
		if !met[d.dir+"."+d.name] && !met[d.code] {
			t.Errorf("%s.%s (%s) is met in no test", d.dir, d.name, d.code)
		}
	}
}

// declarations finds the kinds, and how often each is used outside of its
// declaration and of lists of kinds.
func declarations(t *testing.T) (all []declaration, used map[string]int) {
	t.Helper()
	constants, used := map[string]string{}, map[string]int{}
	for _, s := range sources(t) {
		if s.dir != "internal/transfers" && s.dir != "internal/direct" && !strings.HasPrefix(s.dir, "internal/direct/") {
			continue
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				if !strings.HasSuffix(strings.ToLower(f.Name.Name), "kinds") {
					references(s.dir, f, s.file, func(name string) { used[name]++ })
				}
				continue
			}
			for _, spec := range d.(*ast.GenDecl).Specs {
				v, ok := spec.(*ast.ValueSpec)
				if !ok {
					continue
				}
				for i, value := range v.Values {
					if code := codeOf(value); code != nil {
						all = append(all, declaration{s.dir, v.Names[i].Name, literal(code)})
						if literal(code) == "" {
							all[len(all)-1].code = "=" + code.(*ast.SelectorExpr).Sel.Name
						}
						continue
					}
					constants[v.Names[i].Name] = literal(value)
					references(s.dir, value, s.file, func(name string) { used[name]++ }) // such as a table of errors
				}
			}
		}
	}
	for i, d := range all {
		if name, ok := strings.CutPrefix(d.code, "="); ok {
			all[i].code = constants[name]
			used[d.dir+"."+d.name] += used[constantUse(name, used)]
		}
	}
	return all, used
}

// constantUse is the name under which a constant that is a code is used most.
func constantUse(name string, used map[string]int) (most string) {
	for at, n := range used {
		if strings.HasSuffix(at, "."+name) && n > used[most] {
			most = at
		}
	}
	return most
}

// codeOf is the Code of a fault.Kind literal, or nil.
func codeOf(value ast.Expr) ast.Expr {
	kind, ok := value.(*ast.CompositeLit)
	if !ok || len(kind.Elts) == 0 {
		return nil
	}
	if s, ok := kind.Type.(*ast.SelectorExpr); !ok || s.Sel.Name != "Kind" {
		return nil
	}
	for _, e := range kind.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok && kv.Key.(*ast.Ident).Name == "Code" {
			return kv.Value
		}
	}
	return nil
}

func literal(e ast.Expr) string {
	if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
		s, _ := strconv.Unquote(lit.Value)
		return s
	}
	return ""
}

// wanted is what tests name: variables as "<dir>.<name>", and strings.
func wanted(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	err := filepath.WalkDir("../internal", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "node_modules":
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(file, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel("..", filepath.Dir(file))
		references(filepath.ToSlash(dir), f, f, func(name string) { out[name] = true })
		ast.Inspect(f, func(n ast.Node) bool {
			if e, ok := n.(ast.Expr); ok {
				for s := range strings.SplitSeq(literal(e), `"`) { // also in a line of JSON
					out[s] = true
				}
			}
			return true
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// references calls f with "<dir>.<name>" for each name of a package of this module
// that node has.
func references(dir string, node ast.Node, file *ast.File, f func(name string)) {
	imports := map[string]string{}
	for _, imp := range file.Imports {
		at, _ := strconv.Unquote(imp.Path.Value)
		name := path.Base(at)
		if imp.Name != nil {
			name = imp.Name.Name
		}
		imports[name] = strings.TrimPrefix(at, module)
	}
	ast.Inspect(node, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && imports[x.Name] != "" {
				f(imports[x.Name] + "." + n.Sel.Name)
				return false
			}
		case *ast.Ident:
			f(dir + "." + n.Name)
		}
		return true
	})
}
