// Package policy keeps what a device runs without asking.
//
// It owns the file policy.json: tools that are always allowed, as device:tool, and
// how long a human has to answer. It promises that the file is read anew at each
// question, so that what was revoked is asked again at once, that it is replaced
// atomically and keeps keys it doesn't know, and that a file which can't be
// understood, or which others may write, allows nothing. It leaves the asking to
// package prompt and the deciding to package approval.
package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/renameio/v2"

	"agentrelay/internal/devices/wire"
)

// File is the place of a policy. The zero value allows nothing and can't be changed.
type File struct{ Path string }

// Policy is what the file says.
type Policy struct {
	AutoAllow []string
	// Timeout is how long a human has to answer, [wire.ApprovalBudget] by default.
	Timeout time.Duration
}

// The bounds of approval_timeout_ms. Above, a tool would have no time left.
const (
	MinTimeout = time.Second
	MaxTimeout = wire.CallBudget - 10*time.Second
)

// maxFile bounds the file in bytes.
const maxFile = 1 << 20

var entryForm = regexp.MustCompile(`^[a-z0-9-]{1,32}:[a-z0-9-]{1,32}$`)

// Read reads the file. Without one nothing is allowed. With an error comes a policy
// that allows nothing and can be used.
func (f File) Read() (Policy, error) {
	p, _, err := f.read()
	return p, err
}

func (f File) read() (Policy, map[string]json.RawMessage, error) {
	safe := Policy{Timeout: wire.ApprovalBudget}
	info, err := os.Stat(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return safe, map[string]json.RawMessage{}, nil
	}
	if err != nil {
		return safe, nil, fmt.Errorf("the policy can't be read, so nothing is allowed by it: %w", err)
	}
	switch {
	case !info.Mode().IsRegular():
		return safe, nil, fmt.Errorf("%s is no file, so nothing is allowed by it", f.Path)
	case info.Mode().Perm()&0o022 != 0:
		return safe, nil, fmt.Errorf("%s may be written by others, so nothing is allowed by it: chmod 600 it", f.Path)
	case info.Size() > maxFile:
		return safe, nil, fmt.Errorf("%s has more than %d bytes, so nothing is allowed by it", f.Path, maxFile)
	}
	raw, err := os.ReadFile(f.Path)
	if err != nil {
		return safe, nil, fmt.Errorf("the policy can't be read, so nothing is allowed by it: %w", err)
	}
	var keys map[string]json.RawMessage
	var known struct {
		AutoAllow []string `json:"autoallow"`
		TimeoutMs *int64   `json:"approval_timeout_ms"`
	}
	if err := json.Unmarshal(raw, &keys); err != nil || keys == nil {
		return safe, nil, fmt.Errorf("%s is not a JSON object, so nothing is allowed by it", f.Path)
	}
	if err := json.Unmarshal(raw, &known); err != nil {
		return safe, nil, fmt.Errorf("autoallow or approval_timeout_ms of %s has the wrong type, so nothing is allowed by it", f.Path)
	}
	for _, e := range known.AutoAllow {
		if !entryForm.MatchString(e) {
			return safe, nil, fmt.Errorf("an entry of autoallow in %s is not device:tool, so nothing is allowed by it", f.Path)
		}
	}
	p := Policy{AutoAllow: known.AutoAllow, Timeout: wire.ApprovalBudget}
	if known.TimeoutMs != nil {
		p.Timeout = clamp(*known.TimeoutMs)
	}
	return p, keys, nil
}

func clamp(ms int64) time.Duration {
	ms = min(max(ms, MinTimeout.Milliseconds()), MaxTimeout.Milliseconds())
	return time.Duration(ms) * time.Millisecond
}

// Allows reports whether a tool runs without asking.
func (p Policy) Allows(device, tool string) bool {
	return slices.Contains(p.AutoAllow, device+":"+tool)
}

// Allow adds a tool, for good once it returns.
func (f File) Allow(device, tool string) error {
	entry := device + ":" + tool
	if !entryForm.MatchString(entry) {
		return fmt.Errorf("%q is not device:tool", entry)
	}
	return f.change(func(list []string) []string {
		if slices.Contains(list, entry) {
			return list
		}
		return append(list, entry)
	})
}

// Revoke takes an entry out and reports whether it was there.
func (f File) Revoke(entry string) (found bool, err error) {
	err = f.change(func(list []string) []string {
		found = slices.Contains(list, entry)
		return slices.DeleteFunc(list, func(e string) bool { return e == entry })
	})
	return found && err == nil, err
}

// change rewrites the list under a lock, so that two processes lose nothing.
func (f File) change(edit func([]string) []string) error {
	if f.Path == "" {
		return errors.New("there is no policy file")
	}
	path := f.Path
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		path = resolved // the file is replaced, not the link to it
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("making the directory of the policy: %w", err)
	}
	lock := flock.New(path + ".lock")
	if err := lock.Lock(); err != nil {
		return fmt.Errorf("locking the policy: %w", err)
	}
	defer lock.Unlock()
	p, keys, err := f.read()
	if err != nil {
		return fmt.Errorf("the policy was left as it is: %w", err)
	}
	list := edit(slices.Clone(p.AutoAllow))
	if slices.Equal(list, p.AutoAllow) {
		return nil
	}
	if list == nil {
		list = []string{}
	}
	if keys["autoallow"], err = json.Marshal(list); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(keys, "", "  ")
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(path, append(raw, '\n'), 0o600, renameio.WithStaticPermissions(0o600)); err != nil {
		return fmt.Errorf("writing the policy: %w", err)
	}
	return nil
}

// Names reads the words of --allow: tools by name, separated by commas. Underscores
// are taken for hyphens, which names have in their place.
func Names(list []string) (map[string]bool, error) {
	out := map[string]bool{}
	for _, part := range list {
		for name := range strings.SplitSeq(part, ",") {
			name = strings.ReplaceAll(strings.TrimSpace(name), "_", "-")
			if !wire.NameForm.MatchString(name) {
				return nil, fmt.Errorf("--allow: %q is not the name of a tool", name)
			}
			out[name] = true
		}
	}
	return out, nil
}
