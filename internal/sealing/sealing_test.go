package sealing_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"agentrelay/internal/sealing"
)

func newKey(t *testing.T, dir string) *sealing.Key {
	t.Helper()
	k, err := sealing.LoadOrCreate(dir)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestBoxOpensWithItsKeyAndContextOnly(t *testing.T) {
	dir := t.TempDir()
	k, other := newKey(t, dir), newKey(t, t.TempDir())
	rapid.Check(t, func(t *rapid.T) {
		plain, context := rapid.SliceOf(rapid.Byte()).Draw(t, "plain"), rapid.String().Draw(t, "context")
		box := k.Seal(plain, context)
		if got, err := k.Open(box, context); err != nil || !bytes.Equal(got, plain) {
			t.Fatalf("got %x, %v", got, err)
		}
		if len(plain) > 8 && bytes.Contains(box, plain) {
			t.Fatal("the box shows what is in it")
		}
		if _, err := k.Open(box, context+"x"); !errors.Is(err, sealing.ErrBroken) {
			t.Fatalf("another context: %v", err)
		}
		if _, err := other.Open(box, context); !errors.Is(err, sealing.ErrOtherKey) {
			t.Fatalf("another key: %v", err)
		}
		i := rapid.IntRange(0, len(box)-1).Draw(t, "byte")
		box[i] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		if _, err := k.Open(box, context); err == nil {
			t.Fatal("a changed box opened")
		}
		if _, err := k.Open(box[:i], context); err == nil {
			t.Fatal("a cut box opened")
		}
	})
}

func TestEqualSecretsGiveDifferentBoxes(t *testing.T) {
	k := newKey(t, t.TempDir())
	if bytes.Equal(k.Seal([]byte("s"), "c"), k.Seal([]byte("s"), "c")) {
		t.Error("two boxes are equal")
	}
}

func TestKeyFileIsPrivateAndKept(t *testing.T) {
	dir := t.TempDir()
	box := newKey(t, dir).Seal([]byte("secret"), "c")
	path := filepath.Join(dir, sealing.FileName)
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != 0o600 || info.Size() != 32 {
		t.Fatalf("the key file is %v, %v", info.Mode(), err)
	}
	before, _ := os.ReadFile(path)
	for _, load := range []func(string) (*sealing.Key, error){sealing.Load, sealing.LoadOrCreate} {
		k, err := load(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := k.Open(box, "c"); err != nil || string(got) != "secret" {
			t.Errorf("after a restart: %q, %v", got, err)
		}
	}
	if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
		t.Error("the key was replaced")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestConcurrentCreationGivesOneKey(t *testing.T) {
	dir := t.TempDir()
	keys := make([]*sealing.Key, 16)
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() { keys[i], _ = sealing.LoadOrCreate(dir) })
	}
	wg.Wait()
	for _, k := range keys {
		if k == nil {
			t.Fatal("a caller got no key")
		}
		if _, err := k.Open(keys[0].Seal([]byte("s"), "c"), "c"); err != nil {
			t.Error(err)
		}
	}
}

func TestUnusableKeyFileIsRefusedAndKept(t *testing.T) {
	for _, tt := range []struct {
		name string
		make func(path string) error
		want string
	}{
		{"missing", func(string) error { return nil }, "put it back"},
		{"empty", func(p string) error { return os.WriteFile(p, nil, 0o600) }, "not 32 bytes"},
		{"short", func(p string) error { return os.WriteFile(p, make([]byte, 31), 0o600) }, "not 32 bytes"},
		{"long", func(p string) error { return os.WriteFile(p, make([]byte, 33), 0o600) }, "not 32 bytes"},
		{"open to others", func(p string) error { return os.WriteFile(p, make([]byte, 32), 0o644) }, "chmod 600"},
		{"a directory", func(p string) error { return os.Mkdir(p, 0o700) }, "not a regular file"},
		{"a link", func(p string) error { return os.Symlink("/dev/zero", p) }, "is a link"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, sealing.FileName)
			if err := tt.make(path); err != nil {
				t.Fatal(err)
			}
			_, err := sealing.Load(dir)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want %q and the path", err, tt.want)
			}
			if tt.name == "missing" {
				return
			}
			if _, err := sealing.LoadOrCreate(dir); err == nil {
				t.Error("a new key was made over an unusable one")
			}
		})
	}
}
