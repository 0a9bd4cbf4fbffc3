package remote

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	xssh "golang.org/x/crypto/ssh"

	"agentrelay/internal/agents"
	"agentrelay/internal/config"
	"agentrelay/internal/e2e/sshd"
	"agentrelay/internal/hosts/ssh"
)

// newHost is a host behind OpenSSH's server.
func newHost(t *testing.T, conf config.Host, o sshd.Options) *Host {
	t.Helper()
	c := sshd.NewClient(t)
	key := c.Key("id", "")
	o.Authorized = []xssh.PublicKey{key.Public}
	s := sshd.Start(t, o)
	c.Know(s)
	c.Configure(c.Host("box", s, "IdentityFile "+key.File))
	conf.ID, conf.Target = "box", "ssh://box"
	h := New(Options{Config: &config.Config{}, Host: conf, SSH: ssh.Options{ConfigFile: c.Config, Home: c.Dir}})
	t.Cleanup(func() { h.Close() })
	h.Start(context.Background())
	return h
}

// TestDirectoriesBehindABanner: what the login shell prints of its own is no answer.
func TestDirectoriesBehindABanner(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h := newHost(t, config.Host{AllowedRoots: []string{root}}, sshd.Options{Banner: "Welcome to box\nd/everything"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got, err := h.Resolve(ctx, []string{root, "/"})
	if err != nil {
		t.Fatal(err)
	}
	here, err := agents.NewLocalRoots([]string{root}).Resolve(ctx, "", []string{root, "/"})
	if err != nil || len(got) != 2 || got[0] != here[0] || got[1] != here[1] {
		t.Errorf("%+v there, %+v here, %v", got, here, err)
	}
}

// TestDirectoriesAreResolvedAsHere: the shell of another machine says of each path
// what the policy of this one says.
func TestDirectoriesAreResolvedAsHere(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	root := base + "/root"
	for _, dir := range []string{root + "/in/deep", root + "/with space", root + "/-dash", root + "/ends\\", base + "/outside", base + "/root-sibling"} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{root + "/escape": base + "/outside", base + "/enter": root + "/in", root + "/dangling": root + "/nowhere", root + "/loop": root + "/loop"} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(root+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	paths := []string{
		root, root + "/in/deep", base + "/enter/deep", root + "/gone", root + "/gone/deeper", base + "/enter/gone", root + "/escape", root + "/escape/x",
		root + "/dangling", root + "/dangling/x", root + "/loop", root + "-sibling", base + "/outside", root + "/with space", root + "/-dash", root + `/ends\`,
		"/", "/nowhere/at/all", root + "/with space/gone one",
	}
	roots := []string{base + "/not-there", root}
	for _, shell := range []string{"sh", "bash"} {
		program, err := exec.LookPath(shell)
		if err != nil {
			continue // the other one is enough
		}
		cmd := exec.Command(program, "-c", resolveDirectories)
		cmd.Stdin = strings.NewReader(strings.Join(append(append([]string{}, roots...), paths...), "\n") + "\n")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
		if len(lines) != len(roots)+len(paths) {
			t.Fatalf("%s: %d lines: %q", shell, len(lines), lines)
		}
		there := agents.PlacesOf(lines[:len(roots)], lines[len(roots):])
		here, err := agents.NewLocalRoots(roots).Resolve(t.Context(), "", paths)
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range paths {
			if there[i] != here[i] {
				t.Errorf("%s: %q is %+v there and %+v here", shell, p, there[i], here[i])
			}
		}
	}
}
