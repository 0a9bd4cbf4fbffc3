// Package install puts the worker's program on another machine, and looks at
// what is there.
//
// It promises that nothing is installed where somebody else could change it or
// into a directory that is not the gateway's: every directory on the way must be
// a real one of root or the user that only they can write, and the last one
// private and empty, or made by an earlier installation. A program is in place
// only after a copy of it has run there and said its own SHA-256; until then the
// old one stays. It works with a host's file service, and without one through its
// shell. A look changes nothing that is there.
//
// It leaves to others the connection (package ssh), when something is installed
// (the owner asks), and the programs (scripts/build makes them).
package install

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/pkg/sftp"

	"agentrelay/internal/hosts/ssh"
	"agentrelay/internal/hosts/worker"
)

// Link is the connection that is needed, as package ssh has it.
type Link interface {
	Run(ctx context.Context, command string, stdin []byte, maxOutput int) ([]byte, error)
	SFTP() (*sftp.Client, error)
}

// Options says where a program goes and comes from. All are required.
type Options struct {
	HostID   string
	Link     Link
	StateDir string // the remoteStateDir of the config, absolute
	Builds   Builds
}

// Builds is where programs for other machines lie.
type Builds struct {
	// Beside is the directory of the gateway's program.
	Beside string
	// StateDir is the gateway's; programs lie in its directory builds.
	StateDir string
}

// Error is why nothing was installed, and what to do about it.
type Error struct {
	Reason string // a sentence for the owner, which may name files
	Next   string

	cause error
}

// Error is for logs.
func (e *Error) Error() string {
	if e.cause != nil {
		return e.Reason + ": " + e.cause.Error()
	}
	return e.Reason
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.cause }

// Find returns the program for a system and processor, named as scripts/build
// names it.
func (b Builds) Find(goos, goarch string) (string, error) {
	name := "peer-agent-" + goos + "-" + goarch
	builds := filepath.Join(b.StateDir, "builds")
	places := []string{filepath.Join(b.Beside, name), filepath.Join(builds, name)}
	if goos == runtime.GOOS && goarch == runtime.GOARCH {
		places = append(places, filepath.Join(b.Beside, "peer-agent"))
	}
	for _, place := range places {
		if info, err := os.Stat(place); err == nil && info.Mode().IsRegular() {
			return place, nil
		}
	}
	return "", &Error{
		Reason: fmt.Sprintf("There is no program for that machine: %s lies neither in %s nor in %s.", name, b.Beside, builds),
		Next:   "Put it into one of the two: it is part of a release, and scripts/build makes it in dist/.",
	}
}

// Platform is what a machine runs, in the words of Go.
type Platform struct{ OS, Arch string }

// platform reads the output of uname -s and uname -m.
func platform(system, machine string) (Platform, error) {
	p := Platform{
		OS:   map[string]string{"Linux": "linux", "Darwin": "darwin"}[system],
		Arch: map[string]string{"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}[machine],
	}
	if p.OS == "" || p.Arch == "" {
		return p, &Error{
			Reason: fmt.Sprintf("That machine runs %q on %q, for which there is no program.", system, machine),
			Next:   "Linux and macOS are supported, on amd64 and arm64.",
		}
	}
	return p, nil
}

// Result is what an installation did.
type Result struct {
	Path     string   `json:"path"` // on the host
	Platform Platform `json:"platform"`
	SHA256   string   `json:"sha256"`
	// Unchanged says that the same program was there.
	Unchanged bool `json:"unchanged"`
}

// remote is a host while something is installed or looked at.
type remote struct {
	Options
	dir     string // state directory
	program string
}

func (o Options) remote() (*remote, error) {
	dir := path.Clean(o.StateDir)
	if !path.IsAbs(dir) || dir == "/" || !stateDirForm.MatchString(dir) {
		return nil, &Error{Reason: fmt.Sprintf("remoteStateDir %q is no absolute path of letters, digits and . _ / -.", o.StateDir), Next: "Correct it in the config."}
	}
	return &remote{Options: o, dir: dir, program: worker.Program(dir)}, nil
}

var stateDirForm = regexp.MustCompile(`^[A-Za-z0-9/._-]+$`)

// Install puts the program on the host, if it isn't there. The error may be an
// *[Error].
func Install(ctx context.Context, o Options) (Result, error) {
	r, err := o.remote()
	if err != nil {
		return Result{}, err
	}
	on, err := r.platform(ctx)
	if err != nil {
		return Result{}, err
	}
	local, err := o.Builds.Find(on.OS, on.Arch)
	if err != nil {
		return Result{}, err
	}
	content, err := os.ReadFile(local)
	if err != nil {
		return Result{}, err
	}
	sum := sha256.Sum256(content)
	out := Result{Path: r.program, Platform: on, SHA256: hex.EncodeToString(sum[:])}
	if err := r.directories(ctx, true); err != nil {
		return Result{}, err
	}
	if digest, err := r.digest(ctx, r.program); err == nil && digest == out.SHA256 {
		out.Unchanged = true
		return out, nil
	}
	return out, r.place(ctx, content, out.SHA256)
}

// place uploads a program, has it prove itself, and swaps it in.
func (r *remote) place(ctx context.Context, content []byte, sum string) (err error) {
	temp := path.Join(path.Dir(r.program), ".peer-agent-"+nonce()+".new")
	defer func() {
		if err != nil {
			r.tidy(ctx, `rm -f "$1"`, temp)
		}
	}()
	if err := r.upload(ctx, temp, content); err != nil {
		return &Error{Reason: "The program could not be sent to " + temp + ".", Next: "See that the disk there has free space.", cause: err}
	}
	digest, err := r.digest(ctx, temp)
	if err != nil {
		return &Error{
			Reason: "The program does not run there, so the old one, if any, was left alone.",
			Next:   "See whether that file system is mounted with noexec, and whether the file beside the gateway is whole: " + r.HostID + " ran it from " + temp + ".",
			cause:  err,
		}
	}
	if digest != sum {
		return &Error{Reason: "What arrived there is not what was sent, so it was removed again.", Next: "Try again; if it fails again, look at the disk of that machine."}
	}
	_, err = r.run(ctx, `
sync "$1" 2>/dev/null
mv -f "$1" "$2" || exit 1
find "${2%/*}" -name '.peer-agent-*.new' -mtime +0 -exec rm -f {} +
exit 0`, nil, temp, r.program)
	return err
}

// upload writes a program that only the user may run. The shell does it where
// there is no file service.
func (r *remote) upload(ctx context.Context, to string, content []byte) error {
	files, err := r.Link.SFTP()
	if err == nil {
		defer files.Close()
		defer context.AfterFunc(ctx, func() { _ = files.Close() })()
		if err = send(files, to, content); err == nil {
			return nil
		}
	}
	_, viaShell := r.run(ctx, `umask 077; rm -f "$1"; cat >"$1" && chmod 700 "$1"`, content, to)
	if viaShell != nil {
		return errors.Join(viaShell, err)
	}
	return nil
}

func send(files *sftp.Client, to string, content []byte) error {
	f, err := files.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	_, err = f.ReadFrom(bytes.NewReader(content))
	return errors.Join(err, f.Chmod(0o700), f.Close())
}

// digest is the SHA-256 that a program there says of itself.
func (r *remote) digest(ctx context.Context, program string) (string, error) {
	out, err := r.run(ctx, `exec "$1" version --digest`, nil, program)
	return strings.TrimSpace(string(out)), err
}

func (r *remote) platform(ctx context.Context) (Platform, error) {
	out, err := r.run(ctx, "uname -s; uname -m", nil)
	if err != nil {
		return Platform{}, err
	}
	words := strings.Fields(string(out))
	if len(words) != 2 {
		return Platform{}, &Error{Reason: "That machine does not say what it is: uname answers otherwise than on Linux or macOS.", Next: "Linux and macOS are supported, on amd64 and arm64."}
	}
	return platform(words[0], words[1])
}

//go:embed directories.sh
var directoriesScript string

// directories checks the state directory and all above it, and makes what is
// missing if it may.
func (r *remote) directories(ctx context.Context, make bool) error {
	mode := "look"
	if make {
		mode = "make"
	}
	out, err := r.run(ctx, directoriesScript, nil, r.dir, mode)
	if err != nil {
		return err
	}
	verdict, rest, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if verdict == "ok" {
		return nil
	}
	reason, next, _ := strings.Cut(rest, "\n")
	if verdict != "refused" || reason == "" {
		return fmt.Errorf("looking at the state directory: unexpected answer %.200q", out)
	}
	return &Error{Reason: reason, Next: next}
}

// maxOutput bounds what a script may answer, with what a login shell prints
// before it.
const maxOutput = 1 << 20

// run runs a script of /bin/sh and returns what it prints, without what the login
// shell printed before.
func (r *remote) run(ctx context.Context, script string, stdin []byte, args ...string) ([]byte, error) {
	mark := "agent-relay-" + nonce()
	out, err := r.Link.Run(ctx, ssh.Shell("printf '\\n"+mark+"\\n'\n"+script, args...), stdin, maxOutput)
	_, after, ok := bytes.Cut(out, []byte("\n"+mark+"\n"))
	if err == nil && !ok {
		err = errors.New("the login shell there runs no commands")
	}
	return after, err
}

// tidyTimeout bounds a tidy.
const tidyTimeout = 10 * time.Second

// tidy runs a script that removes what is of no use, also when time is up.
func (r *remote) tidy(ctx context.Context, script string, args ...string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTimeout)
	defer cancel()
	_, _ = r.run(ctx, script, nil, args...)
}

func nonce() string {
	raw := make([]byte, 8)
	rand.Read(raw)
	return hex.EncodeToString(raw)
}
