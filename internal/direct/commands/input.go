package commands

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/commands/record"
	"agentrelay/internal/principal"
)

// askTime is how long a supervisor may take to answer what it answers at once.
const askTime = 5 * time.Second

// WriteDirectCommandInput writes to a command's stdin, once for an inputId.
// Refusals: invalid_arguments, unknown_direct_command, key_conflict,
// stdin_closed, command_ended.
func (s *Service) WriteDirectCommandInput(ctx context.Context, who principal.Principal, in WriteDirectCommandInputIn) (WriteDirectCommandInputOut, error) {
	input, err := checkInput(in)
	if err != nil {
		return WriteDirectCommandInputOut{}, err
	}
	rec, err := s.find(who.Owner, in.CommandID)
	if err != nil {
		return WriteDirectCommandInputOut{}, err
	}
	out := WriteDirectCommandInputOut{CommandID: in.CommandID, InputID: in.InputID, EOF: in.EOF}
	a, err := s.write(ctx, rec, input)
	switch {
	case err != nil:
		return WriteDirectCommandInputOut{}, err
	case a.Refused == record.InputConflict:
		return WriteDirectCommandInputOut{}, keyConflict("inputId was used for other input to this command.")
	case a.Refused == record.StdinClosed:
		return WriteDirectCommandInputOut{}, StdinClosed.New("The command's stdin is closed.")
	case a.Input == nil:
		out.State = record.InputUnknown
	default:
		out.State, out.Duplicate = a.Input.State, a.Duplicate
	}
	return out, nil
}

func checkInput(in WriteDirectCommandInputIn) (record.Input, error) {
	if err := checkID("inputId", in.InputID); err != nil {
		return record.Input{}, err
	}
	text := ""
	if in.Text != nil {
		text = *in.Text
	}
	switch {
	case text == "" && !in.EOF:
		return record.Input{}, direct.Invalid("text", "must not be empty unless eof is true")
	case len(text) > MaxInputBytes:
		return record.Input{}, direct.Invalid("text", fmt.Sprintf("must have at most %d bytes", MaxInputBytes))
	case !utf8.ValidString(text):
		return record.Input{}, direct.Invalid("text", "must be valid UTF-8")
	}
	return record.Input{InputID: in.InputID, Text: text, EOF: in.EOF, Fingerprint: inputFingerprint(text, in.EOF)}, nil
}

// write asks the supervisor to write an input, and the record when it has ended.
// An answer without an input means that nobody could be asked.
func (s *Service) write(ctx context.Context, rec record.Record, input record.Input) (record.Answer, error) {
	limited, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	for !rec.Status.State.Final() {
		// Repeating is safe, whatever became of the last question: the supervisor
		// knows an input that it has stored.
		a, err := record.Ask(limited, rec.Socket, record.Request{Op: record.OpInput, Input: &input})
		if err == nil {
			return a, nil
		}
		if ctx.Err() != nil {
			return record.Answer{}, ctx.Err()
		}
		if limited.Err() != nil {
			return record.Answer{}, nil
		}
		if rec, _, err = s.root.Settle(rec.CommandID); err != nil {
			return record.Answer{}, err
		}
		_ = pause(limited, retryAfter) // the next question finds that time is up
	}
	stored, err := s.root.Record(rec.CommandID).Inputs()
	if err != nil {
		return record.Answer{}, fmt.Errorf("reading the inputs of a command: %w", err)
	}
	was, ok := stored[input.InputID]
	switch {
	case !ok:
		return record.Answer{}, CommandEnded.New("The command has ended.")
	case was.Fingerprint != input.Fingerprint:
		return record.Answer{Refused: record.InputConflict}, nil
	}
	return record.Answer{Input: &was, Duplicate: true}, nil
}

// cancelTime is how long a cancellation waits for the command to end, so that
// most answers are final.
const cancelTime = 500 * time.Millisecond

// CancelDirectCommand asks a command to end: its group gets TERM, and KILL after
// the grace. It answers soon, whether or not the command has ended by then.
// Refusals: unknown_direct_command.
func (s *Service) CancelDirectCommand(ctx context.Context, who principal.Principal, in CancelDirectCommandIn) (CancelDirectCommandOut, error) {
	rec, err := s.find(who.Owner, in.CommandID)
	if err != nil {
		return CancelDirectCommandOut{}, err
	}
	return s.stop(ctx, rec)
}

func (s *Service) stop(ctx context.Context, rec record.Record) (CancelDirectCommandOut, error) {
	if rec.Status.State.Final() {
		return CancelDirectCommandOut{s.receipt(rec), false}, nil
	}
	if err := s.root.Record(rec.CommandID).RequestCancel(); err != nil {
		return CancelDirectCommandOut{}, fmt.Errorf("cancelling a command: %w", err)
	}
	// A supervisor that does not listen yet finds the word that was left.
	limited, cancel := context.WithTimeout(ctx, askTime)
	_, err := record.Ask(limited, rec.Socket, record.Request{Op: record.OpCancel})
	cancel()
	if err != nil && !errors.Is(err, record.ErrNobody) && ctx.Err() == nil {
		s.log.Warn("a supervisor did not confirm a cancellation", "commandId", rec.CommandID, "error", err)
	}
	rec, err = s.await(ctx, rec, record.UntilEnd, cancelTime)
	if err != nil {
		return CancelDirectCommandOut{}, err
	}
	return CancelDirectCommandOut{s.receipt(rec), true}, nil
}
