package transfers

import (
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"agentrelay/internal/direct"
)

func TestOpenReadsTheFile(t *testing.T) {
	b := newBench(t)
	for name, content := range map[string]string{"empty": "", "small": "content", "großer Name": strings.Repeat("0123456789", 300_000)} {
		b.write(name, content)
		snap, err := b.Open(t.Context(), "p", "./"+name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(snap.Content)
		if err != nil || string(got) != content || snap.Size != int64(len(content)) || snap.Path != name {
			t.Errorf("%s: %d bytes of %d at %q, %v", name, len(got), snap.Size, snap.Path, err)
		}
		if err := snap.Content.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A reader never takes a mixture for the file.
func TestChangeWhileReadingIsNoticed(t *testing.T) {
	content := strings.Repeat("0123456789", 1000)
	for name, change := range map[string]func(b *bench){
		"written, same length": func(b *bench) {
			f, err := os.OpenFile(b.path("f"), os.O_WRONLY, 0)
			if err == nil {
				_, err = f.WriteString("9876543210")
				f.Close()
			}
			if err != nil {
				b.t.Fatal(err)
			}
		},
		"appended": func(b *bench) { b.write("f", content+"!") },
		"cut":      func(b *bench) { os.Truncate(b.path("f"), 100) },
		"emptied":  func(b *bench) { os.Truncate(b.path("f"), 0) },
		"replaced": func(b *bench) { b.write("g", content); os.Rename(b.path("g"), b.path("f")) },
	} {
		t.Run(name, func(t *testing.T) {
			for _, read := range []int64{0, 10, 5000, int64(len(content))} {
				b := newBench(t)
				b.write("f", content)
				snap, err := b.Open(t.Context(), "p", "f")
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.CopyN(io.Discard, snap.Content, read); err != nil {
					t.Fatal(err)
				}
				change(b)
				if _, err := io.Copy(io.Discard, snap.Content); !errors.Is(err, direct.FileChanged) {
					t.Errorf("after %d bytes: %v", read, err)
				}
				snap.Content.Close()
			}
		})
	}
}

func TestOpenRefusals(t *testing.T) {
	b := newBench(t)
	b.write("f", "content")
	os.Mkdir(b.path("d"), 0o755)
	syscall.Mkfifo(b.path("pipe"), 0o644)
	os.Symlink("/etc/passwd", b.path("out"))
	os.Symlink("loop", b.path("loop"))
	for path, want := range map[string]error{
		"d": direct.NotRegularFile, "pipe": direct.NotRegularFile, "out": direct.OutsideProject, "loop": direct.LinkLoop,
		"no": direct.PathNotFound, "no/f": direct.PathNotFound, "../state": direct.OutsideProject, "f/g": direct.NotDirectory,
	} {
		if _, err := b.Open(t.Context(), "p", path); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
	}
	if _, err := b.Open(t.Context(), "locked", "f"); !errors.Is(err, direct.ReadDisabled) {
		t.Error(err)
	}
}

func TestCloneIsTheFileOrUnsupported(t *testing.T) {
	b := newBench(t)
	b.write("f", "content")
	snap, err := b.Open(t.Context(), "p", "f")
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Content.Close()
	to := b.dir + "/clone"
	err = snap.Content.(Cloner).CloneTo(to)
	raw, read := os.ReadFile(to)
	switch {
	case err == nil && (read != nil || string(raw) != "content"):
		t.Errorf("the clone has %q, %v", raw, read)
	case err != nil && (!errors.Is(err, errors.ErrUnsupported) || !errors.Is(read, os.ErrNotExist)):
		t.Errorf("%v, and the file: %v", err, read)
	}
}
