package supervisor

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentrelay/internal/direct/commands/output"
	"agentrelay/internal/direct/commands/process"
	"agentrelay/internal/direct/commands/record"
)

const (
	// drainGrace is how long output is awaited from descendants that left the
	// group and hold a pipe open.
	drainGrace = 250 * time.Millisecond
	// lookEvery is how often a group that is being stopped is looked at.
	lookEvery = 20 * time.Millisecond
	// killGrace is how long killed processes may take to be gone: those in an
	// uninterruptible system call take longer.
	killGrace = 2 * time.Second
)

// running is a command that was executed.
type running struct {
	pid     int
	status  record.Status
	started time.Time
	left    chan struct{} // closed when the leader has ended; it is not reaped
	drained chan struct{} // all output was read
	pipes   [2]*os.File   // our ends
}

// command executes the command and waits for its end. An error means that it
// was neither executed nor refused.
func (s *supervisor) command() (record.Status, error) {
	if s.dir.CancelRequested() {
		return record.Status{State: record.Cancelled}, nil
	}
	path, refused := lookUp(s.spec.Argv[0], s.spec.Dir, os.Getenv("PATH"))
	if refused != nil {
		return record.Status{State: record.Failed, Error: refused}, nil
	}
	boot, err := process.BootID()
	if err != nil {
		return record.Status{}, err
	}
	if err := s.dir.SetStarted(record.Started{BootID: boot, PID: s.self.PID, Start: s.self.Start, At: time.Now().UnixMilli()}); err != nil {
		return record.Status{}, err
	}
	r, err := s.execute(path)
	if err != nil {
		return record.Status{State: record.Failed, Error: execError(err)}, nil
	}
	_ = s.dir.SetStatus(r.status) // the final status counts
	s.tell()
	s.await(r)
	return s.end(r), nil
}

// execute starts the command in a group of its own.
func (s *supervisor) execute(path string) (*running, error) {
	var files [3]*os.File // the command's ends
	defer func() {
		for _, f := range files {
			if f != nil {
				f.Close()
			}
		}
	}()
	r := &running{left: make(chan struct{}), drained: make(chan struct{})}
	var err error
	for i := range r.pipes {
		if r.pipes[i], files[i+1], err = os.Pipe(); err != nil {
			return nil, err
		}
	}
	stdin, err := s.inputs.pipe()
	if err != nil {
		return nil, err
	}
	files[0] = stdin
	p, err := os.StartProcess(path, s.spec.Argv, &os.ProcAttr{
		Dir: s.spec.Dir, Env: os.Environ(), Files: files[:], Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		s.inputs.end()
		return nil, err
	}
	r.pid, r.started = p.Pid, time.Now()
	p.Release() // it is reaped here, after its group is gone
	r.status = record.Status{State: record.Running, PID: r.pid, StartedAt: r.started.UnixMilli()}
	if seen, err := process.Find(r.pid); err == nil {
		r.status.Start = seen.Start
	}
	go func() {
		defer close(r.left)
		_ = process.WaitExit(r.pid) // it fails when there is no such child, which has ended then
	}()
	go s.drain(r)
	return r, nil
}

// drain reads both pipes to their end, or to their deadline.
func (s *supervisor) drain(r *running) {
	defer close(r.drained)
	done := make(chan struct{}, len(r.pipes))
	for i, source := range []output.Source{output.Stdout, output.Stderr} {
		go func() {
			defer func() { done <- struct{}{} }()
			defer r.pipes[i].Close()
			var split output.Splitter
			buffer := make([]byte, 64<<10)
			for {
				n, err := r.pipes[i].Read(buffer)
				s.log.Append(source, split.Next(buffer[:n]))
				if err != nil {
					s.log.Append(source, split.Rest())
					return
				}
			}
		}()
	}
	for range r.pipes {
		<-done
	}
}

// await returns when the leader has ended, by itself or because it was stopped.
func (s *supervisor) await(r *running) {
	deadline := time.NewTimer(time.Until(r.started.Add(time.Duration(s.spec.TimeoutMs) * time.Millisecond)))
	defer deadline.Stop()
	select {
	case <-r.left:
		s.stop(record.Exited)
	case <-deadline.C:
		s.stop(record.TimedOut)
	case <-s.stopped:
	}
}

// end stops what is left of the group, takes the rest of the output and reaps.
func (s *supervisor) end(r *running) record.Status {
	status := r.status
	<-s.stopped
	status.State = s.reason
	if s.reason == record.Interrupted {
		status.Error = &record.Error{Code: record.CodeInterrupted, Message: "The supervisor was told to stop, as when the host shuts down."}
	}
	stuck := !s.stopGroup(r)
	select {
	case <-r.drained:
	case <-time.After(drainGrace):
		stuck = true
		for _, p := range r.pipes {
			_ = p.SetReadDeadline(time.Now())
		}
		<-r.drained
	}
	s.inputs.end()
	ws, known := reap(r.pid, !stuck)
	switch {
	case !known:
	case ws.Exited():
		code := ws.ExitStatus()
		status.ExitCode = &code
	case ws.Signaled():
		status.Signal = unix.SignalName(ws.Signal())
	}
	status.Detached = s.orphans() || stuck
	return status
}

// stopGroup sends TERM to the command's group, KILL after the grace, and
// reports whether nothing of it lives any more. The leader is not reaped yet, so
// the group's number is the command's.
func (s *supervisor) stopGroup(r *running) bool {
	if !alive(r.pid) {
		return true
	}
	_ = syscall.Kill(-r.pid, syscall.SIGTERM) // it may end by itself meanwhile
	if gone(r.pid, time.Duration(s.spec.GraceMs)*time.Millisecond) {
		return true
	}
	_ = syscall.Kill(-r.pid, syscall.SIGKILL)
	return gone(r.pid, killGrace)
}

// gone waits until no process of the group lives, or the time is up.
func gone(group int, within time.Duration) bool {
	for until := time.Now().Add(within); ; time.Sleep(min(lookEvery, within)) {
		if !alive(group) {
			return true
		}
		if time.Now().After(until) {
			return false
		}
	}
}

// alive reports whether a process of the group lives. If the system does not
// say, it is taken to: it is killed then.
func alive(group int) bool {
	all, err := process.All()
	if err != nil {
		return true
	}
	for _, p := range all {
		if p.Group == group && !p.Zombie {
			return true
		}
	}
	return false
}

// reap takes the leader's exit status. It waits for it unless the leader itself
// may be one that can't be killed.
func reap(pid int, wait bool) (ws syscall.WaitStatus, known bool) {
	options := syscall.WNOHANG
	if wait {
		options = 0
	}
	for {
		got, err := syscall.Wait4(pid, &ws, options, nil)
		if err != syscall.EINTR {
			return ws, err == nil && got == pid
		}
	}
}

// orphans reaps the adopted descendants that have ended and reports whether
// there are others. Without adoption there are none to see.
func (s *supervisor) orphans() bool {
	if !s.adopts {
		return false
	}
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return false // there is no child
		case pid == 0:
			return true
		}
	}
}
