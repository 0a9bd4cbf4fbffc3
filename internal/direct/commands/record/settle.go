package record

import (
	"errors"
	"fmt"
	"os"
	"time"

	"agentrelay/internal/direct/commands/output"
	"agentrelay/internal/direct/commands/process"
)

// IDVariable names the command in the environment of everything that it starts.
// It tells its processes from those of a later session with the same number.
const IDVariable = "AGENT_RELAY_COMMAND_ID"

// The codes of errors in a status that this package writes.
const (
	CodeNotStarted  = "not_started"
	CodeInterrupted = "interrupted"
)

func notStarted(at int64) Status {
	return Status{State: Failed, EndedAt: at, Error: &Error{
		CodeNotStarted, "The command was never started, and this requestId will not start it any more.",
	}}
}

// Settle reads a record and decides what is undecided: when nobody runs the
// command any more, it ends here. alive says that its supervisor runs, or is
// about to. The error is [fs.ErrNotExist] when there is no record.
func (r Root) Settle(commandID string) (rec Record, alive bool, err error) {
	d := r.Record(commandID)
	rec, err = d.Load()
	if err != nil || rec.Status.State.Final() {
		return rec, false, err
	}
	held, err := d.Lock()
	if errors.Is(err, ErrHeld) {
		// The holder may have ended it since it was read.
		rec, err = d.Load()
		return rec, err == nil && !rec.Status.State.Final(), err
	}
	if err != nil {
		return Record{}, false, err
	}
	defer held.Close()
	if rec, err = d.Load(); err != nil || rec.Status.State.Final() {
		return rec, false, err
	}
	rec.Status, err = r.outcome(d, rec)
	if err != nil {
		return Record{}, false, err
	}
	if err := d.SetStatus(rec.Status); err != nil {
		return Record{}, false, fmt.Errorf("settling a command: %w", err)
	}
	os.Remove(rec.Socket) // nobody listens: the lock is ours
	d.Ended(rec.Spec)
	return rec, false, nil
}

// outcome is what became of a command whose supervisor is no more.
func (r Root) outcome(d Dir, rec Record) (Status, error) {
	now := millis(r.now())
	if rec.Started == nil {
		return notStarted(now), nil
	}
	boot, err := r.bootID()
	if err != nil {
		return Status{}, fmt.Errorf("asking for the boot id: %w", err)
	}
	s := rec.Status
	s.State, s.EndedAt, s.Output = Interrupted, now, output.End(string(d))
	s.Error = &Error{Code: CodeInterrupted, Message: "The supervisor of the command was killed; what was left of the command was killed too."}
	if s.PID == 0 {
		s.Error.Message = "The supervisor of the command was killed while it started it. The command ran at most once, and perhaps not at all."
	}
	if boot != rec.Started.BootID {
		s.Error.Message = "The host was restarted while the command ran."
		return s, nil
	}
	s.Detached, err = killLeft(rec)
	return s, err
}

// killLeft ends the processes of a dead supervisor's session, and reports
// whether processes of the command are left in other sessions.
//
// A session's number can't be used for another as long as a process is in it.
// So its processes are ours unless it emptied and its number came around: then
// a process with that pid lives (the lock was free, so it is not the
// supervisor), or processes are in it that were not started by this command.
func killLeft(rec Record) (detached bool, err error) {
	ours := IDVariable + "=" + rec.CommandID
	for range 200 {
		all, err := process.All()
		if err != nil {
			return false, fmt.Errorf("listing processes: %w", err)
		}
		left := 0
		detached = false
		for _, p := range sessionOf(all, rec) {
			if p.Group != rec.Status.PID && !process.HasEnv(p.PID, ours) {
				continue
			}
			left++
			if _, err := process.Kill(p); err != nil {
				return false, fmt.Errorf("killing a process of an interrupted command: %w", err)
			}
		}
		if left == 0 {
			for _, p := range all {
				detached = detached || !p.Zombie && p.Session != rec.Started.PID && p.Start >= rec.Started.Start && process.HasEnv(p.PID, ours)
			}
			return detached, nil
		}
		time.Sleep(5 * time.Millisecond) // a killed process is gone when the system gets to it
	}
	return true, nil
}

// sessionOf picks the living processes of the supervisor's session. Those in the
// command's own group are in it only while its leader is the recorded process.
func sessionOf(all []process.Process, rec Record) []process.Process {
	var out []process.Process
	leader := false
	for _, p := range all {
		if p.PID == rec.Started.PID && p.Start != rec.Started.Start {
			return nil // the number is another process's now
		}
		leader = leader || p.PID == rec.Status.PID && p.Start == rec.Status.Start && p.Session == rec.Started.PID
		if p.Session == rec.Started.PID && !p.Zombie && p.Start >= rec.Started.Start && p.PID != rec.Started.PID {
			out = append(out, p)
		}
	}
	if !leader {
		for i := range out {
			out[i].Group = -1
		}
	}
	return out
}
