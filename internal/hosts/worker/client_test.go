package worker_test

import (
	"testing"

	"agentrelay/internal/direct/commands"
	"agentrelay/internal/direct/files"
)

func TestRoundTrip(t *testing.T) {
	m := newMachine(t)
	m.banner = "printf 'Welcome to far!'; echo; printf 'no newline'; "
	m.write("a.txt", "hello\n")
	c := m.open()
	at, err := c.At(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	read, err := at.ReadDirectFile(t.Context(), files.ReadDirectFileIn{ProjectID: "p", Path: "a.txt"})
	if err != nil || read.Content != "hello\n" || read.HostID != "far" {
		t.Fatalf("%+v, %v", read, err)
	}
	wrote, err := at.WriteDirectFile(t.Context(), files.WriteDirectFileIn{ProjectID: "p", Path: "b.txt", Content: "x"})
	if err != nil || !wrote.Created || m.read("b.txt") != "x" {
		t.Fatalf("%+v, %v", wrote, err)
	}
	ran, err := at.RunDirectCommand(t.Context(), me(), commands.RunDirectCommandIn{ProjectID: "p", RequestID: "r1", Argv: []string{"echo", "hi"}, WaitMs: ptr(5000)})
	if err != nil || ran.Output == nil || len(ran.Output.Events) != 1 || ran.Output.Events[0].Text != "hi\n" {
		t.Fatalf("%+v, %v", ran, err)
	}
	if s := c.Status(); s.Worker == nil || s.Worker.Outdated {
		t.Errorf("%+v", s)
	}
}
