package worker_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentrelay/internal/direct/commands"
	"agentrelay/internal/direct/commands/record"
	"agentrelay/internal/direct/files"
	"agentrelay/internal/direct/transfers"
	"agentrelay/internal/fault"
	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/worker"
)

func sum(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:])
}

// rounds is how many times each end of a worker or connection is tried.
func rounds() int {
	if testing.Short() || raced {
		return 20
	}
	return 100
}

// disturb kills the worker, or loses the connection for a moment, some time
// after a call began.
func (m *machine) disturb(r *rand.Rand) (wait func()) {
	after, away := time.Duration(r.IntN(12_000))*time.Microsecond, time.Duration(r.IntN(80))*time.Millisecond
	cut := r.IntN(2) == 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		time.Sleep(after)
		if !cut {
			m.killWorker()
			return
		}
		m.cut("the cable was pulled.")
		time.Sleep(away)
		m.join()
	}()
	return func() { <-done }
}

// TestEndsAsItEnded loses workers and connections at random moments of changes.
// Each must be answered as what became of it, once.
func TestEndsAsItEnded(t *testing.T) {
	for name, round := range map[string]func(*testing.T, *machine, *worker.Client, int) func(){
		"write": writeRound, "edit": editRound, "run": runRound, "place": placeRound, "input": inputRounds(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			m.t = t
			c := m.open(worker.Impatient)
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			r := rand.New(rand.NewPCG(seed, 0))
			var later []func()
			for i := range rounds() {
				for c.Probe(t.Context()); ; c.Probe(t.Context()) { // so that there is something to lose
					if _, err := c.At(t.Context()); err == nil {
						break
					}
					time.Sleep(5 * time.Millisecond)
				}
				wait := m.disturb(r)
				later = append(later, round(t, m, c, i))
				wait()
			}
			// Nor does anything change after it was answered.
			for _, check := range later {
				check()
			}
		})
	}
}

// unsent reports a refusal that says that nothing was done.
func unsent(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, hosts.Unavailable) {
		t.Fatalf("a change ended with %v", err)
	}
}

func writeRound(t *testing.T, m *machine, c *worker.Client, i int) func() {
	name, content := fmt.Sprintf("w%d", i), strings.Repeat("x", i*100)
	out, err := c.WriteDirectFile(t.Context(), files.WriteDirectFileIn{ProjectID: "p", Path: name, Content: content})
	if err != nil {
		unsent(t, err)
	} else if !out.Created || out.Duplicate || out.SHA256 != sum(content) {
		t.Fatalf("%+v", out)
	}
	return func() {
		_, there := os.Stat(filepath.Join(m.project, name))
		if (there == nil) != (err == nil) || err == nil && m.read(name) != content {
			t.Errorf("%s: answered %v, and it is there: %v", name, err, there)
		}
	}
}

func editRound(t *testing.T, m *machine, c *worker.Client, i int) func() {
	name := fmt.Sprintf("e%d", i)
	m.write(name, "one two")
	out, err := c.EditDirectFile(t.Context(), files.EditDirectFileIn{ProjectID: "p", Path: name, ExpectedSHA256: sum("one two"), OldText: "two", NewText: "two two"})
	want := "one two two"
	if err != nil {
		unsent(t, err)
		want = "one two"
	} else if out.Duplicate || out.Replacements != 1 || out.Diff == "" {
		t.Fatalf("%+v", out)
	}
	return func() {
		if got := m.read(name); got != want {
			t.Errorf("%s: answered %v, and it has %q", name, err, got)
		}
	}
}

func runRound(t *testing.T, m *machine, c *worker.Client, i int) func() {
	name := fmt.Sprintf("r%d", i)
	out, err := c.RunDirectCommand(t.Context(), me(), commands.RunDirectCommandIn{
		ProjectID: "p", RequestID: name, Argv: []string{"sh", "-c", "echo ran >>" + name}, WaitMs: ptr(10_000),
	})
	want := ""
	switch {
	case err != nil:
		unsent(t, err)
	case out.Duplicate || out.Output == nil:
		t.Fatalf("%+v", out)
	case out.State == record.Exited:
		want = "ran\n"
	case out.State != record.Failed || out.Error.Code != record.CodeNotStarted:
		t.Fatalf("%+v %+v", out, out.Error)
	}
	return func() {
		if got := m.read(name); got != want {
			t.Errorf("%s: answered %v %+v, and it has %q", name, err, out.State, got)
		}
	}
}

// inputRounds type into one command over all rounds.
func inputRounds() func(*testing.T, *machine, *worker.Client, int) func() {
	id, tries := "", 0
	return func(t *testing.T, m *machine, c *worker.Client, i int) func() {
		for ; id == ""; tries++ { // a run that was lost on its way is lost for good
			ran, err := c.RunDirectCommand(t.Context(), me(), commands.RunDirectCommandIn{
				ProjectID: "p", RequestID: fmt.Sprint("typed", tries), Argv: []string{"sh", "-c", "cat >>typed"}, Stdin: ptr("open"), TimeoutMs: ptr(600_000),
			})
			if err == nil && ran.State == record.Running {
				id = ran.CommandID
				t.Cleanup(func() {
					for { // the last round may have ended the worker
						if _, err := c.CancelDirectCommand(context.Background(), me(), commands.CancelDirectCommandIn{CommandID: id}); err == nil {
							return
						}
						time.Sleep(5 * time.Millisecond)
					}
				})
			}
		}
		return inputRound(t, m, c, i, id)
	}
}

func inputRound(t *testing.T, m *machine, c *worker.Client, i int, command string) func() {
	line := fmt.Sprintf("<%d>\n", i)
	out, err := c.WriteDirectCommandInput(t.Context(), me(), commands.WriteDirectCommandInputIn{CommandID: command, InputID: fmt.Sprint(i), Text: &line})
	want := 0
	if err != nil {
		unsent(t, err)
	} else if want = 1; out.State != record.Accepted || out.Duplicate {
		t.Fatalf("%+v", out)
	}
	return func() {
		for range 200 { // cat may still have to write it
			if strings.Count(m.read("typed"), line) == want {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Errorf("%q was answered with %v, and is there %d times", line, err, strings.Count(m.read("typed"), line))
	}
}

func placeRound(t *testing.T, m *machine, c *worker.Client, i int) func() {
	name, content := fmt.Sprintf("p%d", i), strings.Repeat("content ", 100_000)
	in := transfers.Placement{ID: fmt.Sprintf("%024x", i), ProjectID: "p", Path: name, Size: int64(len(content)), SHA256: sum(content)}
	_, err := c.Placements().Place(t.Context(), in, strings.NewReader(content))
	placed := err == nil
	var refused *fault.Error
	if err != nil && !errors.As(err, &refused) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		for settled := false; !settled; {
			var unknown error
			if _, placed, unknown = c.Placements().Settle(ctx, in.ID); ctx.Err() != nil {
				t.Fatal(unknown)
			}
			if settled = unknown == nil; !settled {
				time.Sleep(20 * time.Millisecond)
			}
		}
	}
	return func() {
		if got := m.read(name); (got == content) != placed || got != "" && got != content {
			t.Errorf("%s: answered %v, placed %v, and it has %d bytes", name, err, placed, len(got))
		}
	}
}

// A read is refused at once, with the reason and its age.
func TestReadOverLostConnection(t *testing.T) {
	m := newMachine(t)
	c := m.open()
	ran, err := c.RunDirectCommand(t.Context(), me(), commands.RunDirectCommandIn{ProjectID: "p", RequestID: "r", Argv: []string{"sleep", "60"}})
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		_, err := c.ReadDirectCommand(t.Context(), me(), commands.ReadDirectCommandIn{CommandID: &ran.CommandID, WaitMs: ptr(20_000)})
		got <- err
	}()
	time.Sleep(50 * time.Millisecond)
	began := time.Now()
	m.cut("the cable was pulled.")
	err = <-got
	var refused *fault.Error
	if !errors.As(err, &refused) || refused.Code != "host_unavailable" || !strings.Contains(refused.Message, "Far can't be reached since "+m.since.UTC().Format("2006-01-02T")) || !strings.HasSuffix(refused.Message, "the cable was pulled.") {
		t.Fatal(err)
	}
	if d := time.Since(began); d > 2*time.Second {
		t.Errorf("it took %v", d)
	}
	if _, err := c.At(t.Context()); !errors.Is(err, hosts.Unavailable) {
		t.Error(err)
	}
	// The command outlives the connection and the worker.
	m.join()
	after, err := c.CancelDirectCommand(t.Context(), me(), commands.CancelDirectCommandIn{CommandID: ran.CommandID})
	if err != nil || !after.CancelRequested {
		t.Fatalf("%+v, %v", after, err)
	}
}

// A connection that stops answering ends reads, and changes wait for it.
func TestStalledConnection(t *testing.T) {
	m := newMachine(t)
	c := m.open()
	ran, err := c.RunDirectCommand(t.Context(), me(), commands.RunDirectCommandIn{ProjectID: "p", RequestID: "r", Argv: []string{"sleep", "60"}})
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		_, err := c.ReadDirectCommand(t.Context(), me(), commands.ReadDirectCommandIn{CommandID: &ran.CommandID, WaitMs: ptr(20_000)})
		got <- err
	}()
	time.Sleep(50 * time.Millisecond)
	c.LinkChanged(hosts.Status{State: hosts.Degraded, Since: time.Now(), Reason: "It does not answer."})
	if err := <-got; !errors.Is(err, hosts.Unavailable) {
		t.Fatal(err)
	}
	if _, err := c.At(t.Context()); !errors.Is(err, hosts.Unavailable) || !strings.Contains(err.Error(), "has stopped answering") {
		t.Fatal(err)
	}
	c.LinkChanged(hosts.Status{State: hosts.Up, Since: time.Now()})
	if _, err := c.CancelDirectCommand(t.Context(), me(), commands.CancelDirectCommandIn{CommandID: ran.CommandID}); err != nil {
		t.Fatal(err)
	}
}

// A call that can't be sent, for the connection takes nothing any more, ends with
// its context.
func TestSendingHangs(t *testing.T) {
	m := newMachine(t)
	c := m.open(func(o *worker.Options) { o.StartTimeout = 5 * time.Second })
	if _, err := c.At(t.Context()); err != nil {
		t.Fatal(err)
	}
	old := m.current().processes()[0]
	if err := syscall.Kill(old, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(old, syscall.SIGKILL) })
	for i := range 4 { // more than a pipe holds
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		began := time.Now()
		_, err := c.WriteDirectFile(ctx, files.WriteDirectFileIn{ProjectID: "p", Path: fmt.Sprint("f", i), Content: strings.Repeat("x", 1<<20)})
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 3*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	}
	m.cut("the cable was pulled.")
	m.join()
	if _, err := c.WriteDirectFile(t.Context(), files.WriteDirectFileIn{ProjectID: "p", Path: "g", Content: "x"}); err != nil {
		t.Fatal(err)
	}
}

// A change does not wait for ever for a connection that has stopped answering.
func TestChangeOnStalledConnection(t *testing.T) {
	m := newMachine(t)
	c := m.open(func(o *worker.Options) { o.SettleTimeout = 200 * time.Millisecond })
	if _, err := c.At(t.Context()); err != nil {
		t.Fatal(err)
	}
	ends := make(chan any, 1)
	got := make(chan error, 1)
	go func() {
		ctx := worker.WithSettled(t.Context(), func(out any, err error) { ends <- out })
		_, err := c.RunDirectCommand(ctx, me(), commands.RunDirectCommandIn{ProjectID: "p", RequestID: "r", Argv: []string{"sh", "-c", "sleep 0.4; echo done >f"}, WaitMs: ptr(20_000)})
		got <- err
	}()
	for m.started() == 0 {
		time.Sleep(5 * time.Millisecond)
	}
	c.LinkChanged(hosts.Status{State: hosts.Degraded, Since: time.Now()})
	if err := <-got; !errors.Is(err, hosts.OutcomeUnknown) {
		t.Fatal(err)
	}
	c.LinkChanged(hosts.Status{State: hosts.Up, Since: time.Now()})
	if out, ok := (<-ends).(commands.RunDirectCommandOut); !ok || out.State != record.Exited || out.Duplicate {
		t.Fatalf("%+v", out)
	}
}

// When the host does not come back in time, the outcome is unknown, and learnt
// later for the record.
func TestOutcomeUnknown(t *testing.T) {
	m := newMachine(t)
	c := m.open(func(o *worker.Options) { o.SettleTimeout = 300 * time.Millisecond })
	if _, err := c.At(t.Context()); err != nil {
		t.Fatal(err)
	}
	type end struct {
		out any
		err error
	}
	ends := make(chan end, 2)
	ctx := worker.WithSettled(t.Context(), func(out any, err error) { ends <- end{out, err} })
	got := make(chan error, 1)
	go func() {
		_, err := c.RunDirectCommand(ctx, me(), commands.RunDirectCommandIn{ProjectID: "p", RequestID: "r", Argv: []string{"sh", "-c", "sleep 0.3; echo done >f"}, WaitMs: ptr(20_000)})
		got <- err
	}()
	for m.started() == 0 {
		time.Sleep(5 * time.Millisecond)
	}
	m.cut("the cable was pulled.")
	if err := <-got; !errors.Is(err, hosts.OutcomeUnknown) {
		t.Fatal(err)
	}
	m.join()
	e := <-ends
	out, ok := e.out.(commands.RunDirectCommandOut)
	if e.err != nil || !ok || out.Duplicate || out.State != record.Exited || m.read("f") != "done\n" {
		t.Fatalf("%+v", e)
	}
}

// started counts the commands that have a record on the host.
func (m *machine) started() int {
	entries, _ := filepath.Glob(filepath.Join(m.stateDir, "worker", "direct", "commands", "*", "started"))
	return len(entries)
}

// A caller that goes away cancels what only waits, and ends no change.
func TestCancelled(t *testing.T) {
	m := newMachine(t)
	c := m.open()
	ran, err := c.RunDirectCommand(t.Context(), me(), commands.RunDirectCommandIn{ProjectID: "p", RequestID: "r", Argv: []string{"sleep", "60"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err = c.ReadDirectCommand(ctx, me(), commands.ReadDirectCommandIn{CommandID: &ran.CommandID, WaitMs: ptr(20_000)})
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 5*time.Second {
		t.Fatalf("%v after %v", err, time.Since(began))
	}
	if _, err := c.CancelDirectCommand(t.Context(), me(), commands.CancelDirectCommandIn{CommandID: ran.CommandID}); err != nil {
		t.Fatal(err)
	}
}

// A worker that stops within a file ends the transfer, not only the next one.
func TestFilesOfAWorkerThatHangs(t *testing.T) {
	m := newMachine(t)
	m.write("big", strings.Repeat("x", 20<<20))
	time.Sleep(30 * time.Millisecond)
	c := m.open(worker.Hasty)
	if _, err := c.At(t.Context()); err != nil {
		t.Fatal(err)
	}
	old := m.current().processes()[0]
	t.Cleanup(func() { _ = syscall.Kill(old, syscall.SIGKILL) })
	stop := func() {
		if err := syscall.Kill(old, syscall.SIGSTOP); err != nil {
			t.Error(err)
		}
	}
	snap, err := c.Placements().Open(t.Context(), "p", "big")
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Content.Close()
	if _, err := io.CopyN(io.Discard, snap.Content, 1000); err != nil {
		t.Fatal(err)
	}
	stop()
	if _, err := io.Copy(io.Discard, snap.Content); !errors.Is(err, hosts.Unavailable) {
		t.Errorf("reading ended with %v", err)
	}
	if err := syscall.Kill(old, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	content := strings.Repeat("y", 20<<20)
	in := transfers.Placement{ID: fmt.Sprintf("%024x", 1), ProjectID: "p", Path: "new", Size: int64(len(content)), SHA256: sum(content)}
	_, err = c.Placements().Place(t.Context(), in, io.MultiReader(strings.NewReader(content[:1<<20]), &once{do: stop}, strings.NewReader(content[1<<20:])))
	if refused := (*fault.Error)(nil); err == nil || errors.As(err, &refused) {
		t.Errorf("placing ended with %v", err)
	}
	if got := m.read("new"); got != "" {
		t.Errorf("%d bytes were placed", len(got))
	}
}

// once is nothing to read, but something to do.
type once struct{ do func() }

func (o *once) Read([]byte) (int, error) {
	o.do()
	return 0, io.EOF
}
