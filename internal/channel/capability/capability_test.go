package capability

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func made(t *testing.T, dir string) File {
	t.Helper()
	f, err := New("builder", rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if err := Write(dir, f); err != nil {
		t.Fatal(err)
	}
	return f
}

func private0700(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestWrittenAndRead(t *testing.T) {
	dir := private0700(t)
	old := syscall.Umask(0)
	f := made(t, dir)
	syscall.Umask(old)
	got, err := Read(dir, "builder")
	if err != nil || got != f || len(f.Key) != 64 || len(Hash(f.Key)) != 32 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := Read(dir, "other"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	names, err := os.ReadDir(filepath.Join(dir, Dir))
	if err != nil || len(names) != 1 {
		t.Errorf("%v, %v", names, err)
	}
	if err := errors.Join(Remove(dir, "builder"), Remove(dir, "builder")); err != nil {
		t.Error(err)
	}
}

// TestHostileStateDirs: what others could have touched is neither used nor changed.
func TestHostileStateDirs(t *testing.T) {
	file := func(dir string) string { return filepath.Join(dir, Name("builder")) }
	for name, break_ := range map[string]func(t *testing.T, dir string) error{
		"state directory others enter": func(_ *testing.T, dir string) error { return os.Chmod(dir, 0o711) },
		"directory others read":        func(_ *testing.T, dir string) error { return os.Chmod(filepath.Join(dir, Dir), 0o750) },
		"file others read":             func(_ *testing.T, dir string) error { return os.Chmod(file(dir), 0o644) },
		"file the group writes":        func(_ *testing.T, dir string) error { return os.Chmod(file(dir), 0o620) },
		"directory in place of a file": func(_ *testing.T, dir string) error {
			return errors.Join(os.Remove(file(dir)), os.Mkdir(file(dir), 0o700))
		},
		"pipe in place of a file": func(_ *testing.T, dir string) error {
			return errors.Join(os.Remove(file(dir)), syscall.Mkfifo(file(dir), 0o600))
		},
		"link in place of a file": func(_ *testing.T, dir string) error {
			return errors.Join(os.Rename(file(dir), file(dir)+"x"), os.Symlink(file(dir)+"x", file(dir)))
		},
		"link that leads nowhere": func(_ *testing.T, dir string) error {
			return errors.Join(os.Remove(file(dir)), os.Symlink("nowhere", file(dir)))
		},
		"link in place of a directory": func(_ *testing.T, dir string) error {
			d := filepath.Join(dir, Dir)
			return errors.Join(os.Rename(d, d+"x"), os.Symlink(d+"x", d))
		},
		"file in place of a directory": func(_ *testing.T, dir string) error {
			d := filepath.Join(dir, Dir)
			return errors.Join(os.RemoveAll(d), os.WriteFile(d, nil, 0o600))
		},
		"another user's file":            func(t *testing.T, dir string) error { return chown(t, file(dir)) },
		"another user's directory":       func(t *testing.T, dir string) error { return chown(t, filepath.Join(dir, Dir)) },
		"another user's state directory": func(t *testing.T, dir string) error { return chown(t, dir) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := private0700(t)
			f := made(t, dir)
			if err := break_(t, dir); err != nil {
				t.Fatal(err)
			}
			var unsafe *UnsafeError
			if _, err := Read(dir, "builder"); !errors.As(err, &unsafe) {
				t.Errorf("read: %v", err)
			}
			f.Key = strings.Repeat("a", 64)
			err := Write(dir, f)
			if !errors.As(err, &unsafe) {
				t.Errorf("written: %v", err)
			}
			if err != nil && strings.Contains(err.Error(), f.Key) {
				t.Errorf("the error names the key: %v", err)
			}
		})
	}
}

// chown gives a file to another user, where the tests may do that.
func chown(t *testing.T, path string) error {
	if os.Geteuid() != 0 {
		return os.Chmod(path, 0o777) // as bad
	}
	return os.Lchown(path, 12345, 12345)
}

func TestLinkedStateDirIsRefused(t *testing.T) {
	dir := private0700(t)
	made(t, dir)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	var unsafe *UnsafeError
	if _, err := Read(link, "builder"); !errors.As(err, &unsafe) {
		t.Error(err)
	}
}

func TestAgentID(t *testing.T) {
	for in, want := range map[string]string{
		"builder": "builder", "Builder": "Builder",
		"0B9C1D0E-8E3D-4A53-9D2E-8C2F3B1F7A10": "0b9c1d0e-8e3d-4a53-9d2e-8c2f3b1f7a10",
		"a.b_c:d-e":                            "a.b_c:d-e", "": "", "../x": "", ".x": "", "a/b": "", "a b": "", "a\n": "", "é": "", strings.Repeat("a", 129): "",
	} {
		if id, ok := AgentID(in); ok != (want != "") || ok && id != want {
			t.Errorf("%q: %q, %v", in, id, ok)
		}
	}
}

func FuzzDecode(f *testing.F) {
	good, err := New("builder", bytes.NewReader(make([]byte, 32)))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good.Encode())
	for _, seed := range []string{`{}`, `null`, `[]`, `{"version":2,"agentId":"builder","key":""}`, `{"version":1,"agentId":"builder","key":"../../etc"}`, "\x00", string(good.Encode()) + "{}"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := Decode(raw, "builder")
		if err != nil {
			if !errors.Is(err, ErrMalformed) || got != (File{}) {
				t.Errorf("%q: %+v, %v", raw, got, err)
			}
			return
		}
		if got.AgentID != "builder" || Hash(got.Key) == nil {
			t.Errorf("%q became %+v", raw, got)
		}
		if again, err := Decode(got.Encode(), "builder"); err != nil || again != got {
			t.Errorf("%q: %+v, %v", raw, again, err)
		}
	})
}
