package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gofrs/flock"

	"agentrelay/internal/direct/commands/process"
	"agentrelay/internal/hosts/worker/wire"
)

// holder is what a worker writes into the lock that it holds.
type holder struct {
	PID    int    `json:"pid"`
	Start  uint64 `json:"start"` // of the process, so that no other is taken for it
	Socket string `json:"socket"`
	Alone  bool   `json:"alone"`
}

func owned(info fs.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(s.Uid) == os.Geteuid()
}

// lockRetry is how often a lock that is held is tried again.
const lockRetry = 20 * time.Millisecond

// takeOver locks dir for this process. A gateway's worker has the one that holds
// it make way: its connection is dead, or its gateway starts it anew. The older
// one is asked, then told by a signal, then killed, each after patience. Files
// are recovered only behind the lock, so no two ever do that at once.
func takeOver(ctx context.Context, dir string, me holder, patience time.Duration) (*flock.Flock, error) {
	path := filepath.Join(dir, "lock")
	l := flock.New(path, flock.SetPermissions(0o600))
	began, asked, told := time.Now(), holder{}, 0
	for {
		ok, err := l.TryLock()
		if err != nil {
			return nil, StateDir.New("The lock of the state directory can't be taken.").Because(err)
		}
		if ok {
			if err := me.write(path); err != nil {
				_ = l.Unlock()
				return nil, fmt.Errorf("writing the lock of the state directory: %w", err)
			}
			return l, nil
		}
		was, _ := readHolder(path) // it may be writing just now
		switch waited := time.Since(began); {
		case was.PID == 0 && waited < patience: // not written yet
		case me.Alone || was.Alone:
			return nil, Busy.Newf("Another worker (process %d) uses this state directory.", was.PID)
		case was != asked && waited < patience:
			asked = was
			go askToRetire(was.Socket)
		case waited > 3*patience:
			return nil, Busy.Newf("Another worker (process %d) uses this state directory and does not end.", was.PID)
		case waited > 2*patience && told < 2:
			told = 2
			was.signal(syscall.SIGKILL)
		case waited > patience && told < 1:
			told = 1
			was.signal(syscall.SIGTERM)
		}
		select {
		case <-time.After(lockRetry):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (h holder) write(path string) error {
	h.PID = os.Getpid()
	if self, err := process.Find(h.PID); err == nil {
		h.Start = self.Start
	}
	raw, err := json.Marshal(h)
	if err != nil {
		return err
	}
	// In place, for the lock is on this file.
	return os.WriteFile(path, raw, 0o600)
}

func readHolder(path string) (h holder, err error) {
	raw, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(raw, &h)
	}
	return h, err
}

// signal tells the holder to end, if it is still that process.
func (h holder) signal(s syscall.Signal) {
	if h.PID <= 1 { // none was written
		return
	}
	p, err := os.FindProcess(h.PID)
	if err != nil {
		return
	}
	defer p.Release()
	if now, err := process.Find(h.PID); err == nil && now.Start == h.Start && !now.Zombie {
		_ = p.Signal(s)
	}
}

// askTimeout is how long a holder may take to say that it makes way. It then
// finishes what it is changing.
const askTimeout = 2 * time.Second

// askToRetire asks a holder to make way. That it was asked is all that counts:
// it is told otherwise later.
func askToRetire(socket string) {
	conn, err := net.DialTimeout("unix", socket, askTimeout)
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(askTimeout))
	if wire.WriteRequest(conn, wire.Request{Op: wire.OpRetire}) == nil {
		_ = wire.ReadAnswer(bufio.NewReader(conn), "", &struct{}{})
	}
}

// maxSocket is how long the path of a socket may be: macOS has the least.
const maxSocket = 103

// socketPath is where the socket of a worker lies: in dir, or where a path is
// short enough.
func socketPath(dir string, getenv func(string) (string, bool)) (string, error) {
	if at := filepath.Join(dir, "s"); len(at) <= maxSocket {
		return at, nil
	}
	runtime, ok := getenv("XDG_RUNTIME_DIR")
	if ok && filepath.IsAbs(runtime) {
		runtime = filepath.Join(runtime, "agent-relay")
	} else {
		runtime = filepath.Join(os.TempDir(), fmt.Sprintf("agent-relay-%d", os.Getuid()))
	}
	if err := private(runtime); err != nil {
		return "", err
	}
	at := filepath.Join(runtime, "w-"+shortHash(dir))
	if len(at) > maxSocket {
		return "", StateDir.New("The paths of the state directory and of the runtime directory are both too long for a socket.").Because(errors.New(at))
	}
	return at, nil
}
