package files_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/files"
)

// goTree is the Go source tree as a project.
func goTree(t testing.TB) *bench {
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	check(t, err)
	src, err := filepath.EvalSymlinks(filepath.Join(strings.TrimSpace(string(goroot)), "src"))
	check(t, err)
	base, err := filepath.EvalSymlinks(t.TempDir())
	check(t, err)
	b := &bench{t: t, base: base, dir: src, state: filepath.Join(base, "state")}
	b.host = direct.New(direct.Policy{
		HostID: "local", Projects: []direct.Project{{ID: "p", Path: src, Read: true}},
		AllowedRoots: []string{src}, Protected: []string{b.state},
	})
	b.open()
	return b
}

// BenchmarkSearch searches the Go source tree for something that is in every
// file but page-limited, something rare, and an expression, in turns with
// ripgrep over the same tree where it is installed. The ratio counts.
func BenchmarkSearch(b *testing.B) {
	tree := goTree(b)
	rg, _ := exec.LookPath("rg")
	for _, q := range []struct {
		name string
		in   files.SearchDirectFilesIn
		rg   []string
	}{
		{"absent", files.SearchDirectFilesIn{Query: "no line has this text"}, []string{"-F", "no line has this text"}},
		{"rare", files.SearchDirectFilesIn{Query: "runtime: unexpected return pc"}, []string{"-F", "runtime: unexpected return pc"}},
		{"ignoreCase", files.SearchDirectFilesIn{Query: "UNEXPECTED RETURN PC", IgnoreCase: true}, []string{"-F", "-i", "UNEXPECTED RETURN PC"}},
		{"regex", files.SearchDirectFilesIn{Query: `unexpected\s+return\s+pc`, Regex: true}, []string{`unexpected\s+return\s+pc`}},
		{"regex without literal", files.SearchDirectFilesIn{Query: `[0-9]{7}z[0-9]`, Regex: true}, []string{`[0-9]{7}z[0-9]`}},
		{"func", files.SearchDirectFilesIn{Query: "func (", Limit: new(500)}, []string{"-F", "func ("}},
	} {
		b.Run(q.name, func(b *testing.B) {
			var ours, theirs time.Duration
			for b.Loop() {
				begun := time.Now()
				tree.search(q.in)
				ours += time.Since(begun)
				if rg != "" {
					begun = time.Now()
					cmd := exec.Command(rg, append([]string{"--no-ignore-global", "--no-heading", "-n"}, append(q.rg, tree.dir)...)...)
					cmd.Run()
					theirs += time.Since(begun)
				}
			}
			b.ReportMetric(float64(ours.Milliseconds())/float64(b.N), "ms")
			b.ReportMetric(float64(theirs.Milliseconds())/float64(b.N), "rg-ms")
			if theirs > 0 {
				b.ReportMetric(float64(ours)/float64(theirs), "x-rg")
			}
		})
	}
}

// bigText is a file of 200,000 lines.
func bigText() string {
	var text strings.Builder
	for i := range 200_000 {
		fmt.Fprintf(&text, "\tline %d of a file that is long enough to matter, with \u201cquotes\u201d\n", i)
	}
	return text.String()
}

func BenchmarkEditMiss(b *testing.B) {
	w := newBench(b)
	w.put("big.txt", bigText())
	hash := sha(w.get("big.txt"))
	for _, old := range []string{
		"\tline 199999 of a file that is long enough to\u00a0matter",
		"\tline 199990 of a file that is short enough to matter, with",
		"nothing like this is there at all, not by a long way",
	} {
		b.Run("", func(b *testing.B) {
			for b.Loop() {
				_, err := w.edit2("big.txt", hash, old, "x")
				refused(b, err, files.TextNotFound)
			}
		})
	}
}

func BenchmarkTail(b *testing.B) {
	w := newBench(b)
	f, err := os.Create(filepath.Join(w.dir, "big.log"))
	check(b, err)
	check(b, f.Truncate(5<<30))
	_, err = f.WriteAt([]byte(strings.Repeat("the end of a log\n", 1000)), 5<<30)
	check(b, err)
	check(b, f.Close())
	for b.Loop() {
		if out := w.read(files.ReadDirectFileIn{Path: "big.log", Tail: true}); out.ReturnedLines != files.DefaultRead {
			b.Fatal(out.ReturnedLines)
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	w := newBench(b)
	content := bytes.Repeat([]byte("0123456789abcdef"), 640)
	w.put("f", "")
	old := ""
	for i := 0; b.Loop(); i++ {
		next := fmt.Sprint(i, string(content))
		_, err := w.write("f", next, new(sha(old)))
		check(b, err)
		old = next
	}
}

// BenchmarkSearchPages reads all pages of a search.
func BenchmarkSearchPages(b *testing.B) {
	tree := goTree(b)
	for b.Loop() {
		tree.matches(files.SearchDirectFilesIn{Query: "func (", Limit: new(files.MaxSearch)})
	}
}
