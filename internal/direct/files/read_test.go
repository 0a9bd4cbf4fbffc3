package files_test

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/files"
	"agentrelay/internal/fault"
)

func TestReadPagesByLine(t *testing.T) {
	b := newBench(t)
	text := "zero\none\r\ntwo\n\nfour"
	b.put("f", text)
	for _, c := range []struct {
		name       string
		in         files.ReadDirectFileIn
		content    string
		offset     int64
		lines      int
		nextOffset *int64
	}{
		{"all", files.ReadDirectFileIn{}, text, 0, 5, nil},
		{"two lines", files.ReadDirectFileIn{Limit: new(2)}, "zero\none\r\n", 0, 2, new(int64(2))},
		{"from a line", files.ReadDirectFileIn{Offset: new(int64(1)), Limit: new(2)}, "one\r\ntwo\n", 1, 2, new(int64(3))},
		{"the last line", files.ReadDirectFileIn{Offset: new(int64(4))}, "four", 4, 1, nil},
		{"beyond the end", files.ReadDirectFileIn{Offset: new(int64(9))}, "", 9, 0, nil},
		{"the tail", files.ReadDirectFileIn{Tail: true, Limit: new(2)}, "\nfour", 3, 2, nil},
		{"a long tail", files.ReadDirectFileIn{Tail: true, Limit: new(100)}, text, 0, 5, nil},
		{"from a byte", files.ReadDirectFileIn{ByteOffset: new(int64(5)), Limit: new(1)}, "one\r\n", 1, 1, new(int64(2))},
		{"within a line", files.ReadDirectFileIn{ByteOffset: new(int64(6)), Limit: new(1)}, "ne\r\n", 1, 1, new(int64(2))},
		{"from the end", files.ReadDirectFileIn{ByteOffset: new(int64(99))}, "", 4, 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.in.Path = "f"
			out := b.read(c.in)
			if out.Content != c.content || *out.Offset != c.offset || out.ReturnedLines != c.lines {
				t.Errorf("got %q, offset %d, %d lines", out.Content, *out.Offset, out.ReturnedLines)
			}
			if (out.NextOffset == nil) != (c.nextOffset == nil) || out.NextOffset != nil && *out.NextOffset != *c.nextOffset {
				t.Errorf("nextOffset is %v", out.NextOffset)
			}
			if out.Truncated != (out.NextByteOffset != nil) {
				t.Errorf("truncated is %v, nextByteOffset %v", out.Truncated, out.NextByteOffset)
			}
			if out.SHA256 != sha(text) || *out.TotalLines != 5 || out.EOL != files.Mixed || out.Size != int64(len(text)) || out.BOM || out.Encoding != files.UTF8 {
				t.Errorf("the file is described as %+v", out)
			}
		})
	}
}

func TestReadDescribesTheFile(t *testing.T) {
	b := newBench(t)
	for _, c := range []struct {
		content string
		eol     files.EOL
		lines   int64
		bom     bool
		enc     files.Encoding
	}{
		{"", files.NoEOL, 0, false, files.UTF8},
		{"a", files.NoEOL, 1, false, files.UTF8},
		{"a\n", files.LF, 1, false, files.UTF8},
		{"\n", files.LF, 1, false, files.UTF8},
		{"a\r\nb\r\n", files.CRLF, 2, false, files.UTF8},
		{"a\r\nb\n", files.Mixed, 2, false, files.UTF8},
		{"a\rb", files.NoEOL, 1, false, files.UTF8},
		{"\uFEFFa\n", files.LF, 1, true, files.UTF8},
		{"a\x00b\n", files.LF, 1, false, files.UTF8},
		{"caf\xe9\n", files.LF, 1, false, files.Base64},
		{"\xc3", files.NoEOL, 1, false, files.Base64},
	} {
		b.put("f", c.content)
		out := b.read(files.ReadDirectFileIn{Path: "f"})
		if out.EOL != c.eol || *out.TotalLines != c.lines || out.BOM != c.bom || out.Encoding != c.enc || out.SHA256 != sha(c.content) {
			t.Errorf("%q is described as %+v (%d lines)", c.content, out, *out.TotalLines)
		}
		if got := decode(t, out); got != c.content {
			t.Errorf("%q is read as %q", c.content, got)
		}
	}
}

// decode is the bytes of a page.
func decode(t interface{ Fatal(...any) }, out files.ReadDirectFileOut) string {
	if out.Encoding != files.Base64 {
		return out.Content
	}
	data, err := base64.StdEncoding.DecodeString(out.Content)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestReadRefusals(t *testing.T) {
	b := newBench(t)
	b.put("f", "x")
	check(t, os.Mkdir(b.dir+"/dir", 0o755))
	check(t, unix.Mkfifo(b.dir+"/fifo", 0o644))
	fd := must(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0))(t)
	check(t, unix.Bind(fd, &unix.SockaddrUnix{Name: b.dir + "/socket"}))
	t.Cleanup(func() { unix.Close(fd) })
	check(t, os.Symlink("fifo", b.dir+"/fifo-link"))
	check(t, os.Symlink("/dev/zero", b.dir+"/zero"))
	one, minus := new(int64(1)), new(int64(-1))
	for _, c := range []struct {
		in   files.ReadDirectFileIn
		kind fault.Kind
	}{
		{files.ReadDirectFileIn{Path: "missing"}, direct.PathNotFound},
		{files.ReadDirectFileIn{Path: ""}, direct.NotRegularFile},
		{files.ReadDirectFileIn{Path: "dir"}, direct.NotRegularFile},
		{files.ReadDirectFileIn{Path: "fifo"}, direct.NotRegularFile},
		{files.ReadDirectFileIn{Path: "fifo-link"}, direct.NotRegularFile},
		{files.ReadDirectFileIn{Path: "socket"}, direct.NotRegularFile},
		{files.ReadDirectFileIn{Path: "zero"}, direct.OutsideProject},
		{files.ReadDirectFileIn{Path: "f", Offset: one, Tail: true}, fault.InvalidArguments},
		{files.ReadDirectFileIn{Path: "f", Offset: one, ByteOffset: one}, fault.InvalidArguments},
		{files.ReadDirectFileIn{Path: "f", Offset: minus}, fault.InvalidArguments},
		{files.ReadDirectFileIn{Path: "f", ByteOffset: minus}, fault.InvalidArguments},
		{files.ReadDirectFileIn{Path: "f", Limit: new(0)}, fault.InvalidArguments},
		{files.ReadDirectFileIn{Path: "f", Limit: new(2001)}, fault.InvalidArguments},
	} {
		c.in.ProjectID = "p"
		_, err := b.ReadDirectFile(t.Context(), c.in)
		refused(t, err, c.kind)
	}
	w := benchIn(t, must(filepath.EvalSymlinks(t.TempDir()))(t), direct.Project{Write: true})
	_, err := w.ReadDirectFile(t.Context(), files.ReadDirectFileIn{ProjectID: "p", Path: "f"})
	refused(t, err, direct.ReadDisabled)
}

// readAll joins the pages of a file.
func readAll(b *bench, t interface {
	Fatal(...any)
	Fatalf(string, ...any)
}, in files.ReadDirectFileIn, byByte bool) string {
	var all strings.Builder
	for range 10_000 {
		out, err := b.ReadDirectFile(b.t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		content := decode(t, out)
		if len(content) > 64<<10 || len(content) == 0 && out.Truncated {
			t.Fatalf("a page of %d bytes", len(content))
		}
		if out.ByteOffset != int64(all.Len()) {
			t.Fatalf("a page begins at %d, want %d", out.ByteOffset, all.Len())
		}
		all.WriteString(content)
		if !out.Truncated {
			return all.String()
		}
		in.Offset, in.ByteOffset = nil, out.NextByteOffset
		if !byByte && out.NextOffset != nil {
			in.Offset, in.ByteOffset = out.NextOffset, nil
		}
	}
	t.Fatal("the pages do not end")
	return ""
}

func TestPagesJoinedAreTheFile(t *testing.T) {
	b := newBench(t)
	piece := rapid.SampledFrom([]string{
		"a", "line\n", "\r\n", "\u00e9", "\u65e5\u672c\n", "\U0001F600", "\x01\x02", "\"\\", "\u2028", "\xff", strings.Repeat("long ", 3000), strings.Repeat("\U0001F600", 20_000), strings.Repeat("\x00", 12_000),
		strings.Repeat("\u65e5\n", 3000), strings.Repeat("\xe9", 50_000),
	})
	rapid.Check(t, func(rt *rapid.T) {
		text := strings.Join(rapid.SliceOfN(piece, 0, 12).Draw(rt, "file"), "")
		limit := rapid.IntRange(1, 2000).Draw(rt, "limit")
		byByte := rapid.Bool().Draw(rt, "by byte")
		check(b.t, os.WriteFile(b.dir+"/f", []byte(text), 0o644))
		got := readAll(b, rt, files.ReadDirectFileIn{ProjectID: "p", Path: "f", Limit: &limit}, byByte)
		if got != text {
			rt.Fatalf("%d bytes came back as %d", len(text), len(got))
		}
	})
}

func TestNoPageCutsACharacter(t *testing.T) {
	b := newBench(t)
	for _, unit := range []string{"\u00e9", "\u65e5", "\U0001F600"} {
		text := "x" + strings.Repeat(unit, 100_000)
		b.put("f", text)
		in := files.ReadDirectFileIn{Path: "f"}
		for {
			out := b.read(in)
			if out.Encoding != files.UTF8 || !utf8.ValidString(out.Content) {
				t.Fatalf("a page of %q is %s", unit, out.Encoding)
			}
			if out.NextOffset != nil {
				t.Fatal("a page that ends within a line has a nextOffset")
			}
			if !out.Truncated {
				break
			}
			in.ByteOffset = new(*out.NextByteOffset + 1) // within the next character
			if again := b.read(in); again.ByteOffset != *out.NextByteOffset {
				t.Fatalf("an offset within a character was read from %d, want %d", again.ByteOffset, *out.NextByteOffset)
			}
			in.ByteOffset = out.NextByteOffset
		}
		if out := b.read(files.ReadDirectFileIn{Path: "f", Tail: true}); out.Encoding != files.UTF8 || !strings.HasSuffix(text, out.Content) || len(out.Content) < 60_000 {
			t.Errorf("the tail of one line of %q is %s of %d bytes", unit, out.Encoding, len(out.Content))
		}
	}
}

func TestTailsAgainstAModel(t *testing.T) {
	b := newBench(t)
	piece := rapid.SampledFrom([]string{"", "a", "\u00e9", "\xff", strings.Repeat("x", 9000), strings.Repeat("y", 70_000), "\x00"})
	rapid.Check(t, func(rt *rapid.T) {
		text := strings.Join(rapid.SliceOfN(piece, 0, 20).Draw(rt, "lines"), "\n")
		limit := rapid.IntRange(1, 25).Draw(rt, "limit")
		check(b.t, os.WriteFile(b.dir+"/f", []byte(text), 0o644))
		out, err := b.ReadDirectFile(b.t.Context(), files.ReadDirectFileIn{ProjectID: "p", Path: "f", Tail: true, Limit: &limit})
		if err != nil {
			rt.Fatal(err)
		}
		lines := strings.SplitAfter(text, "\n")
		if lines[len(lines)-1] == "" {
			lines = lines[:len(lines)-1]
		}
		want := strings.Join(lines[max(0, len(lines)-limit):], "")
		got := decode(rt, out)
		if !strings.HasSuffix(want, got) || out.Truncated || got != want && len(want) < 48<<10 {
			rt.Fatalf("got %d bytes, want %d of %d", len(got), len(want), len(text))
		}
		if got == "" && text != "" {
			rt.Fatal("the tail is empty")
		}
		if got != want && strings.Contains(got, "\n") && out.ByteOffset > 0 && text[out.ByteOffset-1] != '\n' && strings.IndexByte(got, '\n') < len(got)-1 {
			rt.Fatal("a tail of several lines begins within a line")
		}
		if *out.Offset != int64(strings.Count(text[:out.ByteOffset], "\n")) {
			rt.Fatalf("offset is %d", *out.Offset)
		}
	})
}

func TestGiantsCostAPage(t *testing.T) {
	b := newBench(t)
	f := must(os.Create(b.dir + "/giant"))(t)
	check(t, f.Truncate(5<<30))
	must(f.WriteAt([]byte("\n"+strings.Repeat("the end of a log\n", 1000)), 5<<30))(t)
	check(t, f.Close())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	best := time.Hour
	for range 5 {
		begun := time.Now()
		out := b.read(files.ReadDirectFileIn{Path: "giant", Tail: true, Limit: new(10)})
		best = min(best, time.Since(begun))
		if out.Content != strings.Repeat("the end of a log\n", 10) || out.SHA256 != "" || out.TotalLines != nil || out.Offset != nil {
			t.Fatalf("got %+v", out)
		}
	}
	if limit := 50 * time.Millisecond * slow; best > limit {
		t.Errorf("the tail took %v, want under %v", best, limit)
	}
	for _, in := range []files.ReadDirectFileIn{{}, {ByteOffset: new(int64(3 << 30))}} {
		in.Path = "giant"
		out := b.read(in)
		if len(out.Content) == 0 || !out.Truncated || out.NextByteOffset == nil || out.NextOffset != nil {
			t.Errorf("a page of a giant line is %d bytes", len(out.Content))
		}
	}
	if out := b.search(files.SearchDirectFilesIn{Query: "end of a log"}); out.Skipped.Binary != 1 {
		t.Errorf("the search looked at a sparse file: %+v", out.Skipped)
	}
	_, err := b.edit2("giant", sha(""), "a", "b")
	refused(t, err, files.FileTooLarge)
	check(t, os.Truncate(b.dir+"/giant", 20<<30))
	_, err = b.ReadDirectFile(t.Context(), files.ReadDirectFileIn{ProjectID: "p", Path: "giant", Hash: true})
	refused(t, err, files.FileTooLarge)
	_, err = b.write("giant", "x", new(sha("")))
	refused(t, err, files.FileTooLarge)
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 32<<20 {
		t.Errorf("reading pages of a giant took %d MiB", grown>>20)
	}
}

func TestLargeFilesAreDescribedOnDemand(t *testing.T) {
	b := newBench(t)
	text := strings.Repeat("a line of a large file\r\n", 500_000)
	b.put("f", text)
	out := b.read(files.ReadDirectFileIn{Path: "f", Offset: new(int64(400_000)), Limit: new(1)})
	if out.Content != "a line of a large file\r\n" || out.SHA256 != "" || out.EOL != "" || *out.Offset != 400_000 || *out.NextOffset != 400_001 {
		t.Errorf("got %+v", out)
	}
	out = b.read(files.ReadDirectFileIn{Path: "f", ByteOffset: new(int64(24 * 1000)), Limit: new(1), Hash: true})
	if out.SHA256 != sha(text) || out.EOL != files.CRLF || *out.TotalLines != 500_000 || *out.Offset != 1000 {
		t.Errorf("got %+v", out)
	}
}
