// Package supervisor runs one command to its end: it is the small process that
// stands between a service that may be restarted and a command that must not
// be.
//
// It promises that a command is executed at most once, only after the fact that
// it will be is on disk; that its output is taken whatever happens to readers;
// that its deadline and a cancellation end it, with its whole process group and
// without waiting for descendants that left the group; that the group is
// signalled only while its leader has not been reaped, so that no other group
// can be hit; and that the final status is on disk before anybody is told.
//
// It leaves to others which commands may run (package commands) and what
// becomes of a command whose supervisor is killed (package record). It links
// little, for each command starts it.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"agentrelay/internal/direct/commands/output"
	"agentrelay/internal/direct/commands/process"
	"agentrelay/internal/direct/commands/record"
)

// The descriptors that the service hands over.
const (
	lockFD = 3
	// noticeFD is a pipe: a byte says that the command runs or that its status is
	// final, the end says that the supervisor has ended.
	noticeFD = 4
)

// patience is how many seconds a final status is tried to be written, as on a
// disk that is full. After that the command counts as interrupted.
const patience = 60

// farewell is how long a supervisor that is done waits for its last answers to
// be taken.
const farewell = 500 * time.Millisecond

// Exit codes of Supervise.
const (
	exitDone   = 0 // the record has its final status
	exitFailed = 1 // nothing was executed, and the record is as it was
	exitUsage  = 2
)

// Stdio is the standard files of the program. Only Err is used, for a person
// who starts a supervisor by hand.
type Stdio struct {
	In       io.Reader
	Out, Err io.Writer
}

// Supervise is the program: args is the directory of a record. It returns the
// exit code. The end of ctx, as SIGTERM, stops the command, which is then
// interrupted.
//
// It must be the leader of its own session, and the descriptors 3 and 4 are the
// locked spec and the notice pipe when the service started it.
func Supervise(ctx context.Context, args []string, stdio Stdio) int {
	if len(args) != 1 {
		fmt.Fprintln(stdio.Err, "supervise: give the directory of a command; the gateway starts this itself")
		return exitUsage
	}
	// SIGHUP is caught, not ignored: what is ignored stays so in the command.
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	if err := supervise(ctx, record.Dir(args[0])); err != nil {
		fmt.Fprintln(stdio.Err, "supervise:", err)
		return exitFailed
	}
	return exitDone
}

func supervise(ctx context.Context, dir record.Dir) error {
	held, notice, err := takeOver(dir)
	if err != nil {
		return err
	}
	keepDescriptors()
	defer held.Close()
	if notice != nil {
		defer notice.Close()
	}
	rec, err := dir.Load()
	switch {
	case err != nil:
		return err
	case rec.Started != nil || rec.Status.State != record.Pending:
		return errors.New("this command was started or refused before, and a command runs once")
	case rec.Version != record.Version:
		return fmt.Errorf("the command was recorded by another version (%d, this is %d)", rec.Version, record.Version)
	}
	self, err := process.Find(os.Getpid())
	if err != nil {
		return err
	}
	if self.Session != self.PID {
		return errors.New("a supervisor must be the leader of its own session: start it with setsid")
	}
	s := &supervisor{
		dir: dir, spec: rec.Spec, self: self, notice: notice,
		stopped: make(chan struct{}), ended: make(chan struct{}),
		handlers: make(chan struct{}, maxConnections),
	}
	return s.run(ctx)
}

// takeOver gets the record's lock: from the service that started this process,
// so that it is never free in between, or anew.
func takeOver(dir record.Dir) (held, notice *os.File, err error) {
	held, err = dir.Inherited(lockFD)
	if errors.Is(err, record.ErrHeld) {
		return nil, nil, err
	}
	if err == nil {
		syscall.CloseOnExec(noticeFD)
		return held, os.NewFile(noticeFD, "notice"), nil
	}
	held, err = dir.Lock()
	return held, nil, err
}

// keepDescriptors keeps from the command what this process inherited: files that
// whoever started the gateway had open, which are none of the command's business
// and whose other ends it would keep waiting.
func keepDescriptors() {
	open, _ := os.ReadDir("/dev/fd") // where the system does not list them, they can't be found
	for _, e := range open {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
}

type supervisor struct {
	dir    record.Dir
	spec   record.Spec
	self   process.Process
	notice *os.File
	adopts bool // orphaned descendants become children of this process

	log    *output.Writer
	listen net.Listener

	once    sync.Once
	reason  record.State  // why the command is stopped; set before stopped is closed
	stopped chan struct{} // closed when the command is to be stopped
	ended   chan struct{} // closed when the final status is on disk

	inputs   *inputs
	serving  sync.WaitGroup
	handlers chan struct{} // a place for each connection
}

// stop asks for the end of the command. The first reason stays.
func (s *supervisor) stop(reason record.State) {
	s.once.Do(func() {
		s.reason = reason
		close(s.stopped)
	})
}

// run does all of it. An error means that nothing was executed or decided.
func (s *supervisor) run(ctx context.Context) error {
	s.adopts = process.AdoptOrphans()
	var err error
	if s.log, err = output.NewWriter(string(s.dir), s.spec.OutputBytes); err != nil {
		return err
	}
	defer s.log.Close()
	_ = os.Remove(s.spec.Socket) // nobody listens: the lock is ours
	if s.listen, err = net.Listen("unix", s.spec.Socket); err != nil {
		return err
	}
	if err := os.Chmod(s.spec.Socket, 0o600); err != nil {
		s.listen.Close()
		return err
	}
	s.inputs = newInputs(s.dir, s.spec.OpenStdin)
	s.serving.Add(1)
	go s.serve()
	defer context.AfterFunc(ctx, func() { s.stop(record.Interrupted) })()

	final, err := s.command()
	if err != nil {
		s.listen.Close()
		close(s.ended)
		s.serving.Wait()
		return err
	}
	return s.finish(final)
}

// finish makes the status final and says so.
func (s *supervisor) finish(final record.Status) error {
	final.EndedAt = time.Now().UnixMilli()
	final.Output, _ = s.log.End()
	_ = s.log.Close() // what it could not write is missing, and nothing else can be done about it
	err := s.dir.SetStatus(final)
	for range patience {
		if err == nil {
			break
		}
		time.Sleep(time.Second)
		err = s.dir.SetStatus(final)
	}
	if err == nil {
		s.dir.Ended(s.spec)
	}
	close(s.ended)
	s.listen.Close() // removes the socket
	s.tell()
	served := make(chan struct{})
	go func() {
		s.serving.Wait()
		close(served)
	}()
	select {
	case <-served:
	case <-time.After(farewell): // who has not asked by now will find the record
	}
	return err
}

// tell wakes the service that started this supervisor.
func (s *supervisor) tell() {
	if s.notice != nil {
		_, _ = s.notice.Write([]byte{'.'}) // it may have ended
	}
}
