package commands

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/commands/output"
	"agentrelay/internal/direct/commands/record"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
)

// ReadDirectCommand answers a command's receipt and output, which it does not
// change. Asked by requestId it settles: a request that is not here becomes one
// that never starts. Refusals: invalid_arguments, unknown_direct_command,
// too_many_unknown_requests.
func (s *Service) ReadDirectCommand(ctx context.Context, who principal.Principal, in ReadDirectCommandIn) (ReadDirectCommandOut, error) {
	p, err := checkPage(in.Cursor, in.Limit)
	if err != nil {
		return ReadDirectCommandOut{}, err
	}
	wait, err := checkWait(in.WaitMs)
	if err != nil {
		return ReadDirectCommandOut{}, err
	}
	rec, err := s.asked(ctx, who, in)
	if err != nil {
		return ReadDirectCommandOut{}, err
	}
	o, err := s.output(rec, p)
	if err == nil && wait > 0 && len(o.Events) == 0 && !o.Truncated && !rec.Status.State.Final() {
		if rec, err = s.await(ctx, rec, max(o.NextCursor, p.cursor), wait); err == nil {
			o, err = s.output(rec, p)
		}
	}
	if err != nil {
		return ReadDirectCommandOut{}, err
	}
	return ReadDirectCommandOut{s.receipt(rec), o}, nil
}

// asked finds the record of a read.
func (s *Service) asked(ctx context.Context, who principal.Principal, in ReadDirectCommandIn) (record.Record, error) {
	if (in.CommandID == nil) == (in.RequestID == nil) {
		return record.Record{}, direct.Invalid("commandId", "or requestId must be given, and not both")
	}
	if in.CommandID != nil {
		return s.find(who.Owner, *in.CommandID)
	}
	if err := checkID("requestId", *in.RequestID); err != nil {
		return record.Record{}, err
	}
	id := record.Name(who.Owner, *in.RequestID)
	unlock, err := s.keys.Acquire(ctx, id) // a run of it that is under way here comes first
	if err != nil {
		return record.Record{}, err
	}
	defer unlock()
	rec, err := s.settled(who.Owner, *in.RequestID, "")
	if errors.Is(err, fs.ErrNotExist) {
		if err := s.tombstones.another(who.Owner, s.now()); err != nil {
			return record.Record{}, err
		}
		if err := s.root.Entomb(who.Owner, *in.RequestID); err != nil {
			return record.Record{}, fmt.Errorf("closing a request that never arrived: %w", err)
		}
		rec, _, err = s.root.Settle(id)
	}
	if err != nil {
		return record.Record{}, fmt.Errorf("looking a command up: %w", err)
	}
	return rec, nil
}

// find settles a command of an owner; any owner's if owner is "".
func (s *Service) find(owner, id string) (record.Record, error) {
	unknown := UnknownCommand.New("commandId names no command of this owner on this host.")
	if !record.IsName(id) {
		return record.Record{}, unknown
	}
	rec, _, err := s.root.Settle(id)
	if errors.Is(err, fs.ErrNotExist) || err == nil && owner != "" && !s.owns(owner, rec.Owner) {
		return record.Record{}, unknown
	}
	if err != nil {
		return record.Record{}, fmt.Errorf("looking a command up: %w", err)
	}
	return rec, nil
}

// output answers a page. The record was read before, so that the output of a
// command that has ended is whole.
func (s *Service) output(rec record.Record, p page) (Output, error) {
	dir := string(s.root.Record(rec.CommandID))
	final := rec.Status.State.Final()
	if !output.Exists(dir) {
		end := max(p.cursor, rec.Status.Output)
		return Output{Events: []output.Event{}, NextCursor: end, LostCount: end - p.cursor, OutputAvailable: !final}, nil
	}
	got, err := output.Read(dir, p.cursor, p.limit, rec.Status.Output)
	if err != nil {
		return Output{}, err
	}
	return Output{got.Events, got.Next, got.Lost, got.More, true}, nil
}

// await waits until a command has output after a position, or has ended, or the
// time is up, and answers the record as it is then.
func (s *Service) await(ctx context.Context, rec record.Record, after int64, wait time.Duration) (record.Record, error) {
	select {
	case s.waits <- struct{}{}:
		defer func() { <-s.waits }()
	default:
		return rec, nil // too many wait; this one asks again
	}
	limited, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	err := s.news(limited, rec, after)
	if ctx.Err() != nil {
		return record.Record{}, ctx.Err()
	}
	if err != nil && limited.Err() == nil {
		return record.Record{}, err
	}
	rec, _, err = s.root.Settle(rec.CommandID)
	return rec, err
}

// awaitEnd waits until a command has ended.
func (s *Service) awaitEnd(ctx context.Context, id string) (record.Record, error) {
	rec, alive, err := s.root.Settle(id)
	if err != nil || !alive {
		return rec, err
	}
	if err := s.news(ctx, rec, record.UntilEnd); err != nil {
		return record.Record{}, err
	}
	rec, _, err = s.root.Settle(id)
	return rec, err
}

// retryAfter is how soon a supervisor is asked again that starts or ends just
// now, and so does not listen.
const retryAfter = 20 * time.Millisecond

// news returns when a command has output after a position or has ended.
func (s *Service) news(ctx context.Context, rec record.Record, after int64) error {
	for {
		_, err := record.Ask(ctx, rec.Socket, record.Request{Op: record.OpWait, After: after})
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		_, alive, err := s.root.Settle(rec.CommandID)
		if err != nil || !alive {
			return err
		}
		if err := pause(ctx, retryAfter); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// receipt is a record as callers see it.
func (s *Service) receipt(rec record.Record) Receipt {
	st := rec.Status
	r := Receipt{
		CommandID: rec.CommandID, RequestID: rec.RequestID, HostID: s.host.ID(), ProjectID: rec.ProjectID,
		Argv: rec.Argv, CWD: rec.CWD, State: st.State, ExitCode: st.ExitCode, Signal: st.Signal,
		CreatedAt: at(rec.CreatedAt), StartedAt: at(st.StartedAt), EndedAt: at(st.EndedAt), DetachedProcesses: st.Detached,
	}
	switch {
	case r.Argv == nil:
		r.Argv = []string{}
	case rec.Named != "":
		r.Argv = append([]string{rec.Named}, r.Argv[1:]...)
	}
	if st.Error != nil {
		r.Error = &ReceiptError{Code: st.Error.Code, Message: st.Error.Message}
		if i := slices.IndexFunc(receiptKinds(), func(k fault.Kind) bool { return k.Code == st.Error.Code }); i >= 0 {
			r.Error.Hint = receiptKinds()[i].Hint
		}
	}
	return r
}
