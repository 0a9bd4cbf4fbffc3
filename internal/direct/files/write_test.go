package files_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/files"
	"agentrelay/internal/fault"
)

func TestWriteCreatesAndReplaces(t *testing.T) {
	b := newBench(t)
	for i, step := range []struct {
		content  string
		expected *string
		want     files.WriteDirectFileOut
		kind     fault.Kind
	}{
		{content: "one\n", want: files.WriteDirectFileOut{Created: true}},
		{content: "one\n", want: files.WriteDirectFileOut{Created: true, Duplicate: true}},
		{content: "two\n", kind: files.FileExists},
		{content: "two\n", expected: new(sha("other")), kind: files.HashConflict},
		{content: "two\n", expected: new(strings.ToUpper(sha("one\n"))), want: files.WriteDirectFileOut{}},
		{content: "two\n", expected: new(sha("one\n")), want: files.WriteDirectFileOut{Duplicate: true}},
		{content: "two\n", expected: new(sha("two\n")), want: files.WriteDirectFileOut{}},
		{content: "", expected: new(sha("two\n")), want: files.WriteDirectFileOut{}},
	} {
		out, err := b.write("f", step.content, step.expected)
		if step.kind.Code != "" {
			refused(t, err, step.kind)
			continue
		}
		check(t, err)
		step.want.Path, step.want.HostID, step.want.SHA256, step.want.Size = "f", "local", sha(step.content), int64(len(step.content))
		if out != step.want {
			t.Errorf("step %d: got %+v, want %+v", i, out, step.want)
		}
		if got := b.get("f"); got != step.content {
			t.Errorf("step %d: the file has %q", i, got)
		}
	}
	if left := b.leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestWriteRefusals(t *testing.T) {
	b := newBench(t)
	b.put("text", "x")
	b.put("latin", "caf\xe9 \xa9\n")
	b.put("read-only", "x")
	check(t, os.Chmod(b.dir+"/read-only", 0o444))
	for name, mode := range map[string]fs.FileMode{"setuid": 0o755 | fs.ModeSetuid, "setgid": 0o755 | fs.ModeSetgid} {
		b.put(name, "x")
		check(t, os.Chmod(b.dir+"/"+name, mode))
	}
	check(t, os.Mkdir(b.dir+"/dir", 0o755))
	check(t, unix.Mkfifo(b.dir+"/fifo", 0o644))
	check(t, os.Symlink(b.base+"/outside", b.dir+"/out"))
	x := new(sha("x"))
	for _, c := range []struct {
		path, content string
		expected      *string
		kind          fault.Kind
	}{
		{"text", "y", new("abc"), fault.InvalidArguments},
		{"text", "y", new(strings.Repeat("g", 64)), fault.InvalidArguments},
		{"text", "y\xff", x, fault.InvalidArguments},
		{"text", strings.Repeat("y", files.MaxContent+1), x, fault.InvalidArguments},
		{"missing", "y", x, files.HashConflict},
		{"missing/f", "y", nil, direct.PathNotFound},
		{"text/f", "y", nil, direct.NotDirectory},
		{"latin", "caf\uFFFD\n", new(sha("caf\xe9 \xa9\n")), files.WouldLoseBytes},
		{"read-only", "y", x, files.ReadOnlyFile},
		{"setuid", "y", x, files.PrivilegedFile},
		{"setgid", "y", x, files.PrivilegedFile},
		{"dir", "y", nil, direct.NotRegularFile},
		{"fifo", "y", nil, direct.NotRegularFile},
		{"fifo", "y", x, direct.NotRegularFile},
		{"out", "y", nil, direct.OutsideProject},
		{".git/config", "y", nil, direct.ProtectedPath},
		{"", "y", nil, direct.NotRegularFile},
	} {
		_, err := b.write(c.path, c.content, c.expected)
		if !errors.Is(err, c.kind) {
			t.Errorf("%s: got %v, want %s", c.path, err, c.kind.Code)
		}
	}
	for name, want := range map[string]string{"text": "x", "latin": "caf\xe9 \xa9\n", "read-only": "x", "setuid": "x", "setgid": "x"} {
		if got := b.get(name); got != want {
			t.Errorf("%s was changed to %q", name, got)
		}
	}
	if _, err := os.Lstat(b.base + "/outside"); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a file outside was made")
	}
	if left := b.leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := b.write("latin", "caf\u00e9\n", new(sha("caf\xe9 \xa9\n"))); err != nil {
		t.Errorf("a deliberate conversion to UTF-8 is refused: %v", err)
	}
}

func TestUnknownProjectAndDisabledWrite(t *testing.T) {
	b := benchIn(t, must(filepath.EvalSymlinks(t.TempDir()))(t), direct.Project{Read: true})
	_, err := b.write("f", "x", nil)
	refused(t, err, direct.WriteDisabled)
	_, err = b.WriteDirectFile(t.Context(), files.WriteDirectFileIn{ProjectID: "q", Path: "f"})
	refused(t, err, direct.UnknownProject)
	_, err = b.edit2("f", sha(""), "a", "b")
	refused(t, err, direct.WriteDisabled)
}

func TestParentsAndModes(t *testing.T) {
	b := newBench(t)
	_, err := b.WriteDirectFile(t.Context(), files.WriteDirectFileIn{ProjectID: "p", Path: "a/b/run", Content: "x", CreateParents: true, Executable: new(true)})
	check(t, err)
	mode := func(rel string) fs.FileMode {
		return must(os.Lstat(filepath.Join(b.dir, rel)))(t).Mode()
	}
	umask := fs.FileMode(syscall.Umask(0))
	syscall.Umask(int(umask))
	if got, want := mode("a/b/run"), 0o777&^umask; got != want {
		t.Errorf("a new executable has mode %v, want %v", got, want)
	}
	_, err = b.write("plain", "x", nil)
	check(t, err)
	if got, want := mode("plain"), 0o666&^umask; got != want {
		t.Errorf("a new file has mode %v, want %v", got, want)
	}
	for _, m := range []fs.FileMode{0o600, 0o640, 0o755, 0o666, 0o200, 0o644 | fs.ModeSticky} {
		name := fmt.Sprint("m", uint32(m))
		b.put(name, "x")
		check(t, os.Chmod(filepath.Join(b.dir, name), m))
		_, err := b.write(name, "y", new(sha("x")))
		check(t, err)
		if got := mode(name); got != m {
			t.Errorf("mode %v became %v", m, got)
		}
	}
	// A change of mode alone is a change, and its repeat is none.
	for _, executable := range []bool{true, false} {
		in := files.WriteDirectFileIn{ProjectID: "p", Path: "plain", Content: "x", ExpectedSHA256: new(sha("x")), Executable: new(executable)}
		out, err := b.WriteDirectFile(t.Context(), in)
		if err != nil || out.Duplicate || mode("plain")&0o100 != 0 != executable {
			t.Errorf("executable %v: %+v, %v, mode %v", executable, out, err, mode("plain"))
		}
	}
}

func TestWriteGoesThroughLinksToTheirTarget(t *testing.T) {
	b := newBench(t)
	b.put("real/target", "x")
	check(t, os.Symlink("real/target", b.dir+"/relative"))
	check(t, os.Symlink(b.dir+"/relative", b.dir+"/absolute"))
	check(t, os.Symlink("real/new", b.dir+"/dangling"))
	out, err := b.write("absolute", "y", new(sha("x")))
	check(t, err)
	if out.Path != "real/target" || b.get("real/target") != "y" {
		t.Errorf("got %+v", out)
	}
	if _, err := b.write("dangling", "z", nil); err != nil || b.get("real/new") != "z" {
		t.Errorf("a link to what is not there yet: %v", err)
	}
	for link, target := range map[string]string{"relative": "real/target", "absolute": b.dir + "/relative", "dangling": "real/new"} {
		if got, err := os.Readlink(filepath.Join(b.dir, link)); err != nil || got != target {
			t.Errorf("%s became %q, %v", link, got, err)
		}
	}
}

func TestHardLinksStayLinked(t *testing.T) {
	b := newBench(t)
	for _, sizes := range [][2]int{{10, 10}, {10, 200_000}, {200_000, 10}, {200_000, 0}, {0, 5}} {
		name := fmt.Sprint(sizes[0], "-", sizes[1])
		old, content := strings.Repeat("o", sizes[0]), strings.Repeat("n", sizes[1])
		first := b.put(name, old)
		check(t, os.Link(first, b.dir+"/"+name+"-twin"))
		check(t, os.Chmod(first, 0o640))
		out, err := b.write(name, content, new(sha(old)))
		check(t, err)
		if b.get(name) != content || b.get(name+"-twin") != content || out.SHA256 != sha(content) {
			t.Errorf("%s: the two names differ, or are not written", name)
		}
		if mode := must(os.Lstat(first))(t).Mode(); mode != 0o640 {
			t.Errorf("%s: mode %v", name, mode)
		}
	}
	if left := b.leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestOwnerAndAttributesAreKept(t *testing.T) {
	b := newBench(t)
	path := b.put("f", "x")
	if err := unix.Setxattr(path, "user.note", []byte("kept"), 0); err != nil {
		t.Logf("this file system has no extended attributes: %v", err)
		path = ""
	}
	if os.Geteuid() == 0 {
		check(t, os.Chown(b.dir+"/f", 12345, 23456))
	}
	before := must(os.Lstat(b.dir + "/f"))(t).Sys().(*syscall.Stat_t)
	_, err := b.write("f", "y", new(sha("x")))
	check(t, err)
	after := must(os.Lstat(b.dir + "/f"))(t).Sys().(*syscall.Stat_t)
	if before.Uid != after.Uid || before.Gid != after.Gid {
		t.Errorf("owner %d:%d became %d:%d", before.Uid, before.Gid, after.Uid, after.Gid)
	}
	if path != "" {
		value := make([]byte, 16)
		n, err := unix.Getxattr(path, "user.note", value)
		if err != nil || string(value[:n]) != "kept" {
			t.Errorf("the attribute is %q, %v", value, err)
		}
	}
}

func TestFailedWriteLeavesTheFile(t *testing.T) {
	b, kind := smallDisk(t)
	for _, name := range []string{"one", "two"} {
		b.put(name, "x")
	}
	check(t, os.Link(b.dir+"/two", b.dir+"/two-twin"))
	if kind.Code == direct.PermissionDenied.Code {
		check(t, os.Chmod(b.dir, 0o555))
		t.Cleanup(func() { os.Chmod(b.dir, 0o755) })
	}
	for name, size := range map[string]int{"one": 100_000, "two": 40_000} { // two's new content fits once, but not also in its place
		_, err := b.write(name, strings.Repeat("y", size), new(sha("x")))
		refused(t, err, kind)
		if b.get(name) != "x" {
			t.Errorf("%s was changed", name)
		}
	}
	_, err := b.write("new", strings.Repeat("y", 100_000), nil)
	refused(t, err, kind)
	if _, err := os.Lstat(b.dir + "/new"); err == nil {
		t.Error("a part of a file was made")
	}
	if left := b.leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestConcurrentWritersOneWins(t *testing.T) {
	b := newBench(t)
	b.put("d/f", "start")
	check(t, os.Symlink("d", b.dir+"/alias"))
	for round := range 20 {
		old := b.get("d/f")
		won := make([]error, 8)
		var group sync.WaitGroup
		for i := range won {
			group.Go(func() {
				path := []string{"d/f", "./d//f", "alias/f", "alias/../d/f"}[i%4]
				_, won[i] = b.write(path, fmt.Sprint(round, i), new(sha(old)))
			})
		}
		group.Wait()
		wins := 0
		for i, err := range won {
			if err == nil {
				wins++
				if b.get("d/f") != fmt.Sprint(round, i) {
					t.Errorf("writer %d was told that it won", i)
				}
				continue
			}
			refused(t, err, files.HashConflict)
		}
		if wins != 1 {
			t.Errorf("round %d: %d writers won", round, wins)
		}
	}
	created := make([]error, 8)
	var group sync.WaitGroup
	for i := range created {
		group.Go(func() { _, created[i] = b.write("d/new", fmt.Sprint(i), nil) })
	}
	group.Wait()
	wins := 0
	for _, err := range created {
		if err == nil {
			wins++
		} else {
			refused(t, err, files.FileExists)
		}
	}
	if wins != 1 {
		t.Errorf("%d creators won", wins)
	}
}

func TestImportStagesAndCommits(t *testing.T) {
	b := newBench(t)
	b.put("d/old", "x")
	stage := func(path string, expected *string, content string) (*files.Import, error) {
		i, err := b.Stage(t.Context(), "p", path, expected)
		if err == nil {
			_, err = i.Write([]byte(content))
			t.Cleanup(i.Discard)
		}
		return i, err
	}
	i, err := stage("d/new", nil, "\x00\xff")
	check(t, err)
	if out, err := i.Commit(t.Context()); err != nil || !out.Created || out.Path != "d/new" || b.get("d/new") != "\x00\xff" {
		t.Errorf("got %+v, %v", out, err)
	}
	i, err = stage("d/old", new(sha("x")), "y")
	check(t, err)
	if out, err := i.Commit(t.Context()); err != nil || out.Created || b.get("d/old") != "y" {
		t.Errorf("got %+v, %v", out, err)
	}
	i, err = stage("d/old", new(sha("x")), "y")
	check(t, err)
	if out, err := i.Commit(t.Context()); err != nil || !out.Duplicate {
		t.Errorf("a repeat got %+v, %v", out, err)
	}
	i, err = stage("d/old", new(sha("x")), "z")
	check(t, err)
	_, err = i.Commit(t.Context())
	refused(t, err, files.HashConflict)
	i.Discard()
	i, err = stage("d/old", nil, "z")
	check(t, err)
	_, err = i.Commit(t.Context())
	refused(t, err, files.FileExists)
	i.Discard()
	i, err = stage("d/other", nil, "z")
	check(t, err)
	check(t, os.Rename(b.dir+"/d", b.dir+"/moved"))
	check(t, os.Mkdir(b.dir+"/d", 0o755))
	_, err = i.Commit(t.Context())
	refused(t, err, direct.FileChanged)
	i.Discard()
	if left := b.leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	f, path, err := b.OpenFile("p", "moved/./new")
	check(t, err)
	f.Close()
	if path != "moved/new" {
		t.Errorf("opened %q", path)
	}
}

func TestAWriteThatHangsDelaysNoOtherDirectory(t *testing.T) {
	b := newBench(t)
	check(t, os.Mkdir(b.dir+"/slow", 0o755))
	hangs, goOn := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	b.OnStep(func(step string) {
		if step == "staged" && first.CompareAndSwap(false, true) {
			close(hangs)
			<-goOn
		}
	})
	var group sync.WaitGroup
	group.Go(func() {
		_, err := b.write("slow/f", "x", nil)
		if err != nil {
			t.Error(err)
		}
	})
	<-hangs
	_, err := b.write("f", "x", nil)
	check(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = b.WriteDirectFile(ctx, files.WriteDirectFileIn{ProjectID: "p", Path: "slow/g"})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a write that waits got %v", err)
	}
	close(goOn)
	group.Wait()
	_, err = b.write("slow/g", "x", nil)
	check(t, err)
}
