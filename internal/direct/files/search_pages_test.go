package files_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"agentrelay/internal/direct/files"
)

// pages reads all pages, each of them several times at once: what is said twice
// must be the same, whoever else uses the cursor.
func (b *bench) pages(in files.SearchDirectFilesIn) (found []string, scanned int, skipped files.Skipped) {
	b.t.Helper()
	found = []string{}
	for {
		same := make([]files.SearchDirectFilesOut, 3)
		var group sync.WaitGroup
		for i := range same {
			group.Go(func() { same[i] = b.search(in) })
		}
		group.Wait()
		page := same[0]
		for _, other := range same[1:] {
			if !reflect.DeepEqual(page, other) {
				b.t.Fatalf("one cursor gives %+v\nand %+v", page, other)
			}
		}
		for _, m := range page.Matches {
			found = append(found, fmt.Sprintf("%s:%d:%d", m.Path, m.Line, m.Column))
		}
		scanned += page.ScannedFiles
		skipped.Ignored += page.Skipped.Ignored
		skipped.Binary += page.Skipped.Binary
		if !page.Truncated {
			return found, scanned, skipped
		}
		in.Cursor = &page.NextCursor
	}
}

// TestSearchPagesAgainstANaiveScan: the pages of random trees joined are what a
// loop over files and lines finds, whatever the size of the pages.
func TestSearchPagesAgainstANaiveScan(t *testing.T) {
	before := descriptors(t)
	line := rapid.SampledFrom([]string{"", "hay", "needle", "a needle and a needle", strings.Repeat("w", 600) + "needle", "\u00e9\u65e5needle"})
	b := newBench(t)
	var paths []string
	for _, p := range randomTree(b, 1) {
		if info, err := os.Lstat(filepath.Join(b.dir, p)); err == nil && info.Mode().IsRegular() {
			paths = append(paths, p)
		}
	}
	b.put("ignored/f", "needle")
	b.put("zz-ignored", "needle")
	b.put(".gitignore", "ignored/\nzz-*\n")
	b.put("zzz-binary", "needle\x00")
	rapid.Check(t, func(rt *rapid.T) {
		want := []string{}
		for _, p := range paths {
			text := rapid.SliceOfN(line, 0, 6).Draw(rt, p)
			b.put(p, strings.Join(text, "\n"))
			for i, l := range text {
				if at := strings.Index(l, "needle"); at >= 0 {
					want = append(want, fmt.Sprintf("%s:%d:%d", p, i+1, len([]rune(l[:at]))+1))
				}
			}
		}
		in := files.SearchDirectFilesIn{
			Query: "needle", Limit: new(rapid.SampledFrom([]int{3, 7, 20, 500}).Draw(rt, "limit")), Context: new(rapid.IntRange(0, 2).Draw(rt, "context")),
		}
		found, scanned, skipped := b.pages(in)
		if !slices.Equal(found, want) {
			rt.Fatalf("got %q\nwant %q", found, want)
		}
		// A file that is split is scanned by both pages.
		if scanned < len(paths)+1 || *in.Limit == 500 && scanned != len(paths)+1 {
			rt.Fatalf("%d files were scanned of %d", scanned, len(paths)+1)
		}
		// What is left out between two pages is counted by both.
		if skipped.Binary != 1 || skipped.Ignored < 2 || *in.Limit == 500 && skipped.Ignored != 2 {
			rt.Fatalf("skipped %+v", skipped)
		}
	})
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors are open, %d were", after, before)
	}
}

// descriptors counts the open ones.
func descriptors(t *testing.T) int {
	t.Helper()
	return len(must(os.ReadDir("/dev/fd"))(t))
}

// TestSearchPagesSayWhatIsThere: nothing is kept between pages.
func TestSearchPagesSayWhatIsThere(t *testing.T) {
	b := newBench(t)
	for i := range 6 {
		b.put(fmt.Sprintf("d%d/f", i), "needle\n")
	}
	in := files.SearchDirectFilesIn{Query: "needle", Limit: new(2)}
	in.Cursor = new(b.search(in).NextCursor)
	in.Limit = new(500)
	b.put("d0/new", "needle before the cursor")
	b.put("d2/f", "hay\nneedle\n")
	b.put("d3/f", "hay\n")
	b.put("d4/new", "needle\n")
	check(t, os.RemoveAll(b.dir+"/d5"))
	b.put(".gitignore", "d4/f\n")
	if got, want := b.matches(in), []string{"d2/f:2:1", "d4/new:1:1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestSearchFindsAFileThatIsBeingReplaced, as editors do when they save.
func TestSearchFindsAFileThatIsBeingReplaced(t *testing.T) {
	b := newBench(t)
	b.put("f", "needle\n")
	stop := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				b.put("new", "needle\n")
				check(t, os.Rename(b.dir+"/new", b.dir+"/f"))
			}
		}
	})
	for range 500 {
		if out := b.search(files.SearchDirectFilesIn{Query: "needle", Glob: new("f")}); len(out.Matches) != 1 {
			t.Errorf("found %d times, skipped %+v", len(out.Matches), out.Skipped)
			break
		}
	}
	close(stop)
	group.Wait()
}
