package record

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"net"
	"os"
	"time"
)

// A supervisor answers on its socket: one JSON value in, one out, a connection
// each.

// The operations of a [Request].
const (
	// OpWait waits for output after Request.After, or for the end.
	OpWait = "wait"
	// OpInput writes Request.Input.
	OpInput = "input"
	// OpCancel stops the command.
	OpCancel = "cancel"
)

// UntilEnd is the After of a wait for the end.
const UntilEnd = math.MaxInt64

// Request is a question to a supervisor.
type Request struct {
	Op    string `json:"op"`
	After int64  `json:"after,omitempty"`
	Input *Input `json:"input,omitempty"`
}

// Answer is a supervisor's answer.
type Answer struct {
	// Ended says that the record has its final status.
	Ended bool `json:"ended,omitempty"`
	// Input is the stored input of an OpInput.
	Input *Input `json:"input,omitempty"`
	// Duplicate says that the input had been stored before.
	Duplicate bool `json:"duplicate,omitempty"`
	// Refused says why an input was not even stored.
	Refused Refusal `json:"refused,omitempty"`
}

// Refusal is why an input can't be stored.
type Refusal string

// The refusals.
const (
	StdinClosed   Refusal = "stdin_closed"   // it was never open, or an earlier input ended it
	InputConflict Refusal = "input_conflict" // the inputId has another text or eof
)

// MaxRequest is the most bytes of a request.
const MaxRequest = 1 << 20

// ErrNobody says that no supervisor listens: it does not yet, or not any more.
var ErrNobody = errors.New("the command's supervisor does not listen")

// Ask asks the supervisor of a command and waits for its answer as long as ctx
// allows. [ErrNobody] means that the request has not been read; any other error
// leaves open whether it was.
func Ask(ctx context.Context, socket string, q Request) (Answer, error) {
	raw, err := json.Marshal(q)
	if err != nil {
		return Answer{}, err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		if ctx.Err() != nil {
			return Answer{}, ctx.Err()
		}
		return Answer{}, errors.Join(ErrNobody, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := conn.Write(append(raw, '\n')); err != nil {
		return Answer{}, askError(ctx, err)
	}
	var a Answer
	if err := json.NewDecoder(conn).Decode(&a); err != nil {
		return Answer{}, askError(ctx, err)
	}
	return a, nil
}

func askError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// Input is something written to a command's stdin, as it is stored. An input is
// in the record before it is answered, so that it is written once.
type Input struct {
	InputID string `json:"inputId"`
	// Text is in requests only; the record has its fingerprint.
	Text        string     `json:"text,omitempty"`
	Fingerprint string     `json:"fingerprint"` // of text and eof, hex
	EOF         bool       `json:"eof,omitempty"`
	State       InputState `json:"state"`
}

// InputState is what became of an input.
type InputState string

// The states of inputs.
const (
	// Accepted inputs are written in their order as fast as the command reads.
	Accepted InputState = "accepted"
	// Rejected inputs are never written: too much waited to be read already.
	Rejected InputState = "rejected"
	// InputUnknown is of inputs whose supervisor can't be asked.
	InputUnknown InputState = "unknown"
)

// Inputs reads the stored inputs of a command.
func (d Dir) Inputs() (map[string]Input, error) {
	raw, err := os.ReadFile(d.file(inputsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := map[string]Input{}
	for line := range bytes.Lines(raw) {
		var in Input
		if err := json.Unmarshal(line, &in); err != nil {
			break // torn off by a kill: it was not answered
		}
		out[in.InputID] = in
	}
	return out, nil
}

// AddInput stores an input; it is on disk when it returns.
func (d Dir) AddInput(in Input) error {
	in.Text = ""
	raw, err := json.Marshal(in)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(d.file(inputsFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(raw, '\n'))
	return errors.Join(err, f.Sync(), f.Close(), syncDir(string(d)))
}
