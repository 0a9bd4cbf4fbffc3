package install_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/pkg/sftp"

	"agentrelay/internal/hosts/install"
	"agentrelay/internal/hosts/ssh"
)

// program is a built peer-agent.
var program string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "peer-agent")
	if err != nil {
		panic(err)
	}
	program = filepath.Join(dir, "peer-agent")
	if out, err := exec.Command("go", "build", "-o", program, "agentrelay/cmd/peer-agent").CombinedOutput(); err != nil {
		panic(string(out))
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// machine is this one, reached by a shell that greets.
type machine struct {
	files bool // it has a file service
	flip  bool // and a disk that changes what is written
}

// Run implements [install.Link].
func (m machine) Run(ctx context.Context, command string, stdin []byte, maxOutput int) ([]byte, error) {
	if m.flip && len(stdin) > 1<<20 {
		stdin = append(bytes.Clone(stdin), 0)
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", "echo Welcome; printf 'no line end'; "+command)
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = &ssh.ExitError{Code: exit.ExitCode(), Stderr: stderr.String()}
	}
	return out, err
}

// SFTP implements [install.Link].
func (m machine) SFTP() (*sftp.Client, error) {
	if !m.files {
		return nil, errors.New("subsystem request failed")
	}
	fromServer, toClient := io.Pipe()
	fromClient, toServer := io.Pipe()
	s, err := sftp.NewServer(struct {
		io.Reader
		io.WriteCloser
	}{fromClient, toClient})
	if err != nil {
		return nil, err
	}
	go func() { _ = s.Serve(); toClient.Close(); fromClient.Close() }()
	return sftp.NewClientPipe(fromServer, toServer)
}

func digestOf(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// beside is a directory with the gateway's programs.
func beside(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Link(program, filepath.Join(dir, "peer-agent-"+runtime.GOOS+"-"+runtime.GOARCH)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func options(t *testing.T, m machine) install.Options {
	return install.Options{HostID: "far", Link: m, StateDir: filepath.Join(t.TempDir(), "a", "state"), Builds: install.Builds{Beside: beside(t), StateDir: t.TempDir()}}
}

func TestInstall(t *testing.T) {
	for name, m := range map[string]machine{"file service": {files: true}, "shell": {}} {
		t.Run(name, func(t *testing.T) {
			o := options(t, m)
			got, err := install.Install(t.Context(), o)
			if err != nil || got.Unchanged || got.Path != filepath.Join(o.StateDir, "bin", "peer-agent") || got.SHA256 != digestOf(t, program) {
				t.Fatalf("%+v, %v", got, err)
			}
			if info, err := os.Stat(got.Path); err != nil || info.Mode().Perm() != 0o700 || digestOf(t, got.Path) != got.SHA256 {
				t.Fatalf("%v, %v", info, err)
			}
			if got, err = install.Install(t.Context(), o); err != nil || !got.Unchanged {
				t.Fatalf("%+v, %v", got, err)
			}
			// An older one is replaced, and nothing is left beside it.
			if err := os.WriteFile(got.Path, []byte("#!/bin/sh\necho old\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			if got, err = install.Install(t.Context(), o); err != nil || got.Unchanged || digestOf(t, got.Path) != got.SHA256 {
				t.Fatalf("%+v, %v", got, err)
			}
			if left, _ := os.ReadDir(filepath.Dir(got.Path)); len(left) != 1 {
				t.Errorf("%v", left)
			}
		})
	}
}

// A program that is not what was sent, or doesn't run, replaces nothing.
func TestBadProgramReplacesNothing(t *testing.T) {
	for name, prepare := range map[string]func(*install.Options){
		"changed on the way": func(o *install.Options) { o.Link = machine{flip: true} },
		"of another platform": func(o *install.Options) {
			name := filepath.Join(o.Builds.Beside, "peer-agent-"+runtime.GOOS+"-"+runtime.GOARCH)
			os.Remove(name)
			os.WriteFile(name, append([]byte("\x7fELF"), make([]byte, 100)...), 0o700)
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t, machine{})
			got, err := install.Install(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(got.Path, []byte("#!/bin/sh\necho old\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			prepare(&o)
			var refused *install.Error
			if _, err := install.Install(t.Context(), o); !errors.As(err, &refused) || refused.Next == "" {
				t.Fatal(err)
			}
			raw, err := os.ReadFile(got.Path)
			if err != nil || string(raw) != "#!/bin/sh\necho old\n" {
				t.Errorf("the old program is gone: %v", err)
			}
			if left, _ := os.ReadDir(filepath.Dir(got.Path)); len(left) != 1 {
				t.Errorf("%v", left)
			}
		})
	}
}

func TestUnsafeDirectoriesAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, dir string)
		reason  string
	}{
		"link above": {func(t *testing.T, dir string) {
			os.Rename(filepath.Dir(dir), filepath.Dir(dir)+"2")
			must(t, os.Symlink(filepath.Dir(dir)+"2", filepath.Dir(dir)))
		}, " is a link to "},
		"link":         {func(t *testing.T, dir string) { must(t, os.Symlink(t.TempDir(), dir)) }, " is a link to "},
		"file":         {func(t *testing.T, dir string) { must(t, os.WriteFile(dir, nil, 0o600)) }, " is not a directory."},
		"others write": {func(t *testing.T, dir string) { must(t, os.Chmod(filepath.Dir(dir), 0o777)) }, " can be written by other users."},
		"group writes": {func(t *testing.T, dir string) { must(t, os.Chmod(filepath.Dir(dir), 0o770)) }, " can be written by other users."},
		"others read":  {func(t *testing.T, dir string) { must(t, os.Mkdir(dir, 0o755)) }, " can be used by other users."},
		"another user": {func(t *testing.T, dir string) { must(t, os.Mkdir(dir, 0o700)); must(t, os.Chown(dir, 12345, 12345)) }, " belongs to another user."},
		"foreign files": {func(t *testing.T, dir string) {
			must(t, os.Mkdir(dir, 0o700))
			must(t, os.WriteFile(filepath.Join(dir, "mine"), []byte("precious"), 0o600))
		}, " holds files that are not the gateway's."},
		"bin": {func(t *testing.T, dir string) {
			must(t, os.Mkdir(dir, 0o700))
			must(t, os.WriteFile(filepath.Join(dir, ".agent-relay"), nil, 0o600))
			must(t, os.Symlink(t.TempDir(), filepath.Join(dir, "bin")))
		}, "/bin is a link to "},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "another user" && os.Getuid() != 0 {
				return // only root gives files away
			}
			o := options(t, machine{files: true})
			must(t, os.MkdirAll(filepath.Dir(o.StateDir), 0o700))
			c.prepare(t, o.StateDir)
			var refused *install.Error
			_, err := install.Install(t.Context(), o)
			if !errors.As(err, &refused) || !strings.Contains(refused.Reason, c.reason) || refused.Next == "" {
				t.Fatalf("%v", err)
			}
			steps := install.Check(t.Context(), o)
			if steps[0].Name != install.StepDirectory || steps[0].State != ssh.Fail || steps[0].Detail != refused.Reason {
				t.Errorf("%+v", steps[0])
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestMissingBuildIsNamed(t *testing.T) {
	o := options(t, machine{})
	o.Builds.Beside = t.TempDir()
	var refused *install.Error
	_, err := install.Install(t.Context(), o)
	if !errors.As(err, &refused) || !strings.Contains(refused.Reason, "peer-agent-"+runtime.GOOS+"-"+runtime.GOARCH) || !strings.Contains(refused.Reason, o.Builds.Beside) {
		t.Fatal(err)
	}
	if _, err := os.Stat(o.StateDir); err == nil {
		t.Error("a directory was made for nothing")
	}
	for _, c := range []struct{ dir, name string }{
		{filepath.Join(o.Builds.StateDir, "builds"), "peer-agent-darwin-arm64"},
		{o.Builds.Beside, "peer-agent-linux-arm64"},
	} {
		must(t, os.MkdirAll(c.dir, 0o700))
		must(t, os.WriteFile(filepath.Join(c.dir, c.name), nil, 0o700))
		parts := strings.Split(c.name, "-")
		if got, err := o.Builds.Find(parts[2], parts[3]); err != nil || got != filepath.Join(c.dir, c.name) {
			t.Errorf("%s, %v", got, err)
		}
	}
}

func TestCheck(t *testing.T) {
	o := options(t, machine{files: true})
	states := func() (out []string) {
		for _, s := range install.Check(t.Context(), o) {
			if s.Detail == "" || s.State != ssh.Pass && s.State != ssh.Skip && s.Next == "" {
				t.Errorf("%+v", s)
			}
			out = append(out, s.Name+" "+string(s.State))
		}
		return out
	}
	if got := strings.Join(states()[:5], ", "); got != "directory fail, program fail, digest skip, worker skip, supervisor skip" {
		t.Error(got)
	}
	if _, err := install.Install(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(states()[:5], ", "); got != "directory pass, program pass, digest pass, worker pass, supervisor pass" {
		t.Errorf("%s %+v", got, install.Check(t.Context(), o))
	}
	left, err := os.ReadDir(o.StateDir)
	if err != nil || len(left) != 2 { // the marker and bin
		t.Errorf("%v, %v", left, err)
	}
	must(t, os.Remove(filepath.Join(o.Builds.Beside, "peer-agent-"+runtime.GOOS+"-"+runtime.GOARCH)))
	must(t, os.WriteFile(filepath.Join(o.Builds.Beside, "peer-agent"), []byte("newer"), 0o700))
	if got := states()[2]; got != "digest warn" {
		t.Error(got)
	}
}
