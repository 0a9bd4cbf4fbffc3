package docs_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestPackageMapIsComplete: each package stands in the table of docs/architecture.md, or
// below one that does; and what stands there exists.
func TestPackageMapIsComplete(t *testing.T) {
	raw, err := os.ReadFile("architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	var listed, dirs []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*`) \\|").FindAllStringSubmatch(string(raw), -1) {
		for _, name := range regexp.MustCompile("`([a-z0-9/-]+)`").FindAllStringSubmatch(row[1], -1) {
			if strings.Contains(name[1], "/") || slices.Contains([]string{"migrations", "packaging", "plugins"}, name[1]) {
				listed = append(listed, name[1])
			}
		}
	}
	for _, s := range sources(t) {
		if dirs = append(dirs, s.dir); s.dir == "docs" || strings.HasPrefix(s.dir, "scripts") {
			continue
		}
		if !slices.ContainsFunc(listed, func(l string) bool { return s.dir == l || strings.HasPrefix(s.dir, l+"/") }) {
			listed = append(listed, s.dir) // said once
			t.Errorf("docs/architecture.md does not say where %s belongs", s.dir)
		}
	}
	for _, l := range listed {
		if !slices.ContainsFunc(dirs, func(d string) bool { return d == l || strings.HasPrefix(d, l+"/") }) {
			t.Errorf("docs/architecture.md lists %s, which is no package", l)
		}
	}
}
