package store

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

func TestLookingBesideAnOpenStore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s, err := Open(t.Context(), Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	look := func() {
		t.Helper()
		if schema, err := SchemaOf(t.Context(), dir); err != nil || schema != Schema() {
			t.Errorf("schema %d, %v", schema, err)
		}
		if err := QuickCheck(t.Context(), dir); err != nil {
			t.Error(err)
		}
	}
	look()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	look()
	if name, err := NetworkFS(dir); err != nil || name != "" {
		t.Errorf("%q, %v", name, err)
	}

	path := filepath.Join(dir, FileName)
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 4096 + 100; i < len(raw); i++ { // all pages but the first
		raw[i] ^= 0xa5
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := QuickCheck(context.Background(), dir); err == nil {
		t.Error("the damage is not seen")
	}
}
