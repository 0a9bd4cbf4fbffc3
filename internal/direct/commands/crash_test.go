package commands_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentrelay/internal/direct/commands"
	"agentrelay/internal/direct/commands/process"
	"agentrelay/internal/direct/commands/record"
)

// rounds is how often a crash is tried.
func rounds(t *testing.T) int {
	n := 10
	if s := os.Getenv("AGENT_RELAY_CRASH_ROUNDS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// traced is a command that leaves a trace, prints and ends with 7.
func traced(id string) string {
	return fmt.Sprintf(`echo %s >> ran; i=0; while [ $i -lt 20 ]; do echo line $i; i=$((i+1)); done; sleep 0.0%d; echo end; exit 7`, id, rand.IntN(5))
}

func tracedOutput() string {
	var b strings.Builder
	for i := range 20 {
		fmt.Fprintln(&b, "line", i)
	}
	return b.String() + "end\n"
}

// answer is what the gateway that is killed says on its standard output.
type answer struct {
	ID    string       `json:"id"`
	State record.State `json:"state"` // "" before the call
}

// runCommands is the gateway: args are the directories and a prefix of ids. It
// runs commands until it is killed.
func runCommands(args []string) int {
	root, project, state, prefix := args[0], args[1], args[2], args[3]
	s, err := commands.New(options(root, project, state))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var mu sync.Mutex
	say := func(a answer) {
		mu.Lock()
		defer mu.Unlock()
		json.NewEncoder(os.Stdout).Encode(a)
	}
	var wg sync.WaitGroup
	for lane := range 3 {
		wg.Go(func() {
			for n := 0; ; n++ {
				id := fmt.Sprintf("%s.%d.%d", prefix, lane, n)
				say(answer{ID: id})
				out, err := s.RunDirectCommand(context.Background(), owner, commands.RunDirectCommandIn{
					ProjectID: "p", RequestID: id, Argv: []string{"sh", "-c", traced(id)}, WaitMs: new(n % 2 * 5000),
				})
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					continue
				}
				say(answer{ID: id, State: out.State})
			}
		})
	}
	wg.Wait()
	return 0
}

// ran counts the traces of each id.
func (h *host) ran() map[string]int {
	out := map[string]int{}
	raw, _ := os.ReadFile(filepath.Join(h.project, "ran"))
	for _, id := range strings.Fields(string(raw)) {
		out[id]++
	}
	return out
}

// settled asks for a request until its state is final.
func (h *host) settled(id string) commands.ReadDirectCommandOut {
	h.t.Helper()
	for range 200 {
		out, err := h.ReadDirectCommand(context.Background(), owner, commands.ReadDirectCommandIn{RequestID: &id, Cursor: new(int64(1 << 50)), WaitMs: new(2000)})
		if err != nil {
			h.t.Fatal(err)
		}
		if out.State.Final() {
			out, err = h.ReadDirectCommand(context.Background(), owner, commands.ReadDirectCommandIn{RequestID: &id, Limit: new(1000)})
			if err != nil {
				h.t.Fatal(err)
			}
			return out
		}
	}
	h.t.Fatalf("%s does not end", id)
	panic("unreachable")
}

// checkTruth compares what the record says with what happened.
func (h *host) checkTruth(id string, got commands.ReadDirectCommandOut, ran int) {
	h.t.Helper()
	switch {
	case got.State == record.Exited:
		if ran != 1 || got.ExitCode == nil || *got.ExitCode != 7 || text(got.Output) != tracedOutput() || got.LostCount != 0 {
			h.t.Errorf("%s: ran %d times, record %+v", id, ran, got)
		}
	case got.State == record.Failed && got.Error.Code == "not_started":
		if ran != 0 {
			h.t.Errorf("%s: not_started, but it ran %d times", id, ran)
		}
	case got.State == record.Interrupted:
		if ran > 1 || !strings.HasPrefix(tracedOutput(), text(got.Output)) {
			h.t.Errorf("%s: interrupted, ran %d times, %+v", id, ran, got)
		}
	default:
		h.t.Errorf("%s: %+v", id, got)
	}
}

func TestKillingTheGateway(t *testing.T) {
	h := newHost(t)
	counts := map[record.State]int{}
	for round := range rounds(t) {
		h.Close() // the killed one is alone
		tried, told := h.killedGateway(fmt.Sprint("g", round), time.Duration(rand.Int64N(int64(150*time.Millisecond))))
		h.open()
		var outs []commands.ReadDirectCommandOut
		for _, id := range tried {
			outs = append(outs, h.settled(id))
		}
		ran := h.ran()
		for i, id := range tried {
			h.checkTruth(id, outs[i], ran[id])
			counts[outs[i].State]++
			if outs[i].State == record.Interrupted {
				t.Errorf("%s: interrupted, though its supervisor lived", id)
			}
			if was := told[id]; was != "" && outs[i].State == record.Failed {
				t.Errorf("%s: answered as %s, and lost", id, was)
			}
		}
		h.noProcessLeft()
	}
	t.Logf("%v", counts)
}

// killedGateway runs commands in another process, kills it, and returns the ids
// it tried, with what it answered.
func (h *host) killedGateway(prefix string, after time.Duration) (tried []string, told map[string]record.State) {
	h.t.Helper()
	cmd := exec.Command(self(), "run-commands", filepath.Dir(h.project), h.project, h.state, prefix)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	told = map[string]record.State{}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var a answer
		if json.Unmarshal(lines.Bytes(), &a) != nil {
			break // torn off
		}
		if a.State != "" {
			told[a.ID] = a.State
			continue
		}
		tried = append(tried, a.ID)
		if len(tried) == 1 {
			time.AfterFunc(after, func() { cmd.Process.Kill() })
		}
	}
	cmd.Wait()
	return tried, told
}

func TestKillingSupervisors(t *testing.T) {
	h := newHost(t)
	counts := map[record.State]int{}
	for round := range rounds(t) {
		stop := make(chan struct{})
		var killer sync.WaitGroup
		killer.Go(func() { h.killSupervisors(stop) })
		var wg sync.WaitGroup
		for lane := range 4 {
			wg.Go(func() {
				id := fmt.Sprintf("s%d.%d", round, lane)
				if _, err := h.tryRun(id, traced(id), noWait); err != nil {
					t.Error(err)
				}
				h.settled(id)
			})
		}
		wg.Wait()
		close(stop)
		killer.Wait()
		ran := h.ran()
		for lane := range 4 {
			id := fmt.Sprintf("s%d.%d", round, lane)
			got := h.settled(id)
			counts[got.State]++
			h.checkTruth(id, got, ran[id])
			if again := h.run(id+"x", "true"); again.State != record.Exited {
				t.Errorf("the next command: %+v", again)
			}
		}
		h.noProcessLeft()
	}
	t.Logf("%v", counts)
}

// killSupervisors kills about each second supervisor it finds, until it is
// stopped.
func (h *host) killSupervisors(stop chan struct{}) {
	seen := map[int]bool{}
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Millisecond):
		}
		for _, pid := range h.processes() {
			cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if seen[pid] || !strings.Contains(string(cmdline), "\x00supervise\x00") {
				continue
			}
			seen[pid] = true
			if rand.IntN(2) == 0 {
				time.Sleep(time.Duration(rand.Int64N(int64(30 * time.Millisecond))))
				// A command has its supervisor's words until it is executed, but it
				// leads no session.
				if p, err := process.Find(pid); err == nil && p.Session == pid {
					process.Kill(p)
				}
			}
		}
	}
}

func (h *host) supervisorOf(commandID string) process.Process {
	h.t.Helper()
	started := h.record(commandID).Started
	p, err := process.Find(started.PID)
	if err != nil || p.Start != started.Start {
		h.t.Fatalf("no supervisor: %+v, %v", p, err)
	}
	return p
}

func TestAKilledSupervisorLeavesNoTree(t *testing.T) {
	h := newHost(t)
	out := h.run("r", `trap "" TERM HUP; (trap "" TERM HUP; while :; do sleep 0.02; done) & echo up; while :; do sleep 0.02; done`, noWait)
	eventually(t, "output", func() bool { return text(h.read(out.CommandID).Output) == "up\n" })
	process.Kill(h.supervisorOf(out.CommandID))
	end := h.ended(out.CommandID)
	if end.State != record.Interrupted || end.Error.Code != "interrupted" || text(end.Output) != "up\n" || end.DetachedProcesses {
		t.Fatalf("got %+v", end)
	}
	if len(h.processes()) != 0 {
		t.Fatal("the record is final, and processes are left")
	}
	if dup := h.run("r", "something else", func(in *commands.RunDirectCommandIn) { in.Argv = out.Argv }); !dup.Duplicate || dup.State != record.Interrupted {
		t.Fatalf("got %+v", dup)
	}

	// One that is killed while nobody looks is settled at the next start.
	out = h.run("r2", `sleep 60 & (setsid sleep 8.5 &) ; sleep 60`, noWait)
	eventually(t, "children", func() bool { return len(h.processes()) >= 5 })
	h.Close()
	process.Kill(h.supervisorOf(out.CommandID))
	h.open()
	eventually(t, "the end", func() bool { return h.record(out.CommandID).Status.State.Final() })
	if end := h.read(out.CommandID); end.State != record.Interrupted || !end.DetachedProcesses {
		t.Fatalf("got %+v", end)
	}
	if left := h.processes(); len(left) != 1 {
		t.Fatalf("%d processes are left, want the detached one alone", len(left))
	} else {
		terminate(left[0])
	}
}

func TestARebootInterrupts(t *testing.T) {
	h := newHost(t)
	out := h.run("r", "echo before; sleep 60", noWait)
	eventually(t, "output", func() bool { return text(h.read(out.CommandID).Output) == "before\n" })
	supervisor := h.supervisorOf(out.CommandID)
	leader := h.record(out.CommandID).Status.PID
	h.Close()
	process.Kill(supervisor)
	eventually(t, "the supervisor's end", func() bool { p, err := process.Find(supervisor.PID); return err != nil || p.Zombie })
	h.options.BootID = func() (string, error) { return "another boot", nil }
	h.open()
	got := h.settled("r")
	if got.State != record.Interrupted || !strings.Contains(got.Error.Message, "restarted") || text(got.Output) != "before\n" {
		t.Fatalf("got %+v", got)
	}
	// Whatever has those numbers after a reboot is not ours.
	if p, err := process.Find(leader); err != nil || p.Zombie {
		t.Fatal("a process of another boot was killed")
	}
	terminate(-leader)
}

func TestARecycledGroupIsLeftAlone(t *testing.T) {
	h := newHost(t)
	stranger := exec.Command("sh", "-c", "sleep 60 & echo $!; sleep 60")
	stranger.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	said, _ := stranger.StdoutPipe()
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	child, _ := bufio.NewReader(said).ReadString('\n')
	childPID, err := strconv.Atoi(strings.TrimSpace(child))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { terminate(-stranger.Process.Pid); stranger.Wait() }()
	here, err := process.Find(stranger.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	boot, err := process.BootID()
	if err != nil {
		t.Fatal(err)
	}
	// The number of the supervisor, and of its group, is a session's that started
	// later.
	h.forge("leader", record.Started{BootID: boot, PID: here.PID, Start: here.Start - 1})
	lives(t, here.PID)
	lives(t, childPID)
	// Its leader has ended too, and only what it started is left.
	stranger.Process.Kill()
	stranger.Wait()
	h.forge("orphans", record.Started{BootID: boot, PID: here.PID, Start: here.Start - 1})
	lives(t, childPID)
}

func lives(t *testing.T, pid int) {
	t.Helper()
	if p, err := process.Find(pid); err != nil || p.Zombie {
		t.Fatal("a stranger was killed")
	}
}

// forge makes the record of a command whose supervisor, also the leader of the
// command's group, is said to have been a process, and has it settled.
func (h *host) forge(requestID string, started record.Started) {
	h.t.Helper()
	spec, held, err := (record.Root{Dir: h.state}).Create(record.Spec{Owner: owner.Owner, RequestID: requestID, Argv: []string{"x"}})
	if err != nil {
		h.t.Fatal(err)
	}
	d := record.Dir(filepath.Join(h.state, spec.CommandID))
	if err := d.SetStarted(started); err != nil {
		h.t.Fatal(err)
	}
	if err := d.SetStatus(record.Status{State: record.Running, PID: started.PID, Start: started.Start}); err != nil {
		h.t.Fatal(err)
	}
	held.Close()
	if got := h.settled(requestID); got.State != record.Interrupted {
		h.t.Fatalf("got %+v", got)
	}
}

func TestASupervisorThatIsToldToStop(t *testing.T) {
	h := newHost(t)
	out := h.run("r", "echo up; sleep 60 & sleep 60", noWait)
	eventually(t, "output", func() bool { return text(h.read(out.CommandID).Output) == "up\n" })
	syscall.Kill(h.supervisorOf(out.CommandID).PID, syscall.SIGTERM)
	if end := h.ended(out.CommandID); end.State != record.Interrupted || end.Error == nil || end.Signal != "SIGTERM" || text(end.Output) != "up\n" {
		t.Fatalf("got %+v", end)
	}
}

func TestASupervisorThatDoesNotStart(t *testing.T) {
	h := newHost(t, func(h *host) { h.options.Supervisor = []string{"/no/such/program"} })
	if out := h.run("r", "true"); out.State != record.Failed || out.Error.Code != "supervisor_failed" {
		t.Fatalf("got %+v", out)
	}
	h = newHost(t, func(h *host) { h.options.Supervisor = []string{"/bin/false"} })
	if out := h.run("r", "true"); out.State != record.Failed || out.Error.Code != "not_started" {
		t.Fatalf("got %+v", out)
	}
}

func TestAStartMeetsItsTombstone(t *testing.T) {
	h := newHost(t)
	root := record.Root{Dir: h.state}
	// The service that recorded it was killed before it started the supervisor.
	spec, held, err := root.Create(record.Spec{
		Owner: owner.Owner, RequestID: "r", Argv: []string{"touch", filepath.Join(h.project, "ran")}, Dir: h.project, TimeoutMs: 1000,
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := h.ReadDirectCommand(context.Background(), owner, commands.ReadDirectCommandIn{RequestID: new("r")}); err != nil || got.State != record.Pending {
		t.Fatalf("while somebody starts it: %+v, %v", got, err)
	}
	held.Close()
	if got := h.settled("r"); got.State != record.Failed || got.Error.Code != "not_started" || got.ProjectID != spec.ProjectID {
		t.Fatalf("got %+v", got)
	}
	late := exec.Command(self(), "supervise", filepath.Join(h.state, spec.CommandID))
	late.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if said, err := late.CombinedOutput(); err == nil || !strings.Contains(string(said), "runs once") {
		t.Fatalf("a late supervisor: %v, %s", err, said)
	}
	if _, err := os.Stat(filepath.Join(h.project, "ran")); err == nil {
		t.Fatal("it ran")
	}
	if err := root.Entomb(owner.Owner, "r2"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := root.Create(record.Spec{Owner: owner.Owner, RequestID: "r2"}); err != record.ErrExists {
		t.Fatalf("got %v", err)
	}
}
