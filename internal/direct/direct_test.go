package direct_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"agentrelay/internal/direct"
	"agentrelay/internal/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func refused(t testing.TB, err error, kind fault.Kind) *fault.Error {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("got %v, want %s", err, kind.Code)
	}
	return fault.From(err)
}

// base is an empty directory without links on its path.
func base(t testing.TB) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	check(t, err)
	return dir
}

func mkdir(t testing.TB, elem ...string) string {
	t.Helper()
	dir := filepath.Join(elem...)
	check(t, os.MkdirAll(dir, 0o755))
	return dir
}

func put(t testing.TB, path, content string) string {
	t.Helper()
	mkdir(t, filepath.Dir(path))
	check(t, os.WriteFile(path, []byte(content), 0o644))
	return path
}

func link(t testing.TB, target, path string) {
	t.Helper()
	mkdir(t, filepath.Dir(path))
	check(t, os.Symlink(target, path))
}

// hostOf is a host with one project p at dir, all of root being allowed.
func hostOf(root, dir string, protected ...string) *direct.Host {
	return direct.New(direct.Policy{
		HostID:       "local",
		Projects:     []direct.Project{{ID: "p", Name: "P", Path: dir, Read: true, Write: true, CommandMode: direct.Full}},
		AllowedRoots: []string{root}, Protected: protected,
	})
}

func open(t testing.TB, h *direct.Host) *direct.Tree {
	t.Helper()
	tree, err := h.Open("p", direct.Any)
	check(t, err)
	t.Cleanup(tree.Close)
	return tree
}

// find returns the project-relative path of a place; "-" in front of what is
// not there.
func find(tree *direct.Tree, rel string, access direct.Access) (string, error) {
	p, err := tree.Find(rel, access)
	if err != nil {
		return "", err
	}
	defer p.Close()
	if p.Info == nil {
		return "-" + p.Path, nil
	}
	return p.Path, nil
}

func TestPathsAndLinksLeadWhereTheyShould(t *testing.T) {
	root := base(t)
	dir := mkdir(t, root, "p")
	outside := put(t, filepath.Join(root, "outside", "secret"), "x")
	put(t, filepath.Join(dir, "a", "f"), "x")
	put(t, filepath.Join(dir, "top"), "x")
	put(t, filepath.Join(dir, `back\slash`, "f"), "x")
	link(t, "a/f", dir+"/relative")
	link(t, "../top", dir+"/a/up")
	link(t, dir+"/a", dir+"/absolute")
	link(t, "../p/a", dir+"/around")
	link(t, "../../"+filepath.Base(root)+"/p/a", dir+"/far-around")
	link(t, "around", dir+"/twice")
	link(t, outside, dir+"/out-file")
	link(t, filepath.Dir(outside), dir+"/out-dir")
	link(t, "../outside/new", dir+"/out-dangling")
	link(t, "..", dir+"/out-parent")
	link(t, "/", dir+"/out-root")
	link(t, "../p2", dir+"/out-sibling")
	link(t, root+"/p-other", dir+"/out-prefix")
	link(t, "a/new", dir+"/dangling")
	link(t, "loop", dir+"/loop")
	link(t, "loop-b", dir+"/loop-a")
	link(t, "loop-a", dir+"/loop-b")
	for i := range 41 {
		link(t, fmt.Sprint("chain", i+1), fmt.Sprint(dir, "/chain", i))
	}
	put(t, dir+"/chain41", "x")
	tree := open(t, hostOf(root, dir))

	for _, c := range []struct {
		path, want string
		kind       fault.Kind
	}{
		{path: "", want: ""},
		{path: ".", want: ""},
		{path: "a/..", want: ""},
		{path: "a", want: "a"},
		{path: "a/", want: "a"},
		{path: "./a//f", want: "a/f"},
		{path: "a/../top", want: "top"},
		{path: "absolute/../top", want: "top"},
		{path: "a/new", want: "-a/new"},
		{path: `back\slash/f`, want: `back\slash/f`},
		{path: "relative", want: "a/f"},
		{path: "a/up", want: "top"},
		{path: "absolute", want: "a"},
		{path: "absolute/f", want: "a/f"},
		{path: "absolute/new", want: "-a/new"},
		{path: "around/f", want: "a/f"},
		{path: "far-around/f", want: "a/f"},
		{path: "twice/f", want: "a/f"},
		{path: "dangling", want: "-a/new"},
		{path: "../p/top", want: "top"},
		{path: "chain1", want: "chain41"},

		{path: "chain0", kind: direct.LinkLoop},
		{path: "loop", kind: direct.LinkLoop},
		{path: "loop-a/x", kind: direct.LinkLoop},
		{path: "..", kind: direct.OutsideProject},
		{path: "a/../..", kind: direct.OutsideProject},
		{path: "../outside/secret", kind: direct.OutsideProject},
		{path: strings.Repeat("../", 100) + "etc/passwd", kind: direct.OutsideProject},
		{path: "out-file", kind: direct.OutsideProject},
		{path: "out-dir", kind: direct.OutsideProject},
		{path: "out-dir/secret", kind: direct.OutsideProject},
		{path: "out-dir/new", kind: direct.OutsideProject},
		{path: "out-dangling", kind: direct.OutsideProject},
		{path: "out-parent", kind: direct.OutsideProject},
		{path: "out-root", kind: direct.OutsideProject},
		{path: "out-root/etc/passwd", kind: direct.OutsideProject},
		{path: "out-sibling", kind: direct.OutsideProject},
		{path: "out-prefix", kind: direct.OutsideProject},
		{path: "missing/f", kind: direct.PathNotFound},
		{path: "top/f", kind: direct.NotDirectory},
		{path: "top/..", kind: direct.NotDirectory},
		{path: "/etc/passwd", kind: fault.InvalidArguments},
		{path: dir + "/top", kind: fault.InvalidArguments},
		{path: "a\x00b", kind: fault.InvalidArguments},
		{path: "a\xffb", kind: fault.InvalidArguments},
		{path: strings.Repeat("a/", 2049), kind: fault.InvalidArguments},
		{path: strings.Repeat("n", 300), kind: fault.InvalidArguments},
	} {
		got, err := find(tree, c.path, direct.ToRead)
		if c.kind.Code != "" {
			e := refused(t, err, c.kind)
			if strings.Contains(e.Message+e.Hint, root) {
				t.Errorf("%q: the refusal names a path of the machine: %s", c.path, e.Message)
			}
			continue
		}
		if err != nil || got != c.want {
			t.Errorf("%q leads to %q, %v; want %q", c.path, got, err, c.want)
		}
	}
}

func TestProjectConfiguredThroughALink(t *testing.T) {
	root := base(t)
	dir := mkdir(t, root, "real", "p")
	link(t, filepath.Join(root, "real"), root+"/alias")
	put(t, dir+"/f", "x")
	link(t, root+"/alias/p/f", dir+"/as-configured")
	link(t, dir+"/f", dir+"/canonical")
	tree := open(t, hostOf(root+"/alias", root+"/alias/p"))
	for _, path := range []string{"f", "as-configured", "canonical"} {
		if got, err := find(tree, path, direct.ToRead); got != "f" || err != nil {
			t.Errorf("%s leads to %q, %v", path, got, err)
		}
	}
}

func TestMissingParentsAreMadeOnlyWhenAskedFor(t *testing.T) {
	root := base(t)
	dir := mkdir(t, root, "p")
	tree := open(t, hostOf(root, dir))
	_, err := find(tree, "x/y/z", direct.ToWrite)
	refused(t, err, direct.PathNotFound)
	if _, err := os.Lstat(dir + "/x"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal("a directory was made without being asked for")
	}
	if got, err := find(tree, "x/y/z", direct.ToCreate); got != "-x/y/z" || err != nil {
		t.Fatalf("got %q, %v", got, err)
	}
	link(t, "q/.git", dir+"/far")
	for _, path := range []string{
		".git/y/z", "a/.git/z", "a/../../outside/z", "a/../b", "x/a/../../.git/z", "a/b/.GIT", "far/z", strings.Repeat("a/", 257) + "z",
	} {
		if _, err := find(tree, path, direct.ToCreate); err == nil {
			t.Errorf("%s was made", path)
		}
	}
	for _, name := range []string{".git", "a", "x/a", "q"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s was made for a path that is refused", name)
		}
	}
}

func TestGitIsNeverWritten(t *testing.T) {
	root := base(t)
	dir := mkdir(t, root, "p")
	for _, repo := range []string{"", "sub"} {
		put(t, filepath.Join(dir, repo, ".git", "HEAD"), "ref: refs/heads/main\n")
		put(t, filepath.Join(dir, repo, ".git", "config"), "x")
		mkdir(t, dir, repo, ".git", "objects")
		mkdir(t, dir, repo, ".git", "refs")
	}
	put(t, dir+"/worktree/.git", "gitdir: ../elsewhere\n")
	for _, name := range []string{"HEAD", "objects/x", "refs/x", "hooks/x"} {
		put(t, filepath.Join(dir, "bare.git", name), "x")
		put(t, filepath.Join(dir, "elsewhere", name), "x")
	}
	// A worktree's own directory, moved out of .git, and a repository elsewhere.
	put(t, dir+"/moved/HEAD", "ref: refs/heads/x\n")
	put(t, dir+"/moved/commondir", "../.git\n")
	put(t, root+"/far/HEAD", "x")
	put(t, root+"/far/commondir", "../shared\n")
	put(t, root+"/shared/config", "x")
	put(t, dir+"/linked/.git", "gitdir: "+root+"/far\n")
	link(t, root+"/store", dir+"/stored/.git")
	link(t, "../elsewhere-file", dir+"/file-link/.git")
	put(t, dir+"/elsewhere-file", "gitdir: x")
	for path, twin := range map[string]string{
		dir + "/sub/.git/config": dir + "/other/twin", root + "/shared/config": dir + "/shared-twin", root + "/far/HEAD": dir + "/far-twin",
		put(t, root+"/store/config", "x"): dir + "/store-twin", put(t, root+"/.git/config", "x"): dir + "/above-twin", dir + "/bare.git/HEAD": dir + "/bare-twin",
	} {
		mkdir(t, filepath.Dir(twin))
		check(t, os.Link(path, twin))
	}
	link(t, ".git", dir+"/git-link")
	link(t, ".git/config", dir+"/config-link")
	check(t, os.Link(dir+"/.git/config", dir+"/config-twin"))
	check(t, os.Link(dir+"/sub/.git/config", dir+"/sub/twin"))
	put(t, dir+"/harmless", "x")
	check(t, os.Link(dir+"/harmless", dir+"/harmless-twin"))
	tree := open(t, hostOf(root, dir))

	for _, path := range []string{
		".git", ".git/config", ".git/new", ".git/hooks/pre-commit", ".GIT/config", ".Git/new", ".gIt", "sub/.git/config", "sub/.GIT/x",
		".g\u0131t/x", ".g\u0130t/x", ".git./x", ".git /x", ".git. . /x", ".g\u200cit/x", "\u200d.git/x", ".git\ufe0f/x", "\uff0e\uff47\uff49\uff54/x", ".\u24d6it/x",
		".git:stream", ".git::$INDEX_ALLOCATION/config", "git~1/config", "GIT~2/x", "worktree/.git",
		"git-link/config", "git-link", "config-link", "config-twin", "sub/twin", "bare.git/hooks/x", "elsewhere/hooks/x", "sub/../.git/config",
		"moved/config.worktree", "GI7EBA~1/config", "other/twin", "shared-twin", "far-twin", "store-twin", "above-twin", "bare-twin", "linked/.git", "stored/.git", "file-link/.git",
	} {
		for _, access := range []direct.Access{direct.ToWrite, direct.ToCreate} {
			if _, err := find(tree, path, access); !errors.Is(err, direct.ProtectedPath) {
				t.Errorf("%s: got %v, want protected_path", path, err)
			}
		}
	}
	for _, path := range []string{".gitignore", ".gitattributes", ".github", "git", "my.git", "git~", "git~x", ".gitx", "gi7eba", "gitter~1", "harmless", "harmless-twin", "bare.git"} {
		if _, err := find(tree, path, direct.ToWrite); err != nil {
			t.Errorf("%s is refused: %v", path, err)
		}
	}
	for _, path := range []string{".git/config", "git-link/HEAD", "config-twin", "bare.git/HEAD"} {
		if _, err := find(tree, path, direct.ToRead); err != nil {
			t.Errorf("%s can't be read: %v", path, err)
		}
	}
}

func TestProjectInsideGitIsNotWritten(t *testing.T) {
	root := base(t)
	dir := mkdir(t, root, "repo", ".git", "hooks")
	put(t, dir+"/f", "x")
	tree := open(t, hostOf(root, dir))
	_, err := find(tree, "f", direct.ToWrite)
	refused(t, err, direct.ProtectedPath)
	if _, err := find(tree, "f", direct.ToRead); err != nil {
		t.Fatal(err)
	}
}

// TestNoRepositoryIsMade: what Git would take for its directory has a config,
// and that runs programs.
func TestNoRepositoryIsMade(t *testing.T) {
	root := base(t)
	dir := mkdir(t, root, "p")
	for _, name := range []string{"no-head/objects/x", "no-head/refs/x", "no-objects/HEAD", "no-objects/refs/x", "no-refs/HEAD", "no-refs/objects/x", "no-common/HEAD"} {
		put(t, filepath.Join(dir, name), "x")
	}
	tree := open(t, hostOf(root, dir))
	for _, path := range []string{"no-head/HEAD", "no-head/head", "no-objects/objects", "no-objects/objects/x", "no-refs/refs/heads/x", "no-common/commondir", "no-common/CommonDir"} {
		_, err := find(tree, path, direct.ToCreate)
		refused(t, err, direct.ProtectedPath)
	}
	for _, path := range []string{"HEAD", "objects", "refs", "commondir", "no-head/config", "no-refs/HEADER", "no-head/sub/HEAD"} {
		if _, err := find(tree, path, direct.ToCreate); err != nil {
			t.Errorf("%s is refused: %v", path, err)
		}
	}
	for _, path := range []string{"no-objects/objects", "no-refs/refs"} {
		if _, err := os.Lstat(filepath.Join(dir, path)); err == nil {
			t.Errorf("%s was made", path)
		}
	}
}

func TestProjectBelowABareRepositoryIsNotWritten(t *testing.T) {
	root := base(t)
	dir := mkdir(t, root, "bare", "hooks")
	for _, name := range []string{"HEAD", "objects/x", "refs/x"} {
		put(t, filepath.Join(root, "bare", name), "x")
	}
	_, err := find(open(t, hostOf(root, dir)), "post-update", direct.ToCreate)
	refused(t, err, direct.ProtectedPath)
}

// TestDirectoryBecomesGitsLater: with directories below it that were read long
// before, and have not changed.
func TestDirectoryBecomesGitsLater(t *testing.T) {
	root := base(t)
	dir := mkdir(t, root, "p")
	put(t, dir+"/late/objects/x", "x")
	put(t, dir+"/late/refs/x", "x")
	check(t, os.Link(put(t, dir+"/late/hooks/post-update", "x"), dir+"/twin"))
	put(t, dir+"/other", "x")
	check(t, os.Link(dir+"/other", dir+"/other-twin"))
	h := hostOf(root, dir)
	time.Sleep(2500 * time.Millisecond) // what has changed just now is read again in any case
	for _, path := range []string{"twin", "other"} {
		_, err := find(open(t, h), path, direct.ToWrite)
		check(t, err)
	}
	put(t, dir+"/late/HEAD", "ref: refs/heads/main")
	_, err := find(open(t, h), "twin", direct.ToWrite)
	refused(t, err, direct.ProtectedPath)
	_, err = find(open(t, h), "other", direct.ToWrite)
	check(t, err)
}

// TestFileBecomesGitsOwnLater: what was looked at once is looked at again.
func TestFileBecomesGitsOwnLater(t *testing.T) {
	root := base(t)
	dir := mkdir(t, root, "p")
	put(t, dir+"/a", "x")
	check(t, os.Link(dir+"/a", dir+"/b"))
	mkdir(t, dir, "sub", ".git")
	h := hostOf(root, dir)
	_, err := find(open(t, h), "a", direct.ToWrite)
	check(t, err)
	check(t, os.Link(dir+"/a", dir+"/sub/.git/hook"))
	_, err = find(open(t, h), "b", direct.ToWrite)
	refused(t, err, direct.ProtectedPath)
	check(t, os.Remove(dir+"/sub/.git/hook"))
	_, err = find(open(t, h), "b", direct.ToWrite)
	check(t, err)
}

func TestProjectThatIsABareRepositoryIsNotWritten(t *testing.T) {
	root := base(t)
	dir := mkdir(t, root, "bare")
	for _, name := range []string{"HEAD", "objects/x", "refs/x"} {
		put(t, filepath.Join(dir, name), "x")
	}
	_, err := find(open(t, hostOf(root, dir)), "hooks/pre-receive", direct.ToCreate)
	refused(t, err, direct.ProtectedPath)
}

func TestProtectedPathsAreOutOfReach(t *testing.T) {
	root := base(t)
	dir := mkdir(t, root, "p")
	state := mkdir(t, dir, "state")
	put(t, state+"/gateway.db", "x")
	put(t, state+"/deep/er/file", "x")
	conf := put(t, dir+"/conf/config.json", "x")
	elsewhere := put(t, root+"/elsewhere/owner.json", "x")
	link(t, "state", dir+"/state-link")
	link(t, "conf/config.json", dir+"/conf-link")
	link(t, root+"/elsewhere", dir+"/elsewhere-link")
	check(t, os.Link(conf, dir+"/conf-twin"))
	check(t, os.Link(state+"/deep/er/file", dir+"/deep-twin"))
	check(t, os.Link(elsewhere, dir+"/owner-twin"))
	put(t, dir+"/free", "x")
	check(t, os.Link(dir+"/free", dir+"/free-twin"))
	link(t, state, root+"/state-alias")
	// Some paths are given through a link, and one does not exist yet.
	tree := open(t, hostOf(root, dir, root+"/state-alias", conf, elsewhere, dir+"/later/credential"))
	mkdir(t, dir, "later")

	for _, path := range []string{
		"state", "state/gateway.db", "state/new", "state/deep/er/file", "state-link", "state-link/gateway.db", "STATE/x", "State",
		"conf/config.json", "conf-link", "conf-twin", "deep-twin", "owner-twin", "later/credential", "LATER/credential", "later/../state/gateway.db",
	} {
		for _, access := range []direct.Access{direct.ToRead, direct.ToWrite, direct.ToCreate} {
			if _, err := find(tree, path, access); !errors.Is(err, direct.ProtectedPath) && !errors.Is(err, direct.PathNotFound) {
				t.Errorf("%s: got %v, want protected_path", path, err)
			}
		}
	}
	for _, path := range []string{"conf", "conf/other", "free", "free-twin", "later", "stateful", "state.txt"} {
		if _, err := find(tree, path, direct.ToRead); err != nil {
			t.Errorf("%s is refused: %v", path, err)
		}
	}
	// A protected file that is replaced stays protected, by its new identity too.
	put(t, conf+".new", "y")
	check(t, os.Rename(conf+".new", conf))
	check(t, os.Link(conf, dir+"/conf-twin-2"))
	_, err := find(open(t, hostOf(root, dir, conf)), "conf-twin-2", direct.ToRead)
	refused(t, err, direct.ProtectedPath)
}

// TestProtectedFilesAreKnownByEveryLink: whenever the link was made, and however
// much there is.
func TestProtectedFilesAreKnownByEveryLink(t *testing.T) {
	root := base(t)
	dir, state := mkdir(t, root, "p"), mkdir(t, root, "state")
	old := put(t, state+"/direct/commands/a/output.log", "x")
	put(t, dir+"/free", "x")
	check(t, os.Link(dir+"/free", dir+"/free-twin"))
	h := hostOf(root, dir, state)
	is := func(path string, want error) {
		t.Helper()
		if _, err := find(open(t, h), path, direct.ToRead); want == nil && err != nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", path, err, want)
		}
	}
	is("free-twin", nil)
	check(t, os.Link(old, dir+"/old-twin"))
	is("old-twin", direct.ProtectedPath)
	check(t, os.Link(put(t, state+"/direct/commands/b/output.log", "x"), dir+"/new-twin"))
	is("new-twin", direct.ProtectedPath)
	check(t, os.Rename(dir+"/free", state+"/direct/commands/b/free"))
	is("free-twin", direct.ProtectedPath)
	// What is no part of the state any more, by any name, is free again.
	check(t, os.RemoveAll(state+"/direct/commands/a"))
	check(t, os.Link(dir+"/old-twin", dir+"/old-triplet"))
	is("old-twin", nil)
	check(t, os.Remove(state+"/direct/commands/b/free"))
	check(t, os.Link(dir+"/free-twin", dir+"/free-triplet"))
	is("free-twin", nil)
	is("new-twin", direct.ProtectedPath)
}

// TestABigStateDirectoryProtectsNothingElse: a year of commands is many files.
func TestABigStateDirectoryProtectsNothingElse(t *testing.T) {
	root := base(t)
	dir, state := mkdir(t, root, "p"), mkdir(t, root, "state")
	for i := range 3 {
		at := mkdir(t, state, "direct", fmt.Sprint(i))
		for j := range 1000 {
			check(t, syscall.Mknod(fmt.Sprint(at, "/", j), syscall.S_IFREG|0o600, 0))
		}
	}
	put(t, dir+"/free", "x")
	for i := range 100 {
		check(t, os.Link(dir+"/free", fmt.Sprint(dir, "/twin", i)))
	}
	check(t, os.Link(state+"/direct/2/7", dir+"/seven"))
	tree := open(t, hostOf(root, dir, state))
	for i := range 100 {
		if _, err := find(tree, fmt.Sprint("twin", i), direct.ToRead); err != nil {
			t.Fatal(err)
		}
	}
	_, err := find(tree, "seven", direct.ToRead)
	refused(t, err, direct.ProtectedPath)
}

func TestProjectsThatCannotBeUsedDegradeAlone(t *testing.T) {
	root := base(t)
	allowed, other := mkdir(t, root, "allowed"), mkdir(t, root, "other")
	mkdir(t, allowed, "good")
	put(t, allowed+"/file", "x")
	state := mkdir(t, allowed, "state", "inner")
	link(t, other, allowed+"/leads-out")
	link(t, "nowhere", allowed+"/dangling")
	h := direct.New(direct.Policy{
		HostID: "h1",
		Projects: []direct.Project{
			{ID: "good", Name: "Good", Path: allowed + "/good", Read: true, CommandMode: direct.Registered, Commands: []direct.Command{{Name: "test", Argv: []string{"go", "test"}}}},
			{ID: "missing", Path: allowed + "/missing", Read: true, Write: true, CommandMode: direct.Disabled, Commands: []direct.Command{{Name: "x", Argv: []string{"x"}}}},
			{ID: "file", Path: allowed + "/file", Read: true},
			{ID: "outside", Path: other, Read: true},
			{ID: "leads-out", Path: allowed + "/leads-out", Read: true},
			{ID: "dangling", Path: allowed + "/dangling", Read: true},
			{ID: "protected", Path: state, Read: true},
		},
		AllowedRoots: []string{allowed, root + "/no-such-root"}, Protected: []string{filepath.Dir(state)},
	})
	out, err := h.ListDirectProjects(t.Context(), direct.ListDirectProjectsIn{})
	check(t, err)
	if out.HostID != "h1" || len(out.Projects) != 7 {
		t.Fatalf("%+v", out)
	}
	for _, p := range out.Projects {
		if (p.Unavailable == "") != (p.ProjectID == "good") {
			t.Errorf("%s: unavailable is %q", p.ProjectID, p.Unavailable)
		}
		if strings.Contains(p.Unavailable, root) {
			t.Errorf("%s: %q names a path of the machine", p.ProjectID, p.Unavailable)
		}
		if p.ProjectID == "good" {
			continue
		}
		_, err := h.Open(p.ProjectID, direct.Read)
		refused(t, err, direct.ProjectUnavailable)
	}
	if got := out.Projects[0].Commands; len(got) != 1 || got[0].Name != "test" {
		t.Errorf("commands are %+v", got)
	}
	if got := out.Projects[1].Commands; got == nil || len(got) != 0 {
		t.Errorf("commands of a project without commands are %+v, want none", got)
	}
	_, err = h.Open("good", direct.Write)
	refused(t, err, direct.WriteDisabled)
	_, err = h.Open("nothing", direct.Read)
	refused(t, err, direct.UnknownProject)

	mkdir(t, allowed, "missing")
	tree, err := h.Open("missing", direct.Write)
	check(t, err)
	tree.Close()
}

// TestADirectoryThatDoesNotAnswerDelaysNoOther: as on a network share whose server
// is gone. However often it is asked for, one search waits for it.
func TestADirectoryThatDoesNotAnswerDelaysNoOther(t *testing.T) {
	root := base(t)
	h := direct.New(direct.Policy{
		HostID: "h1", AllowedRoots: []string{root},
		Projects: []direct.Project{
			{ID: "dead", Path: mkdir(t, root, "dead"), Read: true}, {ID: "good", Path: mkdir(t, root, "good"), Read: true},
			{ID: "dead-too", Path: mkdir(t, root, "dead-too"), Read: true},
		},
	})
	back := make(chan struct{})
	var stuck atomic.Int32
	h.Hangs(func(path string) {
		if strings.HasPrefix(filepath.Base(path), "dead") {
			stuck.Add(1)
			<-back
		}
	}, 500*time.Millisecond)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			start := time.Now()
			out, err := h.ListDirectProjects(t.Context(), direct.ListDirectProjectsIn{})
			if took := time.Since(start); err != nil || took > 5*time.Second {
				t.Errorf("the list took %v: %v", took, err)
				return
			}
			for _, p := range out.Projects {
				if (p.Unavailable == "") != (p.ProjectID == "good") {
					t.Errorf("%s: unavailable is %q", p.ProjectID, p.Unavailable)
				}
			}
			if _, err := h.Open("dead", direct.Read); !errors.Is(err, direct.ProjectUnavailable) {
				t.Errorf("a directory that does not answer: %v", err)
			}
			tree, err := h.Open("good", direct.Read)
			if err != nil {
				t.Error(err)
				return
			}
			tree.Close()
		})
	}
	wg.Wait()
	if n := stuck.Load(); n != 2 {
		t.Errorf("%d searches are stuck, want one for each directory", n)
	}
	close(back)
	for range 20 { // the machine may be busy
		tree, err := h.Open("dead", direct.Read)
		if err == nil {
			tree.Close()
			return
		}
	}
	t.Error("the directory answers again, and the project does not")
}

func TestNoAllowedRootAllowsNothing(t *testing.T) {
	dir := base(t)
	h := direct.New(direct.Policy{Projects: []direct.Project{{ID: "p", Path: dir, Read: true}}})
	_, err := h.Open("p", direct.Read)
	refused(t, err, direct.ProjectUnavailable)
}

func TestReadAndWriteAreSeparate(t *testing.T) {
	dir := base(t)
	h := direct.New(direct.Policy{Projects: []direct.Project{{ID: "p", Path: dir, Write: true}}, AllowedRoots: []string{dir}})
	_, err := h.Open("p", direct.Read)
	refused(t, err, direct.ReadDisabled)
	tree, err := h.Open("p", direct.Write)
	check(t, err)
	tree.Close()
}

func TestProjectThatIsReplacedByALinkIsLeft(t *testing.T) {
	root := base(t)
	dir := mkdir(t, root, "p")
	other := mkdir(t, root, "q")
	h := hostOf(root, dir)
	check(t, os.Remove(dir))
	link(t, other, dir)
	_, err := h.Open("p", direct.Read)
	refused(t, err, direct.ProjectUnavailable)
	// A new directory at the same path is the project again.
	check(t, os.Remove(dir))
	mkdir(t, dir)
	open(t, h)
}

func TestLinkToAProjectIsFollowedAtTheStartOnly(t *testing.T) {
	root := base(t)
	first, second := mkdir(t, root, "first"), mkdir(t, root, "second")
	put(t, first+"/f", "x")
	link(t, first, root+"/p")
	h := hostOf(root, root+"/p")
	check(t, os.Remove(root+"/p"))
	link(t, second, root+"/p")
	if got, err := find(open(t, h), "f", direct.ToRead); got != "f" || err != nil {
		t.Fatalf("got %q, %v: the project moved", got, err)
	}
}

func TestDirectoryForCommands(t *testing.T) {
	root := base(t)
	dir := mkdir(t, root, "p")
	mkdir(t, dir, "a", "b")
	put(t, dir+"/f", "x")
	link(t, "a/b", dir+"/l")
	tree := open(t, hostOf(root, dir))
	for rel, want := range map[string]string{"": dir, "a": dir + "/a", "l": dir + "/a/b", "a/..": dir} {
		if got, err := tree.Directory(rel); got != want || err != nil {
			t.Errorf("%q is %q, %v", rel, got, err)
		}
	}
	for rel, kind := range map[string]fault.Kind{"f": direct.NotDirectory, "none": direct.PathNotFound, "..": direct.OutsideProject} {
		_, err := tree.Directory(rel)
		refused(t, err, kind)
	}
}

func TestSystemErrorsBecomeRefusals(t *testing.T) {
	h := hostOf("/", "/nowhere")
	mac := hostOf("/", "/nowhere")
	mac.OnDarwin("/Users/o")
	for _, c := range []struct {
		host *direct.Host
		err  error
		path string
		want fault.Kind
	}{
		{h, syscall.ENOENT, "", direct.PathNotFound},
		{h, fs.ErrNotExist, "", direct.PathNotFound},
		{h, syscall.EACCES, "", direct.PermissionDenied},
		{h, syscall.EPERM, "/Users/o/Documents/x", direct.PermissionDenied},
		{h, syscall.EROFS, "", direct.PermissionDenied},
		{h, syscall.ENOSPC, "", direct.NoSpace},
		{h, syscall.EDQUOT, "", direct.NoSpace},
		{h, syscall.EIO, "", direct.FileSystemError},
		{h, syscall.ENAMETOOLONG, "", fault.InvalidArguments},
		{h, &fs.PathError{Op: "openat", Path: "x", Err: errors.New("path escapes from parent")}, "", direct.FileChanged},
		{h, direct.OutsideProject.New("x"), "", direct.OutsideProject},
		{mac, syscall.EPERM, "/Users/o/Documents", direct.MacOSPrivacy},
		{mac, syscall.EPERM, "/Users/o/Library/Mobile Documents/com~apple~CloudDocs/x", direct.MacOSPrivacy},
		{mac, syscall.EPERM, "/Volumes/Stick/x", direct.MacOSPrivacy},
		{mac, syscall.EACCES, "/Users/o/Documents/x", direct.PermissionDenied},
		{mac, syscall.EPERM, "/Users/o/src/x", direct.PermissionDenied},
		{mac, syscall.EPERM, "/Users/o/Documents-2/x", direct.PermissionDenied},
	} {
		wrapped := fmt.Errorf("doing: %w", c.err)
		if e := refused(t, c.host.Fault(wrapped, c.path), c.want); e.Message == "" || e.Hint == "" {
			t.Errorf("%v has no message or hint", c.err)
		}
	}
	if h.Fault(nil, "") != nil {
		t.Error("no error became one")
	}
}

func TestKindsAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range direct.Kinds() {
		if seen[k.Code] || k.Hint == "" {
			t.Errorf("%s is declared twice or has no hint", k.Code)
		}
		seen[k.Code] = true
	}
}

func FuzzFind(f *testing.F) {
	for _, s := range []string{"", "a/f", "../p/a", "l/../x", ".git/config", "\xff", "a//./..//b", "l2/l2/l2"} {
		f.Add(s, "a/../..", "/x")
	}
	root := base(f)
	f.Fuzz(func(t *testing.T, rel, target1, target2 string) {
		run := filepath.Join(root, fmt.Sprint(os.Getpid()))
		check(t, os.RemoveAll(run))
		dir := mkdir(t, run, "p")
		put(t, dir+"/a/f", "inside")
		put(t, run+"/outside/f", "outside")
		os.Symlink(target1, dir+"/l")
		os.Symlink(target2, dir+"/a/l2")
		h := hostOf(run, dir)
		tree, err := h.Open("p", direct.Any)
		check(t, err)
		defer tree.Close()
		for _, access := range []direct.Access{direct.ToRead, direct.ToWrite, direct.ToCreate} {
			p, err := tree.Find(rel, access)
			if err != nil {
				continue
			}
			// What was found lies in the project and is no link.
			real, err := filepath.EvalSymlinks(filepath.Join(dir, filepath.Dir(p.Path)))
			if err != nil || !direct.Inside(dir, real) {
				t.Fatalf("%q (links to %q and %q) led to %q in %q, %v", rel, target1, target2, p.Path, real, err)
			}
			if p.Info != nil && p.Info.Mode()&fs.ModeSymlink != 0 {
				t.Fatalf("%q led to a link", rel)
			}
			if access != direct.ToRead && strings.Contains(strings.ToLower("/"+p.Path+"/"), "/.git/") {
				t.Fatalf("%q led into .git for writing", rel)
			}
			p.Close()
		}
	})
}
