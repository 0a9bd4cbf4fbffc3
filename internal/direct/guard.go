package direct

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// guard knows what must not be touched in one project.
type guard struct {
	project string
	names   []string        // protected, project-relative, folded
	ids     map[FileID]bool // protected files and directories, wherever they are
	inGit   bool            // the project's directory is or lies in a Git directory

	dirs    []string        // protected directories, absolute
	devices map[uint64]bool // on which they and the directories in them lie

	evaluated map[string]string // see real
}

// newGuard looks at the protected paths as they are now: a file that is
// replaced by renaming has another identity each time.
func newGuard(protected []string, project string) *guard {
	g := &guard{project: project, ids: map[FileID]bool{}, devices: map[uint64]bool{}, evaluated: map[string]string{}}
	for _, p := range protected {
		g.protect(p)
	}
	g.protectMounted(mounts())
	g.inGit = liesInGit(project)
	return g
}

// protect adds a path that is protected with all that lies in it.
func (g *guard) protect(p string) {
	real, there := g.real(p)
	if rel, err := filepath.Rel(g.project, real); err == nil && filepath.IsLocal(rel) {
		g.names = append(g.names, foldPath(rel))
	}
	if !there {
		return
	}
	info, err := os.Stat(real)
	if err != nil || g.ids[Identify(info)] {
		return
	}
	g.add(info)
	if info.IsDir() {
		g.dirs = append(g.dirs, real)
		g.protectIn(real, false)
	}
}

// real is evalExisting, which looks once at a directory that several paths lie in.
// It reports whether something may be there.
func (g *guard) real(p string) (_ string, there bool) {
	dir, name := filepath.Split(filepath.Clean(p))
	if name == "" {
		return "/", true
	}
	real, ok := g.evaluated[dir]
	if !ok {
		real = evalExisting(filepath.Clean(dir))
		g.evaluated[dir] = real
	}
	at := filepath.Join(real, name)
	info, err := os.Lstat(at)
	if err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return evalExisting(at), true
	}
	return at, !errors.Is(err, fs.ErrNotExist)
}

// protectIn adds the identities of what lies in a protected directory, and of the
// directories one level further down: a part of it can be mounted into a project,
// where no parent tells what it is. Further down are only records, whose number
// grows for ever; for them there is the table of mounts.
func (g *guard) protectIn(dir string, inner bool) {
	entries, _ := os.ReadDir(dir) // what the gateway's user can't list it doesn't show either
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		if e.Type()&fs.ModeSymlink != 0 && !inner {
			if real, err := filepath.EvalSymlinks(at); err == nil && !Inside(real, g.project) {
				g.protect(real) // where the owner has put a part of it
			}
			continue
		}
		if inner && !e.IsDir() {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // it went away
		}
		g.add(info)
		if info.IsDir() && !inner {
			g.protectIn(at, true)
		}
	}
}

func (g *guard) add(info fs.FileInfo) {
	id := Identify(info)
	g.ids[id] = true
	if info.IsDir() {
		g.devices[id.dev] = true
	}
}

// protectsProject reports whether the project's own directory is protected or
// lies in a directory that is, by whatever path it was reached.
func (g *guard) protectsProject() bool {
	if slices.Contains(g.names, ".") {
		return true
	}
	for dir := g.project; ; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && g.ids[Identify(info)] {
			return true
		}
		if dir == "/" {
			return false
		}
	}
}

// evalExisting resolves the links of the part of path that exists.
func evalExisting(p string) string {
	real, err := filepath.EvalSymlinks(p)
	if err == nil || p == "/" {
		return real
	}
	return filepath.Join(evalExisting(filepath.Dir(p)), filepath.Base(p))
}

// Protects reports whether the entry at a project-relative path without links
// is protected: by its name or a parent's, by being the same file as a
// protected one, or by being a further link to a file in a protected directory.
// info is nil when there is nothing at that path. A parent is judged by name
// alone: those who walk ask for each directory on their way.
func (t *Tree) Protects(rel string, info fs.FileInfo) bool {
	if len(t.guard.names) > 0 {
		folded := foldPath(rel)
		for _, name := range t.guard.names {
			if folded == name || name == "." || strings.HasPrefix(folded, name+"/") {
				return true
			}
		}
	}
	if info == nil {
		return false
	}
	id := Identify(info)
	if t.guard.ids[id] {
		return true
	}
	if !info.Mode().IsRegular() || Links(info) < 2 || !t.guard.devices[id.dev] {
		return false // a link does not leave its device
	}
	return t.host.protected.hold(where{all: t.guard.dirs}, info, t.opened)
}

// isDotGit reports whether some file system takes name for ".git": without
// regard to case, to the Unicode form, to characters that are not shown, to
// dots and spaces at the end, to what follows a colon, or as a short name.
func isDotGit(name string) bool {
	folded, _, _ := strings.Cut(foldName(name), ":")
	folded = strings.TrimRight(folded, ". ")
	if folded == ".git" {
		return true
	}
	// GIT~1, and GI and four digits of a hash when there are many such names.
	short, digits, ok := strings.Cut(folded, "~")
	hashed := len(short) == 6 && strings.HasPrefix(short, "gi") && strings.Trim(short[2:], "0123456789abcdef") == ""
	return ok && (short == "git" || hashed) && digits != "" && strings.Trim(digits, "0123456789") == ""
}

func foldPath(p string) string { return foldName(path.Clean(p)) }

// foldName maps the names that a file system may take for the same to one form.
func foldName(name string) string {
	if isASCII(name) {
		return strings.ToLower(name)
	}
	return strings.Map(func(r rune) rune {
		if unicode.In(r, unicode.Cf, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point) {
			return -1
		}
		return unicode.ToLower(unicode.ToUpper(r))
	}, norm.NFKC.String(name))
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// looksLikeGit reports whether Git itself would take dir for its directory,
// whatever its name: bare, separate, reached by a link or another spelling.
func looksLikeGit(dir *os.Root) bool { return isGit(inDir(dir)) }

func inDir(dir *os.Root) func(name string) bool {
	return func(name string) bool {
		_, err := dir.Lstat(name)
		return err == nil
	}
}

// isGit is what Git looks for in a directory: a repository's own, or one with
// little in it that names another as commondir, as each further worktree has.
func isGit(has func(name string) bool) bool {
	return has("HEAD") && (has("commondir") || has("objects") && has("refs"))
}

// wouldBeGit reports whether Git would take dir for its directory once name is
// made in it. A client must not make one, for its config runs programs.
func wouldBeGit(dir *os.Root, name string) bool {
	if !slices.ContainsFunc([]string{"HEAD", "commondir", "objects", "refs"}, func(s string) bool { return foldName(s) == foldName(name) }) {
		return false
	}
	has := inDir(dir)
	return isGit(func(s string) bool { return foldName(s) == foldName(name) || has(s) })
}

// liesInGit reports whether a directory is one of Git or lies in one.
func liesInGit(dir string) bool {
	for ; ; dir = filepath.Dir(dir) {
		if isDotGit(filepath.Base(dir)) {
			return true
		}
		if isGit(func(name string) bool {
			_, err := os.Lstat(filepath.Join(dir, name))
			return err == nil
		}) {
			return true
		}
		if dir == "/" {
			return false
		}
	}
}

// notGitsOwn refuses a file that is a further link to one in a directory of Git,
// in the project or of a repository that the project lies in.
func (t *Tree) notGitsOwn(p *Place) error {
	if !p.Info.Mode().IsRegular() || Links(p.Info) < 2 {
		return nil
	}
	in := where{git: []string{t.dir}}
	for dir := t.dir; dir != "/"; {
		dir = filepath.Dir(dir)
		git := filepath.Join(dir, ".git")
		in.all = append(append(in.all, git), gitBehind(git)...)
	}
	if t.gits.hold(in, p.Info, t.opened) {
		return protected()
	}
	return nil
}
