package channel

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"agentrelay/internal/channel/capability"
)

// ProgramPath is where the agents of the local host find peer-agent. It lies in
// the state directory because that is how it finds its capability.
func ProgramPath(stateDir string) string { return filepath.Join(stateDir, "bin", "peer-agent") }

// KeepCopy sees to it that [ProgramPath] is a copy of the program exe, and returns
// the path. It is replaced when it differs, while older processes of it go on.
func KeepCopy(stateDir, exe string) (string, error) {
	dir, err := filepath.EvalSymlinks(stateDir)
	if err != nil {
		return "", fmt.Errorf("looking at the state directory: %w", err)
	}
	path := ProgramPath(dir)
	bin := filepath.Dir(path)
	if err := os.Mkdir(bin, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("making %s: %w", bin, err)
	}
	if err := capability.CheckDir(bin); err != nil {
		return "", err
	}
	want, err := digest(exe)
	if err != nil {
		return "", fmt.Errorf("reading peer-agent: %w", err)
	}
	info, err := os.Lstat(path)
	if err == nil && info.Mode() == 0o700 {
		if have, err := digest(path); err == nil && bytes.Equal(have, want) {
			return path, nil
		}
	}
	if err == nil && info.IsDir() {
		return "", fmt.Errorf("%s is a directory: move it away, the gateway keeps its peer-agent there", path)
	}
	if err := replace(path, exe); err != nil {
		return "", fmt.Errorf("copying peer-agent: %w", err)
	}
	return path, nil
}

func replace(path, exe string) error {
	from, err := os.Open(exe)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)), renameio.WithStaticPermissions(0o700))
	if err != nil {
		return err
	}
	defer to.Cleanup()
	if _, err := io.Copy(to, from); err != nil {
		return err
	}
	return to.CloseAtomicallyReplace()
}

func digest(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return nil, err
	}
	return h.Sum(nil), nil
}
