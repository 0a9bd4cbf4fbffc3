package worker_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/commands"
	"agentrelay/internal/direct/commands/record"
	"agentrelay/internal/direct/files"
	"agentrelay/internal/direct/transfers"
	"agentrelay/internal/fault"
	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/worker"
	"agentrelay/internal/hosts/worker/wire"
)

func TestTools(t *testing.T) {
	m := newMachine(t)
	m.banner = "printf 'Welcome to far!'; echo; printf 'agent-relay-worker 0 {}\nno line end'; "
	m.write("a.txt", "hello\n")
	c := m.open()
	if s := c.Probe(t.Context()); s.State != hosts.Up || s.Reason != "" || s.Worker == nil || s.Worker.Outdated || !c.DirectConfigured() {
		t.Fatalf("%+v", s)
	}
	projects, err := c.ListDirectProjects(t.Context(), direct.ListDirectProjectsIn{})
	if err != nil || len(projects.Projects) != 1 || projects.Projects[0].HostID != "far" || projects.Projects[0].Unavailable != "" {
		t.Fatalf("%+v, %v", projects, err)
	}
	read, err := c.ReadDirectFile(t.Context(), files.ReadDirectFileIn{ProjectID: "p", Path: "a.txt"})
	if err != nil || read.Content != "hello\n" || read.HostID != "far" {
		t.Fatalf("%+v, %v", read, err)
	}
	found, err := c.SearchDirectFiles(t.Context(), files.SearchDirectFilesIn{ProjectID: "p", Query: "hell"})
	if err != nil || len(found.Matches) != 1 {
		t.Fatalf("%+v, %v", found, err)
	}
	wrote, err := c.WriteDirectFile(t.Context(), files.WriteDirectFileIn{ProjectID: "p", Path: "b.txt", Content: "x"})
	if err != nil || !wrote.Created || wrote.Duplicate || m.read("b.txt") != "x" {
		t.Fatalf("%+v, %v", wrote, err)
	}
	wrote, err = c.WriteDirectFile(t.Context(), files.WriteDirectFileIn{ProjectID: "p", Path: "b.txt", Content: "x"})
	if err != nil || !wrote.Duplicate {
		t.Fatalf("%+v, %v", wrote, err)
	}
	_, err = c.WriteDirectFile(t.Context(), files.WriteDirectFileIn{ProjectID: "p", Path: "a.txt", Content: "x"})
	var refused *fault.Error
	if !errors.As(err, &refused) || refused.Kind != files.FileExists || refused.Message != "path exists already." {
		t.Fatalf("%#v", err)
	}
	ran, err := c.RunDirectCommand(t.Context(), me(), commands.RunDirectCommandIn{ProjectID: "p", RequestID: "r1", Argv: []string{"cat"}, Stdin: ptr("open")})
	if err != nil || ran.State != record.Running {
		t.Fatalf("%+v, %v", ran, err)
	}
	input, err := c.WriteDirectCommandInput(t.Context(), me(), commands.WriteDirectCommandInputIn{CommandID: ran.CommandID, InputID: "i", Text: ptr("typed\n"), EOF: true})
	if err != nil || input.State != record.Accepted || !input.EOF {
		t.Fatalf("%+v, %v", input, err)
	}
	ran, err = c.RunDirectCommand(t.Context(), me(), commands.RunDirectCommandIn{ProjectID: "p", RequestID: "r1", Argv: []string{"cat"}, Stdin: ptr("open"), WaitMs: ptr(10_000)})
	if err != nil || !ran.Duplicate || ran.State != record.Exited || len(ran.Output.Events) != 1 || ran.Output.Events[0].Text != "typed\n" {
		t.Fatalf("%+v, %v", ran, err)
	}
	// Another owner's command reads as unknown.
	stranger := me()
	stranger.Owner = "local-owner:other"
	if _, err := c.ReadDirectCommand(t.Context(), stranger, commands.ReadDirectCommandIn{CommandID: &ran.CommandID}); !errors.Is(err, commands.UnknownCommand) {
		t.Error(err)
	}
}

// The state directory of the worker is no file of a project.
func TestOwnStateIsProtected(t *testing.T) {
	m := newMachine(t)
	c := m.open(func(o *worker.Options) { o.Settings.Projects[0].Path = filepath.Dir(m.project) })
	_, err := c.ReadDirectFile(t.Context(), files.ReadDirectFileIn{ProjectID: "p", Path: "state/worker/lock"})
	if !errors.Is(err, direct.ProtectedPath) {
		t.Error(err)
	}
}

func TestManyCallsShareAWorker(t *testing.T) {
	m := newMachine(t)
	m.write("a.txt", "hello\n")
	c := m.open()
	ran, err := c.RunDirectCommand(t.Context(), me(), commands.RunDirectCommandIn{ProjectID: "p", RequestID: "r", Argv: []string{"sleep", "60"}})
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	for range 100 { // waiting calls are in nobody's way
		work.Go(func() {
			_, err := c.ReadDirectCommand(t.Context(), me(), commands.ReadDirectCommandIn{CommandID: &ran.CommandID, WaitMs: ptr(20_000)})
			if err != nil {
				t.Error(err)
			}
		})
	}
	began := time.Now()
	var small sync.WaitGroup
	for range 200 {
		small.Go(func() {
			out, err := c.ReadDirectFile(t.Context(), files.ReadDirectFileIn{ProjectID: "p", Path: "a.txt"})
			if err != nil || out.Content != "hello\n" {
				t.Errorf("%+v, %v", out, err)
			}
		})
	}
	small.Wait()
	t.Logf("200 reads at once took %v", time.Since(began))
	if _, err := c.CancelDirectCommand(t.Context(), me(), commands.CancelDirectCommandIn{CommandID: ran.CommandID}); err != nil {
		t.Fatal(err)
	}
	work.Wait()
	if n := len(m.current().processes()); n != 1 {
		t.Errorf("%d processes on the connection", n)
	}
}

func TestNotInstalled(t *testing.T) {
	m := newMachine(t)
	c := m.open(worker.Impatient, func(o *worker.Options) {
		o.Command = func(...string) string { return "exec " + filepath.Join(m.stateDir, "bin", "peer-agent") }
	})
	if _, err := c.At(t.Context()); !errors.Is(err, hosts.Unavailable) || !strings.Contains(err.Error(), "The worker is not installed: gateway hosts install far") {
		t.Fatal(err)
	}
	if s := c.Status(); s.State != hosts.Up || s.Reason != "The worker is not installed: gateway hosts install far" {
		t.Fatalf("%+v", s)
	}
}

func TestSettingsAreRefused(t *testing.T) {
	m := newMachine(t)
	c := m.open(worker.Impatient, func(o *worker.Options) { o.Settings.Projects[0].Path = "relative" })
	if _, err := c.At(t.Context()); !errors.Is(err, hosts.Unavailable) || !strings.Contains(err.Error(), "projects[0].path must be absolute") {
		t.Fatal(err)
	}
}

func TestStateDirOfOthersIsRefused(t *testing.T) {
	m := newMachine(t)
	if err := os.Chmod(m.stateDir, 0o755); err != nil {
		t.Fatal(err)
	}
	c := m.open(worker.Impatient)
	_, err := c.At(t.Context())
	var refused *fault.Error
	if !errors.As(err, &refused) || refused.Code != "host_unavailable" || strings.Contains(refused.Message, m.stateDir) {
		t.Fatal(err)
	}
}

func TestVersions(t *testing.T) {
	for _, v := range []struct {
		gateway  int
		outdated bool
		code     string
	}{
		{wire.Protocol, false, ""},
		{wire.Protocol + 1, true, ""}, // the worker is one version behind
		{wire.Protocol + 2, false, "worker_outdated"},
	} {
		m := newMachine(t)
		m.write("a.txt", "hello\n")
		c := m.open(worker.Speak(v.gateway), worker.Impatient)
		_, err := c.ReadDirectFile(t.Context(), files.ReadDirectFileIn{ProjectID: "p", Path: "a.txt"})
		var refused *fault.Error
		if code := ""; errors.As(err, &refused) {
			code = refused.Code
			if code != v.code || refused.Hint != "Ask the owner to run: gateway hosts install far" {
				t.Errorf("%d: %v", v.gateway, err)
			}
		} else if v.code != "" || err != nil {
			t.Errorf("%d: %v", v.gateway, err)
		}
		if s := c.Status(); v.code == "" && (s.Worker == nil || s.Worker.Outdated != v.outdated) {
			t.Errorf("%d: %+v", v.gateway, s)
		}
	}
}

// A worker that hangs on a dead connection does not keep the next one out, and
// nothing that it was sent happens after that.
func TestHangingWorkerIsReplaced(t *testing.T) {
	m := newMachine(t)
	c := m.open(worker.Impatient, func(o *worker.Options) { o.StartTimeout = 5 * time.Second })
	if _, err := c.At(t.Context()); err != nil {
		t.Fatal(err)
	}
	old := m.current().processes()[0]
	if err := syscall.Kill(old, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(old, syscall.SIGKILL) })
	got, before := make(chan error, 1), m.current().sent.Load()
	go func() {
		_, err := c.WriteDirectFile(t.Context(), files.WriteDirectFileIn{ProjectID: "p", Path: "late.txt", Content: "late"})
		got <- err
	}()
	for m.current().sent.Load() == before { // until it lies in the old worker's input
		time.Sleep(time.Millisecond)
	}
	m.cut("the cable was pulled.")
	m.join()
	if err := <-got; !errors.Is(err, hosts.Unavailable) || !strings.Contains(err.Error(), "Nothing was changed") {
		t.Fatal(err)
	}
	_ = syscall.Kill(old, syscall.SIGCONT)
	if _, err := c.WriteDirectFile(t.Context(), files.WriteDirectFileIn{ProjectID: "p", Path: "b.txt", Content: "x"}); err != nil {
		t.Fatal(err)
	}
	if m.read("late.txt") != "" {
		t.Error("the late write happened")
	}
}

func TestPlacements(t *testing.T) {
	m := newMachine(t)
	m.banner = "echo Welcome; "
	c := m.open()
	big := make([]byte, 5<<20)
	rand.Read(big)
	in := transfers.Placement{ID: strings.Repeat("a", 24), ProjectID: "p", Path: "big", Size: int64(len(big)), SHA256: sum(string(big))}
	if err := c.Placements().Check(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	placed, err := c.Placements().Place(t.Context(), in, bytes.NewReader(big))
	if err != nil || !placed.Created || placed.Path != "big" || m.read("big") != string(big) {
		t.Fatalf("%+v, %v", placed, err)
	}
	if again, ok, err := c.Placements().Settle(t.Context(), in.ID); err != nil || !ok || again != placed {
		t.Fatalf("%+v, %v, %v", again, ok, err)
	}
	snap, err := c.Placements().Open(t.Context(), "p", "big")
	if err != nil || snap.Size != in.Size || snap.Path != "big" {
		t.Fatalf("%+v, %v", snap, err)
	}
	got, err := io.ReadAll(snap.Content)
	snap.Content.Close()
	if err != nil || !bytes.Equal(got, big) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	// Refusals arrive as they are, before the content too.
	if err := c.Placements().Check(t.Context(), in); !errors.Is(err, files.FileExists) {
		t.Error(err)
	}
	in.ID = strings.Repeat("b", 24)
	if _, err := c.Placements().Place(t.Context(), in, bytes.NewReader(big)); !errors.Is(err, files.FileExists) {
		t.Error(err)
	}
	if _, err := c.Placements().Open(t.Context(), "p", "nothing"); !errors.Is(err, direct.PathNotFound) {
		t.Error(err)
	}
	// What was asked about is not placed any more.
	in.ID, in.Path = strings.Repeat("c", 24), "other"
	if _, ok, err := c.Placements().Settle(t.Context(), in.ID); err != nil || ok {
		t.Fatal(ok, err)
	}
	if _, err := c.Placements().Place(t.Context(), in, bytes.NewReader(big)); !errors.Is(err, transfers.ErrWithdrawn) {
		t.Error(err)
	}
	// Content that can't be read to its end, or is other content, changes nothing.
	broken := errors.New("the disk is broken")
	in.ID = strings.Repeat("d", 24)
	if _, err := c.Placements().Place(t.Context(), in, io.MultiReader(bytes.NewReader(big[:1<<20]), failing{broken})); !errors.Is(err, broken) {
		t.Error(err)
	}
	in.ID = strings.Repeat("e", 24)
	if _, err := c.Placements().Place(t.Context(), in, bytes.NewReader(big[1:])); !errors.Is(err, transfers.Corrupted) {
		t.Error(err)
	}
	if m.read("other") != "" {
		t.Error("other was placed")
	}
}

type failing struct{ error }

func (f failing) Read([]byte) (int, error) { return 0, f.error }

// A file that changes while it is sent is said to, and one that is cut off does
// not end.
func TestContentThatIsNotWhole(t *testing.T) {
	m := newMachine(t)
	m.write("big", strings.Repeat("x", 20<<20))
	time.Sleep(30 * time.Millisecond)
	c := m.open()
	snap, err := c.Placements().Open(t.Context(), "p", "big")
	if err != nil {
		t.Fatal(err)
	}
	m.write("big", strings.Repeat("y", 20<<20))
	_, err = io.Copy(io.Discard, snap.Content)
	snap.Content.Close()
	if !errors.Is(err, direct.FileChanged) {
		t.Error(err)
	}
	time.Sleep(30 * time.Millisecond)
	if snap, err = c.Placements().Open(t.Context(), "p", "big"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, snap.Content, 1000); err != nil {
		t.Fatal(err)
	}
	m.cut("the cable was pulled.")
	_, err = io.Copy(io.Discard, snap.Content)
	snap.Content.Close()
	if !errors.Is(err, hosts.Unavailable) {
		t.Error(err)
	}
}

func TestRenew(t *testing.T) {
	m := newMachine(t)
	c := m.open()
	if _, err := c.At(t.Context()); err != nil {
		t.Fatal(err)
	}
	old := m.current().processes()
	c.Renew()
	if _, err := c.ListDirectProjects(t.Context(), direct.ListDirectProjectsIn{}); err != nil {
		t.Fatal(err)
	}
	if now := m.current().processes(); len(now) == 1 && now[0] == old[0] {
		t.Error("it is the same worker")
	}
	if s := c.Status(); s.Reason != "" {
		t.Errorf("%+v", s)
	}
}

// Content that waits for its turn holds up nothing else.
func TestContentThatWaits(t *testing.T) {
	m := newMachine(t)
	m.write("a", strings.Repeat("x", 1000))
	time.Sleep(30 * time.Millisecond)
	c := m.open()
	var all []*transfers.Snapshot
	for range 10 { // more than there are channels
		snap, err := c.Placements().Open(t.Context(), "p", "a")
		if err != nil {
			t.Fatal(err)
		}
		defer snap.Content.Close()
		all = append(all, snap)
	}
	for i, snap := range all {
		if i == 5 {
			m.write("a", "another")
			time.Sleep(30 * time.Millisecond)
		}
		got, err := io.ReadAll(snap.Content)
		changed := i >= 5 && errors.Is(err, direct.FileChanged) // or it was sent before
		if !changed && (err != nil || string(got) != strings.Repeat("x", 1000)) {
			t.Errorf("%d: %d bytes, %v", i, len(got), err)
		}
		snap.Content.Close()
	}
}

// A host that is there for its agents alone needs no worker.
func TestNoProjects(t *testing.T) {
	m := newMachine(t)
	c := m.open(func(o *worker.Options) { o.Settings.Projects = nil })
	if s := c.Probe(t.Context()); s.State != hosts.Up || s.Reason != "" || c.DirectConfigured() {
		t.Errorf("%+v", s)
	}
	at, err := c.At(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if out, err := at.ListDirectProjects(t.Context(), direct.ListDirectProjectsIn{}); err != nil || out.Projects == nil || len(out.Projects) != 0 || out.HostID != "far" {
		t.Errorf("%+v, %v", out, err)
	}
	if n := len(m.current().processes()); n != 0 {
		t.Errorf("%d processes were started", n)
	}
}

// The largest texts that tools take go through, whatever they become as JSON.
func TestLargestTexts(t *testing.T) {
	m := newMachine(t)
	c := m.open()
	for i, character := range []string{"<", "\x01", "\"", "é"} {
		text := strings.Repeat(character, files.MaxContent/len(character))
		name := string(rune('a' + i))
		if _, err := c.WriteDirectFile(t.Context(), files.WriteDirectFileIn{ProjectID: "p", Path: name, Content: text}); err != nil {
			t.Fatal(err)
		}
		other := text[:len(text)-len(character)] + "!"
		out, err := c.EditDirectFile(t.Context(), files.EditDirectFileIn{ProjectID: "p", Path: name, ExpectedSHA256: sum(text), OldText: text, NewText: other})
		if err != nil || out.SHA256 != sum(other) || m.read(name) != other {
			t.Fatalf("%q: %v", character, err)
		}
		if read, err := c.ReadDirectFile(t.Context(), files.ReadDirectFileIn{ProjectID: "p", Path: name}); err != nil || !strings.HasPrefix(other, read.Content) || read.Content == "" {
			t.Fatalf("%q: %v", character, err)
		}
	}
}

// A host without a session for a file is not waited for without end.
func TestNoSessionForAFile(t *testing.T) {
	m := newMachine(t)
	m.write("a", "x")
	c := m.open(func(o *worker.Options) { o.StartTimeout = 3 * time.Second })
	if _, err := c.At(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.current().full.Store(true)
	if _, err := c.Placements().Open(t.Context(), "p", "a"); !errors.Is(err, hosts.Unavailable) {
		t.Errorf("got %v", err)
	}
}

// What a worker calls its version is shown only as far as one can be.
func TestVersionThatIsNone(t *testing.T) {
	m := newMachine(t)
	m.banner = `IFS= read -r hello; nonce=${hello#*'"nonce":"'}; printf '\nagent-relay-worker %s {"protocol":0,"version":"\\u001b[2J%01000d"}\n' "${nonce%%'"'*}" 0; `
	_, err := m.open().At(t.Context())
	var refused *fault.Error
	if !errors.As(err, &refused) || refused.Code != hosts.Outdated.Code || strings.Contains(refused.Message, "\x1b") || len(refused.Message) > 300 {
		t.Errorf("%.400v", err)
	}
}

// said counts the lines of a log that a worker said.
type said struct{ atomic.Int64 }

func (s *said) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("the worker says")) {
		s.Add(1)
	}
	return len(line), nil
}

// What a worker says is in the log, but can't fill it.
func TestAWorkerThatSaysALot(t *testing.T) {
	m := newMachine(t)
	m.banner = "yes 'help me' | head -n 3000 >&2; "
	log := &said{}
	c := m.open(func(o *worker.Options) { o.Log = slog.New(slog.NewTextHandler(log, nil)) })
	if _, err := c.At(t.Context()); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); log.Load() < 100; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("only %d lines", log.Load())
		}
	}
	c.Close()
	if n := log.Load(); n > 150 {
		t.Errorf("%d lines of 3000", n)
	}
}
