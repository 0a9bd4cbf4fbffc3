package store

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestCopyIsWholeAndPrivate(t *testing.T) {
	dir := t.TempDir() + "/sta te"
	s := open(t, dir)
	for i := range 100 {
		if err := Exec(context.Background(), s, insert(i)); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "copy?.db")
	if err := s.Copy(context.Background(), path); err != nil {
		t.Fatal(err)
	}
	schema, err := Inspect(context.Background(), path)
	if err != nil || schema != Schema() {
		t.Errorf("schema %d, %v; want %d", schema, err, Schema())
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if files, _ := os.ReadDir(filepath.Dir(path)); len(files) != 1 {
		t.Errorf("looking at it left %v", files)
	}
	if err := s.Copy(context.Background(), path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over another file: %v", err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Copy(ended, path+"2"); err == nil {
		t.Error("no error of a copy that was broken off")
	}
	if _, err := os.Stat(path + "2"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a broken copy stays: %v", err)
	}
}

func TestInspectFindsDamage(t *testing.T) {
	s := open(t, "")
	for i := range 2000 {
		if err := Exec(context.Background(), s, insert(i)); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "copy.db")
	if err := s.Copy(context.Background(), path); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for at := len(raw) / 2; at < len(raw)/2+4096; at++ {
		raw[at] ^= 0xff
	}
	for name, content := range map[string][]byte{"bits": raw, "half": raw[:len(raw)/2], "none": nil, "text": []byte("no database at all")} {
		damaged := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(damaged, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Inspect(context.Background(), damaged); err == nil {
			t.Errorf("%s: no damage was found", name)
		}
	}
}

func TestLockWithoutOpening(t *testing.T) {
	dir := t.TempDir() + "/state"
	s := open(t, dir)
	var locked *LockedError
	if _, err := Lock(dir); !errors.As(err, &locked) {
		t.Errorf("an open store: %v", err)
	}
	s.Close()
	release, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(context.Background(), Options{Dir: dir}); !errors.As(err, &locked) {
		t.Errorf("opened a locked directory: %v", err)
	}
	release()
	open(t, dir)
}
