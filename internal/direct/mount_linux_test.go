package direct_test

import (
	"path/filepath"
	"syscall"
	"testing"

	"agentrelay/internal/direct"
)

// bind shows source at target too, or says that it can't.
func bind(t *testing.T, source, target string) bool {
	t.Helper()
	if err := syscall.Mount(source, target, "", syscall.MS_BIND, ""); err != nil {
		t.Log("only root can mount: nothing was tried:", err)
		return false
	}
	t.Cleanup(func() { check(t, syscall.Unmount(target, syscall.MNT_DETACH)) })
	return true
}

// TestPartsOfTheStateDirectoryAreProtectedWhereverTheyAreMounted: a mount of a
// part has no parent that could tell what it is.
func TestPartsOfTheStateDirectoryAreProtectedWhereverTheyAreMounted(t *testing.T) {
	root := base(t)
	dir, state := mkdir(t, root, "p"), mkdir(t, root, "state")
	parts := []string{"direct", "direct/commands", "direct/commands/deep/er", "direct/commands/deep/file", "direct/files", "transfer-spool", "gateway.db", "bin"}
	for _, part := range parts {
		at := filepath.Join(dir, filepath.Base(part))
		if part == "gateway.db" || filepath.Base(part) == "file" {
			put(t, filepath.Join(state, part), "secret")
			put(t, at, "")
		} else {
			put(t, filepath.Join(state, part, "x"), "secret")
			mkdir(t, at)
		}
		if !bind(t, filepath.Join(state, part), at) {
			return
		}
	}
	spool := mkdir(t, root, "disk", "spool")
	link(t, spool, state+"/elsewhere")
	if !bind(t, spool, mkdir(t, dir, "spool")) {
		return
	}
	tree := open(t, hostOf(root, dir, state))
	for _, path := range []string{"direct", "direct/x", "commands/x", "er", "er/x", "er/new", "file", "files/x", "transfer-spool/x", "gateway.db", "bin/x", "spool/new"} {
		for _, access := range []direct.Access{direct.ToRead, direct.ToWrite} {
			_, err := find(tree, path, access)
			refused(t, err, direct.ProtectedPath)
		}
	}
}

func TestProjectThatIsAMountOfTheStateDirectoryIsUnavailable(t *testing.T) {
	root := base(t)
	state := mkdir(t, root, "state")
	mkdir(t, state, "direct", "commands", "deep", "er")
	dir := mkdir(t, root, "p")
	if !bind(t, state, dir) {
		return
	}
	for _, project := range []string{dir, dir + "/direct", dir + "/direct/commands", dir + "/direct/commands/deep/er"} {
		h := hostOf(root, project, state)
		_, err := h.Open("p", direct.Read)
		refused(t, err, direct.ProjectUnavailable)
		if out, err := h.ListDirectProjects(t.Context(), direct.ListDirectProjectsIn{}); err != nil || out.Projects[0].Unavailable == "" {
			t.Errorf("it is listed as available: %+v, %v", out, err)
		}
	}
}
