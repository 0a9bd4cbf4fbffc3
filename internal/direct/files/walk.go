package files

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"agentrelay/internal/direct"
)

// walk goes through a directory in the order of names, a directory before what
// is in it, through one handle for each directory, so that one that is swapped
// for a link meanwhile leads nowhere.
type walk struct {
	ctx            context.Context
	t              *direct.Tree
	recursive      bool
	includeIgnored bool
	skipped        *Skipped
	// visit is called for each entry that is not left out. The directory may be
	// retained. An error ends the walk and is returned.
	visit func(found) error
}

// errStop is what visit returns to end a walk before its end.
var errStop = errors.New("stop")

// found is an entry on a walk.
type found struct {
	dir  *sharedDir
	name string
	path string // project-relative
	typ  fs.FileMode
}

// run walks the directory at p. after is the path behind which it goes on, nil
// for all.
func (w *walk) run(p *direct.Place, after *string) error {
	dir, err := direct.OpenDir(p.Dir, p.Name, p.Info)
	if err != nil {
		return err
	}
	var rules *ignores
	if w.recursive && !w.includeIgnored {
		if rules, err = ignoresAbove(w.ctx, w.t, p.Path); err != nil {
			dir.Close()
			return err
		}
	}
	var names []string
	if after != nil {
		names = strings.Split(strings.TrimPrefix(strings.TrimPrefix(*after, p.Path), "/"), "/")
	}
	return w.dir(dir, p.Path, rules, names, strings.Count(p.Path, "/"))
}

// dir walks one directory and closes it. Only its own failure is returned.
func (w *walk) dir(root *os.Root, rel string, rules *ignores, after []string, depth int) error {
	dir, err := share(root)
	if err != nil {
		return err
	}
	defer dir.release()
	entries, err := readEntries(dir.file)
	if err != nil {
		return err
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	if w.recursive && !w.includeIgnored {
		if _, ok := slices.BinarySearchFunc(entries, ignoreFile, func(e entry, name string) int { return strings.Compare(e.name, name) }); ok {
			if data, ok := readIgnores(dir.Root, ignoreFile); ok {
				rules = rules.with(rel, data)
			}
		}
	}
	for _, e := range entries {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		var rest []string
		again := false
		if len(after) > 0 {
			switch strings.Compare(e.name, after[0]) {
			case -1:
				continue
			case 0:
				rest, again = after[1:], true
			}
		}
		f := found{dir, e.name, path.Join(rel, e.name), e.typ}
		if !w.keeps(&f, rules) {
			continue
		}
		if !again {
			if err := w.visit(f); err != nil {
				return err
			}
		}
		if !w.recursive || !f.typ.IsDir() {
			continue
		}
		if err := w.descend(f, rules, rest, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// keeps reports whether an entry is part of the walk, and counts it otherwise.
func (w *walk) keeps(f *found, rules *ignores) bool {
	switch {
	case temporaryName.MatchString(f.name):
		w.skipped.Temporary++
	case !utf8.ValidString(f.name):
		w.skipped.BadName++
	case w.t.Protects(f.path, nil):
		w.skipped.Protected++
	default:
		if f.typ == unknown {
			info, err := f.dir.Lstat(f.name)
			if err != nil {
				w.skipped.count(w.t.Fault(err, f.path))
				return false
			}
			f.typ = info.Mode().Type()
		}
		if w.recursive && !w.includeIgnored && (slices.Contains(builtIn, f.name) || rules.match(f.path, f.typ.IsDir())) {
			w.skipped.Ignored++
			return false
		}
		return true
	}
	return false
}

// descend walks a directory below; what is wrong with it is counted and no more.
func (w *walk) descend(f found, rules *ignores, after []string, depth int) error {
	if depth >= direct.MaxDepth {
		w.skipped.TooDeep++
		return nil
	}
	info, err := f.dir.Lstat(f.name)
	if err == nil && !info.IsDir() {
		err = direct.FileChanged
	}
	if err == nil && w.t.Protects(f.path, info) {
		w.skipped.Protected++
		return nil
	}
	var sub *os.Root
	if err == nil {
		sub, err = direct.OpenDir(f.dir.Root, f.name, info)
	}
	if err != nil {
		w.skipped.count(w.t.Fault(err, f.path))
		return nil
	}
	err = w.dir(sub, f.path, rules, after, depth)
	if failed := new(fs.PathError); errors.As(err, &failed) { // reading the directory failed
		w.skipped.count(w.t.Fault(err, f.path))
		return nil
	}
	return err
}

// count notes why an entry could not be looked at.
func (s *Skipped) count(err error) {
	switch {
	case errors.Is(err, direct.PathNotFound), errors.Is(err, direct.FileChanged), errors.Is(err, direct.NotDirectory):
		s.Changed++
	case errors.Is(err, direct.NotRegularFile):
		s.Special++
	default:
		s.Unreadable++
	}
}

// budget is what one call may look at before it answers with a cursor.
type budget struct {
	now     func() time.Time
	end     time.Time
	entries int
}

const (
	budgetTime    = 10 * time.Second
	budgetEntries = 500_000
)

func (s *Service) budget() *budget {
	return &budget{s.now, s.now().Add(budgetTime), budgetEntries}
}

// spent counts one entry and reports whether the call has to end.
func (b *budget) spent() bool {
	b.entries--
	return b.entries < 0 || b.entries%256 == 0 && b.now().After(b.end)
}
