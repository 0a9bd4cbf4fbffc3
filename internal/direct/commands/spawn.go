package commands

import (
	"bytes"
	"os"
	"syscall"

	"agentrelay/internal/direct/commands/record"
)

// maxComplaint is how much of what a failed supervisor says is logged.
const maxComplaint = 4 << 10

// spawn starts the supervisor of a record whose lock is held, and hands it the
// lock. launched is closed when the command was executed or has ended.
func (s *Service) spawn(d record.Dir, spec record.Spec, held *os.File, env []string) (launched <-chan struct{}, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	notices, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	argv := append(append([]string{}, s.supervisor...), string(d))
	p, err := os.StartProcess(argv[0], argv, &os.ProcAttr{
		Dir: string(d),
		Env: append(env, record.IDVariable+"="+spec.CommandID, "PWD="+spec.Dir),
		// The order is package supervisor's: the lock is 3, the notices are 4.
		Files: []*os.File{null, null, theirs, held, theirs},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		notices.Close()
		return nil, err
	}
	done := make(chan struct{})
	s.work.Go(func() { s.attend(p, notices, spec, done) })
	return done, nil
}

// attend follows a supervisor to its end: it reaps it and settles what it left.
func (s *Service) attend(p *os.Process, notices *os.File, spec record.Spec, launched chan struct{}) {
	defer notices.Close()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-s.ctx.Done():
			notices.Close() // the supervisor goes on without us
		case <-stop:
		}
	}()
	complaint, told := []byte(nil), false
	tell := func() {
		if !told {
			told = true
			close(launched)
		}
	}
	defer tell()
	buffer := make([]byte, 512)
	for {
		n, err := notices.Read(buffer)
		if said := bytes.Trim(buffer[:n], "."); len(said) > 0 {
			complaint = append(complaint, said[:min(len(said), maxComplaint-len(complaint))]...)
		} else if n > 0 {
			tell()
		}
		if err != nil {
			break
		}
	}
	if s.ctx.Err() != nil {
		p.Release()
		return
	}
	if _, err := p.Wait(); err != nil {
		s.log.Error("could not wait for a supervisor", "commandId", spec.CommandID, "error", err)
	}
	if len(complaint) > 0 {
		s.log.Error("a supervisor failed", "commandId", spec.CommandID, "said", string(complaint))
	}
	if _, _, err := s.root.Settle(spec.CommandID); err != nil {
		s.log.Error("could not settle a command", "commandId", spec.CommandID, "error", err)
	}
}
