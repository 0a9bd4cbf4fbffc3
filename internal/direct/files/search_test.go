package files_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/files"
	"agentrelay/internal/fault"
)

// matches collects all pages as path:line:column.
func (b *bench) matches(in files.SearchDirectFilesIn) []string {
	b.t.Helper()
	out := []string{}
	for range 10_000 {
		page := b.search(in)
		for _, m := range page.Matches {
			out = append(out, fmt.Sprintf("%s:%d:%d", m.Path, m.Line, m.Column))
		}
		if page.Truncated != (page.NextCursor != "") {
			b.t.Fatalf("truncated is %v and the cursor %q", page.Truncated, page.NextCursor)
		}
		if !page.Truncated {
			return out
		}
		in.Cursor = &page.NextCursor
	}
	b.t.Fatal("the pages do not end")
	return nil
}

func TestSearchFindsLines(t *testing.T) {
	b := newBench(t)
	b.put("a.txt", "one\ntwo needle needle\r\nthree\n")
	b.put("b/c.txt", "\u00e9\u65e5\U0001F600 needle")
	b.put("latin", "caf\xe9 needle\n")
	b.put("late-nul", strings.Repeat("x", 9000)+"\nneedle\x00\n")
	b.put("binary", "\x00needle\n")
	b.put("empty", "")
	b.put(".git/config", "needle")
	b.put("node_modules/x", "needle")
	b.put("ignored.log", "needle")
	b.put(".gitignore", "*.log\n")
	check(t, unix.Mkfifo(b.dir+"/fifo", 0o644))
	check(t, os.Symlink("a.txt", b.dir+"/link"))
	out := b.search(files.SearchDirectFilesIn{Query: "needle", Context: new(1)})
	want := []files.Match{
		{Path: "a.txt", Line: 2, Column: 5, Text: "two needle needle", Before: []string{"one"}, After: []string{"three"}},
		{Path: "b/c.txt", Line: 1, Column: 5, Text: "\u00e9\u65e5\U0001F600 needle"},
		{Path: "late-nul", Line: 2, Column: 1, Text: "needle\x00"},
		{Path: "latin", Line: 1, Column: 6, Text: "caf\uFFFD needle"},
	}
	for i := range want {
		if i >= len(out.Matches) || fmt.Sprint(out.Matches[i].Line, out.Matches[i].Column, out.Matches[i].Text, out.Matches[i].After) != fmt.Sprint(want[i].Line, want[i].Column, want[i].Text, want[i].After) || out.Matches[i].Path != want[i].Path {
			t.Fatalf("got %+v\nwant %+v", out.Matches, want)
		}
	}
	if len(out.Matches) != len(want) || out.Matches[0].Before[0] != "one" || out.Truncated || out.HostID != "local" {
		t.Errorf("got %+v", out)
	}
	if want := (files.Skipped{Ignored: 3, Binary: 1, Special: 1, Links: 1}); out.Skipped != want {
		t.Errorf("skipped %+v, want %+v", out.Skipped, want)
	}
	if out.ScannedFiles != 6 || out.ScannedBytes < 9000 {
		t.Errorf("scanned %d files, %d bytes", out.ScannedFiles, out.ScannedBytes)
	}
	if got := b.matches(files.SearchDirectFilesIn{Query: "needle", IncludeIgnored: true}); len(got) != 7 {
		t.Errorf("with includeIgnored: %v", got)
	}
	if got := b.matches(files.SearchDirectFilesIn{Query: "needle", Path: "b"}); !slices.Equal(got, []string{"b/c.txt:1:5"}) {
		t.Errorf("below a directory: %v", got)
	}
	if got := b.matches(files.SearchDirectFilesIn{Query: "needle", Path: "link"}); !slices.Equal(got, []string{"a.txt:2:5"}) {
		t.Errorf("in one file: %v", got)
	}
	if got := b.matches(files.SearchDirectFilesIn{Query: "needle", Glob: new("*.txt")}); !slices.Equal(got, []string{"a.txt:2:5", "b/c.txt:1:5"}) {
		t.Errorf("with a glob: %v", got)
	}
}

func TestSearchPatterns(t *testing.T) {
	b := newBench(t)
	b.put("f", "Alpha beta\nalpha(1)\n[abc .*\n\u212A\u017F ks\nend  \nstra\u00dfe STRASSE\n\tx = 12345;\r\n")
	for _, c := range []struct {
		query          string
		regex, anyCase bool
		lines          string
	}{
		{query: "alpha", lines: "2"},
		{query: "alpha", anyCase: true, lines: "1 2"},
		{query: ".*", lines: "3"},
		{query: "[abc", lines: "3"},
		{query: "(1)", lines: "2"},
		{query: "KS", anyCase: true, lines: "4"},
		{query: "\u212A", anyCase: true, lines: "4"},
		{query: "STRA\u00dfE", anyCase: true, lines: "6"},
		{query: `^alpha`, regex: true, lines: "2"},
		{query: `^alpha`, regex: true, anyCase: true, lines: "1 2"},
		{query: `beta$`, regex: true, lines: "1"},
		{query: `\d{3,}`, regex: true, lines: "7"},
		{query: `;$`, regex: true, lines: "7"},
		{query: `^\s*x\s*=`, regex: true, lines: "7"},
		{query: `(foo|beta|12)`, regex: true, lines: "1 7"},
		{query: `(?i)ALPHA`, regex: true, lines: "1 2"},
		{query: `a(lph)+a`, regex: true, lines: "2"},
		{query: `al{0}pha|zz`, regex: true, lines: ""},
		{query: `\s+$`, regex: true, lines: "5"},
		{query: `x*`, regex: true, lines: "1 2 3 4 5 6 7"},
		{query: "no such text", lines: ""},
	} {
		var lines []string
		for _, m := range b.search(files.SearchDirectFilesIn{Query: c.query, Regex: c.regex, IgnoreCase: c.anyCase}).Matches {
			lines = append(lines, strconv.FormatInt(m.Line, 10))
		}
		if got := strings.Join(lines, " "); got != c.lines {
			t.Errorf("%q finds lines %q, want %q", c.query, got, c.lines)
		}
	}
}

func TestSearchRefusals(t *testing.T) {
	b := newBench(t)
	b.put("f", "x\nx\n")
	check(t, unix.Mkfifo(b.dir+"/fifo", 0o644))
	cursor := new(b.search(files.SearchDirectFilesIn{Query: "x", Limit: new(1)}).NextCursor)
	for _, c := range []struct {
		in   files.SearchDirectFilesIn
		kind fault.Kind
	}{
		{files.SearchDirectFilesIn{Query: ""}, fault.InvalidArguments},
		{files.SearchDirectFilesIn{Query: strings.Repeat("x", 1025)}, fault.InvalidArguments},
		{files.SearchDirectFilesIn{Query: "a\nb"}, fault.InvalidArguments},
		{files.SearchDirectFilesIn{Query: "a\xff"}, fault.InvalidArguments},
		{files.SearchDirectFilesIn{Query: "(", Regex: true}, fault.InvalidArguments},
		{files.SearchDirectFilesIn{Query: "(?<!secret)", Regex: true}, fault.InvalidArguments},
		{files.SearchDirectFilesIn{Query: "x", Context: new(6)}, fault.InvalidArguments},
		{files.SearchDirectFilesIn{Query: "x", Context: new(-1)}, fault.InvalidArguments},
		{files.SearchDirectFilesIn{Query: "x", Limit: new(501)}, fault.InvalidArguments},
		{files.SearchDirectFilesIn{Query: "x", Glob: new("[")}, fault.InvalidArguments},
		{files.SearchDirectFilesIn{Query: "x", Path: "missing"}, direct.PathNotFound},
		{files.SearchDirectFilesIn{Query: "x", Path: "fifo"}, direct.NotRegularFile},
		{files.SearchDirectFilesIn{Query: "y", Cursor: cursor}, fault.InvalidCursor},
		{files.SearchDirectFilesIn{Query: "x", IgnoreCase: true, Cursor: cursor}, fault.InvalidCursor},
	} {
		c.in.ProjectID = "p"
		_, err := b.SearchDirectFiles(t.Context(), c.in)
		if e := refused(t, err, c.kind); strings.Contains(e.Message, "secret") {
			t.Errorf("the refusal shows the query: %s", e.Message)
		}
	}
}

func TestSearchPagesGoOnWithinAFile(t *testing.T) {
	b := newBench(t)
	for i := range 5 {
		b.put(fmt.Sprint("f", i), strings.Repeat("needle\nhay\n", 7))
	}
	all := b.matches(files.SearchDirectFilesIn{Query: "needle", Limit: new(500)})
	if len(all) != 35 {
		t.Fatal(all)
	}
	for _, limit := range []int{1, 2, 7, 10, 34, 35} {
		if got := b.matches(files.SearchDirectFilesIn{Query: "needle", Limit: &limit}); !slices.Equal(got, all) {
			t.Errorf("pages of %d give %v", limit, got)
		}
		if got := b.matches(files.SearchDirectFilesIn{Query: "needle", Limit: &limit, Path: "f1"}); !slices.Equal(got, all[7:14]) {
			t.Errorf("pages of %d in one file give %v", limit, got)
		}
	}
	// What was shown before the cursor may change.
	in := files.SearchDirectFilesIn{Query: "needle", Limit: new(10)}
	in.Cursor = new(b.search(in).NextCursor)
	b.put("f1", "x\n"+strings.Repeat("needle\nhay\n", 7))
	if m := b.search(in).Matches[0]; m.Path != "f1" || m.Line < 6 {
		t.Errorf("after a change it goes on at %s:%d", m.Path, m.Line)
	}
	check(t, os.Remove(b.dir+"/f1"))
	if m := b.search(in).Matches[0]; m.Path != "f2" || m.Line != 1 {
		t.Errorf("after a removal it goes on at %s:%d", m.Path, m.Line)
	}
}

func TestSearchOfLongLines(t *testing.T) {
	b := newBench(t)
	for _, c := range []struct {
		name          string
		before, after int
		column        int64
	}{
		{"short", 10, 10, 11},
		{"cut", 2000, 2000, 2001},
		{"page", 300_000, 10, 300_001},
		{"pieces", 3_000_000, 3_000_000, 3_000_001},
		{"seam", 1<<20 - 3, 100, 1<<20 - 2},
		{"second seam", 2*(1<<20) - 65536 - 2, 100, 2*(1<<20) - 65536 - 1},
	} {
		b.put("f", "first\n"+strings.Repeat("x", c.before)+"needle"+strings.Repeat("y", c.after)+" needle\nneedle\nlast")
		out := b.search(files.SearchDirectFilesIn{Query: "needle"})
		if len(out.Matches) != 2 {
			t.Errorf("%s: %d matches", c.name, len(out.Matches))
			continue
		}
		m := out.Matches[0]
		if m.Line != 2 || m.Column != c.column || !strings.Contains(m.Text, "needle") || utf8.RuneCountInString(m.Text) > 500 || m.TextTruncated != (c.before+c.after > 400) {
			t.Errorf("%s: got %d:%d, %d characters", c.name, m.Line, m.Column, len(m.Text))
		}
		if out.Matches[1].Line != 3 || out.Matches[1].Column != 1 {
			t.Errorf("%s: the next match is at %d:%d", c.name, out.Matches[1].Line, out.Matches[1].Column)
		}
		re := b.search(files.SearchDirectFilesIn{Query: "ne+dle", Regex: true, IgnoreCase: true})
		if len(re.Matches) != 2 || re.Matches[0].Column != c.column {
			t.Errorf("%s: the expression finds %d", c.name, len(re.Matches))
		}
	}
	b.put("f", strings.Repeat("\u65e5", 700_000)+"needle\n")
	if m := b.search(files.SearchDirectFilesIn{Query: "needle"}).Matches[0]; m.Column != 700_001 || !utf8.ValidString(m.Text) || strings.Contains(m.Text, "\uFFFD") {
		t.Errorf("among long characters: column %d, %q", m.Column, m.Text)
	}
}

// TestSearchAgainstAModel compares with a plain loop over lines, for contents
// around the sizes of the scanner's buffers.
func TestSearchAgainstAModel(t *testing.T) {
	b := newBench(t)
	piece := rapid.SampledFrom([]string{
		"needle", "Needle", "need", "le", "\n", "\n", "\r\n", "x", "\u00e9", "\xff", strings.Repeat("hay\n", 30_000), strings.Repeat("z", 130_000), strings.Repeat("\u65e5", 40_000),
	})
	rapid.Check(t, func(rt *rapid.T) {
		text := strings.Join(rapid.SliceOfN(piece, 0, 16).Draw(rt, "file"), "")
		anyCase := rapid.Bool().Draw(rt, "any case")
		limit := rapid.IntRange(1, 20).Draw(rt, "limit")
		check(t, os.WriteFile(b.dir+"/f", []byte(text), 0o644))
		re := regexp.MustCompile("needle")
		if anyCase {
			re = regexp.MustCompile("(?i)needle")
		}
		want := []string{}
		for i, line := range strings.Split(text, "\n") {
			if loc := re.FindStringIndex(line); loc != nil {
				want = append(want, fmt.Sprintf("f:%d:%d", i+1, utf8.RuneCountInString(line[:loc[0]])+1))
			}
		}
		got := b.matches(files.SearchDirectFilesIn{Query: "needle", IgnoreCase: anyCase, Limit: &limit, Context: new(2)})
		if !slices.Equal(got, want) {
			rt.Fatalf("got %v, want %v", got, want)
		}
	})
}

func TestContextLines(t *testing.T) {
	b := newBench(t)
	b.put("f", "1\n2\nneedle\n4\n5\n6")
	b.put("g", "needle")
	b.put("h", "1\n"+strings.Repeat("x", 2000)+"\nneedle\n"+strings.Repeat("y", 200_000)+"\n5\n")
	out := b.search(files.SearchDirectFilesIn{Query: "needle", Context: new(5)})
	if m := out.Matches[0]; !slices.Equal(m.Before, []string{"1", "2"}) || !slices.Equal(m.After, []string{"4", "5", "6"}) {
		t.Errorf("got %+v", m)
	}
	if m := out.Matches[1]; m.Before != nil || m.After != nil {
		t.Errorf("got %+v", m)
	}
	if m := out.Matches[2]; len(m.Before) != 2 || len(m.Before[1]) != 500 || len(m.After) == 0 || len(m.After[0]) != 500 {
		t.Errorf("got %d and %d lines", len(m.Before), len(m.After))
	}
}

func TestSearchAnswersAreBounded(t *testing.T) {
	b := newBench(t)
	line := strings.Repeat("w", 480) + " needle\n"
	for i := range 20 {
		b.put(fmt.Sprintf("f%02d", i), strings.Repeat(line, 50))
	}
	out := b.search(files.SearchDirectFilesIn{Query: "needle", Limit: new(500), Context: new(5)})
	size := 0
	for _, m := range out.Matches {
		size += len(m.Text) + len(strings.Join(m.Before, "")) + len(strings.Join(m.After, ""))
	}
	if size > 256<<10 || !out.Truncated {
		t.Errorf("an answer has %d bytes", size)
	}
	if n := len(b.matches(files.SearchDirectFilesIn{Query: "needle", Limit: new(500), Context: new(5)})); n != 1000 {
		t.Errorf("all pages have %d matches", n)
	}
}

func TestSearchEndsWithItsContext(t *testing.T) {
	tree := goTree(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := tree.SearchDirectFiles(ctx, files.SearchDirectFilesIn{ProjectID: "p", Query: "no such text anywhere"})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	_, err = tree.ListDirectFiles(ctx, files.ListDirectFilesIn{ProjectID: "p", Recursive: true})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestSearchAgreesWithGrep compares with grep on a real tree.
func TestSearchAgreesWithGrep(t *testing.T) {
	tree := goTree(t)
	tree.dir = filepath.Join(tree.dir, "net")
	for _, query := range []string{"func (c *Conn)", "TODO(", "\u00e9", "rfc"} {
		cmd := exec.Command("grep", "-rnIF", "--exclude-dir=testdata", "-e", query, ".")
		cmd.Dir = tree.dir
		cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
		raw, _ := cmd.Output() // 1 is for no match
		want := []string{}
		for line := range strings.Lines(string(raw)) {
			parts := strings.SplitN(line, ":", 3)
			want = append(want, "net/"+strings.TrimPrefix(parts[0], "./")+":"+parts[1])
		}
		got := []string{}
		for _, m := range tree.matches(files.SearchDirectFilesIn{Query: query, Path: "net", Limit: new(37)}) {
			if !strings.Contains(m, "/testdata/") {
				got = append(got, m[:strings.LastIndexByte(m, ':')])
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%q: %d matches, grep has %d", query, len(got), len(want))
		}
	}
}

func FuzzSearch(f *testing.F) {
	f.Add("a\nneedle\r\n", "ne+dle", true, true)
	f.Add("\xff\x00", "\u017F", false, true)
	b := newBench(f)
	f.Fuzz(func(t *testing.T, text, query string, regex, anyCase bool) {
		b := &bench{Service: b.Service, t: t, dir: b.dir}
		b.put("f", text)
		out, err := b.SearchDirectFiles(t.Context(), files.SearchDirectFilesIn{ProjectID: "p", Query: query, Regex: regex, IgnoreCase: anyCase, Context: new(1)})
		if err != nil {
			refused(t, err, fault.InvalidArguments)
			return
		}
		expr := query
		if !regex {
			expr = regexp.QuoteMeta(query)
		}
		if anyCase {
			expr = "(?i:" + expr + ")"
		}
		re := regexp.MustCompile(expr)
		var want []int64
		for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
			if text != "" && !strings.Contains(text[:min(len(text), 8192)], "\x00") && re.MatchString(strings.TrimSuffix(line, "\r")) {
				want = append(want, int64(i+1))
			}
		}
		var got []int64
		for _, m := range out.Matches {
			got = append(got, m.Line)
			if !utf8.ValidString(m.Text) {
				t.Fatalf("%q is not UTF-8", m.Text)
			}
		}
		if len(want) > 100 {
			want = want[:100]
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%q (regex %v, any case %v) in %q: lines %v, want %v", query, regex, anyCase, text, got, want)
		}
	})
}

// TestEndlessLineIsNotReadToItsEnd: a file with a hole can be one line of
// terabytes.
func TestEndlessLineIsNotReadToItsEnd(t *testing.T) {
	b := newBench(t)
	path := b.put("f", strings.Repeat("text ", 4096))
	check(t, os.Truncate(path, 1<<30))
	f, err := os.Open(path)
	check(t, err)
	defer f.Close()
	const limit = 8 << 20
	if n, err := files.ScannedBytes(t.Context(), f, "needle", limit); err != nil || n < limit || n > 2*limit {
		t.Errorf("%d bytes of at most %d were read, %v", n, limit, err)
	}
}
