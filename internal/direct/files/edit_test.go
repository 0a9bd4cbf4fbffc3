package files_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/files"
	"agentrelay/internal/fault"
)

func TestEditChangesTheSpanAlone(t *testing.T) {
	for _, c := range []struct {
		name, file, from, to, want string
	}{
		{"a word", "one two three\n", "two", "2", "one 2 three\n"},
		{"patterns are text", "a.b $1 \\1 %s\n", "$1", "$& \\1 $1 %d", "a.b $& \\1 $1 %d \\1 %s\n"},
		{"nothing in its place", "keep\ndrop\nkeep\n", "drop\n", "", "keep\nkeep\n"},
		{"the whole", "x", "x", "", ""},
		{"no final newline stays", "a\nb", "b", "c", "a\nc"},
		{"byte order mark", "\uFEFFa\nb\n", "a", "c", "\uFEFFc\nb\n"},
		{"invalid bytes elsewhere", "caf\xe9 \xa9\nline\n", "line", "row", "caf\xe9 \xa9\nrow\n"},
		{"NUL elsewhere", "a\x00b\nline\n", "line", "row", "a\x00b\nrow\n"},
		{"mixed line ends", "1\r\n2\n3\r\n", "2", "two", "1\r\ntwo\n3\r\n"},
		{"CRLF text given with LF", "1\r\n2\r\n3\r\n", "1\n2\n", "one\ntwo\n", "one\r\ntwo\r\n3\r\n"},
		{"LF text given with CRLF", "1\n2\n3\n", "1\r\n2\r\n", "one\r\n", "one\n3\n"},
		{"CRLF span in a mixed file", "0\n1\r\n2\r\n3\n", "1\n2", "a\nb", "0\na\r\nb\r\n3\n"},
		{"new lines in a CRLF file", "1\r\n2\r\n", "1", "a\nb", "a\r\nb\r\n2\r\n"},
		{"new lines in a mixed file", "1\r\n2\n", "1", "a\nb", "a\nb\r\n2\n"},
		{"deliberate change of line ends", "1\r\n2\r\n", "1\r\n2", "1\n2", "1\n2\r\n"},
		{"lone CR", "a\rb\rc", "b", "x", "a\rx\rc"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			b.put("f", c.file)
			out, err := b.edit("f", c.from, c.to)
			check(t, err)
			if got := b.get("f"); got != c.want {
				t.Errorf("the file has %q, want %q", got, c.want)
			}
			if out.SHA256 != sha(c.want) || out.Size != int64(len(c.want)) || out.Replacements != 1 || out.Path != "f" || out.HostID != "local" || out.Duplicate {
				t.Errorf("got %+v", out)
			}
		})
	}
}

func TestEditRefusals(t *testing.T) {
	b := newBench(t)
	b.put("f", "aaa\nb\naa\n")
	b.put("read-only", "x")
	check(t, os.Chmod(b.dir+"/read-only", 0o444))
	b.put("setuid", "x")
	check(t, os.Chmod(b.dir+"/setuid", 0o755|os.ModeSetuid))
	big := b.put("big", "")
	check(t, os.Truncate(big, files.MaxEdit+1))
	for _, c := range []struct {
		path, expected, from, to string
		kind                     fault.Kind
	}{
		{"f", sha("aaa\nb\naa\n"), "", "x", fault.InvalidArguments},
		{"f", sha("aaa\nb\naa\n"), "b", "b", fault.InvalidArguments},
		{"f", "x", "b", "c", fault.InvalidArguments},
		{"f", sha(""), "b", "c", files.HashConflict},
		{"f", sha("aaa\nb\naa\n"), "b\xff", "c", fault.InvalidArguments},
		{"f", sha("aaa\nb\naa\n"), "b", strings.Repeat("c", files.MaxContent+1), fault.InvalidArguments},
		{"missing", sha(""), "b", "c", direct.PathNotFound},
		{"read-only", sha("x"), "x", "y", files.ReadOnlyFile},
		{"setuid", sha("x"), "x", "y", files.PrivilegedFile},
		{"big", sha(""), "x", "y", files.FileTooLarge},
		{".", sha(""), "x", "y", direct.NotRegularFile},
		{".git/config", sha(""), "x", "y", direct.ProtectedPath},
	} {
		_, err := b.edit2(c.path, c.expected, c.from, c.to)
		refused(t, err, c.kind)
	}
	_, err := b.edit("f", "aa", "x")
	e := refused(t, err, files.AmbiguousEdit)
	if want := "oldText occurs 3 times, beginning on lines 1, 1, 3."; e.Message != want {
		t.Errorf("got %q, want %q", e.Message, want)
	}
	b.put("many", strings.Repeat("x\n", 1000))
	_, err = b.edit("many", "x", "y")
	if e := refused(t, err, files.AmbiguousEdit); len(e.Message) > 300 || !strings.Contains(e.Message, "1000 times") {
		t.Errorf("got %q", e.Message)
	}
}

func TestReplaceAll(t *testing.T) {
	b := newBench(t)
	b.put("f", "aaaa b aa\n")
	out, err := b.EditDirectFile(t.Context(), files.EditDirectFileIn{
		ProjectID: "p", Path: "f", ExpectedSHA256: sha("aaaa b aa\n"), OldText: "aa", NewText: "aaa", ReplaceAll: true,
	})
	check(t, err)
	if got := b.get("f"); got != "aaaaaa b aaa\n" || out.Replacements != 3 {
		t.Errorf("got %q with %d replacements", got, out.Replacements)
	}
	b.put("large", strings.Repeat("x", 1<<20))
	_, err = b.EditDirectFile(t.Context(), files.EditDirectFileIn{
		ProjectID: "p", Path: "large", ExpectedSHA256: sha(b.get("large")), OldText: "x", NewText: strings.Repeat("y", 100), ReplaceAll: true,
	})
	refused(t, err, files.FileTooLarge)
}

// TestTextThatOverlapsItself: occurrences are counted in the time of reading the
// file, and what could be replaced too often is refused.
func TestTextThatOverlapsItself(t *testing.T) {
	b := newBench(t)
	b.put("f", strings.Repeat("a", 8<<20))
	began := time.Now()
	_, err := b.edit("f", strings.Repeat("a", 1<<20), "b")
	if e := refused(t, err, files.AmbiguousEdit); !strings.Contains(e.Message, fmt.Sprint(7<<20+1)) {
		t.Errorf("got %v", e)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	_, err = b.EditDirectFile(t.Context(), files.EditDirectFileIn{
		ProjectID: "p", Path: "f", ExpectedSHA256: sha(strings.Repeat("a", 8<<20)), OldText: "a", NewText: "b", ReplaceAll: true,
	})
	refused(t, err, fault.InvalidArguments)
	for _, c := range []struct{ file, text, want string }{
		{"abababa", "aba", "xbx"}, {"aabaabaa", "aabaa", "xbaa"}, {"aaaa", "aa", "xx"}, {"abcabcabd", "abcabd", "abcx"}, {"aaab", "aab", "ax"},
	} {
		b.put("g", c.file)
		_, err := b.EditDirectFile(t.Context(), files.EditDirectFileIn{
			ProjectID: "p", Path: "g", ExpectedSHA256: sha(c.file), OldText: c.text, NewText: "x", ReplaceAll: true,
		})
		check(t, err)
		if got := b.get("g"); got != c.want {
			t.Errorf("%s without %s is %s, want %s", c.file, c.text, got, c.want)
		}
	}
}

// TestManyChangesOfOneLineAreFast: the end of a line is looked for once.
func TestManyChangesOfOneLineAreFast(t *testing.T) {
	b := newBench(t)
	file := strings.Repeat("a...", 700_000)
	b.put("f", file)
	began := time.Now()
	out, err := b.EditDirectFile(t.Context(), files.EditDirectFileIn{
		ProjectID: "p", Path: "f", ExpectedSHA256: sha(file), OldText: "a", NewText: "b", ReplaceAll: true,
	})
	check(t, err)
	if took := time.Since(began); took > 5*time.Second || out.Replacements != 700_000 {
		t.Errorf("%d replacements took %v", out.Replacements, took)
	}
}

func TestRepeatedEditAnswersTheFirstResult(t *testing.T) {
	b := newBench(t)
	b.put("f", "x x\n")
	in := files.EditDirectFileIn{ProjectID: "p", Path: "f", ExpectedSHA256: sha("x x\n"), OldText: "x", NewText: "xx", ReplaceAll: true}
	first, err := b.EditDirectFile(t.Context(), in)
	check(t, err)
	for range 2 {
		b.open() // over a restart too
		again, err := b.EditDirectFile(t.Context(), in)
		check(t, err)
		if want := first; !again.Duplicate || func() bool { want.Duplicate = true; return again != want }() {
			t.Errorf("got %+v, the first was %+v", again, first)
		}
	}
	if b.get("f") != "xx xx\n" {
		t.Errorf("the edit was made again: %q", b.get("f"))
	}
	other := in
	other.NewText = "y"
	_, err = b.EditDirectFile(t.Context(), other)
	refused(t, err, files.HashConflict)
	b.put("f", "something else\n")
	_, err = b.EditDirectFile(t.Context(), in)
	refused(t, err, files.HashConflict)
	b.put("f", "x x\n")
	if again, err := b.EditDirectFile(t.Context(), in); err != nil || again.Duplicate || b.get("f") != "xx xx\n" {
		t.Errorf("after the file was put back: %+v, %v", again, err)
	}
}

func TestEditKeepsWhatAWriteKeeps(t *testing.T) {
	b := newBench(t)
	path := b.put("real/f", "a\n")
	check(t, os.Chmod(path, 0o750))
	check(t, os.Link(path, b.dir+"/twin"))
	check(t, os.Symlink("real/f", b.dir+"/link"))
	out, err := b.edit("link", "a", "b")
	check(t, err)
	if out.Path != "real/f" || b.get("twin") != "b\n" || must(os.Lstat(path))(t).Mode() != 0o750 {
		t.Errorf("got %+v, twin %q", out, b.get("twin"))
	}
	if _, err := os.Readlink(b.dir + "/link"); err != nil {
		t.Error("the link was replaced")
	}
}

func TestMissNamesTheNearestSpanAndTheDifference(t *testing.T) {
	pad := strings.Repeat("padding line\n", 10)
	for _, c := range []struct {
		name, file, old, class string
		line                   int
	}{
		{"tabs", "\tif x {\n\t\ty()\n", "    if x {\n        y()\n", "tabs", 11},
		{"tab within", "a\tb c", "a b c", "tabs", 11},
		{"trailing space", "one  \ntwo\n", "one\ntwo\n", "trailing space", 11},
		{"trailing space given", "one\ntwo\n", "one \ntwo\n", "trailing space", 11},
		{"NBSP", "a\u00a0b\n", "a b\n", "NBSP", 11},
		{"narrow NBSP", "10\u202f000 items\n", "10 000 items\n", "NBSP", 11},
		{"quotes", "say \u201chi\u201d it\u2019s\n", "say \"hi\" it's\n", "quotes or dashes", 11},
		{"dash", "1\u20132\n", "1-2\n", "quotes or dashes", 11},
		{"mixed line ends", "a1\r\nb2\nc3\n", "a1\nb2\nc3", "line ending", 11},
		{"final newline", "last line", "last line\n", "final newline", 11},
		{"case", "Hello World\n", "hello world\n", "case", 11},
		{"invisible", "foo\u200bbar\n", "foobar\n", "invisible characters", 11},
		{"composed", "caf\u00e9 x\n", "cafe\u0301 x\n", "Unicode form", 11},
		{"line breaks", "foo(a,\n  b)\n", "foo(a, b)\n", "line breaks", 11},
		{"indentation", "x:\n    y\n", "x:\n  y\n", "indentation", 11},
		{"spaces", "a  =  b1\n", "a = b1\n", "spaces", 11},
		{"several", "A\tlong\u00a0\u201cname\u201d\n", "a long \"name\"\n", "tabs, NBSP, quotes or dashes, case", 11},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			b.put("f", pad+c.file)
			_, err := b.edit("f", c.old, "new text")
			e := refused(t, err, files.TextNotFound)
			if want := fmt.Sprintf("Nearest is line %d, which differs only in: %s. The file has there: \"", c.line, c.class); !strings.Contains(e.Message, want) {
				t.Errorf("got %s\nwant it to have %s", e.Message, want)
			}
			if b.get("f") != pad+c.file {
				t.Error("the file was changed")
			}
		})
	}
}

func TestMissInTheWordsNamesTheNearestLines(t *testing.T) {
	b := newBench(t)
	b.put("f", strings.Repeat("x\n", 6)+"func load(path string) error {\n\treturn read(path, true)\n}\n")
	for _, c := range []struct {
		old, shows string
		line       int
	}{
		{"func load(path string) error {\n\treturn read(path, false)\n}\n", `return read(path, true)`, 7},
		{"return reads(path, true, 1)", `return read(path, true)`, 8},
	} {
		_, err := b.edit("f", c.old, "y")
		e := refused(t, err, files.TextNotFound)
		if !strings.Contains(e.Message, fmt.Sprintf("line %d, which differs in its words", c.line)) || !strings.Contains(e.Message, c.shows) {
			t.Errorf("got %s", e.Message)
		}
	}
	_, err := b.edit("f", "zzzzzzzz qqqqqqqqqq", "y")
	if e := refused(t, err, files.TextNotFound); strings.Contains(e.Message, "Nearest") {
		t.Errorf("got %s", e.Message)
	}
	_, err = b.edit("f", " \t \t ", "y")
	refused(t, err, files.TextNotFound)
}

func TestUnreadableProjectsShowNothingOfTheFile(t *testing.T) {
	b := benchIn(t, must(filepath.EvalSymlinks(t.TempDir()))(t), direct.Project{Write: true})
	b.put("f", "secret one\n")
	_, err := b.edit("f", "secret  one", "x")
	if e := refused(t, err, files.TextNotFound); strings.Contains(e.Message, "secret") || strings.Contains(e.Message, "line") {
		t.Errorf("got %s", e.Message)
	}
	out, err := b.edit("f", "one", "two")
	if err != nil || out.Diff != "" {
		t.Errorf("got %+v, %v", out, err)
	}
}

func TestEditMissIsFast(t *testing.T) {
	b := newBench(t)
	b.put("big", bigText())
	hash, best := sha(b.get("big")), time.Hour
	for range 3 {
		begun := time.Now()
		_, err := b.edit2("big", hash, "\tline 199999 of a file that is long enough to\u00a0matter", "x")
		best = min(best, time.Since(begun))
		if e := refused(t, err, files.TextNotFound); !strings.Contains(e.Message, "line 200000, which differs only in: NBSP") {
			t.Fatal(e.Message)
		}
	}
	if limit := 200 * time.Millisecond * slow; best > limit {
		t.Errorf("a miss took %v, want under %v", best, limit)
	}
}

func TestDiff(t *testing.T) {
	file := "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\n15\n16\n17\n18\n19\n20\n"
	for _, c := range []struct {
		name, file, from, to, want string
		all                        bool
	}{
		{"a line", file, "10", "ten", "@@ -7,7 +7,7 @@\n 7\n 8\n 9\n-10\n+ten\n 11\n 12\n 13\n", false},
		{"the first line", file, "1\n2\n", "one\n2\n", "@@ -1,4 +1,4 @@\n-1\n+one\n 2\n 3\n 4\n", false},
		{"lines less", file, "10\n11\n", "", "@@ -7,8 +7,6 @@\n 7\n 8\n 9\n-10\n-11\n 12\n 13\n 14\n", false},
		{"lines more", file, "10\n", "10\nx\ny\n", "@@ -8,6 +8,8 @@\n 8\n 9\n 10\n+x\n+y\n 11\n 12\n 13\n", false},
		{"no newline at the end", "a\nb", "b", "c", "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n\\ No newline at end of file\n", false},
		{"two places", file, "2\n", "two\n", "@@ -1,5 +1,5 @@\n 1\n-2\n+two\n 3\n 4\n 5\n@@ -9,7 +9,7 @@\n 9\n 10\n 11\n-12\n+1two\n 13\n 14\n 15\n", true},
		{"invalid bytes", "caf\xe9\nb\n", "b", "c", "@@ -1,2 +1,2 @@\n caf\uFFFD\n-b\n+c\n", false},
		{"all of it", "a\n", "a\n", "", "@@ -1,1 +0,0 @@\n-a\n", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			b.put("f", c.file)
			out, err := b.EditDirectFile(t.Context(), files.EditDirectFileIn{
				ProjectID: "p", Path: "f", ExpectedSHA256: sha(c.file), OldText: c.from, NewText: c.to, ReplaceAll: c.all,
			})
			check(t, err)
			if out.Diff != c.want {
				t.Errorf("got\n%s\nwant\n%s", out.Diff, c.want)
			}
		})
	}
	b := newBench(t)
	b.put("long", strings.Repeat(strings.Repeat("x", 1000)+"\n\n\n\n\n\n\n\n", 500))
	out, err := b.EditDirectFile(t.Context(), files.EditDirectFileIn{
		ProjectID: "p", Path: "long", ExpectedSHA256: sha(b.get("long")), OldText: "xx", NewText: "yyy", ReplaceAll: true,
	})
	check(t, err)
	if len(out.Diff) > 32<<10 || !strings.Contains(out.Diff, "more changes") {
		t.Errorf("the diff has %d bytes", len(out.Diff))
	}
}

// TestEditsAgainstAModel makes random edits of random bytes and compares with
// the same edit of a string.
func TestEditsAgainstAModel(t *testing.T) {
	b := newBench(t)
	piece := rapid.OneOf(
		rapid.SampledFrom([]string{"a", "b", "aa", "ab", "\n", "\r\n", "\r", " ", "\t", "\uFEFF", "\u00e9", "\u00a0", "\u201c", "\xff", "\xe9", "\x00"}),
		rapid.StringN(0, 4, 8),
	)
	rapid.Check(t, func(rt *rapid.T) {
		text := strings.Join(rapid.SliceOfN(piece, 0, 60).Draw(rt, "file"), "")
		from := rapid.IntRange(0, len(text)).Draw(rt, "from")
		old := text[from:rapid.IntRange(from, min(len(text), from+12)).Draw(rt, "to")]
		if rapid.Bool().Draw(rt, "other line ends") {
			old = strings.ReplaceAll(strings.ReplaceAll(old, "\r\n", "\n"), "\n", rapid.SampledFrom([]string{"\n", "\r\n"}).Draw(rt, "eol"))
		}
		replacement := strings.ToValidUTF8(strings.Join(rapid.SliceOfN(piece, 0, 4).Draw(rt, "new"), ""), "?")
		all := rapid.Bool().Draw(rt, "all")
		b.put("f", text)
		out, err := b.EditDirectFile(b.t.Context(), files.EditDirectFileIn{
			ProjectID: "p", Path: "f", ExpectedSHA256: sha(text), OldText: old, NewText: replacement, ReplaceAll: all,
		})
		got := b.get("f")
		want, count, ok := modelEdit(text, old, replacement, all)
		switch {
		case !ok && (err == nil || got != text):
			rt.Fatalf("edited %q to %q, want a refusal", text, got)
		case ok && (err != nil || got != want || out.SHA256 != sha(want) || out.Replacements != count):
			rt.Fatalf("edited %q to %q (%d, %v), want %q (%d)", text, got, out.Replacements, err, want, count)
		}
	})
}

// modelEdit is the rule of an edit, for strings.
func modelEdit(text, old, replacement string, all bool) (string, int, bool) {
	lf := func(s string) string { return strings.ReplaceAll(s, "\r\n", "\n") }
	crlf := func(s string) string { return strings.ReplaceAll(lf(s), "\n", "\r\n") }
	if old == "" || old == replacement || strings.ToValidUTF8(old, "") != old {
		return "", 0, false
	}
	count := func(old string) (n int) {
		for i := 0; i+len(old) <= len(text); i++ {
			if text[i:i+len(old)] == old {
				n++
			}
		}
		return n
	}
	pure := strings.Contains(text, "\n") && strings.Count(text, "\n") == strings.Count(text, "\r\n")
	switch {
	case count(old) > 0:
		if pure && !strings.Contains(old, "\n") {
			replacement = crlf(replacement)
		}
	case count(crlf(old)) > 0:
		old, replacement = crlf(old), crlf(replacement)
	case count(lf(old)) > 0:
		old, replacement = lf(old), lf(replacement)
	}
	n := count(old)
	if n == 0 || n > 1 && !all {
		return "", 0, false
	}
	return strings.ReplaceAll(text, old, replacement), strings.Count(text, old), true
}

func FuzzEdit(f *testing.F) {
	f.Add("a\u00a0b\r\nc", "a b\nc", "x", true)
	f.Add("\xff\xfe\x00", "\u201c\u200b", "\r", false)
	f.Add("\ufb01le \u212a", "file K", "", false)
	b := newBench(f)
	f.Fuzz(func(t *testing.T, text, old, replacement string, all bool) {
		b := &bench{Service: b.Service, t: t, dir: b.dir}
		b.put("f", text)
		out, err := b.EditDirectFile(t.Context(), files.EditDirectFileIn{
			ProjectID: "p", Path: "f", ExpectedSHA256: sha(text), OldText: old, NewText: replacement, ReplaceAll: all,
		})
		got := b.get("f")
		if err != nil && got != text {
			t.Fatalf("a refused edit (%v) changed %q to %q", err, text, got)
		}
		if err != nil && fault.From(err).Code == fault.Internal.Code {
			t.Fatal(err)
		}
		if err == nil && (sha(got) != out.SHA256 || out.Replacements < 1) {
			t.Fatalf("got %+v for %q", out, got)
		}
	})
}

func TestResultsOfEditsAreKeptForAWeek(t *testing.T) {
	b := newBench(t)
	b.put("f", "a")
	_, err := b.edit("f", "a", "b")
	check(t, err)
	kept := func() int { return len(must(os.ReadDir(b.state + "/files/edits"))(t)) }
	for _, c := range []struct{ day, kept int }{{0, 1}, {6, 1}, {8, 0}} {
		must(files.New(files.Options{Host: b.host, StateDir: b.state + "/files", Now: func() time.Time { return time.Now().AddDate(0, 0, c.day) }}))(t)
		if kept() != c.kept {
			t.Errorf("on day %d %d results are kept", c.day, kept())
		}
	}
}
