package channel

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"agentrelay/internal/channel/capability"
)

// probeTimeout is how long a socket that is there already may take to answer.
const probeTimeout = 300 * time.Millisecond

// Listen opens the channel's socket in the state directory of the local host, with
// mode 0600. A socket on which nobody listens is replaced. One that another
// process serves, one that is not this user's, and anything else of that name is
// left alone and refused. Closing the listener removes the socket, if it is still
// this one.
func Listen(stateDir string) (net.Listener, error) {
	dir, err := filepath.EvalSymlinks(stateDir)
	if err != nil {
		return nil, fmt.Errorf("looking at the state directory: %w", err)
	}
	if err := capability.CheckDir(dir); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, capability.Socket)
	if len(path) > capability.MaxSocketPath {
		return nil, fmt.Errorf("the path %s has %d bytes, and a socket's may have %d: choose a state directory with a shorter path (stateDir in the config)",
			path, len(path), capability.MaxSocketPath)
	}
	if err := clearStale(path); err != nil {
		return nil, err
	}
	// The socket gets its name when it is private and served, and only if the name
	// is free: whoever took it meanwhile keeps it.
	temporary := filepath.Join(dir, ".ac-"+rand.Text()[:8]+".sock") // shorter than the name
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: temporary, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("opening the agents' socket: %w", err)
	}
	l.SetUnlinkOnClose(false)
	defer os.Remove(temporary)
	info, err := publish(temporary, path)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &socketListener{UnixListener: l, path: path, info: info}, nil
}

func publish(temporary, path string) (fs.FileInfo, error) {
	if err := os.Chmod(temporary, 0o600); err != nil {
		return nil, fmt.Errorf("making the agents' socket private: %w", err)
	}
	if err := os.Link(temporary, path); err != nil {
		return nil, fmt.Errorf("naming the agents' socket: %w", err)
	}
	return os.Lstat(path)
}

// clearStale removes a socket on which nobody listens.
func clearStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking at the agents' socket: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is not a socket: move it away, the gateway makes its agents' socket there", path)
	}
	if s, ok := info.Sys().(*syscall.Stat_t); !ok || int(s.Uid) != os.Geteuid() {
		return fmt.Errorf("the socket %s belongs to another user: move it away, the gateway makes its agents' socket there", path)
	}
	conn, err := net.DialTimeout("unix", path, probeTimeout)
	switch {
	case err == nil:
		conn.Close()
		return fmt.Errorf("another process serves %s: end it, or give this gateway another state directory", path)
	case errors.Is(err, syscall.ENOENT):
		return nil
	case !errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("it can't be told whether another process serves %s: %w", path, err)
	}
	return removeSame(path, info)
}

// removeSame removes a file if it is still the one that info is of.
func removeSame(path string, info fs.FileInfo) error {
	now, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking at the agents' socket: %w", err)
	}
	if !os.SameFile(now, info) {
		return fmt.Errorf("the socket %s was replaced meanwhile: another process begins to serve it", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("removing the agents' socket: %w", err)
	}
	return nil
}

// socketListener is a listener that removes its own name, and never another's.
type socketListener struct {
	*net.UnixListener
	path   string
	info   fs.FileInfo
	remove sync.Once
}

// Close implements [net.Listener].
func (s *socketListener) Close() error {
	s.remove.Do(func() { _ = removeSame(s.path, s.info) }) // one that was replaced stays
	return s.UnixListener.Close()
}
