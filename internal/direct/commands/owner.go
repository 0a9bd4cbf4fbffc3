package commands

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"agentrelay/internal/direct/commands/output"
	"agentrelay/internal/direct/commands/record"
	"agentrelay/internal/fault"
)

// OwnerCommand is a command as the owner's commands show it.
type OwnerCommand struct {
	Owner string `json:"owner"`
	Receipt
	// OutputBytes is what the output takes on disk.
	OutputBytes int64 `json:"outputBytes"`
}

// AllCommandsIn selects commands for [Service.AllCommands]. Empty fields select
// everything.
type AllCommandsIn struct {
	Owner     string
	ProjectID string
	State     record.State
	Limit     *int // 1..1000, nil is 200
	Cursor    *string
}

// AllCommandsOut is a page of commands, newest first.
type AllCommandsOut struct {
	Commands   []OwnerCommand `json:"commands"`
	NextCursor string         `json:"nextCursor,omitempty"`
}

// AllCommands answers a page of the commands of one owner or of all. Requests
// that never arrived are not among them. It is for the owner's own command line.
func (s *Service) AllCommands(ctx context.Context, in AllCommandsIn) (AllCommandsOut, error) {
	p, err := checkPage(nil, in.Limit)
	if err != nil {
		return AllCommandsOut{}, err
	}
	var before record.Entry
	if in.Cursor != nil {
		var ok bool
		if before, ok = record.ParseEntry(*in.Cursor); !ok {
			return AllCommandsOut{}, fault.InvalidCursor.New("cursor does not belong to this list.")
		}
	}
	out := AllCommandsOut{Commands: []OwnerCommand{}}
	var last record.Entry
	err = s.root.Newest(before, func(e record.Entry) (bool, error) {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		if in.Owner != "" && e.OwnerTag != record.OwnerTag(in.Owner) {
			return true, nil
		}
		rec, _, err := s.root.Settle(e.CommandID)
		if errors.Is(err, fs.ErrNotExist) || err == nil && rec.CreatedAt != e.CreatedAt {
			return true, nil // a crash came before the record
		}
		if err != nil {
			return false, fmt.Errorf("listing commands: %w", err)
		}
		if !in.selects(rec) {
			return true, nil
		}
		if len(out.Commands) == p.limit {
			last.Swept = false
			out.NextCursor = last.String()
			return false, nil
		}
		last = e
		out.Commands = append(out.Commands, s.ownerCommand(rec))
		return true, nil
	})
	return out, err
}

func (in AllCommandsIn) selects(rec record.Record) bool {
	return (in.Owner == "" || in.Owner == rec.Owner) && (in.ProjectID == "" || in.ProjectID == rec.ProjectID) &&
		(in.State == "" || in.State == rec.Status.State)
}

func (s *Service) ownerCommand(rec record.Record) OwnerCommand {
	return OwnerCommand{rec.Owner, s.receipt(rec), output.Size(string(s.root.Record(rec.CommandID)))}
}

// ShowCommandIn selects a command and a page of its output.
type ShowCommandIn struct {
	CommandID string
	Cursor    *int64
	Limit     *int
}

// ShowCommandOut is a command of any owner with a page of its output.
type ShowCommandOut struct {
	OwnerCommand
	Output
}

// ShowCommand answers a command of any owner. It is for the owner's own command
// line.
func (s *Service) ShowCommand(_ context.Context, in ShowCommandIn) (ShowCommandOut, error) {
	p, err := checkPage(in.Cursor, in.Limit)
	if err != nil {
		return ShowCommandOut{}, err
	}
	rec, err := s.find("", in.CommandID)
	if err != nil {
		return ShowCommandOut{}, err
	}
	o, err := s.output(rec, p)
	return ShowCommandOut{s.ownerCommand(rec), o}, err
}

// StopCommand cancels a command of any owner. It is for the owner's own command
// line.
func (s *Service) StopCommand(ctx context.Context, commandID string) (CancelDirectCommandOut, error) {
	rec, err := s.find("", commandID)
	if err != nil {
		return CancelDirectCommandOut{}, err
	}
	return s.stop(ctx, rec)
}

// FindProgram reports whether commands would find a program by its name, and the
// PATH in which it was looked for. It is for the owner's doctor.
func (s *Service) FindProgram(name string) (found bool, path string) {
	path = s.env.probed()
	return lookUp(name, path), path
}
