package store

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/gofrs/flock"
)

// TestTheLockOfADeadProcessIsWaitedFor: what a killed process was about to
// execute may hold its lock for a moment longer; a living one is not waited for.
func TestTheLockOfADeadProcessIsWaitedFor(t *testing.T) {
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	for name, pid := range map[string]int{"dead": gone.Process.Pid, "alive": os.Getpid()} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, lockName)
			held := flock.New(path)
			if ok, err := held.TryLock(); !ok || err != nil {
				t.Fatal(ok, err)
			}
			if err := os.WriteFile(path, []byte(strconv.Itoa(pid)+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(100*time.Millisecond, func() { held.Close() })
			l, err := acquire(dir)
			if name == "dead" {
				if err != nil {
					t.Fatal(err)
				}
				l.release()
				return
			}
			var locked *LockedError
			if !errors.As(err, &locked) || locked.PID != pid {
				t.Errorf("got %v", err)
			}
		})
	}
}
