package files

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync/atomic"
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

// sharedDir is a directory handle that closes with its last user.
type sharedDir struct {
	*os.Root
	users atomic.Int32
}

func share(dir *os.Root) *sharedDir {
	d := &sharedDir{Root: dir}
	d.users.Store(1)
	return d
}

func (d *sharedDir) retain() *sharedDir {
	d.users.Add(1)
	return d
}

func (d *sharedDir) release() {
	if d.users.Add(-1) == 0 {
		d.Close()
	}
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
	return w.dir(share(dir), p.Path, rules, names, strings.Count(p.Path, "/"))
}

// dir walks one directory and releases it. Only its own failure is returned.
func (w *walk) dir(dir *sharedDir, rel string, rules *ignores, after []string, depth int) error {
	defer dir.release()
	entries, err := readDir(dir.Root)
	if err != nil {
		return err
	}
	if w.recursive && !w.includeIgnored {
		if _, ok := slices.BinarySearchFunc(entries, ignoreFile, byName); ok {
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
			switch strings.Compare(e.Name(), after[0]) {
			case -1:
				continue
			case 0:
				rest, again = after[1:], true
			}
		}
		f := found{dir, e.Name(), path.Join(rel, e.Name()), e.Type()}
		if !w.keeps(f, rules) {
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

func byName(e fs.DirEntry, name string) int { return strings.Compare(e.Name(), name) }

func readDir(dir *os.Root) ([]fs.DirEntry, error) {
	d, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	entries, err := d.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

// keeps reports whether an entry is part of the walk, and counts it otherwise.
func (w *walk) keeps(f found, rules *ignores) bool {
	switch {
	case temporaryName.MatchString(f.name):
		w.skipped.Temporary++
	case !utf8.ValidString(f.name):
		w.skipped.BadName++
	case w.t.Protects(f.path, nil):
		w.skipped.Protected++
	case w.recursive && !w.includeIgnored && (slices.Contains(builtIn, f.name) || rules.match(f.path, f.typ.IsDir())):
		w.skipped.Ignored++
	default:
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
	err = w.dir(share(sub), f.path, rules, after, depth)
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
