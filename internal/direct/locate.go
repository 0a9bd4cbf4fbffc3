package direct

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// project is a configured project and where it was found to lie.
type project struct {
	Project
	gits identities // of what lies in directories of Git

	mu        sync.Mutex
	canonical string // "" until the directory was found
	search    *search
}

// search is one look for a project's directory. It runs by itself, and those who
// come meanwhile wait for the same one: on a file system that does not answer it
// never ends, and there must not be one more for each call.
type search struct {
	began time.Time
	done  chan struct{}
	// Set when done is closed.
	dir   string
	guard *guard
	err   error
}

// openBudget is how long a call waits for a project's directory. A disk that was
// asleep needs that long.
const openBudget = 10 * time.Second

// look begins a search, or joins the one that is under way.
func (h *Host) look(p *project) (s *search, joined bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.search != nil {
		return p.search, true
	}
	s = &search{began: time.Now(), done: make(chan struct{})}
	p.search = s
	go func() {
		s.dir, s.guard, s.err = h.find(p)
		p.mu.Lock()
		p.search = nil
		p.mu.Unlock()
		close(s.done)
	}()
	return s, false
}

// await returns the end of a search. What one met that began before the call may
// be mended by now, so it is tried anew.
func (h *Host) await(ctx context.Context, p *project, s *search, joined bool) (*search, error) {
	for {
		select {
		case <-s.done:
		case <-ctx.Done():
			return nil, ProjectUnavailable.New("The project's directory does not answer: the disk or network share that it lies on may hang.").Because(ctx.Err())
		}
		if s.err == nil || !joined {
			return s, s.err
		}
		s, joined = h.look(p)
	}
}

// locate finds the directory of a project, or says why there is none.
func (h *Host) locate(ctx context.Context, p *project) (*search, error) {
	s, joined := h.look(p)
	return h.await(ctx, p, s, joined)
}

// locateAll is locate for all projects at once; it answers what is wrong with
// each.
func (h *Host) locateAll(ctx context.Context) []error {
	errs := make([]error, len(h.projects))
	var wg sync.WaitGroup
	for i, p := range h.projects {
		wg.Go(func() { _, errs[i] = h.locate(ctx, p) })
	}
	wg.Wait()
	return errs
}

// find returns the canonical directory of a project and what is out of bounds in
// it. The first directory found stays: a link that is moved later does not move
// the project.
func (h *Host) find(p *project) (string, *guard, error) {
	p.mu.Lock()
	dir := p.canonical
	p.mu.Unlock()
	want := dir
	if want == "" {
		want = p.Path
	}
	got, err := h.eval(want)
	if err != nil {
		return "", nil, h.unavailable(want, err)
	}
	if dir != "" && got != dir {
		return "", nil, ProjectUnavailable.New("The project's directory has been replaced by a link since the start.")
	}
	if err := h.permits(got); err != nil {
		return "", nil, err
	}
	g := newGuard(h.off, got)
	if g.protectsProject() {
		return "", nil, inProtected()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.canonical = got
	return got, g, nil
}

// permits reports whether the config lets a project lie in dir, which is
// canonical.
func (h *Host) permits(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return h.unavailable(dir, err)
	}
	if !info.IsDir() {
		return ProjectUnavailable.New("The project's path is not a directory.")
	}
	// dir has no links, so a root that it begins with has none either. It is tried
	// first, for another root may lie on a file system that does not answer.
	if slices.ContainsFunc(h.roots, func(root string) bool { return Inside(root, dir) }) {
		return nil
	}
	for _, root := range h.roots {
		if real, err := filepath.EvalSymlinks(root); err == nil && Inside(real, dir) {
			return nil
		}
	}
	return ProjectUnavailable.New("The project's directory lies outside allowedRoots.")
}
