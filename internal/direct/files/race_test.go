package files_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"agentrelay/internal/direct/files"
)

// TestSwappingChangesNothingOutside swaps directories and files for links that
// lead out, 10,000 times, while everything is written, edited, read, listed and
// searched.
func TestSwappingChangesNothingOutside(t *testing.T) {
	b := newBench(t)
	outside := filepath.Join(b.base, "outside")
	check(t, os.MkdirAll(outside+"/sub", 0o755))
	for _, f := range []string{"f", "sub/f", "secret"} {
		check(t, os.WriteFile(filepath.Join(outside, f), []byte("outside needle"), 0o644))
	}
	b.put("d/f", "inside")
	b.put("d/sub/f", "inside")
	check(t, os.MkdirAll(b.dir+"/.git/hooks", 0o755))
	check(t, os.WriteFile(b.dir+"/.git/hooks/f", []byte("git"), 0o644))

	stop := make(chan struct{})
	var group sync.WaitGroup
	swap := func(dir *os.Root, name, target string) {
		for range 2500 {
			dir.Rename(name, name+".away")
			dir.Symlink(target, name)
			dir.Remove(name)
			dir.Rename(name+".away", name)
		}
	}
	top, inner := must(os.OpenRoot(b.dir))(t), must(os.OpenRoot(b.dir+"/d"))(t)
	defer top.Close()
	defer inner.Close()
	var swaps sync.WaitGroup
	swaps.Go(func() { swap(top, "d", outside); swap(top, "d", ".git/hooks") })
	swaps.Go(func() { swap(inner, "sub", "../../outside/sub"); swap(inner, "f", outside+"/f") })
	go func() { swaps.Wait(); close(stop) }()
	work := func(do func(i int)) {
		group.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					do(i)
				}
			}
		})
	}
	paths := []string{"d/f", "d/sub/f", "d/new", "d/sub/deep/er/new"}
	wrote := 0
	work(func(i int) {
		path := paths[i%len(paths)]
		in := files.WriteDirectFileIn{ProjectID: "p", Path: path, Content: fmt.Sprint("inside ", i), CreateParents: true}
		if out, err := b.ReadDirectFile(t.Context(), files.ReadDirectFileIn{ProjectID: "p", Path: path}); err == nil {
			in.ExpectedSHA256 = &out.SHA256
			if strings.Contains(out.Content, "needle") {
				t.Errorf("%s was read from outside", path)
			}
		}
		if _, err := b.WriteDirectFile(t.Context(), in); err == nil {
			wrote++
		}
	})
	work(func(i int) {
		if data, err := os.ReadFile(filepath.Join(b.dir, "d/f")); err == nil && len(data) > 0 {
			b.EditDirectFile(t.Context(), files.EditDirectFileIn{ProjectID: "p", Path: "d/f", ExpectedSHA256: sha(string(data)), OldText: string(data), NewText: fmt.Sprint("edited ", i)})
		}
	})
	work(func(int) {
		out, err := b.SearchDirectFiles(t.Context(), files.SearchDirectFilesIn{ProjectID: "p", Query: "needle"})
		if err == nil && len(out.Matches) > 0 {
			t.Errorf("the search found %s outside", out.Matches[0].Path)
		}
		list, err := b.ListDirectFiles(t.Context(), files.ListDirectFilesIn{ProjectID: "p", Recursive: true})
		if err == nil {
			for _, e := range list.Entries {
				if strings.HasSuffix(e.Path, "secret") {
					t.Errorf("the list shows %s outside", e.Path)
				}
			}
		}
	})
	group.Wait()
	swaps.Wait()
	if wrote == 0 {
		t.Error("nothing was written")
	}
	err := filepath.WalkDir(outside, func(path string, d os.DirEntry, err error) error {
		check(t, err)
		if d.IsDir() {
			return nil
		}
		if data := must(os.ReadFile(path))(t); string(data) != "outside needle" {
			t.Errorf("%s has %q", path, data)
		}
		return nil
	})
	check(t, err)
	if n := len(must(os.ReadDir(outside))(t)); n != 3 {
		t.Errorf("there are %d entries outside", n)
	}
	if data := must(os.ReadFile(b.dir + "/.git/hooks/f"))(t); string(data) != "git" {
		t.Errorf(".git was written: %q", data)
	}
	if n := len(must(os.ReadDir(b.dir + "/.git/hooks"))(t)); n != 1 {
		t.Errorf("there are %d files in .git/hooks", n)
	}
}
