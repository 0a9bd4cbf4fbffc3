package files

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"
)

const (
	resultsDir = "edits"
	resultsAge = 7 * 24 * time.Hour
	resultsMax = 4096
)

// results keeps what edits answered, so that a repeat can be told from an edit
// of a file that something else has changed: the hash in a result says what the
// file would be. A result is durable before its edit takes effect.
type results struct {
	dir string
	now func() time.Time
	put atomic.Int64
}

// fingerprint names an edit: the file and all arguments.
func fingerprint(fields ...string) string {
	h := sha256.New()
	for _, f := range fields {
		h.Write(binary.AppendUvarint(nil, uint64(len(f))))
		h.Write([]byte(f))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// find returns what an edit answered, if it is known.
func (r *results) find(id string) (out EditDirectFileOut, ok bool) {
	raw, err := os.ReadFile(filepath.Join(r.dir, id))
	return out, err == nil && json.Unmarshal(raw, &out) == nil
}

func (r *results) keep(id string, out EditDirectFileOut) error {
	raw, err := json.Marshal(out)
	if err != nil {
		return err
	}
	path := filepath.Join(r.dir, id)
	os.Remove(path + unfinished) // of a crash: this file's lock is held
	if err := writeSynced(path, bytes.NewReader(raw)); err != nil {
		return fmt.Errorf("keeping the result of an edit: %w", err)
	}
	if r.put.Add(1)%256 == 0 {
		r.prune()
	}
	return nil
}

// prune removes old results, and the oldest of too many.
func (r *results) prune() {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return
	}
	var kept []os.FileInfo
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue
		}
		if r.now().Sub(info.ModTime()) > resultsAge {
			os.Remove(filepath.Join(r.dir, e.Name()))
			continue
		}
		kept = append(kept, info)
	}
	if len(kept) <= resultsMax {
		return
	}
	slices.SortFunc(kept, func(a, b os.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, info := range kept[:len(kept)-resultsMax] {
		os.Remove(filepath.Join(r.dir, info.Name()))
	}
}
