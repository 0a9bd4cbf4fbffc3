package commands_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"agentrelay/internal/direct/commands"
	"agentrelay/internal/direct/commands/process"
	"agentrelay/internal/direct/commands/record"
)

// peak is the most memory a process had in use, in KiB; 0 when it has ended.
func peak(pid int) int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	kib, _ := strconv.Atoi(fields[0])
	return kib
}

func TestAFloodStaysSmall(t *testing.T) {
	gib := 1
	if s := os.Getenv("AGENT_RELAY_FLOOD_GIB"); s != "" {
		gib, _ = strconv.Atoi(s)
	}
	h := newHost(t)
	total := int64(gib)<<30 + int64(len("begin\nthe end\n"))
	begun := time.Now()
	out := h.run("flood", fmt.Sprintf("echo begin; yes | head -c %d; echo the end", int64(gib)<<30), noWait, timeout(3_600_000))
	pid := h.supervisorOf(out.CommandID).PID
	most := 0
	for !h.record(out.CommandID).Status.State.Final() {
		most = max(most, peak(pid))
		time.Sleep(5 * time.Millisecond)
	}
	t.Logf("%d GiB in %v, supervisor %d MiB", gib, time.Since(begun).Round(time.Millisecond), most>>10)
	if most == 0 || most > 64<<10 {
		t.Errorf("the supervisor took %d KiB", most)
	}
	var all strings.Builder
	lost, cursor := int64(0), int64(0)
	for {
		page, err := h.ReadDirectCommand(context.Background(), owner, commands.ReadDirectCommandIn{CommandID: &out.CommandID, Cursor: &cursor, Limit: new(1000)})
		if err != nil {
			t.Fatal(err)
		}
		if page.State != record.Exited || *page.ExitCode != 0 {
			t.Fatalf("got %+v", page.Receipt)
		}
		all.WriteString(text(page.Output))
		lost += page.LostCount
		cursor = page.NextCursor
		if !page.Truncated {
			break
		}
	}
	got := all.String()
	if int64(len(got))+lost != total || cursor != total || lost == 0 {
		t.Errorf("%d bytes read and %d lost of %d, cursor %d", len(got), lost, total, cursor)
	}
	if !strings.HasPrefix(got, "begin\ny\n") || !strings.HasSuffix(got, "y\nthe end\n") {
		t.Errorf("the ends are %q and %q", got[:10], got[len(got)-10:])
	}
	if size := h.shown(out.CommandID).OutputBytes; size > 16<<20 || size < 14<<20 {
		t.Errorf("the log takes %d bytes", size)
	}
}

func (h *host) shown(id string) commands.ShowCommandOut {
	h.t.Helper()
	out, err := h.ShowCommand(context.Background(), commands.ShowCommandIn{CommandID: id})
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}

func TestAThousandCommandsLeaveNothing(t *testing.T) {
	h := newHost(t)
	h.run("warm", "true")
	descriptors := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	before, childrenBefore := descriptors(), len(children(t))
	var wg sync.WaitGroup
	begun := time.Now()
	for lane := range 8 {
		wg.Go(func() {
			for n := range commandsPerLane {
				out, err := h.tryRun(fmt.Sprintf("r%d.%d", lane, n), "echo $0 done")
				if err != nil || out.State != record.Exited || text(*out.Output) != "sh done\n" {
					t.Errorf("got %+v, %v", out, err)
					return
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d commands in %v", 8*commandsPerLane, time.Since(begun).Round(time.Millisecond))
	eventually(t, "all descriptors are closed", func() bool { return descriptors() <= before })
	eventually(t, "no child is left", func() bool { return len(children(t)) <= childrenBefore })
	if active, err := os.ReadDir(h.state + "/active"); err != nil || len(active) != 0 {
		t.Errorf("%d commands are still listed as active, %v", len(active), err)
	}
}

// TestReadersWhoWaitKeepNothingElseOut: as many as may wait at one time.
func TestReadersWhoWaitKeepNothingElseOut(t *testing.T) {
	h := newHost(t)
	out := h.run("r", "read line; echo $line; sleep 60", noWait, openStdin)
	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	read := func(ctx context.Context) error {
		_, err := h.ReadDirectCommand(ctx, owner, commands.ReadDirectCommandIn{CommandID: &out.CommandID, Cursor: new(int64(1 << 50)), WaitMs: new(20_000)})
		return err
	}
	for range 256 {
		readers.Go(func() {
			for ctx.Err() == nil { // the question below may take a place for a moment
				_ = read(ctx)
				time.Sleep(time.Millisecond)
			}
		})
	}
	eventually(t, "no more may wait", func() bool {
		soon, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		return read(soon) == nil
	})
	soon, cancelSoon := context.WithTimeout(ctx, 10*time.Second)
	defer cancelSoon()
	in, err := h.WriteDirectCommandInput(soon, owner, commands.WriteDirectCommandInputIn{CommandID: out.CommandID, InputID: "i", Text: new("x\n")})
	if err != nil || in.State != record.Accepted {
		t.Errorf("an input while others wait: %+v, %v", in, err)
	}
	if got, err := h.CancelDirectCommand(soon, owner, commands.CancelDirectCommandIn{CommandID: out.CommandID}); err != nil || !got.CancelRequested {
		t.Errorf("a cancellation while others wait: %+v, %v", got, err)
	}
	eventually(t, "it is cancelled", func() bool { return h.read(out.CommandID).State == record.Cancelled })
}

// children are the children of this process, ended ones too.
func children(t *testing.T) (pids []int) {
	all, err := process.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID))
		if _, rest, ok := strings.Cut(string(stat), ") "); ok && strings.Fields(rest)[1] == strconv.Itoa(os.Getpid()) {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// BenchmarkStart compares a durable command with a bare one, from the call to
// its output.
func BenchmarkStart(b *testing.B) {
	h := &host{t: nil}
	dir := b.TempDir()
	h.project, h.state = dir+"/project", dir+"/state"
	if err := os.MkdirAll(h.project, 0o700); err != nil {
		b.Fatal(err)
	}
	o := options(dir, h.project, h.state)
	if s := os.Getenv("AGENT_RELAY_SUPERVISOR"); s != "" {
		o.Supervisor = []string{s, "supervise"}
	}
	s, err := commands.New(o)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	var bare time.Duration
	n := 0
	for b.Loop() {
		begun := time.Now()
		if out, err := exec.Command("echo", "hello").Output(); err != nil || string(out) != "hello\n" {
			b.Fatal(err)
		}
		bare += time.Since(begun)
		n++
		out, err := s.RunDirectCommand(context.Background(), owner, commands.RunDirectCommandIn{
			ProjectID: "p", RequestID: fmt.Sprint("b", n), Argv: []string{"echo", "hello"}, WaitMs: new(20000),
		})
		if err != nil || text(*out.Output) != "hello\n" {
			b.Fatalf("%+v, %v", out, err)
		}
	}
	b.ReportMetric(float64(bare.Microseconds())/float64(n), "bare-us/op")
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(n)-float64(bare.Microseconds())/float64(n), "durable-us/op")
}
