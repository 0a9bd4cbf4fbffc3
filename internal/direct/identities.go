package direct

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// identities knows the files that lie below some directories, whatever other
// names they have elsewhere. It looks again only when the answer can be another
// one, and then reads only the directories that have changed.
//
// A name that is made, moved or removed changes the time of change (ctime) of the
// file that has it. So what is known of a file is still true if its last change
// lies before the look, and the number of its links and the times of directories
// need not be trusted. What this misses is a directory that is moved here with all
// that is in it; maxAge is for that, and for a clock that is set back.
type identities struct {
	mu    sync.Mutex
	in    where
	began time.Time // of the last look
	dirs  map[string]listed
	files map[FileID]bool
}

// listed is a directory as it was read.
type listed struct {
	id      FileID
	changed time.Time
	within  bool // it was reached from one whose files count
	counts  bool // its own files are among those looked for
	files   []FileID
	below   []string // directories in it, absolute
	git     []string // directories of Git that a .git in it names, absolute
}

// where says below which directories files are looked for: all files below all,
// and those in directories of Git below git.
type where struct{ all, git []string }

const (
	// settled is longer than the steps in which file systems take the time.
	settled = 2 * time.Second
	maxAge  = time.Minute
)

// hold reports whether the file of info is one of those there. The answer is
// true for some moment after since.
func (s *identities) hold(in where, info fs.FileInfo, since time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A directory becomes one of Git without a change of what lies in it.
	unchanged := len(in.git) == 0 && time.Since(s.began) < maxAge && ChangedAt(info).Before(s.began.Add(-settled))
	if !slices.Equal(in.all, s.in.all) || s.began.Before(since) && !unchanged {
		s.in = in
		s.look(in)
	}
	return s.files[Identify(info)]
}

func (s *identities) look(in where) {
	before, earlier := s.dirs, s.began
	s.began, s.dirs, s.files = time.Now(), map[string]listed{}, map[FileID]bool{}
	var visit func(dir string, counts bool)
	visit = func(dir string, within bool) {
		info, err := os.Lstat(dir)
		if _, seen := s.dirs[dir]; seen || err != nil || !info.IsDir() {
			return
		}
		l, ok := before[dir]
		if !ok || !l.still(info, within, earlier) {
			l = list(dir, info, within)
		}
		s.dirs[dir] = l
		for _, id := range l.files {
			s.files[id] = true
		}
		for _, sub := range l.below {
			visit(sub, l.counts)
		}
		for _, git := range l.git {
			visit(git, true)
		}
	}
	for _, root := range in.all {
		visit(root, true)
	}
	for _, root := range in.git {
		visit(root, false)
	}
}

// still reports whether a directory that was read at a time would be read the same.
// What a .git in it names can change by itself.
func (l listed) still(info fs.FileInfo, within bool, read time.Time) bool {
	return l.id == Identify(info) && l.within == within && len(l.git) == 0 &&
		l.changed.Equal(ChangedAt(info)) && l.changed.Before(read.Add(-settled))
}

// list reads a directory. What can't be read, or went away, can't be shown by the
// gateway either.
func list(dir string, info fs.FileInfo, within bool) listed {
	entries, _ := os.ReadDir(dir)
	has := func(name string) bool {
		return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == name })
	}
	l := listed{id: Identify(info), changed: ChangedAt(info), within: within, counts: within || isDotGit(filepath.Base(dir)) || isGit(has)}
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		switch {
		case e.IsDir():
			l.below = append(l.below, at)
		case !l.counts:
			if isDotGit(e.Name()) {
				l.git = append(l.git, gitBehind(at)...)
			}
		case e.Type().IsRegular():
			if info, err := e.Info(); err == nil {
				l.files = append(l.files, Identify(info))
			}
		}
	}
	return l
}

// gitBehind answers the directories of Git that a .git names which is none: a
// link, or a file as worktrees and submodules have it (gitrepository-layout(5)).
func gitBehind(path string) []string {
	if real, err := filepath.EvalSymlinks(path); err == nil && real != path {
		return []string{real}
	}
	dir, ok := strings.CutPrefix(line(path), "gitdir: ")
	if !ok {
		return nil
	}
	dir = absolute(filepath.Dir(path), dir)
	if shared := line(filepath.Join(dir, "commondir")); shared != "" {
		return []string{dir, absolute(dir, shared)}
	}
	return []string{dir}
}

// line is the first line of a small file, "" when there is none.
func line(path string) string {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() > 2*MaxPath {
		return ""
	}
	raw, _ := os.ReadFile(path)
	first, _, _ := strings.Cut(string(raw), "\n")
	return strings.TrimSuffix(first, "\r")
}

func absolute(dir, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(dir, path)
}
