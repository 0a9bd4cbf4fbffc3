package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"agentrelay/internal/doctor"
)

// pages are the texts that owners read, by their path from the root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	read := func(path string) error {
		raw, err := os.ReadFile(path)
		out[path] = string(raw)
		return err
	}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".md" {
			return err
		}
		return read(path)
	})
	for _, path := range []string{"../README.md", "../SECURITY.md", "../CHANGELOG.md"} {
		if err == nil {
			err = read(path)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
)

// anchors are those of the headings, as GitHub makes them.
func anchors(text string) (list []string) {
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		name := strings.ToLower(strings.ReplaceAll(m[1], " ", "-"))
		list = append(list, regexp.MustCompile(`[^a-z0-9_-]`).ReplaceAllString(name, ""))
	}
	return list
}

func TestLinksLeadSomewhere(t *testing.T) {
	all := pages(t)
	for page, text := range all {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			to := page
			if file != "" {
				to = filepath.Join(filepath.Dir(page), file)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: %s leads nowhere", page, m[1])
				continue
			}
			if there, ok := all[to]; anchor != "" && ok && !slices.Contains(anchors(there), anchor) {
				t.Errorf("%s: %s has no such heading", page, m[1])
			}
		}
	}
}

// TestPagesNameChecksAndRefusalsThatExist: what a page tells an owner to look for is
// what the doctor and the gateway say.
func TestPagesNameChecksAndRefusalsThatExist(t *testing.T) {
	all := pages(t)
	ids := doctor.IDs()
	var groups []string
	for _, id := range ids {
		group, _, _ := strings.Cut(id, ".")
		groups = append(groups, group)
	}
	known := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(all["errors.md"], -1) {
		known[m[1]] = true
	}
	if len(known) < 50 {
		t.Fatalf("errors.md has only %d codes", len(known))
	}
	for _, page := range []string{"troubleshooting.md", "upgrade.md"} {
		for _, m := range regexp.MustCompile("`([a-z]+\\.[a-z]+)`").FindAllStringSubmatch(all[page], -1) {
			group, name, _ := strings.Cut(m[1], ".")
			isKey := strings.Contains(all["config.md"], "## "+group+"\n") && strings.Contains(all["config.md"], "`"+name+"`") || strings.Contains(all["config.md"], "## "+m[1]+"\n")
			if slices.Contains(groups, group) && !slices.Contains(ids, m[1]) && !isKey {
				t.Errorf("%s names %s, which is no check of the doctor", page, m[1])
			}
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\|[^|]*`([a-z]+_[a-z_]+)`[^|]*\\|").FindAllStringSubmatch(all["troubleshooting.md"], -1) {
		if !known[m[1]] {
			t.Errorf("troubleshooting.md names %s, which nothing refuses with", m[1])
		}
	}
}
