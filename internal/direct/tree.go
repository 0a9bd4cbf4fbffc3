package direct

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"
)

// Limits of paths.
const (
	MaxPath  = 4096 // bytes
	MaxDepth = 256  // directories below a project's own, links followed
	maxLinks = 40   // per path, as Linux has it
)

// Need is what an operation needs of a project.
type Need int

// The needs.
const (
	Any   Need = iota // the directory is there
	Read              // the project's files may be read
	Write             // the project's files may be written
)

// Tree is a project's directory, held open for one operation. It must be
// closed. It is safe for concurrent use.
type Tree struct {
	Project
	host  *Host
	dir   string // canonical
	root  *os.Root
	guard *guard

	opened time.Time
	gits   *identities // of what lies in directories of Git
}

// Open opens a project, or says why that can't be (unknown_project,
// read_disabled, write_disabled, project_unavailable, macos_privacy).
func (h *Host) Open(projectID string, need Need) (*Tree, error) {
	p, err := h.named(projectID)
	switch {
	case err != nil:
		return nil, err
	case need == Read && !p.Read:
		return nil, ReadDisabled.New("The owner does not allow reading in this project.")
	case need == Write && !p.Write:
		return nil, WriteDisabled.New("The owner does not allow writing in this project.")
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.patience)
	defer cancel()
	found, err := h.locate(ctx, p)
	if err != nil {
		return nil, err
	}
	dir := found.dir
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, h.unavailable(dir, err)
	}
	t := &Tree{Project: p.Project, host: h, dir: dir, root: root, guard: found.guard, opened: found.began, gits: &p.gits}
	// OpenRoot follows links: what was opened must be what dir names.
	opened, err1 := root.Stat(".")
	named, err2 := os.Lstat(dir)
	if err := errors.Join(err1, err2); err != nil || !os.SameFile(opened, named) {
		root.Close()
		return nil, ProjectUnavailable.New("The project's directory is being replaced.").Because(err)
	}
	return t, nil
}

// Close releases the directory. Places found in it stay usable.
func (t *Tree) Close() { t.root.Close() }

// Dir is the canonical path of the project's directory. It must not go to
// callers.
func (t *Tree) Dir() string { return t.dir }

// HostID is the canonical id of the tree's host.
func (t *Tree) HostID() string { return t.host.id }

// Fault is [Host.Fault] for an error at a project-relative path.
func (t *Tree) Fault(err error, rel string) error {
	return t.host.Fault(err, filepath.Join(t.dir, rel))
}

// Place is where a path leads after all links: a name in a directory that is
// held open, so that nothing done through Dir.<op>(Name) can leave that
// directory. It must be closed.
type Place struct {
	// Dir holds the entry.
	Dir *os.Root
	// Name is one component, or "." when Path is "".
	Name string
	// Path is project-relative and without links; "" is the project itself.
	Path string
	// Info is what Lstat says of the entry: never a link. It is nil when there
	// is nothing, which [Tree.Find] answers only for the last component.
	Info fs.FileInfo
}

// Close releases the directory.
func (p *Place) Close() { p.Dir.Close() }

// Access is how a place is to be used.
type Access int

// The accesses.
const (
	ToRead   Access = iota // protected paths are refused
	ToWrite                // so are Git's directories
	ToCreate               // and missing directories on the way are made
)

// Directory resolves a project-relative path to the absolute, canonical path of a
// directory, for a command to start in. Callers must not be shown it.
func (t *Tree) Directory(rel string) (string, error) {
	p, err := t.Find(rel, ToRead)
	if err != nil {
		return "", err
	}
	defer p.Close()
	if p.Info == nil {
		return "", PathNotFound.New("path names nothing in this project.")
	}
	if !p.Info.IsDir() {
		return "", NotDirectory.New("path is not a directory.")
	}
	return filepath.Join(t.dir, p.Path), nil
}

// Find follows a project-relative path. Links are followed while they stay in
// the project, however they are written; ".." is that of the directory a link
// led to. Refusals: invalid_arguments, outside_project, protected_path,
// path_not_found (a missing directory), not_directory, link_loop and those of
// [Tree.Fault].
func (t *Tree) Find(rel string, access Access) (*Place, error) {
	if err := checkPath(rel); err != nil {
		return nil, err
	}
	f := &finder{t: t, access: access, todo: segments(rel)}
	defer f.release()
	return f.run()
}

func checkPath(rel string) error {
	switch {
	case len(rel) > MaxPath:
		return Invalid("path", "must have at most 4096 bytes")
	case strings.ContainsRune(rel, 0):
		return Invalid("path", "must not contain a NUL character")
	case !utf8.ValidString(rel):
		return Invalid("path", "must be valid UTF-8")
	case strings.HasPrefix(rel, "/"):
		return Invalid("path", "must be relative to the project, without a slash at its start")
	}
	return nil
}

// segments splits a path into names and "..".
func segments(p string) []string {
	var out []string
	for s := range strings.SplitSeq(p, "/") {
		if s != "" && s != "." {
			out = append(out, s)
		}
	}
	return out
}

// finder is the state of one Find.
type finder struct {
	t      *Tree
	access Access
	todo   []string // what is left of the path
	stack  []step   // the directories entered, below the project's own
	up     int      // how many levels above the project's directory a link has led
	links  int
}

type step struct {
	dir  *os.Root
	name string
	info fs.FileInfo
}

func (f *finder) release() {
	for _, s := range f.stack {
		s.dir.Close()
	}
}

// dir is the directory that the path has reached.
func (f *finder) dir() *os.Root {
	if len(f.stack) == 0 {
		return f.t.root
	}
	return f.stack[len(f.stack)-1].dir
}

func (f *finder) path(name string) string {
	names := make([]string, 0, len(f.stack)+1)
	for _, s := range f.stack {
		names = append(names, s.name)
	}
	return path.Join(append(names, name)...)
}

func (f *finder) run() (*Place, error) {
	for len(f.todo) > 0 {
		name := f.todo[0]
		f.todo = f.todo[1:]
		switch {
		case name == "..":
			f.leave()
			continue
		case f.up > 0:
			if !f.returns(name) {
				return nil, outside()
			}
			continue
		}
		if place, err := f.enter(name); place != nil || err != nil {
			return place, f.t.Fault(err, f.path(name))
		}
	}
	if f.up > 0 {
		return nil, outside()
	}
	return f.here()
}

func outside() error { return OutsideProject.New("path leads out of the project.") }

func (f *finder) leave() {
	if n := len(f.stack); n > 0 {
		f.stack[n-1].dir.Close()
		f.stack = f.stack[:n-1]
		return
	}
	f.up++
}

// returns goes one level back down towards the project's directory, whose path
// is canonical and so has no links on the way.
func (f *finder) returns(name string) bool {
	names := segments(f.t.dir)
	f.up = min(f.up, len(names)) // the parent of / is /
	if f.up == 0 || names[len(names)-f.up] != name {
		return false
	}
	f.up--
	return true
}

// enter takes one name: it answers the place when the path ends there, and
// else goes into the directory or follows the link.
func (f *finder) enter(name string) (*Place, error) {
	dir := f.dir()
	info, err := dir.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return f.missing(name)
	}
	if err != nil {
		return nil, err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		if f.access != ToRead && isDotGit(name) {
			return nil, protected() // whatever it leads to is Git's
		}
		return nil, f.follow(name)
	}
	if err := f.allowed(name, info); err != nil {
		return nil, err
	}
	if len(f.todo) == 0 {
		return f.place(name, info)
	}
	if !info.IsDir() {
		return nil, NotDirectory.New("A parent of path is not a directory.")
	}
	return nil, f.descend(name, info)
}

func (f *finder) missing(name string) (*Place, error) {
	if err := f.allowed(name, nil); err != nil {
		return nil, err
	}
	if f.access != ToRead && wouldBeGit(f.dir(), name) {
		return nil, protected()
	}
	if len(f.todo) == 0 {
		return f.place(name, nil)
	}
	if f.access != ToCreate {
		return nil, noParent()
	}
	if err := f.canMake(f.path(name)); err != nil {
		return nil, err
	}
	if err := f.dir().Mkdir(name, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if err := SyncDir(f.dir()); err != nil {
		return nil, err
	}
	f.todo = append([]string{name}, f.todo...)
	return nil, nil
}

// canMake refuses the rest of a path, below a directory that is missing, before
// anything is made: no link can lie on the way.
func (f *finder) canMake(rel string) error {
	if len(f.stack)+len(f.todo) > MaxDepth {
		return tooDeep()
	}
	for _, name := range f.todo {
		if name == ".." {
			return noParent()
		}
		rel = path.Join(rel, name)
		if f.t.Protects(rel, nil) || isDotGit(name) {
			return protected()
		}
	}
	return nil
}

func noParent() error { return PathNotFound.New("A parent directory of path does not exist.") }

func tooDeep() error { return Invalid("path", "must not be deeper than 256 directories") }

// follow puts a link's target before the rest of the path.
func (f *finder) follow(name string) error {
	if f.links++; f.links > maxLinks {
		return LinkLoop.New("path leads through too many links.")
	}
	target, err := f.dir().Readlink(name)
	if err != nil {
		return err
	}
	if filepath.IsAbs(target) {
		target = f.t.canonical(target)
		f.release()
		f.stack = nil
		f.up = len(segments(f.t.dir))
	}
	f.todo = append(segments(target), f.todo...)
	return nil
}

// canonical rewrites an absolute path that spells the project's directory as
// the config does.
func (t *Tree) canonical(abs string) string {
	if t.Path != t.dir && Inside(t.Path, abs) {
		return t.dir + strings.TrimPrefix(abs, t.Path)
	}
	return abs
}

// descend opens the directory that info describes, and no other.
func (f *finder) descend(name string, info fs.FileInfo) error {
	if len(f.stack) == MaxDepth {
		return tooDeep()
	}
	sub, err := OpenDir(f.dir(), name, info)
	if err != nil {
		return err
	}
	f.stack = append(f.stack, step{sub, name, info})
	if f.access != ToRead && looksLikeGit(sub) {
		return protected()
	}
	return nil
}

func (f *finder) allowed(name string, info fs.FileInfo) error {
	rel := f.path(name)
	if f.t.Protects(rel, info) {
		return protected()
	}
	if f.access != ToRead && (isDotGit(name) || f.t.guard.inGit) {
		return protected()
	}
	return nil
}

func protected() error { return ProtectedPath.New("path is protected.") }

// place hands the directory reached over to the caller.
func (f *finder) place(name string, info fs.FileInfo) (*Place, error) {
	p := &Place{Name: name, Path: f.path(name), Info: info}
	if p.Path == "." {
		p.Path = ""
	}
	if n := len(f.stack); n > 0 {
		p.Dir = f.stack[n-1].dir
		f.stack = f.stack[:n-1]
	} else {
		var err error
		if p.Dir, err = f.t.root.OpenRoot("."); err != nil {
			return nil, err
		}
	}
	if f.access == ToRead || info == nil {
		return p, nil
	}
	if err := f.t.notGitsOwn(p); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// here is the place of the directory reached itself.
func (f *finder) here() (*Place, error) {
	if len(f.stack) == 0 {
		info, err := f.t.root.Stat(".")
		if err != nil {
			return nil, f.t.Fault(err, "")
		}
		return f.place(".", info)
	}
	last := f.stack[len(f.stack)-1]
	last.dir.Close()
	f.stack = f.stack[:len(f.stack)-1]
	return f.place(last.name, last.info)
}

// OpenDir opens the entry name of dir if it is the directory that info
// describes (file_changed when it is another by now).
func OpenDir(dir *os.Root, name string, info fs.FileInfo) (*os.Root, error) {
	sub, err := dir.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	opened, err := sub.Stat(".")
	if err != nil || !os.SameFile(opened, info) {
		sub.Close()
		return nil, FileChanged.New("A directory of path was replaced during the call.").Because(err)
	}
	return sub, nil
}

// SyncDir makes the names in dir durable, on file systems that can be asked to.
func SyncDir(dir *os.Root) error {
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOTSUP) {
		return err
	}
	return nil
}
