package agents

import (
	"context"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// LocalRoots is the path policy of the machine that this process runs on. It
// follows links as the file system has them at each call; a root that can't be
// reached allows nothing. It is a check of the gateway, no sandbox.
type LocalRoots struct {
	// Roots are absolute directories.
	Roots []string
	// Budget bounds the wait for a file system; 0 means 5 seconds.
	Budget time.Duration

	// stuck holds one token for each look that may hang in a dead mount.
	stuck chan struct{}
}

// NewLocalRoots returns the policy for the given directories.
func NewLocalRoots(roots []string) *LocalRoots {
	return &LocalRoots{Roots: roots, Budget: 5 * time.Second, stuck: make(chan struct{}, 16)}
}

// Resolve implements [Roots] for the local host; hostID is not looked at.
func (l *LocalRoots) Resolve(ctx context.Context, _ string, paths []string) ([]Place, error) {
	ctx, cancel := context.WithTimeout(ctx, l.Budget)
	defer cancel()
	slow := HostUnavailable.New("The file system of this host does not answer: a disk or a mount may hang.")
	select {
	case l.stuck <- struct{}{}:
	case <-ctx.Done():
		return nil, slow.Because(ctx.Err())
	}
	done := make(chan []Place, 1)
	go func() {
		defer func() { <-l.stuck }()
		done <- l.resolve(paths)
	}()
	select {
	case places := <-done:
		return places, nil
	case <-ctx.Done():
		return nil, slow.Because(ctx.Err())
	}
}

func (l *LocalRoots) resolve(paths []string) []Place {
	var roots []string
	for _, r := range l.Roots {
		if real, err := filepath.EvalSymlinks(r); err == nil && isDirectory(real) {
			roots = append(roots, real)
		}
	}
	out := make([]Place, len(paths))
	seen := map[string]Place{}
	for i, p := range paths {
		place, ok := seen[p]
		if !ok {
			place = resolve(roots, p)
			seen[p] = place
		}
		out[i] = place
	}
	return out
}

func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// resolve follows every link of a path. Of one whose end is gone it follows those
// of the part that is there, so that what lay inside the roots still does.
func resolve(roots []string, path string) Place {
	if !filepath.IsAbs(path) || strings.ContainsRune(path, 0) {
		return Place{}
	}
	path = filepath.Clean(path)
	gone := ""
	real, err := filepath.EvalSymlinks(path)
	for there := path; err != nil; real, err = filepath.EvalSymlinks(there) {
		if !os.IsNotExist(err) || isLink(there) || there == filepath.Dir(there) {
			return Place{}
		}
		gone = filepath.Join(filepath.Base(there), gone)
		there = filepath.Dir(there)
	}
	if gone != "" {
		real = filepath.Join(real, gone)
	}
	for _, root := range roots {
		if isBelow(real, root) {
			return Place{Path: real, Directory: gone == "" && isDirectory(real)}
		}
	}
	return Place{}
}

// isLink reports a link, also one that leads nowhere.
func isLink(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}

// CleanRemote is a path on another machine without superfluous parts.
func CleanRemote(p string) string { return path.Clean(p) }

// PlacesOf makes places of what another machine says of its roots and of paths: d
// and the canonical path of a directory, g and that of one which is gone, or
// nothing.
func PlacesOf(roots, paths []string) []Place {
	var real []string
	for _, r := range roots {
		if root, ok := strings.CutPrefix(r, "d"); ok {
			real = append(real, root)
		}
	}
	out := make([]Place, len(paths))
	for i, p := range paths {
		if p == "" {
			continue
		}
		for _, root := range real {
			if isBelow(p[1:], root) {
				out[i] = Place{Path: p[1:], Directory: p[0] == 'd'}
				break
			}
		}
	}
	return out
}
