package commands_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"agentrelay/internal/direct/commands"
	"agentrelay/internal/direct/commands/record"
	"agentrelay/internal/fault"
)

func TestStdin(t *testing.T) {
	h := newHost(t)
	if out := h.run("none", "cat; echo done"); text(*out.Output) != "done\n" {
		t.Fatalf("got %+v", out)
	}
	out := h.run("echo", "cat", noWait, openStdin)
	id := out.CommandID
	first := h.input(id, "i1", "one\n", false)
	if first.State != record.Accepted || first.Duplicate {
		t.Fatalf("got %+v", first)
	}
	if again := h.input(id, "i1", "one\n", false); again.State != record.Accepted || !again.Duplicate {
		t.Fatalf("got %+v", again)
	}
	_, err := h.WriteDirectCommandInput(context.Background(), owner, commands.WriteDirectCommandInputIn{CommandID: id, InputID: "i1", Text: new("other")})
	refused(t, err, fault.KeyConflict)
	if got, err := h.ReadDirectCommand(context.Background(), owner, commands.ReadDirectCommandIn{CommandID: &id, WaitMs: new(5000)}); err != nil || text(got.Output) != "one\n" {
		t.Fatalf("got %+v, %v", got, err)
	}
	h.restart()
	if again := h.input(id, "i1", "one\n", false); !again.Duplicate {
		t.Fatalf("got %+v", again)
	}
	h.input(id, "i2", "two", true)
	_, err = h.WriteDirectCommandInput(context.Background(), owner, commands.WriteDirectCommandInputIn{CommandID: id, InputID: "i3", Text: new("x")})
	if fault.From(err).Code != commands.StdinClosed.Code && fault.From(err).Code != commands.CommandEnded.Code {
		t.Fatalf("after eof: %v", err)
	}
	end := h.ended(id)
	if text(end.Output) != "one\ntwo" || *end.ExitCode != 0 {
		t.Fatalf("got %+v", end)
	}
	if again := h.input(id, "i2", "two", true); !again.Duplicate || again.State != record.Accepted || !again.EOF {
		t.Fatalf("after the end: %+v", again)
	}
	_, err = h.WriteDirectCommandInput(context.Background(), owner, commands.WriteDirectCommandInputIn{CommandID: id, InputID: "i9", EOF: true})
	refused(t, err, commands.CommandEnded)

	closed := h.run("closed", "sleep 20", noWait)
	_, err = h.WriteDirectCommandInput(context.Background(), owner, commands.WriteDirectCommandInputIn{CommandID: closed.CommandID, InputID: "i", Text: new("x")})
	refused(t, err, commands.StdinClosed)
	h.cancel(closed.CommandID)
}

func TestABlockedStdinBlocksNothing(t *testing.T) {
	h := newHost(t)
	out := h.run("deaf", "while :; do echo tick; sleep 0.05; done", noWait, openStdin)
	full := strings.Repeat("x", 65536)
	states := map[record.InputState]int{}
	for i := range 20 { // 1.25 MiB, with 64 KiB in the pipe
		states[h.input(out.CommandID, fmt.Sprint("i", i), full, false).State]++
	}
	if states[record.Rejected] == 0 || states[record.Accepted] < 16 {
		t.Fatalf("got %v", states)
	}
	if other := h.run("other", "echo fine"); text(*other.Output) != "fine\n" {
		t.Fatalf("got %+v", other)
	}
	if got := h.read(out.CommandID); !strings.Contains(text(got.Output), "tick") {
		t.Fatalf("got %+v", got)
	}
	h.cancel(out.CommandID)
	if end := h.ended(out.CommandID); end.State != record.Cancelled {
		t.Fatalf("got %+v", end)
	}
	if again := h.input(out.CommandID, "i19", full, false); again.State != record.Rejected || !again.Duplicate {
		t.Fatalf("got %+v", again)
	}
}
