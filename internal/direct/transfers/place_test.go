package transfers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/files"
)

func TestPlaceCreatesAndReplaces(t *testing.T) {
	b := newBench(t)
	out, err := b.place(1, oldContent, nil)
	if err != nil || out != (Placed{"f", true}) {
		t.Fatalf("creating: %+v, %v", out, err)
	}
	if err := os.Chmod(b.path("f"), 0o640); err != nil {
		t.Fatal(err)
	}
	attributes := unix.Setxattr(b.path("f"), "user.note", []byte("kept"), 0) == nil
	if out, err = b.place(2, newContent, new(oldContent)); err != nil || out != (Placed{"f", false}) {
		t.Fatalf("replacing: %+v, %v", out, err)
	}
	if got := b.content("f"); got != newContent {
		t.Errorf("the file has %q", got)
	}
	info, err := os.Stat(b.path("f"))
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	value := make([]byte, 16)
	if n, err := unix.Getxattr(b.path("f"), "user.note", value); attributes && string(value[:max(n, 0)]) != "kept" {
		t.Errorf("the attribute is %q, %v", value[:max(n, 0)], err)
	}
	if got := b.names(); got != "f" {
		t.Errorf("the directory has %s", got)
	}
	if again, err := b.place(2, newContent, new(oldContent)); err != nil || again != out {
		t.Errorf("the repeat: %+v, %v", again, err)
	}
}

func TestPlaceThroughALinkKeepsTheLink(t *testing.T) {
	b := newBench(t)
	b.write("real", oldContent)
	if err := os.Symlink("real", b.path("f")); err != nil {
		t.Fatal(err)
	}
	out, err := b.place(1, newContent, new(oldContent))
	if err != nil || out.Path != "real" || b.content("real") != newContent {
		t.Fatalf("%+v, %v", out, err)
	}
	if target, err := os.Readlink(b.path("f")); err != nil || target != "real" {
		t.Errorf("the link is %q, %v", target, err)
	}
}

func TestPlaceKeepsFurtherLinks(t *testing.T) {
	b := newBench(t)
	b.write("f", oldContent)
	if err := os.Link(b.path("f"), b.path("g")); err != nil {
		t.Fatal(err)
	}
	if out, err := b.place(1, newContent, new(oldContent)); err != nil || out != (Placed{"f", false}) {
		t.Fatalf("%+v, %v", out, err)
	}
	if b.content("f") != newContent || b.content("g") != newContent || b.names() != "f g" {
		t.Errorf("the files have %q and %q, the directory %s", b.content("f"), b.content("g"), b.names())
	}
	_, err := b.place(2, newContent, new(oldContent))
	refused(t, err, files.HashConflict)
}

func TestPlaceRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		prepare  func(b *bench)
		change   func(in *Placement)
		expected *string
		content  io.Reader
		want     error
	}{
		"creating what exists":     {expected: nil, want: files.FileExists},
		"another content":          {expected: new("other"), want: files.HashConflict},
		"nothing there":            {prepare: func(b *bench) { os.Remove(b.path("f")) }, expected: new(oldContent), want: files.HashConflict},
		"a directory":              {prepare: func(b *bench) { os.Mkdir(b.path("d"), 0o755) }, change: func(in *Placement) { in.Path = "d" }, expected: new(oldContent), want: direct.NotRegularFile},
		"a pipe":                   {prepare: func(b *bench) { syscall.Mkfifo(b.path("d"), 0o644) }, change: func(in *Placement) { in.Path = "d" }, expected: new(oldContent), want: direct.NotRegularFile},
		"a missing directory":      {change: func(in *Placement) { in.Path = "no/f" }, want: direct.PathNotFound},
		"outside":                  {change: func(in *Placement) { in.Path = "../f" }, want: direct.OutsideProject},
		"git":                      {prepare: func(b *bench) { os.Mkdir(b.path(".git"), 0o755) }, change: func(in *Placement) { in.Path = ".git/f" }, want: direct.ProtectedPath},
		"an unwritable project":    {change: func(in *Placement) { in.ProjectID = "locked" }, want: direct.WriteDisabled},
		"a read-only file":         {prepare: func(b *bench) { os.Chmod(b.path("f"), 0o444) }, expected: new(oldContent), want: files.ReadOnlyFile},
		"a setuid file":            {prepare: func(b *bench) { syscall.Chmod(b.path("f"), 0o4755) }, expected: new(oldContent), want: files.PrivilegedFile},
		"content that is cut off":  {expected: new(oldContent), content: strings.NewReader(newContent[:5]), want: Corrupted},
		"content that is too long": {expected: new(oldContent), content: strings.NewReader(newContent + "!"), want: Corrupted},
		"other content":            {expected: new(oldContent), content: strings.NewReader(strings.ToUpper(newContent)), want: Corrupted},
		"content that fails":       {expected: new(oldContent), content: iotest.ErrReader(io.ErrUnexpectedEOF), want: io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.write("f", oldContent)
			if c.prepare != nil {
				c.prepare(b)
			}
			before := b.names()
			in := put(1, newContent, c.expected)
			if c.change != nil {
				c.change(&in)
			}
			content := c.content
			if content == nil {
				content = strings.NewReader(newContent)
				if err := b.Check(t.Context(), in); !errors.Is(err, c.want) {
					t.Errorf("Check: %v", err)
				}
			}
			if _, err := b.Place(t.Context(), in, content); !errors.Is(err, c.want) {
				t.Errorf("Place: %v, want %v", err, c.want)
			}
			if got := b.names(); got != before {
				t.Errorf("the directory has %s, had %s", got, before)
			}
			if _, placed, err := b.Settle(t.Context(), in.ID); placed || err != nil {
				t.Errorf("Settle: %v, %v", placed, err)
			}
		})
	}
}

// What something else does between the check and the swap is found, not lost.
func TestChangeAtTheLastMomentIsKept(t *testing.T) {
	for name, change := range map[string]func(b *bench){
		"replaced": func(b *bench) {
			b.write("g", "theirs")
			os.Rename(b.path("g"), b.path("f"))
		},
		"written":  func(b *bench) { b.write("f", "theirs") },
		"appended": func(b *bench) { b.write("f", oldContent+"!") },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.write("f", oldContent)
			var theirs string
			b.crash = func(step string) {
				if step == "armed" {
					change(b)
					theirs = b.content("f")
				}
			}
			_, err := b.place(1, newContent, new(oldContent))
			refused(t, err, files.HashConflict)
			if got := b.content("f"); got != theirs || b.names() != "f" {
				t.Errorf("the file has %q, the directory %s", got, b.names())
			}
		})
	}
}

func TestOneOfManyPlacementsWins(t *testing.T) {
	b := newBench(t)
	for round := range 10 {
		b.write("f", oldContent)
		var won atomic.Int32
		var winner atomic.Value
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				content := fmt.Sprint("content ", i)
				_, err := b.place(round*100+i, content, new(oldContent))
				switch {
				case err == nil:
					won.Add(1)
					winner.Store(content)
				case !errors.Is(err, files.HashConflict) && !errors.Is(err, direct.FileChanged):
					t.Errorf("got %v", err)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 || b.content("f") != winner.Load() || b.names() != "f" {
			t.Fatalf("%d won; the file has %q, the winner %v; the directory %s", won.Load(), b.content("f"), winner.Load(), b.names())
		}
	}
}

func TestToAskIsToSettle(t *testing.T) {
	b := newBench(t)
	if _, placed, err := b.Settle(t.Context(), id(1)); placed || err != nil {
		t.Fatalf("%v, %v", placed, err)
	}
	if _, err := b.place(1, newContent, nil); !errors.Is(err, ErrWithdrawn) {
		t.Errorf("a placement that was answered as not made: %v", err)
	}
	b.crash = func(step string) {
		if step == "armed" {
			if _, _, err := b.Settle(t.Context(), id(2)); !errors.Is(err, ErrBusy) {
				t.Errorf("a placement under way: %v", err)
			}
		}
	}
	if _, err := b.place(2, newContent, nil); err != nil {
		t.Fatal(err)
	}
	if out, placed, err := b.Settle(t.Context(), id(2)); !placed || err != nil || out != (Placed{"f", true}) {
		t.Errorf("%+v, %v, %v", out, placed, err)
	}
	if _, _, err := b.Settle(t.Context(), "../../x"); err == nil {
		t.Error("an id that is a path was taken")
	}
}

// A process that is killed at any step leaves the old or the new file, nothing
// beside it, and the next one knows which.
func TestKilledAtEachStep(t *testing.T) {
	for _, step := range []string{"staging", "staged", "armed", "swapped", "placed", "-"} {
		for _, how := range []string{"create", "replace", "overwrite"} {
			for _, later := range []bool{false, true} { // something else writes before the next start
				if how != "overwrite" || step != "staged" { // which it does not come by
					t.Run(fmt.Sprintf("%s,%s,later=%v", step, how, later), func(t *testing.T) { killAt(t, step, how, later) })
				}
			}
		}
	}
}

// TestNothingIsDoneInAnotherDirectory: one that has the path of the placement's by
// the time that it is settled, with files of the same names in it.
func TestNothingIsDoneInAnotherDirectory(t *testing.T) {
	for _, step := range []string{"staged", "armed", "swapped"} {
		for _, how := range []string{"create", "replace", "overwrite"} {
			if step == "staged" && how == "overwrite" {
				continue // which it does not come by
			}
			t.Run(step+","+how, func(t *testing.T) {
				b := newBench(t)
				expected := ""
				if how != "create" {
					b.write("f", oldContent)
					expected = hashText(oldContent)
				}
				if how == "overwrite" {
					if err := os.Link(b.path("f"), b.path("g")); err != nil {
						t.Fatal(err)
					}
				}
				child := exec.Command(os.Args[0])
				child.Env = append(os.Environ(), childEnv+"="+step+":"+b.dir+":"+expected)
				if out, err := child.CombinedOutput(); err == nil {
					t.Fatalf("the child was not killed\n%s", out)
				}
				left := b.names()
				if err := os.Rename(b.path(""), b.dir+"/moved"); err != nil {
					t.Fatal(err)
				}
				if err := os.Mkdir(b.path(""), 0o755); err != nil {
					t.Fatal(err)
				}
				for name := range strings.FieldsSeq(left) {
					b.write(name, "another's "+name)
				}
				b.open()
				_, placed, err := b.Settle(t.Context(), id(1))
				if placed || (err == nil) != (step == "staged") {
					t.Errorf("Settle says %v, %v of a directory that it can't see", placed, err)
				}
				if now := b.names(); now != left {
					t.Errorf("the other directory has %q, and had %q", now, left)
				}
				for name := range strings.FieldsSeq(left) {
					if got := b.content(name); got != "another's "+name {
						t.Errorf("%s is %q", name, got)
					}
				}
				if step == "staged" {
					return
				}
				// It is told once the directory is back.
				if err := os.RemoveAll(b.path("")); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename(b.dir+"/moved", b.path("")); err != nil {
					t.Fatal(err)
				}
				if _, placed, err := b.Settle(t.Context(), id(1)); err != nil || placed != (b.there() == newContent) {
					t.Errorf("Settle says %v, %v; f is %q", placed, err, b.there())
				}
			})
		}
	}
}

// there is what f has, "" when it is not there.
func (b *bench) there() string {
	raw, _ := os.ReadFile(b.path("f"))
	return string(raw)
}

func killAt(t *testing.T, step, how string, later bool) {
	b := newBench(t)
	expected, names := "", "f"
	if how != "create" {
		b.write("f", oldContent)
		expected = hashText(oldContent)
	}
	if how == "overwrite" {
		names = "f g"
		if err := os.Link(b.path("f"), b.path("g")); err != nil {
			t.Fatal(err)
		}
	}
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childEnv+"="+step+":"+b.dir+":"+expected)
	if out, err := child.CombinedOutput(); (err == nil) != (step == "-") {
		t.Fatalf("the child: %v\n%s", err, out)
	}
	raw, err := os.ReadFile(b.path("f"))
	exists, there := err == nil, string(raw) == newContent
	if exists && !there && string(raw) != oldContent {
		t.Fatalf("the file is torn: %q", raw)
	}
	if later = later && exists; later {
		b.write("f", "theirs")
	}
	b.open()
	out, placed, err := b.Settle(t.Context(), id(1))
	switch {
	case later && how == "overwrite" && (step == "armed" || step == "swapped"):
		if err == nil {
			t.Error("Settle claims to know what nobody can")
		}
	case err != nil || placed != there || placed && out != (Placed{"f", how == "create"}):
		t.Errorf("Settle says %+v, %v, %v; it was there: %v", out, placed, err, there)
	}
	if got := b.names(); got != names && exists || !exists && got != "" {
		t.Errorf("the directory has %s", got)
	}
	if later && b.content("f") != "theirs" {
		t.Errorf("what was written later is lost: %q", b.content("f"))
	}
}

func TestFullDiskChangesNothing(t *testing.T) {
	if os.Getuid() != 0 || runtime.GOOS != "linux" {
		t.Log("only root on Linux can mount a small disk: nothing was tried")
		return
	}
	b := newBench(t)
	if err := mountSmall(b.path("")); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unmount(b.path("")); err != nil {
			t.Error(err)
		}
	}()
	b.write("f", oldContent)
	big := strings.Repeat("x", 4<<20)
	_, err := b.place(1, big, new(oldContent))
	refused(t, err, direct.NoSpace)
	if b.content("f") != oldContent || b.names() != "f" {
		t.Errorf("the directory has %s", b.names())
	}
	if _, err := b.place(2, newContent, new(oldContent)); err != nil {
		t.Errorf("what fits: %v", err)
	}
}

func TestPlacementEndsWithItsContext(t *testing.T) {
	b := newBench(t)
	b.write("f", oldContent)
	ctx, cancel := context.WithCancel(t.Context())
	in := put(1, newContent, new(oldContent))
	_, err := b.Place(ctx, in, io.MultiReader(strings.NewReader(newContent[:3]), readerFunc(func([]byte) (int, error) { cancel(); return 0, nil }), strings.NewReader(newContent[3:])))
	if !errors.Is(err, context.Canceled) || b.content("f") != oldContent || b.names() != "f" {
		t.Errorf("%v; the file has %q", err, b.content("f"))
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// TestGiantsAreNotHashed: a file with a hole can take hours to read.
func TestGiantsAreNotHashed(t *testing.T) {
	b := newBench(t)
	b.write("f", oldContent)
	if err := os.Truncate(b.path("f"), files.MaxHash+1); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := b.Check(ctx, Placement{ID: strings.Repeat("a", 24), ProjectID: "p", Path: "f", ExpectedSHA256: new(strings.Repeat("0", 64))})
	if !errors.Is(err, files.FileTooLarge) {
		t.Errorf("got %v", err)
	}
}
