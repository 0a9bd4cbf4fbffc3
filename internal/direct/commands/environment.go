package commands

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// inherited are the variables of this process that commands get. Everything
// else may be a secret of the gateway and stays here; the owner passes more with
// [Options.Pass].
var inherited = []string{
	"HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "SSH_AUTH_SOCK",
	"XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR",
	"LC_ALL", "LC_CTYPE", "LC_COLLATE", "LC_MESSAGES", "LC_MONETARY", "LC_NUMERIC", "LC_TIME",
	"__CF_USER_TEXT_ENCODING", // macOS: without it some programs ask a service for the encoding
}

// quiet makes programs neither ask, page, edit nor colour, since nobody sits at
// a terminal. CI is left unset: with it tools change what they build or accept
// (warnings that become errors, lock files that must not change), which the
// person who reads the result did not ask for.
var quiet = []string{
	"TERM=dumb", "NO_COLOR=1",
	"PAGER=cat", "GIT_PAGER=cat", "MANPAGER=cat", "SYSTEMD_PAGER=cat", "AWS_PAGER=",
	"GIT_TERMINAL_PROMPT=0", "SSH_ASKPASS_REQUIRE=never",
	"EDITOR=true", "VISUAL=true", "GIT_EDITOR=true",
	"DEBIAN_FRONTEND=noninteractive", "PIP_NO_INPUT=1", "HOMEBREW_NO_AUTO_UPDATE=1",
}

// defaultPath is the PATH of commands when the login shell does not say.
const defaultPath = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"

// probeTime is how long the login shell may take.
const probeTime = 3 * time.Second

// environment is what commands get.
type environment struct {
	fixed  []string // without PATH
	shell  string
	ctx    context.Context
	log    *slog.Logger
	probed func() string // the PATH; the first call may take probeTime
}

func newEnvironment(ctx context.Context, path string, pass []string, getenv func(string) (string, bool), log *slog.Logger) *environment {
	e := &environment{ctx: ctx, log: log}
	for _, name := range slices.Concat(inherited, pass) {
		if v, ok := getenv(name); ok && name != "PATH" {
			e.fixed = append(e.fixed, name+"="+v)
		}
	}
	e.fixed = append(e.fixed, quiet...)
	e.shell, _ = getenv("SHELL")
	if !filepath.IsAbs(e.shell) {
		e.shell = shellOf(os.Getuid())
	}
	e.probed = sync.OnceValue(e.askShell)
	if path != "" {
		e.probed = func() string { return path }
	}
	return e
}

func (e *environment) probe() { e.probed() }

// get is the environment of a command, without what belongs to that command.
func (e *environment) get() []string {
	return append(slices.Clone(e.fixed), "PATH="+e.probed())
}

// askShell asks the user's login shell for its PATH: under a service manager
// this process has another. What start-up files print lies outside the markers.
func (e *environment) askShell() string {
	ctx, cancel := context.WithTimeout(e.ctx, probeTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, e.shell, "-l", "-c", `printf '\0\0'; printenv PATH; printf '\0\0'`)
	cmd.Env = append(slices.Clone(e.fixed), "PATH="+defaultPath)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it can't ask at a terminal
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 100 * time.Millisecond
	var out limited
	cmd.Stdout = &out
	err := cmd.Run()
	if path, ok := between(out.Bytes()); ok {
		return path
	}
	if e.ctx.Err() == nil {
		e.log.Warn("the login shell did not say its PATH; commands get the default one", "shell", e.shell, "path", defaultPath, "error", err)
	}
	return defaultPath
}

// between finds the PATH between the markers.
func between(out []byte) (string, bool) {
	_, rest, ok := bytes.Cut(out, []byte("\x00\x00"))
	if !ok {
		return "", false
	}
	path, _, ok := bytes.Cut(rest, []byte("\x00\x00"))
	got := strings.TrimSuffix(string(path), "\n")
	return got, ok && got != "" && !strings.ContainsAny(got, "\n\x00")
}

// limited keeps the first MiB of what is written.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	l.Buffer.Write(p[:min(len(p), max(0, 1<<20-l.Len()))])
	return len(p), nil
}

// ReadFrom hides the buffer's own, which knows no limit.
func (l *limited) ReadFrom(r io.Reader) (int64, error) { return io.Copy(struct{ io.Writer }{l}, r) }

// shellOf is the login shell of a user, from the list of users.
func shellOf(uid int) string {
	f, err := os.Open("/etc/passwd")
	if err != nil {
		return "/bin/sh"
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Split(lines.Text(), ":")
		if len(fields) == 7 && fields[2] == strconv.Itoa(uid) && filepath.IsAbs(fields[6]) {
			return fields[6]
		}
	}
	return "/bin/sh"
}

// runtimeDir is where the sockets of records with long paths go.
func runtimeDir(getenv func(string) (string, bool)) string {
	if dir, ok := getenv("XDG_RUNTIME_DIR"); ok && filepath.IsAbs(dir) {
		return filepath.Join(dir, "agent-relay")
	}
	return filepath.Join(os.TempDir(), "agent-relay-"+strconv.Itoa(os.Getuid()))
}

// lookUp reports whether a program is in PATH.
func lookUp(program, path string) bool {
	if filepath.IsAbs(program) {
		info, err := os.Stat(program)
		return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
	}
	for _, dir := range filepath.SplitList(path) {
		if filepath.IsAbs(dir) && lookUp(filepath.Join(dir, program), path) {
			return true
		}
	}
	return false
}
