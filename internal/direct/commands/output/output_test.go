package output

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// all reads a whole log in pages.
func all(t testing.TB, dir string, limit int, ended int64) (got string, lost int64, events []Event) {
	t.Helper()
	cursor := int64(0)
	for {
		p, err := Read(dir, cursor, limit, ended)
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Events) > limit {
			t.Fatalf("%d events, limit %d", len(p.Events), limit)
		}
		for _, e := range p.Events {
			if len(events) > 0 && e.Seq <= events[len(events)-1].Seq {
				t.Fatalf("seq %d after %d", e.Seq, events[len(events)-1].Seq)
			}
			got += e.Text
			events = append(events, e)
		}
		lost += p.Lost
		if p.Next < cursor || p.More && p.Next == cursor {
			t.Fatalf("next is %d after %d", p.Next, cursor)
		}
		cursor = p.Next
		if !p.More {
			return got, lost, events
		}
	}
}

// pieces are what programs print: text of all widths, colours, broken bytes.
func pieces() *rapid.Generator[[]byte] {
	return rapid.Custom(func(t *rapid.T) []byte {
		switch rapid.IntRange(0, 5).Draw(t, "kind") {
		case 0:
			return []byte("\x1b[31mred\x1b[0m\r\n")
		case 1:
			return []byte("\x1b]8;;https://example.com/\x1b\\link\x1b]8;;\a")
		case 2:
			return rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "bytes")
		case 3:
			return bytes.Repeat([]byte(rapid.SampledFrom([]string{"x", "é", "日本", "🙂", "\n"}).Draw(t, "rune")), rapid.IntRange(1, 3000).Draw(t, "times"))
		}
		return []byte(rapid.String().Draw(t, "text"))
	})
}

func TestPagesAreTheWholeOutput(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "log")
		if err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(dir)
		w, err := NewWriter(dir, 64<<20)
		if err != nil {
			rt.Fatal(err)
		}
		// What each source printed, and the reads in which it arrived.
		var printed [2][]byte
		var splits [2]Splitter
		sources := []Source{Stdout, Stderr}
		for range rapid.IntRange(0, 30).Draw(rt, "reads") {
			i := rapid.IntRange(0, 1).Draw(rt, "source")
			p := pieces().Draw(rt, "piece")
			printed[i] = append(printed[i], p...)
			cut := rapid.IntRange(0, len(p)).Draw(rt, "cut")
			w.Append(sources[i], splits[i].Next(p[:cut]))
			w.Append(sources[i], splits[i].Next(p[cut:]))
		}
		for i := range splits {
			w.Append(sources[i], splits[i].Rest())
		}
		end, _ := w.End()
		if end != int64(len(printed[0])+len(printed[1])) {
			rt.Fatalf("end %d", end)
		}
		_, lost, events := all(t, dir, rapid.IntRange(1, 50).Draw(rt, "limit"), end)
		var got [2]string
		for _, e := range events {
			if !utf8.ValidString(e.Text) {
				rt.Fatalf("invalid text %q", e.Text)
			}
			if e.Source == "stdout" {
				got[0] += e.Text
			} else {
				got[1] += e.Text
			}
		}
		for i := range got {
			if want := Text(printed[i]); got[i] != want || lost != 0 {
				rt.Fatalf("source %d: got %q, want %q, lost %d", i, got[i], want, lost)
			}
		}
		w.Close()
	})
}

func TestLossIsExactAndCutsNoCharacter(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "log")
		if err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(dir)
		w, err := NewWriter(dir, MinBytes)
		if err != nil {
			rt.Fatal(err)
		}
		defer w.Close()
		unit := rapid.SampledFrom([]string{"🙂", "日本語\n", "é", "plain text\n"}).Draw(rt, "unit")
		total := int64(0)
		for range rapid.IntRange(1, 60).Draw(rt, "reads") {
			p := []byte(strings.Repeat(unit, rapid.IntRange(1, 5000).Draw(rt, "times")))
			w.Append(rapid.SampledFrom([]Source{Stdout, Stderr}).Draw(rt, "source"), p)
			total += int64(len(p))
		}
		got, lost, _ := all(t, dir, 1000, total)
		if int64(len(got))+lost != total {
			rt.Fatalf("%d read, %d lost of %d", len(got), lost, total)
		}
		if strings.Trim(got, unit) != "" || strings.Contains(got, `\x`) || len(got)%len(unit) != 0 && unit == "🙂" {
			rt.Fatal("a character was cut")
		}
		if size := Size(dir); size > MinBytes {
			rt.Fatalf("the log takes %d bytes", size)
		}
		if total > MinBytes && int64(len(got)) < MinBytes/2 {
			rt.Fatalf("only %d bytes are kept", len(got))
		}
		if End(dir) != total {
			rt.Fatalf("the end is %d, want %d", End(dir), total)
		}
	})
}

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"plain\r\n\t\x00":                      "plain\r\n\t\x00",
		"\x1b[1;31mred\x1b[0m":                 "red",
		"\x1b]0;title\x07text":                 "text",
		"\x1b]8;;url\x1b\\link\x1b]8;;\x1b\\!": "link!",
		"\x1bP1$r0m\x1b\\x":                    "x",
		"\x1b(Bx\x1b=y\x1b7z":                  "xyz",
		"\x1b[?25lx\x1b[2K":                    "x",
		"10%\r20%\r\n":                         "10%\r20%\r\n",
		"a\xffb\xc3":                           `a\xffb\xc3`,
		"\x1b[12\nx":                           "\nx",
		"end\x1b":                              "end",
		"end\x1b[3":                            "end",
		"\x1b]never ends":                      "never ends",
	} {
		if got := Text([]byte(in)); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestASequenceOverManyReads(t *testing.T) {
	in := "one \x1b[31mtwo\x1b[0m\x1b]8;;https://x/\x1b\\three\x1b]8;;\a 🙂\n"
	var s Splitter
	var got string
	for _, b := range []byte(in) {
		got += Text(s.Next([]byte{b}))
	}
	if got += Text(s.Rest()); got != "one twothree 🙂\n" {
		t.Fatalf("got %q", got)
	}
}

func TestATornFrameIsTheEnd(t *testing.T) {
	dir := t.TempDir()
	w, err := NewWriter(dir, MinBytes)
	if err != nil {
		t.Fatal(err)
	}
	w.Append(Stdout, []byte("whole\n"))
	w.Append(Stdout, []byte("torn off\n"))
	w.Close()
	if err := os.Truncate(filepath.Join(dir, headFile), w.size-3); err != nil {
		t.Fatal(err)
	}
	p, err := Read(dir, 0, 10, 15)
	if err != nil || len(p.Events) != 1 || p.Events[0].Text != "whole\n" || p.Lost != 9 || p.Next != 15 {
		t.Fatalf("got %+v, %v", p, err)
	}
	if p, err := Read(dir, 3, 10, 0); err != nil || p.Events[0].Text != "le\n" {
		t.Fatalf("a cursor in the middle: %+v, %v", p, err)
	}
	if p, err := Read(dir, 99, 10, 0); err != nil || len(p.Events) != 0 || p.Next != 99 {
		t.Fatalf("a cursor after the end: %+v, %v", p, err)
	}
}

func TestADiskThatIsFullLosesOnly(t *testing.T) {
	dir := t.TempDir()
	w, err := NewWriter(dir, MinBytes)
	if err != nil {
		t.Fatal(err)
	}
	w.Append(Stdout, []byte("before\n"))
	good := w.file
	w.file, _ = os.Open(filepath.Join(dir, headFile)) // which can't be written
	w.Append(Stdout, []byte("lost\n"))
	w.file.Close()
	w.file = good
	w.Append(Stderr, []byte("after\n"))
	w.Close()
	p, err := Read(dir, 0, 10, 18)
	if err != nil || len(p.Events) != 2 || p.Events[1].Text != "after\n" || p.Lost != 5 || p.Next != 18 {
		t.Fatalf("got %+v, %v", p, err)
	}
}

func FuzzText(f *testing.F) {
	f.Add([]byte("\x1b[31mx\x1b]8;;\x1b\\"), 3)
	f.Fuzz(func(t *testing.T, p []byte, cut int) {
		if len(p) >= heldMax || cut < 0 || cut > len(p) {
			return
		}
		if !utf8.ValidString(Text(p)) {
			t.Fatal("invalid text")
		}
		var s Splitter
		got := Text(s.Next(bytes.Clone(p[:cut]))) + Text(s.Next(bytes.Clone(p[cut:]))) + Text(s.Rest())
		if want := Text(p); got != want {
			t.Fatalf("split at %d: got %q, want %q", cut, got, want)
		}
	})
}
