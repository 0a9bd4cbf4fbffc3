package channel

import (
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"agentrelay/internal/channel/capability"
)

// stale leaves a socket that nobody listens on.
func stale(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
}

func TestSocketIsPrivateAndGoes(t *testing.T) {
	dir := shortDir(t)
	path := filepath.Join(dir, capability.Socket)
	stale(t, path)
	l, err := Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if names, _ := os.ReadDir(dir); len(names) != 1 {
		t.Errorf("there are %v", names)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	if err := l.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
}

// TestSocketsOfOthersStay: nothing that may be somebody's is removed.
func TestSocketsOfOthersStay(t *testing.T) {
	for name, c := range map[string]struct {
		make func(t *testing.T, path string) error
		says string
	}{
		"a file":      {func(_ *testing.T, path string) error { return os.WriteFile(path, []byte("x"), 0o600) }, "not a socket"},
		"a directory": {func(_ *testing.T, path string) error { return os.Mkdir(path, 0o700) }, "not a socket"},
		"a link":      {func(_ *testing.T, path string) error { return os.Symlink("x", path) }, "not a socket"},
		"a socket in use": {func(t *testing.T, path string) error {
			l, err := net.Listen("unix", path)
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		}, "another process serves"},
		"another user's socket": {func(t *testing.T, path string) error {
			stale(t, path)
			if os.Geteuid() != 0 {
				return errors.Join(os.Remove(path), os.Symlink("x", path))
			}
			return os.Lchown(path, 12345, 12345)
		}, map[bool]string{true: "another user", false: "not a socket"}[os.Geteuid() == 0]},
	} {
		t.Run(name, func(t *testing.T) {
			dir := shortDir(t)
			path := filepath.Join(dir, capability.Socket)
			if err := c.make(t, path); err != nil {
				t.Fatal(err)
			}
			before, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			l, err := Listen(dir)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, %v", l, err)
			}
			after, err := os.Lstat(path)
			if err != nil || !os.SameFile(before, after) {
				t.Errorf("it was replaced: %v", err)
			}
		})
	}
}

func TestSocketThatWasReplacedStays(t *testing.T) {
	dir := shortDir(t)
	path := filepath.Join(dir, capability.Socket)
	l, err := Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	stale(t, path)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("another's socket was removed: %v", err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Rename(path, path+"x"), os.WriteFile(path, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := removeSame(path, info); err == nil || !strings.Contains(err.Error(), "replaced") {
		t.Errorf("removed what was not looked at: %v", err)
	}
}

func TestStateDirOfTheSocket(t *testing.T) {
	if _, err := Listen(filepath.Join(shortDir(t), "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	dir := shortDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var unsafe *capability.UnsafeError
	if _, err := Listen(dir); !errors.As(err, &unsafe) {
		t.Error(err)
	}
	long := filepath.Join(shortDir(t), strings.Repeat("d", 90))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(long); err == nil || !strings.Contains(err.Error(), "choose a state directory with a shorter path") {
		t.Error(err)
	}
}

// TestKilledGatewayIsFollowed: the socket of a process that was killed is replaced.
func TestKilledGatewayIsFollowed(t *testing.T) {
	m := newMachine(t)
	a := m.adopt("builder")
	path := filepath.Join(m.dir, capability.Socket)
	if err := os.Link(path, path+"x"); err != nil { // survives the stop, as after SIGKILL
		t.Fatal(err)
	}
	m.stop()
	if err := os.Rename(path+"x", path); err != nil {
		t.Fatal(err)
	}
	if _, err := net.Dial("unix", path); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("dialling a stale socket: %v", err)
	}
	m.open()
	a.request(http.MethodGet, "/v1/self", "").want(t, "")
}
