package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// stableProgram is the path of this program as the owner calls it: one that an
// update keeps, not where a link of today leads to.
func stableProgram() (string, error) {
	this, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding this program: %w", err)
	}
	found, err := exec.LookPath("gateway")
	if err != nil {
		return this, nil
	}
	a, errA := os.Stat(this)
	b, errB := os.Stat(found)
	if errA == nil && errB == nil && os.SameFile(a, b) {
		return filepath.Abs(found)
	}
	return this, nil
}

// writeUnit replaces a unit and keeps another one that was there.
func writeUnit(path, text, at string) (kept string, err error) {
	have, err := os.ReadFile(path)
	if err == nil && string(have) == text {
		return "", nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	made := path + ".new"
	if err := os.WriteFile(made, []byte(text), 0o644); err != nil {
		return "", err
	}
	if have != nil {
		kept = path + ".before-" + at
		if err := os.Rename(path, kept); err != nil {
			return "", errors.Join(err, os.Remove(made))
		}
	}
	return kept, errors.Join(os.Rename(made, path), syncDir(filepath.Dir(path)))
}

// optional marks a command whose failure does not matter.
const optional = "-"

// runAll runs command lines; those that begin with "-" may fail.
func runAll(ctx context.Context, all [][]string) error {
	for _, argv := range all {
		mayFail := argv[0] == optional
		if mayFail {
			argv = argv[1:]
		}
		if _, err := run(ctx, argv); err != nil && !mayFail {
			return err
		}
	}
	return nil
}

// run is a [runner] of real programs. A service manager of a user is found without a
// login session too.
func run(ctx context.Context, argv []string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = os.Environ()
	if dir := fmt.Sprintf("/run/user/%d", os.Getuid()); os.Getenv("XDG_RUNTIME_DIR") == "" {
		if _, err := os.Stat(dir); err == nil {
			cmd.Env = append(cmd.Env, "XDG_RUNTIME_DIR="+dir)
		}
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("there is no %s on this system: have its own service manager run \"gateway serve\"", argv[0])
	}
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(said.String()))
	}
	return string(out), nil
}

// setLine replaces the one line of a unit that begins with a prefix.
func setLine(text, prefix, value string) string {
	lines := strings.Split(text, "\n")
	if i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, prefix) }); i >= 0 {
		lines[i] = prefix + value
	}
	return strings.Join(lines, "\n")
}
