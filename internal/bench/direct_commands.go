package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/google/uuid"

	"agentrelay/internal/direct/commands"
)

// commandsARound is how many commands each side starts in one round.
const commandsARound = 10

// commandStarts compares the time from a call until what the command printed is
// there. The gateway's command has a supervisor of its own, a record that
// outlives crashes, and rows in the audit log; a plain child has nothing.
func commandStarts(ctx context.Context, b *bench) ([]row, error) {
	w, err := openWorkspace(ctx, b, "")
	if err != nil {
		return nil, err
	}
	defer w.close()
	dc, err := startCommander(ctx, b)
	if err != nil {
		return nil, err
	}
	defer dc.close()
	sides := []side{
		repeated(commandsARound, func() error { return w.echo(ctx, "local") }),
		repeated(commandsARound, plainEcho),
		repeated(commandsARound, func() error { return dc.echo(ctx) }),
	}
	if _, err := inTurns(1, sides...); err != nil {
		return nil, err
	}
	s, err := inTurns(directRounds, sides...)
	if err != nil {
		return nil, err
	}
	ours := milli(s.median(0))
	byCommander := s.ratio(0, 2)
	return []row{
		ratioed("run_direct_command, call to first output", ours, "fork and exec: "+milli(s.median(1)), s.ratio(0, 1)),
		ratioed("the same", ours, "Desktop Commander: "+milli(s.median(2)), byCommander).atMost(byCommander, 1, "1.0"),
	}, nil
}

// repeated measures the median time of n calls.
func repeated(n int, call func() error) side {
	return func() (float64, error) {
		times := make([]time.Duration, n)
		for i := range times {
			begun := time.Now()
			if err := call(); err != nil {
				return 0, err
			}
			times[i] = time.Since(begun)
		}
		return percentile(seconds(times), 50), nil
	}
}

func (w *workspace) echo(ctx context.Context, hostID string) error {
	var out commands.RunDirectCommandOut
	err := w.session.Call(ctx, "run_direct_command", map[string]any{
		"hostId": hostID, "projectId": project, "requestId": uuid.NewString(), "argv": []string{"echo", "hi"}, "waitMs": commands.MaxWaitMs,
	}, &out)
	if err != nil {
		return err
	}
	if out.Output == nil || len(out.Output.Events) == 0 || out.Output.Events[0].Text != "hi\n" {
		return fmt.Errorf("a command is %s without its output", out.State)
	}
	return nil
}

func plainEcho() error {
	out, err := exec.Command("echo", "hi").Output()
	if err == nil && string(out) != "hi\n" {
		err = errors.New("echo printed something else")
	}
	return err
}

func (c *commander) echo(ctx context.Context) error {
	text, err := c.call(ctx, "start_process", map[string]any{"command": "echo hi", "timeout_ms": commands.MaxWaitMs})
	if err == nil && !strings.Contains(text, "hi") {
		err = fmt.Errorf("a command of Desktop Commander has no output: %.300s", text)
	}
	return err
}
