package commands_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentrelay/internal/direct/commands"
	"agentrelay/internal/direct/commands/record"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
)

func TestCapsOnRunningCommands(t *testing.T) {
	h := newHost(t, func(h *host) { h.options.Limits.RunningPerOwner, h.options.Limits.RunningPerHost = 2, 3 })
	var ids []string
	for i := range 2 {
		ids = append(ids, h.run(fmt.Sprint("r", i), "sleep 60", noWait).CommandID)
	}
	_, err := h.tryRun("r2", "true")
	refused(t, err, commands.TooManyCommands)
	b := principal.Owner("local-owner:b")
	third, err := h.RunDirectCommand(context.Background(), b, commands.RunDirectCommandIn{ProjectID: "p", RequestID: "r", Argv: []string{"sleep", "60"}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.RunDirectCommand(context.Background(), b, commands.RunDirectCommandIn{ProjectID: "p", RequestID: "s", Argv: []string{"true"}})
	refused(t, err, commands.TooManyCommands)
	if dup := h.run("r1", "sleep 60", noWait); !dup.Duplicate {
		t.Fatalf("got %+v", dup)
	}
	h.cancel(ids[0])
	h.ended(ids[0])
	if out := h.run("r2", "true"); out.State != record.Exited {
		t.Fatalf("got %+v", out)
	}
	h.StopCommand(context.Background(), third.CommandID)
	h.cancel(ids[1])
	h.ended(ids[1])
}

func TestOwnerSeesAllCommands(t *testing.T) {
	h := newHost(t)
	var want []string
	for i := range 7 {
		out := h.run(fmt.Sprint("r", i), "echo "+fmt.Sprint(i))
		want = append([]string{out.CommandID}, want...)
		time.Sleep(2 * time.Millisecond)
	}
	var got []string
	var cursor *string
	for {
		page, err := h.AllCommands(context.Background(), commands.AllCommandsIn{Limit: new(3), Cursor: cursor, Owner: owner.Owner, State: record.Exited})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range page.Commands {
			got = append(got, c.CommandID)
		}
		if page.NextCursor == "" {
			break
		}
		cursor = &page.NextCursor
	}
	if !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	show, err := h.ShowCommand(context.Background(), commands.ShowCommandIn{CommandID: want[0]})
	if err != nil || show.Owner != owner.Owner || text(show.Output) != "6\n" || show.OutputBytes == 0 {
		t.Fatalf("got %+v, %v", show, err)
	}
	if page, err := h.AllCommands(context.Background(), commands.AllCommandsIn{Owner: "local-owner:b"}); err != nil || len(page.Commands) != 0 {
		t.Fatalf("got %+v, %v", page, err)
	}
	_, err = h.AllCommands(context.Background(), commands.AllCommandsIn{Cursor: new("x")})
	refused(t, err, fault.InvalidCursor)
}

func TestSweepingKeepsTheReceipt(t *testing.T) {
	var ahead atomic.Int64 // of the clock
	h := newHost(t, func(h *host) {
		h.options.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		h.options.Limits.StoredPerOwner = 2
	})
	var ids []string
	for i := range 4 {
		ahead.Add(int64(time.Second))
		ids = append(ids, h.run(fmt.Sprint("r", i), "echo output").CommandID)
	}
	check := func(want ...bool) {
		t.Helper()
		if err := h.Sweep(); err != nil {
			t.Fatal(err)
		}
		for i, id := range ids {
			got := h.read(id)
			if got.OutputAvailable != want[i] || got.State != record.Exited || (got.LostCount == 7) == want[i] {
				t.Fatalf("command %d: %+v", i, got)
			}
		}
	}
	check(false, false, true, true)
	ahead.Add(int64(31 * 24 * time.Hour))
	check(false, false, false, false)
	if dup := h.run("r0", "echo output"); !dup.Duplicate || dup.Output.OutputAvailable {
		t.Fatalf("got %+v", dup)
	}
}

func TestALongStateDirectoryUsesTheRuntimeDirectory(t *testing.T) {
	runtime := t.TempDir()
	os.Chmod(runtime, 0o700)
	h := newHost(t, func(h *host) {
		h.state = filepath.Join(h.state, strings.Repeat("long", 25))
		h.options.StateDir, h.options.RuntimeDir = h.state, filepath.Join(runtime, "r")
	})
	out := h.run("r", "cat", noWait, openStdin)
	h.input(out.CommandID, "i", "hello", true)
	if end := h.ended(out.CommandID); text(end.Output) != "hello" {
		t.Fatalf("got %+v", end)
	}
	eventually(t, "the socket is removed", func() bool {
		left, err := os.ReadDir(filepath.Join(runtime, "r"))
		return err == nil && len(left) == 0
	})
}
