package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Entry is a command in the list by age.
type Entry struct {
	CreatedAt int64
	CommandID string
	OwnerTag  string
	// Swept says that its output was removed.
	Swept bool
}

// String is the entry's file name. Names sort by age, and as cursors.
func (e Entry) String() string {
	s := fmt.Sprintf("%013d-%s-%s", e.CreatedAt, e.CommandID, e.OwnerTag)
	if e.Swept {
		s += "-swept"
	}
	return s
}

// ParseEntry reads what String writes.
func ParseEntry(s string) (Entry, bool) {
	parts := strings.Split(s, "-")
	if len(parts) < 3 || len(parts) > 4 || !IsName(parts[1]) || len(parts) == 4 && parts[3] != "swept" {
		return Entry{}, false
	}
	ms, err := strconv.ParseInt(parts[0], 10, 64)
	return Entry{ms, parts[1], parts[2], len(parts) == 4}, err == nil
}

func (e Entry) day() string { return time.UnixMilli(e.CreatedAt).UTC().Format(time.DateOnly) }

// Newest calls f with the commands created before an entry (the zero Entry: all
// of them), newest first, until it answers false. It reads a day at a time.
func (r Root) Newest(before Entry, f func(Entry) (more bool, err error)) error {
	days, err := os.ReadDir(filepath.Join(r.Dir, "days"))
	if err != nil {
		return err
	}
	for _, day := range slices.Backward(days) {
		if before.CommandID != "" && day.Name() > before.day() {
			continue
		}
		entries, err := r.dayEntries(day.Name())
		if err != nil {
			return err
		}
		for _, e := range slices.Backward(entries) {
			if before.CommandID != "" && e.order() >= before.order() {
				continue
			}
			if more, err := f(e); err != nil || !more {
				return err
			}
		}
	}
	return nil
}

func (e Entry) order() string { e.Swept = false; return e.String() }

func (r Root) dayEntries(day string) ([]Entry, error) {
	names, err := os.ReadDir(filepath.Join(r.Dir, "days", day))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []Entry
	for _, n := range names {
		if e, ok := ParseEntry(n.Name()); ok {
			out = append(out, e)
		}
	}
	return out, nil
}

// SetSwept notes that a command has no output any more.
func (r Root) SetSwept(e Entry) error {
	dir := filepath.Join(r.Dir, "days", e.day())
	was := e.String()
	e.Swept = true
	return os.Rename(filepath.Join(dir, was), filepath.Join(dir, e.String()))
}

// newAge is after how long a record in the making is one that a crash left.
const newAge = time.Hour

// SweepNew removes what crashes left of records in the making.
func (r Root) SweepNew() error {
	left, err := filepath.Glob(filepath.Join(r.Dir, "new-*"))
	for _, dir := range left {
		if info, e := os.Lstat(dir); e == nil && r.now().Sub(info.ModTime()) > newAge {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}
	return err
}
