package install

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"agentrelay/internal/hosts/ssh"
	"agentrelay/internal/hosts/worker/wire"
)

// The names of the steps of [Check], in their order.
const (
	StepDirectory  = "directory"
	StepProgram    = "program"
	StepDigest     = "digest"
	StepWorker     = "worker"
	StepSupervisor = "supervisor"
	StepLogout     = "logout"
	StepDisk       = "disk"
)

// Check looks at what is installed on a host, and has a worker start beside the
// one that works, in a directory that it removes again.
func Check(ctx context.Context, o Options) []ssh.Step {
	r, err := o.remote()
	if err != nil {
		return []ssh.Step{failed(StepDirectory, err)}
	}
	steps := []ssh.Step{r.checkDirectory(ctx)}
	program, works := r.checkProgram(ctx)
	steps = append(steps, program)
	for _, step := range []struct {
		name string
		of   func(context.Context) ssh.Step
	}{{StepDigest, r.checkDigest}, {StepWorker, r.checkWorker}, {StepSupervisor, r.checkSupervisor}} {
		if works {
			steps = append(steps, step.of(ctx))
		} else {
			steps = append(steps, ssh.Step{Name: step.name, State: ssh.Skip, Detail: "There is no program that runs."})
		}
	}
	return append(steps, r.checkLogout(ctx), r.checkDisk(ctx))
}

func (r *remote) install() string { return "Run: gateway hosts install " + r.HostID }

// failed is the step that an error ended.
func failed(name string, err error) ssh.Step {
	var known *Error
	if errors.As(err, &known) {
		return ssh.Step{Name: name, State: ssh.Fail, Detail: known.Reason, Next: known.Next}
	}
	return ssh.Step{Name: name, State: ssh.Fail, Detail: "It could not be looked at: " + err.Error() + ".", Next: "Try again; the steps of the connection say whether it holds."}
}

func (r *remote) checkDirectory(ctx context.Context) ssh.Step {
	if err := r.directories(ctx, false); err != nil {
		return failed(StepDirectory, err)
	}
	return ssh.Step{Name: StepDirectory, State: ssh.Pass, Detail: r.dir + " is private, and so is the way to it."}
}

// checkProgram reports whether there is a program that runs.
func (r *remote) checkProgram(ctx context.Context) (ssh.Step, bool) {
	out, err := r.run(ctx, `exec "$1" version`, nil, r.program)
	var exit *ssh.ExitError
	switch {
	case errors.As(err, &exit) && exit.Code == 127:
		return ssh.Step{Name: StepProgram, State: ssh.Fail, Detail: "The worker is not installed.", Next: r.install()}, false
	case errors.As(err, &exit):
		return ssh.Step{Name: StepProgram, State: ssh.Fail, Detail: r.program + " does not run there.", Next: "See whether that file system is mounted with noexec. " + r.install()}, false
	case err != nil:
		return failed(StepProgram, err), false
	}
	return ssh.Step{Name: StepProgram, State: ssh.Pass, Detail: strings.TrimSpace(string(out)) + "."}, true
}

// checkDigest compares the program with the one that would be installed.
func (r *remote) checkDigest(ctx context.Context) ssh.Step {
	on, err := r.platform(ctx)
	if err != nil {
		return failed(StepDigest, err)
	}
	digest, err := r.digest(ctx, r.program)
	if err != nil {
		return failed(StepDigest, err)
	}
	local, err := r.Builds.Find(on.OS, on.Arch)
	if err != nil {
		s := failed(StepDigest, err)
		s.State = ssh.Warn
		return s
	}
	content, err := os.ReadFile(local)
	if err != nil {
		return failed(StepDigest, err)
	}
	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != digest {
		return ssh.Step{Name: StepDigest, State: ssh.Warn, Detail: "It is another one than " + local + ".", Next: r.install()}
	}
	return ssh.Step{Name: StepDigest, State: ssh.Pass, Detail: "It is the same as " + local + "."}
}

// checkWorker starts a worker in a directory of its own. It has no projects, and
// ends when it has answered.
func (r *remote) checkWorker(ctx context.Context) ssh.Step {
	dir := path.Join(r.dir, "check-"+nonce())
	defer r.tidy(ctx, `rm -rf "$1"`, dir)
	hello := wire.Hello{Protocol: wire.Protocol, Nonce: nonce(), Gateway: wire.ProgramVersion(), StateDir: dir}
	hello.Settings.HostID = r.HostID
	hello.Settings.Commands.Path = "/usr/bin:/bin" // nothing is run with it
	var stdin bytes.Buffer
	if err := wire.WriteHello(&stdin, hello); err != nil {
		return failed(StepWorker, err)
	}
	out, err := r.run(ctx, `mkdir -m 700 "$2" && exec "$1" worker`, stdin.Bytes(), r.program, dir)
	var reply wire.Reply
	if answered := wire.ReadAnswer(bufio.NewReader(bytes.NewReader(out)), hello.Nonce, &reply); answered != nil {
		return failed(StepWorker, errors.Join(answered, err))
	}
	switch {
	case reply.Error != nil:
		return ssh.Step{Name: StepWorker, State: ssh.Fail, Detail: "The worker could not start: " + reply.Error.Message, Next: reply.Error.Hint}
	case reply.Protocol < wire.Oldest(wire.Protocol):
		return ssh.Step{Name: StepWorker, State: ssh.Fail, Detail: fmt.Sprintf("The worker speaks protocol %d, which this gateway does not.", reply.Protocol), Next: r.install()}
	case reply.Protocol < wire.Protocol:
		return ssh.Step{Name: StepWorker, State: ssh.Warn, Detail: fmt.Sprintf("The worker speaks protocol %d, the one before this gateway's.", reply.Protocol), Next: r.install()}
	}
	return ssh.Step{Name: StepWorker, State: ssh.Pass, Detail: fmt.Sprintf("A worker starts, version %s, protocol %d.", reply.Version, reply.Protocol)}
}

// checkSupervisor has a supervisor refuse a command that isn't there.
func (r *remote) checkSupervisor(ctx context.Context) ssh.Step {
	_, err := r.run(ctx, `exec "$1" supervise "$2/no-such-command"`, nil, r.program, r.dir)
	var exit *ssh.ExitError
	if errors.As(err, &exit) && exit.Code == 1 && strings.Contains(exit.Stderr, "supervise:") {
		return ssh.Step{Name: StepSupervisor, State: ssh.Pass, Detail: "Supervisors of commands start."}
	}
	if err == nil {
		err = errors.New("it took a command that is not there")
	}
	return failed(StepSupervisor, err)
}

// checkLogout asks systemd whether it kills what a user leaves behind.
func (r *remote) checkLogout(ctx context.Context) ssh.Step {
	out, err := r.run(ctx, `
busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager KillUserProcesses 2>/dev/null ||
cat /etc/systemd/logind.conf /etc/systemd/logind.conf.d/*.conf 2>/dev/null | sed -n 's/^[[:space:]]*KillUserProcesses[[:space:]]*=[[:space:]]*/b /p' | tail -n 1
id -un`, nil)
	if err != nil {
		return failed(StepLogout, err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	switch user := lines[len(lines)-1]; strings.ToLower(strings.TrimPrefix(lines[0], "b ")) {
	case "true", "yes", "on", "1":
		return ssh.Step{
			Name: StepLogout, State: ssh.Warn,
			Detail: "systemd-logind has KillUserProcesses on: commands end with the connection on which they were started.",
			Next:   fmt.Sprintf("Set KillUserProcesses=no, or KillExcludeUsers=root %s, in /etc/systemd/logind.conf there.", user),
		}
	}
	return ssh.Step{Name: StepLogout, State: ssh.Pass, Detail: "Commands outlive the connection."}
}

// What a state directory needs: the output of commands alone may take 2 GiB.
const (
	littleSpace = 64 << 20
	someSpace   = 1 << 30
)

func (r *remote) checkDisk(ctx context.Context) ssh.Step {
	out, err := r.run(ctx, `d=$1; while [ ! -d "$d" ]; do d=${d%/*}; [ -n "$d" ] || d=/; done; df -Pk "$d" | tail -n 1`, nil, r.dir)
	if err != nil {
		return failed(StepDisk, err)
	}
	fields := strings.Fields(string(out))
	if len(fields) < 6 {
		return failed(StepDisk, errors.New("df answers otherwise than it should"))
	}
	kib, err := strconv.ParseInt(fields[3], 10, 64)
	if err != nil {
		return failed(StepDisk, err)
	}
	s := ssh.Step{Name: StepDisk, State: ssh.Pass, Detail: fmt.Sprintf("%d MiB are free for %s.", kib>>10, r.dir)}
	switch free := kib << 10; {
	case free < littleSpace:
		s.State = ssh.Fail
	case free < someSpace:
		s.State = ssh.Warn
	}
	if s.State != ssh.Pass {
		s.Next = "Free some space there, or name a remoteStateDir on another disk."
	}
	return s
}
