package files_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bmatcuk/doublestar/v4"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/files"
	"agentrelay/internal/fault"
)

// paths lists all pages.
func (b *bench) paths(in files.ListDirectFilesIn) []string {
	b.t.Helper()
	out := []string{}
	for range 10_000 {
		page := b.list(in)
		for _, e := range page.Entries {
			out = append(out, e.Path)
		}
		if page.NextCursor == "" {
			return out
		}
		in.Cursor = &page.NextCursor
	}
	b.t.Fatal("the pages do not end")
	return nil
}

func TestListShowsEntries(t *testing.T) {
	b := newBench(t)
	b.put("a.txt", "12345")
	b.put("dir/inner", "x")
	check(t, os.Chmod(b.put("run.sh", "x"), 0o755))
	check(t, os.Symlink("dir/inner", b.dir+"/in"))
	check(t, os.Symlink(b.dir+"/nothing", b.dir+"/dangling"))
	check(t, os.Symlink(b.base, b.dir+"/out"))
	check(t, os.Symlink("../../up", b.dir+"/dir/up-and-out"))
	check(t, os.Symlink("../p/run.sh", b.dir+"/round"))
	check(t, unix.Mkfifo(b.dir+"/fifo", 0o644))
	b.put(".agent-relay-0123456789abcdef.tmp", "x")
	b.put("bad\xffname", "x")
	out := b.list(files.ListDirectFilesIn{})
	type entry struct {
		path, typ string
		size      int64
		run       bool
		target    string
	}
	var got []entry
	for _, e := range out.Entries {
		target := "-"
		if e.LinkTarget != nil {
			target = *e.LinkTarget
		}
		if e.ModifiedAt.IsZero() {
			t.Errorf("%s has no time", e.Path)
		}
		got = append(got, entry{e.Path, string(e.Type), e.Size, e.Executable, target})
	}
	want := []entry{
		{"a.txt", "file", 5, false, "-"},
		{"dangling", "symlink", 0, false, "nothing"},
		{"dir", "directory", 0, false, "-"},
		{"fifo", "other", 0, false, "-"},
		{"in", "symlink", 0, false, "dir/inner"},
		{"out", "symlink", 0, false, "-"},
		{"round", "symlink", 0, false, "run.sh"},
		{"run.sh", "file", 1, true, "-"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	if out.Path != "" || out.HostID != "local" || out.Skipped != (files.Skipped{Temporary: 1, BadName: 1}) {
		t.Errorf("got %q %+v", out.Path, out.Skipped)
	}
	if out := b.list(files.ListDirectFilesIn{Path: "dir/."}); out.Path != "dir" || len(out.Entries) != 2 || out.Entries[0].Path != "dir/inner" || out.Entries[1].LinkTarget != nil {
		t.Errorf("got %+v", out)
	}
}

func TestListRefusals(t *testing.T) {
	b := newBench(t)
	b.put("f", "x")
	cursor := func() *string {
		b.put("g", "x")
		return new(b.list(files.ListDirectFilesIn{Limit: new(1)}).NextCursor)
	}()
	for _, c := range []struct {
		in   files.ListDirectFilesIn
		kind fault.Kind
	}{
		{files.ListDirectFilesIn{Path: "missing"}, direct.PathNotFound},
		{files.ListDirectFilesIn{Path: "f"}, direct.NotDirectory},
		{files.ListDirectFilesIn{Path: ".."}, direct.OutsideProject},
		{files.ListDirectFilesIn{Limit: new(0)}, fault.InvalidArguments},
		{files.ListDirectFilesIn{Limit: new(1001)}, fault.InvalidArguments},
		{files.ListDirectFilesIn{Glob: new("")}, fault.InvalidArguments},
		{files.ListDirectFilesIn{Glob: new("[")}, fault.InvalidArguments},
		{files.ListDirectFilesIn{Glob: new("{a")}, fault.InvalidArguments},
		{files.ListDirectFilesIn{Glob: new("/abs")}, fault.InvalidArguments},
		{files.ListDirectFilesIn{Cursor: new("")}, fault.InvalidCursor},
		{files.ListDirectFilesIn{Cursor: new("nonsense")}, fault.InvalidCursor},
		{files.ListDirectFilesIn{Cursor: new(strings.Repeat("A", 10_000))}, fault.InvalidCursor},
		{files.ListDirectFilesIn{Cursor: cursor, Recursive: true}, fault.InvalidCursor},
		{files.ListDirectFilesIn{Cursor: cursor, Glob: new("*")}, fault.InvalidCursor},
		{files.ListDirectFilesIn{Cursor: new(*cursor + "AA")}, fault.InvalidCursor},
		{files.ListDirectFilesIn{Cursor: new((*cursor)[:len(*cursor)-4])}, fault.InvalidCursor},
	} {
		c.in.ProjectID = "p"
		_, err := b.ListDirectFiles(t.Context(), c.in)
		refused(t, err, c.kind)
	}
	w := benchIn(t, must(filepath.EvalSymlinks(t.TempDir()))(t), direct.Project{Write: true})
	_, err := w.ListDirectFiles(t.Context(), files.ListDirectFilesIn{ProjectID: "p"})
	refused(t, err, direct.ReadDisabled)
}

func TestGlobs(t *testing.T) {
	b := newBench(t)
	for _, f := range []string{"main.go", "a/b.go", "a/b_test.go", "a/c/d.go", "docs/x.md", "docs/y.txt", "{odd}"} {
		b.put(f, "x")
	}
	for _, c := range []struct{ path, glob, want string }{
		{"", "*.go", "a/b.go a/b_test.go a/c/d.go main.go"},
		{"", "**/*.go", "a/b.go a/b_test.go a/c/d.go main.go"},
		{"", "a/*.go", "a/b.go a/b_test.go"},
		{"", "a/**/*.go", "a/b.go a/b_test.go a/c/d.go"},
		{"", "./a/*.go", "a/b.go a/b_test.go"},
		{"", "*.{md,txt}", "docs/x.md docs/y.txt"},
		{"", "[a-m]*.go", "a/b.go a/b_test.go a/c/d.go main.go"},
		{"", "?", "a a/c"},
		{"", `\{odd\}`, "{odd}"},
		{"a", "c/*.go", "a/c/d.go"},
		{"a", "a/*.go", ""},
		{"", "nothing", ""},
	} {
		got := strings.Join(b.paths(files.ListDirectFilesIn{Path: c.path, Glob: &c.glob, Recursive: true}), " ")
		if got != c.want {
			t.Errorf("%q below %q gives %q, want %q", c.glob, c.path, got, c.want)
		}
	}
}

func TestIgnoredFilesAreLeftOutOfRecursion(t *testing.T) {
	b := newBench(t)
	b.put(".gitignore", "*.log\nbuild/\n/top\n")
	for _, f := range []string{".git/config", "node_modules/m/i.js", ".venv/x", "venv/x", "sub/__pycache__/x", "a.log", "build/out", "top", "sub/top", "sub/b.log", "keep"} {
		b.put(f, "x")
	}
	b.put("sub/.gitignore", "!b.log\n")
	out := b.paths(files.ListDirectFilesIn{Recursive: true})
	if want := []string{".gitignore", "keep", "sub", "sub/.gitignore", "sub/b.log", "sub/top"}; !slices.Equal(out, want) {
		t.Errorf("got %v, want %v", out, want)
	}
	if n := len(b.paths(files.ListDirectFilesIn{Recursive: true, IncludeIgnored: true})); n != 21 {
		t.Errorf("with includeIgnored there are %d entries", n)
	}
	if n := len(b.paths(files.ListDirectFilesIn{})); n != 10 {
		t.Errorf("a plain list has %d entries", n)
	}
	if got := b.paths(files.ListDirectFilesIn{Recursive: true, Path: "node_modules"}); !slices.Equal(got, []string{"node_modules/m", "node_modules/m/i.js"}) {
		t.Errorf("an ignored directory that is named shows %v", got)
	}
	if got := b.paths(files.ListDirectFilesIn{Recursive: true, Path: "build"}); !slices.Equal(got, []string{"build/out"}) {
		t.Errorf("an ignored directory that is named shows %v", got)
	}
	if skipped := b.list(files.ListDirectFilesIn{Recursive: true}).Skipped; skipped.Ignored != 8 {
		t.Errorf("skipped %+v", skipped)
	}
}

// TestIgnoreAgreesWithGit makes random rules and trees and asks Git.
func TestIgnoreAgreesWithGit(t *testing.T) {
	b := newBench(t)
	git := func(args ...string) string {
		cmd := exec.Command("git", append([]string{"-C", b.dir, "-c", "core.excludesFile=/dev/null"}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("git %v: %v", args, err)
		}
		return string(out)
	}
	names := []string{"a", "b", "ab", "a.c", "b.c", "x y", "{a}", "#h", "!n", "a1"}
	lines := rapid.Custom(func(rt *rapid.T) string {
		part := rapid.SampledFrom([]string{"a", "b", "*", "**", "a*", "*.c", "?", "[ab]", "[!a]", "[^b]", "a.c", "x y", "x\\ y", "{a}", "\\#h", "\\!n", "[[:digit:]]*", "a[[:digit:]]", "*b*"})
		line := strings.Join(rapid.SliceOfN(part, 1, 3).Draw(rt, "parts"), "/")
		return rapid.SampledFrom([]string{"", "", "/", "!", "!/", "**/"}).Draw(rt, "before") + line + rapid.SampledFrom([]string{"", "", "/", "/**", " ", "\r"}).Draw(rt, "after")
	})
	git("init", "-q", ".")
	rapid.Check(t, func(rt *rapid.T) {
		for _, e := range must(os.ReadDir(b.dir))(t) {
			if e.Name() != ".git" {
				check(t, os.RemoveAll(filepath.Join(b.dir, e.Name())))
			}
		}
		check(t, os.RemoveAll(b.dir+"/.git/info/exclude"))
		file := func(rel, content string) {
			full := filepath.Join(b.dir, rel)
			if os.MkdirAll(filepath.Dir(full), 0o755) == nil { // else a file is in the way
				os.WriteFile(full, []byte(content), 0o644)
			}
		}
		for range 25 {
			depth := rapid.IntRange(1, 3).Draw(rt, "depth")
			var p []string
			for range depth {
				p = append(p, rapid.SampledFrom(names).Draw(rt, "name"))
			}
			file(path.Join(p...), "x")
		}
		for _, dir := range []string{"", "a", "b/a"} {
			rules := rapid.SliceOfN(lines, 0, 4).Draw(rt, "rules")
			if info, err := os.Stat(filepath.Join(b.dir, dir)); err == nil && info.IsDir() && len(rules) > 0 {
				file(path.Join(dir, ".gitignore"), strings.Join(rules, "\n"))
			}
		}
		if rapid.Bool().Draw(rt, "exclude") {
			file(".git/info/exclude", strings.Join(rapid.SliceOfN(lines, 1, 3).Draw(rt, "excluded"), "\n"))
		}
		want := strings.FieldsFunc(git("ls-files", "-z", "--others", "--exclude-standard"), func(r rune) bool { return r == 0 })
		var got []string
		for _, e := range b.list(files.ListDirectFilesIn{Recursive: true, Limit: new(1000)}).Entries {
			if e.Type == files.File {
				got = append(got, e.Path)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			rt.Fatalf("we list %q\ngit lists %q", got, want)
		}
	})
}

// randomTree fills the project and returns what a naive walk finds, in order.
func randomTree(b *bench, seed uint64) []string {
	r := rand.New(rand.NewPCG(seed, 1))
	names := []string{"a", "b", "c", "a-b", "a.b", "a b", "A", "z", "\u00e9", "0"}
	for range 80 {
		var p []string
		for range 1 + r.IntN(4) {
			p = append(p, names[r.IntN(len(names))])
		}
		full := filepath.Join(b.dir, path.Join(p...))
		if os.MkdirAll(filepath.Dir(full), 0o755) == nil {
			os.WriteFile(full, []byte(strings.Join(p, "\n")), 0o644)
		}
	}
	var all []string
	filepath.WalkDir(b.dir, func(p string, _ os.DirEntry, err error) error {
		check(b.t, err)
		if rel := strings.TrimPrefix(p, b.dir); rel != "" {
			all = append(all, rel[1:])
		}
		return nil
	})
	slices.SortFunc(all, func(a, b string) int { return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/")) })
	return all
}

func TestListsAgainstANaiveWalk(t *testing.T) {
	for seed := range uint64(10) {
		b := newBench(t)
		all := randomTree(b, seed)
		for _, limit := range []int{1, 2, 7, 1000} {
			if got := b.paths(files.ListDirectFilesIn{Recursive: true, Limit: &limit}); !slices.Equal(got, all) {
				t.Fatalf("seed %d, limit %d: got %q\nwant %q", seed, limit, got, all)
			}
		}
		for _, glob := range []string{"a*", "a/**", "**/b", "*/*"} {
			var want []string
			for _, p := range all {
				subject := p
				if !strings.Contains(glob, "/") {
					subject = path.Base(p)
				}
				if ok, _ := doublestar.Match(glob, subject); ok {
					want = append(want, p)
				}
			}
			if got := b.paths(files.ListDirectFilesIn{Recursive: true, Glob: &glob, Limit: new(3)}); !slices.Equal(got, want) {
				t.Fatalf("seed %d, glob %s: got %q\nwant %q", seed, glob, got, want)
			}
		}
	}
}

func TestCursorsSurviveChanges(t *testing.T) {
	b := newBench(t)
	for i := range 10 {
		b.put(fmt.Sprintf("d%d/f", i), "x")
	}
	in := files.ListDirectFilesIn{Recursive: true, Limit: new(6)}
	first := b.list(in)
	if last := first.Entries[5].Path; last != "d2/f" {
		t.Fatal(last)
	}
	check(t, os.RemoveAll(b.dir+"/d2")) // what the cursor names
	check(t, os.RemoveAll(b.dir+"/d5"))
	b.put("d0/new", "before the cursor")
	b.put("d3/new", "behind it")
	in.Cursor, in.Limit = &first.NextCursor, new(1000)
	var got []string
	for _, e := range b.list(in).Entries {
		got = append(got, e.Path)
	}
	want := []string{"d3", "d3/f", "d3/new", "d4", "d4/f", "d6", "d6/f", "d7", "d7/f", "d8", "d8/f", "d9", "d9/f"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestListGoesOnBehindWhatItCannotRead(t *testing.T) {
	b := newBench(t)
	b.put("a/f", "x")
	b.put("locked/f", "x")
	b.put("z/f", "x")
	deep := b.dir
	for range 300 {
		deep += "/d"
	}
	check(t, os.MkdirAll(deep, 0o755))
	check(t, os.Mkdir(b.dir+"/mounted", 0o755))
	check(t, os.Chmod(b.dir+"/locked", 0))
	t.Cleanup(func() { os.Chmod(b.dir+"/locked", 0o755) })
	var paths []string
	out := b.list(files.ListDirectFilesIn{Recursive: true, Limit: new(1000)})
	for _, e := range out.Entries {
		paths = append(paths, e.Path)
	}
	if !slices.Contains(paths, "z/f") || !slices.Contains(paths, "locked") || out.Skipped.TooDeep != 1 {
		t.Errorf("got %d entries, skipped %+v", len(paths), out.Skipped)
	}
	if os.Geteuid() != 0 && out.Skipped.Unreadable != 1 {
		t.Errorf("skipped %+v", out.Skipped)
	}
}

func TestProtectedFilesAreNotListed(t *testing.T) {
	b := newBench(t)
	b.host = direct.New(direct.Policy{
		Projects:     []direct.Project{{ID: "p", Path: b.base, Read: true, Write: true}},
		AllowedRoots: []string{b.base}, Protected: []string{b.state},
	})
	b.open()
	b.put("f", "needle")
	secret := filepath.Join(b.state, "owner.json")
	check(t, os.WriteFile(secret, []byte("needle"), 0o600))
	check(t, os.Link(secret, b.dir+"/twin"))
	out := b.list(files.ListDirectFilesIn{Recursive: true, Limit: new(1000)})
	for _, e := range out.Entries {
		if strings.HasPrefix(e.Path, "state") || strings.HasSuffix(e.Path, "twin") {
			t.Errorf("%s is listed", e.Path)
		}
	}
	if out.Skipped.Protected != 2 {
		t.Errorf("skipped %+v", out.Skipped)
	}
	found := b.search(files.SearchDirectFilesIn{Query: "needle"})
	if len(found.Matches) != 1 || found.Matches[0].Path != "p/f" || found.Skipped.Protected != 2 {
		t.Errorf("found %+v", found)
	}
	_, err := b.SearchDirectFiles(t.Context(), files.SearchDirectFilesIn{ProjectID: "p", Query: "needle", Path: "p/twin"})
	refused(t, err, direct.ProtectedPath)
}

func FuzzCursor(f *testing.F) {
	b := newBench(f)
	for i := range 30 {
		b.put(fmt.Sprintf("%d/%d", i%5, i), "needle\nneedle\n")
	}
	f.Add(b.list(files.ListDirectFilesIn{Recursive: true, Limit: new(3)}).NextCursor)
	f.Add(b.search(files.SearchDirectFilesIn{Query: "needle", Limit: new(3)}).NextCursor)
	f.Fuzz(func(t *testing.T, cursor string) {
		out, err := b.ListDirectFiles(t.Context(), files.ListDirectFilesIn{ProjectID: "p", Recursive: true, Cursor: &cursor})
		if err != nil {
			refused(t, err, fault.InvalidCursor)
		} else if len(out.Entries) > 35 {
			t.Fatal("more entries than there are")
		}
		found, err := b.SearchDirectFiles(t.Context(), files.SearchDirectFilesIn{ProjectID: "p", Query: "needle", Cursor: &cursor})
		if err != nil {
			refused(t, err, fault.InvalidCursor)
		} else if len(found.Matches) > 60 {
			t.Fatal("more matches than there are")
		}
	})
}
