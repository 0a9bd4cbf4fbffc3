package direct

import "path/filepath"

// mount is one entry of the table of mounts: the directory or file root of the
// file system on device shows at a path.
type mount struct{ device, root, at string }

// source is where a canonical path lies on its file system, whatever is mounted
// where; ok is false when the table does not tell.
func source(table []mount, path string) (m mount, ok bool) {
	for _, t := range table {
		if Inside(t.at, path) && len(t.at) >= len(m.at) {
			m, ok = t, true
		}
	}
	rel, err := filepath.Rel(m.at, path)
	if !ok || err != nil {
		return mount{}, false
	}
	return mount{m.device, filepath.Join(m.root, rel), path}, true
}

// protectMounted protects the places in the project where any part of a protected
// directory is mounted, however deep it lies there.
func (g *guard) protectMounted(table []mount) {
	places := make([]mount, 0, 1)
	if own, ok := source(table, g.project); ok {
		places = append(places, own)
	}
	for _, m := range table {
		if m.at != g.project && Inside(g.project, m.at) {
			places = append(places, m)
		}
	}
	for _, dir := range g.dirs {
		protected, ok := source(table, dir)
		if !ok {
			continue
		}
		for _, m := range places {
			if rel, err := filepath.Rel(g.project, m.at); err == nil && m.device == protected.device && Inside(protected.root, m.root) {
				g.names = append(g.names, foldPath(rel))
			}
		}
	}
}
