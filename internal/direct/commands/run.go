package commands

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/commands/record"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
)

// RunDirectCommand records and starts a command, or answers the record that
// this requestId has. It answers once the command runs or was refused by the
// system, and with WaitMs when it has ended. The call's own end does not stop a
// command. Refusals: invalid_arguments, key_conflict, those of the project and
// cwd, commands_disabled, command_not_registered, too_many_commands; they leave
// no record.
func (s *Service) RunDirectCommand(ctx context.Context, who principal.Principal, in RunDirectCommandIn) (RunDirectCommandOut, error) {
	c, err := check(in)
	if err != nil {
		return RunDirectCommandOut{}, err
	}
	rec, duplicate, err := s.recorded(ctx, who, c)
	if err != nil {
		return RunDirectCommandOut{}, err
	}
	out := RunDirectCommandOut{Duplicate: duplicate}
	if c.wait > 0 {
		if !rec.Status.State.Final() {
			if rec, err = s.await(ctx, rec, record.UntilEnd, c.wait); err != nil {
				return RunDirectCommandOut{}, err
			}
		}
		o, err := s.output(rec, page{limit: DefaultLimit})
		if err != nil {
			return RunDirectCommandOut{}, err
		}
		out.Output = &o
	}
	out.Receipt = s.receipt(rec)
	return out, nil
}

// recorded finds or makes the record of a run, one call at a time.
func (s *Service) recorded(ctx context.Context, who principal.Principal, c checked) (rec record.Record, duplicate bool, err error) {
	id := record.Name(who.Owner, c.RequestID)
	unlock, err := s.keys.Acquire(ctx, id)
	if err != nil {
		return record.Record{}, false, err
	}
	defer unlock()
	rec, err = s.settled(who.Owner, c.RequestID, c.fingerprint())
	if errors.Is(err, fs.ErrNotExist) {
		rec, err = s.begin(who, c)
		if err == nil {
			return rec, false, nil
		}
		if !errors.Is(err, record.ErrExists) {
			return record.Record{}, false, err
		}
		rec, _, err = s.root.Settle(id) // another process was faster
	}
	if err != nil {
		return record.Record{}, false, fmt.Errorf("looking a command up: %w", err)
	}
	// A tombstone has no arguments, so it is a repeat of any.
	if !rec.Tombstone && rec.Fingerprint != c.fingerprint() {
		return record.Record{}, false, keyConflict("requestId was used for a command with other arguments.")
	}
	return rec, true, nil
}

// begin checks what the owner allows, records the command and starts it.
func (s *Service) begin(who principal.Principal, c checked) (record.Record, error) {
	project, err := s.host.Project(c.ProjectID)
	if err != nil {
		return record.Record{}, err
	}
	argv, owners, err := c.argv(project)
	if err != nil {
		return record.Record{}, err
	}
	root, dir, err := s.directory(c)
	if err != nil {
		return record.Record{}, err
	}
	named := ""
	if owners {
		argv, named = program(argv, root)
	}
	env := s.env.get() // before the record, for the first call may wait for it
	spec, err := s.admit(record.Spec{
		Owner: who.Owner, RequestID: c.RequestID, Fingerprint: c.fingerprint(), ProjectID: c.ProjectID,
		Argv: argv, Named: named, CWD: c.cwd, Dir: dir, TimeoutMs: int64(c.timeoutMs), OpenStdin: c.open,
		GraceMs: s.limits.Grace.Milliseconds(), OutputBytes: s.limits.OutputBytes,
	}, env)
	if err != nil {
		return record.Record{}, err
	}
	rec, err := s.root.Record(spec.CommandID).Load()
	if err != nil {
		return record.Record{}, fmt.Errorf("reading a new command: %w", err)
	}
	return rec, nil
}

// directory is where the command starts: in the project, by the rules of its
// tree. root is the directory of the project itself.
func (s *Service) directory(c checked) (root, dir string, err error) {
	tree, err := s.host.Open(c.ProjectID, direct.Any)
	if err != nil {
		return "", "", err
	}
	defer tree.Close()
	dir, err = tree.Directory(c.cwd)
	var refused *fault.Error
	if errors.As(err, &refused) {
		named := *refused
		named.Message = strings.Replace(named.Message, "path", "cwd", 1)
		return "", "", &named
	}
	return tree.Dir(), dir, err
}

// admit records one more command and starts its supervisor, if there is room.
func (s *Service) admit(spec record.Spec, env []string) (record.Spec, error) {
	launched, spec, err := s.launch(spec, env)
	if err != nil {
		return record.Spec{}, err
	}
	select {
	case <-launched:
	case <-time.After(startTime): // a machine under load: the command is pending
	case <-s.ctx.Done():
	}
	return spec, nil
}

// startTime is how long a run waits for its command to be executed.
const startTime = 5 * time.Second

func (s *Service) launch(spec record.Spec, env []string) (launched <-chan struct{}, _ record.Spec, err error) {
	s.launches.RLock()
	defer s.launches.RUnlock()
	if err := s.closing(); err != nil {
		return nil, record.Spec{}, err
	}
	s.start.Lock()
	if err := s.room(record.OwnerTag(spec.Owner)); err != nil {
		s.start.Unlock()
		return nil, record.Spec{}, err
	}
	spec, held, err := s.root.Create(spec)
	if s.started++; s.started%sweepEvery == 0 {
		select {
		case s.sweeps <- struct{}{}:
		default:
		}
	}
	s.start.Unlock()
	if err != nil {
		return nil, record.Spec{}, fmt.Errorf("recording a command: %w", err)
	}
	defer held.Close()
	d := s.root.Record(spec.CommandID)
	launched, err = s.spawn(d, spec, held, env)
	if err == nil {
		return launched, spec, nil
	}
	s.log.Error("could not start a supervisor", "commandId", spec.CommandID, "error", err)
	// The lock is still held, so it is certain that nothing ran.
	err = d.SetStatus(record.Status{
		State: record.Failed, EndedAt: s.now().UnixMilli(),
		Error: &record.Error{Code: SupervisorFailed.Code, Message: "The supervisor of the command could not be started."},
	})
	d.Ended(spec)
	done := make(chan struct{})
	close(done)
	return done, spec, err
}

// room refuses when too many commands run already.
func (s *Service) room(owner string) error {
	for _, settled := range []bool{false, true} {
		active, err := s.root.Active()
		if err != nil {
			return fmt.Errorf("counting commands: %w", err)
		}
		own := 0
		for _, tag := range active {
			if tag == owner {
				own++
			}
		}
		switch {
		case own < s.limits.RunningPerOwner && len(active) < s.limits.RunningPerHost:
			return nil
		case settled && own >= s.limits.RunningPerOwner:
			return TooManyCommands.Newf("%d commands of this owner run already, which is the most.", own)
		case settled:
			return TooManyCommands.Newf("%d commands run on this host already, which is the most.", len(active))
		}
		s.settleActive(active) // some may have ended without a word
	}
	return nil
}

func (s *Service) settleActive(active map[string]string) {
	for id := range active {
		rec, alive, err := s.root.Settle(id)
		if err == nil && !alive {
			s.root.Record(id).Ended(rec.Spec)
		}
		if errors.Is(err, fs.ErrNotExist) {
			s.root.Forget(id)
		}
	}
}
