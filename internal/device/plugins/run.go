package plugins

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Call is one call of a tool.
type Call struct {
	Ref  string
	Args json.RawMessage // canonical, checked
	Jail *string         // the directory that plugins shall stay in; nil is none
	// Timeout is what is left of the call's budget; the plugin's own is shorter or
	// longer, and the shorter counts.
	Timeout time.Duration
	// Started is told the process that was started, if one was; it may be nil.
	Started func(pid int)
}

// Result is what a call came to.
type Result struct {
	OK      bool
	Output  string // at most about 64 KiB
	Summary string // one line; may be empty
	Spilled bool   // Output is the begin and end of what lies in a file
}

func failure(format string, args ...any) Result { return Result{Output: fmt.Sprintf(format, args...)} }

// The limits on what a program may say.
const (
	// maxLine bounds the line that can be a result, in bytes. Longer ones are
	// dropped like lines that are no JSON.
	maxLine = 32 << 20
	// maxStderr is how much of the end of stderr is kept, in bytes.
	maxStderr = 4 << 10
	// maxSummary bounds a summary, in characters.
	maxSummary = 200
)

// killGrace is the time from SIGTERM to SIGKILL, drainGrace that for which output is
// awaited from descendants that have left the group and hold a pipe open.
const (
	killGrace  = time.Second
	drainGrace = 250 * time.Millisecond
)

// script is a plugin that is a program.
type script struct {
	argv []string
	cwd  string
	env  []string
	root Root
}

type invocation struct {
	Args    json.RawMessage `json:"args"`
	Context struct {
		Device  string  `json:"device"`
		Cwd     string  `json:"cwd"`
		CallRef string  `json:"call_ref"`
		Jail    *string `json:"jail"`
		// State is a directory of the device in which plugins may keep things.
		State string `json:"state"`
		// TimeoutMs is how long the call may take, in milliseconds.
		TimeoutMs int64 `json:"timeout_ms"`
	} `json:"context"`
}

func (s script) input(c Call) ([]byte, error) {
	in := invocation{Args: c.Args}
	in.Context.Device, in.Context.Cwd, in.Context.CallRef = s.root.Device, s.cwd, c.Ref
	in.Context.Jail, in.Context.State = c.Jail, s.root.State
	in.Context.TimeoutMs = c.Timeout.Milliseconds()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(in)
	return b.Bytes(), err
}

func (s script) run(ctx context.Context, c Call) Result {
	in, err := s.input(c)
	if err != nil {
		return failure("the call can't be written for the plugin")
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	out, errs := &lastObject{}, &tail{}
	cmd := exec.CommandContext(ctx, s.argv[0], s.argv[1:]...)
	cmd.Dir, cmd.Env = s.cwd, append(slices.Clip(s.env), "PWD="+s.cwd)
	// A session of its own: a group that can be killed, and no terminal to draw on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = killGrace
	pipes, err := connect(cmd, in, out, errs)
	if err != nil {
		return failure("the plugin could not be started: %v", cause(err))
	}
	err = cmd.Start()
	if err != nil {
		pipes.close()
		return failure("the plugin could not be started: %v", cause(err))
	}
	if c.Started != nil {
		c.Started(cmd.Process.Pid)
	}
	pipes.copy()
	err = cmd.Wait()
	endGroup(cmd.Process.Pid, ctx.Err() != nil)
	pipes.drain()
	switch {
	case err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return failure("the plugin was killed after %s, its limit%s", inSeconds(c.Timeout), errs.quote())
	case err != nil && ctx.Err() != nil:
		return failure("the plugin was killed: %v", context.Cause(ctx))
	case err != nil:
		return failure("the plugin ended with %s%s", ended(err), errs.quote())
	}
	return out.result(errs)
}

// endGroup makes sure that nothing of a program's group is left after its leader has
// ended. A group's number is not given to anybody else while a member lives, and a
// number that has just become free is not given out at once.
func endGroup(group int, told bool) {
	for until := time.Now().Add(killGrace); told && time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		if syscall.Kill(-group, 0) != nil {
			return
		}
	}
	_ = syscall.Kill(-group, syscall.SIGKILL)
}

// pipes are the three pipes of a program. They are ours, not those of package exec,
// because its Wait would wait for descendants that hold them.
type pipes struct {
	ours, theirs [3]*os.File
	in           []byte
	to           [3]io.Writer
	copies       sync.WaitGroup
}

func connect(cmd *exec.Cmd, in []byte, out, errs io.Writer) (*pipes, error) {
	p := &pipes{in: in, to: [3]io.Writer{nil, out, errs}}
	for i := range p.ours {
		r, w, err := os.Pipe()
		if err != nil {
			p.close()
			return nil, err
		}
		if p.ours[i], p.theirs[i] = r, w; i == 0 {
			p.ours[i], p.theirs[i] = w, r
		}
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.theirs[0], p.theirs[1], p.theirs[2]
	return p, nil
}

// copy begins to write and read; the program has its ends.
func (p *pipes) copy() {
	for _, f := range p.theirs {
		f.Close()
	}
	p.copies.Go(func() {
		_, _ = p.ours[0].Write(p.in) // a program may end without having read it
		p.ours[0].Close()
	})
	for i := 1; i < len(p.ours); i++ {
		p.copies.Go(func() { _, _ = io.Copy(p.to[i], p.ours[i]) })
	}
}

// drain takes what is still in the pipes. One that a descendant out of the group
// holds open is left after a moment.
func (p *pipes) drain() {
	for _, f := range p.ours {
		_ = f.SetDeadline(time.Now().Add(drainGrace))
	}
	p.copies.Wait()
	p.close()
}

func (p *pipes) close() {
	for i := range p.ours {
		for _, f := range []*os.File{p.ours[i], p.theirs[i]} {
			if f != nil {
				f.Close()
			}
		}
	}
}

// cause is what the system says, without the path that the error names.
func cause(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

func ended(err error) string {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return "an error of the system"
	}
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return "signal " + ws.Signal().String()
	}
	return fmt.Sprintf("exit code %d", exit.ExitCode())
}

func inSeconds(d time.Duration) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", d.Seconds()), ".0") + " s"
}
