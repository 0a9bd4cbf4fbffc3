package remote

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentrelay/internal/hosts/ssh"
)

// TestLook runs the script as a host does, with its own shell.
func TestLook(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"real/deep", "odd\nname\n", "-n", "it's"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"link": "real", "nowhere": "missing", "loop": "loop"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	at := func(p string) string { return filepath.Join(dir, p) }
	var paths, want []string
	for _, c := range [][2]string{
		{dir, "d" + dir}, {at("link/deep"), "d" + at("real/deep")}, {dir + "/link/../real/", "d" + at("real")},
		{at("link/gone/too"), "g" + at("real/gone/too")}, {at("file"), "g" + at("file")}, {at("nowhere"), ""}, {at("nowhere/x"), ""}, {at("loop/x"), ""},
		{dir + "/gone/../real", ""}, {dir + "/odd\nname\n", "d" + dir + "/odd\nname\n"}, {at("-n"), "d" + at("-n")}, {at("it's"), "d" + at("it's")},
		{"relative", ""}, {"", ""}, {"/", "d/"}, {"/agent-relay-missing//", "g/agent-relay-missing"},
	} {
		paths, want = append(paths, c[0]), append(want, c[1])
	}
	out, err := exec.Command("/bin/sh", "-c", ssh.Shell(look, paths...)).Output()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
