package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentrelay/internal/client"
	"agentrelay/internal/device"
	"agentrelay/internal/device/state"
)

// TestTwoDevicesOneGateway is a laptop without a human and a phone with one.
func TestTwoDevicesOneGateway(t *testing.T) {
	home, program, session := buildDevices(t)
	laptop, phone := newMachine(t, program, home, "laptop"), newMachine(t, program, home, "phone")
	if r := laptop.run("status"); r.Code != 78 || !strings.Contains(r.Stderr, "not paired") {
		t.Errorf("status before pairing: %+v", r)
	}
	_, url := pairingCode(t, home)
	if r := laptop.run("pair", url, "WRONG-CODE", "--device", "laptop"); r.Code != 1 || !strings.Contains(r.Stderr, "not paired: the relay refused (auth)") {
		t.Errorf("a wrong code: %+v", r)
	}
	laptop.pair()
	phone.pair()
	laptop.ok("plugins", "install", "--all")
	phone.ok("plugins", "install", "run", "read-file", "write-file")
	daemon := laptop.daemon("--allow", "run,read_file,write-file,job-start,job-poll,job-tail,job-wait,job-kill")
	human := phone.atTerminal()

	var list json.RawMessage
	if err := session.Call(t.Context(), "spooky_list", map[string]any{}, &list); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"laptop"`, `"phone"`, `"job-wait"`, "Run a shell command on this device and return what it prints."} {
		if !strings.Contains(string(list), want) {
			t.Errorf("%s is not in %s", want, list)
		}
	}
	var schema json.RawMessage
	if err := session.Call(t.Context(), "spooky_schema", map[string]any{"device": "phone", "tool": "run"}, &schema); err != nil || !strings.Contains(string(schema), `"the command line, for sh"`) {
		t.Errorf("%s %v", schema, err)
	}
	t.Run("laptop", func(t *testing.T) { daemon = withoutHuman(t, session, laptop, daemon) })
	t.Run("phone", func(t *testing.T) { withHuman(t, session, phone, human) })
	t.Run("errors", func(t *testing.T) {
		for _, c := range []struct {
			in   map[string]any
			want string
		}{
			{call("tablet", "run", nil), "device tablet is not connected"},
			{call("phone", "job-start", nil), "device phone has no tool job-start: it has read-file, run, write-file"},
			{call("phone", "run", map[string]any{"cmd": 5}), "args.cmd must be of type string."},
			{call("phone", "run", map[string]any{}), "args lacks [cmd]."},
		} {
			if out := callDevice(t, session, c.in); out.refusal == nil || out.refusal.Message != c.want {
				t.Errorf("%v: %+v %v, want %q", c.in, out, out.refusal, c.want)
			}
		}
	})
	t.Run("revoked", func(t *testing.T) {
		home.OK("devices", "revoke", "laptop")
		select {
		case <-daemon.ended:
		case <-time.After(deviceWait):
			t.Fatal("a revoked device goes on")
		}
		if code := daemon.cmd.ProcessState.ExitCode(); code != 78 || !strings.Contains(daemon.sees(), "the relay refuses this device") {
			t.Errorf("exit code %d\n%s", code, daemon.sees())
		}
		if out := callDevice(t, session, call("laptop", "run", map[string]any{"cmd": "true"})); out.refusal == nil || out.refusal.Message != "device laptop is not connected" {
			t.Errorf("%+v", out)
		}
	})
	t.Run("unpaired", func(t *testing.T) {
		phone.ok("unpair")
		<-human.ended
		if r := phone.run("run"); r.Code != 78 {
			t.Errorf("%+v", r)
		}
	})
}

// withoutHuman uses the reference plugins as they come.
func withoutHuman(t *testing.T, session *client.Session, laptop *machine, daemon *running) *running {
	work := filepath.Join(laptop.home, "work")
	done := func(tool string, args map[string]any) string {
		t.Helper()
		out := callDevice(t, session, call("laptop", tool, args))
		if out.refusal != nil || out.State != "done" {
			t.Fatalf("%s: %+v %v", tool, out, out.refusal)
		}
		return out.Output
	}
	if got := done("run", map[string]any{"cmd": `echo "$(pwd) ${SECRET_OF_THE_SHELL-none}"; echo err >&2`}); got != work+" none\nerr\n" {
		t.Errorf("%q", got)
	}
	if got := done("write-file", map[string]any{"path": "a/b.txt", "content": "grüße\n", "create_parents": true}); got != "created with 8 bytes" {
		t.Errorf("%q", got)
	}
	if got := done("read-file", map[string]any{"path": "a/b.txt"}); got != "grüße\n" {
		t.Errorf("%q", got)
	}
	job, _, _ := strings.Cut(done("job-start", map[string]any{"cmd": "echo begun; sleep 300"}), "\n")
	if got := done("job-poll", map[string]any{"id": job}); got != "running" {
		t.Errorf("%q", got)
	}
	daemon.end(syscall.SIGTERM) // a job outlives the device
	again := laptop.daemon("--allow", "run,job-poll,job-tail,job-kill", "--verbose")
	if got := done("job-poll", map[string]any{"id": job}); got != "running" {
		t.Errorf("%q", got)
	}
	if got := done("job-tail", map[string]any{"id": job}); got != "begun\n" {
		t.Errorf("%q", got)
	}
	if got := done("job-kill", map[string]any{"id": job}); got != "killed by SIGTERM" {
		t.Errorf("%q", got)
	}
	if out := callDevice(t, session, call("laptop", "write-file", map[string]any{"path": "x", "content": ""})); out.refusal == nil || out.refusal.Message != "device laptop denied the call: no human attached" {
		t.Errorf("%+v %v", out, out.refusal)
	}
	out := callDevice(t, session, call("laptop", "run", map[string]any{"cmd": "seq 1 50000"}))
	if !out.Spilled || !strings.Contains(out.Output, "/spill/laptop-run.txt") {
		t.Errorf("%+v", out)
	}
	// Nothing of the kind reaches the log.
	if log := again.sees(); strings.Contains(log, "seq 1 50000") || strings.Contains(log, "SECRET") {
		t.Errorf("%s", log)
	}
	return again
}

// withHuman has somebody at the phone's terminal answer.
func withHuman(t *testing.T, session *client.Session, phone *machine, human *running) {
	human.t = t
	ask := func(args map[string]any) <-chan outcome {
		got := make(chan outcome, 1)
		go func() { got <- callDevice(t, session, call("phone", "run", args)) }()
		return got
	}
	got := ask(map[string]any{"cmd": "echo one\x1b[2K > /dev/null; echo one"})
	human.waitFor("run? [Y/n/a=always] > ", 1)
	if s := phone.ok("status"); !strings.Contains(s, "run waits for an answer") || !strings.Contains(s, "connected for ") {
		t.Errorf("status while a question waits:\n%s", s)
	}
	human.types("y")
	if out := <-got; out.Output != "one\n" {
		t.Errorf("%+v %v", out, out.refusal)
	}
	got = ask(map[string]any{"cmd": "echo two"})
	human.waitFor("run? [Y/n/a=always] > ", 2)
	human.types("n")
	if out := <-got; out.refusal == nil || out.refusal.Message != "device phone denied the call: the human said no" {
		t.Errorf("%+v %v", out, out.refusal)
	}
	got = ask(map[string]any{"cmd": "echo three", "timeout_s": 5})
	human.waitFor("run? [Y/n/a=always] > ", 3)
	human.types("a")
	if out := <-got; out.Output != "three\n" {
		t.Errorf("%+v %v", out, out.refusal)
	}
	if out := <-ask(map[string]any{"cmd": "echo four"}); out.Output != "four\n" { // nobody is asked
		t.Errorf("%+v %v", out, out.refusal)
	}
	if list := phone.ok("policy", "list"); list != "phone:run\n" {
		t.Errorf("%q", list)
	}
	phone.ok("policy", "revoke", "run")
	ctx, cancel := context.WithCancel(context.Background())
	left := make(chan error, 1)
	go func() {
		left <- session.Call(ctx, "spooky_call", call("phone", "run", map[string]any{"cmd": "echo five >>five"}), nil)
	}()
	human.waitFor("run? [Y/n/a=always] > ", 4)
	cancel()
	<-left
	human.waitFor("withdrawn, nothing was run: the caller is gone (cancelled)", 1)
	if _, err := os.Stat(filepath.Join(phone.home, "work", "five")); err == nil {
		t.Error("a withdrawn call ran")
	}
	goldenScreen(t, human.sees())
}

// goldenScreen compares the questions on a screen with the file in testdata. Lines of
// the log have times in them and are left out.
func goldenScreen(t *testing.T, screen string) {
	t.Helper()
	var lines []string
	for line := range strings.Lines(screen) {
		if !strings.HasPrefix(line, "time=") && !strings.Contains(line, "Device phone, relay") && !strings.Contains(line, "File tools stay in") {
			lines = append(lines, line)
		}
	}
	got := strings.Join(lines, "")
	path := filepath.Join("testdata", "device-screen.golden")
	if os.Getenv("AGENT_RELAY_UPDATE_GOLDEN") != "" {
		if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(path, []byte(got), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the screen is\n%s\nwant\n%s", got, want)
	}
}

// TestADeviceKilledDuringACall comes back, and says of the call that it may have been
// done in part: it does not run again.
func TestADeviceKilledDuringACall(t *testing.T) {
	home, program, session := buildDevices(t)
	m := newMachine(t, program, home, "laptop")
	m.pair()
	m.plugin("slow", `echo $$ >>ran; sleep 60`)
	d := m.daemon("--yolo")
	in := call("laptop", "slow", nil)
	in["requestId"] = "once"
	got := make(chan outcome, 1)
	go func() { got <- callDevice(t, session, in) }()
	ran := filepath.Join(m.home, "work", "ran")
	for until := time.Now().Add(deviceWait); ; time.Sleep(5 * time.Millisecond) {
		if raw, _ := os.ReadFile(ran); len(raw) > 0 {
			break
		}
		if time.Now().After(until) {
			t.Fatal("it did not run")
		}
	}
	time.Sleep(100 * time.Millisecond) // until the process is recorded
	d.end(syscall.SIGKILL)
	m.daemon("--yolo")
	out := <-got
	if out.refusal == nil || !strings.Contains(out.refusal.Message, "may have been done in part") {
		t.Errorf("%+v %v", out, out.refusal)
	}
	raw, err := os.ReadFile(ran)
	if err != nil || bytes.Count(raw, []byte("\n")) != 1 {
		t.Errorf("ran %q %v", raw, err)
	}
	var pid int
	if _, err := fmt.Sscan(string(raw), &pid); err != nil {
		t.Fatal(err)
	}
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !strings.Contains(string(stat), ") Z ") {
		t.Errorf("what was left of the call runs on: %s", stat)
	}
}

// TestTheLinkIsCutAHundredTimes: the connection between the gateway and a device breaks
// at another frame each time. Each call runs at most once, and its outcome is known.
func TestTheLinkIsCutAHundredTimes(t *testing.T) {
	home, _, session := buildDevices(t)
	code, url := pairingCode(t, home)
	id, err := device.Dialer{}.Pair(t.Context(), state.Identity{RelayURL: url, Device: "laptop"}, code)
	if err != nil {
		t.Fatal(err)
	}
	address := strings.TrimSuffix(strings.TrimPrefix(url, "ws://"), "/device")
	way := newCutting(t, address)
	id.RelayURL = "ws://" + way.listen.Addr().String() + "/device"
	m := newMachine(t, "", home, "laptop")
	m.plugin("mark", `read -r call; echo ran >>ran; echo '{"ok":true,"output":"marked"}'`)
	stop := inProcess(t, m, id)
	defer stop()
	waitConnected(t, session)

	ran := filepath.Join(m.home, "work", "ran")
	runs := func() int {
		raw, err := os.ReadFile(ran)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return bytes.Count(raw, []byte("\n"))
	}
	good, failed := 0, map[string]int{}
	for round := range 100 {
		before := runs()
		way.then.Store(int64(round/4%8 + 1)) // while it comes back: handshake, hello, ready
		way.left.Store(int64(round%4 + 1))   // the call, its progress, its result, the acknowledgement
		in := call("laptop", "mark", map[string]any{"round": round})
		in["requestId"] = fmt.Sprint("round-", round)
		out := callDevice(t, session, in)
		for until := time.Now().Add(deviceWait); out.refusal != nil && out.refusal.Code == "device_not_connected" && time.Now().Before(until); {
			time.Sleep(5 * time.Millisecond) // it is on its way back
			out = callDevice(t, session, in)
		}
		n := runs() - before
		if n > 1 || out.State == "done" && n != 1 || out.refusal == nil && out.State != "done" {
			t.Fatalf("round %d: %d runs, %+v %v", round, n, out, out.refusal)
		}
		if again := callDevice(t, session, in); out.State == "done" && (again.Output != out.Output || !again.Duplicate) {
			t.Fatalf("round %d: asked again %+v", round, again)
		}
		if out.State == "done" {
			good++
		} else {
			failed[out.refusal.Message]++
		}
	}
	t.Logf("%d done, %d cuts, failed: %v", good, way.cuts.Load(), failed)
	if way.cuts.Load() < 80 {
		t.Errorf("the link was cut %d times only", way.cuts.Load())
	}
	if good < 95 {
		t.Errorf("only %d of 100 calls were done", good)
	}
}

// BenchmarkDeviceCall compares a call through gateway and device with the same plugin
// run directly.
func BenchmarkDeviceCall(b *testing.B) {
	home, _, session := buildDevices(b)
	code, url := pairingCode(b, home)
	id, err := device.Dialer{}.Pair(b.Context(), state.Identity{RelayURL: url, Device: "laptop"}, code)
	if err != nil {
		b.Fatal(err)
	}
	m := newMachine(b, "", home, "laptop")
	m.plugin("mark", `read -r call; echo '{"ok":true,"output":"marked"}'`)
	defer inProcess(b, m, id)()
	waitConnected(b, session)
	b.Run("direct", func(b *testing.B) {
		for b.Loop() {
			cmd := exec.Command("sh", filepath.Join(m.home, ".config/agent-relay-device/plugins/mark/main.sh"))
			cmd.Stdin = strings.NewReader("{}\n")
			if out, err := cmd.Output(); err != nil || !bytes.Contains(out, []byte("marked")) {
				b.Fatal(err)
			}
		}
	})
	b.Run("device", func(b *testing.B) {
		for b.Loop() {
			if out := callDevice(b, session, call("laptop", "mark", nil)); out.State != "done" {
				b.Fatalf("%+v %v", out, out.refusal)
			}
		}
	})
}

// TestAClosedWindowEndsTheDevice, although the signal is the one that reloads plugins.
func TestAClosedWindowEndsTheDevice(t *testing.T) {
	home, program, _ := buildDevices(t)
	m := newMachine(t, program, home, "laptop")
	m.pair()
	d := m.atTerminal()
	m.ok("plugins", "install", "run")
	if out := m.ok("plugins", "reload"); out != "Tools: run\n" {
		t.Errorf("%q", out)
	}
	if err := d.hangUp(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-d.ended:
	case <-time.After(deviceWait):
		t.Fatal("it goes on without anybody who can be asked")
	}
	if r := m.run("status"); r.Code != 1 || !strings.Contains(r.Stdout, "the device does not run") {
		t.Errorf("%+v", r)
	}
}
