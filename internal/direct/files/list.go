package files

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"agentrelay/internal/direct"
)

// ListDirectFiles answers the entries of a directory, with Recursive those of
// the directories in it too. Links are shown and not followed. A page can hold
// fewer entries than Limit, none even, and have a NextCursor, when much had to be
// looked through.
//
// Refusals: invalid_arguments, invalid_cursor and those of package direct.
func (s *Service) ListDirectFiles(ctx context.Context, in ListDirectFilesIn) (ListDirectFilesOut, error) {
	limit, err := checkLimit(in.Limit, DefaultList, MaxList)
	if err != nil {
		return ListDirectFilesOut{}, err
	}
	pattern, err := parseGlob(in.Glob)
	if err != nil {
		return ListDirectFilesOut{}, err
	}
	t, err := s.host.Open(in.ProjectID, direct.Read)
	if err != nil {
		return ListDirectFilesOut{}, err
	}
	defer t.Close()
	p, err := findDirectory(t, in.Path)
	if err != nil {
		return ListDirectFilesOut{}, t.Fault(err, in.Path)
	}
	defer p.Close()
	list := scope{"list_direct_files", in.ProjectID, p.Path, globText(in.Glob), strconv.FormatBool(in.Recursive), strconv.FormatBool(in.IncludeIgnored)}
	after, err := list.position(in.Cursor)
	if err != nil {
		return ListDirectFilesOut{}, err
	}
	l := lister{t: t, start: p.Path, glob: pattern, limit: limit, budget: s.budget()}
	l.out = ListDirectFilesOut{Path: p.Path, Entries: []Entry{}, HostID: t.HostID()}
	w := walk{
		ctx: ctx, t: t, recursive: in.Recursive, includeIgnored: in.IncludeIgnored,
		skipped: &l.out.Skipped, visit: l.visit,
	}
	var from *string
	if after != nil {
		from = &after.path
		l.last = after.path
	}
	switch err := w.run(p, from); {
	case errors.Is(err, errStop):
		l.out.NextCursor = list.cursor(position{path: l.last})
	case err != nil:
		return ListDirectFilesOut{}, t.Fault(err, in.Path)
	}
	return l.out, nil
}

func globText(pattern *string) string {
	if pattern == nil {
		return ""
	}
	return *pattern
}

func findDirectory(t *direct.Tree, rel string) (*direct.Place, error) {
	p, err := t.Find(rel, direct.ToRead)
	if err != nil {
		return nil, err
	}
	switch {
	case p.Info == nil:
		err = direct.PathNotFound.New("path names nothing in this project.")
	case !p.Info.IsDir():
		err = direct.NotDirectory.New("path is not a directory.")
	default:
		return p, nil
	}
	p.Close()
	return nil, err
}

// lister collects one page.
type lister struct {
	t      *direct.Tree
	start  string
	glob   *glob
	limit  int
	budget *budget
	bytes  int
	last   string // the last path that was dealt with
	out    ListDirectFilesOut
}

func (l *lister) visit(f found) error {
	if l.budget.spent() && l.last != "" {
		return errStop
	}
	if !l.glob.match(below(l.start, f.path)) {
		l.last = f.path
		return nil
	}
	if len(l.out.Entries) == l.limit || l.bytes > maxList {
		return errStop
	}
	l.last = f.path
	info, err := f.dir.Lstat(f.name)
	switch {
	case err != nil:
		l.out.Skipped.count(l.t.Fault(err, f.path))
		return nil
	case l.t.Protects(f.path, info):
		l.out.Skipped.Protected++
		return nil
	}
	l.bytes += len(f.path) + 100
	l.out.Entries = append(l.out.Entries, l.entry(f, info))
	return nil
}

// below is a project-relative path as seen from the directory start.
func below(start, rel string) string {
	if start == "" {
		return rel
	}
	return strings.TrimPrefix(rel, start+"/")
}

func (l *lister) entry(f found, info fs.FileInfo) Entry {
	e := Entry{Path: f.path, Type: Other, ModifiedAt: Time{info.ModTime()}}
	switch mode := info.Mode(); {
	case mode.IsRegular():
		e.Type, e.Size, e.Executable = File, info.Size(), mode&0o111 != 0
	case mode.IsDir():
		e.Type = Directory
	case mode&fs.ModeSymlink != 0:
		e.Type = Symlink
		if target, err := f.dir.Readlink(f.name); err == nil {
			e.LinkTarget = l.target(path.Dir(f.path), target)
			if e.LinkTarget != nil {
				l.bytes += len(*e.LinkTarget)
			}
		}
	}
	return e
}

// target is where a link in dir points to, project-relative, or nil when that is
// outside: names of the owner's machine do not go to callers.
func (l *lister) target(dir, target string) *string {
	if !filepath.IsAbs(target) {
		target = filepath.Join(l.t.Dir(), dir, target)
	}
	for _, root := range []string{l.t.Dir(), l.t.Path} {
		if rel, err := filepath.Rel(root, filepath.Clean(target)); err == nil && filepath.IsLocal(rel) {
			if rel == "." {
				rel = ""
			}
			rel = strings.ToValidUTF8(rel, "\uFFFD")
			return &rel
		}
	}
	return nil
}
