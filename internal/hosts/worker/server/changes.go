package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/commands"
	"agentrelay/internal/direct/commands/record"
	"agentrelay/internal/direct/files"
	"agentrelay/internal/direct/transfers"
	"agentrelay/internal/fault"
	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/worker/wire"
	"agentrelay/internal/principal"
	"agentrelay/internal/tool"
)

// changeTimeout bounds a change, which goes on when its caller is gone.
const changeTimeout = 5 * time.Minute

// change is what a tool that changes something does besides its call.
type change struct {
	// durable says that the record must be on disk before the change: what the
	// change leaves doesn't tell that it was begun.
	durable bool
	// waits says that the call only waits once its effect is on record elsewhere,
	// so its end may end it.
	waits bool
	// settle finds out what became of a change that was begun and whose end is
	// not on record, from what it changed. op is its record.
	settle func(ctx context.Context, who principal.Principal, arguments json.RawMessage, op operation) (any, error)
}

func (w *worker) changes() map[string]change {
	again := func(call tool.Call) change {
		return change{durable: true, settle: func(ctx context.Context, who principal.Principal, arguments json.RawMessage, _ operation) (any, error) {
			return call(ctx, who, arguments)
		}}
	}
	return map[string]change{
		"write_direct_file":  {durable: true, settle: settles(w.settleWrite)},
		"edit_direct_file":   {durable: true, settle: settles(w.settleEdit)},
		"run_direct_command": {waits: true, settle: settles(w.settleRun)},
		// Both have a key of their own, under which they are done once.
		"write_direct_command_input": again(tool.Calls(w.storedInput)),
		"cancel_direct_command":      again(tool.Calls(w.CancelDirectCommand)),
	}
}

// settles makes a settle of a method.
func settles[In, Out any](method func(context.Context, principal.Principal, In, operation) (Out, error)) func(context.Context, principal.Principal, json.RawMessage, operation) (any, error) {
	return func(ctx context.Context, who principal.Principal, arguments json.RawMessage, op operation) (any, error) {
		return tool.Calls(func(ctx context.Context, who principal.Principal, in In) (Out, error) {
			return method(ctx, who, in, op)
		})(ctx, who, arguments)
	}
}

// do makes a change that has an id, once.
func (w *worker) do(ctx context.Context, c *changeable, from caller, arguments json.RawMessage) (any, error) {
	whole := ctx
	if !c.waits {
		var cancel context.CancelFunc
		whole, cancel = context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
		defer cancel()
	}
	release, err := w.ops.take(ctx, from.operation)
	if err != nil {
		return nil, err
	}
	defer release()
	op := operation{Known: c.waits && w.known(ctx, from.who, arguments)}
	before, err := w.ops.begin(from.operation, op, c.durable)
	switch {
	case err != nil:
		return nil, err
	case before.State == done:
		return before.answer()
	case before.State != unknown:
		return nil, wire.Withdrawn.New("This change was answered as not made before it arrived.")
	}
	out, err := c.call(whole, from.who, arguments)
	if c.waits && err == nil {
		return out, nil // the command's own record says the rest
	}
	if !lasting(err) {
		return nil, err // what became of it is found out when that is asked
	}
	w.ended(from.operation, out, err)
	return out, err
}

// lasting reports whether an outcome is certain: the answer, or a refusal.
func lasting(err error) bool {
	var refused *fault.Error
	return err == nil || errors.As(err, &refused) && refused.Code != fault.Internal.Code
}

// ended records how a change ended.
func (w *worker) ended(id string, out any, err error) operation {
	op := operation{State: done}
	if err != nil {
		op.Error = wire.FailureOf(err)
	} else {
		op.Result = tool.Encode(out)
	}
	if err := w.ops.add(id, op, false); err != nil {
		w.o.Log.Error("the end of a change could not be recorded; it is found out when that is asked", "error", err)
	}
	return op
}

func (op operation) answer() (any, error) {
	if op.Error != nil {
		return nil, op.Error.Err()
	}
	return op.Result, nil
}

// settle answers what became of a change, and has it that from then on.
func (w *worker) settle(ctx context.Context, c *changeable, from caller, arguments json.RawMessage) (any, error) {
	release, err := w.ops.take(ctx, from.operation)
	if err != nil {
		return nil, err
	}
	defer release()
	op, err := w.ops.read(from.operation)
	if err != nil {
		return nil, err
	}
	switch op.State {
	case done:
		return op.answer()
	case unknown:
		if !c.waits { // a run that never arrived has a tombstone under its own key
			op = operation{State: withdrawn}
			if err := w.ops.add(from.operation, op, false); err != nil {
				return nil, err
			}
		}
	}
	if op.State == withdrawn {
		return nil, wire.Withdrawn.New("The connection was lost before the host got this.")
	}
	out, err := c.settle(ctx, from.who, arguments, op)
	if !c.waits && lasting(err) {
		w.ended(from.operation, out, err)
	}
	return out, err
}

// has reports whether a file has a content now; nil is that there is none.
func (w *worker) has(ctx context.Context, projectID, path string, sum *string) (bool, error) {
	err := w.Placements().Check(ctx, transfers.Placement{ProjectID: projectID, Path: path, ExpectedSHA256: sum})
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, direct.PathNotFound): // nor its directory
		return sum == nil, nil
	case errors.Is(err, files.HashConflict), errors.Is(err, files.FileExists):
		return false, nil
	}
	return false, err
}

func changedSince() error {
	return hosts.OutcomeUnknown.New("The worker was ended while it changed the file, and something else has changed the file since.").
		WithHint("Read the file: it shows what is there now. Then write or edit it again if that is still wanted.")
}

// settleWrite looks at the file: it is replaced whole or not at all.
func (w *worker) settleWrite(ctx context.Context, _ principal.Principal, in files.WriteDirectFileIn, _ operation) (files.WriteDirectFileOut, error) {
	raw := sha256.Sum256([]byte(in.Content))
	sum := hex.EncodeToString(raw[:])
	made, err := w.has(ctx, in.ProjectID, in.Path, &sum)
	if err != nil {
		return files.WriteDirectFileOut{}, err
	}
	if made {
		out, err := w.Files.WriteDirectFile(ctx, in) // finds its content in place
		if errors.Is(err, files.HashConflict) || errors.Is(err, files.FileExists) {
			return out, changedSince() // with another mode
		}
		out.Duplicate = false
		return out, err
	}
	before, err := w.has(ctx, in.ProjectID, in.Path, in.ExpectedSHA256)
	switch {
	case err != nil:
		return files.WriteDirectFileOut{}, err
	case before:
		return files.WriteDirectFileOut{}, wire.Withdrawn.New("The worker was ended before it changed the file.")
	}
	return files.WriteDirectFileOut{}, changedSince()
}

// settleEdit looks at the file and at the results of edits, which are on disk
// before their edits.
func (w *worker) settleEdit(ctx context.Context, _ principal.Principal, in files.EditDirectFileIn, _ operation) (files.EditDirectFileOut, error) {
	before, err := w.has(ctx, in.ProjectID, in.Path, &in.ExpectedSHA256)
	switch {
	case err != nil:
		return files.EditDirectFileOut{}, err
	case before:
		return files.EditDirectFileOut{}, wire.Withdrawn.New("The worker was ended before it changed the file.")
	}
	out, err := w.Files.EditDirectFile(ctx, in) // a file with another hash is not edited
	if errors.Is(err, files.HashConflict) {
		return out, changedSince()
	}
	out.Duplicate = false
	return out, err
}

// known reports whether a run's command is there already. It settles nothing.
func (w *worker) known(ctx context.Context, who principal.Principal, arguments json.RawMessage) bool {
	var in commands.RunDirectCommandIn
	if json.Unmarshal(arguments, &in) != nil {
		return false
	}
	return w.recorded(ctx, who, in.RequestID)
}

// recorded looks under the names of former owners too.
func (w *worker) recorded(ctx context.Context, who principal.Principal, requestID string) bool {
	limit := 1
	for _, owner := range append([]string{who.Owner}, w.former...) {
		id := record.Name(owner, requestID)
		if _, err := w.Commands.ReadDirectCommand(ctx, who, commands.ReadDirectCommandIn{CommandID: &id, Limit: &limit}); err == nil {
			return true
		}
	}
	return false
}

// settleRun asks by requestId, which makes a tombstone of a run that never
// arrived. After that there is a record, so that running it runs nothing.
func (w *worker) settleRun(ctx context.Context, who principal.Principal, in commands.RunDirectCommandIn, op operation) (commands.RunDirectCommandOut, error) {
	known := op.Known
	if op.State == unknown {
		known = w.recorded(ctx, who, in.RequestID)
	}
	limit := 1
	if _, err := w.Commands.ReadDirectCommand(ctx, who, commands.ReadDirectCommandIn{RequestID: &in.RequestID, Limit: &limit}); err != nil {
		return commands.RunDirectCommandOut{}, fmt.Errorf("settling a run: %w", err)
	}
	out, err := w.RunDirectCommand(ctx, who, in)
	out.Duplicate = known
	return out, err
}
